"""The pages in a real browser: they look right, and ask for nothing but themselves."""

import shutil

import numpy as np
import pytest

from codauc.data.column_record import ColumnRecord, to_json
from codauc.report.comparison import comparison_page
from codauc.report.run_page import page as report_page
from codauc.runs.directory import BASELINES, COLUMNS, IMPORTANCE, MISTAKES

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--no-first-run"]
KINDS = ("report", "alone", "comparison")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


def explain(run):
    """What a run leaves beside its scores, with names as long as people make them."""
    name = "days_since_the_last_payment_of_the_customer_in_words"
    lost = [-0.02, 0.3012, *np.linspace(0.2, 0, 18)]
    columns = [
        {"name": f"{name}_{i}" if i < 3 else f"x{i}", "lost": v, "low": v - 0.03, "high": v + 0.03}
        for i, v in enumerate(lost)
    ]
    run.write_json(IMPORTANCE, {"columns": columns, "of": 900, "measured": 40})
    mistake = {"positive": True, "score": -9.0, "beyond": 0.99, "file": f"a/{name}/{name}.png"}
    run.write_json(MISTAKES, {"samples": [{"row": 10**9 + i, **mistake} for i in range(8)]})
    read = [ColumnRecord(f"{name}_{i}", "category", True, 0.1, 9, (name,) * 3) for i in range(40)]
    run.write_json(COLUMNS, to_json(read))
    numbers = {"auc": 0.9, "low": -0.01, "high": 0.02, "average_precision": 0.5, "seconds": 0.1}
    rival = {"name": "HistGradientBoosting", "difference": 0.0012, **numbers}
    run.write_json(BASELINES, {"models": [rival] * 5})


@pytest.fixture(params=KINDS)
def address(request, make_run, tmp_path):
    """A page written to disk."""
    run = make_run(workers=1 if request.param == "alone" else 4)
    if request.param == "comparison":
        text = comparison_page([run, make_run("every", sync_every=1), make_run("one", workers=1)])
    else:
        explain(run)
        text = report_page(run)
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def visit(browser, address):
    """A function that opens the page; its requests and errors are kept."""
    contexts = []

    def opened(width=1280, **settings):
        context = browser.new_context(viewport={"width": width, "height": 800}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.requests, page.troubles = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.troubles.append(message.text))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.goto(address, wait_until="load")
        return page

    yield opened
    for context in contexts:
        context.close()


def test_every_plot_has_a_size_and_nothing_else_is_asked_for(visit, address):
    page = visit()
    plots = page.locator("svg.chart")
    assert plots.count() >= 5
    for i in range(plots.count()):
        box = plots.nth(i).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 60
    assert page.requests == [address]
    assert page.troubles == []


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_page_is_wider_than_its_screen(visit, width):
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """width => [...document.querySelectorAll('main *')].filter(
            e => !e.closest('.scroll *') && e.getBoundingClientRect().right > width + 1
        ).length""",
        width,
    )
    assert outside == 0


TEXTS = """() => [...document.querySelectorAll('svg.chart')].flatMap(chart => {
    const edge = chart.getBoundingClientRect();
    const boxes = [...chart.querySelectorAll('text')].map(t => [t.getBoundingClientRect(), t]);
    const out = boxes.filter(([b]) => b.left < edge.left - 1 || b.right > edge.right + 1
        || b.top < edge.top - 1 || b.bottom > edge.bottom + 1).map(([, t]) => t.textContent);
    const hits = boxes.flatMap(([a, t], i) => boxes.slice(i + 1).filter(([b]) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
    ).map(([, u]) => t.textContent + ' | ' + u.textContent));
    return [...out, ...hits];
})"""


@pytest.mark.parametrize("width", [360, 1280])
def test_no_text_of_a_chart_is_cut_or_lies_on_another(visit, width):
    assert visit(width).evaluate(TEXTS) == []


def test_wide_tables_become_blocks_on_a_phone_and_no_cell_is_a_narrow_column(visit, address):
    narrow = """() => [...document.querySelectorAll('table.stack td')].filter(e => {
        const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 8 * b.width;
    }).length"""
    shown = "getComputedStyle(document.querySelector('table.stack tr')).display"
    for width, display in ((360, "block"), (1280, "table-row")):
        page = visit(width)
        if not page.locator("table.stack").count():
            pytest.skip("this page has no such table")
        assert page.evaluate(shown) == display
        assert page.evaluate(narrow) == 0


def test_dark_and_light_have_other_colours(visit):
    colours = "[document.body, document.querySelector('svg .line')].map(e => "
    colours += "getComputedStyle(e).backgroundColor + getComputedStyle(e).stroke)"
    light, dark = (visit(color_scheme=name).evaluate(colours) for name in ("light", "dark"))
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_it_prints_on_white_whatever_the_screen(visit):
    page = visit(color_scheme="dark")
    page.emulate_media(media="print")
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 10_000
    breaks = "[...document.querySelectorAll('figure')].map(e => getComputedStyle(e).breakInside)"
    assert set(page.evaluate(breaks)) == {"avoid"}


def test_a_tooltip_point_shows_itself_under_the_mouse(visit):
    page = visit()
    page.locator("svg .tip").nth(5).hover(force=True)
    fill = "getComputedStyle(document.querySelector('svg .tip:hover')).fill"
    assert page.evaluate(fill) != "rgba(0, 0, 0, 0)"
