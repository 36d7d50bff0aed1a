"""How far the intervals of a report can be trusted."""

from __future__ import annotations

from gpi.report.blocks import Section, Table, Tags
from gpi.study.claim_coverage import CLAIM_COVERAGE, JUDGED
from gpi.study.claim_coverage import REPETITIONS as CLAIM_REPETITIONS
from gpi.study.coverage import COVERAGE, NAMES

TEXT = (
    "How often an interval of nominally 95 % holds the truth, in made-up studies of the paper's size, with five seeds. "
    "The plain percentile bootstrap over seeds held 84 % (one task) and 90 % (23 tasks, IQM) on normal data: "
    "resampling five seeds understates their variance by a fifth, and takes the spread of five numbers for a known "
    "one. Both are corrected here: the variance by S/(S-1), and Student's quantile with the degrees of freedom of "
    "Welch and Satterthwaite; shares have a least standard error besides, as five seeds on one side are no certainty.",
    "Where every seed has all or nothing no such interval is safe: with a chance of 80 % all five seeds come out alike "
    "in a third of all studies, and the interval of a mean is then a point.",
    "The claims count tasks and choose the best arm, which jumps when seeds are resampled. Their intervals reach from "
    "the lower to the higher end of the corrected interval and of the percentiles of resampled seeds whose deviations "
    "are widened by sqrt(S/(S-1)).",
)


def coverage_section() -> Section:
    """Return the tables of how often the intervals hold."""
    rows = tuple((case, *(100.0 * row[name] for name in NAMES)) for case, row in COVERAGE.items())
    claimed = tuple((case, *(100.0 * row[claim.name] for claim in JUDGED)) for case, row in CLAIM_COVERAGE.items())
    tables = (
        Table("coverage", "Coverage of the intervals, %", "2,000 made-up studies of one task, 1,000 of 23; the "
              "difference is Welch's, of one task.", ("case", *NAMES), rows, (Tags(),) * len(rows)),
        Table("coverage-claims", "Coverage of the claims' intervals, %", f"{CLAIM_REPETITIONS} made-up studies each.",
              ("case", *(claim.name for claim in JUDGED)), claimed, (Tags(),) * len(claimed)),
    )  # fmt: skip
    return Section("coverage", "Coverage of the intervals", TEXT, tables)
