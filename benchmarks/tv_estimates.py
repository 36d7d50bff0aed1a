"""The table of docs/measurements.md: how far a policy fitted to its samples may go before each estimate of TV says 0.1.

    python benchmarks/tv_estimates.py                 # about 35 seconds of CPU

A Gaussian policy with a network of 64 x 64 is fitted to n of its own actions, of d dimensions, by 300 steps of Adam. As
in `--trust strict`, the step is then shortened until the estimate accepts it. Printed is the true TV of what was
accepted, from fresh actions at the same states: mean and largest of five seeds.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gpi.core import objectives
from gpi.core.gaussian import GaussianTheta
from gpi.core.policy import log_pi
from gpi.core.sample import Sample
from gpi.core.solvers import Adam, adam_step, init_adam

OBSERVATIONS, STEPS, SEEDS, ALLOWED = 8, 300, 5, 0.1
FITTED = ("likelihood", "E[ratio · A], A random", "eq (14), A random")
ESTIMATES = ("(1 − ratio)+", r"½\|ratio − 1\|", "larger of two", "`tv` from the distributions")
FRACTIONS = 2.0 ** (-0.25 * np.arange(44))


def sample_of(theta: GaussianTheta, rng: np.random.Generator, n: int, d: int) -> Sample:
    """n actions of the policy, with random advantages."""
    obs = jnp.asarray(rng.standard_normal((n, OBSERVATIONS)), jnp.float32)
    action = theta.distribution(obs).act(jnp.asarray(rng.standard_normal((n, d)), jnp.float32))
    adv, one = jnp.asarray(rng.standard_normal(n), jnp.float32), jnp.ones(n, jnp.float32)
    return Sample(obs, action, log_pi(theta, obs, action), one, adv - adv.mean(), one, one)


@jax.jit
def fitted(theta: GaussianTheta, s: Sample, to: jax.Array) -> GaussianTheta:
    """The policy after maximising one of `FITTED` on the samples."""

    def objective(theta: GaussianTheta) -> jax.Array:
        logp = log_pi(theta, s.obs, s.action)
        values = (
            jnp.mean(logp),
            objectives.surrogate(logp, s),
            objectives.clipped_surrogate(logp, s, jnp.float32(0.1)),
        )
        return jnp.stack(values)[to]

    def step(adam: Adam[GaussianTheta], _: None) -> tuple[Adam[GaussianTheta], None]:
        return adam_step(adam, jax.grad(objective)(adam.params), jnp.float32(3e-3), 0.5), None

    return jax.lax.scan(step, init_adam(theta), None, length=STEPS)[0].params


@jax.jit
def measured(theta_k: GaussianTheta, theta: GaussianTheta, s: Sample, noise: jax.Array) -> jax.Array:
    """The four estimates, and the true TV from fresh actions."""
    pi_k, pi = theta_k.distribution(s.obs), theta.distribution(s.obs)
    logp = pi.log_prob(s.action)

    def lost(noise: jax.Array) -> jax.Array:
        action = pi_k.act(noise)
        return jnp.mean(jnp.maximum(1.0 - objectives.ratio_to(pi.log_prob(action), pi_k.log_prob(action)), 0.0))

    sampled = [f(logp, s) for f in (objectives.bounded_penalty, objectives.penalty, objectives.cautious_penalty)]
    return jnp.stack([*sampled, jnp.mean(pi_k.tv(pi)), jnp.mean(jax.vmap(lost)(noise))])


def accepted(rng: np.random.Generator, to: int, d: int, n: int) -> np.ndarray:
    """The true TV of the longest part of one fitted step that each estimate accepts."""
    theta_k = GaussianTheta.init(rng, OBSERVATIONS, d, (64, 64))
    s = sample_of(theta_k, rng, n, d)
    old, unravel = ravel_pytree(theta_k)
    step = ravel_pytree(fitted(theta_k, s, jnp.int32(to)))[0] - old
    noise = jnp.asarray(rng.standard_normal((math.ceil(30_000 / n), n, d)), jnp.float32)
    found = np.array([measured(theta_k, unravel(old + jnp.float32(x) * step), s, noise) for x in FRACTIONS])
    return np.array([found[np.argmax(found[:, i] <= ALLOWED), -1] for i in range(len(ESTIMATES))])


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    print(f"| fitted to | d, n | {' | '.join(ESTIMATES)} |\n|---|---|{'--:|' * len(ESTIMATES)}")
    for to, name in enumerate(FITTED):
        for d in (1, 6):
            for n in (100, 1000):
                true = np.array([accepted(rng, to, d, n) for _ in range(SEEDS)])
                cells = [f"{x.mean():.3f} ({x.max():.3f})" for x in true.T]
                print(f"| {name} | {d}, {n} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
