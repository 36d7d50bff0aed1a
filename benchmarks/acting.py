"""Is eq (11) true of the policies that act? On fresh episodes, which no update has seen (docs/measurements.md).

    python benchmarks/acting.py cheetah-run --algorithm geppo --trust strict --steps 300000 --seeds 2
    python benchmarks/acting.py --table

It appends to benchmarks/acting.jsonl. It trains as `gpi train` does and takes from every iteration the policy as a
policy file would hold it, weights and statistics in force together. Afterwards every policy plays 4 fresh episodes. For
each update the expected TV of pi_{k+1} to pi_{k-i}, over the mixture nu, is then measured from 16 fresh actions of
pi_{k-i} in every tenth state that pi_{k-i} visited there: the mean of (1 - ratio)+, which is unbiased, as nothing was
fitted to these samples. Its standard error is over episodes. An update is *outside* where that is above eps/2, and
*surely outside* where it is by more than three standard errors. `audit` is what the run's own audit said of the same
updates.
"""

import argparse
import itertools
import json
import platform
from collections import deque
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpi.config import Config, decided
from gpi.core.normaliser import Scaling, normalise_obs
from gpi.core.policy import Theta, log_pi
from gpi.envs.pool import HostPool
from gpi.envs.tasks import make_host_pool
from gpi.training import devices
from gpi.training.job import Job, resolve
from gpi.training.session import make_environments
from gpi.training.trainer import Trainer

RECORD = Path(__file__).with_name("acting.jsonl")
EPISODES, ACTIONS = 4, 16
FIRST_SEED = 2_000_000_000  # of environments unseen in training, as far as that can be chosen
SURELY = 3.0  # standard errors
LAST = 2**31  # a number that no step has
STRIDE = 10  # of the states of an episode, every tenth is looked at: neighbours are much alike


class Acting(NamedTuple):
    """A policy as it acts."""

    theta: Theta
    scaling: Scaling


class Played(NamedTuple):
    """What a policy did in fresh episodes, `[episodes, states]`, with actions that were drawn but not played."""

    obs: jax.Array
    action: jax.Array  # [episodes, states, actions]
    logp: jax.Array


@jax.jit
def choose(policy: Acting, obs: jax.Array, key: jax.Array) -> jax.Array:
    """One action for each state."""
    noise = policy.theta.draw_noise(key, (obs.shape[0],), policy.theta.net[-1].bias.shape[0])
    return policy.theta.distribution(normalise_obs(policy.scaling, obs)).act(noise)


