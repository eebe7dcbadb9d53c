"""Bad input gets a ValueError that says what was got, expected and what to do; nothing changes."""

import copy
import math

import pytest
import torch
from torch import nn

import codauc
from codauc.data import Batches, even_shards

NAN, INF = math.nan, math.inf


def make():
    torch.manual_seed(0)
    model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss()
    return model, loss, codauc.PPDSG(model, loss, lr=0.1)


ZEROS = torch.zeros(4)
LABELS = torch.tensor([0, 1, 0, 1])

BATCHES = {
    "NaN logits": (
        torch.tensor([0, NAN, 0, 0]),
        LABELS,
        "1 NaN and 0 infinite of 4.*lower the step",
    ),
    "infinite logits": (torch.tensor([0, INF, -INF, 0]), LABELS, r"2 infinite of 4.*at \[1\]"),
    "labels 0/1/2": (ZEROS, torch.tensor([0, 1, 2, 0]), r"\[0, 1, 2\].*0 and 1.*one against"),
    "labels -1/0/1": (ZEROS, torch.tensor([0, 1, -1, 0]), r"\[-1, 0, 1\]"),
    "labels 1/2": (ZEROS, torch.tensor([1, 2, 1, 2]), r"\[1, 2\]"),
    "soft labels": (ZEROS, torch.tensor([0.1, 0.9, 0, 1]), "0.1"),
    "NaN labels": (ZEROS, torch.tensor([0, 1, NAN, 1]), "nan"),
    "empty batch": (torch.zeros(0), torch.zeros(0), r"\[0\].*at least one.*skip empty"),
    "scalar": (torch.zeros(()), torch.zeros(()), r"\[\].*expected \[N\]"),
    "wrong length": (ZEROS, torch.tensor([0, 1]), r"\[4\] and labels of shape \[2\]"),
    "two columns": (torch.zeros(4, 2), LABELS, r"\[4, 2\].*tasks=C"),
    "row of labels": (ZEROS, LABELS[None], r"\[1, 4\]"),
    "integer logits": (LABELS, LABELS, "int64.*floating point"),
    "labels in a list": (ZEROS, [0, 1, 0, 1], "list.*expected a tensor"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_bad_batch_is_refused_and_leaves_the_state_unchanged(name):
    logits, labels, message = BATCHES[name]
    model, loss, opt = make()
    before = copy.deepcopy((model.state_dict(), loss.state_dict(), opt.state_dict()))
    with pytest.raises(ValueError, match=message):
        loss(logits, labels)
    after = (model.state_dict(), loss.state_dict(), opt.state_dict())
    assert str(before) == str(after)


def launch_skewed(**options):
    """Two workers, the second of which has no data."""

    def work(group):
        model, loss, opt = make()
        coda = codauc.CoDA(opt, group)
        data = [] if group.rank else [(torch.zeros(4, 3), LABELS)]
        for x, y in coda.stage(codauc.Stage(lr=0.1, steps=2), data):
            loss(model(x), y).backward()
            opt.step()

    codauc.launch(work, workers=2, simulate=True)


CALLS = {
    "pos_ratio 0": (lambda: codauc.MinMaxAUCLoss(pos_ratio=0), "pos_ratio=0: .*> 0 and < 1"),
    "pos_ratio 1": (lambda: codauc.MinMaxAUCLoss(pos_ratio=1), "pos_ratio=1: .*estimate it"),
    "pos_ratio NaN": (lambda: codauc.MinMaxAUCLoss(pos_ratio=NAN), "pos_ratio=nan"),
    "pos_ratio text": (lambda: codauc.MinMaxAUCLoss(pos_ratio="0.1"), "pos_ratio"),
    "pos_ratio of none": (lambda: codauc.MinMaxAUCLoss(pos_ratio=[]), "one number per task"),
    "tasks 0": (lambda: codauc.MinMaxAUCLoss(tasks=0), "tasks=0.*>= 1"),
    "tasks and ratios": (lambda: codauc.MinMaxAUCLoss([0.1, 0.2], tasks=3), "2 positive ratios"),
    "margin": (lambda: codauc.MinMaxAUCLoss(0.1, margin=-1), "margin=-1"),
    "link": (lambda: codauc.MinMaxAUCLoss(0.1, link="logit"), "link='logit'"),
    "gamma -1": (lambda: codauc.PPDSG(*make()[:2], gamma=-1), "gamma=-1: .*> 0.*math.inf"),
    "gamma 0": (lambda: codauc.PPDSG(*make()[:2], gamma=0), "gamma=0"),
    "lr 0": (lambda: codauc.PPDSG(*make()[:2], lr=0), "lr=0: .*> 0"),
    "lr inf": (lambda: codauc.PPDSG(*make()[:2], lr=INF), "lr=inf"),
    "sync_every 0": (
        lambda: codauc.Stage(lr=0.1, steps=1, sync_every=0),
        "sync_every=0: expected an integer >= 1; use 1 to average after every step",
    ),
    "sync_every 1.5": (lambda: codauc.Stage(lr=0.1, steps=1, sync_every=1.5), "sync_every=1.5"),
    "steps 0": (lambda: codauc.Stage(lr=0.1, steps=0), "steps=0"),
    "stages 0": (lambda: codauc.geometric(lr=0.1, steps=1, stages=0), "stages=0"),
    "workers 0": (lambda: codauc.launch(len, workers=0), "workers=0"),
    "workers lambda": (lambda: codauc.launch(lambda g: 1, workers=2), "top of a module"),
    "machines": (lambda: codauc.launch(len, workers=4, machines=2), "torchrun --nnodes"),
    "odd machines": (
        lambda: codauc.launch(len, workers=5, machines=2, simulate=True),
        "machines=2 with workers=5",
    ),
    "no launcher": (lambda: codauc.distributed(), "start the program with torchrun"),
    "timeout": (lambda: codauc.distributed(timeout=0), "timeout=0"),
    "compress": (lambda: codauc.CoDA(make()[2], compress="int-8"), "did you mean 'int8'"),
    "delay": (lambda: codauc.CoDA(make()[2], delay=-1), "delay=-1"),
    "long delay": (
        lambda: codauc.CoDA(make()[2], delay=4).stage(codauc.Stage(0.1, 10, 4), []),
        "delay=4 with sync_every=4",
    ),
    "group": (lambda: codauc.CoDA(make()[2], "all"), "group: got str"),
    "settings": (lambda: codauc.CoDA(make()[2], settings=["a"]), "settings: got list"),
    "process group": (lambda: codauc.distributed("world"), "process_group: got str"),
    "endless timeout": (lambda: codauc.distributed(timeout=float("inf")), "> 0 and < 1e"),
    "no function": (lambda: codauc.launch(None, workers=2), "function=None"),
    "simulate": (lambda: codauc.launch(len, simulate="no"), "simulate='no'"),
    "local 0": (lambda: codauc.Stage(0.1, 10, 4, local_every=0), "local_every=0"),
    "local long": (lambda: codauc.Stage(0.1, 10, 4, local_every=4), "expected less"),
    "unknown": (lambda: codauc.CoDA(make()[2], averaging=1), "unknown argument 'averaging'"),
    "dual": (lambda: codauc.CoDA(make()[2], dual="poled"), "did you mean 'pooled'"),
    "opt": (lambda: codauc.CoDA(torch.optim.SGD([torch.zeros(1)])), "expected a codauc.PPDSG"),
    "stage": (lambda: codauc.CoDA(make()[2]).stage({"lr": 1}, []), "expected a codauc.Stage"),
    "no data": (launch_skewed, "worker 1 of 2: .*no data"),
    "no shard": (lambda: even_shards(3, 4, 0), "at most 3 workers"),
    "no samples": (lambda: Batches(torch.zeros(0, 2), torch.zeros(0), 4), "0 samples"),
    "auc of one class": (lambda: codauc.auc([0.1, 0.2], [1, 1]), "class"),
    "auc of NaN": (lambda: codauc.auc([0.1, NAN], [0, 1]), "NaN"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_are_refused_with_what_to_do(name):
    call, message = CALLS[name]
    with pytest.raises(ValueError, match=message):
        call()
