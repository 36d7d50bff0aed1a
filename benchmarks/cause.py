"""Why policies were lost (docs/measurements.md): how much of a run's advantages is true?

    python benchmarks/cause.py cartpole-balance_sparse --seeds 5 --steps 600000 --frozen-from 250000
    python benchmarks/cause.py cartpole-swingup --seeds 2 --steps 400000

It appends to benchmarks/cause.jsonl; `losses.py` prints and draws that. It trains GePPO as `gpi train` does and keeps
policy, value function and normaliser every 10 updates; with `--frozen-from` it goes on from that step a second time,
from the same state and with the same random numbers, but with the normaliser's statistics fixed. Of each phase (a seed
learns, has mastered the task, has fallen) it then picks some moments, and there compares the advantages that the run
would use with a fresh Monte Carlo estimate. DeepMind Control is deterministic given seed and actions: copies of an
environment repeat an episode up to time t exactly (it is checked, bit for bit) and then act freely, from t (for V) or
after the same action at t (for Q). Their returns-to-go, cut at the horizon, at least 600 steps later, estimate
A = Q - V without the value function. With A^ the run's advantage:

    confirmed    Cov(A^, A of the copies) / Var(A^): the share of the advantages' variance that is true
    value error  the covariance of the A^ of two copies that share a state but no action, over Var(A^): a true advantage
                 averages to 0 over actions, so this is the error of the value function
    the rest     noise: what came after the action, by chance

Standard errors are from a bootstrap over episodes.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpi.config import Config
from gpi.core.agent import Hyper
from gpi.core.critic import Critic
from gpi.core.iteration import estimate, log_probs, read_values
from gpi.core.normaliser import Normaliser, normalise, normalise_obs, normalise_reward, scaling_of
from gpi.core.policy import Theta
from gpi.core.sample import Rollout, init_buffer, push
from gpi.envs import dmc
from gpi.envs.envpool import EnvPoolOnHost, import_envpool
from gpi.training import devices
from gpi.training.job import resolve
from gpi.training.session import make_environments
from gpi.training.trainer import Trainer

RECORD = Path(__file__).with_name("cause.jsonl")
EVERY = 10  # updates between two snapshots
GROUPS, COPIES = 16, 4  # episodes at once; copies of each time for V, and as many for Q
TIMES, LATEST, ROUNDS = 4, 400, 3  # times of an episode at which copies leave it, the latest, and rounds of episodes
PHASES = ("learning", "mastered", "fallen")
FIRST_SEED = 2_000_000_000  # of environments unseen in training, as far as that can be chosen


class Snapshot(NamedTuple):
    """One agent at one time."""

    seed: int
    step: int
    episode_return: float  # mean of its last ten episodes
    theta: Theta
    phi: Critic
    normaliser: Normaliser


# --- training -----------------------------------------------------------------------------------------------------


def trainer_of(config: Config) -> Trainer:
    """A trainer that is ready to train."""
    job = resolve(config)
    trainer = Trainer(job, make_environments(job), jax.local_devices()[: config.seeds])
    trainer.compile()
    return trainer


def train(trainer: Trainer, steps: int) -> list[Snapshot]:
    """Train up to so many steps, and keep every tenth policy of each seed."""
    found: list[Snapshot] = []
    recent: list[list[float]] = [[] for _ in trainer.job.seeds]
    for it in trainer.iterations(steps):
        for p, returns in enumerate(recent):  # every batch begins with a reset: its first episode is whole
            returns.append(float(it.raw.reward[p, : trainer.spec.horizon].sum()))
        if it.number % EVERY:
            continue
        state = trainer.learner.snapshot()
        parts = (state.learned.agent.policy.params, state.learned.agent.value, state.learned.normaliser)
        for p, seed in enumerate(trainer.job.seeds):
            mine = jax.tree.map(lambda x, p=p: x[p], parts)
            found.append(Snapshot(seed, int(trainer.taken[p]), float(np.mean(recent[p][-10:])), *mine))
    return found


def trained(config: Config, frozen_from: int) -> tuple[dict[str, list[Snapshot]], Hyper]:
    """Train as the paper does and, from the same state at `frozen_from` steps, once more with fixed statistics."""
    trainer = trainer_of(config)
    trainer.warm_up()
    first = train(trainer, frozen_from or config.steps)
    runs = {"paper": first}
    if frozen_from:
        saved = trainer.snapshot()
        runs["paper"] = first + train(trainer, config.steps)
        trainer = trainer_of(config)
        trainer.restore(saved)
        learner = trainer.learner
        now = jnp.full_like(learner.hyper.freeze, trainer.batches)
        learner.hyper = jax.device_put(learner.hyper._replace(freeze=now), learner.sharded)
        runs["frozen"] = first + train(trainer, config.steps)
    return runs, jax.tree.map(lambda x: x[0], trainer.learner.hyper)


def phase_of(several: Sequence[Snapshot], i: int) -> str:
    """The phase of a seed's snapshot: by its return against the seed's best, and whether it had been there before."""
    returns = [s.episode_return for s in several]
    best, reached = max(returns), next(j for j, x in enumerate(returns) if x >= 0.95 * max(returns))
    if i < reached:
        return "learning" if 0.1 * best <= returns[i] <= 0.6 * best else ""
    if returns[i] >= 0.95 * best:
        return "mastered"
    return "fallen" if returns[i] < 0.8 * best else ""


def chosen(some: Sequence[Snapshot], found: Sequence[Snapshot], most: int) -> Iterator[tuple[str, Snapshot]]:
    """Yield at most so many of some snapshots for each phase, spread evenly over seeds and time."""
    by_phase: dict[str, list[Snapshot]] = {phase: [] for phase in PHASES}
    for seed in sorted({s.seed for s in found}):
        mine = [s for s in found if s.seed == seed]
        for i, one in enumerate(mine):
            if phase_of(mine, i) and any(one is other for other in some):
                by_phase[phase_of(mine, i)].append(one)
    for phase, several in by_phase.items():
        places = np.unique(np.linspace(0, len(several) - 1, most).round().astype(int)) if several else []
        yield from ((phase, several[place]) for place in places)


# --- Monte Carlo ----------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """What `copies` found, axes `[G, J]`: J times in each of G episodes; copies have a last axis K."""

    adv: np.ndarray  # the run's advantages A^
    q: np.ndarray  # returns-to-go of the copies that repeat the action
    v: np.ndarray  # and of those that draw their own
    adv_v: np.ndarray  # the A^ of the latter


class Branches(NamedTuple):
    """When each environment leaves its episode: the first of each group never does."""

    time: np.ndarray  # [N], t
    free: np.ndarray  # [N], the first step with an action of its own: t for V, t + 1 for Q


def branches_of(rng: np.random.Generator) -> Branches:
    """Draw the times at which copies leave their episodes; a group is the episode, then [J, V or Q, K] copies."""
    times = np.stack([np.sort(rng.choice(LATEST, TIMES, replace=False)) for _ in range(GROUPS)])
    time = np.broadcast_to(times[:, :, None, None], (GROUPS, TIMES, 2, COPIES))
    free = time + np.array([0, 1])[None, None, :, None]
    zeros = np.zeros((GROUPS, 1), np.int64)
    return Branches(*(np.concatenate([zeros, x.reshape(GROUPS, -1)], axis=1).reshape(-1) for x in (time, free)))


def pool_of(task: str) -> EnvPoolOnHost:
    """Make the environments: all of a group have the same seed, which `envs/` refuses for training."""
    spec = dmc.find_spec(task)
    seeds = np.repeat(FIRST_SEED + np.arange(GROUPS), 1 + 2 * TIMES * COPIES).tolist()
    options = {"num_envs": len(seeds), "num_threads": 1, "env_seed": seeds}
    env = import_envpool().make_gymnasium(dmc.envpool_id(spec), **options)
    return EnvPoolOnHost(spec, env, len(seeds), list(dmc.observation_keys(spec)))


def copies(pool: EnvPoolOnHost, one: Snapshot, hyper: Hyper, rng: np.random.Generator) -> Measured:
    """Play episodes of a snapshot with copies that leave them, and arrange what they found."""
    size, branches = pool.num_envs // GROUPS, branches_of(rng)
    leader, total, adv = play(pool, one, hyper, branches, rng)
    times = branches.time.reshape(GROUPS, size)[:, 1:].reshape(GROUPS, TIMES, -1)[:, :, 0]
    shape = (GROUPS, TIMES, 2, COPIES)
    total, adv = (x.reshape(GROUPS, size)[:, 1:].reshape(shape) for x in (total, adv))
    hats = np.asarray(advantages(leader, one, hyper))
    return Measured(hats[times, np.arange(GROUPS)[:, None]], total[:, :, 1], total[:, :, 0], adv[:, :, 0])


def play(
    pool: EnvPoolOnHost, one: Snapshot, hyper: Hyper, branches: Branches, rng: np.random.Generator
) -> tuple[Rollout, np.ndarray, np.ndarray]:
    """Step everything together; return the episodes, raw, and the return-to-go and the A^ of every copy from its t."""
    size, gamma, decay = pool.num_envs // GROUPS, float(hyper.gamma), float(hyper.gamma * hyper.gae_lambda)
    scaling, returns = one.normaliser.in_force, scaling_of(one.normaliser.returns)

    @jax.jit
    def look(obs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        seen = normalise_obs(scaling, obs)
        return one.theta.distribution(seen).act(noise), one.phi.value(seen)

    def first(x: np.ndarray) -> np.ndarray:  # of each group, the episode itself
        return np.repeat(x.reshape(GROUPS, size, -1)[:, :1], size, axis=1).reshape(x.shape)

    def noise() -> np.ndarray:
        return rng.standard_normal((pool.num_envs, pool.spec.action_size)).astype(np.float32)

    obs, rows = pool.reset(), []
    total, adv = np.zeros((2, pool.num_envs))
    action, value = map(np.asarray, look(obs, noise()))
    for t in range(pool.spec.horizon or 1000):
        together = t < branches.free
        action = np.where(together[:, None], first(action), action)
        step = pool.step(action)
        assert (step.obs == first(step.obs))[together].all(), "copies must repeat the episode bit for bit"
        reward = np.asarray(normalise_reward(returns, jnp.asarray(step.reward)[:, None]))[:, 0]
        after, next_value = map(np.asarray, look(step.obs, noise()))
        since = np.where(t >= branches.time, t - branches.time, np.inf)
        total += gamma**since * reward
        adv += decay**since * (reward + gamma * next_value - value)
        row = (obs, action, step.reward, step.obs, step.terminated, step.terminated | step.truncated, step.valid)
        rows.append([x[::size] for x in row])
        obs, action, value = step.obs, after, next_value
    return Rollout(*(jnp.asarray(np.stack(column)) for column in zip(*rows, strict=True))), total, adv


def advantages(raw: Rollout, one: Snapshot, hyper: Hyper) -> jax.Array:
    """The run's own estimate of the advantages of new episodes, `[T, E]`: one slot, on-policy."""
    rollout = normalise(one.normaliser, raw)
    buffer = push(init_buffer(rollout, 1), rollout, rollout, log_probs(one.theta, rollout))
    alone = hyper._replace(nu=jnp.ones(1, jnp.float32))
    return estimate(one.theta, read_values(one.phi, buffer), buffer, alone).adv.reshape(raw.reward.shape)


