"""The frame of a page: one file, nothing from the network, for screens, phones and paper."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from codauc.report.formats import shortened
from codauc.version import __version__

LONGEST = 600  # characters of one text; a page is read, a file is searched

# Okabe and Ito's colours, told apart by colour-blind readers; lighter ones on a dark ground.
STYLE = """
:root{color-scheme:light;--bg:#f5f6f8;--card:#fff;--line:#e2e5ea;--text:#1b2026;--soft:#5b6572;
--grid:#eceef2;--accent:#0072b2;--warn:#8a4b00;--warn-bg:#fff6e5;--warn-line:#f0d7a8;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b8568b;--c4:#b57f00;--c5:#3f9fd6;--c6:#7a8491}
@media screen and (prefers-color-scheme:dark){:root{color-scheme:dark;--bg:#11141a;--card:#191e26;
--line:#2b323d;--text:#e7eaef;--soft:#a0a9b6;--grid:#272e38;--accent:#63b8ec;--warn:#f3c77b;
--warn-bg:#2a2318;--warn-line:#51432a;
--c0:#63b8ec;--c1:#ff8f4a;--c2:#2fc79b;--c3:#e495c2;--c4:#f0c24a;--c5:#9aa7ff;--c6:#8b95a3}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:16px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",Arial,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1200px;margin:0 auto;padding:32px 20px 48px}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:40px 0 12px;letter-spacing:-.005em}
h3{font-size:.95rem;margin:0 0 8px}
p{margin:0 0 8px;overflow-wrap:anywhere}
.soft{color:var(--soft)}.small{font-size:.85rem}
.over{font-size:.8rem;color:var(--soft);margin:0 0 6px}
.plain{font-size:1.05rem;max-width:90ch;margin:0 0 14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;margin:0;
min-width:0;break-inside:avoid}
.below{margin-top:16px}
.grid{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr))}
.tiles{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));
margin:20px 0 16px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px;
min-width:0;break-inside:avoid}
.tile b{display:block;font-size:1.3rem;line-height:1.3;font-weight:600;overflow-wrap:anywhere;
font-variant-numeric:tabular-nums}
.tile span{display:block;font-size:.82rem;color:var(--soft);overflow-wrap:anywhere}
.tile.first{border-left:4px solid var(--accent);grid-column:span 2}
.tile.first b{font-size:1.9rem;line-height:1.15;margin:2px 0}
.notice{background:var(--warn-bg);border:1px solid var(--warn-line);color:var(--warn);
border-radius:10px;padding:10px 16px;margin:0 0 10px;break-inside:avoid;overflow-wrap:anywhere}
figcaption{font-size:.84rem;line-height:1.45;color:var(--soft);margin-top:8px;
overflow-wrap:anywhere}
.scroll{overflow:auto;max-height:440px;max-width:100%}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:6px 10px;border-bottom:1px solid var(--line);white-space:nowrap;
vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0}
tr:last-child td{border-bottom:0}
table.words td,table.words th{text-align:left;white-space:normal;overflow-wrap:anywhere}
table.words td:first-child{white-space:nowrap;color:var(--soft)}
details>summary{cursor:pointer;font-weight:600}
details[open]>summary{margin-bottom:8px}
footer{margin-top:40px;font-size:.8rem;color:var(--soft)}
.swatch{display:inline-block;width:26px;height:10px;margin-right:8px}
.swatch svg{display:block}
ul.key{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;padding:0;margin:0 0 12px;
font-size:.88rem}
svg.chart{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11.5px;font-variant-numeric:tabular-nums}
svg .key{fill:var(--text)}
svg .rule{stroke:var(--grid)}svg .axis{stroke:var(--soft);stroke-opacity:.6}
svg .stage{stroke:var(--soft);stroke-opacity:.45;stroke-dasharray:2 3}
svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
svg .band{stroke:none;fill-opacity:.17}svg .fill{fill-opacity:.28}
svg .tip{fill:transparent;stroke:none}
svg .mark{stroke:var(--card);stroke-width:1.5}
""" + "".join(
    f"svg .s{i}{{stroke:var(--c{i})}}svg .f{i},svg .tip.f{i}:hover{{fill:var(--c{i})}}"
    for i in range(7)
)
STYLE += """
svg .tip{fill:transparent}
@media (max-width:520px){main{padding:20px 12px 32px}.card{padding:12px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}h2{margin-top:32px}.tile{padding:10px 12px}
.tile b{font-size:1.2rem}}
@media print{@page{margin:14mm}html{font-size:13px}body{background:#fff;font-size:1rem}
main{max-width:none;padding:0}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.grid{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px}h2{margin:20px 0 8px;
break-after:avoid}.scroll{max-height:none;overflow:visible}details::details-content{
content-visibility:visible;block-size:auto}.tip{display:none}table{font-size:.8rem}
th,td{padding:4px 6px}thead{display:table-header-group}tr{break-inside:avoid}
.card.long{break-inside:auto}}
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def escape(text: Any, most: int = LONGEST) -> str:
    """Any text as HTML that shows it: markup has no effect, what cannot be written becomes a mark.

    >>> escape("</script><b a='1'>")
    '&lt;/script&gt;&lt;b a=&#x27;1&#x27;&gt;'
    """
    plain = shortened(str(text), most).encode("utf-8", "replace").decode("utf-8")
    return html.escape("".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in plain))


def document(title: str, body: Iterable[str]) -> str:
    """A whole page; `body` is HTML, `title` any text."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title, 200)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body><main>",
            *body,
            f"<footer>Written by codauc {escape(__version__)}.</footer>",
            "</main></body>",
            "</html>",
            "",
        ]
    )


def section(title: str, parts: Iterable[str]) -> str:
    """Parts under a heading; nothing if there are none."""
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def grid(cards: Iterable[str]) -> str:
    """Cards side by side, as many as there is room for; nothing if there are none."""
    body = "\n".join(card for card in cards if card)
    return f'<div class="grid">\n{body}\n</div>' if body else ""


def figure(title: str, content: str, caption: str) -> str:
    """A card with a heading, what it shows, and how to read it; nothing without content."""
    if not content:
        return ""
    head = f"<h3>{escape(title)}</h3>\n" if title else ""
    return (
        f'<figure class="card">{head}{content}\n<figcaption>{escape(caption)}</figcaption></figure>'
    )


def tile(name: str, value: str, below: str = "", *, first: bool = False) -> str:
    """One number of the headline, its name above and a remark below."""
    kind = "tile first" if first else "tile"
    return (
        f'<div class="{kind}"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(below)}</span></div>"
    )


def notice(text: str) -> str:
    """A warning."""
    return f'<p class="notice" role="note">{escape(text)}</p>'


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: bool = False,
    before: Sequence[str] = (),
) -> str:
    """A table that scrolls in its own box; `before` is HTML put before each row's first cell."""
    marks = before or [""] * len(rows)
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "\n".join(f"<tr>{_cells(row, mark)}</tr>" for row, mark in zip(rows, marks, strict=True))
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], mark: str) -> str:
    cells = [escape(cell) for cell in row]
    return "".join(f"<td>{cell}</td>" for cell in [mark + cells[0], *cells[1:]])
