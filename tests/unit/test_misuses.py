"""What people do by mistake: it works, or one sentence says what is wrong. None is silent."""

import copy
import pickle

import pytest
import torch
from torch import nn

import codauc

STAGE = codauc.Stage(lr=0.1, steps=6, sync_every=2, dual_samples=8)


def data(count=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 8, 3, generator=generator)
    return [(each, torch.tensor([1, 0, 0, 1, 0, 0, 0, 1])) for each in x]


def parts(kind=codauc.PPDSG, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.375)
    return model, loss, kind(model, loss, lr=0.1, **options)


def step(model, loss, opt, batch=None):
    x, y = batch or data()[0]
    opt.zero_grad()
    loss(model(x), y).backward()
    opt.step()


def test_another_optimizer_with_the_losss_parameters_finds_none():
    _, loss, _ = parts()
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.AdamW(loss.parameters())


def test_another_optimizer_than_ours_is_pointed_out():
    model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss(pos_ratio=0.375)
    opt = torch.optim.AdamW([*model.parameters(), *loss.parameters()])
    for _ in range(9):
        step(model, loss, opt)
    with pytest.warns(UserWarning, match=r"no PPDSG or PPDAdam made with this loss"):
        step(model, loss, opt)
    step(model, loss, opt)  # once is enough
    assert loss.alpha.item() == 0


@pytest.mark.parametrize("after", [nn.Identity(), nn.Flatten(0)], ids=["last", "reshaped"])
def test_probabilities_in_the_place_of_logits_are_pointed_out(after):
    model = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid(), after)
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.375)
    opt = codauc.PPDSG(model, loss)
    with pytest.warns(UserWarning, match=r"come from a sigmoid.*expected raw logits"):
        step(model, loss, opt)
    step(model, loss, opt)  # once is enough
    identity = codauc.MinMaxAUCLoss(pos_ratio=0.375, link="identity")
    step(model, identity, codauc.PPDSG(model, identity))  # h itself: probabilities are right


@pytest.mark.parametrize("moment", ["before", "after", "too many"])
def test_a_step_outside_a_stage_says_where_steps_belong(moment):
    model, loss, opt = parts()
    coda = codauc.CoDA(opt)
    if moment != "before":
        coda.begin(STAGE, data() if moment == "after" else None)
        for _ in range(STAGE.steps):
            step(model, loss, opt)
    with pytest.raises(RuntimeError, match=r"outside a stage.*coda\.begin.*coda\.end"):
        step(model, loss, opt)


def test_a_model_cast_or_given_other_memory_between_steps_of_coda_trains_on():
    model, loss, opt = parts()
    coda = codauc.CoDA(opt)
    coda.begin(STAGE, [(x.double(), y) for x, y in data()])
    for _ in range(2):
        step(model, loss, opt)
    model.double(), loss.double()
    for x, y in data():
        step(model, loss, opt, (x.double(), y))
    assert coda.stages_done == 1
    assert next(model.parameters()).dtype == torch.float64


@pytest.mark.parametrize("when", ["between", "within"])
def test_freezing_a_layer_leaves_it_alone(when):
    model, loss, opt = parts()
    coda = codauc.CoDA(opt)
    coda.begin(STAGE, data())
    for _ in range(6 if when == "between" else 3):
        step(model, loss, opt)
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    if when == "between":
        coda.begin(STAGE, data())
        step(model, loss, opt)
        assert torch.equal(model[0].weight, frozen)
        assert model[0].weight not in opt.state
    else:
        for _ in range(2):
            step(model, loss, opt)
            assert torch.equal(model[0].weight, frozen)


def test_unfreezing_within_a_stage_of_coda_is_refused_and_between_stages_works():
    model, loss, opt = parts()
    model[0].requires_grad_(False)
    opt.begin_stage()
    coda = codauc.CoDA(opt)
    coda.begin(STAGE)
    step(model, loss, opt)
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"0\.\w+ was unfrozen within a stage"):
        step(model, loss, opt)
    coda.end(data())
    coda.begin(STAGE, data())
    before = model[0].weight.clone()
    step(model, loss, opt)
    assert not torch.equal(model[0].weight, before)


def test_workers_average_a_layer_that_was_unfrozen_between_stages():
    def work(group):
        model, loss, opt = parts()
        model[0].requires_grad_(False)
        coda = codauc.CoDA(opt, group, compress="int8")
        batches = data()[group.rank :]
        for unfrozen in (False, True):
            model[0].requires_grad_(unfrozen)
            coda.begin(STAGE, batches)
            for i in range(STAGE.steps):
                step(model, loss, opt, batches[i % len(batches)])
        return model[0].weight.detach().clone()

    first, second = codauc.launch(work, workers=2, simulate=True)
    assert torch.equal(first, second)


def test_workers_that_freeze_different_layers_are_told():
    def work(group):
        model, _, opt = parts()
        coda = codauc.CoDA(opt, group)
        if group.rank:
            model[0].requires_grad_(False)
        coda.begin(STAGE)

    with pytest.raises(ValueError, match="differ in tensors"):
        codauc.launch(work, workers=2, simulate=True)


