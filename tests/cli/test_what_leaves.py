"""Claims about what leaves a site: docs/sites.md has the list, and this finds what is not in it.

Once by reading the source: every call that can send something is in a function of the list. Once by
recording runs: every message is of such a function and of the size that the list says.
"""

import ast
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import codauc
from codauc.workers.simulated import SimulatedGroup

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/codauc"
PAGE = (ROOT / "docs/sites.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|.*\|.*\| (\w+) \| (`.*`) \|$", re.M)
LISTED = {
    path: size
    for size, paths in ROW.findall(PAGE.partition("## What leaves")[2].partition("\n## ")[0])
    for path in re.findall(r"`([^`]+)`", paths)
}
# What is no part of `codauc train`, and sends what its documentation says.
ASKED_FOR = ("integrations/", "reproduce/", "metrics/evaluation", "algorithm/unknown_ratio")
SENDING = {
    "together",
    "gather_bytes",
    "compare",
    "gathered",
    "from_one",
    "raise_everywhere",
    "Call",
}
TRANSPARENT = ("workers/", "training/shared_scores.gathered")  # their callers say what is sent


def listed(origin):
    """The size that the list gives to what a function sends; None if it is not there."""
    parts = origin.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((LISTED[name] for name in names if name in LISTED), None)


def senders():
    """Every function outside the workers' room in which a message is sent, by its path and name."""
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).with_suffix("").as_posix()
        if not place.startswith("workers/"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield from (f"{place}.{name}" for name in calls(tree, ""))


def calls(node, owner):
    for child in ast.iter_child_nodes(node):
        name = owner
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{owner}.{child.name}" if owner else child.name
        if isinstance(child, ast.Call) and sends(child):
            yield owner
        yield from calls(child, name)


def sends(call):
    if isinstance(call.func, ast.Name):
        return call.func.id in SENDING
    collective = getattr(call.func, "attr", "") in ("sum_", "broadcast_", "gather", "exchange")
    return collective and len(call.args) > 1  # `gather` of rows takes one


def test_every_function_that_sends_something_is_in_the_list():
    found = {name for name in senders() if not name.startswith(ASKED_FOR)}
    found -= {name for name in found if name.startswith(TRANSPARENT)}
    assert len(found) > 20
    assert not {name for name in found if listed(name.replace(".<locals>", "")) is None}


def test_the_list_names_functions_that_send_something():
    known = set(senders())
    for path in LISTED:
        plain = path.replace(".<locals>", "")
        assert any(f"{name}.".startswith(f"{plain}.") for name in known), path


@pytest.fixture
def messages(monkeypatch):
    """What the runs of a test send: kind, function, shape and bytes of each message."""
    sent, start = [], SimulatedGroup.start

    def recorded(self, call):
        frame = sys._getframe(1)
        while (origin := origin_of(frame)) is None:
            frame = frame.f_back
        sent.append((call.kind, origin, tuple(call.tensor.shape), call.tensor.nbytes))
        return start(self, call)

    monkeypatch.setattr(SimulatedGroup, "start", recorded)
    return sent


def origin_of(frame):
    path = frame.f_code.co_filename
    if not path.startswith(str(SOURCE)):
        return None
    place = Path(path).relative_to(SOURCE).with_suffix("").as_posix()
    name = f"{place}.{frame.f_code.co_qualname}".replace(".<locals>", "").replace(".<lambda>", "")
    return None if name.startswith(TRANSPARENT) else name


ROWS, SITES = 240, 3


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    lines = ["age,dose,kind,site,sick"]
    for i in range(ROWS):
        sick = int(rng.random() < (0.2, 0.5, 0.7)[i % SITES])
        kind = "abc"[rng.integers(3)]
        lines.append(
            f"{rng.normal(40 + 5 * sick, 9):.1f},{rng.normal():.3f},{kind},s{i % 3},{sick}"
        )
    path = tmp_path_factory.mktemp("sites") / "patients.csv"
    path.write_text("\n".join(lines))
    return path


QUICK = {"target": "sick", "steps": 8, "sync_every": 4, "evaluations": 2, "quiet": True}
PLAIN = {"silo": "site"}
COUNTS = ("score_counts", "CountedScores", "least_samples")
KINDS = {
    "by site": PLAIN,
    "corrected": {**PLAIN, "correct": "scaffold"},
    "compressed": {**PLAIN, "compress": "int8", "delay": 1},
    "by measured times": {**PLAIN, "sync_every": "auto", "steps": 40},
    "steady": {**PLAIN, "select": "steady", "model": "tabular"},
    "the paper's": {**PLAIN, "recipe": "paper"},
    "a test site": {**PLAIN, "test_site": "s1", "threshold": "f1"},
    "in time": {**PLAIN, "time_budget": 1000.0, "steps": None},
    "counts": {**PLAIN, "scores": "counts", "select": "steady", "model": "tabular"},
    "least": {**PLAIN, "least_samples": 4},
}


def largest(size, parameters):
    """Bytes that a message of this size has at most."""
    held = 8 * ROWS  # of validation or test rows: eight bytes for each
    known = {"number": 16 * 8, "text": 8000, "rows": held, "sites": 400 * SITES}
    known |= {"columns": 6 * 30_000, "bins": 3 * 2 * 4096 * 8, "model": 24 * parameters + 20_000}
    return known[size]


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_of_a_run_is_in_the_list_and_no_larger(kind, source, messages, tmp_path):
    how = {**QUICK, **KINDS[kind]}
    summary = codauc.train(source, tmp_path / "run", **{k: v for k, v in how.items() if v})
    parameters = summary["model"]["parameters"]
    assert len({origin for _, origin, *_ in messages}) > 10
    for which, origin, shape, size in messages:
        known = listed(origin)
        assert known is not None, f"{origin} sends {shape} for {which!r}"
        assert size <= largest(known, parameters), (origin, shape, known)


def test_the_interval_of_the_auc_includes_what_counts_leave_open(source, tmp_path):
    found = codauc.train(source, tmp_path / "run", **QUICK, **KINDS["least"])
    assert found["auc_bound"] > 0.01
    assert found["auc_low"] <= max(0.0, found["test_auc"] - found["auc_bound"])
    assert found["auc_high"] >= min(1.0, found["test_auc"] + found["auc_bound"])


def test_with_counts_no_row_of_a_site_is_told_of(source, messages, tmp_path):
    codauc.train(source, tmp_path / "run", **QUICK, **KINDS["counts"])
    origins = {origin for _, origin, *_ in messages}
    assert not {origin for origin in origins if "RowScores" in origin or "importance" in origin}
    evaluated = [shape for kind, _, shape, _ in messages if kind == "evaluate"]
    assert {(2, 4096), (3,)} <= set(evaluated)


def test_with_least_samples_columns_have_no_range_and_no_rare_value(source, tmp_path, monkeypatch):
    from codauc.data.tables import reader

    told, of_all = [], reader.of_all

    def seen(summary, group):
        told.append(json.loads(summary.to_bytes()))
        return of_all(summary, group)

    monkeypatch.setattr(reader, "of_all", seen)
    text = source.read_text().replace("a,s1,", "rare,s1,", 3)
    (tmp_path / "p.csv").write_text(text)
    codauc.train(tmp_path / "p.csv", tmp_path / "run", **QUICK, **KINDS["least"])
    first = [each for each in told if each["categories"]]
    assert len(first) == SITES
    for each in first:
        assert set(each["traits"]["low"]) == {float("inf")}
        assert not each["traits"]["hashes"]
        assert all(count >= 4 for _, count in each["categories"][0])
        assert "rare" not in dict(each["categories"][0])
    assert all(count == 0 or count >= 4 for each in told for _, count in each["targets"])
