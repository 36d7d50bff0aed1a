"""All results of a study: those of its runs, packs from other machines, and more that are merged into it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpi import files
from gpi.errors import FileError, GpiError, UsageError
from gpi.study.definition import Job
from gpi.study.directory import FILE, StudyDir, open_study
from gpi.study.results import Placed, Result, encode_pack, key_of, merged, read_pack, write_pack
from gpi.study.sources import NEEDED, read_run, read_source, run_directories
from gpi.terminal import counted

PACKS, CACHE = "packs", "cache"
READING = 2
PACK_RESULTS = 1000  # in one file: its header has a limit


def gathered(directory: str | Path, *, unfinished: bool = False, quiet: bool = True) -> list[Result]:
    """Return all results of a study's directory, of a tree of run directories, or of a pack, each once.

    Runs that are not complete are left out unless `unfinished`. Two different results of one seed are refused.
    """
    path = Path(directory)
    if path.is_file():
        several = [one for one in read_source(path) if one.result.complete or unfinished]
    else:
        several = placed(path, unfinished=unfinished, quiet=quiet)
    return merged(*([one.result] for one in several), places=[one.place for one in several])


def placed(directory: Path, *, unfinished: bool = False, quiet: bool = True, keep: bool = True) -> list[Placed]:
    """Return all results of a study's directory, or of a tree of run directories, with the places they lie in.

    `keep`: write the results of finished runs to a small file, which is faster to read next time.
    """
    study = open_study(directory) if (directory / FILE).exists() else None
    if study is None and not (directory / PACKS).is_dir():
        runs = list(run_directories(directory)) if directory.is_dir() else []
        if not runs:
            raise UsageError(f"{directory} is not a study directory, and holds no runs; name another")
        some = in_tree(runs, quiet=quiet)
        return [one for one in some if one.result.complete or unfinished]
    packs = [one for one in packed(directory) if one.result.complete or unfinished]
    return [*(own_results(study, unfinished=unfinished, quiet=quiet, keep=keep) if study else ()), *packs]


def in_tree(runs: Sequence[Path], *, quiet: bool) -> list[Placed]:
    """Return the results of run directories."""
    found: list[Placed] = []
    with counted("runs read", len(runs), quiet=quiet) as count:
        for number, run in enumerate(runs, 1):
            found += read_run(run, str(run))
            count(number)
    return found


def packed(directory: Path) -> list[Placed]:
    """Return the results in the packs of a study's directory, in the order of their names."""
    paths = sorted((directory / PACKS).glob("*.safetensors"))
    return [Placed(result, str(path)) for path in paths for result in read_pack(path)]


def covered(study: StudyDir, environments: Mapping[str, str] | None = None) -> set[str]:
    """Return the names of the jobs whose every seed has a complete result, of as many steps, in a pack.

    `environments` gives the user's own environments by the names they have in the study: results that plain `gpi
    train` made have their code.
    """
    steps: dict[tuple[str, int], int] = {}
    for result, _ in packed(study.path):
        if result.complete:  # a seed that was frozen has fewer steps than the others, and never gets more
            for seed in result.seeds:
                steps[result.key, seed] = max(steps.get((result.key, seed), 0), *result.steps)

    def has(job: Job, task: str) -> bool:
        key = key_of(dataclasses.replace(job.config, task=task))
        return all(steps.get((key, seed), 0) >= job.config.steps for seed in job.config.seed_range)

    tasks = {job.task: {job.config.task, (environments or {}).get(job.task, job.task)} for job in study.jobs}
    return {job.name for job in study.jobs if any(has(job, task) for task in tasks[job.task])} if steps else set()


def own_results(study: StudyDir, *, unfinished: bool, quiet: bool, keep: bool) -> list[Placed]:
    """Return the results of a study's own runs, whose tasks have the names that the study gives them."""
    found = []
    with counted("runs read", len(study.jobs), quiet=quiet) as count:
        for number, job in enumerate(study.jobs, 1):
            run = study.run(job)
            if all((run / name).exists() for name in NEEDED):
                if (run / "DONE").exists():
                    some = finished(run, study.path / CACHE if keep else None)
                else:
                    some = read_run(run, str(run)) if unfinished else []
                found += [
                    one._replace(result=called(one.result, job.task)) for one in some
                    if one.result.complete or unfinished
                ]  # fmt: skip
            count(number)
    return found


