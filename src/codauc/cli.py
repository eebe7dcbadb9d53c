"""The terminal's way in."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from codauc.config import DemoSettings
from codauc.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, 2 for bad input, or 130 after Ctrl-C."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    command, quiet = options.pop("command"), options.pop("quiet", False)
    if command is None:
        parser.print_help()
        return 0
    try:
        from codauc.demo import run, set_up  # torch: not for help, nor for a wrong option

        set_up()
        run(DemoSettings(**{**options, "sync_every": tuple(options["sync_every"])}), quiet=quiet)
    except KeyboardInterrupt:
        print("Interrupted; what was finished is kept.", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"codauc {command}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="codauc",
        description="Train deep networks for the largest AUC, with few communications.",
    )
    parser.add_argument("--version", action="version", version=f"codauc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train four ways on real images and compare",
        description="Train a small network on Fashion-MNIST's sample with PPD-SG, NP-PPD-SG and "
        "CoDA on simulated workers; print a table and draw AUC against iterations and rounds.",
        epilog="example: codauc demo --workers 8 --sync-every 4 32 --out runs/eight",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, default = demo.add_argument, DemoSettings()
    add("--workers", type=int, metavar="K", default=default.workers, help="simulated workers")
    add(
        "--sync-every",
        type=int,
        nargs="+",
        metavar="I",
        default=list(default.sync_every),
        help="CoDA's steps between two rounds; one run for each",
    )
    add("--lr", type=float, default=default.lr, help="first stage's step size")
    add("--steps", type=int, metavar="T0", default=default.steps, help="first stage's steps")
    add("--stages", type=int, metavar="S", default=default.stages, help="number of stages")
    add("--gamma", type=float, default=default.gamma, help="weight of the pull to the anchor")
    add("--seed", type=int, default=default.seed, help="of data, shards and weights")
    add("--out", type=Path, metavar="DIR", default=default.out, help="where results go")
    add("--quiet", action="store_true", help="no progress bar")
    return parser
