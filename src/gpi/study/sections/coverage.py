"""How far the intervals of a report can be trusted."""

from __future__ import annotations

import json
from importlib import resources

from gpi.study.report.blocks import Section, Table, Tags

TEXT = (
    "How often an interval of nominally 95 % holds the truth, in made-up studies of the paper's size, with five seeds. "
    "The plain percentile bootstrap over seeds held 84 % (one task) and 90 % (23 tasks, IQM) on normal data: "
    "resampling five seeds understates their variance by a fifth, and takes the spread of five numbers for a known "
    "one. Both are corrected here: the variance by S/(S-1), and Student's quantile with the degrees of freedom of "
    "Welch and Satterthwaite; shares have a least standard error besides, as five seeds on one side are not proof.",
    "Where every seed has all or nothing no such interval is safe: with a chance of 80 % all five seeds come out alike "
    "in a third of all studies, and the interval of a mean is then a point.",
    "The claims count tasks and choose the best arm, which jumps when seeds are resampled. Their intervals reach from "
    "the lower to the higher end of the corrected interval and of the percentiles of resampled seeds whose deviations "
    "are widened by sqrt(S/(S-1)).",
)


def coverage_section() -> Section:
    """Return the tables of how often the intervals hold (`benchmarks/made_up_studies.py`)."""
    found = json.loads((resources.files("gpi.study.sections") / "coverage.json").read_text(encoding="utf-8"))
    return Section("coverage", "Coverage of the intervals", TEXT, (
        table_of("coverage", "Coverage of the intervals, %", "2,000 made-up studies of one task, 1,000 of 23; the "
                 "difference is Welch's, of one task.", found["intervals"]),
        table_of("coverage-claims", "Coverage of the claims' intervals, %", "400 made-up studies each.",
                 found["claims"]),
    ))  # fmt: skip


def table_of(name: str, title: str, note: str, shares: dict[str, dict[str, float]]) -> Table:
    """Return one table: a row for each case, in percent."""
    rows = tuple((case, *(100.0 * share for share in row.values())) for case, row in shares.items())
    return Table(name, title, note, ("case", *next(iter(shares.values()))), rows, (Tags(),) * len(rows))
