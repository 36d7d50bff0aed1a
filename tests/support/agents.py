"""Small agents and batches for tests of the update rules: three observations, two actions, 32 samples a policy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from compiling import fast_jit
from gpi.core import iteration, rules, solvers
from gpi.core.agent import Agent, Hyper, ValueFunction
from gpi.core.critic import CRITICS
from gpi.core.gaussian import GaussianTheta
from gpi.core.policy import Theta
from gpi.core.sample import Buffer, Rollout, Sample, init_buffer, push

O, A, T, E = 3, 2, 16, 2
EPS = 0.2


# Without jit, every operation would compile its own program.
def log_pi_of(theta: Theta, s: Sample) -> jax.Array:
    return theta.distribution(s.obs).log_prob(s.action)


def estimate_of(theta_k: Theta, phi: ValueFunction, buffer: Buffer, hyper: Hyper) -> Sample:
    return iteration.estimate(theta_k, iteration.read_values(phi, buffer), buffer, hyper)


estimate, log_pi = fast_jit(estimate_of), fast_jit(log_pi_of)
improve = fast_jit(lambda *values: rules.improve(*values)[:2], static_argnums=4)
empty = fast_jit(init_buffer, static_argnums=1)
pushed = fast_jit(lambda buffer, rollout, logp: push(buffer, rollout, rollout, logp))
probability = fast_jit(lambda pi, action: pi.log_prob(action))


def rollout_of(key: jax.Array, theta: Any, spread: float = 1.0) -> tuple[Rollout, jax.Array]:
    """Return a rollout of random numbers with actions of pi_theta, and their log-probabilities."""
    keys = jax.random.split(key, 5)
    obs, next_obs = (jax.random.normal(k, (T, E, O), jnp.float32) for k in keys[:2])
    pi = theta.distribution(obs.reshape(-1, O))
    action = pi.mean + jnp.exp(pi.log_std)[None] * jax.random.normal(keys[2], (T * E, A), jnp.float32)
    reward = spread * jax.random.normal(keys[3], (T, E), jnp.float32)
    done = jax.random.bernoulli(keys[4], 0.2, (T, E))
    terminated = done & (obs[..., 0] > 0)
    rollout = Rollout(obs, action.reshape(T, E, A), reward, next_obs, terminated, done, jnp.ones((T, E), bool))
    return rollout, pi.log_prob(action).reshape(T, E)


draw_rollout = fast_jit(rollout_of)


def new_agent(seed: int, hidden: tuple[int, ...] = (8,)) -> Agent:
    rng = np.random.default_rng(seed)
    theta = GaussianTheta.init(rng, O, A, hidden)
    return Agent(solvers.init_adam(theta), CRITICS["mlp"](rng, O, A, hidden), jnp.float32(3e-4))


def hyper(nu: tuple[float, ...], eps: float = EPS) -> Hyper:
    numbers = (nu, EPS, eps, 0.995, 0.97, 3e-4)
    return Hyper(*(jnp.asarray(x, jnp.float32) for x in numbers), freeze=jnp.int32(2**31 - 1))


def prior_of(theta_k: Any, age: int, drift: float) -> tuple[Rollout, jax.Array]:
    """Return a rollout of a policy that is `drift` away."""
    flat, unravel = ravel_pytree(theta_k)
    noise = jax.random.normal(jax.random.key(100 + age), flat.shape, jnp.float32)
    return rollout_of(jax.random.key(age), unravel(flat + drift * noise))


draw_prior = fast_jit(prior_of)


def buffer_of(agent: Agent, slots: int, filled: int, drift: float = 0.05) -> Buffer:
    """Return a buffer with slots filled by slightly different policies, the newest by the agent's own."""
    priors = [draw_prior(agent.policy.params, age, age * drift) for age in range(filled)]
    buffer = empty(priors[0][0], slots)
    for rollout, logp in reversed(priors):
        buffer = pushed(buffer, rollout, logp)
    return buffer


def on_policy_sample(agent: Agent) -> Sample:
    return estimate(agent.policy.params, agent.value, buffer_of(agent, 1, 1), hyper((1.0,)))


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])
