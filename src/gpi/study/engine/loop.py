"""The engine: runs the jobs of a study until all are done. Begin, claim, start, poll, end: they come in this order.

A job belongs to the runner that has locked its file in `claims/`. The executor then runs it: as a process of
this machine (`jobs.Local`), or a task of a Ray cluster (`ray_jobs.OnRay`). How far a job is, is read from the study's
directory only. Durations use the monotonic clock.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from gpi.errors import DiskError, GpiError, UsageError, reason
from gpi.rundir.lock import take
from gpi.standalone import Facts
from gpi.study.definition import Job, load_study
from gpi.study.directory import Failure, is_done, last_timing, read_failure, write_failure
from gpi.study.engine.begin import (
    SPARE,
    Machine,
    Options,
    Runner,
    begin,
    chosen,
    free_bytes,
    keep_source,
    require_disk,
    still_written,
    unfinished,
)
from gpi.study.engine.jobs import BUSY, BUSY_SECONDS, FULL, FULL_SECONDS, RETRIES, Local, last_line, outcome, words_of
from gpi.study.engine.locks import runner_file
from gpi.study.engine.schedule import SAVING, Speeds, Stop, program_of
from gpi.study.engine.screen import Ended, Screen, Standing, final_return
from gpi.terminal import clock, plural
from gpi.training.signals import handling

TICK, LOOK, BEAT = 0.1, 1.0, 3.0  # seconds between looks at jobs, at their tables, and words to other runners
ELSEWHERE = 5.0  # seconds before a job that another runner has is tried again
LEADER = 120.0  # seconds after which a job that still compiles is not waited for
DISK_SECONDS = 2.0  # between looks whether a disk has room again
WINDOW = 60  # looks that a rate is taken over
PATIENCE = math.ceil(SAVING / BUSY_SECONDS)  # attempts after which a run directory in use is worth a line


class Task(Protocol):
    """A job that an executor has started."""

    facts: Facts
    """Where it runs, for other programs."""
    why: str
    """Why it ended, where its log cannot say it."""

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; None while it runs."""
        ...

    def stop(self, *, now: bool = False) -> None:
        """Let it save and end, or kill it."""
        ...


class Executor(Machine, Protocol):
    """What starts jobs, looks after them and stops them."""

    @property
    def lost(self) -> str:
        """What makes it useless from now on; empty while all is well."""
        ...

    def get_ready(self, runner: Runner) -> tuple[str, list[str]]:
        """Get ready for the jobs of a runner; return words that say where they run, and notes."""
        ...

    def places(self) -> Counter[str]:
        """Return how many jobs each place has room for at the moment."""
        ...

    def start(self, job: Job, place: str) -> Task:
        """Begin or continue a job; raise OSError if that is not possible now."""
        ...


@dataclass
class Waiting:
    """A job that is to be started, now or later."""

    job: Job
    program: str
    """The name of its compiled program."""
    best: int = 0
    """Steps of each seed at the furthest point it has ever reached."""
    failures: int = 0
    """Failures since it last made progress; one that was set aside before gets one more attempt."""
    attempts: int = 0
    noted: int = 0
    """Attempts recorded in its file of failure when this runner began; 0 if it had none."""
    ready: float = -math.inf
    """When it may be started, by the monotonic clock."""
    elsewhere: bool = False
    """Whether another runner had it when this one last tried."""
    busy: int = 0
    """How often in a row its run directory was in use: a job of a runner that was killed may still be saving."""


@dataclass
class Running:
    """A job that runs."""

    waiting: Waiting
    task: Task
    lock: int
    place: str
    began: float
    base: int
    """Steps of each seed that it continued from: a run that is resumed goes back to its checkpoint first."""
    steps: int = 0
    iterates: bool = False
    """Whether it has compiled its program and ended an iteration."""

    @property
    def gained(self) -> int:
        """Steps of all seeds in this process."""
        return self.waiting.job.config.seeds * max(0, self.steps - self.base)


# --- begin ----------------------------------------------------------------------------------------------------------