def test_a_tied_weight_stays_tied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[1].weight = model[0].weight
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.375)
    opt = codauc.PPDAdam(model, loss)
    step(model, loss, opt)
    assert model[1].weight is model[0].weight


def test_two_engines_on_one_optimizer_are_refused():
    _, _, opt = parts()
    codauc.CoDA(opt)
    with pytest.raises(ValueError, match="already belongs to a CoDA"):
        codauc.CoDA(opt)


def test_two_optimizers_of_one_loss_do_not_both_step():
    model, loss, first = parts()
    second = codauc.PPDAdam(model, loss)
    x, y = data()[0]
    loss(model(x), y).backward()
    first.step()
    with pytest.raises(RuntimeError, match=r"backward\(\) reached the model but not a, b"):
        second.step()


def test_an_exception_within_a_round_leaves_the_worker_and_the_round_is_made_up_for():
    class BrokenError(Exception):
        pass

    def work(group, fail):
        model, loss, opt = parts()
        coda = codauc.CoDA(opt, group)
        coda.begin(STAGE)
        batches = data()
        start = group.start

        def failing(call):
            if fail and call.kind == "round":
                raise BrokenError
            return start(call)

        group.start = failing
        for i in range(STAGE.steps):
            try:
                step(model, loss, opt, batches[i % 4])
            except BrokenError:
                fail = False
                coda.begin(STAGE)
        coda.end(batches)
        return model[0].weight.detach().clone()

    whole = codauc.launch(lambda g: work(g, False), workers=2, simulate=True)
    again = codauc.launch(lambda g: work(g, True), workers=2, simulate=True)
    assert torch.equal(again[0], whole[0])


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy])
def test_an_engine_is_not_copied(copies):
    _, _, opt = parts()
    coda = codauc.CoDA(opt)
    with pytest.raises(TypeError, match="make a new one and load_state_dict"):
        copies(coda)


def test_a_copy_of_an_engines_optimizer_is_free_of_the_engine():
    _, _, opt = parts()
    codauc.CoDA(opt)
    other = copy.deepcopy(opt)
    step(other.model, other.loss, other)
    assert (other.steps, opt.steps) == (1, 0)
    codauc.CoDA(other)


def test_a_stage_of_unknown_ratio_needs_batches():
    model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss()
    opt = codauc.PPDSG(model, loss)
    coda = codauc.CoDA(opt)
    with pytest.raises(ValueError, match=r"call begin\(stage, batches\)"):
        coda.begin(STAGE)
    coda.begin(STAGE, data())
    for _ in range(STAGE.steps):
        step(model, loss, opt)
    assert loss.pos_ratio.item() == pytest.approx(0.375, abs=0.01)


def test_another_stage_before_the_first_has_ended_is_refused():
    _, _, opt = parts()
    coda = codauc.CoDA(opt)
    coda.begin(STAGE)
    with pytest.raises(ValueError, match=r"call end\(batches\) first"):
        coda.begin(codauc.Stage(lr=0.05, steps=3))


def test_a_driven_stage_saved_anywhere_continues_bit_for_bit():
    def made():
        model, loss, opt = parts(codauc.PPDAdam)
        return model, loss, opt, codauc.CoDA(opt)

    def run(model, loss, opt, coda, first, last):
        coda.begin(STAGE, data())
        for i in range(first, last):
            step(model, loss, opt, data()[i % 4])
        return coda.state_dict()

    whole, half, rest = made(), made(), made()
    run(*whole, 0, 6)
    rest[3].load_state_dict(run(*half, 0, 3))
    run(*rest, 3, 6)
    assert rest[3].stages_done == 1
    for name, tensor in whole[0].state_dict().items():
        assert torch.equal(rest[0].state_dict()[name], tensor), name
    assert torch.equal(whole[1].alpha, rest[1].alpha)


def test_a_copy_after_a_scheduler_was_made_trains_itself():
    model, _, opt = parts(codauc.PPDAdam)
    torch.optim.lr_scheduler.StepLR(opt, 10)
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        before = model[0].weight.clone()
        step(other.model, other.loss, other)
        assert (other.steps, opt.steps) == (1, 0)
        assert torch.equal(model[0].weight, before)


def test_a_copy_of_an_optimizer_of_some_parameters_trains_them():
    model, loss, _ = parts()
    other = copy.deepcopy(codauc.PPDSG(model, loss, params=model[3].parameters()))
    step(other.model, other.loss, other)
    assert other.steps == 1


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_a_grad_scaler_leaves_a_b_and_alpha_alone_also_after_the_loss_was_moved(kind):
    def trained(scale):
        model, loss, opt = parts(kind)
        loss.double()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)
        for x, y in data():
            model.zero_grad()
            scaler.scale(loss(model(x), y)).backward()
            scaler.step(opt)
            scaler.update()
        return loss

    plain, scaled = trained(1), trained(1024.0)
    for name in ("a", "b", "alpha"):
        assert torch.allclose(getattr(plain, name), getattr(scaled, name), atol=1e-6)


