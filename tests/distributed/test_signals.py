"""Signals become requests of the object that listens, and of no other."""

import os
import pickle
import signal

import pytest

from codauc.workers.signals import LEAVE, LEAVING, SAVE, STOP, AskedToLeave, Requests


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Also where the tests themselves were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_checkpoint_is_asked_for_once():
    requests, others = Requests(), Requests()
    with requests.listening():
        send(signal.SIGUSR2)
        assert requests.pending(SAVE)
        assert not requests.pending(SAVE)
    assert not others.pending(SAVE)


@pytest.mark.parametrize("number", LEAVING)
def test_asked_to_leave_a_run_that_polls_is_not_interrupted(number):
    requests = Requests()
    with requests.listening(), requests.polled():
        send(number)
        assert requests.pending(LEAVE)
    with pytest.raises(AskedToLeave), requests.polled():
        pytest.fail("it began though it was asked to leave")


@pytest.mark.parametrize("number", LEAVING)
def test_asked_to_leave_one_that_does_not_poll_is(number):
    with pytest.raises(AskedToLeave) as caught, Requests().listening():
        send(number)
    assert caught.value.step is None


def test_the_second_interrupt_ends_at_once_and_handlers_are_restored():
    before = [signal.getsignal(n) for n in (signal.SIGINT, *LEAVING)]
    calls = []
    requests = Requests(lambda: calls.append(1))
    with requests.listening():
        send(signal.SIGINT)
        assert (requests.pending(STOP), calls) == (True, [1])
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert calls == [1]
    assert [signal.getsignal(n) for n in (signal.SIGINT, *LEAVING)] == before


def test_a_worker_gets_an_empty_copy_once():
    """`launch` and the function that it sends have the same one on the other side, too."""
    requests = Requests()
    with requests.listening(), requests.polled():
        send(signal.SIGTERM)
        first, second = pickle.loads(pickle.dumps((requests, {"requests": requests})))
    assert first is second["requests"]
    assert not first.pending(LEAVE)


def test_a_worker_that_starts_late_finds_the_request(tmp_path):
    notice, requests, late = tmp_path / "notice", Requests(), Requests()
    numbers = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, *LEAVING)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with requests.listening(), requests.forwarding(notice):
            send(signal.SIGTERM)
        late.listen_in_worker(notice)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert late.pending(LEAVE)
