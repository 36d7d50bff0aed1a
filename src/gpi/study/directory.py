"""The directory of a study: the decisions made when it began, and the state of each job as its files show it.

    study.json      name, layout and jobs; written when the study begins, and when it is given more jobs
    study.toml      the file it came from, for people
    study.lock      locked by a runner while it begins
    runs/JOB/       run directories, as `gpi train` writes them
    packs/          results of other machines (`gpi study merge`); a directory may have these alone
    cache/          results of finished runs, read from their tables; may be removed
    logs/JOB.log    what a job's process said
    failed/JOB.json a job that was set aside: its last line, exit code and attempts
    claims/JOB      locked by the runner that has the job
    runners/        a file for each runner, locked while it lives: which jobs it runs
    report/         what `gpi study report` wrote

JOB is task/arm/seeds-0-4. A job's state is what these files say; nothing else is believed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpi import config as run_settings
from gpi import files
from gpi.config import Config
from gpi.errors import FileError, GpiError, UsageError
from gpi.rundir.done import read_done
from gpi.standalone import Facts
from gpi.study.definition import ARM_NAME, NAME, Job, Study, made_by

FILE = "study.json"
FORMAT = "gpi-study-directory-1"
TAIL = 4096  # bytes that hold the last row of timing.csv


@dataclass(frozen=True)
class Layout:
    """What a job gets of a machine, decided when the study begins: results depend on it in their last bits."""

    platform: str
    """`cpu` or `gpu`, where jobs learn."""
    cores: int
    """Threads that simulate, of each job."""
    environment: dict[str, str]
    """PJRT_NPROC, XLA_FLAGS and what else the process of a job has in its environment."""
    versions: dict[str, str]
    """Of everything that can change a result."""


@dataclass(frozen=True)
class StudyDir:
    """A study's directory, and the decisions made when the study began."""

    path: Path
    name: str
    layout: Layout
    jobs: tuple[Job, ...]

    def run(self, job: Job) -> Path:
        """Return the run directory of a job."""
        return self.path / "runs" / job.name

    def log(self, job: Job) -> Path:
        """Return the file that a job's process writes to."""
        return self.path / "logs" / f"{job.name}.log"

    def claim(self, job: Job) -> Path:
        """Return the file whose lock says who has a job."""
        return self.path / "claims" / job.name

    def failure(self, job: Job) -> Path:
        """Return the file that says why a job was set aside."""
        return self.path / "failed" / f"{job.name}.json"


class Failure(NamedTuple):
    """Why a job was set aside."""

    line: str
    code: int
    attempts: int


def open_study(path: Path) -> StudyDir:
    """Read the directory of a study; names of the user's own environments stay names, no code is imported."""
    if not (path / FILE).exists():
        raise UsageError(f"{path} is not a study directory; begin one with `gpi study run STUDY --out {path}`")
    try:
        about = files.parse_json(files.read(path, FILE, files.JSON_LIMIT), FILE)
    except FileError as error:
        remedy = "restore it, or remove it and continue with gpi study run, which writes it again"
        raise FileError(f"{path}: {error}; {remedy}") from error
    if about.get("format") != FORMAT:
        raise FileError(f"{path / FILE} is not of this version (expected {FORMAT}, found {about.get('format')!r})")
    try:
        layout, jobs = Layout(**about["layout"]), tuple(job_of(one) for one in about["jobs"])
        return StudyDir(path, str(about["name"]), layout, jobs)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path / FILE} cannot be used: {type(error).__name__} {error}; restore it") from error


def job_of(one: Facts) -> Job:
    """Return a job as study.json has it; its names become paths, so they must be plain."""
    for name, rule in ((one["task"], NAME), (one["arm"], ARM_NAME)):
        if not (isinstance(name, str) and rule.fullmatch(name)):
            raise FileError(f"the name {files.shown(name)} of a job is not plain")
    return Job(one["task"], one["arm"], run_settings.config_of({"task": one["task"], **one["config"]}))


def write_study(study: StudyDir) -> None:
    """Write study.json; no task of it names code."""
    jobs = [{"task": job.task, "arm": job.arm, "config": dataclasses.asdict(job.config)} for job in study.jobs]
    for job in jobs:
        del job["config"]["task"]
    about = {"format": FORMAT, "name": study.name, "layout": dataclasses.asdict(study.layout), "jobs": jobs}
    study.path.mkdir(parents=True, exist_ok=True)
    files.write(study.path / FILE, (json.dumps(about, indent=1) + "\n").encode())


def continued(known: StudyDir, wanted: Study) -> StudyDir:
    """Return a study continued as its file now says; raise UsageError if the file is of another study."""
    if wanted.name != known.name:
        remedy = f'name another directory, or write name = "{known.name}" into the file'
        raise UsageError(f"{known.path} holds the study {files.shown(known.name)}, not {wanted.name!r}; {remedy}")
    return dataclasses.replace(known, jobs=extended(known.jobs, wanted.jobs))


