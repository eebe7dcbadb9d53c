"""Claims about the flat vector of which parameters and statistics are views."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import codauc
from codauc.algorithm._large_pages import empty_vector
from codauc.algorithm.flat_state import Entry, FlatState, entries_of, view_like


def flatten(model, groups=None):
    groups = groups or [[p for p in model.parameters() if p.requires_grad]]
    return FlatState(list(entries_of(model, groups)))


def with_loss(model, **options):
    loss = codauc.MinMaxAUCLoss(pos_ratio=[0.5, 0.5])
    return loss, codauc.PPDSG(model, loss, **options).flat


def values_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def mixed_model():
    """A bfloat16 body with a float32 norm layer."""
    return nn.Sequential(nn.Linear(3, 4).bfloat16(), nn.BatchNorm1d(4), nn.Linear(4, 2).bfloat16())


def test_parameters_keep_their_values_and_share_memory_with_the_vector():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model(torch.randn(5, 3))
    before, identities = values_of(model), [id(p) for p in model.parameters()]
    state = flatten(model)
    assert [id(p) for p in model.parameters()] == identities
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    state.vectors[0].fill_(7.0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            assert (tensor == 7).all(), name
    with torch.no_grad():
        model[0].bias.fill_(3.0)
    assert (state.vectors[0] == 3).sum() == 4


def test_vector_is_weights_by_group_then_a_b_alpha_then_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    norm, linear = model
    groups = [{"params": linear.parameters()}, {"params": norm.parameters()}]
    loss, state = with_loss(model, params=groups)
    for number, tensor in enumerate(
        [linear.weight, linear.bias, norm.weight, norm.bias, loss.a, loss.b, loss.alpha]
    ):
        tensor.data.fill_(number)
    norm.running_mean.fill_(7)
    norm.running_var.fill_(8)
    sizes = [6, 2, 3, 3, 2, 2, 2, 3, 3]
    expected = torch.arange(9.0).repeat_interleave(torch.tensor(sizes))
    (vector,) = state.vectors
    assert torch.equal(vector, expected)
    assert torch.equal(state.primal[0], expected[:18])
    assert state.size == 26
    blocks = [(b.role, b.start, b.stop) for b in state.blocks]
    assert blocks == [
        ("weight", 0, 8),
        ("weight", 8, 14),
        ("ab", 14, 18),
        ("alpha", 18, 20),
        ("buffer", 20, 26),
    ]


def test_names_are_the_modules_own():
    _, state = with_loss(mixed_model())
    names = [entry.name for entry in state.entries]
    assert names == [
        *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"),
        *("loss.a", "loss.b", "loss.alpha", "1.running_mean", "1.running_var"),
    ]
    assert [row[0] for row in state.layout()] == names


def test_mixed_dtypes_make_one_vector_each_and_keep_their_dtypes():
    model = mixed_model()
    dtypes = {n: t.dtype for n, t in model.state_dict().items()}
    _, state = with_loss(model)
    assert [v.dtype for v in state.vectors] == [torch.bfloat16, torch.float32]
    assert {n: t.dtype for n, t in model.state_dict().items()} == dtypes
    assert state.dtype == torch.float32


def test_pack_then_unpack_returns_the_state_with_mixed_dtypes():
    model = mixed_model()
    loss, state = with_loss(model)
    before = values_of(model), values_of(loss)
    message = torch.full((state.size,), torch.nan, dtype=state.dtype)
    state.pack(message)
    assert message.isfinite().all()
    for vector in state.vectors:
        vector.fill_(5.0)
    state.unpack(message)
    for module, saved in zip((model, loss), before, strict=True):
        assert all(torch.equal(t, saved[n]) for n, t in module.state_dict().items())


def test_pack_puts_other_values_only_in_the_place_of_v():
    model = mixed_model()
    loss, state = with_loss(model)
    other = [torch.full_like(v, 2.0) for v in state.like_primal(torch.float32)]
    loss.alpha.data.fill_(9.0)
    message = torch.zeros(state.size, dtype=state.dtype)
    state.pack(message, other)
    mean, variance = model[1].running_mean.clone(), model[1].running_var.clone()
    state.unpack(message)
    assert all((p == 2).all() for p in [*model.parameters(), loss.a, loss.b])
    assert (loss.alpha == 9).all()
    assert torch.equal(model[1].running_mean, mean)
    assert torch.equal(model[1].running_var, variance)


@pytest.mark.parametrize("momentum", [0.1, None], ids=["exponential", "cumulative"])
def test_forward_still_updates_batchnorm_statistics_in_the_vector(momentum):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum))
    twin = copy.deepcopy(model)
    state = flatten(model)
    for x in torch.randn(3, 16, 3):
        model(x), twin(x)
    state.check()
    tail = state.vectors[0][state.primal_sizes[0] :]
    assert torch.equal(tail, torch.cat([twin[1].running_mean, twin[1].running_var]))


def test_norm_layers_without_statistics_and_other_buffers_stay_outside():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    model.register_buffer("table", torch.ones(5))
    state = flatten(model)
    assert state.size == 12 + 4 + 4 + 4


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3).t(),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 1, 2).transpose(0, 2),
        torch.randn(()),
        torch.randn(0, 3),
    ],
    ids=["transposed", "channels_last", "with a dimension of one", "scalar", "empty"],
)
def test_dense_parameters_keep_their_strides(tensor):
    model = nn.Module()
    model.first, model.w = nn.Parameter(torch.zeros(3)), nn.Parameter(tensor)
    model.last = nn.Parameter(torch.zeros(2))
    before, strides = tensor.clone(), model.w.stride()
    state = flatten(model)
    assert model.w.stride() == strides
    assert torch.equal(model.w, before)
    assert (model.first == 0).all()
    assert (model.last == 0).all()
    assert state.size == 5 + tensor.numel()


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(3, 1).expand(3, 4), torch.randn(4, 6)[:, ::2], torch.randn(9)[1::2]],
    ids=["expanded", "columns of a matrix", "every second"],
)
def test_parameters_with_gaps_or_overlaps_get_memory_of_their_own(tensor):
    model = nn.Module()
    model.w, model.last = nn.Parameter(tensor), nn.Parameter(torch.zeros(2))
    before = tensor.clone()
    state = flatten(model)
    assert torch.equal(model.w, before)
    assert torch.equal(model.last, torch.zeros(2))
    assert state.size == tensor.numel() + 2
    state.vectors[0].copy_(torch.arange(float(state.size)))
    assert torch.equal(model.w.flatten(), torch.arange(float(tensor.numel())))


def test_view_like_reads_the_vector_from_its_start():
    vector = torch.arange(10.0)[2:]
    assert view_like(torch.zeros(3, 2).t(), vector, 1).tolist() == [[3, 5, 7], [4, 6, 8]]


def test_gradients_at_hand_survive_flattening():
    model = nn.Linear(3, 1)
    model(torch.ones(2, 3)).sum().backward()
    flatten(model)
    assert torch.equal(model.weight.grad, torch.full((1, 3), 2.0))


def test_tied_weights_are_one_entry():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    state = flatten(model)
    assert state.size == 9
    state.vectors[0].fill_(4.0)
    assert model[1].weight is model[0].weight
    assert (model[1].weight == 4).all()


def test_check_is_silent_after_in_place_changes_and_loading():
    model = mixed_model()
    state = flatten(model)
    saved = values_of(model)
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    model.load_state_dict(saved)
    model.to("cpu").train().requires_grad_(True)
    state.check()
    assert torch.equal(state.vectors[0][:12].view(4, 3), saved["0.weight"])


def test_check_names_a_statistic_that_was_replaced():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = flatten(model)
    model[1].running_var = torch.ones(4)
    with pytest.raises(RuntimeError, match=r"1\.running_var is now torch.float32 on cpu"):
        state.check()


def test_a_models_own_loss_parameters_do_not_collide_with_the_losss():
    """A model may well have a submodule called loss with a parameter called alpha."""
    model = nn.Linear(3, 1)
    model.loss = nn.Module()
    model.loss.alpha = nn.Parameter(torch.full((1,), 5.0))
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.5)
    opt = codauc.PPDSG(model, loss, lr=0.5, gamma=float("inf"))
    for parameter in [*model.parameters(), loss.sums]:
        parameter.grad = torch.zeros_like(parameter)
    model.loss.alpha.grad += 1.0
    opt.step()
    assert model.loss.alpha.item() == 4.5
    assert loss.alpha.item() == 0.0


def test_state_dict_can_be_saved_as_safetensors(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with_loss(model)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(saved[n], t) for n, t in model.state_dict().items())


def test_deepcopy_of_a_flattened_model_has_weights_of_its_own():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    _, state = with_loss(model)
    twin, before = copy.deepcopy(model), values_of(model)
    state.vectors[0].fill_(7.0)
    assert all(torch.equal(t, before[n]) for n, t in twin.state_dict().items())
    twin[0].weight.data.zero_()
    assert (model[0].weight == 7).all()


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_parameters_are_refused_by_name():
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        flatten(nn.Sequential(nn.LazyLinear(1)))


def test_complex_parameters_are_refused_by_name():
    with pytest.raises(ValueError, match=r"weight of torch.complex64.*freeze"):
        flatten(nn.Linear(2, 1, dtype=torch.complex64))


def test_tensors_on_several_devices_are_refused_by_name_and_stay_where_they_are():
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(2, 1, device="meta"))
    pointer = model[0].weight.data_ptr()
    with pytest.raises(ValueError, match=r"0\.bias on cpu, 1\.bias on meta"):
        flatten(model)
    assert model[0].weight.data_ptr() == pointer


def test_entry_reads_what_its_owner_holds_now():
    model = nn.Linear(2, 1)
    entry = Entry("weight", "weight", 0, model, "weight")
    model.weight = nn.Parameter(torch.ones(1, 2))
    assert entry.tensor is model.weight


def test_vectors_in_large_pages_are_torch_s_own_but_for_their_pages():
    for size in (0, 3, 2**20 + 5):
        vector = empty_vector(size, torch.float64, torch.device("cpu"))
        plain = torch.empty(size, dtype=torch.float64)
        assert (vector.shape, vector.dtype, vector.stride()) == (
            plain.shape,
            plain.dtype,
            plain.stride(),
        )
        assert torch.equal(vector.fill_(2.0), plain.fill_(2.0))
