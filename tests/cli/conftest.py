"""A table as people have it, and the command in this process."""

import csv

import numpy as np
import pytest

from codauc.cli.main import main


def write_table(path, rows=1500, seed=0, *, labels=True):
    """Numbers of several scales, a category, missing values; 12% positives that can be found."""
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < 0.12
    age = rng.normal(40, 12, rows) + 9 * y
    amount = np.exp(rng.normal(4, 2, rows) + 1.2 * y)
    country = rng.choice(["DE", "FR", "US"], rows)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "amount", "country", *(["fraud"] if labels else [])])
        for i in range(rows):
            row = [f"{age[i]:.3f}", "" if i % 50 == 0 else f"{amount[i]:.5g}", country[i]]
            writer.writerow([*row, *(["yes" if y[i] else "no"] if labels else [])])
    return path


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("data") / "payments.csv")


@pytest.fixture
def codauc(capsys):
    """Run the command here; give its exit code, output and errors."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:  # of argparse
            code = left.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def run(table, tmp_path_factory):
    """A finished run of 84 steps."""
    out = tmp_path_factory.mktemp("runs") / "first"
    code = main([str(a) for a in ("train", table, *QUICK, "--out", out, "--quiet")])
    assert code == 0
    return out


QUICK = ("--target", "fraud", "--positive", "yes", "--steps", "84")
