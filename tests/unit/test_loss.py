"""MinMaxAUCLoss: closed form, shapes, labels, the estimate of p, precision."""

import copy
import pickle
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from codauc import MinMaxAUCLoss
from codauc.algorithm.inner_steps import BatchMeans, InnerVariables, gradient_step
from codauc.algorithm.objective import objective


def make(tasks=1, link="sigmoid", margin=1.0, pos_ratio=None):
    loss = MinMaxAUCLoss(pos_ratio or [0.1, 0.4, 0.8][:tasks], link=link, margin=margin).double()
    for tensor in (loss.a, loss.b, loss.alpha):
        tensor.normal_()
    return loss


def all_gradients(loss, logits, labels, scale=1):
    """In the logits, in a and b, and in alpha, of one backward pass."""
    logits.grad = loss.sums.grad = None
    (scale * loss(logits, labels)).backward()
    a, b, alpha = slopes(loss)
    return [logits.grad, torch.stack((a, b)), alpha]


def slopes(loss, eta=0.25):
    """The derivatives of F in a, b and alpha, from how far a step of the paper goes.

    No share of a class makes a step of this size end at the class's mean.
    """
    before = loss.inner(numbers=False)
    means = [torch.as_tensor(mean, dtype=loss.a.dtype).view(-1) for mean in loss.batch_means()]
    p, wide = loss.pos_ratio.double(), [value.double() for value in before]
    step = gradient_step(BatchMeans(*(m.double() for m in means)), p, InnerVariables(*wide), eta)
    a, b, alpha = ((new - old) / eta for new, old in zip(step, wide, strict=True))
    return [slope.to(loss.a.dtype) for slope in (-a, -b, alpha)]


def batch(size=9, tasks=1):
    shape = (size,) if tasks == 1 else (size, tasks)
    logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    return logits, torch.rand(shape) < 0.4


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([1, 3]), st.floats(0.1, 3))
@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_loss_and_all_gradients_equal_autograd_through_the_formula(link, seed, size, tasks, margin):
    torch.manual_seed(seed)
    loss, (logits, labels) = make(tasks, link, margin), batch(size, tasks)
    mine = all_gradients(loss, logits, labels)
    leaves = [logits, *(t.clone().requires_grad_() for t in (loss.a, loss.b, loss.alpha))]
    h = logits.sigmoid() if link == "sigmoid" else logits
    p = torch.tensor([0.1, 0.4, 0.8][:tasks], dtype=torch.float64)
    value = objective(h, labels, leaves[1:], p, margin).mean(0).sum()
    assert abs(value - loss(logits, labels)) < 1e-12
    z, a, b, alpha = torch.autograd.grad(value, leaves)
    assert (mine[0] - z).abs().max() < 1e-12
    for one, other in zip(mine[1:], (torch.stack((a, b)), alpha), strict=True):
        assert (one - other).abs().max() < 1e-12


def test_numbers_that_are_read_give_what_tensors_that_are_not_give(monkeypatch):
    for link, dtype, ratio in product(
        ("sigmoid", "identity"), (torch.float32, torch.float64), (0.1, None)
    ):
        loss = MinMaxAUCLoss(ratio, link=link).to(dtype)
        for tensor in (loss.a, loss.b, loss.alpha):
            tensor.normal_()
        logits, labels = batch(size=200)
        logits = logits.detach().to(dtype).requires_grad_()
        other = copy.deepcopy(loss)
        mine = [loss(logits, labels), *all_gradients(loss, logits, labels)]
        with monkeypatch.context() as patch:
            patch.setattr("codauc.algorithm.loss.are_readable", lambda *_: False)
            theirs = [other(logits, labels), *all_gradients(other, logits, labels)]
        for one, two in zip(mine, theirs, strict=True):
            assert one.dtype == two.dtype
            assert one.shape == two.shape
            assert (one - two).abs().max() < (1e-6 if dtype == torch.float32 else 1e-14)
        assert torch.equal(loss.seen, other.seen)


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 1e30), (torch.float64, 1e200)])
@pytest.mark.parametrize("name", ["a", "b", "alpha"])
def test_numbers_that_overflow_are_infinite_and_no_error(name, dtype, value):
    loss = MinMaxAUCLoss(pos_ratio=0.1, link="identity").to(dtype)
    loss.has_optimizer = True  # as in training, however many batches
    getattr(loss, name).fill_(value)
    logits, labels = batch(4)
    logits = logits.detach().to(dtype).requires_grad_()
    assert not loss(logits, labels).isfinite()
    for exponent in range(30, 78):  # beyond float32 in one term and not in another
        getattr(loss, name).fill_(2 ** (exponent / 1.2))
        loss(logits, labels).backward()


