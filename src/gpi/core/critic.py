"""Critics: today's is one value function V, fitted to V-trace targets by Adam; and the table of critics.

To add one like it: a class like `MlpCritic` and a line in `CRITICS`. One with more in its fit, such as optimisers,
targets or a replay, is a class with the methods of `agent.Critic`. An algorithm names its critic in `plan.ALGORITHMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpi.core.agent import Critic, Hyper, ValueFunction
from gpi.core.network import Change, Net, forward, init_net, predicting, reading
from gpi.core.normaliser import Normaliser
from gpi.core.policy import Theta
from gpi.core.ring import Replay
from gpi.core.sample import Sample, mean
from gpi.core.solvers import Adam, adam_step
from gpi.core.still import carried

Init = Callable[[np.random.Generator, int, int, tuple[int, ...]], Critic]
"""Returns the initial critic, from the sizes of observation, action and hidden layers."""


class MlpCritic(NamedTuple):
    """A value function that is one network."""

    net: Net

    @classmethod
    def init(cls, rng: np.random.Generator, observation_size: int, hidden: tuple[int, ...]) -> MlpCritic:
        """Return the initial value function: last layer of gain 1."""
        return cls(init_net(rng, (observation_size, *hidden, 1), 1.0))

    def value(self, obs: Float[Array, "S O"]) -> Float[Array, " S"]:
        """Return V(s), the value function's estimate."""
        return forward(self.net, obs)[:, 0]

    def under(self, change: Change) -> MlpCritic:
        """Return the same value function of raw observations, in other units of observations and rewards."""
        return self._replace(net=predicting(reading(self.net, change), change))


def value_loss(phi: ValueFunction, s: Sample) -> Float[Array, ""]:
    """Return ½ E[(target - V)²], what the value function minimises."""
    return 0.5 * mean((s.target - phi.value(s.obs)) ** 2, s.weight)


class Regression(Adam[Any]):
    """A critic that is one value function and the moments of Adam."""

    def value(self, obs: Float[Array, "S O"]) -> Float[Array, " S"]:
        """Return V(s)."""
        return self.params.value(obs)

    def fit(self, s: Sample, hyper: Hyper) -> Self:
        """Take one step of the value fit on one minibatch."""
        uphill = jax.grad(lambda phi: -value_loss(phi, s))(self.params)
        return adam_step(self, uphill, hyper.value_lr)

    def fit_replay(
        self, replay: Replay, theta_k: Theta, normaliser: Normaliser, key: PRNGKeyArray, hyper: Hyper
    ) -> Self:
        """Return the same critic: it learns from the samples of the last M policies alone."""
        return self

    def under(self, change: Change) -> Self:
        """Return the critic of raw observations in other units; its objective is the square of a reward."""
        return carried(self, change, change.factor**2)


def regression(init: Callable[[np.random.Generator, int, tuple[int, ...]], ValueFunction]) -> Init:
    """Return how a critic begins that is this value function, with fresh moments."""

    def begin(rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...]) -> Critic:
        phi = init(rng, observation_size, hidden)
        zeros = jax.tree.map(np.zeros_like, phi)
        return Regression(phi, zeros, zeros, jnp.zeros((), jnp.float32))

    return begin


CRITICS: dict[str, Init] = {"mlp": regression(MlpCritic.init)}
