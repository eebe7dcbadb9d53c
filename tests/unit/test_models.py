"""Claims about the networks; what concerns torchvision is in test_pretrained.py."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

import codauc
from codauc.models import MLP, ConvNet, PatchNet, ResNet18, ResNet20, ResNet50, TabularNet, build

OWN = {  # of each network by name: arguments, and the shape of two samples
    "convnet": ({"in_channels": 3, "widths": (4, 8)}, (2, 3, 32, 32)),
    "mlp": ({"inputs": 6, "widths": (5,)}, (2, 6)),
    "patchnet": ({"widths": (4, 8), "patch": 2}, (2, 3, 16, 8)),
    "resnet18": ({}, (2, 3, 32, 32)),
    "resnet20": ({"in_channels": 1}, (2, 1, 16, 16)),
    "resnet8": ({}, (2, 3, 32, 32)),
    "resnet50": ({}, (2, 3, 32, 32)),
    "tabular": ({"numbers": 4, "categories": (1, 1), "widths": (5, 3)}, (2, 6)),
}


def samples(name):
    x = torch.randn(OWN[name][1])
    return x * (torch.arange(6) < 4) if name == "tabular" else x  # the only code there is: 0


@pytest.mark.parametrize("side", [8, 9, 28, 33])
@pytest.mark.parametrize(("outputs", "shape"), [(1, (4,)), (3, (4, 3))])
def test_convnet_gives_one_logit_per_image_and_output(side, outputs, shape):
    assert ConvNet(in_channels=2, outputs=outputs)(torch.zeros(4, 2, side, side)).shape == shape


def test_residual_blocks_that_add_nothing_leave_the_plain_convnet():
    torch.manual_seed(0)
    plain = ConvNet(2, (4, 5, 6))
    model = ConvNet(2, (4, 5, 6), residual=True)
    added = model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert {name.split(".")[1] for name in added} == {"1", "2"}  # the first block stays as it is
    x = torch.randn(3, 2, 17, 16)
    assert not torch.allclose(model(x), plain(x))
    for block in model.blocks[1:]:
        nn.init.zeros_(block[-1].bn2.weight)
    torch.testing.assert_close(model(x), plain(x))


@pytest.mark.parametrize(("outputs", "shape"), [(1, (4,)), (3, (4, 3))])
@pytest.mark.parametrize("widths", [(), (5,), [5, 6]])
def test_mlp_gives_one_logit_per_sample_and_output(outputs, shape, widths):
    assert MLP(6, widths, outputs)(torch.zeros(4, 2, 3)).shape == shape


@pytest.mark.parametrize(("patch", "side"), [(4, 32), (2, 48)])
def test_patchnet_is_convolutions_whose_stride_is_their_size(patch, side):
    torch.manual_seed(0)
    model = PatchNet(widths=(5, 6, 7), patch=patch).double()
    x = torch.randn(4, 3, side, side, dtype=torch.float64)
    found, size = x, patch
    for layer in (*model.layers, model.head):
        inputs = layer.in_features // size**2
        if layer is model.layers[0]:
            weight = layer.weight.view(-1, inputs, size, size)
        else:
            weight = layer.weight.view(-1, size, size, inputs).permute(0, 3, 1, 2)
        found = nn.functional.conv2d(found, weight, layer.bias, stride=size)
        found = found if layer is model.head else found.relu()
        size = 2
    torch.testing.assert_close(model(x), found.mean(dim=(2, 3)).flatten())


def test_patchnet_refuses_sides_that_leave_a_rest():
    with pytest.raises(ValueError, match="multiples of 32"):
        PatchNet()(torch.zeros(2, 3, 48, 32))


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_single_sample_keeps_its_dimension(outputs):
    shape = (1,) if outputs == 1 else (1, outputs)
    assert ConvNet(outputs=outputs)(torch.zeros(1, 1, 16, 16)).shape == shape
    assert MLP(3, outputs=outputs)(torch.zeros(1, 3)).shape == shape


@pytest.mark.parametrize("model", [ConvNet(), ConvNet(residual=True), MLP(64)])
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
        (lambda: ConvNet(residual=1), "residual=1: expected True or False"),
        (lambda: ConvNet(width=(8,)), "did you mean 'widths'"),
        (lambda: ConvNet(widths=np.array(8)), r"expected a sequence of integers; write \[8\]"),
        (lambda: ConvNet(widths=torch.tensor(8)), r"expected a sequence .* write \[8\]"),
        (lambda: ConvNet(widths="48"), r"widths='48': .* write them in a list, such as \[16, 32\]"),
        (lambda: ConvNet(widths=b"48"), r"widths=b'48': expected a sequence of integers"),
        (lambda: ConvNet(widths={4, 8}), r"widths=\{.*\}: expected a sequence of integers"),
        (lambda: ConvNet(widths=None), r"widths=None: expected a sequence .* such as \[16, 32\]"),
        (lambda: ConvNet(widths=np.array([4.0])), "width=.*4.0.*: expected an integer"),
        (lambda: MLP(0), "inputs=0: expected an integer >= 1"),
        (lambda: MLP(10**6, [10**6]), r"of 1000001000000 weights: expected at most 2147483648"),
        (lambda: MLP(3, outputs=1.5), "outputs=1.5: expected an integer"),
        (lambda: MLP(3, widths=(2.5,)), "width=2.5: expected an integer"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "widths",
    [[4, 8], (4, 8), np.array([4, 8]), torch.tensor([4, 8]), range(4, 9, 4), iter([4, 8])],
    ids=["list", "tuple", "array", "tensor", "range", "iterator"],
)
def test_widths_may_come_in_whatever_has_an_order(widths):
    arguments = ConvNet(widths=widths).arguments
    assert json.loads(json.dumps(arguments)) == {"in_channels": 1, "widths": [4, 8], "outputs": 1}


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


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", OWN)
def test_a_network_made_by_name_can_be_made_again_from_what_it_says(name, outputs):
    model = build(name, **OWN[name][0], outputs=outputs)
    again = build(model.model_name, **json.loads(json.dumps(model.arguments)))
    assert type(again) is type(model)
    assert again.arguments == model.arguments
    again.load_state_dict(model.state_dict())
    x = samples(name)
    assert torch.equal(again(x), model(x))
    assert model(x).shape == ((2,) if outputs == 1 else (2, outputs))


@pytest.mark.parametrize("name", OWN)
def test_every_parameter_of_a_network_made_by_name_gets_a_gradient(name):
    model = build(name, **OWN[name][0])
    x = torch.cat([samples(name) for _ in range(4)])
    model(x).square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("name", OWN)
def test_a_step_of_ppdsg_moves_weights_and_batchnorm_statistics(name):
    model = build(name, **OWN[name][0])
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.5)
    opt = codauc.PPDSG(model, loss, lr=0.1, gamma=500.0)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    loss(model(samples(name)), torch.tensor([0, 1])).backward()
    opt.step()
    after = model.state_dict()
    assert all(tensor.isfinite().all() for tensor in after.values())
    means = [key for key in after if key.endswith("running_mean")]
    assert all(not torch.equal(after[key], before[key]) for key in means)
    heads = [key for key in after if key in ("fc.weight", "head.weight")]
    assert heads
    assert not torch.equal(after[heads[0]], before[heads[0]])


def test_a_subclass_of_a_network_goes_by_its_own_import_path():
    class Mine(ConvNet):
        pass

    assert Mine.model_name == f"{__name__}:{Mine.__qualname__}"
    assert ConvNet.model_name == "convnet"


@pytest.mark.parametrize(
    ("model", "outputs", "count"),
    [(ResNet18, 1000, 11_689_512), (ResNet50, 1000, 25_557_032), (ResNet20, 10, 269_722)],
)
def test_resnets_have_the_published_number_of_parameters(model, outputs, count):
    assert sum(p.numel() for p in model(outputs=outputs).parameters()) == count


def test_resnet20_shortcuts_without_parameters_keep_every_second_pixel():
    block = ResNet20().eval().layer2[0]
    x = torch.randn(2, 16, 7, 8)
    shortcut = block.downsample(x)
    assert shortcut.shape == (2, 32, 4, 4)
    assert torch.equal(shortcut[:, :16], x[:, :, ::2, ::2])
    assert not shortcut[:, 16:].any()
    assert not list(block.downsample.parameters())


def test_convolutions_start_with_kaimings_variance_and_norms_as_the_identity():
    model = ResNet18()
    weight = model.layer3[0].conv1.weight  # 128 to 256 channels
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)
    assert all((part.weight == 1).all() for part in model.modules() if hasattr(part, "running_var"))


def test_tabular_without_categories_is_an_mlp():
    table, mlp = TabularNet(5, widths=(4, 3)), MLP(5, widths=(4, 3))
    mlp.load_state_dict(table.state_dict())
    x = torch.randn(6, 5)
    assert torch.equal(table(x), mlp(x))


def test_tabular_needs_no_numbers():
    assert TabularNet(0, categories=[4])(torch.tensor([[0.0], [3.0]])).shape == (2,)


def test_tabular_looks_each_category_up_in_its_own_embedding():
    model = TabularNet(1, categories=[2, 3], widths=())
    x = torch.tensor([[0.5, 1.0, 2.0]])
    first, second = (table.weight for table in model.embeddings)
    together = torch.cat([x[0, :1], first[1], second[2]])
    torch.testing.assert_close(model(x)[0], model.head(together)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_tabular_takes_the_largest_code(dtype):
    model = TabularNet(1, categories=[2048]).to(dtype)
    assert model(torch.tensor([[0.0, 2047.0]], dtype=dtype)).isfinite().all()


@pytest.mark.parametrize(
    ("code", "shown"), [(3.0, "3"), (-1.0, "-1"), (0.5, "0.5"), (float("nan"), "nan")]
)
def test_tabular_names_the_category_the_code_and_the_size(code, shown):
    model = TabularNet(2, categories=[9, 3])
    x = torch.zeros(4, 4)
    x[2, 3] = code
    message = f"category 1 has the code {shown} in row 2: .* from 0 to 2, its size being 3"
    with pytest.raises(ValueError, match=message):
        model(x)


def test_tabular_refuses_a_dtype_that_cannot_hold_the_codes():
    with pytest.raises(ValueError, match=r"torch.bfloat16 .* up to 256 only.* size 300"):
        TabularNet(1, categories=[300]).bfloat16()(torch.zeros(2, 2, dtype=torch.bfloat16))


def test_tabular_runs_on_meta_tensors():
    with torch.device("meta"):
        assert TabularNet(1, categories=[3])(torch.zeros(2, 2)).shape == (2,)


def test_dropout_works_in_training_only_and_none_draws_nothing():
    x = torch.randn(50, 3)
    some, none = TabularNet(3, dropout=0.5), TabularNet(3)
    assert not torch.equal(some(x), some(x))
    assert torch.equal(some.eval()(x), some(x))
    state = torch.get_rng_state()
    none(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_making_networks_changes_nothing_global_but_the_random_state():
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    for name in OWN:
        build(name, **OWN[name][0])
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, threads)


called = []


def make_model(width=1):
    called.append(width)
    return nn.Linear(width, 1)


class Raising(nn.Module):
    def __init__(self, error):
        super().__init__()
        raise error


class Holder:
    class Net(nn.Identity):
        pass

    instance = nn.Identity()
    number = 3

    @staticmethod
    def not_a_module():
        return 3


@pytest.fixture
def here(monkeypatch):
    """This module under a name by which it can be imported."""
    monkeypatch.setitem(sys.modules, "their_models", sys.modules[__name__])
    return "their_models"


def test_an_import_path_makes_networks_of_ones_own(here):
    assert type(build(f"{here}:Holder.Net")) is Holder.Net
    assert build("torch.nn:Linear", in_features=2, out_features=1).out_features == 1


def test_an_argument_may_be_called_name():
    with pytest.raises(ValueError, match="unknown argument 'name'"):
        build("mlp", inputs=3, name="x")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Holder.instance", "is an object of type Identity: expected a class, a torch.nn.Module"),
        ("Holder.number", "is an object of type int: expected a class, a torch.nn.Module"),
        ("Holder.not_a_module", "is an object of type staticmethod: expected a class"),
        ("Holder", "is the class Holder: expected a class, a torch.nn.Module"),
        ("torch.nn.Linear", "leads through a module: expected"),
        ("make_model.__globals__", "leads through a function: expected"),
        ("Holder.Nett", "'their_models' has no 'Holder.Nett'"),
        ("make_model", "is an object of type function: expected a class"),
        ("Raising", "could not be made with no arguments: .*'error'"),
        ("", "'their_models' has no ''"),
    ],
)
def test_wrong_import_paths_say_what_is_there(here, path, message):
    with pytest.raises(ValueError, match=message):
        build(f"{here}:{path}")
    assert not called


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, OSError, ValueError, AssertionError])
def test_what_a_maker_raises_becomes_a_value_error_with_its_cause(here, kind):
    message = rf"model='{here}:Raising' could not be made .*{kind.__name__}: .*no luck"
    with pytest.raises(ValueError, match=message) as caught:
        build(f"{here}:Raising", error=kind("no luck"))
    assert type(caught.value.__cause__) is kind


def test_a_maker_of_torch_that_fails_is_named():
    with pytest.raises(ValueError, match=r"'torch\.nn:Linear' could not be made .*negative"):
        build("torch.nn:Linear", in_features=-1, out_features=1)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes(here, kind):
    with pytest.raises(kind):
        build(f"{here}:Raising", error=kind())


@pytest.mark.parametrize("path", ["no.such.module:Net", ":Net", ".relative:Net"])
def test_a_failed_import_names_the_module_and_the_cause(path):
    with pytest.raises(ValueError, match=f"importing '{path[:-4]}' failed with") as caught:
        build(path)
    assert caught.value.__cause__ is not None


def test_a_module_that_fails_on_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "their_broken.py").write_text("raise RuntimeError('no accelerator')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="'their_broken' failed with RuntimeError: no accelerator"):
        build("their_broken:Net")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("resnett18"), "did you mean 'resnet18'.*import path"),
        (lambda: build(["mlp"]), r"model=\['mlp'\]: expected one of 'convnet', 'mlp'"),
        (lambda: build("mlp"), "'mlp' could not be made with no arguments: .*'inputs'"),
        (lambda: build("mlp", input=3), r"MLP\(\) got .* 'input': did you mean 'inputs'"),
        (lambda: build("resnet50", output=3), r"ResNet50\(\) got .* did you mean 'outputs'"),
        (lambda: ResNet18(outputs=0), "outputs=0: expected an integer >= 1"),
        (lambda: ResNet20(in_channels=1.5), "in_channels=1.5: expected an integer >= 1"),
        (lambda: TabularNet(0), "numbers=0: expected an integer >= 1"),
        (lambda: TabularNet(-1, [3]), "numbers=-1: expected an integer >= 0"),
        (lambda: TabularNet(1, [3, 0]), "category size=0: expected an integer >= 1; its codes"),
        (lambda: TabularNet(1, 3), r"categories=3: expected a sequence .* write \[3\]"),
        (lambda: TabularNet(1, dropout=1), "dropout=1: expected a number >= 0 and < 1"),
        (lambda: TabularNet(1, drop=0.1), "did you mean 'dropout'"),
    ],
)
def test_wrong_names_and_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (ResNet20(), torch.zeros(2, 1, 8, 8), r"expected \[N, 3, H, W\]"),
        (ResNet20(), torch.zeros(3, 8, 8), r"expected \[N, 3, H, W\]"),
        (TabularNet(2, [3]), torch.zeros(5, 2), r"expected \[N, 3\], 2 numbers then 1 category"),
        (TabularNet(2, [3]), torch.zeros(3), r"expected \[N, 3\]"),
        (TabularNet(2), torch.zeros(5, 2, dtype=torch.long), "x of torch.int64: expected floats"),
        (ConvNet(), torch.zeros(2, 3, 8, 8), r"expected \[N, 1, H, W\]; .* in_channels"),
        (ConvNet(widths=()), torch.zeros(2, 3, 8, 8), r"expected \[N, 1, H, W\]"),
        (ConvNet(widths=()), torch.zeros(2, 1, 0, 8), r"expected .* with H, W >= 1"),
        (ResNet20(), torch.zeros(2, 3, 0, 8), r"expected \[N, 3, H, W\] with H, W >= 1"),
        (ResNet18(), torch.zeros(2, 3, 8, 0), r"expected \[N, 3, H, W\] with H, W >= 1"),
    ],
)
def test_wrong_inputs_are_refused(model, x, message):
    with pytest.raises(ValueError, match=message):
        model(x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", OWN)
def test_inputs_that_are_not_floats_are_refused(name, dtype):
    with pytest.raises(ValueError, match=rf"x of {dtype}: expected floats; use x\.float\(\)"):
        build(name, **OWN[name][0])(samples(name).to(dtype))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("got", "weights"), [(torch.float64, torch.float32), (torch.float32, torch.float64)]
)
def test_floats_unlike_the_weights_are_refused(name, got, weights):
    model, x = build(name, **OWN[name][0]).to(weights), samples(name).to(got)
    message = rf"x of {got}: expected {weights}, as the weights are; use x\.to\({weights}\)"
    with pytest.raises(ValueError, match=message):
        model(x)
    assert model(x.to(weights)).dtype == weights


@pytest.mark.parametrize("name", OWN)
def test_autocast_mixes_dtypes_but_not_float64(name):
    model, x = build(name, **OWN[name][0]), samples(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x.bfloat16()).isfinite().all()
        with pytest.raises(ValueError, match=r"x of torch\.float64: expected torch\.float32"):
            model(x.double())


@pytest.mark.parametrize("name", sorted(set(OWN) - {"tabular"}))  # which looks at the codes
def test_checks_of_inputs_do_not_break_a_compiled_graph(name):
    model = build(name, **OWN[name][0]).eval()
    compiled, x = torch.compile(model, backend="eager", fullgraph=True), samples(name)
    torch.testing.assert_close(compiled(x), model(x))
