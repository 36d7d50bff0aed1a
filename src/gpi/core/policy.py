"""The interface of a policy pi to the algorithms, and the table of policies.

A policy is its parameters theta, which give a distribution for every observation. To add one: a file like `gaussian.py`
and a line in `POLICIES`; how it acts without JAX, in `standalone.KINDS`; and its nodes, in `onnx_export.ADD_ACTIONS`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpi.core.categorical import CategoricalTheta
from gpi.core.gaussian import GaussianTheta
from gpi.core.network import Net
from gpi.core.solvers import Tree


@runtime_checkable
class Distribution(Protocol):
    """pi(.|s) for every row of observations, as a pytree of arrays."""

    def act(self, noise: Array, /) -> Array:
        """Return a ~ pi(.|s), given its noise."""
        ...

    def log_prob(self, action: Array, /) -> Float[Array, " S"]:
        """Return log pi(a|s)."""
        ...

    def entropy(self) -> Float[Array, " S"]:
        """Return the entropy of pi(.|s)."""
        ...

    def kl(self, other: Any, /) -> Float[Array, " S"]:
        """Return KL(self‖other)(s), the forward KL divergence from one of the same kind: pi_k.kl(pi) as in eq (15)."""
        ...

    def tv(self, other: Any, /) -> Float[Array, " S"]:
        """Return, for every pi(.|s), the TV distance of eq (11) to one of the same kind, or an upper bound on it."""
        ...


@runtime_checkable
class Theta(Protocol):
    """Parameters theta of a policy, as a pytree of arrays."""

    @property
    def kind(self) -> str:
        """The policy's name in `POLICIES` and in `standalone.KINDS`, which says whether its actions are discrete."""
        ...

    @property
    def net(self) -> Net:
        """The network that reads observations."""
        ...

    @classmethod
    def init(
        cls, rng: np.random.Generator, observation_size: int, action_size: int, hidden: tuple[int, ...], /
    ) -> Theta:
        """Return the initial policy pi_0; it decides how many outputs its network has."""
        ...

    def distribution(self, obs: Float[Array, "S O"], /) -> Distribution:
        """Return pi(.|s) for every row of observations."""
        ...

    def project(self) -> Theta:
        """Return the nearest parameters that are allowed."""
        ...

    @staticmethod
    def draw_noise(key: PRNGKeyArray, rows: tuple[int, ...], action_size: int, /) -> Array:
        """Return the randomness of actions `[*rows, ...]`, drawn ahead of them."""
        ...

    @staticmethod
    def empty_action(action_size: int, /) -> Array:
        """Return an action of the right shape and type."""
        ...

    @staticmethod
    def squash(action: Tree, /) -> Tree:
        """Return what the environment gets of an action, in JAX or in NumPy; samples hold the action before that."""
        ...

    def act_on_host(self, out: np.ndarray, noise: np.ndarray, /) -> np.ndarray:
        """Act in NumPy, given the outputs of the networks of a population, `[P, E, outputs]`."""
        ...

    def at_floor(self) -> bool:
        """Return whether exploration has fallen to the least that is allowed."""
        ...

    def deployed(self) -> dict[str, np.ndarray]:
        """Return what acting needs besides the network, by the names of a policy file: of `x` it is `policy/x`."""
        ...


POLICIES: dict[str, type[Theta]] = {
    "gaussian": GaussianTheta,
    "categorical": CategoricalTheta,
}
"""The policies by name."""
AUTO = {"continuous": "gaussian", "discrete": "categorical"}
"""The policy for each kind of action, where `--policy` is auto."""


def policy_for(name: str, actions: str) -> type[Theta]:
    """Return the policy of a name, for this kind of actions."""
    return POLICIES[AUTO[actions] if name == "auto" else name]


def log_pi(theta: Theta, obs: Float[Array, "S O"], action: Array) -> Float[Array, " S"]:
    """Return log pi(a|s)."""
    return theta.distribution(obs).log_prob(action)
