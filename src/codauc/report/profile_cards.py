"""Cards that show where the time of a step goes, of a run with a profile."""

from __future__ import annotations

from typing import Any

from codauc._internal.formats import digits, number, share
from codauc.report.bars import BarChart, bar_chart, row_chart
from codauc.report.rendering import Card
from codauc.report.run_material import Material

_MOST_ROWS = 40


def profile_cards(run: Material) -> list[Card]:
    """Shares and milliseconds as bars, and how long each worker waits; none without a profile."""
    title, rows = "Time of a step", [_row(each) for each in _dicts(run.profile.get("rows"))]
    whose = "all simulated workers" if run.profile.get("simulated") is True else "worker 0"
    caption = (
        f"Milliseconds per step, and the share of the whole time, of {whose}; the bars add up to "
        "the whole. What does not happen at every step is spread over all of them."
    )
    return [Card(title, caption, row_chart(title, rows[:_MOST_ROWS])), _waiting_card(run)]


def _row(plain: dict[str, Any]) -> tuple[str, float, str]:
    part, spent = (max(0.0, number(plain.get(name)) or 0.0) for name in ("share", "ms_a_step"))
    part = min(part, 1.0)
    return str(plain.get("label")), part, f"{digits(round(spent, 3), 3)} ms, {part:.1%}"


def _waiting_card(run: Material) -> Card:
    title, workers = "Waiting of each worker", _dicts(run.profile.get("by_worker"))
    shares = [_waiting(worker) for worker in workers] if len(workers) > 1 else []
    percents = [100 * value for value in shares]
    chart = BarChart(title, "worker", "% of its time", percents, 1, _percent, "number")
    caption = (
        "How long a worker waited in rounds for the others. They wait for the one with the "
        "shortest bar."
    )
    return Card(title, caption, bar_chart(chart))


def _percent(value: float) -> str:
    return share(value / 100)


def _waiting(worker: dict[str, Any]) -> float:
    spent = {name: max(0.0, number(value) or 0.0) for name, value in worker.items()}
    return spent.get("waiting", 0.0) / (sum(spent.values()) or 1.0)


def _dicts(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
