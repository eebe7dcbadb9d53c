"""Claims about streams: batches of samples that nobody has counted."""

from itertools import count, islice

import pytest
import torch
from torch.utils.data import IterableDataset

import codauc
from codauc.data import Stream


class Numbers(IterableDataset):
    def __init__(self, stop):
        self.stop = stop

    def __iter__(self):
        return ((torch.tensor([float(i)]), i % 2) for i in range(self.stop))


def numbers():
    return ((torch.tensor([float(i)]), i % 2) for i in count())


def taken(stream, batches):
    return [next(stream)[0].flatten().tolist() for _ in range(batches)]


def test_an_iterable_data_set_is_iterated_again():
    assert taken(Stream(Numbers(3), 2), 3) == [[0, 1], [2, 0], [1, 2]]


def test_a_generator_ends_and_its_last_batch_may_be_smaller():
    stream = Stream(iter(Numbers(5)), 2)
    assert [x.flatten().tolist() for x, _ in stream] == [[0, 1], [2, 3], [4]]


def test_samples_keep_their_labels():
    x, y = next(Stream(numbers, 7, shuffle=20))
    assert torch.equal(y, x.flatten().long() % 2)


@pytest.mark.parametrize("shuffle", [0, 5])
def test_no_sample_of_a_shared_stream_reaches_two_workers(shuffle):
    streams = [Stream(Numbers(90), 5, worker=k, workers=3, shuffle=shuffle) for k in range(3)]
    seen = [value for stream in streams for batch in taken(stream, 4) for value in batch]
    assert len(set(seen)) == 60


def test_shuffling_keeps_all_samples_and_depends_on_the_seed():
    orders = [
        [
            v
            for batch in Stream(iter(Numbers(50)), 10, shuffle=20, seed=s)
            for v in batch[0].flatten().tolist()
        ]
        for s in (0, 0, 1)
    ]
    assert sorted(orders[0]) == list(range(50))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("source", [numbers, Numbers(7)])
@pytest.mark.parametrize("shuffle", [0, 4])
def test_a_restored_position_gives_the_same_batches(source, shuffle):
    stream = Stream(source, 4, shuffle=shuffle)
    taken(stream, 5)
    state = stream.state_dict()
    expected = taken(stream, 3)
    other = Stream(source, 4, shuffle=shuffle)
    other.load_state_dict(state)
    assert taken(other, 3) == expected


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="int, expected something to iterate"):
        Stream(3)
    with pytest.raises(ValueError, match="expected a pair"):
        next(Stream([1, 2]))
    with pytest.raises(ValueError, match="no samples"):
        next(Stream([]))
    with pytest.raises(ValueError, match="worker=2 of 2"):
        Stream([], worker=2, workers=2)
    stream = Stream(Numbers(9), 2)
    with pytest.raises(ValueError, match="batch_size=2 here, but batch_size=3"):
        stream.load_state_dict(Stream(Numbers(9), 3).state_dict())
    with pytest.raises(ValueError, match="ended after 9 samples, expected 20"):
        Stream(iter(Numbers(9)), 2).load_state_dict({**stream.state_dict(), "given": 20})


def gaussian(seed, p):
    """Endless samples: positives are shifted."""
    source = torch.Generator().manual_seed(seed)
    while True:
        y = int(torch.rand((), generator=source) < p)
        yield torch.randn(4, generator=source) + y * torch.tensor([1.2, 0.6, 0.0, 0.0]), y


def test_all_workers_follow_the_labels_of_all_streams():
    """Workers with different shares of positives agree on the p of all, at each round."""

    def work(group):
        torch.manual_seed(0)
        model, loss = torch.nn.Linear(4, 1), codauc.MinMaxAUCLoss()
        opt = codauc.PPDSG(model, loss, lr=0.1)
        coda = codauc.CoDA(opt, group)
        stream = Stream(gaussian(group.rank, (0.1, 0.3)[group.rank]), 32)
        for x, y in coda.stage(codauc.Stage(lr=0.1, steps=200, sync_every=8), stream):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        return loss.pos_ratio.item(), loss.counts.tolist(), group.ledger

    (p, counts, ledger), (q, others, _) = codauc.launch(work, workers=2, simulate=True)
    assert p == q
    assert counts == others
    assert sum(counts[0]) + sum(counts[1]) == 2 * (200 * 32 + 1024)  # the first look's too
    assert abs(p - 0.2) < 0.02
    assert ledger.rounds == 25
    assert set(ledger.tallies) == {"start", "round", "dual"}  # the counts travel with the round


def test_islice_of_a_stream_is_a_batch_source():
    assert len(list(islice(Stream(numbers, 3), 4))) == 4
