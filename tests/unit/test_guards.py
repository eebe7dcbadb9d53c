"""Mistakes in the user's loop that would otherwise only spoil the result."""

import warnings

import pytest
import torch
from torch import nn

import codauc

STAGE = codauc.Stage(lr=0.1, steps=3, dual_samples=16)


def make(pos_ratio=0.25, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    loss = codauc.MinMaxAUCLoss(pos_ratio=pos_ratio)
    opt = codauc.PPDSG(model, loss, lr=0.1)
    return model, loss, opt, codauc.CoDA(opt, **options)


def data(classes=4):
    x = torch.randn(16, 3) + 5
    return [(x, torch.arange(16) % classes)]


def run(inputs=lambda x: x, labels=lambda y: y == 0, batches=None, **options):
    model, loss, opt, coda = make(**options)
    for x, y in coda.stage(STAGE, batches or data()):
        opt.zero_grad()
        loss(model(inputs(x)), labels(y)).backward()
        opt.step()
    return model, loss


def binary():
    return [(x, y == 0) for x, y in data()]


def test_a_loop_that_uses_the_batches_as_they_are_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(labels=lambda y: y, batches=binary())
        run(labels=lambda y: y.long() * 2 - 1, batches=binary())


def test_labels_changed_in_the_loop_are_refused_or_warned_about():
    with (
        pytest.warns(UserWarning, match="other labels than the batch"),
        pytest.raises(ValueError, match=r"\[0, 1, 2, 3\].*pass forward="),
    ):
        run()
    with pytest.warns(UserWarning, match="other labels than the batch"):
        run(labels=lambda y: ~y, batches=binary(), pos_ratio=0.75)


def test_inputs_changed_in_the_loop_are_warned_about():
    with pytest.warns(UserWarning, match="something else than the batch's inputs"):
        run(inputs=lambda x: x / 255, labels=lambda y: y, batches=binary())


def test_forward_that_does_what_the_loop_does_settles_it():
    holder = []

    def forward(batch):
        return holder[0](batch[0] / 255), batch[1] == 0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, loss, opt, coda = make(forward=forward)
        holder.append(model)
        for x, y in coda.stage(STAGE, data()):
            opt.zero_grad()
            loss(model(x / 255), y == 0).backward()
            opt.step()
    assert model[1].running_mean.abs().max() < 1


def test_nan_met_only_in_the_estimate_of_alpha_is_an_error():
    model, loss, opt, coda = make()
    spoilt = torch.full((16, 3), float("nan"))
    labels = torch.arange(16) % 4 == 0
    batches = iter([*binary() * 3, (spoilt, labels), (spoilt, labels)])

    def train():
        for x, y in coda.stage(STAGE, batches):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()

    with pytest.raises(ValueError, match=r"16 NaN.*drawn to estimate alpha"):
        train()
    assert loss.alpha.isfinite()


@pytest.mark.parametrize(
    "batch",
    [{"x": torch.zeros(4, 3)}, ((torch.zeros(4, 3), None), torch.zeros(4)), torch.zeros(2, 3)],
    ids=["dict", "nested", "tensor"],
)
def test_a_batch_that_is_no_pair_is_refused_before_the_first_step(batch):
    *_, coda = make()
    with pytest.raises(ValueError, match=r"expected a pair of tensors.*forward="):
        next(coda.stage(STAGE, [batch]))


def test_a_model_left_in_evaluation_mode_still_gets_new_statistics():
    def train(leave):
        model, loss, opt, coda = make()
        for x, y in coda.stage(STAGE, binary()):
            model.train()
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            if leave:
                model.eval()
        return model, loss

    (left, left_loss), (kept, kept_loss) = train(True), train(False)
    assert not left.training
    assert not any(module.training for module in left.modules())
    assert torch.equal(left[1].running_mean, kept[1].running_mean)
    assert torch.equal(left_loss.alpha, kept_loss.alpha)


def test_a_ratio_far_from_the_labels_is_questioned_once():
    with pytest.warns(UserWarning, match="pos_ratio=0.9 was given, but 12 of the 48") as told:
        run(labels=lambda y: y, batches=binary(), pos_ratio=0.9)
    assert len(told) == 1


def test_a_validation_loss_is_not_counted_as_training_data():
    loss = codauc.MinMaxAUCLoss()
    loss(torch.zeros(4, requires_grad=True), torch.tensor([1, 0, 0, 0]))
    before = loss.pos_ratio.item()
    with torch.no_grad():
        loss(torch.zeros(4), torch.ones(4))
    assert loss.pos_ratio.item() == before


def test_dropout_goes_on_as_if_the_run_had_never_stopped(tmp_path):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        loss = codauc.MinMaxAUCLoss(pos_ratio=0.25)
        return codauc.CoDA(codauc.PPDSG(model, loss, lr=0.1))

    def fit(coda, limit=None):
        opt = coda.opt
        for count, (x, y) in enumerate(coda.stage(codauc.Stage(0.1, 8), binary_data), 1):
            opt.zero_grad()
            opt.loss(opt.model(x), y).backward()
            opt.step()
            if count == limit:
                return

    binary_data = binary()
    whole = build()
    fit(whole)
    first = build()
    fit(first, limit=3)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    torch.manual_seed(99)
    second = build()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    fit(second)
    assert torch.equal(whole.opt.model[0].weight, second.opt.model[0].weight)


def test_simulated_workers_have_the_callers_autocast_and_device():
    def look(group):
        return torch.is_autocast_enabled("cpu"), torch.empty(1).device.type

    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        alone = codauc.launch(look)
        many = codauc.launch(look, workers=2, simulate=True)
    assert many == alone * 2 == [(True, "meta")] * 2
