"""The pages in a real browser: they look right, and ask for nothing but themselves."""

import shutil

import pytest

from codauc.report.comparison import comparison_page
from codauc.report.run_page import page as report_page

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


@pytest.fixture(params=KINDS)
def address(request, make_run, tmp_path):
    """A page written to disk."""
    run = make_run(workers=1 if request.param == "alone" else 4)
    if request.param == "comparison":
        text = comparison_page([run, make_run("every", sync_every=1), make_run("one", workers=1)])
    else:
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
