"""How far a study is, from its files alone: it takes no lock that a job needs, and writes nothing."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from gpi import analysis
from gpi.errors import FileError
from gpi.rundir.done import read_done
from gpi.rundir.tables import RECENT_EPISODES
from gpi.standalone import Facts
from gpi.study.definition import Job
from gpi.study.directory import FILE, Failure, Layout, StudyDir, open_study, read_failure
from gpi.study.engine.locks import read_runners
from gpi.study.estimate import core_seconds
from gpi.study.frame import arm_of
from gpi.study.gathered import PACKS, packed
from gpi.study.results import Placed, key_of

State = Literal["done", "running", "waiting", "failed"]
STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")
TIMING_TAIL, EPISODES_TAIL = 4096, 1 << 14  # bytes that hold the last rows
WINDOW, SETTLED = 60.0, 10.0  # seconds of looks that a speed is measured over, and the least that will do
T = TypeVar("T")


class JobStatus(NamedTuple):
    """How far a job is."""

    job: Job
    state: State
    steps: int
    """Steps that each seed has taken."""
    returns: float
    """Mean over seeds: the final return of a run that has ended, before that the mean of each seed's last ten episodes;
    of a result from elsewhere its final performance. NaN without an episode."""
    rate: float
    """Steps of all seeds per second, 0 unless it runs."""
    line: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Status:
    """How far a study is."""

    name: str
    jobs: tuple[JobStatus, ...]

    @property
    def counts(self) -> dict[State, int]:
        """The number of jobs in each state."""
        found = Counter(one.state for one in self.jobs)
        return {state: found[state] for state in STATES}

    @property
    def steps(self) -> int:
        """Steps that all seeds of all jobs have taken, none of them beyond the goal."""
        return sum(min(one.steps, one.job.config.steps) * one.job.config.seeds for one in self.jobs)

    @property
    def goal(self) -> int:
        """Steps that all seeds of all jobs shall take."""
        return sum(one.job.config.steps * one.job.config.seeds for one in self.jobs)

    @property
    def rate(self) -> float:
        """Steps per second in total."""
        return sum(one.rate for one in self.jobs)

    @property
    def seconds_left(self) -> float:
        """Seconds until every job is done that has not failed, NaN if nothing runs.

        The work left in estimated core seconds, over the number of these that the running jobs now do in a second.
        """
        left = sum(estimated(one) * (1.0 - part_done(one)) for one in self.jobs if one.state in ("running", "waiting"))
        speed = sum(estimated(one) * one.rate / all_steps(one.job) for one in self.jobs)
        return left / speed if speed > 0.0 else 0.0 if left == 0.0 else math.nan

    def as_json(self) -> Facts:
        """Return everything as a JSON object; a number that is not known is null."""
        jobs = [
            {
                "name": one.job.name, "task": one.job.task, "arm": one.job.arm, "state": one.state, "steps": one.steps,
                "goal": one.job.config.steps, "seed": one.job.config.seed, "seeds": one.job.config.seeds,
                "return": known(one.returns), "steps_per_second": round(one.rate, 1), "line": one.line,
            }
            for one in self.jobs
        ]  # fmt: skip
        return {
            "name": self.name, **self.counts, "steps": self.steps, "goal": self.goal,
            "steps_per_second": round(self.rate, 1), "seconds_left": known(self.seconds_left), "jobs": jobs,
        }  # fmt: skip


def known(x: float) -> float | None:
    """Return a number as JSON has it."""
    return round(x, 3) if math.isfinite(x) else None


def all_steps(job: Job) -> int:
    """Return the steps of all seeds of a job."""
    return job.config.seeds * job.config.steps


def estimated(one: JobStatus) -> float:
    """Return about how many core seconds a job takes in all."""
    return core_seconds(one.job)


def part_done(one: JobStatus) -> float:
    """Return the part of a job's steps that has been taken."""
    return min(1.0, one.steps / one.job.config.steps)


class Seen(NamedTuple):
    """What the files of a run say."""

    complete: bool
    steps: int
    returns: float
    rate: float
    """Steps of each seed per second, over the last rows of timing.csv."""


