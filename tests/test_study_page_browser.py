"""A report's page in a real browser: it asks for nothing, filters, answers the pointer, and fits a phone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from browser import BROWSERS, CHROMIUM
from gpi.study.report.blocks import Chart, Report
from gpi.study.report.page import page
from gpi.study.report.text import clean
from made_up_reports import ARMS, HOSTILE, SEEDS, TASKS, hostile_report, made_up_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=f"there is none of {', '.join(BROWSERS)}"),
    pytest.mark.xdist_group("browser"),
]
DESK = {"viewport": {"width": 1360, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}


@dataclass
class Opened:
    """A page in the browser, with what it said and asked for."""

    tab: "Page"
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def shown(self, query: str) -> int:
        """How many elements a reader sees."""
        return self.tab.evaluate(
            """query => [...document.querySelectorAll(query)]
            .filter((x) => x.checkVisibility() && x.getClientRects().length).length""",
            query,
        )

    def place(self, part: str = "") -> str:
        """The part of the address after `#`, asked of the page itself, once the events under way have ended."""
        self.tab.wait_for_function("part => location.hash.includes(part)", arg=part)
        return self.tab.evaluate("location.hash")

    def choose(self, key: str, *names: str) -> None:
        """Leave only some options of a filter."""
        self.tab.click(f"[data-key={key}] [data-set=none]")
        for name in names:
            self.tab.check(f'[data-key={key}] input[value="{name}"]', force=True)

    def over(self, query: str, x: float, y: float) -> None:
        """Move the pointer to a point of an element, counted from 0 to 1."""
        target = self.tab.locator(query)
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None
        self.tab.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report() -> Report:
    return made_up_report()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, report: Report) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(report, beside=True))
    return path


@pytest.fixture
def visit(browser: "Browser"):
    """Opens a page; afterwards it must have said nothing and asked for nothing but itself."""
    visits: list[tuple[Opened, str]] = []

    def go(path: Path, place: str = "", **settings) -> Opened:
        tab = browser.new_context(**settings).new_page()
        opened = Opened(tab)

        def refuse(dialog: "Dialog") -> None:
            opened.said.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        tab.on("console", lambda message: opened.said.append(message.text))
        tab.on("pageerror", lambda error: opened.said.append(str(error)))
        tab.on("dialog", refuse)
        tab.on("request", lambda request: opened.asked.append(request.url))
        tab.goto(path.as_uri() + place)
        visits.append((opened, path.as_uri()))
        return opened

    yield go
    for opened, address in visits:
        assert opened.said == []
        assert {url.split("#")[0] for url in opened.asked} == {address}
        opened.tab.context.close()


def test_a_filter_acts_on_tables_charts_and_lines_together_and_is_kept_in_the_address(visit, path: Path):
    it = visit(path, **DESK)
    lines, rows = len(TASKS) * len(ARMS), len(TASKS) * (len(ARMS) - 1)
    assert it.tab.inner_text("#Shown") == "6 of 6 algorithms, 3 of 3 kappas, 28 of 28 tasks"
    assert it.shown("div.grid .line .mean") == lines and it.shown("#differences tbody tr") == rows
    it.choose("algorithm", "ppo", "geppo")
    it.tab.uncheck('[data-key=kappa] input[value="0"]', force=True)
    it.choose("task", "cheetah-run", "walker-walk", "fish-swim")
    assert it.tab.inner_text("#Shown") == "2 of 6 algorithms, 2 of 3 kappas, 3 of 28 tasks"
    expected = {
        "div.grid figure": 3,
        "div.grid .line .mean": 3 * 3,  # ppo, and geppo with two kappas
        "#profiles .line .mean": 3,
        "#differences tbody tr": 3 * 2,
        "#finals tbody tr": 3,
        "#figure-2 .row:not(.axis)": 3,
        ".multiples .legend li": 3,
        "#claims tbody tr": 6,  # about no task: they stay
    }
    assert {query: it.shown(query) for query in expected} == expected
    assert it.tab.inner_text("#differences .counted") == f"6 of {rows} rows"
    assert it.tab.inner_text(".multiples .counted") == "3 of 28 charts"

    it.tab.click(".contents >> text=Aggregates")
    place = it.place("#aggregates-section?algorithm=ppo,geppo&kappa=0.5,1&task=")  # links keep the filters
    again = visit(path, place, **DESK)
    assert {query: again.shown(query) for query in expected} == expected
    assert abs(again.tab.evaluate("document.getElementById('aggregates-section').getBoundingClientRect().top")) < 60

    again.tab.click("[data-key=task] [data-set=none]")
    assert again.shown("div.grid figure") == again.shown("#finals tbody tr") == 0
    for key in ("task", "algorithm", "kappa"):
        again.tab.click(f"[data-key={key}] [data-set=all]")
    assert again.shown("div.grid .line .mean") == lines and "?" not in again.place()
    again.tab.hover('[data-key=task] .option:has(input[value="fish-swim"])')
    again.tab.click('[data-key=task] .option:has(input[value="fish-swim"]) .only')
    assert again.shown("div.grid figure") == 1


def test_seeds_and_intervals_can_be_left_out(visit, path: Path):
    it = visit(path, **DESK)
    assert it.shown("path.seeds") > 300 and it.shown("circle.seed") == 2 * SEEDS * len(TASKS)
    it.tab.uncheck("[data-show=seeds]", force=True)
    it.tab.uncheck("[data-show=bands]", force=True)
    assert it.shown("path.seeds, circle.seed, path.band, .whisker") == 0


def test_the_pointer_finds_the_nearest_point_and_says_what_was_measured(visit, path: Path, report: Report):
    it = visit(path, **DESK)
    it.over("#curve-cheetah-run .plot > svg", 0.6, 0.4)
    label, value, seeds = it.tab.inner_text("#Tip").split("\n")
    [chart] = [b for s in report.sections for b in s.blocks if isinstance(b, Chart) and b.name == "curve-cheetah-run"]
    [line] = [line for line in chart.lines if line.label == label]
    found = re.fullmatch(r"([\d.]+) \[([\d.]+), ([\d.]+)\] at ([\d,]+)", value)
    assert found is not None
    at = int(np.argmin(np.abs(line.x - float(found[4].replace(",", "")))))
    assert abs(line.x[at] - 600_000) <= 20_000
    assert line.seeds is not None and line.low is not None and line.high is not None
    said = [float(number) for number in (found[1], found[2], found[3], *seeds.removeprefix("seeds ").split(", "))]
    np.testing.assert_allclose(said, [line.y[at], line.low[at], line.high[at], *line.seeds[:, at]], atol=0.2)
    assert it.shown("#curve-cheetah-run .line.on") == 1
    dim, lit = (
        it.tab.evaluate(f"getComputedStyle(document.querySelector('#curve-cheetah-run {query}')).opacity")
        for query in (".line:not(.on)", ".line.on")
    )
    assert float(dim) < 0.2 and float(lit) == 1.0

    it.over("#figure-2 .row:not(.axis) >> nth=0", 0.5, 0.5)
    words = it.tab.inner_text("#Tip")
    assert "on-policy: " in words and "generalized: " in words and words.count("seeds") == 2
    it.tab.mouse.move(700, 2)
    assert it.shown("#Tip") == 0
    it.tab.hover(".multiples .legend li >> nth=3")
    assert it.shown("div.grid .line.on") == len(TASKS), "one arm lights up in every task"


def test_points_can_be_reached_with_the_keyboard(visit, path: Path):
    it = visit(path, **DESK)
    it.tab.focus("#reuse-curve .plot")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        it.tab.keyboard.press(key)
    assert it.tab.inner_text("#Tip").split("\n")[0] == TASKS[1]
    assert re.search(r" at 4(\.0\d*)?$", it.tab.inner_text("#Tip").split("\n")[1])
    it.tab.keyboard.press("Escape")
    assert it.shown("#Tip") == 0


def test_a_click_on_a_head_sorts_by_numbers_with_nothing_last(visit, path: Path):
    it = visit(path, **DESK)

    def column() -> list[str]:
        return it.tab.locator("#differences tbody td:nth-child(5)").all_inner_texts()

    before = column()
    it.tab.click("#differences thead th:nth-child(5) button")
    up = column()
    it.tab.click("#differences thead th:nth-child(5) button")
    down = column()
    known = [text for text in up if text != "–"]
    assert up[: len(known)] == known == sorted(known, key=float) and down[: len(known)] == known[::-1]
    it.tab.click("#differences thead th:nth-child(5) button")
    assert column() == before


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("device", [DESK, PHONE], ids=["desk", "phone"])
def test_it_fits_and_has_the_colours_asked_for(visit, path: Path, tmp_path: Path, colours: str, device: dict):
    it = visit(path, color_scheme=colours, **device)
    width = device["viewport"]["width"]
    assert it.tab.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    wide = it.tab.evaluate(
        """limit => [...document.querySelectorAll("main *:not(.scroll *, pre *, svg *)")]
        .filter((x) => x.getBoundingClientRect().right > limit + 1).map((x) => x.outerHTML.slice(0, 80))""",
        width,
    )
    assert wide == []
    back = "[...getComputedStyle(document.body).backgroundColor.matchAll(/\\d+/g)].map(Number)"
    assert (min(it.tab.evaluate(back)) > 200) == (colours == "light")
    for name in ("Main", "figure-2", "learning-curves", "finals"):
        it.tab.evaluate(f"document.getElementById('{name}').scrollIntoView()")
        it.tab.screenshot(path=tmp_path / f"{colours}-{name}.png")
        assert (tmp_path / f"{colours}-{name}.png").stat().st_size > 10_000
    it.tab.click("#Theme")
    assert (min(it.tab.evaluate(back)) > 200) == (colours == "dark"), "the button changes them"
    it.tab.emulate_media(media="print")
    ink = back.replace("backgroundColor", "color")
    assert min(it.tab.evaluate(back)) > 200 > 100 > max(it.tab.evaluate(ink)), "paper is white, ink is black"
    assert it.shown(".side") == 0


def test_on_a_phone_filters_open_from_below_and_rows_of_verdicts_become_cards(visit, path: Path):
    it = visit(path, **PHONE)
    assert it.shown("#Filters summary") == 1 and it.shown("#Filters fieldset") == 0
    it.tab.tap("#Filters summary")
    assert it.shown("#Filters fieldset") == 4
    it.tab.tap("#Filters summary")
    widths = it.tab.evaluate("[...document.querySelectorAll('#claims tr')].map((row) => row.scrollWidth)")
    assert max(widths) <= 390
    columns = it.tab.evaluate("getComputedStyle(document.querySelector('div.grid')).gridTemplateColumns")
    assert len(columns.split()) == 1
    for query in ("#curve-cheetah-run .plot", "#figure-2 .row:not(.axis) >> nth=1"):
        it.tab.locator(query).tap()
        assert it.shown("#Tip") == 1 and "seeds" in it.tab.inner_text("#Tip"), "it stays when the finger has left"
    it.tab.locator("#figure-2 h3").tap()
    assert it.shown("#Tip") == 0


def test_without_javascript_everything_is_shown_and_titles_say_the_values(visit, path: Path):
    it = visit(path, java_script_enabled=False, **DESK)
    assert it.tab.locator("#Filters").is_hidden() and it.tab.locator("#Theme").is_hidden()
    assert it.tab.locator("div.grid .line").count() == len(TASKS) * len(ARMS)
    assert (it.tab.locator("div.grid .line title").first.text_content() or "").startswith("ppo: ")
    assert it.tab.locator("#claims tbody tr").last.is_visible()


def test_hostile_names_are_filtered_and_run_nothing(visit, tmp_path: Path):
    path = tmp_path / "hostile.html"
    path.write_text(page(hostile_report()))
    it = visit(path, **DESK)
    assert it.shown("div.grid figure") == len(HOSTILE) and it.shown("img") == 0
    assert it.tab.evaluate("document.documentElement.scrollWidth") <= 1360, "a name of 300 letters is broken"
    for name in (HOSTILE[0], HOSTILE[11]):  # all that ends an element or an attribute, and all that parts an address
        place = sorted(HOSTILE).index(name)
        it.tab.click("[data-key=task] [data-set=none]")
        it.tab.check(f"[data-key=task] input[data-place='{place}']")
        again = visit(path, it.place(), **DESK)
        assert again.shown("div.grid figure") == 1
        assert clean(name) in again.tab.inner_text("div.grid figure:not(.off) h3")
        again.over("div.grid figure:not(.off) .plot > svg", 0.5, 0.5)
        assert again.shown("#Tip img") == 0 and again.shown("#Tip b") == 1
