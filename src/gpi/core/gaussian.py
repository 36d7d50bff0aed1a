"""The Gaussian policy of continuous actions: its distribution, and the parameters theta that give it."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpi.core.network import Change, Net, forward, init_net, reading
from gpi.core.solvers import Tree

MIN_LOG_STD = math.log(1e-3)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """pi(.|s): a multivariate Gaussian with diagonal covariance."""

    mean: Float[Array, "S A"]
    log_std: Float[Array, " A"]

    def act(self, noise: Float[Array, "S A"]) -> Float[Array, "S A"]:
        """Return a ~ pi(.|s), given standard normal noise."""
        return self.mean + jnp.exp(self.log_std)[None] * noise

    def log_prob(self, action: Float[Array, "S A"]) -> Float[Array, " S"]:
        """Return log pi(a|s), of the action before any clipping by the environment."""
        z = (action - self.mean) * jnp.exp(-self.log_std)[None]
        return -0.5 * jnp.sum(z * z, axis=-1) - jnp.sum(self.log_std + HALF_LOG_2PI)

    def entropy(self) -> Float[Array, " S"]:
        """Return the entropy of pi(.|s)."""
        per_state = jnp.sum(self.log_std + HALF_LOG_2PI + 0.5)
        return jnp.broadcast_to(per_state, self.mean.shape[:1])

    def kl(self, other: Gaussian) -> Float[Array, " S"]:
        """Return KL(self‖other)(s), the forward KL divergence as in eq (15): pi_k.kl(pi)."""
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)[None]
        gap = other.log_std - self.log_std  # log of the ratio of standard deviations
        return 0.5 * jnp.sum(z * z, axis=-1) + jnp.sum(gap + 0.5 * jnp.expm1(-2.0 * gap))

    def tv(self, other: Gaussian) -> Float[Array, " S"]:
        """Return an upper bound on TV(self, other)(s), the distance of eq (11): itself where the deviations agree.

        The smaller of two: the TV of the means alone, erf(d / sqrt 8) with d in deviations, plus a bound on that of the
        deviations alone; and the same bound, sqrt(1 - BC²) with Bhattacharyya's coefficient BC, on both together. With
        deviations that differ it is up to 46 % above TV where both are small.
        """
        gap, stretch = self.mean - other.mean, self.log_std - other.log_std
        d = [jnp.linalg.norm(gap * jnp.exp(-log_std)[None], axis=-1) for log_std in (self.log_std, other.log_std)]
        shift = jax.scipy.special.erf(jnp.minimum(*d) / math.sqrt(8.0))
        # -log BC² as a sum of small numbers: 1 - BC² would cancel in float32.
        spread = jnp.sum(jnp.log1p(2.0 * jnp.sinh(0.5 * stretch) ** 2))
        apart = 0.5 * jnp.sum(gap**2 / (jnp.exp(2.0 * self.log_std) + jnp.exp(2.0 * other.log_std))[None], axis=-1)
        return jnp.minimum(shift + jnp.sqrt(-jnp.expm1(-spread)), jnp.sqrt(-jnp.expm1(-spread - apart)))


class GaussianTheta(NamedTuple):
    """Parameters theta of a Gaussian policy: a network for the mean, and a standard deviation for all states."""

    net: Net
    log_std: Float[Array, "... A"]
    kind = "gaussian"

    @classmethod
    def init(
        cls, rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...]
    ) -> GaussianTheta:
        """Return the initial policy pi_0: last layer of gain 0.01, standard deviation 1."""
        return cls(init_net(rng, (observation_size, *hidden, action_size), 0.01), jnp.zeros(action_size, jnp.float32))

    def distribution(self, obs: Float[Array, "S O"]) -> Gaussian:
        """Return pi(.|s) for every row of observations."""
        # Below the floor the gradient is zero on purpose: ratios of a collapsed policy overflow.
        return Gaussian(forward(self.net, obs), jnp.maximum(self.log_std, MIN_LOG_STD))

    def project(self) -> GaussianTheta:
        """Return the nearest parameters whose standard deviation is at its floor or above (docs/deviations.md)."""
        return self._replace(log_std=jnp.maximum(self.log_std, MIN_LOG_STD))

    def under(self, change: Change) -> Self:
        """Return the same policy of raw observations, in other units of observations."""
        return self._replace(net=reading(self.net, change))

    @staticmethod
    def draw_noise(key: PRNGKeyArray, rows: tuple[int, ...], action_size: int) -> Array:
        """Return the randomness of actions, one number per action dimension, drawn ahead of them."""
        return jax.random.normal(key, (*rows, action_size), jnp.float32)

    @staticmethod
    def squash(action: Tree) -> Tree:
        """Return what the environment gets of an action: all of it."""
        return action

    @staticmethod
    def empty_action(action_size: int) -> Float[Array, " A"]:
        """Return an action of the right shape and type."""
        return jnp.zeros(action_size, jnp.float32)

    def act_on_host(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the actions of `Gaussian.act`, in NumPy, given outputs `[P, E, A]` of a population's networks."""
        return out + np.exp(np.maximum(self.log_std, np.float32(MIN_LOG_STD)))[:, None] * noise

    def at_floor(self) -> bool:
        """Return whether the standard deviation of an action is at its floor."""
        return bool((np.asarray(self.log_std) <= MIN_LOG_STD).any())

    def deployed(self) -> dict[str, np.ndarray]:
        """Return what acting needs besides the network, by the names of a policy file."""
        return {"policy/log_std": np.asarray(self.log_std)}
