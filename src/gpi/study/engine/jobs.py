"""A job as a process: its command, its environment, and what its end means. Every engine runs jobs by these functions.

A job is `gpi train`, or `gpi resume` where its run has begun, in a separate process that ends with the process that
started it. `start` must be called from the main thread: the kernel ends a child when the *thread* that made it ends.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from gpi.config import Config
from gpi.study.definition import Job
from gpi.study.directory import Layout, StudyDir, config_steps

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OF_LAYOUT = ("JAX_", "XLA_", "PJRT_")  # variables that change results in their last bits begin like this
OF_MACHINE = ("JAX_COMPILATION_CACHE_", "JAX_PERSISTENT_CACHE_")  # ... these do not
SAVED = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
BUSY, FULL = 4, 5  # exit codes: the run directory is in use, the disk is full
HOPELESS = (2, 3, 6, 7)  # exit codes that would come again
BUSY_SECONDS, FULL_SECONDS, KILLED_SECONDS = 5.0, 60.0, 30.0
RETRIES = 2  # after an unexplained end
KILLS = 20  # in a row, without progress
LINE = 500  # characters of a job's last line


class Outcome(NamedTuple):
    """The action to take after a job's process has ended."""

    verdict: Literal["done", "again", "aside"]
    wait: float = 0.0
    """Seconds before it may begin again."""
    counts: bool = False
    """Whether this end is one of the failures that `outcome` is told of next time; progress forgets them."""


def command(study: StudyDir, job: Job, environments: Mapping[str, str]) -> list[str]:
    """Return the command that begins or continues a job, as a child of this process.

    `environments` gives the user's own environments, as module:id, by the names they have in the study. `-P`: no file
    of the current directory may take the place of a module of Python or of a package.
    """
    child = [sys.executable, "-P", "-m", "gpi.cli.child", str(os.getpid())]
    return [*child, *arguments(study, job, environments)]


def arguments(study: StudyDir, job: Job, environments: Mapping[str, str]) -> list[str]:
    """Return the arguments that `gpi` is called with: train, or resume if the job has begun."""
    run, own = study.run(job), environments.get(job.task)
    if (run / "config.json").exists():
        steps = max(job.config.steps, config_steps(run))
        return ["resume", str(run), *(["--env", own] if own else []), "--steps", str(steps)]
    config = dataclasses.replace(job.config, threads=job.config.threads or study.layout.cores)
    return ["train", own or config.task, *options(config), "--out", str(run)]


def options(config: Config) -> list[str]:
    """Return every setting that is not its default, as options of `gpi train`."""
    words: list[str] = []
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        if field.name == "task" or value == field.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return words


def environment(layout: Layout, gpu: str = "") -> dict[str, str]:
    """Return the whole environment of a job's process: the user's, with what results depend on as the study has it.

    `gpu` names the one of several that the job is to use.
    """
    kept = {
        name: value for name, value in os.environ.items()
        if not name.startswith(OF_LAYOUT) or name.startswith(OF_MACHINE)
    }  # fmt: skip
    chosen = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    return {**kept, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONUNBUFFERED": "1", **chosen, **layout.environment}


def start(study: StudyDir, job: Job, environments: Mapping[str, str], gpu: str = "") -> subprocess.Popen[bytes]:
    """Begin or continue a job in a new process and session; it writes to the job's log.

    In its own session Ctrl-C and a terminal that closes reach the runner alone, which then lets its jobs save.
    """
    log = study.log(job)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command(study, job, environments), env=environment(study.layout, gpu), stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def outcome(code: int, *, complete: bool, failures: int) -> Outcome:
    """Return what follows from the end of a job's process.

    `code` is its exit code, or minus the signal that killed it, as `subprocess` has it; `complete`, whether the job now
    has all its steps; `failures`, how many of its ends have counted since it last got further than ever before.
    """
    if complete:
        return Outcome("done")
    if code in SAVED or -code in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        return Outcome("again")
    if code in (BUSY, FULL):
        return Outcome("again", BUSY_SECONDS if code == BUSY else FULL_SECONDS)
    if code == -signal.SIGKILL:  # by a person, or because memory is short, which may pass
        wait = min(KILLED_SECONDS, 2.0 ** (failures - 1)) if failures else 0.0
        return Outcome("aside" if failures >= KILLS else "again", wait, counts=True)
    if code in HOPELESS or failures >= RETRIES:
        return Outcome("aside", counts=True)
    return Outcome("again", counts=True)


def words_of(code: int) -> str:
    """Return the end of a process in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def last_line(log: Path) -> str:
    """Return the last line that a job's process wrote, fit to be shown."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16 * LINE))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [plain for line in text.splitlines() if (plain := re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", line).strip())]
    return lines[-1][:LINE] if lines else ""
