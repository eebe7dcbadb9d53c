"""Claims about weights from files, and about our ResNets beside torchvision's."""

import contextlib
import importlib.util
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from codauc.models import (
    MLP,
    ConvNet,
    ResNet18,
    ResNet20,
    ResNet50,
    TabularNet,
    build,
    load_pretrained,
    pretrained,
)

reads_torch_files = pytest.mark.skipif(
    torch.__version__ < pretrained.SAFE_TORCH,
    reason=f"torch files are refused before torch {pretrained.SAFE_TORCH}",
)
SUFFIXES = [".safetensors", pytest.param(".pth", marks=reads_torch_files)]


@pytest.fixture(scope="module")
def torchvision():
    """Torchvision's models; a build for another torch lacks two operators, not needed by them."""
    found = importlib.util.find_spec("torchvision")
    if found is None:
        pytest.skip("torchvision is not installed: pip install --no-deps torchvision")
    for library in Path(found.origin).parent.glob("_C*.so"):
        with contextlib.suppress(OSError):
            torch.ops.load_library(library)
    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    stubs = torch.library.Library("torchvision", "FRAGMENT")
    for name in missing:
        stubs.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision.models

    yield torchvision.models
    assert stubs  # kept to the end: with the object the operators would go


def save(weights, path):
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
    else:
        torch.save(weights, path)
    return path


