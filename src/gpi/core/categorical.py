"""The categorical policy of discrete actions: its distribution, and the parameters theta that give it."""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpi.core.network import Change, Net, forward, init_net, reading
from gpi.core.solvers import Tree


class Categorical(NamedTuple):
    """pi(.|s): a categorical distribution over A actions."""

    logits: Float[Array, "S A"]

    def act(self, noise: Float[Array, "S A"]) -> Int[Array, " S"]:
        """Return a ~ pi(.|s), given Gumbel noise."""
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, " S"]) -> Float[Array, " S"]:
        """Return log pi(a|s)."""
        return jnp.take_along_axis(jax.nn.log_softmax(self.logits), action[:, None], axis=-1)[:, 0]

    def entropy(self) -> Float[Array, " S"]:
        """Return the entropy of pi(.|s)."""
        logp = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(logp) * logp, axis=-1)

    def kl(self, other: Categorical) -> Float[Array, " S"]:
        """Return KL(self‖other)(s), the forward KL divergence as in eq (15): pi_k.kl(pi)."""
        logp, logq = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.exp(logp) * (logp - logq), axis=-1)

    def tv(self, other: Categorical) -> Float[Array, " S"]:
        """Return TV(self, other)(s), the distance of eq (11): half the sum of absolute differences."""
        logp, logq = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return 0.5 * jnp.sum(jnp.abs(jnp.exp(logp) - jnp.exp(logq)), axis=-1)


class CategoricalTheta(NamedTuple):
    """Parameters theta of a categorical policy: a network for the logits."""

    net: Net
    kind = "categorical"

    @classmethod
    def init(
        cls, rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...]
    ) -> CategoricalTheta:
        """Return the initial policy pi_0: last layer of gain 0.01, so that all actions are about equally likely."""
        return cls(init_net(rng, (observation_size, *hidden, action_size), 0.01))

    def distribution(self, obs: Float[Array, "S O"]) -> Categorical:
        """Return pi(.|s) for every row of observations."""
        return Categorical(forward(self.net, obs))

    def project(self) -> CategoricalTheta:
        """Return the parameters as they are: every logit is allowed."""
        return self

    def under(self, change: Change) -> Self:
        """Return the same policy of raw observations, in other units of observations."""
        return self._replace(net=reading(self.net, change))

    @staticmethod
    def draw_noise(key: PRNGKeyArray, rows: tuple[int, ...], action_size: int) -> Array:
        """Return the randomness of actions, one number per action to choose from, drawn ahead of them."""
        return jax.random.gumbel(key, (*rows, action_size), jnp.float32)

    @staticmethod
    def squash(action: Tree) -> Tree:
        """Return what the environment gets of an action: all of it."""
        return action

    @staticmethod
    def empty_action(action_size: int) -> Int[Array, ""]:
        """Return an action of the right shape and type."""
        return jnp.int32(0)

    def act_on_host(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the actions of `Categorical.act`, in NumPy, given outputs `[P, E, A]` of a population's networks."""
        return np.argmax(out + noise, axis=-1).astype(np.int32)

    def at_floor(self) -> bool:
        """Return False: a categorical distribution has no floor."""
        return False

    def deployed(self) -> dict[str, np.ndarray]:
        """Return what acting needs besides the network, by the names of a policy file: nothing."""
        return {}