def test_clipping_all_of_an_optimizers_parameters_clips_the_weights_alone():
    def trained(clip):
        model, loss, opt = parts()
        for x, y in data():
            opt.zero_grad()
            loss(model(x), y).backward()
            clip(model, opt)
            opt.step()
        return model[0].weight, loss.a

    def every(model, opt):
        params = [p for group in opt.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(params, 0.01)

    one = trained(lambda model, opt: nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    two = trained(every)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


@pytest.mark.parametrize("compress", [None, "int8"])
def test_a_layer_added_between_stages_begins_equal_on_all_workers(compress):
    def work(group):
        torch.manual_seed(group.rank)
        model, loss = nn.Sequential(nn.Linear(3, 1)), codauc.MinMaxAUCLoss(pos_ratio=0.375)
        opt = codauc.PPDSG(model, loss)
        coda = codauc.CoDA(opt, group, compress=compress)
        for batch in coda.stage(STAGE, data()):
            step(model, loss, opt, batch)
        model.append(nn.Linear(1, 1))
        first = model[1].weight.item()
        opt.begin_stage()
        opt.add_param_group({"params": model[1].parameters()})
        coda.begin(STAGE, data())
        start = model[1].weight.item()
        for i in range(STAGE.steps):
            step(model, loss, opt, data()[i % 4])
        return first, start, model[1].weight.item()

    results = codauc.launch(work, workers=3, simulate=True)
    assert {start for _, start, _ in results} == {results[0][0]}
    assert len({end for *_, end in results}) == 1


def test_a_head_replaced_between_stages_is_trained_in_its_place():
    model, loss, opt = parts()
    coda = codauc.CoDA(opt)
    for batch in coda.stage(STAGE, data()):
        step(model, loss, opt, batch)
    model[3] = nn.Linear(4, 1)
    before = model[3].weight.detach().clone()
    opt.begin_stage()
    opt.add_param_group({"params": model[3].parameters()})
    for batch in coda.stage(STAGE, data()):
        step(model, loss, opt, batch)
    assert not torch.equal(model[3].weight, before)


def test_a_parameter_that_is_not_the_models_cannot_be_added():
    _, _, opt = parts()
    with pytest.raises(ValueError, match="not the model's"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize("how", ["end", "begin"])
def test_a_stage_that_is_ended_inside_its_loop_counts_once(how):
    model, loss, opt = parts()
    coda = codauc.CoDA(opt)
    for batch in coda.stage(STAGE, data()):
        if how == "begin" and opt.steps == 2:
            coda.begin(STAGE, data())
        step(model, loss, opt, batch)
        if how == "end" and opt.steps == STAGE.steps:
            coda.end(data())
    assert coda.stages_done == 1


def test_a_state_loaded_into_the_same_engine_asks_for_begin():
    model, loss, opt = parts()
    coda = codauc.CoDA(opt)
    coda.begin(STAGE, data())
    for _ in range(3):
        step(model, loss, opt)
    saved = coda.state_dict()
    for _ in range(3):
        step(model, loss, opt)
    coda.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="outside a stage"):
        step(model, loss, opt)
    coda.begin(STAGE, data())
    for _ in range(3):
        step(model, loss, opt)
    assert coda.stages_done == 1


def test_ending_the_optimizers_stage_behind_an_engines_back_is_refused():
    _, _, opt = parts()
    codauc.CoDA(opt)
    with pytest.raises(RuntimeError, match=r"call coda\.end"):
        opt.end_stage()


def test_workers_with_other_step_sizes_are_told():
    def work(group):
        _, _, opt = parts()
        coda = codauc.CoDA(opt, group)
        opt.param_groups[0]["lr"] = 0.1 / (1 + group.rank)
        coda.begin(STAGE)

    with pytest.raises(ValueError, match="differ in step_sizes"):
        codauc.launch(work, workers=2, simulate=True)


def test_states_of_the_other_optimizer_are_refused():
    _, _, plain = parts()
    _, _, adam = parts(codauc.PPDAdam)
    for one, other in ((plain, adam), (adam, plain)):
        with pytest.raises(ValueError, match="state_dict with adam"):
            one.load_state_dict(other.state_dict())


def test_momentum_for_the_adaptive_step_is_refused():
    model, loss, _ = parts()
    with pytest.raises(ValueError, match="has betas instead"):
        codauc.PPDAdam(model, loss, params=[{"params": model.parameters(), "momentum": 0.5}])


def test_a_state_of_a_layer_frozen_within_a_stage_is_loaded_where_it_is_frozen():
    model, loss, opt = parts()
    step(model, loss, opt)
    model[0].requires_grad_(False)
    opt.zero_grad()
    step(model, loss, opt)
    other, other_loss, again = parts()
    other[0].requires_grad_(False)
    other.load_state_dict(model.state_dict())
    again.load_state_dict(opt.state_dict())
    for parts_ in ((model, loss, opt), (other, other_loss, again)):
        step(*parts_)
        parts_[2].end_stage()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_clipping_follows_weights_that_were_cast():
    model, loss, opt = parts(max_grad_norm=0.1)
    step(model, loss, opt)
    model.double(), loss.double()
    x, y = data()[0]
    step(model, loss, opt, (x.double(), y))
    assert opt.steps == 2