def test_the_gradient_of_the_logits_alone_scales_with_what_comes_from_above():
    loss, (logits, labels) = make(), batch()
    plain = all_gradients(loss, logits, labels)
    scaled = all_gradients(loss, logits, labels, scale=3)
    assert torch.allclose(3 * plain[0], scaled[0], atol=1e-15)
    for one, other in zip(plain[1:], scaled[1:], strict=True):
        assert torch.allclose(one, other, atol=1e-15)


def test_tasks_are_as_if_alone():
    together, (logits, labels) = make(tasks=3), batch(tasks=3)
    total = together(logits, labels)
    total.backward()
    parts = []
    for task, p in enumerate([0.1, 0.4, 0.8]):
        alone = make(pos_ratio=[p])
        with torch.no_grad():
            for name in ("a", "b", "alpha"):
                getattr(alone, name).copy_(getattr(together, name)[task])
        parts.append(alone(logits[:, task], labels[:, task]))
        parts[-1].backward()
        for one, other in zip(alone.batch_means(), together.batch_means(), strict=True):
            assert abs(one - other[task]) < 1e-15
    assert torch.allclose(total, sum(parts), atol=1e-14)


@pytest.mark.parametrize("shapes", [((5,), (5,)), ((5, 1), (5,)), ((5,), (5, 1)), ((5, 1), (5, 1))])
def test_one_task_takes_vectors_and_columns(shapes):
    loss = make()
    logits, labels = torch.randn(shapes[0], requires_grad=True), torch.ones(shapes[1])
    loss(logits, labels).backward()
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    loss = MinMaxAUCLoss(pos_ratio=0.3)
    logits, labels = torch.randn(64).to(dtype).requires_grad_(), torch.rand(64) < 0.3
    value = loss(logits, labels)
    value.backward()
    exact = logits.detach().double().requires_grad_()
    reference = MinMaxAUCLoss(pos_ratio=0.3).double()(exact, labels)
    reference.backward()
    assert value.dtype == torch.float32
    assert abs(value - reference) < 1e-6
    assert logits.grad.dtype == dtype
    assert torch.allclose(logits.grad.double(), exact.grad, rtol=1e-2, atol=1e-6)


def test_estimated_pos_ratio_follows_the_labels_seen_in_training():
    loss = MinMaxAUCLoss()
    assert loss.pos_ratio.item() == 0.5
    loss(torch.zeros(4), torch.tensor([1, 0, 0, 0]))
    assert loss.pos_ratio.item() == pytest.approx(1.5 / 5)
    loss.eval()
    loss(torch.zeros(4), torch.ones(4))
    assert loss.pos_ratio.item() == pytest.approx(1.5 / 5)


def test_estimated_pos_ratio_is_never_0_or_1():
    loss = MinMaxAUCLoss(tasks=2)
    for _ in range(3):
        value = loss(torch.zeros(8, 2), torch.tensor([[0, 1]] * 8))
        assert value.isfinite()
    low, high = loss.pos_ratio.tolist()
    assert 0 < low < high < 1


def test_no_gradient_is_needed_in_evaluation():
    loss, (logits, labels) = make(), batch()
    with torch.no_grad():
        assert not loss(logits, labels).requires_grad


