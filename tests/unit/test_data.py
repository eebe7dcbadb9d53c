"""Claims about sources, binary labels, shards and batches."""

import io
import json
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codauc.data import Batches, binarise, cifar10, even_shards, fashion_tiny, thin_negatives

few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**63)


@pytest.fixture(scope="module")
def images():
    return fashion_tiny()


def test_images_have_the_promised_shapes_and_types(images):
    assert images.train_x.shape == (2000, 1, 28, 28)
    assert images.test_x.shape == (500, 1, 28, 28)
    assert images.train_x.dtype == images.test_x.dtype == torch.float32
    assert images.train_y.dtype == images.test_y.dtype == torch.int64
    assert images.train_y.bincount().tolist() == [200] * 10


def test_training_images_have_mean_0_and_variance_1(images):
    pixels = images.train_x.double()
    assert abs(pixels.mean().item()) < 1e-6
    assert abs(pixels.var(correction=0).item() - 1) < 1e-6


def test_test_images_are_scaled_like_training_images(images):
    black, white = images.train_x.min(), images.train_x.max()
    assert (images.test_x.min(), images.test_x.max()) == (black, white)
    assert abs(images.test_x.mean().item()) > 1e-3


def test_labels_belong_to_their_images(images):
    """The nearest class mean finds most classes, which shuffled labels would not allow."""
    train = images.train_x.flatten(1)
    means = torch.stack([train[images.train_y == c].mean(0) for c in range(10)])
    nearest = torch.cdist(images.test_x.flatten(1), means).argmin(1)
    assert (nearest == images.test_y).float().mean() > 0.6


