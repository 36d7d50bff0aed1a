"""The local engine: runs the jobs of a study as processes of this machine, side by side, until all are done.

Job state is read from the study's directory only. Durations use the monotonic clock.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpi.errors import DiskError, GpiError, reason
from gpi.rundir.run import Run
from gpi.study.definition import Job
from gpi.study.directory import Failure, StudyDir, is_done, last_timing, read_failure, write_failure
from gpi.study.engine import jobs as processes
from gpi.study.engine.begin import SPARE, Options, free_bytes, still_written
from gpi.study.engine.compile_cache import CompileCache, stamp
from gpi.study.engine.locks import take
from gpi.study.engine.machine_layout import Places
from gpi.study.engine.programs import Compiled, program_of
from gpi.study.engine.queue import Running, Waiting, next_gpu
from gpi.study.engine.runners import RunnerFile
from gpi.study.engine.screen import Screen, Standing
from gpi.study.engine.speeds import Speeds
from gpi.study.engine.stopping import SAVING, Stop
from gpi.terminal import clock, plural

TICK, LOOK, BEAT = 0.1, 1.0, 3.0  # seconds between looks at processes, at their tables, and words to other runners
ELSEWHERE = 5.0  # seconds before a job that another runner has is tried again
LEADER = 120.0  # seconds after which a job that still compiles is not waited for
DISK_SECONDS = 2.0  # between looks whether a disk has room again
WINDOW = 60  # looks that a rate is taken over


class Parts(NamedTuple):
    """What the engine works with."""

    screen: Screen
    file: RunnerFile
    cache: CompileCache
    compiled: Compiled
    speeds: Speeds


class Engine:
    """A runner's jobs: waiting, running, done, set aside."""

    def __init__(self, study: StudyDir, todo: Sequence[Job], done: int, places: Places, options: Options, parts: Parts):
        """Take the jobs to do; nothing starts yet."""
        self.study, self.places, self.options = study, places, options
        self.screen, self.file, self.cache, self.compiled, self.speeds = parts
        self.waiting = [self._entry(job) for job in todo]
        self.running: list[Running] = []
        self.done, self.aside = done, dict[str, Failure]()
        self.steps = 0  # of all seeds of jobs that ended in this session
        self.began, self.looked, self.beat = time.monotonic(), -math.inf, -math.inf
        self.marks: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.said: set[str] = set()
        self.stopping, self.killed = False, 0
        self.room = -math.inf  # when to look again whether the disk has room

    def _entry(self, job: Job) -> Waiting:
        """Return a job as one that waits; one that was set aside before gets one attempt."""
        taken, _ = last_timing(self.study.run(job))
        noted = self._attempts(job)
        return Waiting(
            job, program_of(job, self.study.layout), best=taken, failures=processes.RETRIES if noted else 0,
            attempts=noted, noted=noted,
        )  # fmt: skip

    def _attempts(self, job: Job) -> int:
        """Return how often a job that is set aside was tried; 0 if it is not."""
        with suppress(GpiError, OSError):
            failure = read_failure(self.study, job)
            return max(1, failure.attempts) if failure else 0
        return 0

    def run(self, stop: Stop) -> None:
        """Run jobs until none is left that this runner can run, or `stop` says so; no process outlives this."""
        try:
            while True:
                looked = self._collect()
                self._heed(stop)
                self._fill(stop)
                if looked:
                    self._tell()
                if not self.running and not self._can_go_on(stop):
                    return
                time.sleep(TICK)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Let jobs that an internal error left running save and end."""
        for one in self.running:
            one.process.terminate()
        for one in self.running:
            try:
                one.process.wait(SAVING)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()

    # --- starting ---------------------------------------------------------------------------------------------------

    def _fill(self, stop: Stop) -> None:
        """Start jobs while there are places for them."""
        while not stop.asked and len(self.running) < self.places.number:
            found = self._next(stop)
            if found is None or not self._start(*found):
                return

    def _next(self, stop: Stop) -> tuple[Waiting, int] | None:
        """Return the job to start now, the longest of those that can, and the lock that this runner then has on it.

        Jobs whose program another is compiling come last: if nothing else is left they start all the same, as they
        would be ready no sooner by waiting for it with an idle core.
        """
        now = time.monotonic()
        ready = [one for one in self.waiting if one.ready <= now and self._fits(one, stop)]
        ready.sort(key=lambda one: (self._is_being_compiled(one.program), -self.speeds.remaining(one.job, one.best)))
        for one in ready:
            lock = self._claim(one) if time.monotonic() >= self.room else None
            if lock is not None:
                return one, lock
        return None

    def _fits(self, one: Waiting, stop: Stop) -> bool:
        """Return whether a job may be begun: always, unless only whole jobs are wanted and time is short for it."""
        if not self.options.whole_jobs or self.speeds.ratio(one.job) is None:
            return True
        return self.speeds.remaining(one.job, one.best) <= stop.seconds_left()

    def _is_being_compiled(self, program: str) -> bool:
        """Return whether a job that runs is compiling this program for all."""
        now = time.monotonic()
        return not self.compiled.has(program) and any(
            one.waiting.program == program and not one.iterates and now - one.began < LEADER for one in self.running
        )

    def _claim(self, one: Waiting) -> int | None:
        """Lock a job for this runner; None, and the reason noted, if it cannot be started now."""
        job, now = one.job, time.monotonic()
        try:
            lock = take(self.study.path / "claims" / job.name)
        except OSError as error:
            return self._postpone(one, processes.FULL_SECONDS, f"cannot be locked: {reason(error)}")
        if lock is None:
            one.elsewhere, one.ready = True, now + ELSEWHERE
            return None
        one.elsewhere = False
        if self._is_done(job):
            self.waiting.remove(one)
            self.done += 1
        elif self._attempts(job) != one.noted:  # another runner has just tried it
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
        if "disk" not in self.said:
            self.said.add("disk")
            self.screen.say(
                f"wait   {job.name}: it needs about {needed / 1e6:,.0f} MB, the disk has {free / 1e6:,.0f} MB; "
                "free space, and it continues"
            )
        return False

    def _postpone(self, one: Waiting, seconds: float, why: str) -> None:
        """Let a job wait, and say so once."""
        one.ready = time.monotonic() + seconds
        if one.job.name not in self.said:
            self.said.add(one.job.name)
            self.screen.say(f"wait   {one.job.name} {why}")

    def _start(self, one: Waiting, lock: int) -> bool:
        """Start a job that this runner has locked; return whether there may be another."""
        gpu, job = next_gpu(self.places.gpus, self.running), one.job
        try:
            process = processes.start(self.study, job, self.options.environments, gpu)
        except OSError as error:
            os.close(lock)
            self._postpone(one, processes.FULL_SECONDS, f"cannot be started: {reason(error)}")
            return False
        self.waiting.remove(one)
        table = self.study.run(job) / "timing.csv"
        self.running.append(Running(one, process, lock, gpu, time.monotonic(), stamp(table), one.best))
        one.attempts += 1
        return True

    # --- looking ----------------------------------------------------------------------------------------------------

    def _collect(self) -> bool:
        """Look which processes have ended, and once a second how far the others are; return whether it was time to."""
        for one in list(self.running):
            code = one.process.poll()
            if code is not None:
                self._look(one)
                self.running.remove(one)
                self._end(one, code)
                os.close(one.lock)
        now = time.monotonic()
        if now - self.looked < LOOK:
            return False
        self.looked = now
        for one in self.running:
            self._look(one)
        self.marks.append((now, self.steps + sum(one.gained for one in self.running)))
        return True

    def _look(self, one: Running) -> None:
        """Read how far a job is: once it has begun a row of its table, its program is compiled."""
        run = self.study.run(one.job)
        if one.iterates or stamp(run / "timing.csv") not in (None, one.table):
            one.steps, seconds = last_timing(run)
            one.iterates = one.iterates or one.steps > 0
            one.base = min(one.base, one.steps)  # a run that is resumed goes back to its checkpoint first
            if one.iterates:
                self.compiled.add(one.waiting.program)
                self.speeds.note(one.job, one.steps, seconds)

    def _is_done(self, job: Job) -> bool:
        """Return whether a job has all its steps; a DONE that cannot be read is left to `gpi resume` to complain of."""
        with suppress(GpiError, OSError):
            return is_done(self.study, job)
        return False

    # --- ends -------------------------------------------------------------------------------------------------------

    def _end(self, running: Running, code: int) -> None:
        """Do what follows from the end of a job's process."""
        one, job = running.waiting, running.job
        if running.steps > one.best:
            one.best, one.failures = running.steps, 0
        self.steps += running.gained
        result = processes.outcome(code, complete=self._is_done(job), failures=one.failures)
        one.failures += result.counts
        if code < 0:
            self.mend_cache()
        line = processes.last_line(self.study.log(job))
        if result.verdict == "done":
            self.done += 1
            with suppress(OSError):
                self.study.failure(job).unlink(missing_ok=True)
            self.screen.say(f"done   {job.name}: {final_return(self.study.run(job))}, {self._age(running)}")
        elif result.verdict == "aside":
            self.aside[job.name] = Failure(line or processes.words_of(code), code, one.attempts)
            set_aside(self.study, job, self.aside[job.name], self.screen)
        else:
            one.ready = time.monotonic() + result.wait
            self.waiting.append(one)
            self.killed += self.stopping and code == -signal.SIGKILL
            news = not one.patient(code) and (result.counts or code in (processes.BUSY, processes.FULL))
            if news and not self.stopping:
                self._say_again(job, code, line)

    def _age(self, running: Running) -> str:
        """Return how long a process ran."""
        return clock(time.monotonic() - running.began)

    def _say_again(self, job: Job, code: int, line: str) -> None:
        """Say once why a job will be started again."""
        if f"{job.name} {code}" not in self.said:
            self.said.add(f"{job.name} {code}")
            self.screen.say(f"again  {job.name}: {processes.words_of(code) if code < 0 else line}")

    def mend_cache(self) -> None:
        """Remove entries of the compilation cache that a kill has cut short."""
        if removed := self.cache.repair():
            self.compiled.forget()
            self.screen.say(f"note: removed {len(removed)} damaged entries of the compilation cache {self.cache.path}")

    # --- stopping ---------------------------------------------------------------------------------------------------

    def _heed(self, stop: Stop) -> None:
        """Let all jobs save and end when the runner is to end; kill them when that must be now."""
        if stop.asked and not self.stopping:
            self.stopping = True
            saving = f"saving {plural(len(self.running), 'job')}; a second Ctrl-C kills what has not saved"
            self.screen.say(f"{stop.why}: {saving if self.running else 'nothing runs'}")
            for one in self.running:
                one.process.terminate()
        if stop.now:
            for one in self.running:
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)

    def settle(self) -> None:
        """Count jobs that other runners have done meanwhile."""
        for one in [one for one in self.waiting if one.elsewhere and self._is_done(one.job)]:
            self.waiting.remove(one)
            self.done += 1

    def _can_go_on(self, stop: Stop) -> bool:
        """Return whether any job can still be started by this runner."""
        return not stop.asked and any(not one.elsewhere and self._fits(one, stop) for one in self.waiting)

    # --- telling ----------------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """Return where this runner stands."""
        mine = [one for one in self.waiting if not one.elsewhere]
        ahead = [self.speeds.remaining(one.job, one.best) for one in mine]
        ahead += [self.speeds.remaining(one.job, one.steps, begun=one.iterates) for one in self.running]
        left = max([sum(ahead) / self.places.number, *ahead]) if ahead else 0.0
        (t0, s0), (t1, s1) = (self.marks[0], self.marks[-1]) if self.marks else ((0.0, 0), (0.0, 0))
        rate = (s1 - s0) / (t1 - t0) if t1 > t0 else math.nan
        shares = [(one.job.name, min(1.0, one.steps / one.job.config.steps)) for one in self.running]
        return Standing(
            self.done, shares, len(mine), len(self.aside), len(self.waiting) - len(mine), rate,
            left if self.speeds.ratios else math.nan,
        )  # fmt: skip

    def _tell(self) -> None:
        """Show where the runner stands, to its user and to other processes."""
        now, standing = time.monotonic(), self.standing()
        self.screen.show(standing)
        if now - self.beat >= BEAT:
            self.beat = now
            running = [
                {"job": one.job.name, "pid": one.process.pid, "steps": one.steps, "seconds": round(now - one.began, 1)}
                for one in self.running
            ]  # fmt: skip
            rate = round(standing.rate, 1) if standing.rate == standing.rate else None
            self.file.write({"running": running, "waiting": standing.waiting, "steps_per_second": rate})


def set_aside(study: StudyDir, job: Job, failure: Failure, screen: Screen) -> None:
    """Set a job aside, with its line, so that the others continue."""
    screen.say(f"failed {job.name}, set aside: {failure.line}")
    try:
        write_failure(study, job, failure)
    except (DiskError, OSError) as error:
        screen.say(f"note: {error}")


def final_return(run: Path) -> str:
    """Return the final return of a run in words."""
    with suppress(GpiError, OSError, ValueError):
        known = [x for x in Run(run).returns.values() if not math.isnan(x)]
        if known:
            spread = f" [{min(known):.1f}, {max(known):.1f}]" if len(known) > 1 else ""
            return f"final return {sum(known) / len(known):.1f}{spread}"
    return "no episode has ended"