def test_second_derivatives_are_refused_instead_of_wrong():
    loss, (logits, labels) = make(), batch()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(loss(logits, labels), logits, create_graph=True)


def test_loss_moves_through_state_dict_with_its_counts():
    loss = MinMaxAUCLoss()
    loss(torch.zeros(4), torch.tensor([1, 0, 0, 0]))
    other = MinMaxAUCLoss()
    other.load_state_dict(loss.state_dict())
    assert other.pos_ratio.item() == loss.pos_ratio.item()


def test_values_are_checked_again_only_where_asked():
    bad, labels = torch.tensor([float("nan")]), torch.tensor([1])
    assert MinMaxAUCLoss(pos_ratio=0.5, validate=False)(bad, labels).isnan()
    with pytest.raises(ValueError, match="1 NaN"):
        MinMaxAUCLoss(pos_ratio=0.5)(bad, labels)


def test_no_other_optimizer_finds_a_b_and_alpha_to_descend_in():
    loss = MinMaxAUCLoss(pos_ratio=0.5)
    assert list(loss.parameters()) == []
    assert {"a", "b", "alpha"} <= loss.state_dict().keys()


def test_a_loss_that_was_first_used_in_inference_mode_can_be_trained():
    with torch.inference_mode():
        loss = MinMaxAUCLoss(pos_ratio=0.5).double()
        loss(torch.zeros(2), torch.tensor([0, 1]))
    loss(torch.zeros(2, requires_grad=True), torch.tensor([0, 1])).backward()
    assert loss.sums.grad.tolist() == [[0.5, 0.5, 0.25, 0.25, 1.0]]


# Copies, and unusual tensors


def moved(loss):
    return loss.share_memory()


def reloaded(loss):
    return pickle.loads(pickle.dumps(loss))


@pytest.mark.parametrize("change", [copy.deepcopy, reloaded, moved, nn.Module.double])
@pytest.mark.parametrize("tasks", [1, 2])
def test_labels_are_counted_in_the_loss_that_is_used(change, tasks):
    loss = MinMaxAUCLoss(tasks=tasks)
    shape = (8,) if tasks == 1 else (8, tasks)
    logits, labels = torch.zeros(shape, requires_grad=True), torch.ones(shape, dtype=torch.bool)
    loss(logits, labels)
    other = change(loss)
    for _ in range(3):
        other(logits, labels)
    assert other.seen.tolist() == [[32] * tasks, [0] * tasks]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e4, 3e38])
def test_large_finite_logits_are_no_error_and_no_warning(size):
    for link in ("sigmoid", "identity"):
        logits = torch.tensor([size, -size, 0.0], requires_grad=True)
        MinMaxAUCLoss(pos_ratio=0.5, link=link)(logits, torch.tensor([1, 0, 0])).backward()


def test_half_precision_negative_views_and_batched_gradients_are_taken_as_they_are():
    labels = torch.tensor([1, 0, 0])
    loss = MinMaxAUCLoss(pos_ratio=0.5).bfloat16()
    assert loss(torch.zeros(3, dtype=torch.bfloat16), labels).dtype == torch.bfloat16
    loss = MinMaxAUCLoss(pos_ratio=0.5)
    plain = torch.tensor([0.5, -1.0, 2.0])
    assert torch.allclose(loss(torch._neg_view(-plain), labels), loss(plain, labels))
    z = plain.clone().requires_grad_()
    (rows,) = torch.autograd.grad(loss(z, labels), z, torch.eye(2)[0], is_grads_batched=True)
    assert torch.allclose(rows[0], torch.autograd.grad(loss(z, labels), z)[0])


def test_labels_of_an_unsigned_type_have_no_minus_one():
    with pytest.raises(ValueError, match="expected 0 and 1"):
        MinMaxAUCLoss(pos_ratio=0.5)(torch.zeros(2), torch.tensor([255, 1], dtype=torch.uint8))
