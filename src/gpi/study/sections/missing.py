"""Missing results: jobs without any and seeds that are not finished; and the commands that repeat the rest."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from gpi.config import Config
from gpi.envs import dmc
from gpi.study.definition import as_option
from gpi.study.frame import FINISHED, FROZEN, SILENT, UNFINISHED
from gpi.study.report.blocks import Cells, Section, Table, Tags
from gpi.study.results import NOT_OF_ARM, key_of
from gpi.study.sections.words import Material, listed
from gpi.terminal import plural

ABSENT = "no result"


def missing_section(material: Material) -> Section:
    """Return the section of missing results: jobs of the study without any, and seeds that do not count."""
    rows = [*job_rows(material), *other_rows(material)]
    if not rows:
        every = "Every job of the study has its result" if material.jobs else "Nothing that was begun is missing"
        return Section("missing", "Missing results", (f"{every}, and every seed is finished.",), ())
    counts = Counter(str(row[3]) for row in rows)
    said = listed([f"{number:,} {state}" for state, number in counts.items()])
    table = Table("missing", "Missing results", "Arms have the names that the study gives them.",
                  ("task", "arm", "seed", "state", "steps", "of"), tuple(rows),
                  tuple(Tags(str(row[0])) for row in rows))  # fmt: skip
    text = [f"{plural(len(rows), 'seed')} that do not count: {said}."]
    text += [meaning for state, meaning in MEANINGS.items() if state in counts]
    if gaps := absent_by_arm(rows):
        text.append(f"Without any result: {gaps}.")
    return Section("missing", "Missing results", tuple(text), (table,))


MEANINGS = {
    FROZEN: "A frozen seed met a number that is not finite and was kept at its last good state while the others "
            "continued. It has not taken all its steps and does not count, which flatters its arm.",
    SILENT: "A seed without an episode at the end has no final performance.",
    UNFINISHED: "An unfinished seed has taken fewer steps than its run is to take: resume it.",
}  # fmt: skip


def absent_by_arm(rows: Sequence[Cells]) -> str:
    """Say in one line of which arms how many seeds have no result."""
    counts = Counter(str(row[1]) for row in rows if row[3] == ABSENT)
    return listed([f"{arm} ({plural(number, 'seed')})" for arm, number in counts.items()]) if counts else ""


def job_rows(material: Material) -> Iterator[Cells]:
    """Yield every seed of the study's jobs that is not finished, by the names that the study uses."""
    runs = material.results.runs
    known = {(runs[row.run].key, row.seed): row for row in material.results.seeds}
    for job in material.jobs:
        for seed in job.config.seed_range:
            row = known.get((key_of(job.config), seed))
            if row is None:
                yield job.task, job.arm, seed, ABSENT, 0, job.config.steps
            elif row.state != FINISHED or row.steps < job.config.steps:
                state = UNFINISHED if row.state == FINISHED else row.state
                yield job.task, job.arm, seed, state, row.steps, max(job.config.steps, row.goal)


def other_rows(material: Material) -> Iterator[Cells]:
    """Yield every seed that is not finished and that no job of the study asks for."""
    asked = {(key_of(job.config), seed) for job in material.jobs for seed in job.config.seed_range}
    for row in material.results.seeds:
        if row.state != FINISHED and (material.results.runs[row.run].key, row.seed) not in asked:
            yield row.task, row.arm, row.seed, row.state, row.steps, row.goal


def unasked(material: Material) -> int:
    """Return the number of runs that belong to no job of the study."""
    asked = {key_of(job.config) for job in material.jobs}
    return sum(run.key not in asked for run in material.results.runs) if material.jobs else 0


def commands_of(material: Material) -> tuple[str, ...]:
    """Return the commands that make these results again: one for each arm and block of seeds."""
    lines: dict[str, list[str]] = {}
    for run in material.results.runs:
        lines.setdefault(command_of(run.config), []).append(run.config.short_task)
    out = []
    for line, tasks in lines.items():
        named = [shlex.quote(task) for task in material.results.tasks if task in tasks]  # a file may name anything
        out.append(f"for TASK in {' '.join(named)}; do {line}; done" if len(named) > 1 else
                   line.replace('"$TASK"', named[0]))  # fmt: skip
    return tuple(out)


def command_of(config: Config) -> str:
    """Return the command that makes a run, with "$TASK" for its task; it names each setting that is not the default."""
    words = ["gpi", "train", '"$TASK"', "--algorithm", config.algorithm]
    usual = {field.name: field.default for field in dataclasses.fields(Config)}
    usual |= {"task": config.task, "algorithm": config.algorithm, "reset_each_batch": config.short_task in dmc.TASKS}
    named = {"seeds", "steps", *(["kappa"] if config.reuses else [])}
    for name, default in usual.items():
        value = getattr(config, name)
        of_run = name in NOT_OF_ARM and name not in {*named, "seed", "threads"}
        if not (of_run or (name == "kappa" and not config.reuses)) and (name in named or value != default):
            words += map(shlex.quote, as_option(name, value))
    return " ".join(words)


def versions_of(material: Material) -> dict[str, str]:
    """Return the versions and devices of all results; where they differ, each with its number of runs."""
    runs = material.results.runs
    names = dict.fromkeys(name for run in runs for name in run.versions)
    counts = {name: Counter(str(run.versions.get(name, "unknown")) for run in runs) for name in names}
    counts["devices"] = Counter(", ".join(run.devices) or "unknown" for run in runs)
    return {
        name: next(iter(found)) if len(found) == 1
        else "; ".join(f"{version} ({plural(number, 'run')})" for version, number in found.most_common())
        for name, found in counts.items()
    }  # fmt: skip