def randomised(model):
    """The model with weights and statistics that differ everywhere, and moderate outputs."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("running_var", "bn1.weight", "bn2.weight", "bn3.weight")):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith(("running_mean", "bias")):
                tensor.uniform_(-0.5, 0.5)
    return model


def copies(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


PAIRS = pytest.mark.parametrize(
    ("ours", "theirs"),
    [(ResNet18, "resnet18"), (ResNet50, "resnet50")],
    ids=["resnet18", "resnet50"],
)


@PAIRS
def test_resnet_equals_torchvision(torchvision, ours, theirs):
    theirs = randomised(getattr(torchvision, theirs)(num_classes=7)).double()
    ours = ours(outputs=7).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for training in (False, True):
        ours.train(training), theirs.train(training)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)
    statistics = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, statistics[name], rtol=1e-9, atol=1e-9, msg=name)


@PAIRS
@pytest.mark.parametrize("outputs", [1, 1000])
def test_resnet_has_torchvisions_names_shapes_and_order(torchvision, ours, theirs, outputs):
    theirs = getattr(torchvision, theirs)(num_classes=outputs).state_dict()
    entries = [(n, t.shape, t.dtype) for n, t in ours(outputs=outputs).state_dict().items()]
    assert entries == [(n, t.shape, t.dtype) for n, t in theirs.items()]


@PAIRS
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_torchvision_loads(torchvision, ours, theirs, suffix, tmp_path):
    theirs = randomised(getattr(torchvision, theirs)(num_classes=1000)).eval()
    path = save(theirs.state_dict(), tmp_path / f"weights{suffix}")
    whole, one = ours(outputs=1000).eval(), ours(outputs=1)
    head = copies(one.fc)
    assert load_pretrained(whole, path) == []
    assert load_pretrained(one, path) == ["fc.weight", "fc.bias"]
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(whole(x), theirs(x), rtol=1e-5, atol=1e-5)
    assert same(copies(one.fc), head)
    assert same({**theirs.state_dict(), **{f"fc.{n}": t for n, t in head.items()}}, copies(one))


def test_torchvisions_models_are_built_by_import_path(torchvision):
    model = build("torchvision.models:DenseNet", num_classes=1)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "make",
    [
        lambda outputs: ConvNet(outputs=outputs),
        lambda outputs: MLP(4, outputs=outputs),
        lambda outputs: ResNet20(outputs=outputs),
        lambda outputs: TabularNet(2, categories=[3, 4], outputs=outputs),
        lambda outputs: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, outputs)),
    ],
    ids=["convnet", "mlp", "resnet20", "tabular", "other"],
)
def test_a_file_loads_whole_or_without_its_head(make, suffix, tmp_path):
    source, other = make(3), make(2)
    path = save(source.state_dict(), tmp_path / f"weights{suffix}")
    before, copy = copies(other), make(3)
    assert load_pretrained(copy, path) == []
    assert same(copies(copy), copies(source))
    kept = load_pretrained(other, path)
    assert kept == list(before)[-2:]
    expected = {**copies(source), **{name: before[name] for name in kept}}
    assert same(copies(other), expected)


@reads_torch_files
@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_training_checkpoint_is_unwrapped(key, tmp_path):
    source, model = MLP(3), MLP(3)
    content = {"epoch": 3, key: source.state_dict(), "optimizer": {"state": {}}}
    assert load_pretrained(model, save(content, tmp_path / "weights.pt")) == []
    assert same(copies(model), copies(source))


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module._orig_mod.module."],
)
def test_prefixes_of_wrappers_are_dropped(prefix, tmp_path):
    source, model = MLP(3), MLP(3)
    weights = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    load_pretrained(model, save(weights, tmp_path / "weights.safetensors"))
    assert same(copies(model), copies(source))


def test_a_model_that_has_the_prefix_itself_keeps_it(tmp_path):
    source, model = nn.DataParallel(MLP(3)), nn.DataParallel(MLP(3))
    load_pretrained(model, save(source.state_dict(), tmp_path / "weights.safetensors"))
    assert same(copies(model), copies(source))


def test_old_files_without_counters_load(tmp_path):
    source = ConvNet()
    weights = {n: t for n, t in source.state_dict().items() if "num_batches" not in n}
    assert load_pretrained(ConvNet(), save(weights, tmp_path / "old.safetensors")) == []


def test_weights_are_cast_and_stay_where_the_optimizer_holds_them(tmp_path):
    source, model = MLP(3).half(), MLP(3).double()
    address = model.head.weight.data_ptr()
    load_pretrained(model, save(source.state_dict(), tmp_path / "half.safetensors"))
    assert torch.equal(model.head.weight, source.head.weight.double())
    assert model.head.weight.data_ptr() == address


def test_a_file_without_a_head_loads_the_rest(tmp_path):
    weights = {n: t for n, t in MLP(3).state_dict().items() if not n.startswith("head")}
    kept = load_pretrained(MLP(3), save(weights, tmp_path / "body.safetensors"))
    assert kept == ["head.weight", "head.bias"]


def test_a_head_is_kept_as_a_whole(tmp_path):
    body = nn.Linear(4, 3)
    source = nn.Sequential(body, nn.Linear(3, 5))
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1, bias=False))
    assert load_pretrained(model, save(source.state_dict(), tmp_path / "w.safetensors")) == [
        "1.weight"
    ]
    assert torch.equal(model[0].weight, body.weight)


def test_a_bias_the_head_does_not_have_is_unexpected(tmp_path):
    source = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1, bias=False))
    with pytest.raises(ValueError, match=r"1 unexpected: 1\.bias"):
        load_pretrained(model, save(source.state_dict(), tmp_path / "w.safetensors"))


def as_sparse(tensor):
    return tensor.to_sparse()


def as_quantised(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


def as_meta(tensor):
    return tensor.to("meta")


@reads_torch_files
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (as_sparse, r"a Tensor of torch\.float32 and torch\.sparse_coo"),
        (as_quantised, r"a Tensor of torch\.qint8"),
        (as_meta, "a Tensor .* on the device meta"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of torch, on what it is about to give up
def test_tensors_that_cannot_be_copied_are_refused_before_any_is(change, message, tmp_path):
    weights, model = copies(MLP(3)), MLP(3)
    weights["head.weight"] = change(weights["head.weight"])  # the last but one to be copied
    before = copies(model)
    path = save(weights, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=rf"weights\.pth holds 'head\.weight', {message}"):
        load_pretrained(model, path)
    assert same(copies(model), before)


@reads_torch_files
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_weights_that_are_not_ordinary_floats_are_refused(dtype, tmp_path):
    weights, model = copies(MLP(3)), MLP(3)
    weights["head.weight"] = weights["head.weight"].to(dtype)
    before = copies(model)
    path = save(weights, tmp_path / "weights.pth")
    message = rf"not fit MLP: 1 of .*head\.weight \(got {dtype}, expected torch\.float32\)"
    with pytest.raises(ValueError, match=message):
        load_pretrained(model, path)
    assert same(copies(model), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_ordinary_floats_are_cast_and_counters_stay_integers(dtype, tmp_path):
    source, model = ConvNet().to(dtype), ConvNet()
    assert load_pretrained(model, save(source.state_dict(), tmp_path / "w.safetensors")) == []
    assert same(copies(model), copies(source.float()))


class HeadFirst(nn.Module):
    """A model that registers its head before its body."""

    def __init__(self, outputs, deep=False):
        super().__init__()
        last = nn.Linear(4, outputs)
        self.classifier = nn.Sequential(nn.Linear(4, 4), last) if deep else last
        self.body = nn.Linear(3, 4)
        self.act = nn.ReLU()


def test_a_head_that_is_not_the_last_layer_is_named(tmp_path):
    source, model = HeadFirst(10), HeadFirst(1)
    path, head = save(source.state_dict(), tmp_path / "w.safetensors"), copies(model.classifier)
    with pytest.raises(ValueError, match=r"2 of another shape: classifier.* head=\.\.\."):
        load_pretrained(model, path)
    kept = load_pretrained(model, path, head="classifier")
    assert kept == ["classifier.weight", "classifier.bias"]
    assert same(copies(model.body), copies(source.body))
    assert same(copies(model.classifier), head)
    assert load_pretrained(HeadFirst(10), path, head="classifier") == []


def test_a_named_head_may_have_other_layers_in_the_file(tmp_path):
    for deep in (False, True):
        path = save(HeadFirst(2, deep).state_dict(), tmp_path / "w.safetensors")
        model = HeadFirst(1, not deep)
        kept = load_pretrained(model, path, head="classifier")
        assert kept == [f"classifier.{name}" for name in model.classifier.state_dict()]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("clasifier", "head='clasifier': .* module of HeadFirst .* did you mean 'classifier'"),
        (
            "act",
            r"head='act': .* that holds weights, of model\.named_modules\(\); such as body",
        ),
        ("", "head='': expected the name of a module"),
        (3, "head=3: expected the name of a module"),
    ],
)
def test_a_head_that_is_not_there_is_refused(head, message, tmp_path):
    path = save(HeadFirst(1).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=message):
        load_pretrained(HeadFirst(1), path, head=head)


def other_shape(weights):
    weights["layer1.0.conv1.weight"] = torch.zeros(16, 16, 1, 1)


def one_missing(weights):
    del weights["layer3.2.bn2.running_var"]


def two_unexpected(weights):
    weights.update({"gamma": torch.zeros(1), "beta": torch.zeros(1)})


def half_a_head(weights):
    del weights["fc.bias"]


def everything_renamed(weights):
    for name in list(weights):
        weights[f"net.{name}"] = weights.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            other_shape,
            r"1 of another shape: layer1\.0\.conv1\.weight "
            r"\(got \[16, 16, 1, 1\], expected \[16, 16, 3, 3\]\)",
        ),
        (one_missing, r"1 missing: layer3\.2\.bn2\.running_var\."),
        (two_unexpected, "2 unexpected: beta, gamma"),
        (half_a_head, r"1 missing: fc\.bias"),
        (
            everything_renamed,
            r"95 missing: conv1\.weight, .*, \.\.\.; 116 unexpected: net\.bn1\.bias",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_the_model_is_untouched(change, message, tmp_path):
    weights, model = copies(ResNet20()), ResNet20()
    change(weights)
    before = copies(model)
    path = save(weights, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"weights\.safetensors does not fit ResNet20: " + message):
        load_pretrained(model, path)
    assert same(copies(model), before)


def test_a_file_that_shares_nothing_but_a_head_is_refused(tmp_path):
    path = save(nn.Linear(3, 2).state_dict(), tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match="nothing of the model but its head"):
        load_pretrained(nn.Linear(4, 1), path)


class Payload:
    """What runs a command when it is unpickled in the ordinary way."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("dump", [torch.save, lambda o, path: path.write_bytes(pickle.dumps(o))])
