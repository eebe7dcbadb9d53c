"""Claims about rows from anywhere, balanced batches, augmentation and reading ahead."""

import tracemalloc
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

import codauc
from codauc.algorithm.objective import objective
from codauc.data import Augment, Batches, Crop, Flip, even_shards
from codauc.data.order import Shuffled

X = torch.arange(60.0).reshape(20, 3)
Y = torch.arange(20) % 5 == 0


class Squares(Dataset):
    """A data set that makes its items when they are asked for."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return X[i], int(Y[i])


class Unlabelled(Squares):
    def __getitem__(self, i):
        return X[i]


def epoch(batches, count):
    x, y = zip(*islice(batches, count), strict=True)
    return torch.cat(x), torch.cat(y)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X.numpy(), Y),
        (X.numpy().astype(np.float64), Y),
        (Squares(), None),
        (Squares(), Y),
        (Unlabelled(), Y),
        (TensorDataset(X, Y), None),
    ],
)
def test_every_source_gives_the_batches_of_its_tensors(x, y):
    ours, expected = Batches(x, y, 6, seed=3), Batches(X, Y, 6, seed=3)
    for _ in range(7):
        for one, other in zip(next(ours), next(expected), strict=True):
            assert torch.equal(one, other.to(one.dtype))


def test_a_memory_mapped_file_is_read_by_the_batch(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert torch.equal(epoch(Batches(mapped, Y, 6), 4)[0], epoch(Batches(X, Y, 6), 4)[0])


def test_rows_are_the_only_samples():
    rows = torch.tensor([3, 8, 15, 4])
    x, y = epoch(Batches(X, Y, 3, rows=rows), 1)
    assert sorted(x[:, 0].tolist()) == [9, 12, 24, 45]
    assert torch.equal(y, Y[(x[:, 0] / 3).long()])


@pytest.mark.parametrize("workers", [1, 3, 4, 16])
def test_no_two_workers_read_the_same_sample_in_an_epoch(workers):
    seen = []
    for worker, shard in enumerate(even_shards(100, workers, seed=1)):
        batches = Batches(torch.arange(100), torch.zeros(100), 8, rows=shard, worker=worker)
        while batches.epoch == 0:
            seen += next(batches)[0].tolist()
    assert sorted(seen) == list(range(100))


@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(2, 12),
    st.floats(0.05, 0.95),
    st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_balanced_batches_have_their_share_and_use_a_class_evenly(up, down, size, share, seed):
    y = torch.arange(up + down) < up
    batches = Batches(torch.arange(up + down), y, size, seed=seed, balanced=share)
    count = 40
    x, labels = epoch(batches, count)
    hand = round(batches.sampled_ratio * size)
    assert abs(hand - share * size) <= 0.5 or hand in (1, size - 1)
    assert labels.view(count, size).sum(1).tolist() == [hand] * count
    assert torch.equal(labels, y[x])
    for members in (range(up), range(up, up + down)):
        times = torch.bincount(x, minlength=up + down)[list(members)]
        assert times.max() - times.min() <= 1


@pytest.mark.parametrize("balanced", [None, 0.4])
@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("before", [0, 3, 11])
def test_a_restored_position_gives_the_same_batches(balanced, loaders, before):
    def make():
        return Batches(
            X.view(20, 1, 3, 1).expand(20, 2, 3, 4).clone(),
            Y,
            6,
            seed=2,
            balanced=balanced,
            loaders=loaders,
            rows=torch.arange(1, 20),
            augment=Augment(Flip(), Crop(padding=1)),
        )

    batches = make()
    list(islice(batches, before))
    state = batches.state_dict()
    expected = list(islice(batches, 5))
    other = make()
    other.load_state_dict(state)
    for (x, y), (z, w) in zip(islice(other, 5), expected, strict=True):
        assert torch.equal(x, z)
        assert torch.equal(y, w)


def test_reading_ahead_gives_the_same_batches_and_leaves_the_random_stream_alone():
    plain, ahead = Batches(Squares(), None, 6), Batches(Squares(), None, 6, loaders=2)
    before = torch.get_rng_state()
    for _ in range(6):
        for one, other in zip(next(plain), next(ahead), strict=True):
            assert torch.equal(one, other)
        assert plain.state_dict() == ahead.state_dict()
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_depends_on_the_position_alone():
    x = torch.rand(8, 1, 5, 5)
    first, again = (Batches(x, Y[:8], 4, augment=Flip(), seed=1) for _ in range(2))
    assert torch.equal(next(first)[0], next(again)[0])
    other = Batches(x, Y[:8], 4, augment=Flip(), seed=1, worker=1)
    assert not torch.equal(next(first)[0], next(other)[0])


def test_the_objective_is_corrected_for_balanced_batches():
    """At their saddles, F under balanced sampling with p = q is F up to q(1-q)/(p(1-p)).

    So its gradient in the scores of the whole data is the whole data's, times that factor: the
    expected step in w points where it does without balancing.
    """
    torch.manual_seed(0)
    y = torch.arange(200) < 20
    h = torch.rand(200, dtype=torch.float64, requires_grad=True)
    p, q = 0.1, 0.5
    a, b = (h[y].mean(), h[~y].mean())

    def value(ratio):
        # the expectation over batches with a share `ratio` of positives
        inner = (a.detach(), b.detach(), (b - a).detach())
        up, down = (objective(h[c], y[c], inner, ratio).mean() for c in (y, ~y))
        return ratio * up + (1 - ratio) * down

    (plain,) = torch.autograd.grad(value(p), h)
    (balanced,) = torch.autograd.grad(value(q), h)
    factor = q * (1 - q) / (p * (1 - p))
    torch.testing.assert_close(balanced, plain * factor, rtol=1e-10, atol=0)


def test_balanced_training_is_as_good_and_a_wrong_ratio_is_told():
    torch.manual_seed(0)
    x = torch.randn(2000, 5)
    y = x[:, 0] + 0.5 * torch.randn(2000) > 2.0
    batches = Batches(x, y, 32, balanced=0.5)

    def fit(ratio):
        torch.manual_seed(0)
        model, loss = torch.nn.Linear(5, 1), codauc.MinMaxAUCLoss(pos_ratio=ratio)
        opt = codauc.PPDSG(model, loss, lr=0.3)
        for inputs, labels in codauc.CoDA(opt).stage(codauc.Stage(lr=0.3, steps=200), batches):
            opt.zero_grad()
            loss(model(inputs), labels).backward()
            opt.step()
        return codauc.evaluate(model, x, y).value

    assert fit(batches.sampled_ratio) > 0.95
    with pytest.warns(UserWarning, match="1600 of the|3200 of the|of the .* labels trained on"):
        fit(float(y.float().mean()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(X), "y is missing"),
        (
            lambda: Batches(X, Y, rows=torch.tensor([0, 20])),
            "rows has 20: expected numbers from 0 to 19",
        ),
        (lambda: Batches(X, Y, rows=torch.tensor([-1])), "rows has -1"),
        (lambda: Batches(X, Y, rows=torch.tensor([0.5])), "rows of torch.float32"),
        (lambda: Batches(X, Y, rows=[]), "0 numbers"),
        (lambda: Batches(X, Y, augment=Flip), "expected a function"),
        (lambda: Batches({"a": 1}, Y), "got dict"),
        (lambda: Batches(X, torch.tensor(1)), "y 1: expected equally many"),
        (lambda: Batches(X, Y, rows=torch.tensor([], dtype=torch.int64)), "0 numbers"),
        (lambda: Batches(X, Y, balanced=1.0), "balanced=1.0.*for example 0.5"),
        (lambda: Batches(X, Y, balanced=0.5, batch_size=1), "at least 2"),
        (lambda: Batches(X, torch.zeros(20), balanced=0.5), "0 positives of 20.*both classes"),
        (lambda: Batches(Squares(), balanced=0.5), "balanced without y"),
        (lambda: Batches(iter([1]), Y), "list_iterator.*codauc.data.Stream"),
        (lambda: next(Batches([(X[0], 2, 3)] * 4)), "expected a pair"),
        (
            lambda: Batches([[1.0, 2.0], [3.0, 4.0]], torch.tensor([0, 1])),
            "list of numbers.*torch.tensor",
        ),
        (lambda: Batches(pd.DataFrame({"a": [1.0]}), torch.tensor([0])), "DataFrame.*read_table"),
        (lambda: next(Batches([("text", 1)] * 4)), "inputs of type str.*transform"),
        (lambda: Batches(np.array(["a"]), torch.zeros(1)), "expected numbers"),
        (lambda: Batches(X, Y, balance=0.5), "did you mean 'balanced'"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_position_of_other_rows_is_refused():
    state = Batches(X, Y, 6, rows=torch.arange(10)).state_dict()
    with pytest.raises(ValueError, match="rows="):
        Batches(X, Y, 6, rows=torch.arange(10, 20)).load_state_dict(state)


@given(st.integers(1, 300), st.integers(1, 7), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_an_epoch_from_disk_gives_every_sample_once_window_by_window(count, block, size, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codauc.data.order._WINDOW", 4)
        order = Shuffled(count, size, seed, worker=0, block=block)
        whole = order.order(0)
    assert sorted(whole.tolist()) == list(range(count))
    blocks = (whole // block).tolist()
    if count > 4 * block:  # a window's blocks come in it alone, and in no other
        seen = [set(part) for part in _windows(blocks, count, block)]
        assert all(len(part) <= 4 for part in seen)
        assert sum(map(len, seen)) == -(-count // block)
    else:
        assert torch.equal(whole, Shuffled(count, size, seed, worker=0).order(0))


def _windows(blocks, count, block):
    """Cut an order into windows: a window is over when four blocks are complete."""
    sizes = {b: min(block, count - b * block) for b in set(blocks)}
    part, left = [], {}
    for b in blocks:
        left.setdefault(b, sizes[b])
        left[b] -= 1
        part.append(b)
        if (len(left) == 4 or len(left) == len(sizes)) and not any(left.values()):
            yield part
            for done in left:
                sizes.pop(done)
            part, left = [], {}


def test_samples_on_disk_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("codauc.data.order._WINDOW", 2)
    np.save(tmp_path / "x.npy", np.zeros((4000, 1000), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    batches = Batches(mapped, torch.zeros(4000), 32, rows=torch.arange(3999, -1, -2))
    assert batches.x.block == (1 << 20) // 4000
    assert batches.rows.tolist() == list(range(1, 4000, 2))
    assert Batches(np.zeros((5, 2)), torch.zeros(5)).x.block is None


class Moody(Squares):
    """A data set of which a sample cannot be read at first."""

    def __init__(self):
        self.failed = False

    def __getitem__(self, i):
        if i == 7 and not self.failed:
            self.failed = True
            raise OSError("the disk is away")
        return super().__getitem__(i)


def test_a_sample_that_cannot_be_read_does_not_end_the_batches():
    moody, expected = Batches(Moody(), None, 6), Batches(Squares(), None, 6)
    batches = []
    while len(batches) < 8:
        try:
            batches.append(next(moody))
        except OSError:
            state = moody.state_dict()
            assert state["index"] == sum(len(x) for x, _ in batches)
    for x, y in batches:
        for one, other in zip((x, y), next(expected), strict=True):
            assert torch.equal(one, other)


class Chance(Dataset):
    """A data set with chance of its own."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.rand(1), 0


def test_chance_of_a_data_set_read_ahead_depends_on_seed_and_worker():
    def first(**options):
        return next(Batches(Chance(), None, 3, loaders=1, **options))[0].tolist()

    assert first(seed=0) == first(seed=0)
    assert first(seed=0) != first(seed=1)
    assert first(seed=0) != first(seed=0, worker=1)


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda x: x[:, ::2], lambda x: x[::2]])
def test_an_array_of_any_layout_is_not_copied_for_a_batch(layout):
    x = layout(np.random.default_rng(0).random((40_000, 100), np.float32))
    batches = Batches(x, torch.zeros(len(x)), 16)
    next(batches)
    tracemalloc.start()
    inputs, _ = next(batches)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert inputs.is_contiguous()
    assert peak < 1e6  # of 8 to 16 MB


def test_a_balanced_position_of_other_labels_is_refused():
    state = Batches(X, Y, 6, balanced=0.5).state_dict()
    with pytest.raises(ValueError, match="decks="):
        Batches(X, ~Y, 6, balanced=0.5).load_state_dict(state)
