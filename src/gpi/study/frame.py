"""Results as tidy arrays: one row for every seed, final performance by arm and task, and learning curves.

An arm is a choice of settings. Its name is the algorithm and the settings that differ from the defaults, as a
study names its arms: ppo, geppo-kappa1, ppo-B1-eps0.1. Generalized algorithms always name their kappa.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpi import analysis
from gpi.config import Config
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.errors import UsageError
from gpi.study.definition import arm_name, plain
from gpi.study.results import NOT_OF_ARM, Result

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config) if field.name not in NOT_OF_ARM}
FINISHED, UNFINISHED, FROZEN, SILENT = "finished", "unfinished", "frozen", "no episode at the end"


class Seed(NamedTuple):
    """One seed of a run."""

    task: str
    arm: str
    algorithm: str
    kappa: str
    """As it is written in names: 0, 0.5 or 1; empty for on-policy algorithms."""
    seed: int
    steps: int
    goal: int
    """The steps that its run is to take."""
    final: float
    """Final performance: mean return over the last `final_steps`."""
    state: str
    """Finished; unfinished; frozen, where it met NaN and its run went on without it; or no episode at the end."""
    run: int
    """The place of its run among the results."""
    place: int
    """Its place in the run."""
    final_steps: int
    """204,800, or a fifth of the steps of a shorter run."""


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a study, or of any runs, as a whole."""

    runs: tuple[Result, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each run's arm; with its steps where these are not what most runs are to take."""
        goals = Counter(run.config.steps for run in self.runs)
        usual = max(goals, key=lambda steps: (goals[steps], steps))
        return tuple(
            arm_of(run.config) + (f"-steps{run.config.steps}" if run.config.steps != usual else "") for run in self.runs
        )

    @cached_property
    def arms(self) -> dict[str, Config]:
        """Every arm with the settings of one of its runs: plain algorithms first, on-policy before generalized."""
        found = {name: run.config for name, run in zip(self.names, self.runs, strict=True)}
        return {name: found[name] for name in sorted(found, key=lambda name: rank(name, found[name]))}

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Every task: those of the suite in its order, then others."""
        found = {run.config.short_task for run in self.runs}
        return (*(task for task in dmc.TASKS if task in found), *sorted(found - set(dmc.TASKS)))

    @cached_property
    def seeds(self) -> tuple[Seed, ...]:
        """Every seed, by task, arm and number."""
        rows = [
            Seed(run.config.short_task, arm, run.config.algorithm, kappa_of(run.config), seed, run.steps[place],
                 run.config.steps, float(run.final[place]), state_of(run, place), number, place, run.final_steps)
            for number, (arm, run) in enumerate(zip(self.names, self.runs, strict=True))
            for place, seed in enumerate(run.seeds)
        ]  # fmt: skip
        tasks, arms = ({name: place for place, name in enumerate(names)} for names in (self.tasks, self.arms))
        return tuple(sorted(rows, key=lambda row: (tasks[row.task], arms[row.arm], row.seed)))

    @cached_property
    def finals(self) -> dict[str, dict[str, np.ndarray]]:
        """Final performance of the seeds that are finished: by arm and task an array `[seeds]`."""
        found: dict[str, dict[str, list[float]]] = {arm: {} for arm in self.arms}
        for row in self.seeds:
            if row.state == FINISHED:
                found[row.arm].setdefault(row.task, []).append(row.final)
        return {arm: {task: np.array(x) for task, x in tasks.items()} for arm, tasks in found.items() if tasks}

    def curves(self, task: str, arm: str, points: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the middles of bins of steps and each seed's mean return there, `[seeds, bins]`; NaN if empty.

        A bin is 10,000 steps, or a hundredth of a shorter run. Unfinished seeds are among them. A last bin that steps
        hardly reach into is left out: few episodes end there. With `points`, adjacent bins are joined until there are
        at most `points` bins, and at most as many as a seed has episodes.
        """
        rows = [row for row in self.seeds if (row.task, row.arm) == (task, arm)]
        if not rows:
            raise UsageError(f"{arm} has no result on {task}; the arms are {', '.join(self.arms)}")
        runs = [self.runs[row.run] for row in rows]
        width = max(run.bin for run in runs)
        parts = [analysis.joined(run.curve[row.place], width // run.bin) for run, row in zip(runs, rows, strict=True)]
        ends = [int(np.flatnonzero(part[:, analysis.COUNT])[-1]) + 1 for part in parts if part[:, analysis.COUNT].any()]
        reached = max((max(1, round(row.steps / width)) for row in rows), default=0)
        bins = min(max(ends, default=0), reached)
        if points and width < analysis.BIN:  # where episodes are long, many bins of a short run have none
            points = min(points, *(max(1, int(part[:, analysis.COUNT].sum())) for part in parts))
        number = -(-bins // points) if points and bins else 1
        size = -(-bins // number)
        curves = np.zeros((len(parts), size * number, 3))
        for curve, part in zip(curves, parts, strict=True):
            used = part[:bins]
            curve[: len(used)] = used
        found = analysis.joined(curves, number)
        steps = width * number * (np.arange(size) + 0.5)
        return steps, np.where(found[..., analysis.COUNT] > 0.0, found[..., analysis.MEAN], np.nan)

    def table(self) -> dict[str, list[Any]]:
        """Return one row for every seed, as columns, from task and arm to final performance and state.

        Final performance is there for unfinished seeds too, of what they have so far; `complete` says which count.
        """
        columns: dict[str, list[Any]] = {
            name: [getattr(row, name) for row in self.seeds] for name in Seed._fields if name not in ("run", "place")
        }
        return columns | {"complete": [row.state == FINISHED for row in self.seeds]}

    def to_pandas(self) -> Any:
        """Return `table` as a pandas DataFrame; raise UsageError where pandas is not installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UsageError("pandas is not installed; `pip install pandas`, or use .table(), a dict") from error
        return pandas.DataFrame(self.table())


def results_of(several: Sequence[Result]) -> Results:
    """Return results as a whole; raise UsageError if there are none."""
    if not several:
        raise UsageError("there is no result yet; run the study, or merge results into it")
    return Results(tuple(several))


def arm_of(config: Config) -> str:
    """Return the name of a run's arm: its algorithm, its kappa if it reuses samples, and other changed settings."""
    chosen: dict[str, Any] = {"algorithm": config.algorithm}
    if config.reuses:
        chosen["kappa"] = config.kappa
    usual = DEFAULTS | {"algorithm": config.algorithm, "kappa": config.kappa}
    usual["reset_each_batch"] = config.short_task in dmc.TASKS
    chosen |= {
        name: getattr(config, name) for name, default in usual.items()
        if getattr(config, name) != default and (name, config.reset_each_batch) != ("reset_each_batch", None)
    }  # fmt: skip
    return arm_name(chosen)


def kappa_of(config: Config) -> str:
    """Return an arm's kappa as it is written in names; empty for on-policy algorithms."""
    return plain(config.kappa) if config.reuses else ""


def rank(name: str, config: Config) -> tuple[Any, ...]:
    """Return the place of an arm among others."""
    special = arm_of(config).count("-") > (1 if config.reuses else 0) or "-steps" in name
    order = list(ALGORITHMS).index(config.algorithm)
    return special, config.reuses, order, config.kappa, config.B, config.n, config.eps, name


def state_of(run: Result, place: int) -> str:
    """Return the state of a seed; only a finished one has a final performance that counts."""
    if run.steps[place] < run.config.steps:
        return FROZEN if run.complete else UNFINISHED
    return FINISHED if np.isfinite(run.final[place]) else SILENT
