"""The value function V: its parameters phi, and the table of critics.

To add one: a class like `MlpCritic` and a line in `CRITICS`; an algorithm names its critic in `plan.ALGORITHMS`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from gpi.core.network import Change, Net, forward, init_net, predicting, reading


@runtime_checkable
class Critic(Protocol):
    """Parameters phi of a value function, as a pytree of arrays."""

    @classmethod
    def init(cls, rng: np.random.Generator, observation_size: int, hidden: tuple[int, ...], /) -> Critic:
        """Return the initial value function."""
        ...

    def value(self, obs: Float[Array, "S O"], /) -> Float[Array, " S"]:
        """Return V(s) for every row of observations."""
        ...


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


CRITICS: dict[str, type[Critic]] = {"mlp": MlpCritic}