def shares(m: Measured) -> dict[str, float]:
    """The shares of the variance of A^."""
    hat, truth = m.adv - m.adv.mean(), m.q.mean(axis=2) - m.v.mean(axis=2)
    variance = float((hat**2).mean())
    first, second = np.array_split(m.adv_v, 2, axis=2)
    apart = [x.mean(axis=2) - m.adv_v.mean() for x in (first, second)]
    noise = m.q.var(axis=2, ddof=1).mean() / COPIES + m.v.var(axis=2, ddof=1).mean() / COPIES
    true_variance = float(((truth - truth.mean()) ** 2).mean() - noise)
    covariance = float((hat * truth).mean())
    return {
        "confirmed": covariance / variance if variance > 0 else 0.0,
        "value_error": float((apart[0] * apart[1]).mean()) / variance if variance > 0 else 0.0,
        "adv_std": variance**0.5, "adv_mean": float(m.adv.mean()), "true_variance": true_variance,
        "correlation": covariance / (variance * true_variance) ** 0.5 if true_variance > 0 < variance else float("nan"),
    }  # fmt: skip


def bootstrap(m: Measured, rng: np.random.Generator, repeats: int = 1000) -> dict[str, float]:
    """Standard errors of the shares, over episodes."""
    drawn = []
    for _ in range(repeats):
        pick = rng.integers(0, len(m.adv), len(m.adv))
        drawn.append(shares(Measured(*(x[pick] for x in m))))
    return {f"{name}_error": float(np.nanstd([one[name] for one in drawn])) for name in ("confirmed", "value_error")}


