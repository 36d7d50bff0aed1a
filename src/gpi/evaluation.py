"""Evaluation: how well policies do in new episodes, with confidence intervals."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gpi.analysis.student_t import student
from gpi.config import require_positive
from gpi.envs import tasks
from gpi.envs.episodes import Episode, EpisodeCounter
from gpi.envs.seeds import env_seeds
from gpi.errors import EnvironmentFault, UsageError
from gpi.rundir.policies import Which, find, steps_of
from gpi.rundir.run import Run
from gpi.standalone import ContinuousPolicy, Policy
from gpi.terminal import counted

if TYPE_CHECKING:  # reading results must not start an environment
    from gpi.envs.importing import Make
    from gpi.envs.pool import HostPool, Spec

PARALLEL = 16  # environments that play at the same time


@dataclass(frozen=True)
class Evaluation:
    """Returns of evaluation episodes, `returns[seed]` and `lengths[seed]`, one number per episode."""

    task: str
    returns: dict[int, np.ndarray]
    lengths: dict[int, np.ndarray]
    unfinished: int = 0
    """Number of episodes that were stopped because they did not end; their returns cover the steps played."""
    means: dict[int, float] = field(init=False)
    """Mean return of each seed."""
    steps: dict[int, int] = field(default_factory=dict)
    """Environment steps that each policy was trained for."""

    def __post_init__(self) -> None:
        """Compute the means from the returns."""
        object.__setattr__(self, "means", {seed: float(x.mean()) for seed, x in self.returns.items()})

    @property
    def mean(self) -> float:
        """Mean of the seeds' mean returns."""
        return float(np.mean(list(self.means.values())))

    def interval(self, seed: int | None = None) -> tuple[float, float]:
        """Return the 95 % interval of the mean of a seed's episodes; without a seed, of the mean over seeds.

        Both are Student's, as in a study's report: runs differ by their seeds, so the latter is wide where there are
        two. With a single seed it is that of its episodes; of a single episode it is NaN.
        """
        if seed is None and len(self.returns) == 1:
            seed = next(iter(self.returns))
        _, low, high = student(np.array(list(self.means.values())) if seed is None else self.returns[seed])
        return low, high

    def has_interval(self) -> bool:
        """Return whether `interval()` is one: a single episode has none."""
        return len(self.returns) > 1 or any(len(returns) > 1 for returns in self.returns.values())


def evaluate(
    source: str | Path | Run | Policy, env: str | Make | None = None, *, episodes: int = 10,
    deterministic: bool = True, seed: int | Literal["best"] | None = None, max_steps: int = 100_000,
    policy: Which = "last", quiet: bool = False,
) -> Evaluation:  # fmt: skip
    """Play episodes with the policies of a run, or with one policy, in environments unseen in training.

    Args:
        source: A run, its directory, a policy file, or a policy.
        env: The environment, by id or as a function. Needed for your own, since no file may name code to import, and to
            evaluate a policy in an environment other than the one it was trained in.
        episodes: Episodes per seed.
        deterministic: Take the mean or most likely action; otherwise sample as in training.
        seed: One seed of the run, or "best"; by default all.
        max_steps: Steps after which an episode that does not end is stopped.
        policy: "best" takes each seed's best policy by its evaluations in training; see `gpi.load`.
        quiet: Show no progress.
    """
    policies = policies_of(source, seed, policy)
    task, make, note = task_of(policies, source, env)
    result = play(policies, task, make, episodes, deterministic=deterministic, max_steps=max_steps, quiet=quiet)
    tell(note, quiet=quiet)
    return result


def policies_of(
    source: str | Path | Run | Policy, seed: int | Literal["best"] | None = None, policy: Which = "last"
) -> dict[int, Policy]:
    """Return the policies of a run by their seeds, or a single policy."""
    if isinstance(source, Policy):
        return {int(source.about.get("seed", 0)): source}
    return find(source, seed, policy).policies


class Place(NamedTuple):
    """Where policies play, and what to know about it."""

    task: tasks.Task
    make: Make | None
    note: str
    """Says that they were trained elsewhere, or that episodes cannot be repeated; empty if neither is so."""


def task_of(policies: Mapping[int, Policy], source: str | Path | Run | Policy, env: str | Make | None) -> Place:
    """Return the task that the user names; by default the policies' own, unless that is the user's code."""
    if env is None and isinstance(source, Run):
        env = source.env
    tasks.require_env(env)
    about = next(iter(policies.values())).about
    name = env if isinstance(env, str) else about["task"]
    if callable(env):
        task = tasks.find(tasks.name_of(env), make=env)
    else:
        task = tasks.find(name, about.get("backend", "auto") if env is None else "auto")
    if task.own and env is None:
        where = "this policy" if isinstance(source, Policy) else os.fspath(source)
        raise UsageError(tasks.ask_for_name(where, name))
    trained = about.get("task", task.id)
    other = f"trained in {trained}, played in {task.id}" if trained != task.id else ""
    if not other and about.get("repeats") == "unseeded":
        other = f"{task.id} ignores its seeds: these episodes cannot be repeated"
    return Place(task, env if callable(env) else None, other)


