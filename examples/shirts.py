"""Shirts against the rest (10% positive) on Fashion-MNIST's sample, by one worker or by many.

python examples/shirts.py                                  one worker
python examples/shirts.py --workers 4                      four processes of this machine
python examples/shirts.py --workers 16 --simulate          sixteen workers in this process
torchrun --nproc-per-node=4 examples/shirts.py             what torchrun starts, on any machines
"""

import argparse
from functools import partial

import codauc
from codauc.data import Batches, binarise, even_shards, fashion_tiny
from codauc.models import ConvNet


def train(group, sync_every):
    """Runs once in every worker."""
    images = fashion_tiny()
    labels = binarise(images.train_y, positive=[6])
    mine = even_shards(len(labels), group.size, seed=0)[group.rank]
    batches = Batches(images.train_x[mine], labels[mine], batch_size=32, seed=0, worker=group.rank)
    model = ConvNet(widths=(8, 16, 32))
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.1)
    opt = codauc.PPDSG(model, loss, lr=0.5, gamma=500.0, momentum=0.9)
    coda = codauc.CoDA(opt, group)
    for stage in codauc.geometric(lr=0.5, steps=60, stages=2, sync_every=sync_every):
        for x, y in coda.stage(stage, batches):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
    # Every worker scores its own part of the test set; all get the AUC of the whole.
    part = slice(group.rank, None, group.size)
    test_x, test_y = images.test_x[part], images.test_y[part] == 6
    result = codauc.evaluate(model, test_x, test_y, group=group)
    if group.rank == 0:
        ledger = group.ledger.record()
        interval = f"{result.low:.3f}-{result.high:.3f}"
        print(f"{group.size} workers: test AUC {result.value:.4f} ({interval})")
        print(f"{ledger['rounds']} rounds, {ledger['bytes_sent'] / 1e6:.2f} MB sent by worker 0")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--sync-every", type=int, default=8)
    options = parser.parse_args()
    work = partial(train, sync_every=options.sync_every)
    codauc.launch(work, workers=options.workers, simulate=options.simulate)
