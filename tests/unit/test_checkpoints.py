"""Claims about checkpoints: which of those that are there a run goes on with."""

import threading

import pytest
import torch

import codauc
from codauc.runs import checkpoints as module
from codauc.runs.checkpoints import CheckpointName, Checkpoints
from codauc.workers import LocalGroup


def together(work, workers=3):
    return codauc.launch(work, workers=workers, simulate=True)


def made(folder, group, keep=2, told=None):
    """A directory that all share, or one for each worker if the path has {rank}."""
    path = type(folder)(str(folder).replace("{rank}", str(group.rank)))
    return Checkpoints(path, group, keep, (told if told is not None else []).append)


def state(group, number):
    return {"mine": torch.full((3,), float(group.rank)), "number": number}


def save(folder, *numbers, workers=3, keep=2):
    def work(group):
        store = made(folder, group, keep)
        for number in numbers:
            store.save(number, state(group, number))
        store.wait()

    together(work, workers)


def newest(folder, workers=3):
    return together(lambda group: made(folder, group).newest(), workers)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("place", ["shared", "{rank}"])
def test_every_worker_finds_its_own_newest_state(place, tmp_path):
    save(tmp_path / place, 8, 16)
    for rank, found in enumerate(newest(tmp_path / place)):
        assert (found.number, found.size, found.exact, found.missing) == (16, 3, True, [])
        assert found.base["mine"].tolist() == [rank] * 3
        assert found.base["number"] == 16


def test_nothing_is_found_where_nothing_is(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "notes.txt").write_text("not a checkpoint")
    assert newest(tmp_path / "shared") == [None] * 3
    assert newest(tmp_path / "missing") == [None] * 3


def test_the_last_that_all_have_are_kept(tmp_path):
    save(tmp_path, 8, 16, 24, 32, keep=2)
    numbers = {CheckpointName.parse(path.name).number for path in tmp_path.glob("*.safetensors")}
    assert numbers == {16, 24, 32}  # of the last it is not yet known that all have it
    marks = sorted(path.name[:18] for path in tmp_path.glob("*-all-*"))
    assert marks == ["000000016-all-of-3", "000000024-all-of-3"]


def test_a_worker_that_cannot_write_costs_no_older_checkpoint(tmp_path, monkeypatch):
    told = []
    write = module.whole_file
    full = threading.Event()

    def failing(path, what):
        if full.is_set() and "-1-of-3" in str(path):
            raise OSError(28, "No space left on device")
        return write(path, what)

    monkeypatch.setattr(module, "whole_file", failing)

    def work(group):
        store = made(tmp_path, group, keep=1, told=told)
        store.save(8, state(group, 8))
        store.wait()
        group.sum_(torch.zeros(1), "round")
        full.set()
        for number in (16, 24, 32):
            store.save(number, state(group, number))
        store.wait()

    together(work)
    assert len(told) == 3
    assert "no checkpoint of step 16 (No space left on device)" in told
    full.clear()
    assert [found.number for found in newest(tmp_path)] == [8] * 3


@pytest.mark.parametrize("damage", ["missing", "cut", "another's", "empty"])
@pytest.mark.parametrize("place", ["shared", "{rank}"])
def test_a_set_that_is_not_whole_is_passed_over_for_the_one_before(damage, place, tmp_path):
    save(tmp_path / place, 8, 16)
    folder = tmp_path / place.replace("{rank}", "1")
    path = next(folder.glob("*16-1-of-3-*"))
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        older = next(folder.glob("*08-1-of-3-*"))
        path.write_bytes(older.read_bytes())
    for rank, found in enumerate(newest(tmp_path / place)):
        assert (found.number, found.exact) == (8, True)
        assert found.base["mine"].tolist() == [rank] * 3
        assert len(found.unreadable) == (damage != "missing")
    # what is newer than that is gone, and the run writes it anew
    assert not list(tmp_path.glob("**/*16-*"))


