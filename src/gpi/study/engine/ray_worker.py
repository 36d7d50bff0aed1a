"""What a node of a Ray cluster does for a study: look around, and run one job at a time. Text goes in and comes out.

A job belongs to the process that has the lock of its file in `claims/`. The file has the number of the last attempt,
which fences off older ones: a node that was given up for lost may still run a job, and ends it when it sees a higher
number. Until then the locks, of `claims/` and of the run directory, keep the new attempt waiting: two never write.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpi.config import config_of
from gpi.errors import GpiError, UsageError
from gpi.standalone import Facts
from gpi.study.definition import Job
from gpi.study.directory import StudyDir, is_done, last_timing, open_study
from gpi.study.engine import machine_layout
from gpi.study.engine.compile_cache import CompileCache
from gpi.study.engine.jobs import BUSY, last_line, start, words_of
from gpi.study.engine.locks import take
from gpi.study.engine.runners import lives, runner_file
from gpi.training.devices import compilation_cache

TICK, BEAT = 0.2, 3.0  # seconds between looks at a process, and words to other runners
SAVING = 180.0  # seconds that a job has to end its iteration and to save
MISPLACED = 5.0  # seconds that a job which does not fit this node waits for another
DIGITS = 12  # of an attempt's number
Task = Callable[[str], str]


def look_around(text: str) -> str:
    """Return what this node is like, and whether it sees a file of the study and that another node has locked it."""
    wanted = json.loads(text)
    path = Path(wanted["file"])
    try:
        sees = wanted["content"] in path.read_text(errors="replace")
        locked = sees and lives(path)
    except OSError:
        sees = locked = False
    return json.dumps({
        "host": platform.node(), "versions": machine_layout.versions_here(), "sees": sees, "locked": locked,
        "nice": os.nice(0), "authentication": os.environ.get("RAY_AUTH_MODE", ""),
    })  # fmt: skip


def decide(text: str) -> str:
    """Return the layout of a study that begins on a node like this one, or why there is none."""
    wanted = json.loads(text)
    jobs = [Job("", "", config_of(config)) for config in wanted["configs"]]
    try:
        layout = machine_layout.decide(jobs, wanted["cores"])
        if layout.cores > wanted["most"]:  # Ray was told to use only a part of the machine
            layout = machine_layout.decide(jobs, wanted["most"])
        return json.dumps({"layout": dataclasses.asdict(layout)})
    except UsageError as error:
        return json.dumps({"error": str(error)})


def run_job(text: str) -> str:
    """Begin or continue a job, and return how its process ended; exit code 4 if another process has it."""
    order = json.loads(text)
    study = open_study(Path(order["directory"]))
    job = next(job for job in study.jobs if job.name == order["job"])
    try:
        machine_layout.require(study.layout)
    except UsageError as error:
        time.sleep(MISPLACED)
        return json.dumps({"code": BUSY, "line": f"{platform.node()}: {error}", "misplaced": True})
    lock = take(claim(study, job))
    if lock is None:
        return json.dumps({"code": BUSY, "line": "another runner has it"})
    try:
        code = supervised(study, job, order["environments"], order["attempt"])
        return json.dumps({"code": code, "line": words_of(code) if code < 0 else last_line(study.log(job))})
    finally:
        os.close(lock)


def supervised(study: StudyDir, job: Job, environments: Mapping[str, str], attempt: int) -> int:
    """Run a job until it ends, or until another attempt is to run it; return its exit code."""
    if complete(study, job):
        return 0
    if attempt > 1:  # the last process may have been killed while it wrote a compiled program
        CompileCache(Path(compilation_cache())).repair()
    with runner_file(study.path) as file:
        if attempt_of(study, job) > attempt:
            return 128 + signal.SIGTERM
        child, began, beat = start(study, job, environments), time.monotonic(), 0.0
        try:
            while child.poll() is None and attempt_of(study, job) <= attempt:
                if time.monotonic() - beat >= BEAT:
                    beat = time.monotonic()
                    file.write({"node": node_id(), "running": [facts_of(study, job, child, began, attempt)]})
                time.sleep(TICK)  # a blocking wait could not be cancelled
        finally:
            end(child)
        return child.returncode


def facts_of(study: StudyDir, job: Job, child: subprocess.Popen[bytes], began: float, attempt: int) -> Facts:
    """Return what a runner's file says of a job that runs."""
    steps, seconds = last_timing(study.run(job))[0], round(time.monotonic() - began, 1)
    return {"job": job.name, "attempt": attempt, "pid": child.pid, "steps": steps, "seconds": seconds}


def node_id() -> str:
    """Return how Ray names this node; empty where Ray does not run this process."""
    ray: Any = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray and ray.is_initialized() else ""


def end(child: subprocess.Popen[bytes]) -> None:
    """Let a process save and end, by SIGTERM: in what Ray starts, SIGINT is blocked."""
    limit = time.monotonic() + SAVING
    if child.poll() is None:
        child.terminate()
    while child.poll() is None:
        if time.monotonic() >= limit:
            child.kill()
        time.sleep(TICK)


def complete(study: StudyDir, job: Job) -> bool:
    """Return whether a job has all its steps; a DONE that cannot be read is left to `gpi resume` to complain of."""
    try:
        return is_done(study, job)
    except (GpiError, OSError):
        return False


def claim(study: StudyDir, job: Job) -> Path:
    """Return the file whose lock says who runs a job, and whose content which attempt may."""
    return study.path / "claims" / job.name


def attempt_of(study: StudyDir, job: Job) -> int:
    """Return the number of the last attempt to run a job; it is read anew, as another host may have written it."""
    try:
        text = claim(study, job).read_text(errors="replace").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def next_attempt(study: StudyDir, job: Job) -> int:
    """Number a new attempt to run a job, which fences off all that were before."""
    path, number = claim(study, job), attempt_of(study, job) + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:  # in place and never shorter: the lock is on this very file
        os.pwrite(fd, f"{number:0{DIGITS}d}\n".encode(), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return number
