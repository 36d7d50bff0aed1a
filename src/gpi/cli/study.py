"""The commands about studies."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from gpi.cli.study_options import add_definition, named
from gpi.cli.study_pack import add_merge, add_pack
from gpi.cli.study_report import add_report
from gpi.cli.study_run import add_run
from gpi.cli.study_status import add_status
from gpi.machine import cores
from gpi.study.definition import Job, Study, builtin_names, load_study
from gpi.study.estimate import core_seconds, disk_bytes, hours, size_in_words, time_in_words
from gpi.terminal import plural

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs


def add_study(verbs: Verbs) -> None:
    """Add `gpi study`, whose second word says what to do with a study."""
    verb = verbs.add_parser(
        "study", help="many runs: tasks by settings by seeds, from one file", usage="gpi study ACTION [options]",
        description="A study is a TOML file with tasks, grids of settings, seeds and steps; each job of it is one run "
        f"of `gpi train`. Built in: {', '.join(builtin_names())}.",
    )  # fmt: skip
    actions = verb.add_subparsers(metavar="ACTION", prog="gpi study", required=True, title="actions")
    add_show(actions)
    add_run(actions)
    add_status(actions)
    add_pack(actions)
    add_merge(actions)
    add_report(actions)


def add_show(actions: Verbs) -> None:
    """Add `gpi study show`."""
    action = actions.add_parser(
        "show", help="print the jobs of a study, and run nothing",
        description="Print the jobs of a study, its steps, and about how much time and disk it takes. "
        "Without STUDY, list the studies that are built in.",
    )  # fmt: skip
    add_definition(action, "?")
    action.add_argument("--json", action="store_true", help="print one JSON object a study, with a list of jobs")
    action.set_defaults(run=run_show)


def run_show(parsed: argparse.Namespace) -> int:
    """Print a study, or without one a line for each that is built in."""
    every = parsed.study is None
    for name in builtin_names() if every else [parsed.study]:
        study = load_study(name, named(parsed.env))
        print(as_json(study) if parsed.json else title(study) if every else as_text(study))
        for note in study.notes:
            print(f"note: {note}", file=sys.stderr)
    return 0


def as_json(study: Study) -> str:
    """Return a study with every job as one JSON object."""

    def one(job: Job) -> dict[str, object]:
        return {
            "name": job.name, "task": job.task, "arm": job.arm, "seed": job.config.seed, "seeds": job.config.seeds,
            "steps": job.config.steps, "core_seconds": round(core_seconds(job)), "bytes": disk_bytes(job),
        }  # fmt: skip

    return json.dumps({
        "name": study.name, "jobs": [one(job) for job in study.jobs], "steps": study.steps,
        "bytes": sum(map(disk_bytes, study.jobs)), "hours": round(hours(study, cores()), 2), "cores": cores(),
    })  # fmt: skip


def title(study: Study) -> str:
    """Return a study in one line: its name and size."""
    tasks, arms = ({getattr(job, part) for job in study.jobs} for part in ("task", "arm"))
    sizes = f"{plural(len(tasks), 'task')} by {plural(len(arms), 'arm')}"
    return f"{study.name}: {plural(len(study.jobs), 'job')}, {sizes}"


def as_text(study: Study) -> str:
    """Return a study as lines for people: its tasks, its arms, and its cost."""
    tasks, arms = (dict.fromkeys(getattr(job, part) for job in study.jobs) for part in ("task", "arm"))
    width = max(map(len, arms))
    lines = [title(study), ""]
    for arm in arms:
        jobs = [job for job in study.jobs if job.arm == arm]
        seeds = sum(job.config.seeds for job in jobs)
        spent = time_in_words(sum(map(core_seconds, jobs)))
        counts = f"{plural(len(jobs), 'job'):>9}  {plural(seeds, 'seed'):>11}"
        lines.append(f"  {arm:<{width}}  {counts}  {spent:>11} of one core")
    lines += ["", f"tasks: {', '.join(tasks)}", ""]
    time = time_in_words(3600 * hours(study, cores()))
    lines += [
        f"steps in all   {study.steps:,}",
        f"disk           about {size_in_words(sum(map(disk_bytes, study.jobs)))}",
        f"time           about {time} on the {plural(cores(), 'core')} here, without a GPU",
    ]
    return "\n".join(lines)
