"""Claims about ranges of columns that are set by the rows of all workers, without sending any."""

import pytest
import torch

import codauc
from codauc.data.rows import as_rows
from codauc.models.tabular import range_edges
from codauc.training.shared_ranges import ROWS, rows_of_all


def columns(count=4000):
    """Normal, skewed, of five values, and mostly 0."""
    draw = torch.Generator().manual_seed(0)
    normal, other = torch.randn(2, count, generator=draw)
    few = torch.randint(0, 5, (count,), generator=draw) * 0.3
    rare = torch.rand(count, generator=draw) < 0.2
    return torch.stack([normal, 3 * other.exp(), few, rare * other.exp()], 1)


def found(x, parts):
    """What workers with these parts of the rows get."""
    shares = x.split(parts)
    return codauc.launch(
        lambda g: rows_of_all(as_rows(shares[g.rank]), x.shape[1], g),
        workers=len(parts),
        simulate=True,
    )


def test_edges_are_those_of_all_rows_however_these_are_shared_out():
    x = columns()
    for parts in ([1, 9, 3990], [2000, 1000, 1000]):
        rows, *others = found(x.sort(0).values, parts)
        assert all(torch.equal(rows, other) for other in others)
        for column in range(4):
            edges = range_edges(x[:, column].double(), 8)
            near = range_edges(rows[:, column].double(), 8)
            assert near.tolist() == pytest.approx(edges.tolist(), rel=0.02, abs=0.02), column


def test_a_column_of_few_values_gets_exactly_these():
    x = torch.tensor([[0.0], [0.25], [0.25], [7.5], [-3.0], [-3.0]])
    rows = found(x, [1, 5])[0]
    assert rows.sort(0).values.flatten().tolist() == x.sort(0).values.flatten().tolist()


def test_many_rows_count_by_their_number_and_are_given_by_fewer():
    x = torch.cat([torch.zeros(3 * ROWS, 1), torch.ones(ROWS, 1)])
    rows = found(x, [3 * ROWS, ROWS])[0]
    assert len(rows) == ROWS
    assert rows.mean().item() == pytest.approx(0.25, abs=1e-3)


def test_all_travels_in_one_message():
    def sent(group):
        rows_of_all(as_rows(columns(50 + 5000 * group.rank)), 4, group)
        return group.ledger.tallies["start"].calls

    assert codauc.launch(sent, workers=2, simulate=True) == [1, 1]
