"""A study as its file says it: tasks, grids of settings, seeds and steps; and the jobs that follow from it.

Lists multiply within a `[[grid]]`, grids add up. A file names no code: the 28 tasks and registered Gymnasium ids, and
names that the user has given to custom environments.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from gpi import analysis, config_file, files
from gpi import config as run_settings
from gpi.config import Config
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.errors import UnknownTaskError, UsageError
from gpi.training.job import resolve

BUILTIN = resources.files("gpi.study") / "builtin"  # not by `files.read`: installers may link a package's files
HEAVY = ("humanoid", "manipulator", "swimmer-swimmer15")  # half of a study's time
TASK_GROUPS = {
    "dmc28": tuple(dmc.TASKS),
    "dmc23": tuple(name for name in dmc.TASKS if not name.startswith(HEAVY)),
}
KEYS = {"name": str, "tasks": list, "seeds": int, "seed": int, "steps": int, "settings": dict, "grid": list}
OF_STUDY = ("task", "seeds", "seed", "steps")  # settings that a grid may not have
OPTIONS = tuple(typing.get_type_hints(Config))
LISTS = (tuple[int, ...], tuple[float, ...])  # types of settings whose one value is a list
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ARM_LENGTH = 255  # characters that a part of a path may have
ARM_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{ARM_LENGTH - 1}}}")  # earlier versions wrote 1e+20 in names
JOBS_LIMIT = 100_000
SEEDS_LIMIT = 1_000  # of a job, which is one process
STEPS_LIMIT = analysis.BIN * analysis.BINS_LIMIT  # what a learning curve can hold


class Arm(NamedTuple):
    """One choice of settings, named by those that distinguish it."""

    name: str
    settings: dict[str, Any]
    grid: int
    """The place of its grid in the file."""


class Job(NamedTuple):
    """One run of a study: an arm on a task, with a block of seeds."""

    task: str
    """The task by the name it has in the study."""
    arm: str
    config: Config

    @property
    def name(self) -> str:
        """Where the run is, below the study's directory: cheetah-run/geppo-kappa1/seeds-0-4."""
        last = self.config.seed + self.config.seeds - 1
        return f"{self.task}/{self.arm}/seeds-{self.config.seed}-{last}"


@dataclass(frozen=True)
class Study:
    """A study: every job of it, in the order of its file."""

    name: str
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()
    """What its file says without effect, one line each."""

    @property
    def steps(self) -> int:
        """Environment steps of all jobs and seeds."""
        return sum(job.config.seeds * job.config.steps for job in self.jobs)


def load_study(source: str | Path, environments: Mapping[str, str] | None = None) -> Study:
    """Read a study: one that is built in, by name, or a file; raise in one line with its place at the first mistake.

    `environments` gives names to environments of the user's own, as module:id.
    """
    path = Path(source)
    if str(source) in builtin_names():
        return read_study(config_file.parse_toml(f"{source}.toml", builtin_text(str(source))), environments or {})
    if path.suffix.lower() != ".toml":
        known = ", ".join(builtin_names())
        near = config_file.meant(str(source), run_settings.nearest(str(source), builtin_names()))
        raise UsageError(f"study {files.shown(str(source))} must be one of {known}, or a file that ends in .toml{near}")
    return read_study(config_file.read_toml(path), environments or {})


def builtin_names() -> list[str]:
    """Return the names of the studies that are built in."""
    return sorted(path.name.removesuffix(".toml") for path in BUILTIN.iterdir() if path.name.endswith(".toml"))


def builtin_text(name: str) -> str:
    """Return the file of a study that is built in."""
    return (BUILTIN / f"{name}.toml").read_text(encoding="utf-8")