def archive(folder, sizes=(3, 1, 2, 4, 5, 6), seed=0):
    """A small archive in CIFAR-10's layout; returns labels and pixels of both parts."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    rng, labels, pixels = np.random.default_rng(seed), [], []
    for name, size in zip(names, sizes, strict=True):
        labels.append(rng.integers(0, 10, size, dtype=np.uint8))
        pixels.append(rng.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8))
        rows = np.concatenate([labels[-1][:, None], pixels[-1].reshape(size, -1)], axis=1)
        (folder / name).write_bytes(rows.tobytes())
    train = np.concatenate(labels[:5]), np.concatenate(pixels[:5])
    return train, (labels[5], pixels[5])


@pytest.mark.parametrize("inside", [".", "cifar-10-batches-bin"])
def test_cifar10_gives_every_record_in_order(tmp_path, inside):
    (train_y, train), (test_y, test) = archive(tmp_path / inside)
    found = cifar10(tmp_path)
    assert found.train_x.dtype == found.test_x.dtype == torch.float32
    assert found.train_y.dtype == found.test_y.dtype == torch.int64
    assert found.train_x.shape == (15, 3, 32, 32)
    assert found.train_y.tolist() == train_y.tolist()
    assert found.test_y.tolist() == test_y.tolist()
    mean = train.mean(axis=(0, 2, 3), keepdims=True)
    std = train.std(axis=(0, 2, 3), keepdims=True)
    for x, pixels in ((found.train_x, train), (found.test_x, test)):
        np.testing.assert_allclose(x.numpy(), (pixels - mean) / std, atol=1e-5)


def test_cifar10_takes_text_for_the_directory(tmp_path):
    archive(tmp_path)
    assert len(cifar10(str(tmp_path)).test_y) == 6


def test_cifar10_of_one_colour_is_finite(tmp_path):
    archive(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(bytes(3073))
    assert not cifar10(tmp_path).train_x.any()


def test_cifar10_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"none' is not a directory: expected data_batch_1\.bin"):
        cifar10(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no data_batch_1\.bin: expected .* unpack"):
        cifar10(tmp_path)
    archive(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_4\.bin is missing: expected all of"):
        cifar10(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 3072, 3074])
def test_cifar10_refuses_a_file_that_was_cut_off(tmp_path, keep):
    archive(tmp_path)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"test_batch\.bin has {keep} bytes: expected a multiple"):
        cifar10(tmp_path)


def test_cifar10_refuses_labels_above_9(tmp_path):
    archive(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(bytes([11, *bytes(3072)]))
    with pytest.raises(ValueError, match="the label 11: expected 0 to 9"):
        cifar10(tmp_path)


@few
@given(st.lists(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9)))
def test_binary_label_is_membership_of_the_positive_classes(labels, positive):
    present = set(labels)
    if positive <= present and 0 < len(positive) < len(present):
        expected = [label in positive for label in labels]
        assert binarise(torch.tensor(labels), positive).tolist() == expected
    else:
        with pytest.raises(ValueError, match="expected"):
            binarise(torch.tensor(labels), positive)


@pytest.mark.parametrize(
    ("positive", "message"),
    [
        ([3], "positive names 3: expected classes that occur in the labels, which are 0, 1, 2"),
        ([], "some but not all"),
        ([0, 1, 2], "some but not all"),
        ([0, 1, 2, 2], "some but not all"),
        (1, r"expected a collection of classes; write \[1\]"),
    ],
)
def test_wrong_positive_classes_are_refused(positive, message):
    with pytest.raises(ValueError, match=message):
        binarise(torch.tensor([0, 1, 2]), positive)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float64, torch.bool])
def test_binary_labels_do_not_depend_on_the_dtype(dtype):
    labels = torch.tensor([0, 1, 0, 1], dtype=dtype)
    assert binarise(labels, range(1, 2)).tolist() == [False, True, False, True]


@few
@given(st.lists(st.booleans(), min_size=1), st.floats(0, 1, exclude_min=True), seeds)
def test_thinning_keeps_all_positives_and_the_rounded_part_of_negatives(values, keep, seed):
    labels = torch.tensor([*values, False])
    kept = thin_negatives(labels, keep, seed)
    negatives = len(labels) - int(labels.sum())
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert labels[kept].sum() == labels.sum()
    count = len(kept) - int(labels.sum())
    assert count >= 1
    assert count == 1 or abs(count - keep * negatives) <= 0.5


def test_thinning_is_chosen_by_the_seed():
    labels = torch.arange(100) % 2
    first, again, other = (thin_negatives(labels, 0.5, seed).tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_thinning_takes_every_coding_of_binary_labels():
    truth = torch.arange(30) % 3 == 0
    codings = [truth, truth.long(), truth.float(), 2 * truth.long() - 1]
    results = [thin_negatives(labels, 0.4, 0).tolist() for labels in codings]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("keep", [0, -0.1, 1.5, float("nan"), "half"])
def test_a_keep_outside_0_to_1_is_refused(keep):
    with pytest.raises(ValueError, match=r"keep=.*expected a number > 0"):
        thin_negatives(torch.tensor([0, 1]), keep, 0)


@pytest.mark.parametrize(
    "labels", [[0, 1, 2], [-1, 0, 1], [0.5, 1], [float("nan"), 1.0], [[0, 1]], list(range(50))]
)
def test_labels_of_more_than_two_kinds_cannot_be_thinned(labels):
    with pytest.raises(ValueError, match="use binarise"):
        thin_negatives(torch.tensor(labels), 0.5, 0)


def test_thinning_without_negatives_is_refused():
    with pytest.raises(ValueError, match="0 negatives"):
        thin_negatives(torch.tensor([True, True]), 0.5, 0)


@few
@given(st.integers(1, 60), st.integers(1, 60), seeds)
def test_shards_are_disjoint_and_complete(count, workers, seed):
    if count < workers:
        with pytest.raises(ValueError, match=f"use at most {count} workers"):
            even_shards(count, workers, seed)
        return
    shards = even_shards(count, workers, seed)
    sizes = [len(shard) for shard in shards]
    assert len(shards) == workers
    assert max(sizes) - min(sizes) <= 1
    assert sorted(torch.cat(shards).tolist()) == list(range(count))


def test_shards_are_shuffled_by_the_seed():
    first, again, other = (torch.cat(even_shards(100, 3, s)).tolist() for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert first != list(range(100))


def test_a_saved_shard_holds_no_other_worker_s_indices():
    file = io.BytesIO()
    torch.save(even_shards(100_000, 100, 0)[0], file)
    assert file.tell() < 20_000


def test_splitting_and_batching_with_one_seed_shuffle_differently():
    shard = even_shards(100, 1, 0)[0].tolist()
    batch = next(numbers(100, 100, seed=0))[0].tolist()
    assert shard != batch


@pytest.mark.parametrize(
    "arguments", [{"count": 0}, {"workers": 0}, {"seed": -1}, {"workers": 1.5}]
)
def test_wrong_arguments_of_shards_are_refused(arguments):
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=f"{name}={value}: expected an integer"):
        even_shards(**{"count": 10, "workers": 2, "seed": 0, **arguments})


def numbers(samples, batch_size, **options):
    """Batches whose x are the indices of the samples and whose y are their negatives."""
    return Batches(torch.arange(samples), -torch.arange(samples), batch_size, **options)


def epoch(batches):
    """The batches of the next whole epoch, as lists."""
    now, found = batches.epoch, []
    while batches.epoch == now:
        found.append(next(batches)[0].tolist())
    return found


sizes = {"samples": st.integers(1, 40), "batch_size": st.integers(1, 50)}


@few
@given(**sizes, seed=seeds, worker=st.integers(0, 2**20))
def test_every_epoch_gives_every_sample_once(samples, batch_size, seed, worker):
    batches = numbers(samples, batch_size, seed=seed, worker=worker)
    for _ in range(3):
        assert sorted(chain(*epoch(batches))) == list(range(samples))


@few
@given(**sizes)
def test_only_the_last_batch_differs_in_size_and_is_never_a_leftover_single(samples, batch_size):
    *full, last = [len(batch) for batch in epoch(numbers(samples, batch_size))]
    assert all(size == batch_size for size in full)
    assert last <= batch_size + 1
    if samples > 1 and batch_size > 1:
        assert last > 1


@pytest.mark.parametrize(
    ("samples", "batch_size", "expected"),
    [
        (9, 3, [3, 3, 3]),
        (8, 3, [3, 3, 2]),
        (7, 3, [3, 4]),
        (3, 2, [3]),
        (3, 1, [1, 1, 1]),
        (4, 9, [4]),
        (1, 9, [1]),
    ],
)
def test_sizes_of_the_batches_of_an_epoch(samples, batch_size, expected):
    assert [len(batch) for batch in epoch(numbers(samples, batch_size))] == expected


def test_samples_keep_their_labels():
    x, y = next(numbers(50, 50))
    assert torch.equal(x, -y)


def test_order_depends_on_seed_worker_and_epoch_alone():
    def orders(seed, worker):
        torch.manual_seed(seed + worker)
        batches = numbers(50, 10, seed=seed, worker=worker)
        return [tuple(chain(*epoch(batches))) for _ in range(2)]

    different = orders(0, 0) + orders(0, 1) + orders(1, 0)
    assert len(set(different)) == 6
    assert orders(0, 0) == different[:2]


def test_batching_leaves_the_global_random_states_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    epoch(numbers(20, 3))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()


def test_a_changed_batch_leaves_the_data_alone():
    batches = numbers(6, 6)
    next(batches)[0].zero_()
    assert torch.equal(batches.x.x, torch.arange(6))


@few
@given(**sizes, before=st.integers(0, 90))
def test_restored_position_gives_the_same_batches(samples, batch_size, before):
    original = numbers(samples, batch_size, seed=3, worker=1)
    for _ in range(before):
        next(original)
    saved = json.loads(json.dumps(original.state_dict()))
    restored = numbers(samples, batch_size, seed=3, worker=1)
    restored.load_state_dict(saved)
    for _ in range(10):
        assert torch.equal(next(original)[0], next(restored)[0])
    assert original.state_dict() == restored.state_dict()


@pytest.mark.parametrize("change", [{"samples": 8}, {"batch_size": 4}, {"seed": 1}, {"worker": 1}])
def test_a_position_of_other_batches_is_refused(change):
    own = {"samples": 9, "batch_size": 3, "seed": 0, "worker": 0}
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"{name}={own[name]} here, but {name}={change[name]}"):
        numbers(**own).load_state_dict(numbers(**{**own, **change}).state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 9}, "index=9: expected less than 9"),
        ({"index": -1}, "index=-1: expected an integer >= 0"),
        ({"epoch": -1}, "epoch=-1: expected an integer >= 0"),
    ],
)
def test_a_position_outside_the_data_is_refused_and_changes_nothing(change, message):
    batches = numbers(9, 3)
    next(batches)
    before = batches.state_dict()
    with pytest.raises(ValueError, match=message):
        batches.load_state_dict({**before, **change})
    with pytest.raises(ValueError, match="expected 'samples' too"):
        batches.load_state_dict({"index": 0})
    assert batches.state_dict() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(torch.zeros(0, 2), torch.zeros(0), 3), "x has 0 samples"),
        (lambda: Batches(torch.zeros(4), torch.zeros(3), 3), "x has 4 samples and y 3"),
        (lambda: numbers(4, 0), "batch_size=0: expected an integer >= 1"),
        (lambda: numbers(4, 2.0), "batch_size=2.0: expected an integer"),
        (lambda: numbers(4, 2, seed=-1), "seed=-1: expected an integer >= 0"),
        (lambda: numbers(4, 2, worker=-1), "worker=-1: expected an integer >= 0"),
        (lambda: numbers(4, 2, seeds=1), "did you mean 'seed'"),
    ],
)
def test_wrong_arguments_of_batches_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
