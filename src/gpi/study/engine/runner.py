"""`run_study`: run the jobs of a study on this machine, beside other runners of the same directory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TextIO

from gpi.errors import GpiError
from gpi.study.definition import Job, load_study
from gpi.study.directory import Failure, StudyDir, is_done, last_timing
from gpi.study.engine.begin import Options, begin, chosen, keep_source, require_disk
from gpi.study.engine.compile_cache import CompileCache
from gpi.study.engine.gpus import sharing
from gpi.study.engine.locks import require_locks
from gpi.study.engine.loop import Engine, Parts
from gpi.study.engine.machine_layout import Places, places
from gpi.study.engine.programs import Compiled
from gpi.study.engine.runners import runner_file
from gpi.study.engine.screen import Screen
from gpi.study.engine.speeds import Speeds
from gpi.study.engine.stopping import stoppable
from gpi.study.gathered import covered
from gpi.terminal import clock, plural, thousands
from gpi.training.devices import compilation_cache

SOME_FAILED, TIME_UP = 8, 9  # exit codes


class Ended(NamedTuple):
    """How a runner ended."""

    path: Path
    jobs: int
    """Jobs that were this runner's to do."""
    done: int
    failed: Mapping[str, Failure]
    """Jobs that were set aside, by name."""
    elsewhere: int
    """Jobs that other runners had."""
    steps: int
    """Steps of all seeds that were taken."""
    seconds: float
    signal: int | None
    """The signal that ended it early."""
    time_up: bool = False
    killed: int = 0
    """Jobs that were killed before they had saved."""
    why: str = ""
    """What else ended it early, and what became of its jobs."""

    @property
    def left(self) -> int:
        """Unfinished jobs that no runner has now, besides the failed ones."""
        return self.jobs - self.done - len(self.failed) - self.elsewhere

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        if self.signal is not None and self.left:
            return 128 + self.signal
        if self.failed:
            return SOME_FAILED
        return TIME_UP if self.left else 0


def run_study(
    source: str | Path, out: str | Path, options: Options | None = None, *, stream: TextIO | None = None,
    quiet: bool = False,
) -> Ended:  # fmt: skip
    """Run the jobs of a study in the directory `out`; return how that ended. Call it in the main thread."""
    options, out = options or Options(), Path(out)
    wanted = load_study(source, options.environments)
    with stoppable(options.seconds) as stop, ExitStack() as stack:
        study = begin(wanted, out, options)
        keep_source(study, source)
        jobs = chosen(study, wanted, options)
        file = stack.enter_context(runner_file(study.path))
        if options.shard is None:
            require_locks(study.path, file.path)
        finished = covered(study, options.environments) | {job.name for job in jobs if safely_done(study, job)}
        todo = [job for job in jobs if job.name not in finished]
        require_disk(study, todo)
        here = places(study.layout, todo, options.jobs)
        screen = stack.enter_context(Screen(stream, quiet=quiet))
        announce(screen, study, jobs, todo, here)
        for note in wanted.notes:
            screen.say(f"note: {note}")
        if todo and study.layout.platform == "gpu" and here.number > 1:
            note = stack.enter_context(sharing())
            screen.say(f"note: {note}") if note else None
        cache = Path(compilation_cache())
        parts = Parts(screen, file, CompileCache(cache), Compiled(cache), measured(study, jobs))
        engine = Engine(study, todo, len(jobs) - len(todo), here, options, parts)
        engine.mend_cache()
        began = time.monotonic()
        engine.run(stop)
        engine.settle()
        ended = Ended(
            study.path, len(jobs), engine.done, engine.aside, engine.standing().elsewhere, engine.steps,
            time.monotonic() - began, stop.signals[0] if stop.signals else None, stop.time_is_up, engine.killed,
        )  # fmt: skip
    return ended


def safely_done(study: StudyDir, job: Job) -> bool:
    """Return whether a job has all its steps; one whose DONE cannot be read is tried, and says why."""
    try:
        return is_done(study, job)
    except (GpiError, OSError):
        return False


def measured(study: StudyDir, jobs: Sequence[Job]) -> Speeds:
    """Return the speeds that runs of the study have had."""
    speeds = Speeds()
    for job in jobs:
        speeds.note(job, *last_timing(study.run(job)))
    return speeds


def announce(screen: Screen, study: StudyDir, jobs: Sequence[Job], todo: Sequence[Job], here: Places) -> None:
    """Show how many jobs are about to run, and where."""
    layout = study.layout
    each = f"{plural(layout.cores, 'core')} each{', sharing the GPU' * (layout.platform == 'gpu')}"
    screen.say(
        f"{study.name}: {plural(len(jobs), 'job')}, {len(jobs) - len(todo)} done; {here.number} side by side, {each}; "
        f"writing {study.path}"
    )
    if here.note:
        screen.say(f"note: {here.note}")
    again = sum(study.failure(job).exists() for job in todo)
    if again:
        screen.say(f"note: {plural(again, 'job')} that had been set aside get one more attempt")


def summary(ended: Ended, command: str) -> list[str]:
    """Return the last lines of a runner's output: the jobs done, the jobs left, and the next command."""
    rate = f", {thousands(ended.steps / ended.seconds)} steps/s" if ended.steps and ended.seconds > 0 else ""
    took = f"{clock(ended.seconds)}, {thousands(ended.steps)} steps{rate}"
    lines = [f"{ended.done} of {plural(ended.jobs, 'job')} done; {took}"]
    lines += [f"set aside: {name}: {failure.line}" for name, failure in ended.failed.items()]
    if ended.elsewhere:
        lines.append(f"{plural(ended.elsewhere, 'job')} left to other runners of this directory")
    if ended.left:
        why = "interrupted" if ended.signal else "time is up" if ended.time_up else "no other job would end in time"
        lost = f"{plural(ended.killed, 'job')} killed before saving"
        lines.append(f"{ended.why or f'{why}, ' + (lost if ended.killed else 'all saved')}; `{command}` continues")
    elif ended.failed:
        lines.append(f"`{command}` retries the jobs set aside")
    if ended.done:
        lines.append(f"next: gpi study report {ended.path}")
    return lines
