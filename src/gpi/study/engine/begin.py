"""The beginning of a runner: it reads the decisions made when the study began, or makes them, and picks its jobs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Protocol

from gpi import files
from gpi.errors import DiskError, UsageError, disk_error
from gpi.rundir.lock import take
from gpi.study.definition import Job, Study, builtin_names, builtin_text, made_by
from gpi.study.directory import FILE, Layout, StudyDir, continued, is_done, open_study, write_study
from gpi.study.engine import machine_layout
from gpi.study.engine.locks import RunnerFile, Shard
from gpi.study.estimate import core_seconds, disk_bytes

OWN_FILES = (
    "study.json", "study.toml", "study.lock", "ray.lock", "runs", "packs", "cache", "logs", "failed", "claims",
    "runners", "report",
)  # fmt: skip
SPARE = 32 << 20  # bytes that a disk should have left


class Options(NamedTuple):
    """What the user wants of a runner, besides the study and its directory."""

    jobs: int | None = None
    """How many side by side; None: as many as the machine has room for."""
    cores: int | None = None
    """Of each job; None: decided when the study begins."""
    only: str = ""
    """A pattern that names of jobs match, or the beginnings of their paths."""
    shard: Shard | None = None
    seconds: float | None = None
    """After which everything is saved; None: when all jobs are done."""
    whole_jobs: bool = False
    """Whether to begin only jobs that end in time, for a machine whose disk is lost."""
    environments: Mapping[str, str] = {}
    """The user's own environments, as module:id, by their names in the study."""


class Runner(NamedTuple):
    """A runner of a study: what it is to do, and how others see it."""

    study: StudyDir
    todo: list[Job]
    options: Options
    file: RunnerFile


class Machine(Protocol):
    """What jobs will run on: this machine, or the nodes of a cluster."""

    def decide(self, jobs: Sequence[Job], wanted: int | None = None, /) -> Layout:
        """Return the layout of a study that begins there; `wanted` is the number of cores of each job."""
        ...

    def require(self, layout: Layout, /) -> None:
        """Raise UsageError, in one line, if it cannot give what a study's jobs have had from the beginning."""
        ...


def begin(study: Study, out: Path, options: Options, machine: Machine = machine_layout) -> StudyDir:
    """Begin a study, or continue one, with the layout decided when it began and with any new jobs."""
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs} must be at least 1; leave it out")
    layout = None
    if not (out / FILE).exists():  # errors are raised before anything is made
        if options.only:
            matching(study.jobs, options.only)
        layout = machine.decide(study.jobs, options.cores)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(out, error) from error
    lock = take(out / "study.lock", wait=True)  # runners that begin together do so one after the other
    try:
        if (out / FILE).exists():
            return begin_again(study, open_study(out), options, machine)
        refuse_foreign(out)
        found = StudyDir(out, study.name, layout or machine.decide(study.jobs, options.cores), study.jobs)
        write_study(found)
        return found
    finally:
        os.close(lock) if lock is not None else None


def begin_again(study: Study, known: StudyDir, options: Options, machine: Machine) -> StudyDir:
    """Continue a study that has begun, with any new jobs."""
    if options.cores not in (None, known.layout.cores):
        began = f"this study began with {known.layout.cores}, and its results depend on it"
        raise UsageError(f"--cores {options.cores}, but {began}; leave it out, or name another directory")
    machine.require(known.layout)
    found = continued(known, study)
    if aims(found) != aims(known):
        write_study(found)
    return found


def aims(study: StudyDir) -> list[tuple[str, int]]:
    """Return the jobs of a study and the steps they aim at: all that may change once it has begun."""
    return [(job.name, job.config.steps) for job in study.jobs]


def keep_source(study: StudyDir, source: str | Path) -> None:
    """Copy the file of a study into its directory, for people."""
    with suppress(OSError, DiskError):
        built_in = str(source) in builtin_names()
        text = builtin_text(str(source)).encode() if built_in else Path(source).read_bytes()
        if not (study.path / "study.toml").exists() or (study.path / "study.toml").read_bytes() != text:
            files.write(study.path / "study.toml", text)


def refuse_foreign(out: Path) -> None:
    """Raise UsageError if a directory holds something else than a study."""
    others = sorted(path.name for path in out.iterdir() if path.name not in OWN_FILES and not path.name.startswith("."))
    if others:
        raise UsageError(f"--out {out} holds other files, such as {files.shown(others[0])}; name a new directory")


def chosen(study: StudyDir, wanted: Study, options: Options) -> list[Job]:
    """Return the jobs of this runner: of the arms that its study has, in its shard, and that the pattern matches."""
    arms = {(job.task, made_by(job.config)) for job in wanted.jobs}  # an earlier version may have named them otherwise
    jobs = [job for job in study.jobs if (job.task, made_by(job.config)) in arms]
    if options.only:
        jobs = matching(jobs, options.only)
    return jobs if options.shard is None else shard_of(jobs, options.shard)


def unfinished(study: StudyDir, jobs: Sequence[Job], options: Options) -> list[Job]:
    """Return the jobs that are not done, here or in a pack."""
    known = set[str]()
    if (study.path / "packs").is_dir():
        from gpi.study.gathered import covered

        known = covered(study, options.environments)
    return [job for job in jobs if job.name not in known and not is_done(study, job)]


def matching(jobs: Sequence[Job], pattern: str) -> list[Job]:
    """Return the jobs whose names, task/arm/seeds-0-4, match a pattern, or begin with what does: cheetah-run, */ppo."""
    found = [job for job in jobs if any(fnmatchcase(job.name, one) for one in (pattern, f"{pattern}/*"))]
    if found:
        return found
    names = dict.fromkeys(name for job in jobs for name in (job.task, job.arm, job.name))
    near = difflib.get_close_matches(pattern.strip("*/"), names, n=3, cutoff=0.4) or list(names)[:3]
    raise UsageError(f"--only {pattern} matches no job; names are task/arm/seeds, here for example {', '.join(near)}")


def shard_of(jobs: Sequence[Job], shard: Shard) -> list[Job]:
    """Return a part of the jobs, the same on every machine: dealt out from the longest to the shortest."""
    return sorted(jobs, key=lambda job: (-core_seconds(job), job.name))[shard.number - 1 :: shard.of]


def require_disk(study: StudyDir, jobs: Sequence[Job]) -> None:
    """Raise DiskError if the disk clearly cannot hold what these jobs will still write."""
    needed, free = sum(still_written(study, job) for job in jobs), free_bytes(study.path)
    if needed > free:
        raise DiskError(
            f"{study.path} will need about {needed / 1e9:,.1f} GB more, that disk has {free / 1e9:,.1f} GB free; "
            "free space, or run a part with --only"
        )


def still_written(study: StudyDir, job: Job) -> int:
    """Return about how many bytes a job will still write."""
    written = sum(path.lstat().st_size for path in study.run(job).rglob("*") if path.is_file())
    return max(0, disk_bytes(job) - written)


def free_bytes(directory: Path) -> int:
    """Return the bytes that a user may still write to a disk."""
    facts = os.statvfs(directory)
    return facts.f_bavail * facts.f_frsize
