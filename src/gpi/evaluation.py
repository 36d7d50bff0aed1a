"""Evaluation: how well policies do in new episodes, with honest intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpi.envs import tasks
from gpi.envs.seeds import env_seeds
from gpi.errors import EnvironmentFault, UsageError
from gpi.rundir.run import Run

if TYPE_CHECKING:  # reading results must not start an environment
    from gpi.envs.gym import Make
    from gpi.envs.pool import Seekable, Spec
    from gpi.standalone import Policy

PARALLEL = 16  # environments that play at the same time
RESAMPLES = 10_000


@dataclass(frozen=True)
class Evaluation:
    """Returns of evaluation episodes, `returns[seed]` and `lengths[seed]`, one number per episode."""

    task: str
    returns: dict[int, np.ndarray]
    lengths: dict[int, np.ndarray]
    unfinished: int = 0
    """Episodes that were stopped because they would not end; their returns are of the part that was played."""
    means: dict[int, float] = field(init=False)
    """Mean return of each seed."""

    def __post_init__(self) -> None:
        """The means follow from the returns."""
        object.__setattr__(self, "means", {seed: float(x.mean()) for seed, x in self.returns.items()})

    @property
    def mean(self) -> float:
        """Mean over the seeds of their mean returns."""
        return float(np.mean(list(self.means.values())))

    def interval(self, seed: int | None = None) -> tuple[float, float]:
        """The 95 % bootstrap interval of a seed's mean over its episodes; without a seed, of the mean over seeds.

        Seeds are what differs between runs, so the latter draws seeds; a single one has only its episodes to draw.
        """
        if seed is None and len(self.returns) == 1:
            seed = next(iter(self.returns))
        return bootstrap(np.array(list(self.means.values())) if seed is None else self.returns[seed])


def bootstrap(x: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of x."""
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
        env: The environment, by id or as a function. Needed for a user's own, whose code no file may name for them,
            and for a policy that is evaluated elsewhere than it was trained.
        episodes: Episodes per seed.
        deterministic: Act with the mean or likeliest action; otherwise sample as in training.
        seed: One seed of the run; by default all.
        max_steps: Steps after which an episode that does not end is stopped.
    """
    if episodes < 1 or max_steps < 1:
        raise UsageError(f"episodes = {episodes} and max_steps = {max_steps} must be at least 1; use 1 or more")
    place = source.dir if isinstance(source, Run) else source
    policies = policies_of(place, seed)
    task, make = task_of(policies, place, env)
    return play(policies, task, make, episodes, deterministic=deterministic, max_steps=max_steps)


def policies_of(source: Any, seed: int | None = None) -> dict[int, Policy]:
    """The policies of a run by their seeds, or one policy."""
    from gpi import policy_file

    if isinstance(source, policy_file.Policy):
        return {int(source.about.get("seed", 0)): source}
    path = Path(source)
    if not path.is_dir() or (path / "policy.json").is_file():
        policy = policy_file.load(path)
        return {int(policy.about.get("seed", 0)): policy}
    if seed is not None:
        return {seed: policy_file.load(path, seed)}
    return {name: policy_file.load(path, name) for name in sorted(policy_file.policy_files(path))} or {
        0: policy_file.load(path)  # which says what is missing
    }


def task_of(policies: Mapping[int, Policy], source: Any, env: str | Make | None) -> tuple[tasks.Task, Make | None]:
    """Where policies are to act: what the user names or, unless that is the user's own code, what they learned in."""
    if callable(env):
        return tasks.find(tasks.name_of(env), make=env), env
    about = next(iter(policies.values())).about
    name = env or about["task"]
    task = tasks.find(name, about.get("backend", "auto") if env is None else "auto")
    if task.own and env is None:
        raise UsageError(tasks.name_it(source if isinstance(source, str | Path) else "this policy", name))
    return task, None


