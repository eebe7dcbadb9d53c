"""Workers meet in a store that may outlive them; one that is missing or differs is named to all."""

import threading
import time

from torch.distributed import HashStore

from codauc.workers import rendezvous
from codauc.workers.rendezvous import Meeting


def meet(store, size, ranks=None, timeout=20.0, pause=0.0):
    """Let these ranks meet, each in a thread; what each learned, or its error, by rank."""
    found = {}

    def work(rank):
        meeting = Meeting(store, rank, size, timeout)
        try:
            found[rank] = meeting.gather(), meeting.hosts
        except RuntimeError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks or range(size)]
    for thread in threads:
        thread.start()
        time.sleep(pause)
    for thread in threads:
        thread.join()
    return found


def test_every_meeting_in_one_store_has_a_name_of_its_own():
    """Also where worker 0 comes last, and so the others find what earlier workers left."""
    store, names = HashStore(), []
    for size, ranks in ((3, [0, 1, 2]), (3, [2, 1, 0]), (2, [1, 0]), (4, [3, 2, 1, 0])):
        found = meet(store, size, ranks, pause=0.1)
        assert len(set(map(str, found.values()))) == 1
        names.append(found[0][0])
        assert len(found[0][1]) == size
    assert len(set(names)) == 4


def test_what_a_worker_left_that_died_before_the_meeting_opened_is_not_met():
    store = HashStore()
    store.set("meeting", "old")
    store.set("old/1", "{}")
    store.set("old/open", '{"numbers": ["of the dead"], "hosts": [], "error": ""}')
    found = meet(store, 2, [1, 0], pause=0.1)
    assert found[0] == found[1]
    assert found[0][0] != "old"


def test_a_missing_worker_is_named_to_all_that_came():
    found = meet(HashStore(), 4, [0, 1, 3], timeout=0.5)
    for rank in (0, 1, 3):
        assert found[rank].startswith(f"worker {rank} of 4: worker 2 did not arrive within 0.5 s")


def test_without_worker_0_it_is_the_missing_one(monkeypatch):
    monkeypatch.setattr(rendezvous, "_GRACE", 0.1)
    found = meet(HashStore(), 2, [1], timeout=0.2)
    assert "worker 0 did not arrive" in found[1]


def test_why_a_worker_left_is_known_to_the_others():
    store = HashStore()
    first, second = Meeting(store, 0, 2, 5.0), Meeting(store, 1, 2, 5.0)
    second.name = first.name
    second.leave("ValueError: the file is empty")
    assert first.cause("sum_", [0, 1]) == "worker 1 had left (ValueError: the file is empty)"
