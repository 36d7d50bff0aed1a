"""The data of an update: the agent with its critic, its settings, and its measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpi.core.normaliser import Normaliser
from gpi.core.plan import Solve, as_planned
from gpi.core.policy import Theta
from gpi.core.ring import Replay
from gpi.core.sample import Sample
from gpi.core.solvers import Adam


@dataclass(frozen=True)
class Static:
    """Settings that shape the compiled program."""

    rule: str  # of `rules.RULES`
    epochs: int = 10
    minibatches: int = 32
    max_grad_norm: float = 0.5
    kl_slack: float = 1.5
    trust: str = "paper"  # of `trust.TRUST`
    normaliser: str = "paper"  # of `still.NORMALISING`
    solve: Solve = as_planned  # of a `plan.Plan`


class Hyper(NamedTuple):
    """Settings that are traced: they may differ inside a population without another compile."""

    nu: Float[Array, " M"]  # zero-padded where a member reuses fewer policies
    eps: Float[Array, ""]  # the trust region of Algorithm 1
    eps_gpi: Float[Array, ""]  # the one-step trust region in force, eq (10)
    gamma: Float[Array, ""]
    gae_lambda: Float[Array, ""]
    value_lr: Float[Array, ""]
    freeze: Int[Array, ""]  # from this batch on the normaliser's statistics do not change


class ValueFunction(Protocol):
    """An estimate of the values of pi_k, as a pytree of arrays."""

    def value(self, obs: Float[Array, "S O"], /) -> Float[Array, " S"]:
        """Return V(s) for every row of observations."""
        ...


class Critic(ValueFunction, Protocol):
    """A value function with all that its fit needs, as a pytree of arrays: optimisers, targets, other networks.

    With a still normaliser it needs `under`, too (`network.Convertible`).
    """

    def fit(self, s: Sample, hyper: Hyper, /) -> Self:
        """Return the critic after one step on one minibatch, whose targets are V-trace's."""
        ...

    def fit_replay(
        self, replay: Replay, theta_k: Theta, normaliser: Normaliser, key: PRNGKeyArray, hyper: Hyper, /
    ) -> Self:
        """Return the critic after it has learned from its replay, the newest batch included."""
        ...


class Agent(NamedTuple):
    """Everything an update changes: policy, critic, their optimisers, and PPO's learning rate."""

    policy: Adam[Theta]
    value: Critic
    lr: Float[Array, ""]


class Metrics(NamedTuple):
    """The effect of one update, measured on its own samples."""

    tv_abs: Float[
        Array, ""
    ]  # one-step TV, ½ E|ratio - rho|, by which PPO's learning rate falls; its budget is eps_gpi/2
    penalty_abs: Float[Array, ""]  # TV to the prior policies, ½ E|ratio - 1|; its budget is eps/2
    kl: Float[Array, ""]  # E KL(pi_k‖pi_{k+1})
    eps_gpi: Float[Array, ""]  # the one-step trust region that was in force
    improvement: Float[Array, ""]  # of the standardised surrogate
    fraction: Float[Array, ""]  # of the step that was taken; 0 when it was refused
    entropy: Float[Array, ""]
    value_loss: Float[Array, ""]  # after the fit
    adv_std: Float[Array, ""]  # of the advantages before standardisation, normalised reward units
    lr: Float[Array, ""]
    ess: Float[Array, ""]  # effective sample size of the weights, in samples
    degenerate_batch: Bool[Array, ""]  # the advantages did not differ, so the policy was kept
