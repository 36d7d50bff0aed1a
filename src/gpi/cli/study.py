"""The commands about studies: show, run, status, pack, merge, report."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpi.cli.output import tell
from gpi.cli.parsing import whole
from gpi.errors import UsageError
from gpi.machine import cores
from gpi.study.definition import Job, Study, builtin_names, load_study
from gpi.study.engine.begin import Options
from gpi.study.engine.locks import Shard, read_shard
from gpi.study.estimate import core_seconds, disk_bytes, hours, size_in_words, time_in_words
from gpi.terminal import plural

if TYPE_CHECKING:
    from gpi.cli.parsing import Parser, Verbs
    from gpi.study.results import Result

STUDY = "a .toml file, or one that is built in"
IN_FILE = "a name for your own environment, to use in the file's tasks; may be repeated"
IN_RUNS = "the study's name for your own environment, which runs record as module:id; may be repeated"
TO_MEASURE = "the module of your own environment that the study uses, to measure its random policy; may be repeated"
SUFFIX = ".safetensors"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RUN = """Run the jobs of a study, as many side by side as this machine has room for, until all are done.

If interrupted, run the same command to continue. Several may share a directory: each takes jobs that no other has. \
What a job gets of a machine is fixed when the study starts.
"""


def add_study(verbs: Verbs, action: str = "") -> None:
    """Add `gpi study`, whose second word says what to do with a study: all actions, or the one that was typed."""
    verb = verbs.add_parser(
        "study", help="many runs: tasks by settings by seeds, from one file", usage="gpi study ACTION [options]",
        description="A study is a TOML file with tasks, grids of settings, seeds and steps; each job of it is one run "
        f"of `gpi train`. Built in: {', '.join(builtin_names())}.",
    )  # fmt: skip
    actions = verb.add_subparsers(metavar="ACTION", prog="gpi study", required=True, title="actions")
    for name in [action] if action in ACTIONS else ACTIONS:
        ACTIONS[name](actions)


def add_own(action: Parser, text: str) -> None:
    """Add the option that names the user's own environments."""
    action.add_argument("--env", action="append", default=[], metavar="NAME=MODULE:ID", help=text)


def add_definition(action: Parser, nargs: Literal["?"] | None = None) -> None:
    """Add the arguments that say which study is meant; with `nargs` "?" none need be."""
    action.add_argument("study", metavar="STUDY", nargs=nargs, help=STUDY)
    add_own(action, IN_FILE)


def named(words: list[str]) -> dict[str, str]:
    """Read names of the user's own environments, each as name=module:id."""
    found = {}
    for word in words:
        name, equals, env = word.partition("=")
        if not (name and equals and ":" in env):
            raise UsageError(f"--env {word} must be NAME=MODULE:ID; use --env mine=my_module:MyEnv-v0")
        found[name] = env
    return found


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


def add_run(actions: Verbs) -> None:
    """Add `gpi study run`."""
    action = actions.add_parser("run", help="run the jobs of a study, or continue them", description=RUN)
    add_definition(action)
    action.add_argument("--out", type=Path, required=True, metavar="DIR", help="the study's directory, new or begun")
    action.add_argument("--only", default="", metavar="PATTERN", help="jobs whose names match: cheetah-run, '*/geppo*'")
    action.add_argument("--jobs", type=whole, help="jobs side by side (default: as many as there are cores and memory)")
    action.add_argument("--cores", type=whole, help="cores of each job, when the study begins (default: 1, or more if "
                        "there are fewer jobs than cores)")  # fmt: skip
    action.add_argument("--for", dest="seconds", type=duration, metavar="TIME", help="save everything and end after "
                        "90s, 25m or 8h; jobs that are left make exit code 9")  # fmt: skip
    action.add_argument("--whole-jobs", action="store_true", help="with --for, begin only jobs that will end in time: "
                        "for a machine whose disk is lost when it is given back")  # fmt: skip
    action.add_argument("--shard", type=shard, metavar="I/N", help="run only the I-th of N parts of the jobs, counted "
                        "from 1: for disks whose locks do not reach other machines")  # fmt: skip
    action.add_argument("--engine", choices=("local", "ray"), default="local", help="processes of this machine, or "
                        "tasks of a Ray cluster (default: local)")  # fmt: skip
    action.add_argument("--address", default="", metavar="HOST:PORT", help="with --engine ray, the cluster's head, or "
                        "auto (default: one on this machine alone)")  # fmt: skip
    action.add_argument("--i-trust-this-network", dest="trusted", action="store_true", help="use a cluster without "
                        "RAY_AUTH_MODE=token: anyone who reaches it can run code there")  # fmt: skip
    action.set_defaults(run=run_run)


def run_run(parsed: argparse.Namespace) -> int:
    """Run a study, then say how it stands."""
    from gpi.study.engine.loop import run_study
    from gpi.study.engine.screen import summary

    options = Options(
        parsed.jobs, parsed.cores, parsed.only, parsed.shard, parsed.seconds, parsed.whole_jobs, named(parsed.env)
    )
    if parsed.engine == "ray":
        from gpi.study.engine.ray_cluster import Where
        from gpi.study.engine.ray_jobs import OnRay

        if parsed.whole_jobs:
            raise UsageError("--whole-jobs needs the speed of one machine; leave it out with --engine ray")
        on_ray = partial(OnRay, Where(parsed.address, parsed.trusted))
        ended = run_study(parsed.study, parsed.out, options, executor=on_ray)
    elif parsed.address or parsed.trusted:
        raise UsageError("--address and --i-trust-this-network are for a Ray cluster; add --engine ray")
    else:
        ended = run_study(parsed.study, parsed.out, options)
    own = [word for one in parsed.env for word in ("--env", one)]
    on = ["--engine", "ray"] * (parsed.engine == "ray") + (["--address", parsed.address] if parsed.address else [])
    words = ["gpi", "study", "run", parsed.study, *own, "--out", str(parsed.out), *on]
    tell(*summary(ended, shlex.join(words)))
    return ended.exit_code


