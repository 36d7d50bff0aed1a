"""`gpi study pack` and `gpi study merge`: a study that is made in parts becomes one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.cli.study_options import named
from gpi.errors import UsageError
from gpi.study.gathered import gathered, merge
from gpi.study.results import Result, merged, write_pack
from gpi.study.sources import read_source
from gpi.terminal import plural

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

SUFFIX = ".safetensors"
OWN = "the study's name for your own environment, which runs record as module:id; may be repeated"


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
    action.add_argument("--env", action="append", default=[], metavar="NAME=MODULE:ID", help=OWN)
    action.set_defaults(run=run_merge)


def run_merge(parsed: argparse.Namespace) -> int:
    """Add results to a study, and say what came in."""
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
