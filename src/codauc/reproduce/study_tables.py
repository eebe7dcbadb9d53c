"""A study's numbers: rows for the terminal, the page and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from codauc._internal.formats import digits
from codauc.algorithm import theory
from codauc.report.rendering import CardTable
from codauc.reproduce.figure_definitions import HEADLINE, points_of
from codauc.reproduce.findings import Finding
from codauc.reproduce.measured_constants import StageConstants
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.reproduce.study_results import LINKS, Results, modelled


class StudyTable(NamedTuple):
    """A header and its rows; a title if it is on the page, a note on how to read it."""

    header: list[str]
    rows: list[list[Any]]
    title: str = ""
    note: str = ""

    def card(self) -> CardTable:
        """For people."""
        return CardTable(self.header, [[_text(value) for value in row] for row in self.rows])

    def csv(self) -> str:
        """For programs."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *self.rows])
        return buffer.getvalue()


def findings(found: Sequence[Finding]) -> StudyTable:
    """What is claimed, and whether it holds."""
    rows: list[list[Any]] = [[f.claim, f.expected, f.measured, f.verdict] for f in found]
    return StudyTable(["finding", "expected", "measured", "verdict"], rows)


def curves(results: Results) -> StudyTable:
    """Every evaluation of every run."""
    rows = [
        [
            *(p.name, p.objective, p.workers, p.sync_every, int(p.growing), seed),
            *(s.step, s.rounds, s.bytes, s.auc, s.auc_low, s.auc_high, round(s.seconds, 6)),
        ]
        for p, runs in results.evaluations.items()
        for seed, found in runs.items()
        for s in found
    ]
    header = ["point", "objective", "K", "I", "growing", "seed", "iteration", "rounds", "bytes"]
    return StudyTable([*header, "auc", "auc_low", "auc_high", "modelled_seconds"], rows)


def ends(results: Results) -> StudyTable:
    """Every run's final AUC, its target, and what it needed to reach it."""
    rows: list[list[Any]] = []
    for point, runs in results.evaluations.items():
        for seed, found in runs.items():
            last, hit = found[-1], results.reached(point, seed)
            cost: list[Any] = ["", "", "", ""]
            if hit is not None:
                cost = [hit.step, hit.rounds, hit.bytes, round(hit.seconds, 3)]
            rows.append(
                [
                    *(point.name, point.workers, point.sync_every, seed, last.auc, last.step),
                    *(last.rounds, last.bytes, results.target(seed) or "", *cost),
                ]
            )
    header = ["point", "K", "I", "seed", "final_auc", "iterations", "rounds", "bytes", "target"]
    needed = ["iterations", "rounds", "bytes", "modelled_seconds"]
    return StudyTable([*header, *(f"{name}_to_target" for name in needed)], rows, "Every run")


def tuned(
    tried: Mapping[str, Mapping[Tuned, float]], chosen: Mapping[str, Tuned], seeds: int
) -> StudyTable:
    """The AUC of each (T_0, eta_0) on what was held out, with one worker."""
    rows = [
        [
            *(name, each.steps, f"{each.lr:g}", auc or "diverged"),
            "chosen" if chosen.get(name) == each else "",
        ]
        for name, found in tried.items()
        for each, auc in sorted(found.items())
    ]
    return StudyTable(
        ["objective", "T_0", "eta_0", "held_out_auc", "chosen"],
        rows,
        "Tuning: T_0 and eta_0 for one worker",
        f"AUC on a tenth of the training data, which these runs did not train on; "
        f"{f'the mean over {seeds} seeds' if seeds > 1 else 'seed 0'}. The grid is the paper's, "
        "extended by 3 where its best was at the edge.",
    )


def counts(study: Study, results: Results) -> StudyTable:
    """Table 1: what was measured to the target, beside the theory's dependence on K."""
    rows: list[list[Any]] = []
    for point in points_of(study, "table1"):
        if point not in results:
            continue
        method = _method(point)
        steps, rounds = (results.needed(point, what) for what in ("step", "rounds"))
        fewer = results.times_fewer(point)
        rows.append(
            [
                method,
                point.workers,
                point.sync_every if point.workers > 1 else "-",
                "not reached" if steps is None else steps.text(",.0f"),
                "-" if fewer is None else fewer.text(".2f"),
                f"{_speedup(method, point.workers):g}",
                "-" if point.workers == 1 or rounds is None else rounds.text(",.0f"),
                _ORDERS[method],
            ]
        )
    header = ["method", "K", "I", "iterations", "times fewer than K=1", "theory: times fewer"]
    return StudyTable(
        [*header, "rounds", "theory: rounds"],
        rows,
        "Table 1: iterations and rounds to the target",
        "Mean over seeds with its interval; the theory's orders are without constants.",
    )


def constants(found: Sequence[StageConstants]) -> StudyTable:
    """What Table 1's orders leave out, as measured, beside the theory's."""
    rows: list[list[Any]] = [
        [
            *(each.workers, each.sync_every, each.stage, f"{each.lr:g}"),
            *(_three(each.variance), _three(each.dual_variance), _three(each.gradient)),
            *(_three(each.drift), _three(each.bound), _three(each.printed_bound)),
            *(_three(each.theorem), _three(each.balance)),
        ]
        for each in found
    ]
    header = ["K", "I", "stage", "eta", "gradient variance", "variance in alpha"]
    header += ["largest gradient", "drift", "Lemma 6, largest gradient", "Lemma 6, theory's B_v"]
    return StudyTable(
        [*header, "Theorem 1's I", "I by measured constants"],
        rows,
        "The constants behind Table 1",
        "Gradients are of batches. The drift is the root mean square of |v_bar - v^k| before a "
        "round; Lemma 6 bounds it by 2 eta (I-1) B_v, once with the largest gradient seen for B_v, "
        "once with the theory's B_v for the largest gradient of a score. Theorem 1 takes "
        "I = max(1, 1/sqrt(K eta)); by measured constants I is where the square of the drift is "
        "eta variance / K. Runs of a quarter of the steps, seed 0.",
    )


def _three(value: float) -> str:
    return digits(value, 3)


def links(results: Results, step_seconds: float) -> StudyTable:
    """Modelled seconds to the target by link, the mean over seeds: which I is the soonest where."""
    points = [p for p in (StudyPoint(1), *HEADLINE) if p in results]
    rows = []
    for link in LINKS if len(points) > 1 else ():
        row: list[Any] = [link.text]
        for point in points:
            hits = results.hits(point)
            times = [modelled(h, point.workers, step_seconds, link) for h in hits if h is not None]
            row.append(f"{sum(times) / len(times):,.1f}" if len(times) == len(hits) > 0 else "-")
        rows.append(row)
    return StudyTable(
        ["link", *(HEADLINE.get(p, p.label) for p in points)],
        rows,
        "Modelled seconds to the target, by link",
        "From the counts at the target; the mean over seeds.",
    )


def _method(point: StudyPoint) -> str:
    if point.workers == 1:
        return "PPD-SG"
    return "NP-PPD-SG" if point.sync_every == 1 else "CoDA"


_ORDERS = {"PPD-SG": "-", "NP-PPD-SG": "O(1/(K mu^2 eps))", "CoDA": "O(1/(mu^1.5 eps^0.5))"}


def _speedup(method: str, workers: int) -> float:
    """By how many times Table 1 has fewer iterations than a single worker."""
    orders = theory.table1(workers=workers, mu=1e-3, epsilon=1e-3)
    return orders["PPD-SG"].iterations / orders[method].iterations


def _text(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) and 0.01 < value < 1 else str(value)
