"""Claims about prediction and evaluation."""

import pytest
import torch
from torch import nn

from codauc import metrics
from codauc.metrics import evaluate, predict
from codauc.models import MLP, ConvNet


@pytest.fixture
def images():
    torch.manual_seed(0)
    return torch.randn(37, 1, 8, 8)


@pytest.fixture
def model(images):
    """A network with some statistics in its BatchNorm, one part of it in evaluation mode."""
    torch.manual_seed(1)
    net = ConvNet(widths=(4, 4))
    net(3 * images + 1)
    net.blocks[0].eval()
    return net


def modes(model):
    return [module.training for module in model.modules()]


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Fails(nn.Module):
    def forward(self, x):
        raise RuntimeError("no")


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Caches(nn.Module):
    """Computes a table at the first call and keeps it, as some positional encodings do."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = x.mean(0) * 2
        return (x * self.table).sum(1)


class Merges(nn.Module):
    """Folds a part of its weight away for evaluation, as low-rank adapters do."""

    def __init__(self):
        super().__init__()
        self.weight, self.merged = nn.Parameter(torch.ones(())), False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        return self.weight * x


def test_predict_leaves_modes_and_statistics_alone(model, images):
    modes_before, before = modes(model), snapshot(model)
    predict(model, images, batch_size=5)
    assert modes(model) == modes_before
    assert len(set(modes_before)) == 2
    assert unchanged(model, before)


def test_predict_restores_modes_after_an_error(model, images):
    broken = nn.Sequential(model, nn.Dropout(), Fails())
    modes_before, before = modes(broken), snapshot(broken)
    with pytest.raises(RuntimeError, match="no"):
        predict(broken, images)
    assert modes(broken) == modes_before
    assert unchanged(broken, before)


def test_predict_restores_the_mode_of_a_shared_part(images):
    shared = nn.Dropout()
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared), nn.Flatten(0))
    shared.eval()
    predict(model, images)
    assert modes(model) == [True, True, False, True, True]


def test_predict_restores_through_the_module_s_own_train(images):
    model = nn.Sequential(Merges())
    predict(model, images)
    assert not model[0].merged
    model.eval()
    predict(model, images)
    assert model[0].merged


def test_predict_leaves_the_global_random_state_alone(images):
    before = torch.get_rng_state()
    predict(Noisy(), images)
    assert torch.equal(torch.get_rng_state(), before)


def test_prediction_is_the_model_in_evaluation_mode(model, images):
    logits = predict(model, images)
    expected = model.eval()(images)
    assert torch.equal(logits, expected.detach())
    assert not torch.allclose(expected, model.train()(images))


@pytest.mark.parametrize("batch_size", [1, 5, 36, 37, 1000])
def test_prediction_does_not_depend_on_the_batch_size(model, images, batch_size):
    model.double()
    images = images.double()
    expected = model.eval()(images).detach()
    torch.testing.assert_close(predict(model, images, batch_size), expected, rtol=0, atol=1e-12)


def test_prediction_needs_no_gradient_and_training_goes_on_after_it(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), Caches())
    logits = predict(model, images)
    assert not logits.requires_grad
    assert not logits.is_inference()
    assert all(parameter.grad is None for parameter in model.parameters())
    model(images).sum().backward()
    assert model[1].weight.grad.abs().sum() > 0


def test_batches_go_to_the_model_s_device():
    class Remembers(nn.Linear):
        seen = ()

        def forward(self, x):
            self.seen = (*self.seen, x.device.type)
            return torch.zeros(len(x))

    model = Remembers(3, 1, device="meta")
    assert predict(model, torch.zeros(4, 3), batch_size=2).device.type == "cpu"
    assert model.seen == ("meta", "meta")


def test_many_outputs_keep_their_columns():
    assert predict(MLP(3, outputs=2), torch.zeros(5, 3), batch_size=2).shape == (5, 2)


def test_evaluate_is_the_auc_of_the_predictions(model, images):
    labels = torch.arange(37) % 3 == 0
    expected = metrics.auc_interval(predict(model, images), labels, level=0.9)
    assert evaluate(model, images, labels, batch_size=10, level=0.9) == pytest.approx(expected)
    assert expected.value == pytest.approx(metrics.auc(predict(model, images), labels))


def test_a_higher_level_gives_a_wider_interval(model, images):
    labels = torch.arange(37) % 3 == 0
    wide, narrow = (evaluate(model, images, labels, level=level) for level in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_wrong_arguments_are_refused(model, images):
    with pytest.raises(ValueError, match="batch_size=0: expected an integer >= 1"):
        predict(model, images, batch_size=0)
    with pytest.raises(ValueError, match="x has 0 samples"):
        predict(model, images[:0])
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        evaluate(model, images, torch.zeros(37), batchsize=3)
