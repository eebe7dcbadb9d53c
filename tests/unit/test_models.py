"""Claims about the small networks."""

import pytest
import torch

from codauc.models import MLP, ConvNet


@pytest.mark.parametrize("side", [8, 9, 28, 33])
@pytest.mark.parametrize(("outputs", "shape"), [(1, (4,)), (3, (4, 3))])
def test_convnet_gives_one_logit_per_image_and_output(side, outputs, shape):
    assert ConvNet(in_channels=2, outputs=outputs)(torch.zeros(4, 2, side, side)).shape == shape


@pytest.mark.parametrize(("outputs", "shape"), [(1, (4,)), (3, (4, 3))])
@pytest.mark.parametrize("widths", [(), (5,), [5, 6]])
def test_mlp_gives_one_logit_per_sample_and_output(outputs, shape, widths):
    assert MLP(6, widths, outputs)(torch.zeros(4, 2, 3)).shape == shape


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_single_sample_keeps_its_dimension(outputs):
    shape = (1,) if outputs == 1 else (1, outputs)
    assert ConvNet(outputs=outputs)(torch.zeros(1, 1, 16, 16)).shape == shape
    assert MLP(3, outputs=outputs)(torch.zeros(1, 3)).shape == shape


@pytest.mark.parametrize("model", [ConvNet(), MLP(64)], ids=["ConvNet", "MLP"])
def test_every_parameter_gets_a_gradient(model):
    torch.manual_seed(0)
    model(torch.randn(8, 1, 8, 8)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_mlp_without_widths_is_linear():
    model = MLP(3, widths=()).double()
    x, y = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(model(x) + model(y), model(x + y) + model(0 * x))


def test_mlp_with_widths_is_not_linear():
    torch.manual_seed(0)
    model = MLP(3).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    assert not torch.allclose(model(x) + model(-x), 2 * model(0 * x))


def test_convnet_tells_two_textures_apart():
    torch.manual_seed(0)
    stripes = torch.tensor([1.0, -1.0]).repeat(4).expand(8, 8)
    truth = torch.arange(32) % 2 == 0
    x = torch.where(truth[:, None, None], stripes, stripes.T).unsqueeze(1)
    x = x + 0.3 * torch.randn_like(x)
    model = ConvNet(widths=(4, 4))
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        steps.zero_grad()
        torch.nn.functional.soft_margin_loss(model(x), 2.0 * truth - 1).backward()
        steps.step()
    assert ((model(x) > 0) == truth).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvNet(in_channels=0), "in_channels=0: expected an integer >= 1"),
        (lambda: ConvNet(outputs=0), "outputs=0: expected an integer >= 1"),
        (lambda: ConvNet(widths=(8, 0)), "width=0: expected an integer >= 1"),
        (lambda: ConvNet(widths=8), r"widths=8: expected a sequence of integers; write \[8\]"),
        (lambda: ConvNet(width=(8,)), "did you mean 'widths'"),
        (lambda: MLP(0), "inputs=0: expected an integer >= 1"),
        (lambda: MLP(3, outputs=1.5), "outputs=1.5: expected an integer"),
        (lambda: MLP(3, widths=(2.5,)), "width=2.5: expected an integer"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (ConvNet(), (2, 1, 7, 8)),
        (ConvNet(widths=(2,) * 4), (2, 1, 8, 8)),
        (ConvNet(), (1, 8, 8)),
        (MLP(3), (3,)),
        (MLP(3), (2, 4)),
    ],
)
def test_wrong_shapes_are_refused(model, shape):
    with pytest.raises(ValueError, match="expected"):
        model(torch.zeros(shape))
