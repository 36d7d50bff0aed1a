"""Bring docs/study.md up to date: its tables and figures, from the packs in benchmarks/study.

    python benchmarks/study_page.py [STUDY]

STUDY is a directory that the packs are merged into (default: one that is thrown away). In the page, what lies between
`<!-- begin NAME -->` and `<!-- end NAME -->` is the report's table that NAME matches; the rest is written by
hand.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gpi.study.contents import report_on
from gpi.study.gathered import merge
from gpi.study.report.blocks import Chart, Report, Table
from gpi.study.report.figures import encoded, figure_of, sheet_of
from gpi.study.report.looks import looks_of

ROOT = Path(__file__).parent.parent
PAGE, IMAGES, PACKS = ROOT / "docs/study.md", ROOT / "docs/img/study", ROOT / "benchmarks/study"
FIGURES = ("figure-2", "figure-3", "figure-4")
DROPPED = ("judged by", "missing")  # columns that only the report has room for


def main() -> None:
    """Read the packs, make the report, and write tables and figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("study", nargs="?", type=Path)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.parse_args().study or Path(temporary) / "study"
        merge(directory, sorted(PACKS.glob("*.safetensors")))
        report = report_on(directory)
    tables = {block.name: block for section in report.sections for block in section.blocks if isinstance(block, Table)}
    text = PAGE.read_text()
    for name in re.findall(r"<!-- begin ([\w*-]+) -->", text):
        [table] = [table for known, table in tables.items() if fnmatchcase(known, name)]
        before, _, rest = text.partition(f"<!-- begin {name} -->")
        _, _, after = rest.partition(f"<!-- end {name} -->")
        text = f"{before}<!-- begin {name} -->\n\n{markdown(table)}\n\n<!-- end {name} -->{after}"
    PAGE.write_text(text)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(report).items():
        path = IMAGES / f"{name}.png"
        if name == "curves":  # of many points: as fine as the others it would have megabytes
            picture.savefig(path, dpi=80, metadata={"Software": None})
        else:
            path.write_bytes(encoded(picture)["png"])
        print(path)


def pictures(report: Report) -> dict[str, Figure]:
    """Return the figures of the page: those of the paper, all learning curves, and the reuse curve as one."""
    looks = looks_of(report)
    charts = [block for section in report.sections for block in section.blocks if isinstance(block, Chart)]
    plain = {name: next(chart for chart in charts if chart.name.startswith(name)) for name in FIGURES}
    found = {name: figure_of(chart, looks) for name, chart in plain.items()}
    curves = [chart for chart in charts if chart.name.startswith("curve-")]
    six = [chart._replace(lines=tuple(line for line in chart.lines if is_of_six(line.label))) for chart in curves]
    found["curves"] = sheet_of("Learning curves, kappa = 1", six, looks)
    found["reuse"] = reuse([chart for chart in charts if chart.name.startswith("reuse-")])
    return found


def is_of_six(arm: str) -> bool:
    """Return whether an arm is one of the six algorithms with the paper's settings and kappa = 1."""
    return re.fullmatch(r"(ge)?(ppo|trpo|vmpo)(-kappa1)?", arm) is not None


def reuse(charts: list[Chart]) -> Figure:
    """Return the reuse curve of all tasks in one picture: every seed, their mean and its interval."""
    figure = Figure((11.0, 5.6), layout="constrained")
    for axes, chart in zip(figure.subplots(2, 3).flat, charts, strict=False):
        [line] = chart.lines
        x, y = np.arange(len(chart.names)), np.asarray(line.y)
        low, high = (np.asarray(y if end is None else end) for end in (line.low, line.high))
        for seeds in () if line.seeds is None else line.seeds:
            axes.plot(x, seeds, "o", color="0.65", markersize=3)
        axes.errorbar(x, y, np.stack([y - low, high - y]), fmt="o-", color="#0b6e4f", capsize=3)
        axes.set(title=chart.title.removeprefix("Reuse on "), xticks=x, xticklabels=chart.names)
        axes.set_ylim(bottom=0.0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("B")
    figure.supylabel("final performance")
    return figure


def markdown(table: Table) -> str:
    """Return a table in Markdown, an estimate and the ends of its interval in one column."""
    kept = [name for name in table.columns if name not in DROPPED]
    whole = [name for name in kept if not is_end(name, kept)]
    rule = ["---" if i == 0 else "--:" for i in range(len(whole))]
    lines = [f"| {' | '.join(whole)} |", f"|{'|'.join(rule)}|"]
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        lines.append("| " + " | ".join(with_ends(name, cells, table) for name in whole) + " |")
    return "\n".join(lines)


def is_end(name: str, columns: list[str]) -> bool:
    """Return whether a column is an end of the interval of the column before it."""
    return name in ("low", "high") or (name.endswith((" low", " high")) and name.rpartition(" ")[0] in stems(columns))


def stems(columns: list[str]) -> set[str]:
    """Return names that may have ends: columns, and their first words."""
    return {*columns, *(name.removesuffix(" difference") for name in columns)}


def with_ends(name: str, cells: Mapping[str, object], table: Table) -> str:
    """Return a cell, with its interval if the table has it."""
    digits = table.digits
    text = shown(cells[name], digits)
    names = list(cells)
    after = names[names.index(name) + 1 : names.index(name) + 3]
    if len(after) == 2 and after[0].endswith("low") and after[1].endswith("high") and text != "–":
        return f"{text} [{shown(cells[after[0]], digits)}, {shown(cells[after[1]], digits)}]"
    return text


def shown(cell: object, digits: int) -> str:
    """Return a cell as text; a dash where there is nothing."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)) or cell == "":
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.{digits}f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell).replace("|", "\\|")


if __name__ == "__main__":
    main()
