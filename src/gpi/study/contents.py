"""The contents of a report: every section that the results allow, in order. Drawing them is `report/`'s part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpi import analysis
from gpi.study.definition import Job
from gpi.study.directory import FILE, open_study
from gpi.study.frame import FINISHED, Results, results_of
from gpi.study.gathered import CACHE, gathered
from gpi.study.report.blocks import Report, Section
from gpi.study.results import Result
from gpi.study.sections.aggregates import aggregates_section
from gpi.study.sections.audit import audit_section
from gpi.study.sections.claims import claims_section
from gpi.study.sections.comparisons import controls_section, differences_section, reuse_section
from gpi.study.sections.coverage import coverage_section
from gpi.study.sections.missing import commands_of, missing_section, unasked, versions_of
from gpi.study.sections.paper import paper_section, sparsity_section
from gpi.study.sections.runs import curves_section, lost_section
from gpi.study.sections.words import FINAL, Material, listed
from gpi.study.sparsity import sparsity_of
from gpi.terminal import plural

TITLE = "Study"


def report_of(
    results: Results | Sequence[Result],
    jobs: Iterable[Job] = (),
    title: str = TITLE,
    random: Mapping[str, analysis.RandomPolicy] | None = None,
    commands: Sequence[str] = (),
) -> Report:
    """Return the report of some results; raise UsageError if there are none.

    `jobs` are those of the study, and show which results are missing. `random` holds a random policy's measurements on
    each task (`sparsity.sparsity_of`); without it those of the 28 tasks are known. `commands` come before those that
    make the runs.
    """
    whole = results if isinstance(results, Results) else results_of(results)
    material = Material(whole, analysis.random_returns() if random is None else random, tuple(jobs))
    sections = [section for section in sections_of(material) if section]
    return Report(title, lead_of(material, sections), tuple(unique(sections)), (*commands, *commands_of(material)),
                  versions_of(material))  # fmt: skip


def sections_of(material: Material) -> list[Section | None]:
    """Return the sections in their order; None for one that these results do not allow."""
    return [
        claims_section(material), paper_section(material), sparsity_section(material), aggregates_section(material),
        differences_section(material), controls_section(material), reuse_section(material), curves_section(material),
        lost_section(material), audit_section(material), coverage_section(), missing_section(material),
    ]  # fmt: skip


OPTIONAL = {
    "claims": "the paper's claims (no arm is one of the paper's, with 1,000,000 steps)",
    "paper": "figures 2 to 4 and Table I (no on-policy and generalized arm share a task)",
    "aggregates": "aggregates (no seed is finished)",
    "differences": "differences task by task (no two arms share a task)",
    "controls": "controls (none was run)",
    "reuse": "the reuse curve (no arms differ in B alone)",
    "audit": "the audit (no result has one)",
}


def lead_of(material: Material, sections: Sequence[Section]) -> tuple[str, ...]:
    """Return what the report is about, in a few sentences, and which sections it lacks."""
    results = material.results
    finished = sum(row.state == FINISHED for row in results.seeds)
    steps = sum(row.steps for row in results.seeds)
    sizes = {"task": len(results.tasks), "arm": len(results.arms), "seed": len(results.seeds)}
    lines = [
        f"{listed([plural(number, word) for word, number in sizes.items()])}, of which {finished:,} finished; "
        f"{steps:,} steps in all.",
        FINAL,
    ]
    if extra := unasked(material):
        lines.append(f"{plural(extra, 'run')} among them {'is' if extra == 1 else 'are'} not part of the study itself.")
    if earlier := sum(run.final_steps > analysis.final_window(max(run.steps)) for run in results.runs if run.complete):
        lines.append(
            f"{plural(earlier, 'run')} of fewer than 409,600 steps {'is' if earlier == 1 else 'are'} from a pack of an "
            "earlier version: their final performance is over the last 204,800 steps, or over all."
        )
    there = {section.name for section in sections}
    absent = [words for name, words in OPTIONAL.items() if name not in there]
    if absent:
        lines.append(f"Not in this report: {listed(absent)}.")
    return tuple(lines)


def unique(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with every block's name once: two tasks may differ in what a name cannot have."""
    seen: set[str] = set()
    out = []
    for section in sections:
        blocks = []
        for block in section.blocks:
            names = itertools.chain([block.name], (f"{block.name}-{number}" for number in itertools.count(2)))
            blocks.append(block._replace(name=next(name for name in names if name.lower() not in seen)))
            seen.add(blocks[-1].name.lower())  # some file systems do not tell cases apart
        out.append(section._replace(blocks=tuple(blocks)))
    return out


def report_on(
    directory: Path, title: str = "", own: Mapping[str, str] | None = None, say: Callable[[str], object] = print, *,
    quiet: bool = True,
) -> Report:  # fmt: skip
    """Return the report on a study's directory, or on any directory of runs."""
    study = open_study(directory) if (directory / FILE).exists() else None
    results = results_of(gathered(directory, unfinished=True, quiet=quiet))
    cache = directory / CACHE if study or (directory / "packs").is_dir() else None
    with suppress(OSError):  # it only saves time
        if cache:
            cache.mkdir(exist_ok=True)
    random = sparsity_of(results.tasks, cache, say, own)
    name = title or (study.name if study else directory.absolute().name)
    again = f"gpi study run {study.name} --out {directory}" if study else ""
    commands = [command for command in (again, f"gpi study report {directory}") if command]
    return report_of(results, study.jobs if study else (), name, random, commands)
