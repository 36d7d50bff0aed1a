"""`gpi study run`."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.cli.output import tell
from gpi.cli.parsing import whole
from gpi.cli.study_options import add_definition, named
from gpi.errors import UsageError
from gpi.study.engine.begin import Options
from gpi.study.engine.locks import Shard, read_shard

if TYPE_CHECKING:
    from gpi.cli.parsing import Verbs

DESCRIPTION = """Run the jobs of a study, as many side by side as this machine has room for, until all are done.

If interrupted, run the same command to continue. Several may share a directory: each takes jobs that no other has. \
What a job gets of a machine is fixed when the study starts.
"""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_run(actions: Verbs) -> None:
    """Add `gpi study run`."""
    action = actions.add_parser("run", help="run the jobs of a study, or continue them", description=DESCRIPTION)
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
