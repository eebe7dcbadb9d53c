"""Claims about what rounds average, and the vector that carries it."""

import copy

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

import codauc
import vectors
from codauc.algorithm._large_pages import empty_vector
from codauc.algorithm.trained_state import TrainedState, view_like


def trained(model, groups=None):
    return TrainedState(model, codauc.MinMaxAUCLoss(0.5), groups or [list(model.parameters())])


def with_loss(model, **options):
    loss = codauc.MinMaxAUCLoss(pos_ratio=[0.5, 0.5])
    return loss, codauc.PPDSG(model, loss, **options).trained


def values_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def mixed_model():
    """A bfloat16 body with a float32 norm layer."""
    return nn.Sequential(nn.Linear(3, 4).bfloat16(), nn.BatchNorm1d(4), nn.Linear(4, 2).bfloat16())


def test_parameters_keep_their_identity_and_memory():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = [(id(t), t.data_ptr(), t.untyped_storage().nbytes()) for t in model.parameters()]
    _, state = with_loss(model)
    state.unpack(torch.full((state.size,), 7.0))
    assert [(id(t), t.data_ptr(), t.untyped_storage().nbytes()) for t in model.parameters()] == (
        before
    )
    assert all((t == 7).all() for t in model.state_dict().values() if t.is_floating_point())


def test_a_message_is_weights_by_group_then_a_b_alpha_then_statistics():
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
    message = torch.zeros(state.size)
    state.pack(message)
    assert torch.equal(message, torch.arange(9.0).repeat_interleave(torch.tensor(sizes)))
    assert (state.weight_size, state.steered_size, state.size) == (14, 20, 26)


def test_names_are_the_modules_own():
    _, state = with_loss(mixed_model())
    assert [row[0] for row in state.layout()] == [
        *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"),
        *("loss.a", "loss.b", "loss.alpha", "1.running_mean", "1.running_var"),
    ]


def test_pack_then_unpack_returns_the_state_with_mixed_dtypes():
    model = mixed_model()
    loss, state = with_loss(model)
    assert state.dtype == torch.float32
    before = values_of(model), values_of(loss)
    message = torch.full((state.size,), torch.nan, dtype=state.dtype)
    state.pack(message)
    assert message.isfinite().all()
    state.unpack(torch.full_like(message, 5.0))
    state.unpack(message)
    for module, saved in zip((model, loss), before, strict=True):
        assert all(torch.equal(t, saved[n]) for n, t in module.state_dict().items())
        assert all(t.dtype == saved[n].dtype for n, t in module.state_dict().items())


def test_pack_divides_whatever_the_dtype():
    _, state = with_loss(mixed_model())
    whole, third = (torch.zeros(state.size) for _ in range(2))
    state.pack(whole)
    state.pack(third, divisor=3)
    assert torch.equal(third, whole / 3)


def test_pack_puts_other_values_only_in_the_place_of_v():
    model = mixed_model()
    loss, state = with_loss(model)
    other = [torch.full_like(t, 2.0, dtype=torch.float32) for t in (*state.weights, loss.a, loss.b)]
    loss.alpha.data.fill_(9.0)
    message = torch.zeros(state.size, dtype=state.dtype)
    state.pack(message, other)
    mean, variance = model[1].running_mean.clone(), model[1].running_var.clone()
    state.unpack(message)
    assert all((p == 2).all() for p in [*model.parameters(), loss.a, loss.b])
    assert (loss.alpha == 9).all()
    assert torch.equal(model[1].running_mean, mean)
    assert torch.equal(model[1].running_var, variance)


def test_statistics_are_those_the_layers_hold_now():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = trained(model)
    model(torch.randn(16, 3))
    model[1].running_var = torch.full((4,), 3.0)
    message = torch.zeros(state.size)
    state.pack(message)
    assert torch.equal(message[-8:], torch.cat([model[1].running_mean, torch.full((4,), 3.0)]))


def test_norm_layers_without_statistics_and_other_buffers_stay_outside():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    model.register_buffer("table", torch.ones(5))
    assert trained(model).size == 12 + 4 + 4 + 4 + 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3).t(),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 1, 2).transpose(0, 2),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(4, 6)[:, ::2],
        torch.randn(9)[1::2],
    ],
    ids=["transposed", "channels_last", "size one", "scalar", "empty", "columns", "every second"],
)
def test_parameters_of_any_strides_come_back_from_a_message(tensor):
    model = nn.Module()
    model.first, model.w = nn.Parameter(torch.zeros(3)), nn.Parameter(tensor)
    model.last = nn.Parameter(torch.zeros(2))
    before, strides = tensor.clone(), model.w.stride()
    state = trained(model)
    assert state.size == 5 + tensor.numel() + 3
    message = torch.zeros(state.size)
    state.pack(message)
    state.unpack(torch.full_like(message, 7.0))
    assert (model.w == 7).all()
    state.unpack(message)
    assert model.w.stride() == strides
    assert torch.equal(model.w, before)
    assert (torch.cat([model.first, model.last]) == 0).all()


def test_view_like_reads_the_vector_from_its_start():
    vector = torch.arange(10.0)[2:]
    assert view_like(torch.zeros(3, 2).t(), vector, 1).tolist() == [[3, 5, 7], [4, 6, 8]]


def test_tied_weights_are_sent_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    state = trained(model)
    assert state.size == 9 + 3
    state.unpack(torch.full((12,), 4.0))
    assert model[1].weight is model[0].weight
    assert (model[1].weight == 4).all()


def test_check_is_silent_after_in_place_changes_moves_and_loading():
    model = mixed_model()
    state = trained(model)
    saved = values_of(model)
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    model.load_state_dict(saved)
    model.to("cpu").train().requires_grad_(True)
    state.check()
    model.double()
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


def test_a_trained_model_is_saved_and_loaded_by_safetensors(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    _, state = with_loss(model)
    state.unpack(torch.randn(state.size))
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(twin, str(tmp_path / "model.safetensors"))
    assert all(torch.equal(twin.state_dict()[n], t) for n, t in model.state_dict().items())


def test_a_layer_that_is_saved_writes_no_more_than_itself(tmp_path):
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1))
    codauc.PPDSG(model, codauc.MinMaxAUCLoss(0.5))
    torch.save(model[1], tmp_path / "layer.pt")
    assert (tmp_path / "layer.pt").stat().st_size < 10_000


def test_deepcopy_of_a_model_in_training_has_weights_of_its_own():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    _, state = with_loss(model)
    twin, before = copy.deepcopy(model), values_of(model)
    state.unpack(torch.full((state.size,), 7.0))
    assert all(torch.equal(t, before[n]) for n, t in twin.state_dict().items())


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_parameters_are_refused_by_name():
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        trained(nn.Sequential(nn.LazyLinear(1)))


def test_complex_parameters_are_refused_by_name():
    with pytest.raises(ValueError, match=r"weight of torch.complex64.*freeze"):
        trained(nn.Linear(2, 1, dtype=torch.complex64))


def test_tensors_on_several_devices_are_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(2, 1, device="meta"))
    with pytest.raises(ValueError, match=r"on cpu, .*1\.bias on meta"):
        trained(model)


def test_the_state_of_an_optimizer_is_what_its_tensors_hold():
    model = nn.Linear(2, 1)
    opt = codauc.PPDAdam(model, codauc.MinMaxAUCLoss(0.5))
    assert torch.equal(vectors.state(opt)[:2], model.weight.detach().flatten())
    assert opt.trained.size == 3 + 3 + 3  # weights, a, b, alpha, second moments


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