def finished(run: Path, cache: Path | None) -> list[Placed]:
    """Return the result of a run that has ended, read from its tables once and from then on from a small file.

    The file's name is a hash of what the run's files say about themselves, so a run that is extended has another; and
    of how they are read, as an earlier version's windows of short runs were others.
    """
    facts = os.lstat(run / "episodes.csv")
    parts = [files.read(run, name, files.JSON_LIMIT) for name in ("config.json", "DONE")]
    digest = hashlib.sha256(b"\0".join([*parts, f"{facts.st_size} {facts.st_mtime_ns} {READING}".encode()])).hexdigest()
    path = cache / f"{digest[:32]}.safetensors" if cache else None
    if path and path.exists():
        with suppress(FileError):
            return [Placed(one, str(run)) for one in read_pack(path)]
    found = read_run(run, str(run))
    if path:
        with suppress(GpiError, OSError):  # it only saves time
            path.parent.mkdir(exist_ok=True)
            write_pack(path, [one.result for one in found])
    return found


class Merge(NamedTuple):
    """What came into a study's directory."""

    new: list[Result]
    known: int
    """Results that were there already."""
    packs: list[Path]


def merge(
    directory: Path, sources: Sequence[Path], environments: Mapping[str, str] | None = None, *, quiet: bool = True
) -> Merge:
    """Add the results of packs, runs and trees of them to a study's directory, each once; nothing of them on error.

    A directory that does not exist is made. `environments` are names for tasks of the user's own, as module:id.
    """
    study = open_study(directory) if (directory / FILE).exists() else None
    require_mergeable(directory, study)
    have = placed(directory, unfinished=True, quiet=quiet) if study or (directory / PACKS).is_dir() else []
    names = {code: name for name, code in (environments or {}).items()}
    more: list[Placed] = []
    with counted("files read", len(sources), quiet=quiet) as count:
        for number, source in enumerate(sources, 1):
            of_study = (source / FILE).exists() or (source / PACKS).is_dir()
            found = placed(source, unfinished=True, keep=False) if of_study else read_source(source)
            if not found:
                raise UsageError(f"{source} holds no result; name a pack, a run or a tree of runs")
            more += [one._replace(result=called(one.result, names.get(one.result.config.task))) for one in found]
            count(number)
    everything = [*have, *more]
    kept = merged(*([one.result] for one in everything), places=[one.place for one in everything])
    before = {id(one.result) for one in have}
    new = [one for one in kept if id(one) not in before]
    if study:
        require_whole_blocks(study, [*new, *(one.result for one in packed(directory))])
    return Merge(new, len(more) - len(new), write_packs(directory / PACKS, new))


def require_mergeable(directory: Path, study: StudyDir | None) -> None:
    """Raise UsageError if a directory holds something else than a study."""
    if study or not directory.exists() or (directory / PACKS).is_dir():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise UsageError(f"{directory} is not a study directory; name one, or a new one to gather results in")


def called(result: Result, task: str | None) -> Result:
    """Return a result whose task has another name, if one is given."""
    return dataclasses.replace(result, config=dataclasses.replace(result.config, task=task)) if task else result


def require_whole_blocks(study: StudyDir, results: Sequence[Result]) -> None:
    """Raise UsageError if results have some seeds of a job and lack others: the job's run would contradict them."""
    have: dict[str, set[int]] = {}
    for result in results:
        have.setdefault(result.key, set()).update(result.seeds)
    for job in study.jobs:
        missing = set(job.config.seed_range) - have.get(key_of(job.config), set())
        if 0 < len(missing) < job.config.seeds:
            rule = f"but that is one job of this study, with seed {min(missing)} too"
            raise UsageError(f"some seeds of {job.name} have a result, {rule}; merge into a separate directory")


def write_packs(directory: Path, results: Sequence[Result]) -> list[Path]:
    """Write results into packs whose names are hashes of their content, and return them."""
    paths = []
    for first in range(0, len(results), PACK_RESULTS):
        part = results[first : first + PACK_RESULTS]
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{directory} cannot be made: {error.strerror}; name another place") from error
        path = directory / f"{hashlib.sha256(encode_pack(part)).hexdigest()[:16]}.safetensors"
        write_pack(path, part)
        paths.append(path)
    return paths
