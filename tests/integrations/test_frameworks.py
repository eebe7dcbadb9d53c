"""Loops of other libraries drive the optimizers and CoDA; each library is the real one."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import codauc

ROWS, BATCH, EPOCHS = 96, 16, 3
STEPS = EPOCHS * ROWS // BATCH
STAGE = codauc.Stage(lr=0.05, steps=STEPS, sync_every=4, dual_samples=64)


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 1).long())


def loader():
    return DataLoader(data(), batch_size=BATCH)


def parts(kind=codauc.PPDAdam):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 1))
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.2)
    return model, loss, kind(model, loss, lr=0.05, gamma=5.0)


def reference(kind):
    """The weights of the loop over `coda.stage(...)`, with the same order of data."""
    model, loss, opt = parts(kind)
    coda = codauc.CoDA(opt)
    for x, y in coda.stage(STAGE, loader()):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
    return {**model.state_dict(), **loss.state_dict()}


def assert_equal_to_the_loop(model, loss, kind):
    found, expected = {**model.state_dict(), **loss.state_dict()}, reference(kind)
    for name, tensor in expected.items():
        assert (found[name].double() - tensor.double()).abs().max() < 1e-6, name


KINDS = pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])


@KINDS
def test_coda_in_a_plain_loop(kind):
    model, loss, opt = parts(kind)
    coda = codauc.CoDA(opt)
    coda.begin(STAGE)
    for _ in range(EPOCHS):
        for x, y in loader():
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
    coda.end(loader())
    assert_equal_to_the_loop(model, loss, kind)


@KINDS
def test_coda_in_a_plain_loop_ends_by_itself(kind):
    model, loss, opt = parts(kind)
    coda = codauc.CoDA(opt)
    coda.begin(STAGE, loader())
    for _ in range(EPOCHS):
        assert coda.stages_done == 0
        for x, y in loader():
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
    assert coda.stages_done == 1
    assert_equal_to_the_loop(model, loss, kind)


@pytest.fixture(scope="module")
def accelerate():
    return pytest.importorskip("accelerate")


@KINDS
def test_coda_in_accelerate(accelerate, kind):
    model, loss, opt = parts(kind)
    accelerator = accelerate.Accelerator(cpu=True)
    coda = codauc.CoDA(opt)
    prepared, optimizer, batches = accelerator.prepare(model, opt, loader())
    coda.begin(STAGE, loader())
    for _ in range(EPOCHS):
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(loss(prepared(x), y))
            optimizer.step()
    assert coda.stages_done == 1
    assert_equal_to_the_loop(model, loss, kind)


@KINDS
def test_accelerate_saves_and_loads_the_whole_state(accelerate, kind, tmp_path):
    def trained(save_at=None, load=False):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        model, loss, opt = parts(kind)
        accelerator = accelerate.Accelerator(cpu=True)
        prepared, optimizer, batches = accelerator.prepare(model, opt, loader())
        if load:
            accelerator.load_state(tmp_path / "state")
        for step, (x, y) in enumerate(batches):
            if load and step < 3:
                continue
            optimizer.zero_grad()
            accelerator.backward(loss(prepared(x), y))
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            if step + 1 == save_at:
                accelerator.save_state(tmp_path / "state")
        return {**model.state_dict(), **loss.state_dict()}

    whole = trained(save_at=3)
    again = trained(load=True)
    for name, tensor in whole.items():
        assert torch.equal(again[name], tensor), name


@pytest.fixture(scope="module")
def lightning():
    # Where torchvision does not fit torch, importing Lightning fails unless these are defined.
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("lightning")


def lightning_module(lightning, kind, drive):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss, self.opt = parts(kind)

        def configure_optimizers(self):
            return self.opt

        def on_fit_start(self):
            if drive:
                self.coda = codauc.CoDA(self.opt)
                self.coda.begin(STAGE, loader())

        def training_step(self, batch, _):
            x, y = batch
            return self.loss(self.net(x), y)

    return Module()


def fit(lightning, module, path, epochs=EPOCHS, checkpoint=None):
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", default_root_dir=path, **options
    )
    trainer.fit(module, loader(), ckpt_path=checkpoint)
    return trainer


@KINDS
@pytest.mark.filterwarnings("ignore")
def test_coda_in_a_lightning_fit_counts_steps_across_epochs(lightning, kind, tmp_path):
    module = lightning_module(lightning, kind, drive=True)
    fit(lightning, module, tmp_path)
    assert module.coda.stages_done == 1
    assert_equal_to_the_loop(module.net, module.loss, kind)


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_checkpoint_continues_the_optimizer(lightning, tmp_path):
    whole = lightning_module(lightning, codauc.PPDAdam, drive=False)
    fit(lightning, whole, tmp_path)
    half = lightning_module(lightning, codauc.PPDAdam, drive=False)
    saved = tmp_path / "half.ckpt"
    fit(lightning, half, tmp_path, epochs=1).save_checkpoint(saved)
    rest = lightning_module(lightning, codauc.PPDAdam, drive=False)
    fit(lightning, rest, tmp_path, checkpoint=saved)
    assert rest.opt.steps == STEPS
    for name, tensor in whole.state_dict().items():
        assert torch.equal(rest.state_dict()[name], tensor), name


@KINDS
def test_coda_in_a_skorch_net(kind):
    skorch = pytest.importorskip("skorch")

    class Net(skorch.NeuralNet):
        def initialize_optimizer(self, *args, **named):
            self.optimizer_ = kind(self.module_, self.criterion_, lr=0.05, gamma=5.0)
            self.coda_ = codauc.CoDA(self.optimizer_)
            self.coda_.begin(STAGE, loader())
            return self

    model, loss, _ = parts(kind)
    x, y = data().tensors
    net = Net(
        model, criterion=loss, max_epochs=EPOCHS, batch_size=BATCH, train_split=None, verbose=0
    )
    net.fit(x.numpy(), y.numpy())
    assert net.coda_.stages_done == 1
    assert_equal_to_the_loop(net.module_, net.criterion_, kind)
