"""Small training runs whose results are recorded in golden.json, so that changes are noticed.

Only public ways in are used (`python -m codauc`, and what `codauc`, `codauc.data` and
`codauc.models` export), so the file stays as it is when private modules move.

    python tests/golden/runs.py                  # perform all runs, print how long each takes
    python tests/golden/runs.py --record         # and write golden.json anew

Record again only when a change of the results is intended, and say why in the commit.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import platform
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import codauc
from codauc.data import Batches, Stream, even_shards, read_table, skewed_shards
from codauc.models import ConvNet, build

RECORDED = Path(__file__).with_name("golden.json")
RUNS = {}  # name: a function without arguments that performs the run and returns its results

_TIMES = {"seconds", "computing", "communicating", "waiting"}
_RESULTS = ("test_auc", "auc_low", "auc_high", "average_precision", "validation_auc")
_COUNTS = ("steps", "best_step", "train_samples", "validation_samples", "test_samples", "workers")


def golden(function):
    """Add a run under the function's name."""
    RUNS[function.__name__] = function
    return function


def perform(name):
    """The results of one run, as golden.json holds them; on one thread, in an empty directory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums depends on it
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return json.loads(json.dumps(RUNS[name](), allow_nan=False))
    finally:
        torch.set_num_threads(threads)


def machine():
    """What the last bits of the results depend on."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor():
    """The processor's name; virtual machines often hide it, so family and model are added."""
    facts = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    names = ("model name", "cpu family", "model", "stepping")
    found = [f"{name} {facts[name]}" for name in names if name in facts]
    return ", ".join(found) or platform.processor() or platform.machine()


# What is recorded


def weights_of(tensors):
    """The hash of all tensors in the order of their names, and a few numbers of each."""
    digest, numbers = hashlib.sha256(), {}
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(plain.numpy().tobytes())
        flat = plain.double().flatten().numpy()
        numbers[name] = {
            "shape": list(plain.shape),
            "sum": float(flat.sum()),
            "norm": float(np.sqrt((flat * flat).sum())),
            "first": flat[:5].tolist(),
        }
    return {"sha256": digest.hexdigest(), "weights": numbers}


def history_of(records):
    """The records of a run without times."""
    return [{k: v for k, v in record.items() if k not in _TIMES} for record in records]


def ledger_of(ledger):
    """Calls and bytes of one worker, by kind; "dual" are the estimates of alpha."""
    return {
        "rounds": ledger.rounds,
        "dual_estimates": ledger.calls("dual"),
        "bytes_sent": ledger.bytes_sent,
        "bytes_received": ledger.bytes_received,
        "kinds": {
            kind: {"calls": tally.calls, "sent": tally.sent, "received": tally.received}
            for kind, tally in sorted(ledger.tallies.items())
        },
    }


# The command


def write_table(path="payments.csv", rows=900):
    """Numbers of several scales, a category, missing values; 15% positives."""
    rng = np.random.default_rng(7)
    y = rng.random(rows) < 0.15
    age = rng.normal(40, 12, rows) + 9 * y
    amount = np.exp(rng.normal(4, 2, rows) + 1.2 * y)
    country = rng.choice(["DE", "FR", "US"], rows)
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "amount", "country", "fraud"])
        for i in range(rows):
            missing = "" if i % 40 == 0 else f"{amount[i]:.5g}"
            place = "" if i % 70 == 3 else country[i]
            writer.writerow([f"{age[i]:.3f}", missing, place, "yes" if y[i] else "no"])


def command(*arguments):
    """`python -m codauc` in this process, which spares the seconds to import torch."""
    sys.modules.pop("codauc.__main__", None)  # runpy warns of a module that is imported already
    path, argv = list(sys.path), sys.argv
    sys.argv, code = ["codauc", *arguments], None
    try:
        runpy.run_module("codauc", run_name="__main__")
    except SystemExit as end:
        code = end.code
    finally:
        sys.path[:], sys.argv = path, argv
    assert code == 0, f"codauc {' '.join(arguments)}: exit code {code}"


