"""A report's page needs nothing but itself, shows every string as text, and has everything that the report has."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import numpy as np
import pytest

from gpi.study.report.axes import number_axis, ticks_in, value_axis
from gpi.study.report.blocks import Chart, Line, Report, Section, Table, Tags
from gpi.study.report.looks import COLOURS, DASHES, looks_of
from gpi.study.report.page import HERE, POLICY, page, style
from gpi.study.report.page.layout import arranged, facets_of
from gpi.study.report.text import clean, shown, slug, slugs
from made_up_reports import ARMS, HOSTILE, TASKS, hostile_report, made_up_report

VOID = {"meta", "input", "br", "path", "rect", "circle", "line", "link", "img"}
LINKS = ("href", "src", "srcset", "action", "data", "poster", "xlink:href", "formaction", "ping", "background")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    def walk(self):
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def all(self, tag: str = "", **attributes: str) -> list["Element"]:
        return [
            one for one in self.walk()
            if tag in ("", one.tag) and all(value in one.attributes.get(name.rstrip("_"), "").split()
                                            for name, value in attributes.items())
        ]  # fmt: skip

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Reader(HTMLParser):
    """Builds the tree, and fails on an end tag that closes anything but the innermost open element."""

    def __init__(self):
        super().__init__()
        self.open = [Element("", {})]
        self.comments = 0

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)

    def handle_comment(self, data):
        self.comments += 1


def tree(text: str) -> Element:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, "everything that was opened is closed"
    assert not reader.comments
    return reader.open[0]


@pytest.fixture(scope="module")
def whole() -> str:
    return page(made_up_report(), beside=True)


# --- the whole ------------------------------------------------------------------------------------------------------


def test_the_page_of_a_study_of_the_papers_size_is_below_3_megabytes(whole: str):
    assert len(whole.encode()) < 3e6


def test_the_page_is_well_formed_and_its_places_are_unique(whole: str):
    ids = [one.attributes["id"] for one in tree(whole).walk() if "id" in one.attributes]
    assert len(ids) == len(set(ids)) > 60


def test_every_link_leads_to_a_place_of_the_page_or_to_a_file_beside_it(whole: str):
    root = tree(whole)
    ids = {one.attributes["id"] for one in root.walk() if "id" in one.attributes}
    targets = [one.attributes[name] for one in root.walk() for name in LINKS if name in one.attributes]
    assert len(targets) > 100
    for target in targets:
        assert target[1:] in ids if target.startswith("#") else re.fullmatch(r"(figures|tables)/[\w.-]+", target)


def test_the_page_names_nothing_outside_itself(whole: str):
    assert "//" not in re.sub(r"^\s*//.*|; // .*|\{ // .*", "", whole, flags=re.MULTILINE)
    assert not re.search(r"url\(|@import|@font-face|fetch\(|XMLHttpRequest|import\(", whole)


def test_a_page_that_goes_alone_links_to_no_file():
    root = tree(page(made_up_report(TASKS[:2], ARMS[:4])))
    assert all(one.attributes["href"].startswith("#") for one in root.all("a"))


def test_the_browser_is_forbidden_to_fetch_anything(whole: str):
    metas = tree(whole).all("meta")
    policies = [one.attributes["content"] for one in metas if one.attributes.get("http-equiv")]
    assert policies == [POLICY] and POLICY.startswith("default-src 'none';")
    assert whole.index("Content-Security-Policy") < whole.index("<style>") < whole.index("<script>")


def test_the_same_report_gives_the_same_page(whole: str):
    assert page(made_up_report(), beside=True) == whole


# --- strings --------------------------------------------------------------------------------------------------------


def test_hostile_names_are_shown_and_never_obeyed():
    report = hostile_report()
    text = page(report)
    text.encode()
    root = tree(text)
    allowed = {one.tag for one in tree(page(made_up_report(TASKS[:3], ARMS[:5]))).walk()}
    assert {one.tag for one in root.walk()} == allowed
    assert [one.text.strip() for one in root.all("script")] == [(HERE / "script.js").read_text().strip()]
    names = {name for one in root.walk() for name in one.attributes}
    assert not {name for name in names if name.startswith("on")}
    shown_rows = {one.text for one in root.all(class_="name")}
    assert {clean(name) for name in HOSTILE} <= shown_rows
    assert root.all("title")[0].text == clean(report.title)


def test_characters_that_no_file_may_hold_are_replaced():
    assert clean("a\x00\x1b\ud800\u202e\ufffeb\n\tc\x85é任🤖") == "a" + 5 * "\ufffd" + "b\n\tc\ufffdé任🤖"


def test_names_become_names_of_files_that_stay_where_they_belong():
    names = [*HOSTILE, "", ".", "..", "Figure 2", "figure 2", "FIGURE-2", "CON/../x", "\n"]
    found = slugs(names)
    assert len(set(found)) == len(names)
    for name in found:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", name) and ".." not in name, name
    assert slug("figure-2") == "figure-2" and found[names.index("FIGURE-2")] == "figure-2-3"


def test_a_table_and_a_chart_of_one_name_keep_it_for_their_files():
    chart = Chart("same", "", "", "", "", ())
    table = Table("same", "", "", ("a",), (("b",),))
    [placed] = arranged(Report("", (), (Section("same", "", (), (chart, table, chart)),), (), {}))
    parts = [part for group in placed.groups for part in group]
    assert [part.file for part in parts] == ["same", "same", "same-2"]
    assert len({placed.id, *(part.id for part in parts)}) == 4


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"), (float("nan"), "–"), (1234567, "1,234,567"), (-3, "−3"), (1234.56, "1,234.6"), (-0.04, "0.0"),
        (-0.06, "−0.1"), (float("-inf"), "−∞"), (np.float32(0.25), "0.2"), (np.int64(5), "5"), (True, "yes"),
        ("x", "x"),
    ],
)  # fmt: skip
def test_cells_are_shown_as_people_read_them(cell, text: str):
    assert shown(cell) == text


# --- tables ---------------------------------------------------------------------------------------------------------


def test_every_table_has_its_caption_its_heads_its_rows_and_its_note(whole: str):
    root, report = tree(whole), made_up_report()
    tables = [block for section in report.sections for block in section.blocks if isinstance(block, Table)]
    assert len(tables) == len(root.all("table"))
    for block in tables:
        [figure] = root.all("figure", id=block.name)
        assert figure.all("h3")[0].text.startswith(block.title)
        heads = figure.all("thead")[0].all("th")
        assert [head.text for head in heads] == list(block.columns)
        assert all(head.attributes["scope"] == "col" for head in heads)
        assert len(figure.all("tbody")[0].all("tr")) == len(block.rows)
        assert [note.text for note in figure.all(class_="note")] == ([block.note] if block.note else [])


def test_verdicts_have_words_and_colours_and_are_counted(whole: str):
    [figure] = tree(whole).all("figure", id="claims")
    cells = [one for one in figure.all("td") if one.all(class_="verdict")]
    kinds = [(one.all(class_="verdict")[0].attributes["class"].split()[1], one.text) for one in cells]
    assert kinds == [
        ("bad", "✗ does not hold"), ("open", "≈ undecided"), ("good", "✓ holds"), ("good", "✓ holds"),
        ("good", "✓ holds"), ("missing", "○ not judged: data missing"),
    ]  # fmt: skip
    [tally] = figure.all(class_="tally")
    words = re.split(r" (?=[✗≈○])", tally.text.strip())
    assert words == ["✓ 3 hold", "✗ 1 does not hold", "≈ 1 undecided", "○ 1 not judged"]


# --- charts ---------------------------------------------------------------------------------------------------------


def numbers(d: str) -> list[list[tuple[int, int]]]:
    """The points of a path, piece by piece, from its differences."""
    pieces = []
    for piece in d.split("M")[1:]:
        values = list(map(int, re.findall(r"-?\d+", piece)))
        points = [(values[0], values[1])]
        for i in range(2, len(values) - 1, 2):
            points.append((points[-1][0] + values[i], points[-1][1] + values[i + 1]))
        pieces.append(points)
    return pieces


def one_chart(lines: tuple[Line, ...], **settings) -> Element:
    chart = Chart("c", "c", "", "x", "y", lines, **settings)
    return tree(page(Report("", (), (Section("s", "s", (), (chart,)),), (), {})))


def test_a_lines_path_says_its_values_to_a_ten_thousandth_of_the_axis():
    rng = np.random.default_rng(0)
    x, y = np.linspace(0, 1e6, 100), rng.uniform(0, 900, 100)
    root = one_chart((Line("a", x, y, y - 30, y + 30, np.stack([y - 5, y + 5])),))
    [plot] = root.all("div", class_="plot")
    low, high = map(float, plot.attributes["data-y"].split())
    left, right = map(float, plot.attributes["data-x"].split())

    def values(kind: str) -> list[np.ndarray]:
        [path] = root.all("path", class_=kind)
        scale = np.array([(right - left) / 1e4, -(high - low) / 1e4])
        return [np.array(piece) * scale + [left, high] for piece in numbers(path.attributes["d"])]

    near = (high - low) / 1e4
    [mean] = values("mean")
    np.testing.assert_allclose(mean[:, 0], x, atol=(right - left) / 1e4)
    np.testing.assert_allclose(mean[:, 1], y, rtol=0, atol=near)
    np.testing.assert_allclose([piece[:, 1] for piece in values("seeds")], [y - 5, y + 5], rtol=0, atol=near)
    [band] = values("band")
    np.testing.assert_allclose(band[:, 1], np.concatenate([y + 30, (y - 30)[::-1]]), rtol=0, atol=near)


def test_a_line_is_broken_where_values_are_missing():
    y = np.array([1.0, 2.0, np.nan, 4.0, np.nan, np.inf, 5.0, 6.0])
    root = one_chart((Line("a", np.arange(8.0), y),))
    [path] = root.all("path", class_="mean")
    assert [len(piece) for piece in numbers(path.attributes["d"].replace("h0", ""))] == [2, 1, 2]


def test_a_line_of_many_points_is_thinned_and_keeps_its_ends():
    x = np.arange(10_001.0)
    root = one_chart((Line("a", x, x, x - 1, x + 1, np.stack([x, x])),))
    [path], [plot] = root.all("path", class_="mean"), root.all("div", class_="plot")
    [piece] = numbers(path.attributes["d"])
    assert len(piece) == 400 and (piece[0][0], piece[-1][0]) == (0, 10_000)
    assert len(numbers(root.all("path", class_="seeds")[0].attributes["d"])) == 2
    assert "10k" in plot.text


def test_filters_offer_what_any_part_of_the_report_is_about():
    row, line, chart = (Tags(*f"{x}t {x}a {n}".split()) for n, x in enumerate("rlh"))
    blocks = (
        Table("t", "", "", ("a",), (("b",),), (row,)),
        odd(Line("l", FIVE, FIVE, tags=line), tags=chart),
    )
    found = facets_of(Report("", (), (Section("s", "", (), blocks),), (), {}))
    assert set(found.task) == {"rt", "lt", "ht"} and found.kappa == ("0", "1", "2")


def test_charts_of_one_task_each_share_a_grid_and_a_legend(whole: str):
    [grid] = tree(whole).all("div", class_="multiples")
    assert len(grid.all("figure", class_="small")) == len(TASKS)
    assert [len(legend.all("li")) for legend in grid.all("ul", class_="legend")] == [len(ARMS)]
    assert len(grid.all("g", class_="line")) == len(TASKS) * len(ARMS)


def test_bars_have_a_row_for_each_name_a_whisker_and_a_dot_for_each_seed(whole: str):
    [figure] = tree(whole).all("figure", id="figure-2")
    assert len(figure.all("div", role="listitem")) == len(TASKS)
    assert len(figure.all("rect")) == len(figure.all("line", class_="whisker")) == 2 * len(TASKS)
    assert len(figure.all("circle", class_="seed")) == 2 * 5 * len(TASKS)


def test_every_chart_says_in_words_what_it_shows(whole: str):
    root = tree(whole)
    for plot in root.all("div", class_="plot"):
        assert plot.attributes["role"] == "img" and len(plot.attributes["aria-label"]) > 40
    assert all(one.all("title") for one in root.all("g", class_="line") + root.all("g", class_="mark"))
    assert {"main", "nav", "aside", "header"} <= {one.tag for one in root.walk()}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1000, [0, 250, 500, 750, 1000]), (0, 1, [0, 0.25, 0.5, 0.75, 1]), (-30, 70, [-25, 0, 25, 50]), (0, 1e6, 5)],
)
def test_ticks_are_round_numbers(low: float, high: float, expected):
    found = ticks_in(low, high, 4)
    assert len(found) == expected if isinstance(expected, int) else list(found) == expected


def odd(*lines: Line, **settings) -> Chart:
    return Chart("a", "", "", "", "", lines, **settings)


FIVE, TWO = np.arange(5.0), np.ones(2)
ODD = {
    "no lines": odd(),
    "nothing known": odd(Line("a", np.arange(3.0), np.full(3, np.nan))),
    "no points": odd(Line("a", np.empty(0), np.empty(0))),
    "one point": odd(Line("a", np.ones(1), np.ones(1), np.zeros(1), np.ones(1))),
    "one value": odd(Line("a", FIVE, np.full(5, -3.0))),
    "integers": odd(Line("a", np.arange(5), np.arange(5), np.arange(5), np.arange(5))),
    "tiny": odd(Line("a", FIVE * 1e-9, FIVE * 1e-9)),
    "huge": odd(Line("a", FIVE * 1e12, FIVE * 1e15)),
    "outside the range": odd(Line("a", FIVE, FIVE), y_range=(1.0, 2.0)),
    "empty range": odd(Line("a", FIVE, FIVE), y_range=(1.0, 1.0)),
    "names without lines": odd(names=("b", "c")),
    "more names than bars": odd(Line("a", np.ones(1), np.ones(1)), names=("b", "c")),
    "infinite bars": odd(Line("a", TWO, np.array([np.inf, -1.0])), names=("b", "c")),
    "integer seeds": odd(Line("a", TWO, TWO, seeds=np.ones((3, 2), int)), names=("b", "c")),
}


@pytest.mark.parametrize("chart", ODD.values(), ids=ODD.keys())
def test_odd_charts_are_drawn_without_a_word(chart: Chart):
    text = page(Report("", (), (Section("s", "", (), (chart,)),), (), {}))
    tree(text)
    assert "nan" not in "".join(re.findall(r'(?: d|style|cx|x1|x2|width|data-[xy])="([^"]*)"', text)).lower()
    for axis in (value_axis(chart, 5), number_axis(chart, 5)):
        assert axis.low < axis.high and all(
            axis.low - 1e-9 <= tick <= axis.high * (1 + 1e-9) + 1e-9 for tick in axis.ticks
        )


# --- looks ----------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("kind", ["light", "dark"])
def test_colours_stand_out_from_what_is_behind_them(kind: str):
    block = style().partition(f"/* {kind} */")[2].partition("/* end")[0]
    names = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    for back in ("bg", "card"):
        assert all(contrast(getattr(colour, kind), names[back]) >= 3 for colour in COLOURS), "WCAG: 3 for graphics"
        assert all(contrast(names[ink], names[back]) >= 4.5 for ink in ("ink", "soft", "accent")), "and 4.5 for text"
    for verdict in ("good", "bad", "open", "missing"):
        assert contrast(names[verdict], names[f"{verdict}-bg"]) >= 4.5


def test_no_two_arms_look_alike_and_an_arm_looks_the_same_in_all_charts():
    found = looks_of(made_up_report()).lines
    arms = [look for label, look in found.items() if label.startswith(("ppo", "trpo", "vmpo", "ge"))]
    assert len(set(arms)) == len(ARMS)
    rules = {look.colour // 2 for label, look in found.items() if label.startswith(("ppo", "geppo"))}
    assert rules == {0}, "one hue for a rule"
    for arm in ("geppo", "getrpo", "gevmpo"):
        dashes = [look.dashes for label, look in found.items() if label.startswith(arm)]
        assert len(set(dashes)) == 3, "kappas differ in dashes, not in colour alone"


def test_the_two_sides_of_the_papers_figures_have_colours_of_their_own():
    lines = tuple(
        Line(f"best {side}", TWO, TWO, generalized=side == "generalized") for side in ("on-policy", "generalized")
    )
    report = Report("", (), (Section("", "", (), (odd(*lines, names=("a", "b")),)),), (), {})
    assert [look.colour for look in looks_of(report).series.values()] == [9, 0], "grey and blue"


def test_an_axis_of_bins_ends_at_the_number_of_steps_not_at_a_bins_middle():
    axis = number_axis(odd(Line("a", np.arange(100) * 1e4 + 5e3, np.arange(100.0))), 5)
    assert (axis.low, axis.high) == (0.0, 1e6) and axis.ticks[-1] == 1e6


def test_forty_labels_that_say_nothing_all_look_different():
    lines = tuple(Line(f"label {i}", np.arange(3.0), np.arange(3.0)) for i in range(len(COLOURS) * len(DASHES) + 1))
    report = Report("", (), (Section("", "", (), (Chart("", "", "", "", "", lines),)),), (), {})
    found = list(looks_of(report).lines.values())
    assert len(set(found[:-1])) == len(found) - 1 == 40