@jax.jit
def drawn(policy: Acting, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """16 actions in each state `[S, O]`, with their log-probabilities."""
    many = jnp.repeat(obs, ACTIONS, axis=0)
    action = choose(policy, many, key)
    return action, log_pi(policy.theta, normalise_obs(policy.scaling, many), action)


@jax.jit
def lost(policy: Acting, obs: jax.Array, action: jax.Array, logp: jax.Array) -> jax.Array:
    """The mean of (1 - ratio)+ for each episode of another policy's."""
    many = jnp.repeat(obs.reshape(-1, obs.shape[-1]), ACTIONS, axis=0)
    ratio = jnp.exp(log_pi(policy.theta, normalise_obs(policy.scaling, many), action) - logp)
    return jnp.mean(jnp.maximum(1.0 - ratio, 0.0).reshape(obs.shape[0], -1), axis=1)


def play(pool: HostPool, policy: Acting, key: jax.Array) -> Played:
    """Play fresh episodes with a policy."""
    obs, rows = pool.reset(), []
    for t in range(pool.spec.horizon or 1000):
        rows.append(obs)
        obs = pool.step(np.asarray(choose(policy, jnp.asarray(obs), jax.random.fold_in(key, t)))).obs
    seen = jnp.asarray(np.stack(rows, axis=1)[:, ::STRIDE])
    return Played(seen, *drawn(policy, seen.reshape(-1, seen.shape[-1]), jax.random.fold_in(key, LAST)))


def measured(job: Job, policies: list[Acting], seed: int) -> list[tuple[float, float]]:
    """The left side of eq (11) and its standard error, of every update."""
    nu, found = np.array(job.plan.nu), []
    pool = make_host_pool(job.task, list(range(FIRST_SEED, FIRST_SEED + EPISODES)))
    past: deque[Played] = deque(maxlen=len(nu))
    for number, (now, after) in enumerate(itertools.pairwise(policies)):
        past.appendleft(play(pool, now, jax.random.fold_in(jax.random.key(seed), number)))
        each = np.array([lost(after, *one) for one in past])  # [ages, episodes]
        weight = nu[: len(past)] / nu[: len(past)].sum()
        error = np.sqrt(weight**2 @ (each.var(axis=1, ddof=1) / EPISODES))
        found.append((float(weight @ each.mean(axis=1)), float(error)))
    pool.close()
    return found


def trained(config: Config) -> tuple[Job, list[list[Acting]], np.ndarray]:
    """Train; return every policy of each seed as it acted, and the audit's `penalty_acted`, `[updates, seeds]`."""
    job = resolve(decided(config))
    trainer = Trainer(job, make_environments(job), jax.local_devices()[: config.seeds])
    trainer.compile()
    trainer.warm_up()
    policies: list[list[Acting]] = [[] for _ in job.seeds]
    audits = []

    def keep() -> None:
        state = trainer.learner.snapshot()
        for p, mine in enumerate(policies):
            parts = state.learned.agent.policy.params, state.learned.normaliser.in_force
            mine.append(Acting(*jax.tree.map(lambda x, p=p: jnp.asarray(x[p]), parts)))

    keep()
    for it in trainer.iterations(config.steps):
        audits.append(np.where(it.kept.undone if it.kept else False, np.nan, it.audit.penalty_acted))
        keep()
    return job, policies, np.array(audits)


def run(config: Config) -> None:
    """Train, measure, record a line for each seed."""
    job, policies, audits = trained(config)
    bound = 0.5 * config.eps
    for p, seed in enumerate(job.seeds):
        found = np.array(measured(job, policies[p], seed))
        found = found[~np.isnan(audits[:, p])]  # an agent that went back did not update
        share = found[:, 0] / bound
        audited = audits[~np.isnan(audits[:, p]), p] / bound
        line = {
            "task": config.short_task, "algorithm": config.algorithm, "trust": config.trust,
            "normaliser": job.config.normaliser, "seed": seed, "steps": config.steps, "updates": len(found),
            "outside": int(np.sum(share > 1.0)), "surely": int(np.sum(found[:, 0] - SURELY * found[:, 1] > bound)),
            "mean": round(float(share.mean()), 4), "worst": round(float(share.max()), 4),
            "audit_outside": int(np.sum(audited > 1.0)), "audit_mean": round(float(audited.mean()), 4),
            "audit_worst": round(float(audited.max()), 4), "date": date.today().isoformat(),
            "versions": {name: version(name) for name in ("jax", "envpool")} | {"python": platform.python_version()},
        }  # fmt: skip
        with RECORD.open("a") as file:
            print(json.dumps(line), file=file)
        print(row(line), flush=True)


HEADER = ("task", "algorithm", "trust", "normaliser", "seed", "updates", "outside", "surely outside", "mean", "worst",
          "outside by audit", "audit, mean", "audit, worst")  # fmt: skip


def row(line: dict[str, Any]) -> str:
    """A line of the table."""
    names = ("task", "algorithm", "trust", "normaliser", "seed", "updates", "outside", "surely", "mean", "worst",
             "audit_outside", "audit_mean", "audit_worst")  # fmt: skip
    return f"| {' | '.join(str(line[name]) for name in names)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="cheetah-run")
    parser.add_argument("--algorithm", default="geppo")
    parser.add_argument("--trust", default="strict")
    parser.add_argument("--normaliser", default="auto")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--table", action="store_true", help="only print what was recorded")
    parsed = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n| {' | '.join(['---'] * 4 + ['--:'] * (len(HEADER) - 4))} |")
    if parsed.table:
        print("\n".join(row(json.loads(line)) for line in RECORD.read_text().splitlines()))
        return
    config = Config(
        parsed.task, parsed.algorithm, seeds=parsed.seeds, steps=parsed.steps, trust=parsed.trust,
        normaliser=parsed.normaliser,
    )  # fmt: skip
    devices.prepare(config)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        run(config)


if __name__ == "__main__":
    main()