def extended(known: Iterable[Job], wanted: Iterable[Job]) -> tuple[Job, ...]:
    """Return the jobs of a continued study: those it has, to as many steps as are wanted, and blocks of new seeds.

    Jobs that the file has dropped stay. Other settings than steps and seeds make another arm; an arm with the same
    ones keeps the name that an earlier version gave it.
    """
    jobs = {job.name: job for job in known}
    blocks: dict[tuple[str, str], list[Job]] = {}
    names = {(job.task, made_by(job.config)): job.arm for job in jobs.values()}
    for job in jobs.values():
        blocks.setdefault((job.task, job.arm), []).append(job)
    for job in wanted:
        if (job.task, job.arm) not in blocks:
            job = job._replace(arm=names.get((job.task, made_by(job.config)), job.arm))
        have = blocks.get((job.task, job.arm), [])
        job = as_begun(job, have)
        for old in have:
            require_same_arm(old, job)
            jobs[old.name] = old._replace(config=dataclasses.replace(job.config, **block_of(old)))
        for seed, seeds in new_blocks(have, job.config):
            more = job._replace(config=dataclasses.replace(job.config, seed=seed, seeds=seeds))
            jobs[more.name] = more
    return tuple(jobs.values())


def as_begun(job: Job, have: Iterable[Job]) -> Job:
    """Return a job with the normaliser that `auto` meant when its arm was begun, maybe by an earlier version."""
    for old in have:
        then = dataclasses.replace(job.config, normaliser=old.config.normaliser)
        if run_settings.decided(then) == job.config:
            return job._replace(config=then)
    return job


def block_of(job: Job) -> dict[str, int]:
    """Return the seeds of a job, as its settings have them."""
    return {"seed": job.config.seed, "seeds": job.config.seeds}


def require_same_arm(old: Job, new: Job) -> None:
    """Raise UsageError if a job of the same task and arm had other settings when the study began, or more steps."""
    free = ("task", "seed", "seeds", "steps")
    before, now = (dataclasses.asdict(job.config) for job in (old, new))
    changed = [name for name in before if name not in free and before[name] != now[name]]
    if changed:
        name = changed[0]
        raise UsageError(
            f"{new.task}, {new.arm}: {name} = {now[name]!r}, but this study began with {before[name]!r}; "
            "name another directory, or make it a separate arm"
        )
    if new.config.steps < old.config.steps:
        began = f"this study has {old.config.steps:,}, which are never taken back"
        raise UsageError(f"steps = {new.config.steps:,}, but {began}; name another directory, or as many steps")


def new_blocks(have: Iterable[Job], config: Config) -> list[tuple[int, int]]:
    """Return the wanted seeds that no job has, as blocks (first, number) of consecutive ones."""
    taken = {seed for job in have for seed in job.config.seed_range}
    blocks: list[tuple[int, int]] = []
    for seed in config.seed_range:
        if seed in taken:
            continue
        if blocks and sum(blocks[-1]) == seed:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1)
        else:
            blocks.append((seed, 1))
    return blocks


def is_done(study: StudyDir, job: Job) -> bool:
    """Return whether a job's run has all its steps (a run with every step and frozen seeds is done too).

    config.json alone does not say it: a run that was killed while it was being extended has the new steps there, and
    still the old DONE. One whose DONE cannot be read is not done: it is tried, and `gpi resume` says why.
    """
    with suppress(GpiError, OSError):
        done = read_done(study.run(job))
        return done is not None and done["complete"] and max(done["steps"], default=0) >= job.config.steps
    return False


def config_steps(run: Path) -> int:
    """Return the steps that a run aims at, as its config.json says; 0 if it has none yet."""
    with suppress(FileError, OSError):
        about = files.parse_json(files.read(run, "config.json", files.JSON_LIMIT), "config.json")
        steps = about.get("config", {}).get("steps")
        return steps if type(steps) is int else 0
    return 0


def last_timing(run: Path) -> tuple[int, float]:
    """Return the steps that each seed of a run has taken, and the seconds that took; both 0 before an iteration."""
    try:
        with (run / "timing.csv").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            whole, _, _torn = file.read().decode(errors="replace").rpartition("\n")
    except OSError:
        return 0, 0.0
    cells = whole.splitlines()[-1].split(",") if whole else []
    if len(cells) < 2 or not cells[1].isdecimal():  # the header alone has no number
        return 0, 0.0
    try:
        return int(cells[1]), float(cells[-1])
    except ValueError:
        return int(cells[1]), 0.0


def read_failure(study: StudyDir, job: Job) -> Failure | None:
    """Return why a job was set aside, or None."""
    path = study.failure(job)
    if not path.exists():
        return None
    about = files.parse_json(files.read(path.parent, path.name, files.JSON_LIMIT), path.name)
    return Failure(str(about.get("line", "")), int(about.get("code", 1)), int(about.get("attempts", 1)))


def write_failure(study: StudyDir, job: Job, failure: Failure) -> None:
    """Set a job aside."""
    path = study.failure(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, (json.dumps(failure._asdict(), indent=1) + "\n").encode())
