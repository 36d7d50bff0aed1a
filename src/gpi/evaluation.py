"""Evaluation: how well policies do in new episodes, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpi import policy_file
from gpi.envs import tasks
from gpi.envs.episodes import Episode, EpisodeCounter
from gpi.envs.seeds import env_seeds
from gpi.errors import EnvironmentFault, UsageError
from gpi.policy_file import Policy
from gpi.rundir.run import Run

if TYPE_CHECKING:  # reading results must not start an environment
    from gpi.envs.importing import Make
    from gpi.envs.pool import HostPool, Spec

PARALLEL = 16  # environments that play at the same time
RESAMPLES = 10_000


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

    def __post_init__(self) -> None:
        """Compute the means from the returns."""
        object.__setattr__(self, "means", {seed: float(x.mean()) for seed, x in self.returns.items()})

    @property
    def mean(self) -> float:
        """Mean of the seeds' mean returns."""
        return float(np.mean(list(self.means.values())))

    def interval(self, seed: int | None = None) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of the mean of a seed's episodes; without a seed, of the mean over seeds.

        Runs differ by their seeds, so the latter resamples seeds; with a single seed, its episodes are resampled.
        """
        if seed is None and len(self.returns) == 1:
            seed = next(iter(self.returns))
        return bootstrap(np.array(list(self.means.values())) if seed is None else self.returns[seed])


def bootstrap(x: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of x."""
    rng = np.random.default_rng(0)
    means = [x[rng.integers(len(x), size=(100, len(x)))].mean(axis=1) for _ in range(RESAMPLES // 100)]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def evaluate(
    source: str | Path | Run | Policy, env: str | Make | None = None, *, episodes: int = 10,
    deterministic: bool = True, seed: int | None = None, max_steps: int = 100_000,
) -> Evaluation:  # fmt: skip
    """Play episodes with the final policies of a run, or with one policy, in environments unseen in training.

    Args:
        source: A run, its directory, a policy file, or a policy.
        env: The environment, by id or as a function. Needed for your own, since no file may name code to import, and to
            evaluate a policy in an environment other than the one it was trained in.
        episodes: Episodes per seed.
        deterministic: Take the mean or most likely action; otherwise sample as in training.
        seed: One seed of the run; by default all.
        max_steps: Steps after which an episode that does not end is stopped.
    """
    if episodes < 1 or max_steps < 1:
        raise UsageError(f"episodes = {episodes} and max_steps = {max_steps} must be at least 1; use 1 or more")
    path = source.dir if isinstance(source, Run) else source
    policies = policies_of(path, seed)
    task, make = task_of(policies, path, env)
    return play(policies, task, make, episodes, deterministic=deterministic, max_steps=max_steps)


def policies_of(source: str | Path | Policy, seed: int | None = None) -> dict[int, Policy]:
    """Return the policies of a run by their seeds, or a single policy."""
    if isinstance(source, Policy):
        return {int(source.about.get("seed", 0)): source}
    path = Path(source)
    if not path.is_dir() or (path / "policy.json").is_file():
        policy = policy_file.load(path)
        return {int(policy.about.get("seed", 0)): policy}
    if seed is not None:
        return {seed: policy_file.load(path, seed)}
    return {name: policy_file.load(path, name) for name in sorted(policy_file.list_policy_files(path))} or {
        0: policy_file.load(path)  # raises, naming what is missing
    }


def task_of(
    policies: Mapping[int, Policy], source: str | Path | Policy, env: str | Make | None
) -> tuple[tasks.Task, Make | None]:
    """Return the task that the user names; by default the policies' own, unless that is the user's code."""
    if callable(env):
        return tasks.find(tasks.name_of(env), make=env), env
    about = next(iter(policies.values())).about
    name = env or about["task"]
    task = tasks.find(name, about.get("backend", "auto") if env is None else "auto")
    if task.own and env is None:
        raise UsageError(tasks.ask_for_name(source if isinstance(source, str | Path) else "this policy", name))
    return task, None


def play(
    policies: Mapping[int, Policy], task: tasks.Task, make: Make | None, episodes: int,
    *, deterministic: bool = True, max_steps: int = 100_000,
) -> Evaluation:  # fmt: skip
    """Play episodes with each policy; environments are seeded by seed and number, the same in every evaluation."""
    returns, lengths, unfinished = {}, {}, 0
    task = task._replace(backend="gymnasium") if task.backend == "processes" else task
    for seed, policy in policies.items():
        seeds = env_seeds(task.id, "evaluation", seed, min(PARALLEL, episodes))
        pool = tasks.make_host_pool(task, seeds, make=make)
        try:
            require_fit(policy, pool.spec)
            rng = None if deterministic else np.random.default_rng(seed)
            returns[seed], lengths[seed], cut = _episodes(policy, pool, episodes, rng, max_steps)
            unfinished += cut
        finally:
            pool.close()
    return Evaluation(task.id, returns, lengths, unfinished)


def _episodes(
    policy: Policy, pool: HostPool, episodes: int, rng: np.random.Generator | None, max_steps: int
) -> tuple[np.ndarray, np.ndarray, int]:
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
        obs = step.obs
    chosen = [episode for mine, quota in zip(played, quotas, strict=True) for episode in mine[:quota]]
    return np.array([one.total for one in chosen]), np.array([one.length for one in chosen]), unfinished


# --- policies in environments -------------------------------------------------------------------------------------


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


def act(policy: Policy, spec: Spec, obs: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return the policy's actions as a pool of `spec` takes them; sampled as in training if `rng` is given.

    The policy acts in its own units, whatever the bounds of this environment. Raise EnvironmentFault for observations
    that are not finite or have the wrong shape.
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
