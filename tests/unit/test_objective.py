"""F, its gradients and its saddle value, on random finite samples."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from codauc.algorithm.objective import gradients, objective, pairwise_loss, positives, saddle_point

reals = st.floats(-3, 3, allow_nan=False, width=64)
margins = st.floats(0.1, 3)


@st.composite
def samples(draw, bounded=True):
    """Scores and labels with both classes."""
    size = draw(st.integers(2, 30))
    unit = st.floats(0, 1) if bounded else reals
    scores = draw(st.lists(unit, min_size=size, max_size=size))
    labels = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    labels[0], labels[1] = True, False
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(labels)


def pairs(scores, labels, margin):
    """The pairwise square loss by its definition, over all pairs."""
    difference = scores[labels][:, None] - scores[~labels][None, :]
    return ((margin - difference) ** 2).mean()


@given(samples(bounded=False), margins)
def test_saddle_value_equals_pairwise_square_loss(sample, margin):
    scores, labels = sample
    p = labels.double().mean().item()
    value = objective(scores, labels, saddle_point(scores, labels), p, margin).mean()
    expected = pairs(scores, labels, margin)
    assert abs(margin**2 + value / (p * (1 - p)) - expected) < 1e-12 * max(
        1, expected / (p * (1 - p))
    )
    assert abs(pairwise_loss(scores, labels, margin) - expected) < 1e-12 * max(1, expected)


@given(samples(), margins)
def test_saddle_value_on_scores_in_the_unit_interval_is_exact_to_1e12(sample, margin):
    scores, labels = sample
    p = labels.double().mean().item()
    value = objective(scores, labels, saddle_point(scores, labels), p, margin).mean()
    assert abs(margin**2 + value / (p * (1 - p)) - pairs(scores, labels, margin)) < 1e-12


@given(samples(), reals, reals, reals, st.floats(0.01, 0.99), margins)
def test_saddle_point_is_a_minimum_in_a_b_and_a_maximum_in_alpha(sample, da, db, dalpha, p, margin):
    scores, labels = sample
    p = labels.double().mean().item()
    a, b, alpha = saddle_point(scores, labels)
    best = objective(scores, labels, (a, b, alpha), p, margin).mean()
    assert objective(scores, labels, (a + da, b + db, alpha), p, margin).mean() >= best - 1e-12
    assert objective(scores, labels, (a, b, alpha + dalpha), p, margin).mean() <= best + 1e-12


@given(samples(bounded=False), reals, reals, reals, st.floats(0.01, 0.99), margins)
def test_closed_form_gradients_equal_autograd(sample, a, b, alpha, p, margin):
    scores, labels = sample
    leaves = [scores, *(torch.full_like(scores, value) for value in (a, b, alpha))]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    objective(leaves[0], labels, leaves[1:], p, margin).sum().backward()
    for leaf, closed in zip(
        leaves, gradients(scores, labels, (a, b, alpha), p, margin), strict=True
    ):
        assert (leaf.grad - closed).abs().max() < 1e-12


def test_labels_of_every_coding_are_told_apart():
    expected = torch.tensor([True, False])
    for labels in ([1, 0], [1, -1], [1.0, 0.0], [1.0, -1.0], [True, False]):
        assert torch.equal(positives(torch.tensor(labels)), expected)


def test_several_tasks_are_columns():
    torch.manual_seed(1)
    scores, labels = torch.rand(9, 2, dtype=torch.float64), torch.rand(9, 2) < 0.5
    for column in range(2):
        alone = pairwise_loss(scores[:, column], labels[:, column])
        assert torch.allclose(pairwise_loss(scores, labels)[column], alone, atol=1e-14)