def tell(note: str, *, quiet: bool) -> None:
    """Print a note on standard error, where progress is shown too."""
    if note and not quiet:
        print(f"note: {note}", file=sys.stderr)


def play(
    policies: Mapping[int, Policy], task: tasks.Task, make: Make | None, episodes: int,
    *, deterministic: bool = True, max_steps: int = 100_000, purpose: str = "evaluation", quiet: bool = True,
) -> Evaluation:  # fmt: skip
    """Play episodes with each policy; environments are seeded by seed and number, the same for the same `purpose`."""
    require_positive(episodes=episodes, max_steps=max_steps)
    returns, lengths, unfinished = {}, {}, 0
    task = task._replace(backend="gymnasium") if task.backend == "processes" else task
    with counted("episodes", episodes * len(policies), quiet=quiet) as show:
        for number, (seed, policy) in enumerate(policies.items()):
            seeds = env_seeds(task.id, purpose, seed, min(PARALLEL, episodes))
            pool = tasks.make_host_pool(task, seeds, make=make)
            try:
                require_fit(policy, pool.spec)
                rng = None if deterministic else np.random.default_rng(seed)
                returns[seed], lengths[seed], cut = _episodes(
                    policy, pool, episodes, rng, max_steps, lambda now, before=number * episodes: show(before + now)
                )
                unfinished += cut
            finally:
                pool.close()
    return Evaluation(task.id, returns, lengths, unfinished, {seed: steps_of(one) for seed, one in policies.items()})


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the random numbers that all code in a process shares as they were: environments may draw from them."""
    shared, python = np.random.get_state(), random.getstate()  # noqa: NPY002 (it is the user's)
    try:
        yield
    finally:
        np.random.set_state(shared)  # noqa: NPY002
        random.setstate(python)


def _episodes(
    policy: Policy, pool: HostPool, episodes: int, rng: np.random.Generator | None, max_steps: int,
    show: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray, int]:  # fmt: skip
    """Return returns, lengths and the number of unfinished episodes.

    Every environment plays its share, so that short episodes are not over-represented.
    """
    quotas = [len(share) for share in np.array_split(np.arange(episodes), pool.num_envs)]
    played: list[list[Episode]] = [[] for _ in quotas]
    counter, unfinished = EpisodeCounter(pool.num_envs), 0
    obs = pool.reset()
    while any(len(mine) < quota for mine, quota in zip(played, quotas, strict=True)):
        step = pool.step(act(policy, pool.spec, obs, rng))
        for episode in counter.add_step(step):
            played[episode.env].append(episode)
        for i in np.flatnonzero(counter.length >= max_steps):
            missing = max(quotas[i] - len(played[i]), 0)  # it would not end in its other episodes either
            played[i] += [Episode(int(i), float(counter.total[i]), int(counter.length[i]))] * missing
            unfinished += missing
        show(sum(min(len(mine), quota) for mine, quota in zip(played, quotas, strict=True)))
        obs = step.obs
    chosen = [episode for mine, quota in zip(played, quotas, strict=True) for episode in mine[:quota]]
    return np.array([one.total for one in chosen]), np.array([one.length for one in chosen]), unfinished


def require_fit(policy: Policy, spec: Spec) -> None:
    """Raise UsageError unless the policy's observations and actions are those of the environment."""
    ours = (policy.obs_mean.size, policy.discrete, policy.action_size, policy.start)
    theirs = (spec.observation_size, spec.discrete, spec.action_size, spec.start)
    if ours != theirs:
        kinds = [f"discrete actions from {x[3]}" if x[1] else "continuous actions" for x in (ours, theirs)]
        raise UsageError(
            f"the policy sees {ours[0]} numbers and has {ours[2]} {kinds[0]}, {spec.id} shows {theirs[0]} and "
            f"takes {theirs[2]} {kinds[1]}; name the environment it was trained in"
        )
    if not isinstance(policy, ContinuousPolicy):
        return
    pairs = (np.array(x, np.float32).T.tolist() for x in ((policy.low, policy.high), (spec.low, spec.high)))
    for j, (own, other) in enumerate(zip(*pairs, strict=True)):
        if own != other:
            raise UsageError(
                f"action {j} of the policy lies in [{own[0]:g}, {own[1]:g}], that of {spec.id} in [{other[0]:g}, "
                f"{other[1]:g}], where it would not act as trained; name the environment it was trained in"
            )


def act(policy: Policy, spec: Spec, obs: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return the policy's actions as a pool of `spec` takes them; sampled as in training if `rng` is given.

    Raise EnvironmentFault for observations that are not finite or have the wrong shape.
    """
    try:
        action = policy(obs) if rng is None else policy.sample(obs, rng)
    except ValueError as error:
        raise EnvironmentFault(f"{spec.id}: {error}; fix the environment") from error
    return to_agent(action, spec)


def to_agent(action: np.ndarray | int, spec: Spec) -> np.ndarray:
    """Convert actions from an environment's units to what a pool takes: within [-1, 1], or counted from 0."""
    if spec.discrete:
        return (np.asarray(action) - spec.start).astype(np.int32)
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    return ((action - 0.5 * (low + high)) / (0.5 * (high - low))).astype(np.float32)
