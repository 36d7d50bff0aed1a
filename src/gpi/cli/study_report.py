"""`gpi study report`: what a study says, as one page, figures and tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.cli.output import tell
from gpi.cli.study_options import named

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

OWN = "the module of your own environment that the study uses, to measure its random policy; may be repeated"


def add_report(actions: Verbs) -> None:
    """Add `gpi study report`."""
    action = actions.add_parser(
        "report", help="draw what a study says: one page, figures, tables",
        description="Write a report of all finished results of a study: report.html, one page that needs no network, "
        "with figures also as PNG and SVG and tables as CSV beside it. The paper's figures and claims are judged as "
        "far as the results go.",
    )  # fmt: skip
    action.add_argument(
        "dir", type=Path, metavar="DIR", help="a study's directory, or any directory of runs that gpi train made"
    )
    action.add_argument("--out", type=Path, metavar="DIR", help="where the report is written (default: DIR/report)")
    action.add_argument("--title", default="", metavar="TEXT", help="its title (default: the study's name)")
    action.add_argument("--env", action="append", default=[], metavar="NAME=MODULE:ID", help=OWN)
    action.set_defaults(run=run_report)


def run_report(parsed: argparse.Namespace) -> int:
    """Write a report, and say where it is."""
    from gpi.study.contents import report_on
    from gpi.study.report.writing import write_report

    out = parsed.out or parsed.dir / "report"
    report = report_on(parsed.dir, parsed.title, own=named(parsed.env), say=tell, quiet=False)
    paths = write_report(report, out)
    pictures, tables = (sum(path.suffix == suffix for path in paths) for suffix in (".png", ".csv"))
    print(f"{paths[0]}: {pictures} figures and {tables} tables are files beside it")
    return 0