class Watch:
    """Looks at a study's directory, again and again: what has not changed is not read twice."""

    def __init__(self, directory: Path):
        """Open the directory of a study, or one that has packs alone."""
        self.directory = directory
        self.cache: dict[tuple[str, Path], tuple[object, Any]] = {}
        self.looks: deque[tuple[float, dict[str, int]]] = deque()

    def look(self) -> Status:
        """Return how far the study is now."""
        study = self.study()
        elsewhere = self.elsewhere(study)
        alive = {str(one.get("job")) for runner in read_runners(study.path) for one in runner.get("running", [])}
        failed = (study.path / "failed").exists()
        now, jobs = time.monotonic(), []
        for job in study.jobs:
            seen = elsewhere.get(job.name) or self.run(study, job)
            failure = failure_of(study, job) if failed and not seen.complete else None
            moved, rate = self.moved(job, seen, now)
            state: State = (
                "done" if seen.complete else "failed" if failure
                else "running" if job.name in alive or moved else "waiting"
            )  # fmt: skip
            rate = job.config.seeds * rate if state == "running" else 0.0
            jobs.append(JobStatus(job, state, seen.steps, seen.returns, rate, failure.line if failure else ""))
        self.looks.append((now, {one.job.name: one.steps for one in jobs}))
        while now - self.looks[0][0] > WINDOW:
            self.looks.popleft()
        return Status(study.name, tuple(jobs))

    def once(self, what: str, path: Path, read: Callable[[], T]) -> T | None:
        """Return what `read` returns for a file or directory, which is called again only when that has changed."""
        try:
            facts = os.stat(path)
        except OSError:
            return None
        stamp = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        if (what, path) not in self.cache or self.cache[what, path][0] != stamp:
            self.cache[what, path] = (stamp, read())
        return self.cache[what, path][1]

    def study(self) -> StudyDir:
        """Return the study, which may be given more jobs meanwhile."""
        if not (self.directory / FILE).exists() and (self.directory / PACKS).is_dir():
            jobs = tuple(job_of(one) for one in self.packs())
            return StudyDir(self.directory, self.directory.resolve().name, Layout("", 0, {}, {}), jobs)
        found = self.once("study", self.directory / FILE, lambda: open_study(self.directory))
        return found or open_study(self.directory)

    def packs(self) -> list[Placed]:
        """Return the results in packs."""
        return self.once("packs", self.directory / PACKS, lambda: packed(self.directory)) or []

    def elsewhere(self, study: StudyDir) -> dict[str, Seen]:
        """Return what packs say about jobs, by name: they need not run here."""
        have: dict[tuple[str, int], Placed] = {}
        for one in self.packs():
            have |= {(one.result.key, seed): one for seed in one.result.seeds if one.result.complete}
        found = {}
        for job in study.jobs if have else ():
            key = key_of(job.config)
            seeds = job.config.seed_range
            some = [have[key, seed] for seed in seeds if (key, seed) in have]
            steps = min((max(one.result.steps) for one in some), default=0)
            if len(some) == job.config.seeds and steps >= job.config.steps:
                finals = [one.result.final[seed - one.result.config.seed] for one, seed in zip(some, seeds)]  # noqa: B905
                found[job.name] = Seen(True, steps, mean(finals), 0.0)
        return found

    def run(self, study: StudyDir, job: Job) -> Seen:
        """Return what the files of a job's run say."""
        run = study.run(job)
        done = self.once("done", run / "DONE", lambda: ended(run))
        if done is not None and done.steps >= job.config.steps:
            return done
        timing = self.once("timing", run / "timing.csv", lambda: timing_of(run)) or (0, 0.0)
        returns = self.once("episodes", run / "episodes.csv", lambda: recent_return(run))
        return Seen(False, timing[0], math.nan if returns is None else returns, timing[1])

    def moved(self, job: Job, seen: Seen, now: float) -> tuple[bool, float]:
        """Return whether a job has gone on since an earlier look, and the steps of each seed per second."""
        for then, steps in self.looks:
            if job.name in steps:
                more = seen.steps - steps[job.name]
                settled = now - then >= SETTLED and more > 0
                return more > 0, more / (now - then) if settled else seen.rate
        return False, seen.rate


def failure_of(study: StudyDir, job: Job) -> Failure | None:
    """Return why a job was set aside, or None; one damaged file must not hide the others."""
    try:
        return read_failure(study, job)
    except FileError as error:
        return Failure(str(error), 1, 1)


def job_of(one: Placed) -> Job:
    """Return a job that has this result."""
    return Job(one.result.config.short_task, arm_of(one.result.config), one.result.config)


def mean(values: object) -> float:
    """Return the mean of the numbers among some; NaN without any."""
    found = np.array(values, np.float64)
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else math.nan


def ended(run: Path) -> Seen | None:
    """Return what DONE says of a run that has ended with all its steps."""
    with suppress(FileError):  # a run that is being extended removes it
        done = read_done(run)
        if done is not None and done["complete"]:
            returns, taken = done.get("returns"), max(done["steps"], default=0)
            values = list(returns.values()) if isinstance(returns, dict) else []
            numbers = [value for value in values if isinstance(value, int | float)]
            if "final_steps" not in done:  # an earlier version's final return is over other steps
                with suppress(OSError, ValueError):
                    numbers = finals_of(run, taken)
            return Seen(True, taken, mean(numbers), 0.0)
    return None


def finals_of(run: Path, taken: int) -> list[float]:
    """Return the final performance of each seed, read in a hundredth of a second."""
    table = np.loadtxt(run / "episodes.csv", delimiter=",", skiprows=1, usecols=(0, 1, 2), ndmin=2)
    several = [table[table[:, 0] == seed] for seed in np.unique(table[:, 0])]
    return [analysis.final_performance(one[:, 1], one[:, 2], taken) for one in several]


def last_rows(path: Path, size: int) -> list[list[str]]:
    """Return the last whole rows of a CSV file, without its header."""
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - size)
            file.seek(start)
            text = file.read(size).decode(errors="replace")
    except OSError:
        return []
    whole, _, _torn = text.rpartition("\n")
    return [line.split(",") for line in whole.split("\n")[1:]]  # the first is the header, or a part of a row


def timing_of(run: Path) -> tuple[int, float]:
    """Return the steps that each seed of a run has taken, and its steps per second over the last rows."""
    rows = []
    for cells in last_rows(run / "timing.csv", TIMING_TAIL):
        with suppress(ValueError, IndexError):
            rows.append((int(cells[1]), float(cells[-1])))
    if not rows:
        return 0, 0.0
    (s0, t0), (s1, t1) = rows[0], rows[-1]
    return s1, (s1 - s0) / (t1 - t0) if s1 > s0 and t1 > t0 else 0.0


def recent_return(run: Path) -> float:
    """Return the mean over seeds of the mean return of each seed's last episodes."""
    recent: dict[str, deque[float]] = {}
    for cells in last_rows(run / "episodes.csv", EPISODES_TAIL):
        with suppress(ValueError, IndexError):
            recent.setdefault(cells[0], deque(maxlen=RECENT_EPISODES)).append(float(cells[2]))
    return mean([np.mean(one) for one in recent.values()])