@pytest.mark.parametrize("name", ["evil.pth", "evil.safetensors"])
def test_a_malicious_file_is_refused_and_does_not_run(dump, name, tmp_path):
    path, marker, model = tmp_path / name, tmp_path / "ran", MLP(3)
    dump(OrderedDict(model.state_dict(), payload=Payload(marker)), path)
    before = copies(model)
    with pytest.raises(ValueError, match=name):
        load_pretrained(model, path)
    assert not marker.exists()
    assert same(copies(model), before)
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()  # so the payload was one


@reads_torch_files
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (MLP(3), r"could not be read as weights \(UnpicklingError\)"),
        ([torch.zeros(3)], "holds a list: expected a state_dict"),
        ({"epoch": 3}, "holds 'epoch' of type int"),
        ({3: torch.zeros(3)}, "holds 3 of type Tensor: expected names"),
    ],
)
def test_other_things_of_torch_save_are_refused(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_pretrained(MLP(3), save(content, tmp_path / "weights.pth"))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("length", [0, 7, 200, -50])
def test_a_broken_file_is_named(suffix, length, tmp_path):
    path = save(MLP(3).state_dict(), tmp_path / f"weights{suffix}")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=f"weights{suffix} could not be read as weights") as caught:
        load_pretrained(MLP(3), path)
    assert caught.value.__cause__ is not None


def test_a_file_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none.pth"):
        with pytest.raises(ValueError, match=f"{path}: no such file"):
            load_pretrained(MLP(3), path)


def test_an_early_torch_reads_safetensors_only(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "SAFE_TORCH", "99.0")
    path = save(MLP(3).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"may run code .* torch >= 99\.0"):
        load_pretrained(MLP(3), path)
    assert load_pretrained(MLP(3), save(MLP(3).state_dict(), tmp_path / "w.safetensors")) == []


def test_loading_leaves_the_random_state_alone(tmp_path):
    path = save(MLP(3).state_dict(), tmp_path / "weights.safetensors")
    model, state = MLP(3), torch.get_rng_state()
    load_pretrained(model, path)
    assert torch.equal(torch.get_rng_state(), state)