def read_study(document: config_file.Document, environments: Mapping[str, str]) -> Study:
    """Return the study that a file describes."""
    data = document.data
    for key in data:
        if key not in KEYS:
            near = config_file.meant(key, run_settings.nearest(key, KEYS))
            raise UsageError(f"{document.where(key)}: unknown key {files.shown(key)}{near}")
    if not isinstance(data.get("settings", {}), dict):
        raise UsageError(f"{document.where('settings')}: settings must be a table; write [settings] above their lines")
    name = data.get("name", Path(document.name).stem)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise UsageError(
            f"{document.where('name')}: name = {files.shown(name)} must be letters, digits, dots and dashes"
        )
    common = {key: setting(document, (key,), key, data[key]) for key in ("seeds", "seed", "steps") if key in data}
    for key, most in (("seeds", SEEDS_LIMIT), ("steps", STEPS_LIMIT)):
        if common.get(key, 0) > most:
            rule = f"must be at most {most:,} in a study; use fewer"
            raise UsageError(f"{document.where(key)}: {key} = {common[key]:,} {rule}")
    notes: list[str] = []
    tasks = tasks_of(document, environments, notes)
    arms = list(arms_of(document, len(tasks), notes))
    jobs = [
        Job(task, arm.name, checked_job(document, environments.get(task, task), common, arm))
        for task in tasks for arm in arms
    ]  # fmt: skip
    return Study(name, tuple(jobs), (*notes, *notes_of(jobs)))