def play(
    policies: Mapping[int, Policy], task: tasks.Task, make: Make | None, episodes: int,
    *, deterministic: bool = True, max_steps: int = 100_000,
) -> Evaluation:  # fmt: skip
    """Episodes of each policy; environments are seeded by seed and number, the same in every evaluation."""
    returns, lengths, unfinished = {}, {}, 0
    task = task._replace(backend="gymnasium") if task.backend == "processes" else task
    with tasks.settings_of(task):
        for seed, policy in policies.items():
            parallel = min(PARALLEL, episodes)
            pool = tasks.make_pool(task, env_seeds(task.id, "evaluation", seed, parallel), 1, make=make)
            try:
                fit(policy, pool)
                rng = None if deterministic else np.random.default_rng(seed)
                returns[seed], lengths[seed], cut = _episodes(policy, pool, episodes, rng, max_steps)
                unfinished += cut
            finally:
                pool.close()
    return Evaluation(task.id, returns, lengths, unfinished)


def fit(policy: Policy, pool: Seekable) -> None:
    """A policy must see and do what the environment shows and takes."""
    spec = pool.spec
    ours = (policy.obs_mean.size, policy.log_std is None, policy.layers[-1][1].size)
    theirs = (spec.observation_size, spec.discrete, spec.action_size)
    if ours != theirs:
        kinds = ["discrete" if kind else "continuous" for kind in (ours[1], theirs[1])]
        raise UsageError(
            f"the policy sees {ours[0]} numbers and has {ours[2]} {kinds[0]} actions, {spec.id} shows {theirs[0]} and "
            f"takes {theirs[2]} {kinds[1]}; name the environment it was trained in"
        )


def _episodes(
    policy: Policy, pool: Seekable, episodes: int, rng: np.random.Generator | None, max_steps: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns and lengths; every environment plays its share, so that short episodes are not over-represented."""
    N = pool.num_envs
    quota = np.array([len(share) for share in np.array_split(np.arange(episodes), N)])
    returns: list[list[float]] = [[] for _ in range(N)]
    lengths: list[list[int]] = [[] for _ in range(N)]
    total, length, ended, unfinished = np.zeros(N), np.zeros(N, np.int64), np.zeros(N, np.bool_), 0
    _, obs = pool.reset(pool.handle)
    while any(len(mine) < quota[i] for i, mine in enumerate(returns)):
        out = pool.play(choose(policy, pool.spec, np.asarray(obs), rng))
        total, length = total + out.reward, length + 1
        over = ~ended & (np.asarray(out.terminated) | np.asarray(out.truncated))
        if (length >= max_steps).any() and not over.all():
            for i in np.flatnonzero((length >= max_steps) & ~over):
                missing = max(quota[i] - len(returns[i]), 0)  # it would not end in its other episodes either
                unfinished += missing
                returns[i] += [total[i]] * missing
                lengths[i] += [length[i]] * missing
        for i in np.flatnonzero(over):
            returns[i].append(total[i])
            lengths[i].append(length[i])
        total[over | ended], length[over | ended] = 0.0, 0  # a reset is no step, its reward uninitialised memory
        obs, ended = out.obs, over
    pick = [(r, n) for i in range(N) for r, n in zip(returns[i][: quota[i]], lengths[i][: quota[i]], strict=True)]
    return np.array([r for r, _ in pick]), np.array([n for _, n in pick]), unfinished


def choose(policy: Policy, spec: Spec, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Actions as a pool of `spec` takes them."""
    try:
        return to_agent(policy(obs) if rng is None else policy.sample(obs, rng), spec)
    except ValueError as error:  # of an observation no policy may act on
        raise EnvironmentFault(f"{spec.id}: {error}; mend the environment") from error


def to_agent(action: Any, spec: Spec) -> np.ndarray:
    """Actions in an environment's units as a pool takes them: within [-1, 1], or counted from 0."""
    if spec.discrete:
        return (np.asarray(action) - spec.start).astype(np.int32)
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    return ((action - 0.5 * (low + high)) / (0.5 * (high - low))).astype(np.float32)