def measure(chosen_options: argparse.Namespace) -> None:
    """Train, pick moments and measure them; every moment is a line of the record."""
    o = chosen_options
    config = Config(o.task, "geppo", seeds=o.seeds, steps=o.steps)
    devices.prepare(config)
    began = time.process_time()
    with jax.enable_x64(True):
        runs, hyper = trained(config, o.frozen_from)
        print(f"trained: {time.process_time() - began:.0f} s of CPU", flush=True)
        pool, rng = pool_of(o.task), np.random.default_rng(0)
        for normaliser, found in runs.items():
            write({"kind": "run", "task": o.task, "normaliser": normaliser, "frozen_from": o.frozen_from,
                   "returns": [[s.seed, s.step, round(s.episode_return, 1)] for s in found]} | versions())  # fmt: skip
            later = [s for s in found if normaliser == "paper" or s.step > o.frozen_from]
            for phase, one in chosen(later, found, o.most):
                rounds = [copies(pool, one, hyper, rng) for _ in range(ROUNDS)]
                m = Measured(*(np.concatenate(x) for x in zip(*rounds, strict=True)))
                about = {"kind": "moment", "task": o.task, "normaliser": normaliser, "phase": phase, "seed": one.seed,
                         "step": one.step, "episode_return": round(one.episode_return, 1)}  # fmt: skip
                sizes = {"pairs": m.adv.size, "episodes": len(m.adv), "copies": COPIES}
                line = about | shares(m) | bootstrap(m, rng) | sizes
                write(line | versions())
                print(
                    {k: x for k, x in line.items() if k != "kind"}, f"{time.process_time() - began:.0f} s", flush=True
                )


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in ("jax", "envpool")}}


def write(line: dict[str, Any]) -> None:
    with RECORD.open("a") as file:
        file.write(json.dumps(line | {"date": str(date.today())}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--frozen-from", type=int, default=0, metavar="STEP", help="go on twice from here")
    parser.add_argument("--most", type=int, default=3, help="moments of each phase (default: 3)")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
