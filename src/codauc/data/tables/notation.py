"""How numbers and dates are written in a CSV: found with certainty, or asked for.

The decimal mark and the order of day and month are those of the whole file: a column that shows
them ("12,5", "31/12/2024") tells of those that do not ("1,234", "01/02/2024").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codauc.data.tables.columnar_files import arrow
from codauc.data.tables.locale import Locale

MISSING = ("", "NA", "N/A", "#N/A", "null", "NULL")  # texts that are missing values in any column
# ... and in columns of numbers or dates, where they can be nothing else
NO_NUMBER = frozenset((
    *("NaN", "nan", "-NaN", "-nan", "NAN", "n/a", "na", "n.a.", "N.A.", "Na", "none", "None"),
    *("NONE", "Null", "nil", "unknown", "Unknown", "UNKNOWN", "missing", "Missing", "MISSING"),
    *("not available", "Not Available", "-", "--", "---", "?", ".", "\\N", "<NA>", "(null)"),
    *("(blank)", "NaT", "#N/A N/A", "#NA", "#NULL!", "#VALUE!", "#DIV/0!", "#NUM!", "#REF!"),
))  # fmt: skip

_ENOUGH = 2000  # numbers of a column that are looked at closely
_MOSTLY = 0.9  # the share of numbers, or dates, from which on another text is a mistake
_HIDDEN = "\u200b\u200c\u200d\u2060\ufeff"
_SPACES = " \u00a0\u2009\u202f"
_QUOTES = "'\u2019"
_CURRENCY = "US\\$|R\\$|[$€£¥₹₽₩₺₫฿]|USD|EUR|GBP|CHF|JPY|CNY|INR|kr|zł"
_SIGN = "[-+\u2212]?"
_TIDY = str.maketrans(dict.fromkeys(_HIDDEN) | dict.fromkeys(_SPACES, " "))
_NUMBER = re.compile(
    rf"\(?{_SIGN}(?P<before>{_CURRENCY})? ?{_SIGN}(?P<core>[\d.,](?:[\d.,{_QUOTES} ]*[\d.,])?)"
    rf"(?P<power>[eE][-+]?\d+)? ?(?P<after>{_CURRENCY})?(?P<percent> ?%)?\)?"
)
_GROUPED = re.compile(rf"\d{{1,3}}(?:[{_QUOTES} ]\d{{3}})+(?:[.,]\d*)?")
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?: ?[AaPp][Mm])?"
_TIME = re.compile(_CLOCK)
_DATE = re.compile(
    r"(?P<a>\d{1,4})(?P<mark>[./-])(?P<b>\d{1,2})(?P=mark)(?P<c>\d{4}|\d{1,2})"
    rf"(?:[ T]+{_CLOCK})?"
)


@dataclass(frozen=True)
class NumberNotation:
    """Numbers with this decimal mark, these marks between thousands, perhaps a sign behind."""

    decimal: str
    thousands: str = ""
    currency: str = ""
    percent: bool = False

    @property
    def text(self) -> str:
        """In words, for a record."""
        names = {" ": "space", ",": "comma", ".": "dot", "'": "apostrophe", "\u2019": "apostrophe"}
        found = ["decimal comma"] if self.decimal == "," else []
        found += [f"thousands {name}" for name in dict.fromkeys(names[m] for m in self.thousands)]
        found += [f"{self.currency} amount"] if self.currency else []
        return ", ".join([*found, "per cent"] if self.percent else found)

    @property
    def pattern(self) -> str:
        """A regular expression of all that is written so."""
        groups = f"[{re.escape(self.thousands)}]" if self.thousands else ""
        whole = rf"(?:\d{{1,3}}(?:{groups}\d{{3}})+|\d+)" if groups else r"\d+"
        mark = re.escape(self.decimal)
        sign = f"(?:{re.escape(self.currency)})?" if self.currency else ""
        number = rf"(?:{whole}(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?"
        behind = " ?%" if self.percent else ""
        return rf"^\(?{_SIGN}{sign} ?{_SIGN}{number} ?{sign}{behind}\)?$"

    def values(self, texts: Any) -> Any:
        """The numbers of an Arrow array of tidied texts that fit."""
        pa, pc = arrow(), arrow("pyarrow.compute")
        plain = pc.replace_substring_regex(texts, "^\\((.*)\\)$", "-\\1")
        removed = f"[{re.escape(self.thousands)} %]"
        removed += f"|{re.escape(self.currency)}" if self.currency else ""
        plain = pc.replace_substring_regex(plain, removed, "")
        plain = pc.replace_substring(plain, "\u2212", "-")
        numbers = pc.replace_substring(plain, self.decimal, ".").cast(pa.float64())
        return pc.divide(numbers, 100.0) if self.percent else numbers


@dataclass(frozen=True)
class DateNotation:
    """Dates with numbers in this order: "dmy", "mdy" or "ymd"; or "" for times without a date."""

    order: str

    @property
    def text(self) -> str:
        """In words, for a record."""
        return {"dmy": "dates with the day first", "mdy": "dates with the month first",
                "ymd": "dates with the year first", "": "times of day"}[self.order]  # fmt: skip

    @property
    def pattern(self) -> str:
        """A regular expression of all that is written so; whether there is such a day is open."""
        day, month, year = "(?:0?[1-9]|[12]\\d|3[01])", "(?:0?[1-9]|1[0-2])", "(?:\\d{4}|\\d{2})"
        if self.order == "ymd":
            year = "\\d{4}"  # of two digits it might be a day
        parts = "[./-]".join({"d": day, "m": month, "y": year}[part] for part in self.order)
        return rf"^{parts}(?:[ T]+{_CLOCK})?$" if parts else f"^{_CLOCK}$"

    def values(self, texts: Any) -> Any:
        """The times of an Arrow array of tidied texts that fit; raises pyarrow's error of a day
        that does not exist.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        iso = pc.replace_substring_regex(texts, " ?[AaPp][Mm]$", "")
        for _ in range(2):  # neighbours share the mark between them
            iso = pc.replace_substring_regex(iso, "(^|[./ T-])(\\d)([./: T-]|$)", "\\10\\2\\3")
        order = {"dmy": "\\3-\\2-\\1", "mdy": "\\3-\\1-\\2"}.get(self.order, "\\1-\\2-\\3")
        if not self.order:
            iso = pc.replace_substring_regex(iso, "^", "1970-01-01 ", max_replacements=1)
        iso = pc.replace_substring_regex(iso, "^(\\d+)[./-](\\d+)[./-](\\d+)", order)
        iso = pc.replace_substring_regex(iso, "^([0-6]\\d)-", "20\\1-")
        iso = pc.replace_substring_regex(iso, "^([7-9]\\d)-", "19\\1-")
        times = pc.replace_substring_regex(iso, "[ T]+", " ").cast(pa.timestamp("us"))
        halves = pc.any(pc.match_substring(texts, "m", ignore_case=True)).as_py()
        return _halves(times, texts) if halves else times


