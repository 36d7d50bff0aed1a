"""A job as a process: its command, its environment, and what its end means; and the executor of this machine.

A job is `gpi train`, or `gpi resume` where its run has begun, in a separate process that ends with the process that
started it. Start it from the main thread: the kernel ends a child when the *thread* that made it ends.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Literal, NamedTuple

from gpi.standalone import Facts
from gpi.study.definition import Job, as_option
from gpi.study.directory import Layout, StudyDir, config_steps
from gpi.study.engine import machine_layout
from gpi.study.engine.begin import Runner
from gpi.study.engine.locks import require_locks
from gpi.terminal import plural
from gpi.training.devices import compilation_cache

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
    changed = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(config)[1:]
        if getattr(config, field.name) != field.default
    }  # fmt: skip
    words = [word for name, value in changed.items() for word in as_option(name, value)]
    return ["train", own or config.task, *words, "--out", str(run)]


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


class Process:
    """A job that runs in a process of this machine, in its own session; it writes to the job's log.

    In its own session Ctrl-C and a terminal that closes reach the runner alone, which then lets its jobs save.
    """

    why = ""

    def __init__(self, study: StudyDir, job: Job, environments: Mapping[str, str], gpu: str = ""):
        """Begin or continue a job."""
        log = study.log(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.asked, self.programs = False, cached_programs()
        with log.open("ab") as file:
            self.child = subprocess.Popen(
                command(study, job, environments), env=environment(study.layout, gpu), stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.facts: Facts = {"pid": self.child.pid}

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; None while it runs."""
        code = self.child.poll()
        if code is not None and code < 0:
            remove_programs_since(self.programs)
        return code

    def stop(self, *, now: bool = False) -> None:
        """Let it save and end, or kill it."""
        if self.child.poll() is None and (now or not self.asked):
            self.asked = True
            os.killpg(self.child.pid, signal.SIGKILL) if now else self.child.terminate()


def cached_programs() -> dict[Path, int]:
    """Return the entries of JAX's cache of compiled programs, with the times of their writing."""
    found = {}
    for path in Path(compilation_cache()).glob("*-cache"):
        with suppress(OSError):
            found[path] = path.stat().st_mtime_ns
    return found


def remove_programs_since(before: Mapping[Path, int]) -> None:
    """Remove entries that are new: JAX writes them in place, and never replaces one that a kill has cut short."""
    for path, time in cached_programs().items():
        if before.get(path) != time:
            with suppress(OSError):
                path.unlink()
                path.with_name(path.name.removesuffix("-cache") + "-atime").unlink(missing_ok=True)


class Local:
    """The executor of this machine: jobs are its processes, and its GPUs the places that they are dealt out to."""

    lost = ""
    decide, require = staticmethod(machine_layout.decide), staticmethod(machine_layout.require)

    def __init__(self, stack: ExitStack):
        """Get nothing ready yet; the end of `stack` gives back all that is taken later."""
        self.stack, self.room = stack, Counter[str]()

    def get_ready(self, runner: Runner) -> tuple[str, list[str]]:
        """Get ready for the jobs of a runner; return words that say where they run, and notes."""
        self.study, self.environments = runner.study, runner.options.environments
        if runner.options.shard is None:
            require_locks(runner.study.path, runner.file.path)
        layout = runner.study.layout
        here = machine_layout.places(layout, runner.todo, runner.options.jobs)
        shared = runner.todo and layout.platform == "gpu" and here.number > 1
        note = self.stack.enter_context(machine_layout.sharing()) if shared else ""
        self.room = Counter(islice(cycle(here.gpus or ("",)), here.number))
        each = f"{plural(layout.cores, 'core')} each{', sharing the GPU' * (layout.platform == 'gpu')}"
        return f"{here.number} side by side, {each}", [here.note, note]

    def places(self) -> Counter[str]:
        """Return how many jobs each place has room for: one for each GPU, else a single one."""
        return self.room

    def start(self, job: Job, place: str) -> Process:
        """Begin or continue a job."""
        return Process(self.study, job, self.environments, place if len(self.room) > 1 else "")


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
