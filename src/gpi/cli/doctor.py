"""The command that looks at the machine: doctor."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gpi import doctor

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs


def add_doctor(verbs: Verbs) -> None:
    """Add `gpi doctor`."""
    verb = verbs.add_parser(
        "doctor", help="is everything here that training needs? name each missing part and its remedy",
        description="Check the machine and the installed packages, try them, and name a remedy for each fault. "
        "ok: as it should be. note: something that not everybody needs is missing. problem: training does not work; "
        "the exit code is then 2.",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="print one JSON object")
    verb.set_defaults(run=run_doctor)


def run_doctor(parsed: argparse.Namespace) -> int:
    """Print each finding as soon as it is there, then the verdict."""
    findings = []
    for finding in doctor.examine():
        findings.append(finding)
        if not parsed.json:
            print("\n".join(doctor.lines_of(finding)), flush=True)
    healthy = all(finding.state != "problem" for finding in findings)
    if parsed.json:
        print(json.dumps({"ok": healthy, "findings": [finding._asdict() for finding in findings]}))
    else:
        print(doctor.verdict(findings))
    return 0 if healthy else 2
