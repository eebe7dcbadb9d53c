"""Claims about images that are decoded once: the same pixels, whatever they come from."""

import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from codauc.data.data_settings import DataSettings
from codauc.data.decoded_images import ABOUT, decode, is_class_folders, is_decoded
from codauc.data.image_folders import image_folder
from codauc.data.image_sources import read_images
from codauc.data.opening import open_data
from codauc.workers.simulated import run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two classes of colour and grey images, with a test set beside them."""
    root, rng = tmp_path_factory.mktemp("images") / "imagenet64", np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for label in ("n01440764", "n01443537"):
            (root / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (20 + i, 24) + (3,) * (i % 2), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / label / f"{i}.JPEG")
    return root


@pytest.fixture(scope="module")
def tar(folders):
    path = folders.parent / "imagenet64.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for image in sorted(folders.rglob("*.JPEG"), reverse=True):
            file.add(image, image.relative_to(folders.parent))
    return path


def test_a_tar_file_and_its_folders_give_what_reading_each_time_gives(folders, tar, tmp_path):
    for name, source in (("a", folders), ("b", tar)):
        assert is_class_folders(source)
        decode(source, 16, tmp_path / name)
    for part, count in (("train", 12), ("test", 4)):
        x, classes, y = image_folder(folders / part, 16)
        everything = torch.randperm(count)
        for name in "ab":
            images = read_images(DataSettings(source=str(tmp_path / name)))
            found = getattr(images, part)
            assert images.classes == classes
            assert found.y.tolist() == y.tolist()
            torch.testing.assert_close(found.x.gather(everything), x.gather(everything))


def test_workers_share_out_decoded_images_and_keep_the_test_set(folders, tmp_path):
    decode(folders, 16, tmp_path / "images")
    settings = DataSettings(source=str(tmp_path / "images"), positive=("half",), watch="test")
    opened = run(lambda group: open_data(settings, group), workers=2)
    assert [len(each.train.x) for each in opened] == [6, 6]
    assert sum(len(each.test.x) for each in opened) == 4
    assert opened[0].positive == ("n01440764",)
    assert opened[0].train.fingerprint != opened[1].train.fingerprint


def test_what_was_interrupted_is_not_taken_for_whole(folders, tar, tmp_path):
    def stop(done, of):
        if done == of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(tar, 16, tmp_path / "images", stop)
    assert not is_decoded(tmp_path / "images")
    decode(tar, 16, tmp_path / "images")
    (tmp_path / "images" / "train.npy").write_bytes(b"short")
    with pytest.raises(ValueError, match="remove it, and the images are decoded again"):
        read_images(DataSettings(source=str(tmp_path / "images")))


def test_a_folder_without_such_classes_is_refused(tmp_path):
    (tmp_path / "dogs").mkdir()
    with pytest.raises(ValueError, match="no images in folders such as n01440764"):
        decode(tmp_path, 16, tmp_path / "images")
    assert not is_class_folders(tmp_path)
    assert not (tmp_path / "images" / ABOUT).exists()