Notation = NumberNotation | DateNotation


def _halves(times: Any, texts: Any) -> Any:
    """Times of which the texts say whether they are in the morning or in the afternoon."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    half_day, hours = pa.scalar(12 * 3600 * 10**6, pa.duration("us")), pc.hour(times)
    late = pc.and_(pc.match_substring_regex(texts, "[Pp][Mm]$"), pc.less(hours, 12))
    early = pc.and_(pc.match_substring_regex(texts, "[Aa][Mm]$"), pc.equal(hours, 12))
    times = pc.if_else(late, pc.add(times, half_day), times)
    return pc.if_else(early, pc.subtract(times, half_day), times)


def tidied(text: str) -> str:
    """A text without what cannot be seen, and with plain spaces."""
    return text.translate(_TIDY).strip() if not text.isascii() else text.strip()


def tidied_array(texts: Any) -> Any:
    """The same of an Arrow array."""
    pc = arrow("pyarrow.compute")
    texts = pc.replace_substring_regex(texts, f"[{_HIDDEN}]", "")
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, f"[{_SPACES}]", " "))


@dataclass(frozen=True)
class Look:
    """What the texts of one column look like: numbers or dates, and what shows how to read them.

    `shows` are decimal marks that are certain (of a date: orders), `may` one that is not, with a
    text that has it.
    """

    name: str
    notation: NumberNotation | None  # its decimal mark is open
    shows: frozenset[str]
    may: str = ""
    example: str = ""


def look_at(name: str, texts: Sequence[str]) -> Look | None:
    """The look of a column of numbers or dates; None for other texts."""
    digits = sum(any(map(str.isdigit, text)) for text in texts[:50])
    if digits < 0.5 * len(texts[:50]) or not texts:
        return None
    return _dates(name, texts) or _some_numbers(name, texts)


def _some_numbers(name: str, texts: Sequence[str]) -> Look | None:
    """The look of numbers: some of them tell, unless those are doubtful."""
    found = _numbers(name, texts, texts[:: max(1, len(texts) // _ENOUGH)])
    doubtful = found is not None and found.may and not found.shows
    return _numbers(name, texts, texts) if doubtful else found


def _dates(name: str, texts: Sequence[str]) -> Look | None:
    if sum(_TIME.fullmatch(text) is not None for text in texts) >= _MOSTLY * len(texts):
        return Look(name, None, frozenset({""}))
    found = [match for text in texts if (match := _DATE.fullmatch(text))]
    if not found or len(found) < _MOSTLY * len(texts):
        return None
    if sum(len(match["a"]) == 4 for match in found) >= _MOSTLY * len(texts):
        return Look(name, None, frozenset({"ymd"}))
    found = [match for match in found if len(match["a"]) <= 2 and len(match["c"]) > 1]
    if len(found) < _MOSTLY * len(texts):
        return None
    orders = {"dmy" for match in found if int(match["a"]) > 12}
    orders |= {"mdy" for match in found if int(match["b"]) > 12}
    if not orders and all(match["mark"] == "." for match in found):
        orders = {"dmy"}  # nobody writes the month first with dots
    doubtful = next(iter(found), None)
    return Look(name, None, frozenset(orders), "dmy", "" if doubtful is None else doubtful[0])


def _numbers(name: str, every: Sequence[str], texts: Sequence[str]) -> Look | None:
    """The look of `every` text, by some `texts` of them."""
    found = [match for text in texts if (match := _NUMBER.fullmatch(text))]
    kinds = [_mark(match["core"], bool(match["power"])) for match in found]
    if sum(kind is not None for kind in kinds) < _MOSTLY * len(texts):
        return None
    percents = sum(match["percent"] is not None for match in found)
    signs = {sign for match in found for sign in (match["before"], match["after"]) if sign}
    if len(signs) > 1 or 0 < percents < _MOSTLY * len(found):
        return None  # dollars and euros, or 5 and 5%, are not one measure
    cores = [match["core"] for match in found]
    between = re.findall(rf"\d([{_QUOTES} ])(?=\d)", "\n".join(every))
    marks = "".join(sorted(set(between)))
    shows = frozenset(kind for kind in kinds if kind in (".", ","))
    may = next((kind[1] for kind in kinds if kind and kind[0] == "?"), "")
    if may and not shows and any(len(core) > 3 and core.isdigit() for core in cores):
        shows = frozenset({may})  # 1234 beside 1.234: there are no marks between thousands
    example = next(
        (match[0] for match, kind in zip(found, kinds, strict=True) if kind == f"?{may}"), ""
    )
    sign = next(iter(signs), "")
    return Look(name, NumberNotation("", marks, sign, percents > 0), shows, may, example)


def _mark(core: str, power: bool) -> str | None:
    """The decimal mark that a number shows; "?," where a comma may be one or not, "" where it has
    no mark, None if it is no number.
    """
    if any(mark in core for mark in f"{_QUOTES} "):
        if not _GROUPED.fullmatch(core):
            return None
        core = re.sub(f"[{_QUOTES} ]", "", core)
    dots, commas = core.count("."), core.count(",")
    if not dots and not commas:
        return "" if core.isdigit() else None
    last, other = (".", ",") if core.rfind(".") > core.rfind(",") else (",", ".")
    if dots and commas:
        whole = rf"\d{{1,3}}(?:{re.escape(other)}\d{{3}})+{re.escape(last)}\d*"
        return last if re.fullmatch(whole, core) else None
    if core.count(last) > 1:
        groups = rf"\d{{1,3}}(?:{re.escape(last)}\d{{3}})+"
        return other if re.fullmatch(groups, core) else None
    head, _, tail = core.partition(last)
    if power or len(tail) != 3 or len(head) > 3 or not head or head.startswith("0"):
        return last if head or tail else None
    return f"?{last}"


_PLAIN_ORDERS = (frozenset({"ymd"}), frozenset({""}))  # which are never doubtful


def decimal_of(looks: Sequence[Look], locale: Locale, known: str | None) -> str:
    """The decimal mark of a file; `known` is that of training. Raises where it is doubtful."""
    if locale.decimal is not None:
        return locale.decimal
    numbers = [look for look in looks if look.notation is not None]
    shown = {mark: [look for look in numbers if mark in look.shows] for mark in ".,"}
    if shown["."] and shown[","]:
        raise DoubtError(
            "decimal",
            [shown["."][0].name, shown[","][0].name],
            f"column {shown['.'][0].name!r} has a decimal dot and column {shown[','][0].name!r} a "
            "decimal comma: expected one mark in the whole file; say decimal='.' or decimal=',', "
            "and what is not written so is taken for texts",
        )
    for mark in ".,":
        if shown[mark]:
            return mark
    doubtful = [look for look in numbers if look.may]
    if doubtful and known is None:
        names = ", ".join(f"{look.name!r} ({look.example})" for look in doubtful[:5])
        more = f" and {len(doubtful) - 5} more" if len(doubtful) > 5 else ""
        raise DoubtError(
            "decimal",
            [look.name for look in doubtful],
            f"{names}{more} may have decimals or thousands: no number of the file tells; say "
            "decimal='.' or decimal=','",
        )
    return known or "."


def order_of(looks: Sequence[Look], locale: Locale, known: bool | None) -> dict[str, str]:
    """The order of day, month and year of each column of dates; raises where it is doubtful."""
    dates = [look for look in looks if look.notation is None]
    found = {look.name: next(iter(look.shows)) for look in dates if len(look.shows) == 1}
    mixed = [look for look in dates if len(look.shows) > 1]
    asked = locale.dayfirst
    if asked is not None:
        order = "dmy" if asked else "mdy"
        plain = {look.name: next(iter(look.shows)) for look in dates if look.shows in _PLAIN_ORDERS}
        return dict.fromkeys((look.name for look in dates), order) | plain
    if mixed:
        names = ", ".join(repr(look.name) for look in mixed[:5])
        raise DoubtError(
            "dayfirst",
            [look.name for look in mixed],
            f"{names} has dates with the day first and dates with the month first: correct them, "
            f"or leave it out with drop=[{mixed[0].name!r}]",
        )
    open_ = [look for look in dates if not look.shows]
    others = set(found.values()) - {"ymd", ""}
    if open_ and len(others) == 1:
        return found | dict.fromkeys((look.name for look in open_), others.pop())
    if open_ and known is not None:
        return found | dict.fromkeys((look.name for look in open_), "dmy" if known else "mdy")
    if open_:
        names = ", ".join(f"{look.name!r} ({look.example})" for look in open_[:5])
        more = f" and {len(open_) - 5} more" if len(open_) > 5 else ""
        raise DoubtError(
            "dayfirst",
            [look.name for look in open_],
            f"{names}{more} may have the day or the month first; say dayfirst=True or "
            "dayfirst=False",
        )
    return found


class DoubtError(ValueError):
    """What a file means is not certain; `names` are the columns, `option` would say it."""

    def __init__(self, option: str, names: Sequence[str], text: str) -> None:
        super().__init__(text)
        self.option, self.names, self.text = option, list(names), text


def notations(
    columns: Mapping[str, Sequence[str]], locale: Locale, known: Locale
) -> tuple[dict[str, Notation], Locale]:
    """How columns of texts are written, where that is not as plain numbers and ISO dates, and what
    was found of the whole file; `columns` are tidied texts, none missing, `known` is of training.
    """
    looks = [look for name, texts in columns.items() if (look := look_at(name, texts))]
    doubts = list[DoubtError]()
    decimal, orders = ".", dict[str, str]()
    try:
        decimal = decimal_of(looks, locale, known.decimal)
    except DoubtError as doubt:
        doubts.append(doubt)
    try:
        orders = order_of(looks, locale, known.dayfirst)
    except DoubtError as doubt:
        doubts.append(doubt)
    if doubts:
        names = [name for doubt in doubts for name in doubt.names]
        raise DoubtError(doubts[0].option, names, "; ".join(doubt.text for doubt in doubts))
    found: dict[str, Notation] = {name: DateNotation(order) for name, order in orders.items()}
    for look in looks:
        if look.notation is not None and look.shows <= {decimal}:
            found[look.name] = _with_marks(look.notation, decimal, columns[look.name])
    firsts = Counter(order for order in orders.values() if order not in ("ymd", ""))
    dayfirst = None if len(firsts) != 1 else "dmy" in firsts
    return found, Locale(decimal, dayfirst, locale.na_values, locale.encoding)


def _with_marks(look: NumberNotation, decimal: str, texts: Sequence[str]) -> NumberNotation:
    other = "," if decimal == "." else "."
    marks = look.thousands + (other if any(other in text for text in texts) else "")
    return NumberNotation(decimal, marks, look.currency, look.percent)