def test_where_none_can_be_read_it_is_an_error(tmp_path):
    save(tmp_path, 8)
    for path in tmp_path.iterdir():
        path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read: .*not a whole"):
        newest(tmp_path)


def test_another_format_is_refused_by_name(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", 7)
        save(tmp_path, 8)
    with pytest.raises(ValueError, match=r"format 7 of codauc .*, here 4 of"):
        newest(tmp_path)


def test_a_state_on_another_hosts_disk_is_handed_over(tmp_path):
    save(tmp_path / "{rank}", 8)
    (tmp_path / "0").rename(tmp_path / "x")
    (tmp_path / "2").rename(tmp_path / "0")  # the hosts are counted in another order now
    (tmp_path / "x").rename(tmp_path / "2")
    for rank, found in enumerate(newest(tmp_path / "{rank}")):
        assert found.exact
        assert found.base["mine"].tolist() == [rank] * 3


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_with_other_workers_each_state_is_with_one_of_them(workers, tmp_path):
    save(tmp_path, 8)
    found = newest(tmp_path, workers)
    assert not any(each.exact for each in found)
    assert sorted(rank for each in found for rank in each.states) == [0, 1, 2]
    assert all(each.base["mine"].tolist() == [0] * 3 for each in found)


def test_a_lost_host_costs_its_state_alone(tmp_path):
    save(tmp_path / "{rank}", 8, 16)
    for path in (tmp_path / "1").iterdir():
        path.unlink()
    for found in newest(tmp_path / "{rank}"):
        assert (found.number, found.exact, found.missing) == (8, False, [1])  # known to be whole


def test_a_first_checkpoint_that_not_all_have_written_is_none(tmp_path):
    save(tmp_path, 8)
    next(tmp_path.glob("*-1-of-3-*")).unlink()
    assert newest(tmp_path) == [None] * 3


def test_states_of_two_histories_are_never_mixed(tmp_path):
    save(tmp_path, 8)
    first = names(tmp_path)
    save(tmp_path, 8)
    second = sorted(set(names(tmp_path)) - set(first))
    (tmp_path / second[0]).unlink()
    (tmp_path / first[1]).unlink()
    assert newest(tmp_path) == [None] * 3


def test_a_second_state_of_one_step_that_was_not_written_is_not_taken_for_it(tmp_path):
    store = Checkpoints(tmp_path / "there", LocalGroup(), 2, lambda _: None)
    store.save_alone(8, {})
    store.wait()
    assert store.written == 8
    (tmp_path / "there").rename(tmp_path / "away")
    (tmp_path / "there").write_text("no directory")
    store.save_alone(8, {})
    store.wait()
    assert store.written is None


def test_an_exact_continuation_belongs_to_the_same_history(tmp_path):
    save(tmp_path, 8)
    (history,) = {CheckpointName.parse(name).history for name in names(tmp_path)}

    def work(group):
        store = made(tmp_path, group)
        store.newest()
        store.save(16, state(group, 16))
        store.wait()

    together(work)
    files = tmp_path.glob("*.safetensors")
    assert {CheckpointName.parse(path.name).history for path in files} == {history}


def test_what_a_killed_process_left_half_written_goes(tmp_path):
    save(tmp_path, 8)
    (tmp_path / ".codauc-partial-1").write_bytes(b"half")
    newest(tmp_path)
    assert not list(tmp_path.glob(".codauc*"))


def test_at_the_end_nothing_is_left(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints", LocalGroup(), 2, print)
    for number in range(5):
        store.save(number, {})
    store.clear()
    assert not (tmp_path / "checkpoints").exists()


def test_a_state_that_cannot_be_packed_is_an_error_and_not_a_missing_checkpoint(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints", LocalGroup(), 2, print)
    store.save_alone(3, {"bad": object()})
    with pytest.raises(ValueError, match="cannot be saved"):
        store.wait()
