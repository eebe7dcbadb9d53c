"""Claims about shards: who gets which samples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import codauc
from codauc.data import (
    binarise,
    binary_task,
    fashion_tiny,
    shard_counts,
    silo_shards,
    skewed_shards,
)
from codauc.data.shards import block_shards, dealt

few = settings(max_examples=60, deadline=None)


def whole(shards, count):
    return sorted(torch.cat(shards).tolist()) == list(range(count))


@few
@given(st.lists(st.booleans(), min_size=8, max_size=80), st.integers(1, 8), st.floats(1e-3, 1e3))
def test_skewed_shards_are_disjoint_complete_and_never_empty(labels, workers, concentration):
    shards = skewed_shards(torch.tensor(labels), workers, concentration, seed=0)
    assert len(shards) == workers
    assert whole(shards, len(labels))
    assert min(map(len, shards)) > 0


def test_the_smaller_the_concentration_the_more_labels_differ():
    labels = torch.arange(4000) % 4 == 0

    def spread(concentration):
        shards = skewed_shards(labels, 4, concentration, seed=1)
        return np.std([labels[shard].float().mean() for shard in shards])

    assert spread(0.1) > 4 * spread(100) > 0


@few
@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=60), st.integers(1, 7))
def test_no_silo_is_divided_and_none_is_lost(silos, workers):
    if len(set(silos)) < workers:
        with pytest.raises(ValueError, match="at most"):
            silo_shards(silos, workers)
        return
    shards = silo_shards(silos, workers)
    assert whole(shards, len(silos))
    homes = [{silos[i] for i in shard} for shard in shards]
    assert sum(map(len, homes)) == len(set(silos))
    assert all(homes)


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 16), st.integers(0, 9))
def test_shards_of_blocks_are_even_disjoint_and_complete(blocks, workers, seed):
    count = sum(blocks)
    if count < workers:
        return
    shards = [
        [row for start, stop in ranges for row in range(start, stop)]
        for ranges in block_shards(blocks, workers, seed)
    ]
    assert sorted(i for shard in shards for i in shard) == list(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@few
@given(st.integers(0, 500), st.integers(1, 200), st.integers(1, 16), st.integers(0, 9))
def test_dealing_does_not_depend_on_where_reading_begins(start, count, workers, seed):
    part, all_rows = dealt(start, count, workers, seed), dealt(0, start + count, workers, seed)
    assert part.tolist() == all_rows[start:].tolist()
    sizes = np.bincount(all_rows, minlength=workers)
    assert sizes.max() - sizes.min() <= 1


def test_every_worker_can_state_all_shards():
    labels = torch.arange(100) % 10 == 0

    def work(group):
        mine = torch.arange(100)[group.rank :: group.size]
        return shard_counts(labels[mine], group)

    first, second = codauc.launch(work, workers=2, simulate=True)
    assert first == second == [(50, 10), (50, 0)]


@pytest.mark.parametrize("workers", [1, 3, 4, 16])
@pytest.mark.parametrize(("keep", "share"), [(1.0, 0.5), (0.4, 25 / 35)])
def test_a_task_of_the_paper_is_shared_out_evenly(workers, keep, share):
    images = fashion_tiny()
    task = binary_task(images, "half", keep, seed=2)
    assert task.pos_ratio == pytest.approx(share)
    assert torch.equal(task.test_y, images.test_y < 5)
    shards = [task.shard(rank, workers, seed=2) for rank in range(workers)]
    assert sorted(torch.cat(shards).tolist()) == task.rows.tolist()
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: skewed_shards(torch.tensor([0.0, float("nan")]), 1, 1.0, 0), "with NaN"),
        (lambda: skewed_shards(torch.zeros(4, 2), 2, 1.0, 0), r"shape \[4, 2\]"),
        (lambda: skewed_shards(torch.zeros(4), 2, 0, 0), "concentration=0"),
        (lambda: silo_shards(["1", 1, "a"], 2), "silos hold int, str: expected one kind"),
        (lambda: silo_shards(["a", None], 2), "NoneType"),
        (lambda: silo_shards("abca", 2), "expected a list"),
        (lambda: binarise([1, "1"], ["1"]), "labels hold int, str"),
        (lambda: binarise(torch.tensor([0.0, float("nan")]), "half"), "labels hold NaN"),
        (lambda: binary_task(fashion_tiny()).shard(-1, 4, 0), "rank=-1"),
        (lambda: binary_task(fashion_tiny()).shard(4, 4, 0), "rank=4 of 4 workers"),
        (lambda: binary_task(fashion_tiny(), seed=-1), "seed=-1"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_classes_may_be_named_by_a_tensor():
    assert binarise(torch.tensor([0, 6, 2]), torch.tensor([6])).tolist() == [False, True, False]
