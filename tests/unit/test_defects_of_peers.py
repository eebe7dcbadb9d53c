"""What a user of the usual peer trips over, each as a claim that holds here."""

import copy

import pytest
import torch
from torch import nn

import codauc
import vectors
from codauc.algorithm.inner_steps import gradient_step
from codauc.algorithm.objective import gradients


def train_some(opt, loss, model, steps=3, seed=0):
    torch.manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(8, 3)
        opt.zero_grad()
        loss(model(x), x[:, 0] > 0.5).backward()
        opt.step()


def make(pos_ratio=0.2, **options):
    torch.manual_seed(0)
    model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss(pos_ratio=pos_ratio)
    return model, loss, codauc.PPDSG(model, loss, lr=0.1, gamma=5.0, **options)


def test_the_given_pos_ratio_is_kept_whatever_the_batch_holds():
    _, loss, _ = make(pos_ratio=0.2)
    balanced = torch.tensor([1, 0])
    logits = torch.zeros(2, requires_grad=True)
    loss(logits, balanced).backward()
    expected = gradients(torch.full((2,), 0.5), balanced, (0.0, 0.0, 0.0), 0.2).scores
    assert torch.allclose(logits.grad, expected * 0.25 / 2)
    assert loss.pos_ratio.item() == pytest.approx(0.2)


@pytest.mark.parametrize("coding", [(-1, 1), (-1.0, 1.0), (0.0, 1.0), (False, True)])
def test_labels_of_minus_one_count_as_negatives(coding):
    logits = torch.randn(6)
    plain = torch.tensor([0, 1, 0, 0, 1, 0])
    coded = torch.tensor(coding)[plain]
    _, loss, _ = make()
    assert torch.equal(loss(logits, plain), loss(logits, coded))


@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_of_one_class_takes_the_formulas_step_and_nothing_turns_nan(label):
    model, loss, opt = make()
    x, y = torch.randn(5, 3), torch.full((5,), label)
    h = model(x).detach().flatten().sigmoid()
    g = gradients(h, y, (loss.a.clone(), loss.b.clone(), loss.alpha.clone()), 0.2)
    loss(model(x), y).backward()
    opt.step()
    assert torch.allclose(loss.alpha, 0.1 * g.alpha.mean())
    assert torch.allclose(loss.a, -0.1 * g.a.mean() * 5.0 / 5.1)
    assert torch.allclose(loss.b, -0.1 * g.b.mean() * 5.0 / 5.1)
    untouched = loss.a if label == 0 else loss.b
    assert untouched.item() == 0
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_one_class_batches_are_unbiased_parts_of_the_whole():
    """Their alpha gradients average to the full gradient, so alpha must move in them."""
    _, loss, _ = make()
    logits, labels = torch.randn(8), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    rises = []
    for part in (slice(0, 8), slice(0, 4), slice(4, 8)):
        loss.sums.grad = None
        loss(logits[part], labels[part]).backward()
        means, inner = loss.batch_means(), loss.inner(numbers=True)
        rises.append(gradient_step(means, loss.ratio(numbers=True), inner, 0.1).alpha)
    assert rises[0] == pytest.approx((rises[1] + rises[2]) / 2)


def test_the_anchor_is_where_the_stage_began_on_every_worker():
    def work(group):
        torch.manual_seed(group.rank)
        model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss(pos_ratio=0.5)
        opt = codauc.PPDSG(model, loss, lr=0.1)
        coda = codauc.CoDA(opt, group)
        anchors, starts = [], []
        data = [(torch.randn(4, 3), torch.tensor([1, 0, 0, 1]))]
        for stage in codauc.geometric(lr=0.1, steps=3, stages=2, sync_every=2):
            starts.append(vectors.primal(opt))
            for x, y in coda.stage(stage, data):
                opt.zero_grad()
                loss(model(x), y).backward()
                opt.step()
            anchors.append(vectors.anchor(opt))
        return anchors, starts

    (anchors, starts), (other, _) = codauc.launch(work, workers=2, simulate=True)
    for one, two, start in zip(anchors, other, starts, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, start)