def run_study(
    source: str | Path, out: str | Path, options: Options | None = None, *, stream: TextIO | None = None,
    quiet: bool = False, executor: Callable[[ExitStack], Executor] = Local,
) -> Ended:  # fmt: skip
    """Run the jobs of a study in the directory `out`; return how that ended. Call it in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("a study must be run in the main thread, because its processes end with the thread they have")
    options = options or Options()
    wanted, stop = load_study(source, options.environments), Stop(options.seconds)
    with ExitStack() as stack:
        stack.enter_context(handling(stop))
        where = executor(stack)
        study = begin(wanted, Path(out), options, where)
        keep_source(study, source)
        jobs = chosen(study, wanted, options)
        todo = unfinished(study, jobs, options)
        require_disk(study, todo)
        runner = Runner(study, todo, options, stack.enter_context(runner_file(study.path)))
        words, notes = where.get_ready(runner)
        stack.enter_context(handling(stop))  # again, as Ray has taken the signals
        screen = stack.enter_context(Screen(stream, quiet=quiet))
        done = len(jobs) - len(todo)
        screen.say(f"{study.name}: {plural(len(jobs), 'job')}, {done} done; {words}; writing {study.path}")
        if again := sum(study.failure(job).exists() for job in todo):
            notes.append(f"{plural(again, 'job')} that had been set aside get one more attempt")
        for note in filter(None, [*notes, *wanted.notes]):
            screen.say(f"note: {note}")
        engine = Engine(runner, done, where, screen)
        engine.run(stop)
        return engine.ended(len(jobs), stop)


class Engine:
    """A runner's jobs: waiting, running, done, set aside."""

    def __init__(self, runner: Runner, done: int, executor: Executor, screen: Screen):
        """Take the jobs to do, beside those that are done; nothing starts yet."""
        (self.study, todo, self.options, self.file), self.executor, self.screen = runner, executor, screen
        self.speeds, self.compiled = Speeds(), set[str]()
        self.waiting, self.running = list[Waiting](), list[Running]()
        for job in self.study.jobs:
            self.speeds.note(job, *last_timing(self.study.run(job)))
        for job in todo:
            best, tries = last_timing(self.study.run(job))[0], self._tries(job)
            self.waiting.append(Waiting(job, program_of(job), best, RETRIES if tries else 0, tries, tries))
        self.done, self.aside = done, dict[str, Failure]()
        self.steps = 0  # of all seeds of jobs that ended in this session
        self.began, self.looked, self.beat = time.monotonic(), -math.inf, -math.inf
        self.marks: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.said: set[str] = set()
        self.stopping, self.killed = False, 0
        self.room = -math.inf  # when to look again whether the disk has room

    def _tries(self, job: Job) -> int:
        """Return how often a job that is set aside was tried; 0 if it is not."""
        with suppress(GpiError, OSError):
            failure = read_failure(self.study, job)
            return max(1, failure.attempts) if failure else 0
        return 0

    def run(self, stop: Stop) -> None:
        """Run jobs until none is left that this runner can run, or `stop` says so; no job outlives this."""
        try:
            while True:
                self._poll()
                self._heed(stop)
                while not stop.asked and self._start_next(stop):
                    pass
                self._tell()
                left = [one for one in self.waiting if not one.elsewhere and self._fits(one, stop)]
                if not self.running and (stop.asked or self.executor.lost or not left):
                    return
                time.sleep(TICK)
        finally:
            self._abandon()

    # --- claim ------------------------------------------------------------------------------------------------------

    def _start_next(self, stop: Stop) -> bool:
        """Start the longest of the jobs that can be, at the place with most room; return whether there was one.

        Jobs whose program another is compiling come last: if nothing else is left they start all the same, as they
        would be ready no sooner by waiting for it with an idle core.
        """
        now, free = time.monotonic(), self.executor.places() - Counter(one.place for one in self.running)
        ready = [one for one in self.waiting if free and one.ready <= now and self._fits(one, stop)]
        compiling = {one.waiting.program for one in self.running if not one.iterates and now - one.began < LEADER}
        compiling -= self.compiled
        ready.sort(key=lambda one: (one.program in compiling, -self.speeds.remaining(one.job, one.best)))
        for one in ready:
            lock = self._claim(one)
            if lock is not None:
                return self._start(one, lock, max(free, key=lambda place: free[place]))
        return False

    def _fits(self, one: Waiting, stop: Stop) -> bool:
        """Return whether a job may be begun: always, unless only whole jobs are wanted and time is short for it."""
        if not self.options.whole_jobs or self.speeds.ratio(one.job) is None:
            return True
        return self.speeds.remaining(one.job, one.best) <= stop.seconds_left()

    def _claim(self, one: Waiting) -> int | None:
        """Lock a job for this runner; None if another has it or has ended it, or if it cannot begin now."""
        job, now = one.job, time.monotonic()
        if now < self.room:
            return None
        try:
            self.study.claim(job).parent.mkdir(parents=True, exist_ok=True)
            lock = take(self.study.claim(job))
        except OSError as error:
            self._postpone(one, f"cannot be locked: {reason(error)}")
            return None
        if lock is None:
            one.elsewhere, one.ready = True, now + ELSEWHERE
            return None
        one.elsewhere = False
        if is_done(self.study, job):
            self.waiting.remove(one)
            self.done += 1
        elif self._tries(job) != one.noted:  # another runner has just tried it
            self.waiting.remove(one)
            self.aside[job.name] = read_failure(self.study, job) or Failure("", 1, 1)
        elif self._has_room(job):
            return lock
        os.close(lock)
        return None

    def _has_room(self, job: Job) -> bool:
        """Return whether the disk can hold what a job will write; say so when that changes, and look again soon."""
        needed, free = still_written(self.study, job) + SPARE, free_bytes(self.study.path)
        if free >= needed:
            if "disk" in self.said:
                self.said.discard("disk")
                self.screen.say("the disk has room again")
            return True
        self.room = time.monotonic() + DISK_SECONDS
        numbers = f"it needs about {needed / 1e6:,.0f} MB, the disk has {free / 1e6:,.0f} MB"
        self._say_once("disk", f"wait   {job.name}: {numbers}; free space, and it continues")
        return False

    def _postpone(self, one: Waiting, why: str) -> None:
        """Let a job wait, and say so once."""
        one.ready = time.monotonic() + FULL_SECONDS
        self._say_once(one.job.name, f"wait   {one.job.name} {why}")

    def _say_once(self, what: str, line: str) -> None:
        """Say a line, unless one of the same kind has been said."""
        if what not in self.said:
            self.said.add(what)
            self.screen.say(line)

    # --- start ------------------------------------------------------------------------------------------------------

    def _start(self, one: Waiting, lock: int, place: str) -> bool:
        """Start a job that this runner has locked; return whether that worked."""
        try:
            task = self.executor.start(one.job, place)
        except OSError as error:
            os.close(lock)
            self._postpone(one, f"cannot be started: {reason(error)}")
            return False
        self.waiting.remove(one)
        self.running.append(Running(one, task, lock, place, time.monotonic(), one.best))
        one.attempts += 1
        return True

    # --- poll -------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Look which jobs have ended."""
        for one in list(self.running):
            code = one.task.poll()
            if code is not None:
                self._look(one)
                self.running.remove(one)
                self._end(one, code)
                os.close(one.lock)

    def _look(self, one: Running) -> None:
        """Read how far a job is: once it has gone on, its program is compiled."""
        one.steps, seconds = last_timing(self.study.run(one.waiting.job))
        one.base = min(one.base, one.steps)
        one.iterates = one.iterates or one.steps > one.base
        if one.iterates:
            self.compiled.add(one.waiting.program)
            self.speeds.note(one.waiting.job, one.steps, seconds)

    def _tell(self) -> None:
        """Once a second look how far jobs are, and show it to the user and to other processes."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        for one in self.running:
            self._look(one)
        if not self.executor.places() and not self.executor.lost:
            self._say_once("nodes", "wait   no node is left that can run a job; the study continues when one joins")
        self.marks.append((now, self.steps + sum(one.gained for one in self.running)))
        (t0, s0), (t1, s1) = self.marks[0], self.marks[-1]
        rate = (s1 - s0) / (t1 - t0) if t1 > t0 else math.nan
        mine = [one for one in self.waiting if not one.elsewhere]
        running = [
            {**one.task.facts, "job": one.waiting.job.name, "steps": one.steps, "seconds": round(now - one.began, 1)}
            for one in self.running
        ]  # fmt: skip
        shares = [(one.waiting.job.name, min(1.0, one.steps / one.waiting.job.config.steps)) for one in self.running]
        elsewhere = len(self.waiting) - len(mine)
        self.screen.show(Standing(self.done, shares, len(mine), len(self.aside), elsewhere, rate, self._left(mine)))
        if now - self.beat >= BEAT:
            self.beat = now
            known = round(rate, 1) if rate == rate else None
            self.file.write({"running": running, "waiting": len(mine), "steps_per_second": known})

    def _left(self, mine: Sequence[Waiting]) -> float:
        """Return about how many seconds all jobs still take; NaN before a run has shown its speed."""
        ahead = [self.speeds.remaining(one.job, one.best) for one in mine]
        ahead += [self.speeds.remaining(one.waiting.job, one.steps, begun=one.iterates) for one in self.running]
        slots = max(1, self.executor.places().total())
        return max([sum(ahead) / slots, *ahead], default=0.0) if self.speeds.ratios else math.nan

    # --- end --------------------------------------------------------------------------------------------------------

    def _end(self, running: Running, code: int) -> None:
        """Do what follows from the end of a job."""
        one, job = running.waiting, running.waiting.job
        if running.steps > one.best:
            one.best, one.failures = running.steps, 0
        self.steps += running.gained
        result = outcome(code, complete=is_done(self.study, job), failures=one.failures)
        one.failures += result.counts
        line = running.task.why or last_line(self.study.log(job))
        if result.verdict == "done":
            self.done += 1
            with suppress(OSError):
                self.study.failure(job).unlink(missing_ok=True)
            took = clock(time.monotonic() - running.began)
            self.screen.say(f"done   {job.name}: {final_return(self.study.run(job))}, {took}")
        elif result.verdict == "aside":
            self._set_aside(job, Failure(line or words_of(code), code, one.attempts))
        else:
            one.ready = time.monotonic() + result.wait
            one.busy = one.busy + 1 if code == BUSY else 0
            self.waiting.append(one)
            self.killed += self.stopping and code == -signal.SIGKILL
            why = running.task.why
            if (result.counts or why or code == FULL or one.busy >= PATIENCE) and not self.stopping:
                said = why or (words_of(code) if code < 0 else line)
                self._say_once(f"{job.name} {code}", f"again  {job.name}: {said}")

    def _set_aside(self, job: Job, failure: Failure) -> None:
        """Set a job aside, with its line, so that the others continue."""
        self.aside[job.name] = failure
        self.screen.say(f"failed {job.name}, set aside: {failure.line}")
        try:
            write_failure(self.study, job, failure)
        except (DiskError, OSError) as error:
            self.screen.say(f"note: {error}")

    def _heed(self, stop: Stop) -> None:
        """Let all jobs save and end when the runner is to end; kill them when that must be now."""
        if stop.asked and not self.stopping:
            self.stopping = True
            saving = f"saving {plural(len(self.running), 'job')}; a second Ctrl-C kills what has not saved"
            self.screen.say(f"{stop.why}: {saving if self.running else 'nothing runs'}")
        for one in self.running if self.stopping else ():
            one.task.stop(now=stop.now)

    def _abandon(self) -> None:
        """Let jobs that an internal error left running save and end."""
        limit = time.monotonic() + SAVING
        while self.running and time.monotonic() < limit:
            for one in self.running:
                one.task.stop()
            self.running = [one for one in self.running if one.task.poll() is None]
            time.sleep(TICK)
        for one in self.running:
            one.task.stop(now=True)

    def ended(self, jobs: int, stop: Stop) -> Ended:
        """Return how this runner ended; what others have done meanwhile is done."""
        late = [one for one in self.waiting if one.elsewhere and is_done(self.study, one.job)]
        elsewhere = sum(one.elsewhere for one in self.waiting) - len(late)
        return Ended(
            self.study.path, jobs, self.done + len(late), self.aside, elsewhere, self.steps,
            time.monotonic() - self.began, stop.signals[0] if stop.signals else None, stop.seconds_left() <= 0.0,
            self.killed, self.executor.lost,
        )  # fmt: skip
