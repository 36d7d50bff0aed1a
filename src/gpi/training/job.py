"""A job: everything about a run that is decided before it starts, resolved once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpi.callbacks import Callback, Evaluate
from gpi.config import Config, plan_of, require, validate_batch
from gpi.core.plan import Plan
from gpi.envs import dmc, tasks
from gpi.envs.pool import Repeats
from gpi.envs.seeds import env_seeds
from gpi.envs.tasks import Task
from gpi.errors import UsageError
from gpi.standalone import KINDS, Facts

if TYPE_CHECKING:  # deciding what to run must start neither JAX nor an environment
    from gpi.envs.importing import Make
    from gpi.envs.pool import Spec


@dataclass(frozen=True)
class Job:
    """A run with everything decided, as all later steps take it."""

    config: Config
    task: Task
    plan: Plan
    seeds: range
    make: Make | None = None
    """Makes the user's own environments; it is never in the run directory."""
    callbacks: Sequence[Callback] = ()
    repeats: Repeats = "exact"
    """The verdict of the check before training, which config.json keeps."""

    @property
    def warm_up_batches(self) -> int:
        """Batches that only start the normalisers: B of n samples, or one of B n on-policy."""
        return self.config.B * self.config.n // self.plan.steps

    @property
    def warm_up_steps(self) -> int:
        """Steps of each agent in these batches, beside those that it is asked to take."""
        return self.warm_up_batches * self.plan.steps

    @property
    def departure(self) -> dict[str, str]:
        """What policies and checkpoints say of environments that do not repeat themselves; nothing of others."""
        return {} if self.repeats == "exact" else {"repeats": self.repeats}

    @property
    def keeps(self) -> bool:
        """Whether an agent goes back when its performance is proven to have fallen."""
        return self.config.trust == "keep" and not self.uncertified

    @property
    def uncertified(self) -> str:
        """Why --trust keep can certify nothing here, and so undoes nothing; empty where it can, or is not asked to."""
        if self.config.trust != "keep":
            return ""
        if self.repeats == "unseeded" or (self.repeats == "inexact" and self.task.compiled):
            return f"resets of {self.config.task} may carry state from one episode to the next"
        if math.isfinite(self.return_range[0]):
            return ""
        return f"the least and the largest return of an episode of {self.config.task} are not known"

    def member(self, seed: int) -> int:
        """Return the place of one of the run's seeds among its members."""
        if seed not in self.seeds:
            raise UsageError(f"seed = {seed!r} is not in this run; its seeds are {self.seeds[0]} to {self.seeds[-1]}")
        return self.seeds.index(seed)

    @property
    def return_range(self) -> tuple[float, float]:
        """The least and the largest return of an episode, as the user or the task says; infinite where neither does."""
        low, high = self.config.return_range or self.task.return_range or (-math.inf, math.inf)
        return low, high

    @property
    def env_seeds(self) -> list[int]:
        """The environment seeds of all members, in the order of the pool."""
        name = self.config.short_task
        task = dmc.TASKS[name].id if name in dmc.TASKS else self.config.task
        algorithm, num_envs = self.config.algorithm, self.config.num_envs
        return [number for seed in self.seeds for number in env_seeds(task, algorithm, seed, num_envs)]


def resolve(config: Config, make: Make | None = None, callbacks: Sequence[Callback] = ()) -> Job:
    """Decide everything about a run; raise UsageError for a bad setting, in one line with value, rule and remedy."""
    rule = f"must be one of {', '.join(tasks.BACKENDS)}"
    require(config, "backend", config.backend in tasks.BACKENDS, rule, "use auto")
    task = tasks.find(config.task, config.backend, make)
    if config.reset_each_batch is None:
        config = dataclasses.replace(config, reset_each_batch=task.horizon is not None)
    validate_batch(config, task.horizon)
    evaluations = [Evaluate(config.eval_every, config.eval_episodes)] if config.eval_every else []
    job = Job(config, task, plan_of(config), config.seed_range, make, [*evaluations, *callbacks])
    validate_keeping(job)
    return job


def require_policy(config: Config, spec: Spec) -> None:
    """Raise UsageError if the policy is for another kind of actions than an environment takes."""
    if config.policy != "auto":
        fits = KINDS[config.policy].discrete == spec.discrete
        require(config, "policy", fits, f"must be one for {spec.kind} actions, which {spec.id} takes", "use auto")


def validate_keeping(job: Job) -> None:
    """Raise where certificates would have no meaning, because episodes are cut off."""
    if job.keeps and job.config.reset_each_batch and job.task.horizon is None:
        raise UsageError(
            "trust = keep needs every episode to its end, and reset_each_batch = True cuts off the last of each batch; "
            "use --no-reset-each-batch", "trust",
        )  # fmt: skip


def require_not_fewer(directory: Path, job: Job, about: Facts, taken: int) -> None:
    """Raise UsageError if a resumed run is to end at fewer steps than it has taken: nothing can be untrained."""
    asked, before = job.config.steps, about["config"].get("steps")
    if asked < taken and asked != before:
        raise UsageError(
            f"steps = {asked:,} is below the {taken:,} that {directory} has taken; name more steps, or none"
        )