def duration(text: str) -> float:
    """Read a time such as 90s, 25m, 8h or 1h30m."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0.0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} must be a time, e.g. 90s, 25m or 1h30m")
    return seconds


def shard(text: str) -> Shard:
    """Read a part of the jobs."""
    try:
        return read_shard(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_status(actions: Verbs) -> None:
    """Add `gpi study status`."""
    action = actions.add_parser(
        "status", help="how far a study is: jobs, speed, time left, returns so far",
        description="Show how far a study is; on a terminal again every two seconds, until it is done or Ctrl-C. It "
        "only reads, so it may run anywhere and at any time.",
    )  # fmt: skip
    action.add_argument("dir", type=Path, metavar="DIR", help="the study's directory")
    action.add_argument("--json", action="store_true", help="print one JSON object, with a list of jobs")
    action.add_argument("--once", action="store_true", help="print once, also on a terminal")
    action.set_defaults(run=run_status)


def run_status(parsed: argparse.Namespace) -> int:
    """Print how far a study is, or show it until it is done."""
    from gpi.cli.status_screen import show

    return show(parsed.dir, parsed.json, once=parsed.once)


def add_pack(actions: Verbs) -> None:
    """Add `gpi study pack`."""
    action = actions.add_parser(
        "pack", help="write a study's results into one small file, to send or to keep",
        description="Write the results of a study, or of any runs, into one file: curves, final performance, sums of "
        "the audit, versions. `gpi study merge` adds it to another study.",
    )  # fmt: skip
    action.add_argument("dir", type=Path, metavar="DIR", help="a study's directory, or a tree of runs")
    action.add_argument("--out", type=Path, required=True, metavar="FILE", help=f"the pack, which ends in {SUFFIX}")
    action.add_argument("--all", action="store_true", help="runs that have not ended too, as far as they are")
    action.set_defaults(run=run_pack)


def run_pack(parsed: argparse.Namespace) -> int:
    """Write a pack, and describe its content."""
    from gpi.study.results import write_pack

    if parsed.out.suffix != SUFFIX:
        raise UsageError(f"--out {parsed.out} must end in {SUFFIX}; use --out {parsed.out.stem or 'results'}{SUFFIX}")
    found = all_results(parsed.dir)
    taken = [one for one in found if one.complete or parsed.all]
    if not taken:
        rule = "--all takes those that have not ended" if found else "wait for a run's first update"
        raise UsageError(f"{parsed.dir} has no complete result; {rule}")
    write_pack(parsed.out, taken)
    print(f"{parsed.out}: {in_words(taken)}, {parsed.out.stat().st_size / 1e6:.2f} MB")
    if len(taken) < len(found):
        print(f"left out: {plural(len(found) - len(taken), 'run')} that have not ended; --all takes them too")
    return 0


def all_results(path: Path) -> list[Result]:
    """Return all results of a study's directory, or of a tree."""
    from gpi.study.gathered import gathered
    from gpi.study.results import merged
    from gpi.study.sources import read_source

    if path.is_dir():
        return gathered(path, unfinished=True, quiet=False)
    found = read_source(path)
    return merged(*([one.result] for one in found), places=[one.place for one in found])


def add_merge(actions: Verbs) -> None:
    """Add `gpi study merge`."""
    action = actions.add_parser(
        "merge", help="add results of other machines, or of plain `gpi train`, to a study",
        description="Add results to a study's directory, or to a new one that has nothing else: jobs that they cover "
        "are not run any more. Two different results of one seed, or of two versions of EnvPool, are refused.",
    )  # fmt: skip
    action.add_argument("dir", type=Path, metavar="DIR", help="the study's directory; made if there is none")
    action.add_argument("files", type=Path, nargs="+", metavar="FILE", help="packs, run directories or trees of them")
    add_own(action, IN_RUNS)
    action.set_defaults(run=run_merge)


def run_merge(parsed: argparse.Namespace) -> int:
    """Add results to a study, and say what came in."""
    from gpi.study.gathered import merge

    done = merge(parsed.dir, parsed.files, named(parsed.env), quiet=False)
    if done.new:
        print(f"{parsed.dir}: {in_words(done.new)} came in")
        unfinished = sum(not one.complete for one in done.new)
        if unfinished:
            print(f"of these {unfinished} have not ended: complete ones take their place when they come")
    if done.known:
        print(f"{plural(done.known, 'result')} {'was' if done.known == 1 else 'were'} there already")
    return 0


def in_words(results: Sequence[Result]) -> str:
    """Say how much there is of results."""
    tasks, arms = {one.config.short_task for one in results}, {one.key.partition(", ")[2] for one in results}
    seeds = sum(one.config.seeds for one in results)
    return ", ".join([plural(len(results), "result"), plural(len(tasks), "task"), plural(len(arms), "arm"),
                      plural(seeds, "seed")])  # fmt: skip


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
    add_own(action, TO_MEASURE)
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


ACTIONS = {
    "show": add_show, "run": add_run, "status": add_status, "pack": add_pack, "merge": add_merge, "report": add_report,
}  # fmt: skip
