"""What the demonstration leaves behind: a table, numbers, weights, a picture and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup
from safetensors.torch import save_file
from torch import Tensor

from codauc._internal.text_table import table
from codauc.metrics import AUC
from codauc.report.charts import Chart, Series, line_chart, side_by_side
from codauc.report.rendering import Card, CardTable, render
from codauc.reproduce.demo_settings import DemoSettings

_HEADER = ["method", "K", "test AUC", "95% interval", "iterations", "rounds", "dual est."]
_HEADER += ["MB sent/worker", "seconds"]
_TITLES = ("Test AUC against iterations", "Test AUC against rounds")


@dataclass(frozen=True)
class Method:
    """K workers that average every I steps."""

    name: str
    workers: int
    sync_every: int

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return self.name if self.workers == 1 else f"{self.name} I={self.sync_every}"


@dataclass
class Outcome:
    """What one method achieved, and what it cost each worker."""

    method: Method
    auc: AUC
    iterations: int
    rounds: int
    dual_estimates: int
    bytes_sent: int
    seconds: float
    curve: list[tuple[int, int, float]] = field(repr=False)  # step, round, AUC
    stage_ends: list[int] = field(repr=False)  # which points of the curve end a stage
    weights: dict[str, Tensor] = field(repr=False)


def show(outcomes: Sequence[Outcome], settings: DemoSettings) -> None:
    """Print the table and the comparison; save numbers, weights, picture and page."""
    print("\n" + table(_HEADER, [_row(outcome) for outcome in outcomes]))
    print("\n".join(_findings(outcomes)))
    out = settings.out
    records = [_record(outcome) for outcome in outcomes]
    (out / "results.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    for outcome in outcomes:
        name = outcome.method.label.lower().replace(" i=", "-i")
        save_file(outcome.weights, out / f"{name}.safetensors")
    print(f"Numbers: {out / 'results.json'}; weights: {out}/*.safetensors")
    title, charts = f"Fashion-MNIST sample, {settings.workers} workers", _charts(outcomes)
    (out / "demo.svg").write_text(side_by_side(title, charts), encoding="utf-8")
    (out / "demo.html").write_text(_page(title, outcomes, charts), encoding="utf-8")
    print(f"Picture: {out / 'demo.svg'}; page: {out / 'demo.html'}")


def _row(outcome: Outcome) -> list[str]:
    auc, method = outcome.auc, outcome.method
    return [
        method.label,
        str(method.workers),
        f"{auc.value:.4f}",
        f"{auc.low:.4f}-{auc.high:.4f}",
        str(outcome.iterations),
        str(outcome.rounds),
        str(outcome.dual_estimates),
        f"{outcome.bytes_sent / 1e6:.2f}",
        f"{outcome.seconds:.0f}",
    ]


def _findings(outcomes: Sequence[Outcome]) -> list[str]:
    """CoDA against NP-PPD-SG: rounds saved, AUC won or lost."""
    naive = next((o for o in outcomes if o.method.name == "NP-PPD-SG"), None)
    return [
        f"{o.method.label}: {naive.rounds / o.rounds:.1f} times fewer rounds than NP-PPD-SG, "
        f"AUC {o.auc.value - naive.auc.value:+.4f}."
        for o in outcomes
        if naive is not None and o.method.name == "CoDA" and o.rounds
    ]


def _record(outcome: Outcome) -> dict[str, object]:
    names = ("iterations", "rounds", "dual_estimates", "bytes_sent", "seconds")
    return {
        "method": outcome.method.name,
        "workers": outcome.method.workers,
        "sync_every": outcome.method.sync_every,
        "test_auc": outcome.auc.value,
        "auc_low": outcome.auc.low,
        "auc_high": outcome.auc.high,
        **{name: getattr(outcome, name) for name in names},
        "curve": [
            dict(zip(("step", "round", "auc"), point, strict=True)) for point in outcome.curve
        ],
    }


def _charts(outcomes: Sequence[Outcome]) -> list[Markup]:
    """AUC against iterations, and against rounds on a logarithmic axis."""
    ends = [float(outcomes[0].curve[i][0]) for i in outcomes[0].stage_ends[:-1]]
    most = max(outcome.rounds for outcome in outcomes)
    steps = [_series(i, o, [s for s, _, _ in o.curve]) for i, o in enumerate(outcomes)]
    rounds = [_series(i, o, [r for _, r, _ in o.curve]) for i, o in enumerate(outcomes)]
    for i, outcome in enumerate(outcomes):
        if not outcome.rounds:  # it never communicates: its final AUC, as a level line
            label, final = f"{outcome.method.label}, final", outcome.curve[-1][2]
            rounds[i] = Series(label, [1, max(most, 2)], [final, final], colour=i, dash=i)
    across = ("iterations of each worker", "communication rounds (log scale)")
    base = Chart("", "", "test AUC", (), "count", y_limits=(0.0, 1.0))
    return [
        line_chart(replace(base, x_label=across[0], series=steps, lines=ends, title=_TITLES[0])),
        line_chart(replace(base, x_label=across[1], series=rounds, log_x=True, title=_TITLES[1])),
    ]


def _series(i: int, outcome: Outcome, x: Sequence[int]) -> Series:
    return Series(outcome.method.label, x, [auc for *_, auc in outcome.curve], colour=i, dash=i)


def _page(title: str, outcomes: Sequence[Outcome], charts: Sequence[Markup]) -> str:
    table = CardTable(_HEADER, [_row(outcome) for outcome in outcomes])
    captions = (
        "Higher is better. A dotted line is the end of a stage, where the iterates are averaged.",
        "The same curves, by how often the workers communicated: further left is cheaper.",
    )
    cards = [Card(*card) for card in zip(_TITLES, captions, charts, strict=True)]
    results = Card(caption=" ".join(_findings(outcomes)), table=table)
    sections = [("Results", [], [results]), ("Pictures", cards, [])]
    values = {"setting": "", "time": "", "sections": sections}
    return render("study.html", title=title, over="Demonstration", **values)
