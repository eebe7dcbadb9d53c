"""How models of other libraries compare with a run, if `codauc baselines` has tried them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from codauc._internal.formats import auc_text, duration, number
from codauc.report.rendering import Card, CardTable
from codauc.report.run_material import Material, dicts


class Rival(NamedTuple):
    """A model of another library; `difference` is its AUC less that of the run."""

    name: str
    auc: float
    difference: float
    low: float
    high: float
    precision: float
    seconds: float


def rivals(run: Material) -> list[Rival]:
    """Those that baselines.json has, the best first."""
    fields = ("auc", "difference", "low", "high", "average_precision", "seconds")
    found = []
    for plain in dicts(run.baselines.get("models")):
        values = [value for field in fields if (value := number(plain.get(field))) is not None]
        if len(values) == len(fields):
            found.append(Rival(str(plain.get("name")), *values))
    return sorted(found, key=lambda rival: -rival.auc)


def as_good(run: Material) -> Iterator[str]:
    """A sentence for the best of them that is not clearly worse, and for the quickest such one."""
    close = [rival for rival in rivals(run) if rival.high >= 0]
    if close:
        quickest = min(close, key=lambda rival: rival.seconds)
        for rival in dict.fromkeys((close[0], quickest)):
            how = "as good as" if rival.difference >= 0 else "not clearly worse than"
            how = "better than" if rival.low > 0 else how
            yield (
                f"{rival.name} is {how} this network on the same test set: AUC "
                f"{auc_text(rival.auc)}, a difference of {_gap(rival)}. "
                f"It took {duration(rival.seconds)}."
            )


def baselines_card(run: Material) -> Card:
    """The table of all of them."""
    rows = [
        [r.name, auc_text(r.auc), _gap(r), f"{r.precision:.4f}", duration(r.seconds)]
        for r in rivals(run)
    ]
    if not rows:
        return Card()
    weighted = " In the difference rows count alike, whatever their weights."
    header = ["model", "test AUC", "difference (95% interval)", "average precision", "time"]
    return Card(
        "Models of other libraries",
        "The same rows for training, validation and testing. The difference is the AUC of the "
        "model less that of this run (DeLong, paired); if its interval holds 0, they cannot be "
        "told apart on this test set. Defaults of each library; the number of trees by the AUC of "
        f"the validation set.{weighted if run.setting('data', 'weight') else ''}",
        table=CardTable(header, rows, whole=True, stack=True),
    )


def _gap(rival: Rival) -> str:
    return f"{rival.difference:+.4f} ({rival.low:+.4f} to {rival.high:+.4f})"