def test_a_new_stage_estimates_the_dual_anew():
    model, loss, opt = make()
    coda = codauc.CoDA(opt)
    x = torch.randn(40, 3)
    y = x[:, 0] > 0.5
    for inputs, labels in coda.stage(codauc.Stage(lr=0.1, steps=4, dual_samples=40), [(x, y)]):
        opt.zero_grad()
        loss(model(inputs), labels).backward()
        opt.step()
        before = loss.alpha.item()
    h = model(x).detach().flatten().sigmoid()
    assert loss.alpha.item() == pytest.approx((h[~y].mean() - h[y].mean()).item(), abs=1e-6)
    assert loss.alpha.item() != before


def test_a_checkpoint_of_model_and_optimizer_has_a_b_and_alpha():
    model, loss, opt = make()
    train_some(opt, loss, model)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    other_model, other_loss, other = make()
    other_model.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    for name in ("a", "b", "alpha"):
        assert getattr(other_loss, name).item() == getattr(loss, name).item() != 0
    train_some(opt, loss, model, seed=1)
    train_some(other, other_loss, other_model, seed=1)
    assert torch.equal(model.weight, other_model.weight)
    assert torch.equal(loss.alpha, other_loss.alpha)


def test_load_state_dict_leaves_its_argument_alone():
    model, loss, opt = make(momentum=0.9)
    train_some(opt, loss, model)
    state = opt.state_dict()
    before = copy.deepcopy(state)
    _, other_loss, other = make(momentum=0.9)
    other.load_state_dict(state)
    train_some(other, other_loss, other.model)
    assert str(state) == str(before)


def test_bf16_parameters_stay_bf16():
    model, loss = nn.Linear(3, 1).bfloat16(), codauc.MinMaxAUCLoss(pos_ratio=0.2)
    opt = codauc.PPDSG(model, loss, lr=0.1)
    loss(model(torch.randn(4, 3).bfloat16()), torch.tensor([0, 1, 0, 1])).backward()
    opt.step()
    opt.end_stage()
    assert model.weight.dtype == model.bias.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: codauc.MinMaxAUCLoss(pos_ration=0.1), "pos_ratio"),
        (lambda: make(weight_decy=0.1), "weight_decay"),
        (lambda: codauc.geometric(lr=0.1, steps=1, stages=1, sync_evry=2), "sync_every"),
        (lambda: codauc.Stage(lr=0.1, step=1), "steps"),
        (lambda: codauc.launch(len, worker=2), "workers"),
    ],
)
def test_misspelt_arguments_are_refused_with_the_right_name(call, hint):
    with pytest.raises(ValueError, match=f"did you mean '{hint}'"):
        call()


def test_weight_decay_and_clipping_leave_a_and_b_alone():
    _, plain_loss, plain = make()
    _, loss, opt = make(weight_decay=0.5, max_grad_norm=1e-6)
    train_some(plain, plain_loss, plain.model, steps=1)
    train_some(opt, loss, opt.model, steps=1)
    assert torch.equal(loss.a, plain_loss.a)
    assert torch.equal(loss.b, plain_loss.b)
    assert torch.equal(loss.alpha, plain_loss.alpha)
    assert not torch.equal(opt.model.weight, plain.model.weight)


def test_momentum_means_what_torch_means():
    model, loss, opt = make(momentum=0.9)
    opt.gamma = float("inf")
    other = nn.Linear(3, 1)
    other.load_state_dict(model.state_dict())
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        torch.manual_seed(step)
        opt.zero_grad()
        x = torch.randn(8, 3)
        loss(model(x), x[:, 0] > 0).backward()
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            theirs.grad = mine.grad.clone()
        opt.step()
        sgd.step()
    assert torch.allclose(model.weight, other.weight, atol=1e-7)


def test_the_loss_that_may_be_negative_has_a_readable_twin_that_never_is():
    _, loss, _ = make()
    logits, labels = torch.linspace(-4, 4, 20), torch.arange(20) >= 10
    with torch.no_grad():
        loss.alpha.fill_(-0.5)
    assert loss(logits, labels) < 0
    assert codauc.algorithm.objective.pairwise_loss(logits.sigmoid(), labels) >= 0
