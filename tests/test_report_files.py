"""A report's files: figures as PNG and SVG with the same bytes each time, tables as CSV that reads back exactly."""

import csv
import io
import math
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from PIL import Image
from test_study_page import ODD

from gpi.errors import DiskError
from gpi.study.report.blocks import Chart, Report, Section, Table
from gpi.study.report.figures import encoded, figure_of, sheet_of
from gpi.study.report.looks import looks_of
from gpi.study.report.page.layout import charts_in, sheets
from gpi.study.report.writing import csv_of, parts_of, write_report
from made_up_reports import ARMS, HOSTILE, TASKS, hostile_report, made_up_report


def small() -> Report:
    """A report with one of everything, and few learning curves."""
    return made_up_report(TASKS[:3], ARMS[:5])


def drawn(chart: Chart) -> dict[str, bytes]:
    report = Report("", (), (Section("s", "", (), (chart,)),), (), {})
    return encoded(figure_of(chart, looks_of(report)))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    directory = tmp_path_factory.mktemp("report") / "made" / "on the way"
    return directory, write_report(small(), directory, quiet=True)


def test_a_report_is_a_page_and_a_file_for_every_figure_and_table(written: tuple[Path, list[Path]]):
    directory, paths = written
    found = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    assert sorted(path.relative_to(directory).as_posix() for path in paths) == found
    charts = [f"curve-{task}" for task in TASKS[:3]]
    charts += ["figure-2", "figure-3", "figure-4", "iqm", "improvement", "profiles", "reuse-curve"]
    tables = ["claims", "table-1", "aggregates", "finals", "differences", "lost"]
    assert set(found) == {
        "report.html", *(f"tables/{name}.csv" for name in tables),
        *(f"figures/{name}.{kind}" for name in [*charts, "learning-curves-all"] for kind in ("png", "svg")),
    }  # fmt: skip
    assert paths[0].name == "report.html"


def test_every_file_that_the_page_links_to_is_there(written: tuple[Path, list[Path]]):
    directory, paths = written
    links = [part.split('"')[0] for part in paths[0].read_text().split('href="')[1:]]
    files = [link for link in links if not link.startswith("#")]
    assert len(files) == (10 + 1) * 2 + 6
    assert all((directory / link).is_file() for link in files)


def test_figures_are_pictures_of_150_dots_per_inch_and_well_formed_svg(written: tuple[Path, list[Path]]):
    for path in written[1]:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1) and image.width >= 1000
        elif path.suffix == ".svg":
            assert ET.fromstring(path.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_report_gives_the_same_bytes():
    report = small()
    names = ("figures/figure-2", "figures/curve-acrobot-swingup", "figures/learning-curves-all")
    for name in names:
        first, second = (dict(parts_of(report))[name]() for _ in range(2))
        assert first == second and set(first) == {"png", "svg"}
        assert b"dc:date" not in first["svg"] and b"matplotlib" not in first["png"].lower()


def test_a_sheet_has_a_panel_for_every_task():
    report = made_up_report(TASKS[:6], ARMS[:2])
    [(name, section, group)] = sheets(report)
    figure = sheet_of(section.title, charts_in(group), looks_of(report))
    assert name == "learning-curves-all"
    assert [axis.get_title(loc="left") for axis in figure.axes] == list(TASKS[:6])
    assert len(figure.legends[0].get_texts()) == 2


def test_a_figure_shows_the_numbers_it_was_given():
    report = small()
    charts = {block.name: block for section in report.sections for block in section.blocks if isinstance(block, Chart)}
    looks = looks_of(report)
    chart = charts["curve-acrobot-swingup"]
    [axis] = figure_of(chart, looks).axes
    lines = [np.asarray(line.get_ydata()) for line in axis.lines]
    for line in chart.lines:
        assert line.seeds is not None
        assert all(any(np.array_equal(one, drawn) for drawn in lines) for one in (line.y, *line.seeds))
    bars = charts["figure-3"]
    [axis] = figure_of(bars, looks).axes
    assert [bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle)] == pytest.approx(
        list(bars.lines[0].y)
    )
    assert [text.get_text() for text in axis.get_yticklabels()] == list(bars.names)


def test_hostile_names_stay_in_the_directory_and_are_drawn_as_they_are(tmp_path: Path):
    report = hostile_report()
    made = report._replace(sections=(*report.sections[1:3], *report.sections[-2:]))
    paths = write_report(made, tmp_path / "report", quiet=True)
    assert {path.parent for path in paths} <= {tmp_path / "report" / part for part in ("", "figures", "tables")}
    assert sorted(tmp_path.iterdir()) == [tmp_path / "report"]
    for path in paths:
        if path.suffix == ".svg":
            assert {one.tag.rpartition("}")[2] for one in ET.fromstring(path.read_bytes()).iter()}.isdisjoint(
                {"script", "img", "image", "a", "foreignObject"}
            )


@pytest.mark.parametrize("chart", ODD.values(), ids=ODD.keys())
def test_odd_charts_become_figures_without_a_word(chart: Chart):
    assert all(drawn(chart).values())


# --- CSV ------------------------------------------------------------------------------------------------------------


def read_back(table: Table) -> list[list[str]]:
    return list(csv.reader(io.StringIO(csv_of(table), newline=""), strict=True))


def test_numbers_and_texts_read_back_exactly():
    texts = [text for text in HOSTILE if text.isprintable() and not text.startswith("=")]
    texts += ['say "hi", twice', "two\nlines", " spaced ", "−3", "-3.5", "+4e-7"]
    numbers = [0.1, 1 / 3, -1e-300, 1e300, 123456789.123456789, float(np.nextafter(1, 2)), -0.0]
    table = Table("t", "", "", ("a", 'b,"c'), tuple(zip(texts, numbers * 9, strict=False)))
    head, *rows = read_back(table)
    assert head == ["a", 'b,"c']
    assert [row[0] for row in rows] == texts
    assert [float(row[1]).hex() for row in rows] == [number.hex() for number in (numbers * 9)[: len(texts)]]


def test_nothing_is_empty_and_what_is_no_number_says_so():
    table = Table("t", "", "", tuple("abcdef"), ((None, math.nan, math.inf, 7, True, np.float64(0.5)),))
    assert csv_of(table) == "a,b,c,d,e,f\n,nan,inf,7,True,0.5\n"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\tx", "\rx"])
def test_no_text_runs_in_a_spreadsheet(text: str):
    [_, [cell]] = read_back(Table("t", "", "", ("a",), ((text,),)))
    assert cell[0] not in "=+-@\t\r"


# --- a directory ----------------------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="file"):
        write_report(small(), tmp_path / "file" / "report", quiet=True)


def test_a_report_that_fails_half_way_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "report.html").write_text("old")
    monkeypatch.setattr("gpi.study.report.writing.csv_of", lambda table: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(small(), tmp_path, quiet=True)
    assert (tmp_path / "report.html").read_text() == "old"
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


ANEW = """
import hashlib, sys
from pathlib import Path
from made_up_reports import made_up_report
from gpi.study.report.writing import write_report
for path in sorted(write_report(made_up_report(), Path(sys.argv[1]))):
    print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_report_of_the_papers_size_takes_less_than_a_minute_of_one_core_and_repeats_to_the_bit(tmp_path: Path):
    found = []
    for number in range(2):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(number)}
        before = time.process_time(), os.times()
        command = [sys.executable, "-c", ANEW, str(tmp_path / str(number))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        after = os.times()
        assert after.children_user + after.children_system - before[1].children_user - before[1].children_system < 60
        found.append(done.stdout)
    assert found[0] == found[1] and found[0].count("\n") == 79