def notes_of(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each arm that differs from an earlier one in nothing that its algorithm reads."""
    seen: dict[str, str] = {}
    for _, arm, config in (job for job in jobs if job.task == jobs[0].task):
        idle = {line.partition(" ")[0]: line for line in run_settings.without_effect(config, OPTIONS)}
        first = seen.setdefault(made_by(config, without=idle), arm)
        if first != arm:
            why = [line for name, line in idle.items() if name in arm]
            yield f"{arm} trains what {first} trains{': ' if why else ''}{'; '.join(why)}"


def made_by(config: Config, without: Iterable[str] = ()) -> str:
    """Return the settings that make an arm: all but the task, the seeds and the steps, and some that nothing reads."""
    settings = dataclasses.asdict(run_settings.decided(config))
    return json.dumps({name: x for name, x in settings.items() if name not in {*OF_STUDY, *without}})


def tasks_of(document: config_file.Document, environments: Mapping[str, str], notes: list[str]) -> list[str]:
    """Return the tasks of a study by the names it uses, groups resolved, none of them twice; add to the notes."""
    named = document.data.get("tasks")
    listed = [named] if isinstance(named, str) else named
    if not (isinstance(listed, list) and listed and all(isinstance(name, str) for name in listed)):
        raise UsageError(f'{document.where("tasks")}: tasks must be a list of names or a group; add tasks = "dmc28"')
    found: dict[str, None] = {}
    for place, name in enumerate(listed):
        if ":" in name:
            rule = "is your own code; gpi never imports code named in a file"
            remedy = f'give it a name: --env mine={name}, and tasks = ["mine"]'
            raise UsageError(f"{document.where('tasks', place)}: {files.shown(name)} {rule}; {remedy}")
        for task in TASK_GROUPS.get(name, (dmc.short_name(name),)):
            if not NAME.fullmatch(task):
                raise UsageError(
                    f"{document.where('tasks', place)}: task {files.shown(name)} has no name that a path can have"
                )
            if task in found:
                notes.append(f"{document.where('tasks', place)}: {task} is named twice, and run once")
            found[task] = None
    return list(found)


def arms_of(document: config_file.Document, tasks: int, notes: list[str]) -> Iterator[Arm]:
    """Yield the arms of every grid: each combination of its values; add to the notes."""
    grids = document.data.get("grid")
    if isinstance(grids, dict):
        raise UsageError(f"{document.where('grid')}: [grid] is one table, and a study has several; write [[grid]]")
    if not (isinstance(grids, list) and grids and all(isinstance(grid, dict) for grid in grids)):
        raise UsageError(f'{document.where("grid")}: no [[grid]]; add one with algorithm = ["ppo", "geppo"]')
    shared = {
        name: setting(document, ("settings", name), name, value)
        for name, value in document.data.get("settings", {}).items()
    }
    several = [values_of(document, place, grid) for place, grid in enumerate(grids)]
    number = tasks * sum(math.prod(map(len, values.values())) for values in several)
    if number > JOBS_LIMIT:
        rule = f"must be at most {JOBS_LIMIT:,}; shorten the lists of a grid"
        raise UsageError(f"{document.where('grid')}: jobs = {number:,} {rule}")
    seen: dict[str, Arm] = {}
    for place, values in enumerate(several):
        for choice in itertools.product(*values.values()):
            arm = Arm(arm_name(chosen := dict(zip(values, choice, strict=True))), shared | chosen, place)
            old = seen.setdefault(arm.name, arm)
            if old.grid != place:
                raise UsageError(f"{document.where('grid', place)}: {arm.name} is in the study already; remove one")
            if old is arm:
                yield arm
            elif old.settings == arm.settings:
                notes.append(f"{document.where('grid', place)}: {arm.name} is in the grid twice, and run once")


def values_of(document: config_file.Document, place: int, grid: Mapping[str, object]) -> dict[str, list[Any]]:
    """Return the values of each setting of a grid; of one that is a list itself, several are a list of lists."""
    known = run_settings.kinds()
    found = {}
    for name, value in grid.items():
        several = isinstance(value, list) and (
            known.get(name) not in LISTS or any(isinstance(part, list) for part in value)
        )
        listed = value if several and isinstance(value, list) else [value]
        if not listed:
            rule = "is an empty list; name a value, or leave it out"
            raise UsageError(f"{document.where('grid', place, name)}: {name} = [] {rule}")
        found[name] = [setting(document, ("grid", place, name), name, each) for each in listed]
    return found


def setting(document: config_file.Document, key: tuple[str | int, ...], name: str, value: object) -> Any:
    """Return one setting converted to its type; raise UsageError with its place for an unknown name or a wrong type."""
    known = run_settings.kinds()
    if name in OF_STUDY and len(key) > 1:
        raise UsageError(f"{document.where(*key)}: {name} is the same for the whole study; move it to the top")
    if name not in known:
        near = config_file.meant(name, run_settings.nearest(name, known))
        raise UsageError(f"{document.where(*key)}: unknown setting {files.shown(name)}{near}")
    try:
        return run_settings.checked_type(name, value, known[name])
    except UsageError as error:
        raise UsageError(f"{document.where(*key)}: {error}") from error


def arm_name(chosen: Mapping[str, Any]) -> str:
    """Return the name of an arm: its algorithm, and every other setting that its grid names.

    A name that is too long for a path ends in a hash of the whole.
    """
    algorithm = chosen.get("algorithm", "geppo")
    reuses = algorithm in ALGORITHMS and ALGORITHMS[algorithm].reuses
    parts = [
        f"{name}{plain(value)}" for name, value in chosen.items() if name != "algorithm" and (reuses or name != "kappa")
    ]
    name = "-".join([str(algorithm), *parts])
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name if len(name) <= ARM_LENGTH else f"{name[: ARM_LENGTH - 13]}-{digest}"


def plain(value: object) -> str:
    """Return a value as part of a name; other values have other names."""
    if isinstance(value, tuple):
        return "x".join(str(part).replace("+", "") for part in value)
    short = f"{value:g}" if isinstance(value, float) else str(value)
    text = repr(value) if isinstance(value, float) and float(short) != value else short
    return re.sub(r"[^A-Za-z0-9.]+", "_", text.replace("e+", "e"))


def as_option(name: str, value: object) -> list[str]:
    """Return a setting as an option of `gpi train`, whole; None has no option."""
    word = name.replace("_", "-")
    if value is None or isinstance(value, bool):
        return [] if value is None else [f"--{word}" if value else f"--no-{word}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{word}", ",".join(str(one).removesuffix(".0") for one in values)]


def checked_job(document: config_file.Document, task: str, common: Mapping[str, Any], arm: Arm) -> Config:
    """Return the settings of a job, all decided; raise UsageError with the line of one that breaks its rule."""
    tables = [
        config_file.Settings(document, ("grid", arm.grid), arm.settings),
        config_file.Settings(document, (), dict(common)),
    ]
    with tables[1].blamed(arm.settings), tables[0].blamed({}):
        try:
            return resolve(
                run_settings.decided(Config(task=task, **common, **run_settings.expanded(arm.settings)))
            ).config
        except UnknownTaskError as error:
            line = str(error).replace(", a Gymnasium id or module:id", " or a Gymnasium id")  # a file names no code
            remedy = f"if it is your own environment, add --env {task}=MODULE:ID"
            raise UsageError(f"{document.where('tasks')}: {line}; {remedy}") from error
