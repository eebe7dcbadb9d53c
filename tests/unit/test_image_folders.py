"""Claims about where image files and their labels are found."""

import os

import pytest
import torch
from PIL import Image

from codauc.data.image_folders import image_folder, image_table, imagenet


def put(root, *names):
    """Small images, each of another grey, in the order given."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        kind = None if os.path.splitext(name)[1] else "PNG"
        Image.new("L", (4, 4), 5 * number).save(root / name, kind)
    return root


def found(files, root):
    return [os.path.relpath(files.path(i), root) for i in range(len(files))]


def test_folders_are_classes_in_the_order_of_their_names(tmp_path):
    put(tmp_path, "b/2.png", "b/10.JPG", "a b/ü ß.png", "C/x/y.gif", "C/x.png", "C/w/z.Tiff")
    files, classes, labels = image_folder(tmp_path, 8)
    assert classes == ["C", "a b", "b"]
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 0, 0, 1, 2, 2]
    names = ["C/w/z.Tiff", "C/x/y.gif", "C/x.png", "a b/ü ß.png", "b/10.JPG", "b/2.png"]
    assert found(files, tmp_path) == [os.path.normpath(name) for name in names]
    assert files.gather(torch.arange(6)).shape == (6, 3, 8, 8)


def test_the_order_does_not_depend_on_the_order_of_creation(tmp_path):
    names = [f"{label}/{i}.png" for label in "xyz" for i in range(20)]
    first, second = put(tmp_path / "1", *names), put(tmp_path / "2", *reversed(names))
    assert found(image_folder(first).x, first) == found(image_folder(second).x, second)


def test_hidden_files_and_other_suffixes_are_passed_over(tmp_path):
    put(tmp_path, "a/1.png", "a/.2.png", "a/.hidden/3.png", ".git/4.png", ".5.png")
    (tmp_path / "a" / "labels.txt").write_text("no image")
    (tmp_path / "README").write_text("no image")
    files, classes, _ = image_folder(tmp_path)
    assert (classes, found(files, tmp_path)) == (["a"], [os.path.join("a", "1.png")])


def test_links_are_followed(tmp_path):
    put(tmp_path, "store/deep/1.png", "data/b/2.png")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "store", target_is_directory=True)
    (tmp_path / "data" / "b" / "3.png").symlink_to(tmp_path / "store" / "deep" / "1.png")
    files, classes, labels = image_folder(tmp_path / "data", 4)
    assert (classes, labels.tolist()) == (["a", "b"], [0, 1, 1])
    files.check()


def test_links_that_lead_nowhere_or_in_a_circle_are_refused(tmp_path):
    put(tmp_path, "a/1.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path / "a", target_is_directory=True)
    with pytest.raises(ValueError, match=r"up is a link to a folder that holds it"):
        image_folder(tmp_path)
    (tmp_path / "a" / "up").unlink()
    (tmp_path / "a" / "2.png").symlink_to(tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"2\.png is not a file: is it a broken link"):
        image_folder(tmp_path)


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none' is not a directory: expected the one"):
        image_folder(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no folders: expected one for each class"):
        image_folder(tmp_path)
    put(tmp_path, "a/1.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no images: expected some"):
        image_folder(tmp_path)


def test_an_image_without_a_class_is_refused(tmp_path):
    put(tmp_path, "a/1.png", "stray.png")
    with pytest.raises(ValueError, match=r"stray\.png is in no folder: expected each image"):
        image_folder(tmp_path)


def test_scaling_is_handed_on_and_wrong_names_are_refused(tmp_path):
    put(tmp_path, "a/1.png")
    x = image_folder(tmp_path, 4, channels=1, mean=1, std=1).x.gather(torch.tensor([0]))
    assert torch.equal(x, torch.full((1, 1, 4, 4), -1.0))
    with pytest.raises(ValueError, match="did you mean 'channels'"):
        image_folder(tmp_path, chanels=1)


@pytest.fixture(scope="module")
def small_imagenet(tmp_path_factory):
    """300 empty files in three classes, as only their names are read."""
    root = tmp_path_factory.mktemp("imagenet")
    for wnid in ("n01440764", "n01443537", "n15075141"):
        (root / "train" / wnid).mkdir(parents=True)
        for i in range(100):
            (root / "train" / wnid / f"{wnid}_{i}.JPEG").touch()
    (root / "val").mkdir()
    return root


@pytest.mark.parametrize(("held_out", "count"), [(0.01, 3), (0.5, 150), (0.001, 1)])
def test_held_out_images_and_the_others_are_disjoint_and_complete(small_imagenet, held_out, count):
    data = imagenet(small_imagenet, seed=0, held_out=held_out)
    whole = image_folder(small_imagenet / "train")
    label = dict(zip(found(whole.x, small_imagenet), whole.y.tolist(), strict=True))
    train, test = (found(x, small_imagenet) for x in (data.train_x, data.test_x))
    assert len(test) == count
    assert sorted(train + test) == sorted(label)
    assert [label[name] for name in train] == data.train_y.tolist()
    assert [label[name] for name in test] == data.test_y.tolist()
    assert data.train_y.dtype == data.test_y.dtype == torch.int64


def test_the_seed_alone_decides_what_is_held_out(small_imagenet):
    def held_out(seed, directory=small_imagenet):
        return found(imagenet(directory, seed, held_out=0.1).test_x, small_imagenet)

    torch.manual_seed(5)
    assert held_out(1) == held_out(1) == held_out(1, small_imagenet / "train") != held_out(2)


def test_what_is_not_imagenet_is_refused(tmp_path, small_imagenet):
    put(tmp_path, "n01440764/1.png", "dogs/2.png")
    with pytest.raises(ValueError, match="the folder 'dogs': expected ImageNet's alone"):
        imagenet(tmp_path, seed=0)
    with pytest.raises(ValueError, match=r"held_out=1: expected a number > 0 and < 1"):
        imagenet(small_imagenet, seed=0, held_out=1)
    with pytest.raises(ValueError, match=r"held_out=0.999 of 300 images is 300: expected some"):
        imagenet(small_imagenet, seed=0, held_out=0.999)
    with pytest.raises(ValueError, match=r"seed=-1: expected an integer >= 0"):
        imagenet(small_imagenet, seed=-1)


def table(root, text, encoding="utf-8"):
    (root / "labels.csv").write_bytes(text.encode(encoding))
    return root / "labels.csv"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_gives_files_and_texts_row_by_row(tmp_path, end, encoding):
    put(tmp_path / "images", "1.png", "ü, 2.png", "deep/3.png")
    lines = ["file,age,sick", "deep/3.png,3,yes", '"ü, 2.png",,no', "", "deep/3.png,4, ja", ""]
    path = table(tmp_path, end.join(lines), encoding)
    files, labels = image_table(path, tmp_path / "images", "file", "sick", size=4)
    names = [os.path.normpath(name) for name in ("deep/3.png", "ü, 2.png", "deep/3.png")]
    assert found(files, tmp_path / "images") == names
    assert labels == ["yes", "no", " ja"]
    x = files.gather(torch.arange(3))
    assert torch.equal(x[0], x[2])
    assert not torch.equal(x[0], x[1])


def test_names_without_an_extension_get_the_suffix(tmp_path):
    put(tmp_path, "a.png", "plain")
    path = table(tmp_path, "id,y\na,1\n")
    assert found(image_table(path, tmp_path, "id", "y", suffix=".png")[0], tmp_path) == ["a.png"]
    path = table(tmp_path, "id,y\nplain,1\n")
    image_table(path, tmp_path, "id", "y")[0].check()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_commas_semicolons_and_tabs_are_told_by_the_first_line(tmp_path, mark, end, encoding):
    put(tmp_path, "a,b;c.png", "d.png")
    rows = [["y", "an, odd; name\t", "file"], ["no", "1,5", "a,b;c.png"], ["1;0", "2", "d.png"]]
    lines = [mark.join(f'"{value}"' for value in row) for row in rows]
    path = table(tmp_path, end.join(lines), encoding)
    files, labels = image_table(path, tmp_path, "file", "y")
    assert found(files, tmp_path) == ["a,b;c.png", "d.png"]
    assert labels == ["no", "1;0"]


def test_names_with_semicolons_do_not_hide_the_commas(tmp_path):
    put(tmp_path, "a.png")
    path = table(tmp_path, "file,a; b; c; d,y\na.png,0,1\n")
    assert image_table(path, tmp_path, "file", "y")[1] == ["1"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ValueError, match=r"pipe\.csv is a named pipe: expected a file"):
        image_table(tmp_path / "pipe.csv", tmp_path, "file", "y")


def test_what_is_no_path_is_refused(tmp_path):
    for directory in (None, 3, b"images"):
        for read in (image_folder, lambda directory: imagenet(directory, seed=0)):
            with pytest.raises(ValueError, match=r"directory=.*: expected a path; give it as str"):
                read(directory)
    with pytest.raises(ValueError, match="csv_path=None: expected a path"):
        image_table(None, tmp_path, "file", "y")
    with pytest.raises(ValueError, match=r"suffix=None: expected a text such as '\.png'"):
        image_table(table(tmp_path, "file,y\n"), tmp_path, "file", "y", suffix=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,y\na.png,1\nb.png,0\n", r"labels\.csv, row 1, names 'b\.png': expected a file in"),
        ("file,y\n../labels.csv,1\n", r"row 0, names '\.\./labels\.csv': .* without '\.\.'"),
        ("file,y\nx/../a.png,1\n", r"row 0, names 'x/\.\./a\.png': .* without '\.\.'"),
        ("file,y\n/etc/hostname,1\n", r"row 0, names '/etc/hostname': expected a path relative"),
        ("file,y\n,1\n", r"row 0, names '': expected a file"),
        ("file,y\na.png,\n", r"row 0, has no text in 'y': expected a label"),
        ("file,y\na.png\n", r"labels\.csv cannot be read as CSV: .*Expected 2 columns, got 1"),
        ("file,y\na.png,1,2\n", r"labels\.csv cannot be read as CSV: .*Expected 2 columns, got 3"),
        ("fiel,y\na.png,1\n", r"labels\.csv has no column 'file': did you mean 'fiel'"),
        ("file,z\na.png,1\n", r"labels\.csv has no column 'y': it has 'file', 'z'"),
        ("fiel;y\na.png;1\n", r"labels\.csv has no column 'file': did you mean 'fiel'"),
        ("file,y,y\na.png,1,1\n", r"two columns 'y'"),
        ("file,y\n", r"labels\.csv has 0 rows"),
        ("", r"labels\.csv cannot be read as CSV"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, text, message):
    put(tmp_path / "images", "a.png")
    with pytest.raises(ValueError, match=message):
        image_table(table(tmp_path, text), tmp_path / "images", "file", "y")


def test_tables_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv does not exist"):
        image_table(tmp_path / "none.csv", tmp_path, "file", "y")
    with pytest.raises(
        ValueError, match=r"labels\.csv is not UTF-8 text|labels\.csv cannot be read as CSV"
    ):
        image_table(table(tmp_path, "file,y\nü.png,1\n", "latin-1"), tmp_path, "file", "y")
    with pytest.raises(ValueError, match="is not a directory"):
        image_table(table(tmp_path, "file,y\n"), tmp_path / "none", "file", "y")
