"""Cards that say what the model goes by, and where it is most wrong."""

from __future__ import annotations

from typing import Any

from codauc._internal.formats import count, number, percent
from codauc.report.axes import odds_text
from codauc.report.charts import interval_chart
from codauc.report.rendering import Card, CardTable
from codauc.report.run_material import Material, dicts

MOST_COLUMNS, MOST_LISTED = 20, 200  # in the chart, and in the table
_Row = tuple[str, float, float, float, str]


def importance_card(run: Material) -> Card:
    """The AUC that the model loses without each column."""
    found, title = run.importance, "Importance of columns"
    rows = [row for each in dicts(found.get("columns")) if (row := _importance(each))]
    if not rows:
        return Card()
    rows.sort(key=lambda row: -row[1])
    return Card(title, _importance_caption(run), interval_chart(title, rows[:MOST_COLUMNS]))


def _importance(plain: dict[str, Any]) -> _Row | None:
    lost, low, high = (number(plain.get(name)) for name in ("lost", "low", "high"))
    if lost is None or low is None or high is None or not low <= lost <= high:
        return None
    return str(plain.get("name")), lost, low, high, f"{lost + 0.0:.4f}"


def _importance_caption(run: Material) -> str:
    found = {name: number(run.importance.get(name)) for name in _NUMBERS}
    rows, positives, times = (found[name] for name in ("rows", "positives", "permutations"))
    text = (
        "The AUC that is lost on the test set when the values of a column are exchanged between "
        "rows; the line is its 95% interval. A column whose line reaches 0 may be without use. "
        "Columns that say the same share the loss: each alone can look unimportant."
    )
    if rows is not None and positives is not None and times is not None:
        text += f" {count(times)} permutations of {count(rows)} rows, {count(positives)} positive."
    if run.setting("data", "weight"):
        text += " Rows count alike here, whatever their weights."
    if run.setting("data", "group"):
        text += " The intervals take rows as independent, also those of one group."
    every, measured = found["of"], found["measured"]
    if every is not None and measured is not None and measured < every:
        text += f" Of {count(every)} columns, {count(measured)} were measured: those of which the "
        text += "gradient and the mean scores of categories promised most."
    return text


_NUMBERS = ("rows", "positives", "permutations", "of", "measured")


def columns_card(run: Material) -> Card:
    """How each column of the table was read; those with a note come first."""
    header, rows = run.columns
    if not rows:
        return Card()
    rows = sorted(rows, key=lambda row: not row[-1])
    rest = len(rows) - MOST_LISTED
    more = f" {count(rest)} more columns are not listed." if rest > 0 else ""
    return Card(
        "How the columns were read",
        "The kind of each column, its share of missing values, how many different values a "
        "category has, examples, and what is unusual. A column that was read wrongly is corrected "
        f"by the options of codauc train, or in the file.{more}",
        table=CardTable(header, rows[:MOST_LISTED], words=True, stack=True),
    )


def mistakes_card(run: Material) -> Card:
    """The test samples that the model is most wrong about, by number and file name."""
    found = [
        each for each in dicts(run.mistakes.get("samples")) if number(each.get("row")) is not None
    ]
    if not found:
        return Card()
    named = any(each.get("file") for each in found)
    header = ["row", *(["file"] if named else []), "is", "probability", "beyond"]
    return Card(
        "The most confident mistakes",
        "Negatives with the highest scores and positives with the lowest. The row is the number of "
        "the sample in the data, counted from 0, as codauc predict writes it. Beyond: the share of "
        "the other class that the sample is on the wrong side of. Look at them: some may have the "
        "wrong label.",
        table=CardTable(
            header, [_mistake(each, named) for each in found], words=named, stack=named
        ),
    )


def _mistake(plain: dict[str, Any], named: bool) -> list[str]:
    score, beyond = (number(plain.get(name)) for name in ("score", "beyond"))
    kind = "positive" if plain.get("positive") is True else "negative"
    return [
        f"{number(plain.get('row')):.0f}",
        *([str(plain.get("file") or "-")] if named else []),
        kind,
        "-" if score is None else odds_text(score),
        "-" if beyond is None else percent(beyond),
    ]
