"""The golden runs give what golden.json holds: bit for bit where it was recorded, else nearly."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "golden_runs", Path(__file__).with_name("runs.py")
)  # other directories of tests have modules of the same name
runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runs)

RECORDED = json.loads(runs.RECORDED.read_text())

WEIGHTS = 5e-3  # relative to the size of the tensor's entries: 1e-3 with AVX2 in place of AVX-512
VALUES = 1e-3  # of AUC, loss and scores, which are near 1; of larger ones, relative
RELATIVE = {"lr", "drift"}  # small by nature, so compared relative to themselves


@pytest.mark.parametrize("name", runs.RUNS)
def test_run_gives_the_recorded_results(name):
    exact = runs.machine() == RECORDED["machine"]
    wrong = differences(RECORDED["runs"][name], runs.perform(name), exact=exact)
    if wrong:
        how = "bit for bit, as on the machine of the record" if exact else _elsewhere()
        shown = "\n".join(f"  {line}" for line in wrong[:20])
        more = f"\n  ... and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        pytest.fail(
            f"run {name!r} differs from {runs.RECORDED.name} in {len(wrong)} fields ({how}):\n"
            f"{shown}{more}\nIf the change is intended: python tests/golden/runs.py --record",
            pytrace=False,
        )


def test_every_recorded_run_is_performed():
    assert list(RECORDED["runs"]) == list(runs.RUNS)


def test_processes_give_what_simulated_workers_give_bit_for_bit():
    apart, together = (RECORDED["runs"][name] for name in ("workers_two", "simulate_two"))
    assert differences(apart, together, exact=True) == []


def _recorded():
    return {
        "sha256": "a",
        "weights": {"w": {"shape": [4], "sum": 0.0, "norm": 2.0, "first": [1.0, -1.0]}},
        "history": [{"step": 8, "auc": 0.75, "lr": 1e-3}],
        "ledger": {"rounds": 3},
    }


def test_exact_comparison_names_the_field_and_both_values():
    found = _recorded()
    found["history"][0]["auc"] = math.nextafter(0.75, 1)
    assert differences(_recorded(), found, exact=True) == [
        "history[0].auc: recorded 0.75, found 0.7500000000000001"
    ]


def test_exact_comparison_finds_fields_that_are_missing_or_new():
    found = _recorded()
    del found["sha256"]
    found["ledger"]["hidden"] = 1
    assert differences(_recorded(), found, exact=True) == [
        "ledger.hidden: recorded nothing, found 1",
        "sha256: recorded 'a', found nothing",
    ]


def test_tolerant_comparison_allows_rounding_but_no_other_ledger():
    found = _recorded()
    found["sha256"] = "b"
    found["weights"]["w"]["first"][1] -= 4.5e-3
    found["history"][0]["auc"] += 0.9e-3
    assert differences(_recorded(), found, exact=False) == []
    found["weights"]["w"]["first"][1] -= 1e-3
    found["history"][0]["auc"] += 0.2e-3
    found["history"][0]["lr"] = 1.01e-3
    found["ledger"]["rounds"] = 4
    names = [line.split(":")[0] for line in differences(_recorded(), found, exact=False)]
    assert names == ["history[0].auc", "history[0].lr", "ledger.rounds", "weights.w.first[1]"]


def differences(recorded, found, *, exact):
    """Lines that say which field differs, and both values."""
    old, new = dict(_leaves(recorded)), dict(_leaves(found))
    nothing = object()
    wrong = []
    for path in sorted(old.keys() | new.keys(), key=str):
        mine, other = old.get(path, nothing), new.get(path, nothing)
        if mine is nothing or other is nothing:
            equal = False
        elif exact:
            equal = mine == other and type(mine) is type(other)
        else:
            equal = _near(path, mine, other, recorded)
        if not equal:
            told = ("nothing" if value is nothing else repr(value) for value in (mine, other))
            wrong.append("{}: recorded {}, found {}".format(_shown(path), *told))
    return wrong


def _near(path, mine, other, recorded):
    if path[0] == "sha256":
        return True
    if not isinstance(mine, float) or not isinstance(other, float) or path[0] == "ledger":
        return mine == other
    if path[0] == "weights":
        return abs(mine - other) <= WEIGHTS * max(abs(mine), _size(path, recorded))
    least = 0.0 if path[-1] in RELATIVE else 1.0
    return abs(mine - other) <= VALUES * max(abs(mine), least)


def _size(path, recorded):
    """Of an entry the tensor's root mean square, of a sum the tensor's norm."""
    tensor = recorded["weights"][path[1]]
    entries = math.prod(tensor["shape"]) if path[2] == "first" else 1
    return tensor["norm"] / math.sqrt(entries)


def _leaves(value, path=()):
    """All values that are neither dict nor list, with the way to them; empty ones count, too."""
    if isinstance(value, dict | list) and value:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inside:
            yield from _leaves(each, (*path, key))
    else:
        yield path, value


def _shown(path):
    """The way to a field, as it is written in Python or jq.

    >>> _shown(("history", 3, "auc"))
    'history[3].auc'
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _elsewhere():
    here, there = runs.machine(), RECORDED["machine"]
    other = [f"{key} {here[key]}, not {there[key]}" for key in here if here[key] != there[key]]
    return f"within a tolerance, as this is {'; '.join(other)}"