def command_apart(*arguments):
    """`python -m codauc` as a process of its own, with the same source as this one."""
    source = str(Path(codauc.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    line = [sys.executable, "-m", "codauc", *arguments]
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, f"{' '.join(line)}: {ended.returncode}\n{ended.stderr}"


def train(*arguments, run=command):
    """The results of `codauc train`; checkpoints depend on the time, so there are none."""
    fixed = ("--checkpoint-minutes", "0", "--out", "run", "--quiet")
    run("train", *arguments, *fixed)
    folder = Path("run")
    history = history_of(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))
    summary = json.loads((folder / "summary.json").read_text())
    return {
        **weights_of(load_file(folder / "model.safetensors")),
        "history": history,
        "ledger": {
            "rounds": summary["rounds"],
            "bytes_per_worker": summary["bytes_per_worker"],
            "stage_ends": sum(record["stage_end"] for record in history),  # each estimates alpha
        },
        "counts": {name: summary[name] for name in _COUNTS},
        "calibration": summary["calibration"],
        "results": {name: summary[name] for name in _RESULTS},
    }


def train_table(*arguments, run=command):
    """`codauc train` on the small table."""
    write_table()
    return train("payments.csv", "--target", "fraud", "--positive", "yes", *arguments, run=run)


@golden
def default():
    """All defaults but the number of steps."""
    return train_table("--steps", "42", "--evaluations", "6")


@golden
def paper():
    return train_table("--recipe", "paper", "--steps", "8", "--evaluations", "8")


@golden
def one_worker():
    """Plain steps with momentum, no warm start, two stages, a and b estimated first."""
    sgd = ("--optimizer", "sgd", "--lr", "0.2", "--gamma", "100", "--warm-start", "0")
    stages = ("--steps", "16", "--stages", "2", "--factor", "2", "--start", "estimate")
    return train_table("--workers", "1", *sgd, *stages, "--evaluations", "6", "--seed", "3")


@golden
def simulate_three():
    way = ("--simulate", "3", "--sync-every", "8")
    return train_table(*way, "--steps", "35", "--evaluations", "5")


@golden
def workers_two():
    """Two processes that communicate by gloo."""
    way = ("--workers", "2", "--sync-every", "8", "--timeout", "120")
    return train_table(*way, "--steps", "28", "--evaluations", "4", run=command_apart)


@golden
def simulate_two():
    """The same settings as `workers_two`, in one process."""
    way = ("--simulate", "2", "--sync-every", "8", "--timeout", "120")
    return train_table(*way, "--steps", "28", "--evaluations", "4")


@golden
def compress_int8():
    way = ("--simulate", "2", "--sync-every", "4", "--compress", "int8")
    return train_table(*way, "--steps", "28", "--evaluations", "5", "--select", "last")


@golden
def delay():
    way = ("--simulate", "2", "--sync-every", "8", "--delay", "3")
    return train_table(*way, "--steps", "35", "--evaluations", "5", "--select", "last")


@golden
def growing_periods_paper():
    """The paper's recipe on label-skewed shards, with rounds that become rarer."""
    way = ("--simulate", "3", "--sync-every", "growing:2", "--skew", "1")
    return train_table("--recipe", "paper", "--steps", "6", "--evaluations", "8", *way)


@golden
def cross_entropy():
    way = ("--simulate", "2", "--sync-every", "once", "--balance", "0.3")
    return train_table("--recipe", "bce", "--steps", "30", "--evaluations", "5", *way)


@golden
def images_with_batch_norm():
    """Shirts against the rest, two workers; the ConvNet has BatchNorm after each convolution."""
    network = ("--model", "convnet", "--model-arguments", "widths=[4,8]")
    steps = ("--steps", "21", "--batch-size", "32", "--evaluations", "3")
    way = ("--simulate", "2", "--sync-every", "5", "--seed", "1")
    return train("fashion-tiny", "--positive", "6", *network, *steps, *way)


# scikit-learn's estimator


@golden
def estimator():
    X, y = sample(600)
    X[::37, 2] = np.nan
    model = codauc.AUCClassifier(steps=35, random_state=5, recipe_arguments={"evaluations": 5})
    model.fit(X[:400], y[:400])
    return {
        **weights_of(model.module_.state_dict()),
        "history": history_of(model.history_),
        "ledger": {"steps": model.n_iter_, "best_step": model.best_step_},
        "results": {
            "test_auc": model.score(X[400:], y[400:]),
            "validation_auc": model.validation_auc_,
            "log_odds": model.decision_function(X[400:410]).tolist(),
        },
    }


# Loops of one's own


def sample(size, seed=11):
    """Five numbers a row, 20% positives."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(size, 5))
    risk = X[:, 0] + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=size)
    return X, risk > np.quantile(risk, 0.8)


def tensors(size=600):
    """The sample as tensors."""
    X, y = sample(size)
    return torch.from_numpy(X).float(), torch.from_numpy(y)


def network():
    """A small network for the sample."""
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))


def loop(coda, stages, batches, objectives=()):
    """Train; return the history: the loss of each eighth step, and each stage's end."""
    opt, history = coda.opt, []
    loss, step = opt.loss, 0
    for number, stage in enumerate(stages):
        objective = dict(enumerate(objectives)).get(number, loss)
        for x, y in coda.stage(stage, batches):
            opt.zero_grad()
            value = objective(opt.model(x), y)
            value.backward()
            opt.step()
            step += 1
            if step % 8 == 0:
                history.append({"step": step, "loss": value.item()})
        own = {name: getattr(loss, name).tolist() for name in ("a", "b", "alpha", "pos_ratio")}
        history.append({"step": step, "stage_end": True, **own})
    return history


def launched(function, workers, x, y, **arguments):
    """The results of `launch` with a function that returns a model, its history and its ledger."""
    everyone = codauc.launch(function, workers=workers, simulate=True, **arguments)
    model = everyone[0][0]
    found = codauc.evaluate(model, x, y)
    return {
        **weights_of(model.state_dict()),
        "history": [history for _, history, _ in everyone],
        "ledger": [ledger_of(ledger) for _, _, ledger in everyone],
        "results": {"test_auc": found.value, "auc_low": found.low, "auc_high": found.high},
    }


@golden
def loop_ppdsg():
    """Three workers, geometric stages, the paper's step."""
    x, y = tensors()

    def work(group):
        mine = even_shards(400, group.size, seed=0)[group.rank]
        batches = Batches(x[mine], y[mine], batch_size=16, seed=0, worker=group.rank)
        loss = codauc.MinMaxAUCLoss(pos_ratio=0.2)
        opt = codauc.PPDSG(network(), loss, lr=0.5, gamma=500.0, momentum=0.9, weight_decay=1e-3)
        stages = codauc.geometric(lr=0.5, steps=12, stages=3, sync_every=4)
        return opt.model, loop(codauc.CoDA(opt, group), stages, batches), group.ledger

    return launched(work, 3, x[400:], y[400:], seed=2)


@golden
def loop_ppdadam():
    """Two workers, adaptive steps after a warm start with cross-entropy."""
    x, y = tensors()

    def work(group):
        mine = even_shards(400, group.size, seed=0)[group.rank]
        batches = Batches(x[mine], y[mine], batch_size=32, seed=0, worker=group.rank)
        loss = codauc.MinMaxAUCLoss(pos_ratio=0.2, mix=0.25)
        opt = codauc.PPDAdam(network(), loss, lr=1e-2, gamma=50.0, average=False)
        stages = [codauc.Stage(lr=1e-2, steps=16, sync_every=8, estimate_ab=True)]
        stages += codauc.constant(lr=1e-2, steps=40, sync_every=8)
        history = loop(codauc.CoDA(opt, group), stages, batches, [loss.cross_entropy])
        return opt.model, history, group.ledger

    return launched(work, 2, x[400:], y[400:], seed=4)


@golden
def loop_unknown_ratio():
    """The online setting: streams without a length, and p estimated from the labels seen."""
    x, y = tensors()
    samples = list(zip(x[:400], y[:400].long(), strict=True))

    def work(group):
        place = {"worker": group.rank, "workers": group.size}
        batches = Stream(samples, batch_size=16, shuffle=50, seed=1, **place)
        opt = codauc.PPDSG(network(), codauc.MinMaxAUCLoss(), lr=0.5, gamma=500.0)
        stages = codauc.geometric(lr=0.5, steps=12, stages=2, sync_every=6)
        return opt.model, loop(codauc.CoDA(opt, group), stages, batches), group.ledger

    return launched(work, 2, x[400:], y[400:])


@golden
def loop_batch_norm():
    """Images with BatchNorm, skewed shards, the pooled estimate of alpha, bf16, a delay."""
    rng = np.random.default_rng(5)
    y = torch.from_numpy(rng.random(300) < 0.3)
    noise = torch.from_numpy(rng.normal(size=(300, 1, 8, 8))).float()
    x = noise + 0.8 * y[:, None, None, None] * torch.linspace(-1, 1, 8)

    def work(group):
        mine = skewed_shards(y[:200], group.size, concentration=1.0, seed=0)[group.rank]
        batches = Batches(x[mine], y[mine], batch_size=16, seed=0, worker=group.rank)
        loss = codauc.MinMaxAUCLoss(pos_ratio=y[:200].double().mean())
        opt = codauc.PPDSG(ConvNet(widths=(4, 8)), loss, lr=0.3, gamma=200.0, max_grad_norm=1.0)
        coda = codauc.CoDA(opt, group, dual="pooled", compress="bf16", delay=2)
        stages = codauc.geometric(lr=0.3, steps=10, stages=2, sync_every=5)
        return opt.model, loop(coda, stages, batches), group.ledger

    return launched(work, 2, x[200:], y[200:])


@golden
def loop_one_worker_of_a_table():
    """A table read by hand and a model saved and loaded, on a single worker."""
    write_table()
    table = read_table("payments.csv", target="fraud", positive="yes")
    arguments = {**table.encoder.network(), "widths": (16,)}

    def work(group):
        batches = Batches(table.x, table.y, batch_size=32, seed=0)
        model = build("tabular", **arguments)
        loss = codauc.MinMaxAUCLoss(pos_ratio=table.pos_ratio)
        opt = codauc.PPDSG(model, loss, lr=0.5, gamma=500.0)
        stages = codauc.one_shot(lr=0.5, steps=10, stages=2)
        history = loop(codauc.CoDA(opt, group), stages, batches)
        codauc.save_model("table.safetensors", model, table.encoder)
        return codauc.load_model("table.safetensors").model, history, group.ledger

    return launched(work, 1, table.x, table.y)


def laid_out(value, depth=0):
    """JSON with one line for each tensor, record and worker, so that a diff can be read."""
    if depth == 4 or not isinstance(value, dict | list) or not value:
        return json.dumps(value, allow_nan=False)
    inside, end = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        lines = [laid_out(each, depth + 1) for each in value]
        return "[\n" + ",\n".join(inside + line for line in lines) + f"\n{end}]"
    lines = [f"{json.dumps(key)}: {laid_out(each, depth + 1)}" for key, each in value.items()]
    return "{\n" + ",\n".join(inside + line for line in lines) + f"\n{end}}}"


def main():
    """Perform all runs; with --record, write golden.json."""
    parser = argparse.ArgumentParser(description="Perform the golden runs.")
    parser.add_argument("--record", action="store_true", help="write golden.json anew")
    record = parser.parse_args().record
    found = {}
    for name in RUNS:
        began = time.perf_counter()
        found[name] = perform(name)
        print(f"{name:28} {time.perf_counter() - began:5.1f} s", flush=True)
    if record:
        content = {"machine": machine(), "runs": found}
        RECORDED.write_text(laid_out(content) + "\n")


if __name__ == "__main__":
    main()
