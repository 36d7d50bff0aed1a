"""Theorems 1-3 with numbers in them: the paper's bounds, exact on finite MDPs.

A policy is a table pi[S, A] whose rows sum to 1. The prior policies are past[M, S, A], and past[i] *is* pi_{k-i}, so
past[0] is the current policy. Every expectation is a finite sum and every value a linear solve: nothing is estimated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpi.errors import UsageError
from gpi.theory.mixture import eps_gpi

Array = NDArray[np.floating]
Mix = Sequence[float] | Array

# Two sides of an inequality that hold exactly may differ by the rounding of the linear solves.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class MDP:
    """The infinite-horizon, discounted Markov decision process of Section III, with finite states and actions."""

    p: Array
    """p[S, A, S], the transition probability function."""
    r: Array
    """r[S, A], the reward function."""
    rho0: Array
    """rho0[S], the initial state distribution."""
    gamma: float

    def __post_init__(self) -> None:
        if np.ndim(self.r) != 2:
            raise UsageError(
                f"r must have shape (states, actions), got {np.shape(self.r)}; give one reward for each pair"
            )
        S, A = self.r.shape
        _distribution("p", self.p, (S, A, S))
        _distribution("rho0", self.rho0, (S,))
        if not 0 <= self.gamma < 1:
            raise UsageError(f"gamma must be in [0, 1), got {self.gamma}; use for example 0.99")


class Bound(NamedTuple):
    """A policy improvement lower bound, eq (1) or (4): J(pi) - J(pi_k) >= surrogate - penalty."""

    surrogate: float
    penalty: float

    @property
    def lower(self) -> float:
        """The lower bound itself, the right-hand side of eq (1) or (4)."""
        return self.surrogate - self.penalty


class Triangle(NamedTuple):
    """The triangle inequality of TV distance, eq (6): full <= one_step + drift."""

    full: float
    """How far pi is from the policies that collected the data: what the penalty of eq (4) sees."""
    one_step: float
    """How far pi is from pi_k: what an update can control."""
    drift: float
    """How far pi_k already is from the policies that collected the data: fixed before the update."""


class Chain(NamedTuple):
    """Theorem 3 on one sequence of policies: the one-step TV distances assumed, and the penalty bounded, eq (11)."""

    steps: Array
    """steps[i, j] = E_{s~d^{pi_{k-i}}}[TV(pi_{k-j+1}, pi_{k-j})(s)] for j <= i, and 0 for j > i."""
    penalty: float
    """The left-hand side of eq (11)."""
    eps_gpi: float
    eps: float

    @property
    def premise(self) -> bool:
        """Whether every update stayed inside the stronger trust region, eq (9), wherever eq (11) looks."""
        return bool((self.steps <= self.eps_gpi / 2 + ROUNDING).all())

    @property
    def conclusion(self) -> bool:
        """Whether the new policy satisfies eq (11)."""
        return self.penalty <= self.eps / 2 + ROUNDING


def V(mdp: MDP, pi: Array) -> Array:
    """The state value function V^π of Section III, [S]: V = r_π + γ P_π V."""
    return np.linalg.solve(np.eye(len(pi)) - mdp.gamma * _transitions(mdp, pi), (pi * mdp.r).sum(1))


def Q(mdp: MDP, pi: Array) -> Array:
    """The state-action value function Q^π of Section III, [S, A]: Q = r + γ E[V(s')]."""
    return mdp.r + mdp.gamma * mdp.p @ V(mdp, pi)


def adv(mdp: MDP, pi: Array) -> Array:
    """The advantage function A^π of Section III, [S, A]: A = Q − V."""
    return Q(mdp, pi) - V(mdp, pi)[:, None]


def J(mdp: MDP, pi: Array) -> float:
    """The expected total discounted return J(π) of Section III."""
    return float(mdp.rho0 @ V(mdp, pi))


def d(mdp: MDP, pi: Array) -> Array:
    """The normalized discounted state visitation distribution d^π of Section III, [S]: d = (1−γ) ρ0 + γ P_πᵀ d.

    For policies past[M, S, A], all of theirs at once, [M, S].
    """
    flow = np.eye(len(mdp.rho0)) - mdp.gamma * np.swapaxes(_transitions(mdp, pi), -1, -2)
    return np.linalg.solve(flow, (1 - mdp.gamma) * mdp.rho0[:, None])[..., 0]


def tv(p: Array, q: Array) -> Array:
    """The Total Variation distance of Theorem 1, eq (1), in every state: ½ Σ_a |p − q|."""
    return np.abs(p - q).sum(-1) / 2


def C(mdp: MDP, pi: Array, pi_k: Array) -> float:
    """The constant C^{π,π_k} of Theorem 1, eq (1): max_s |E_{a~π}[A^{π_k}(s, a)]|."""
    return float(np.abs((pi * adv(mdp, pi_k)).sum(1)).max())


def on_policy_bound(mdp: MDP, pi: Array, pi_k: Array) -> Bound:
    """The on-policy policy improvement lower bound of Theorem 1, eq (1).

    The importance ratio is summed out, Σ_a π_k (π/π_k) A = Σ_a π A, as the policies' common support allows.
    """
    visits = d(mdp, pi_k)
    surrogate = visits @ (pi * adv(mdp, pi_k)).sum(1) / (1 - mdp.gamma)
    return Bound(float(surrogate), _penalty(mdp, pi, pi_k, float(visits @ tv(pi, pi_k))))


def generalized_bound(mdp: MDP, pi: Array, past: Array, nu: Mix) -> Bound:
    """The Generalized Policy Improvement lower bound of Theorem 2, eq (4); Theorem 1's at nu = [1]."""
    surrogate = _mean(mdp, past, nu, (pi * adv(mdp, past[0])).sum(1)) / (1 - mdp.gamma)
    return Bound(surrogate, _penalty(mdp, pi, past[0], penalty_tv(mdp, pi, past, nu)))


def worst_case_decline(mdp: MDP, pi: Array, pi_k: Array, eps: float) -> float:
    """The worst-case performance decline, eq (3): −εγC/(1−γ)².

    It holds for updates that keep the trust region, eq (2) or (5), and whose surrogate is at least that at pi_k.
    """
    return -_penalty(mdp, pi, pi_k, eps / 2)


def penalty_tv(mdp: MDP, pi: Array, past: Array, nu: Mix) -> float:
    """The expected TV distance to the prior policies, eq (5) and the left of eq (11): E_i E_{d_i}[TV(π, π_{k−i})]."""
    return _mean(mdp, past, nu, tv(pi, past))


def triangle(mdp: MDP, pi: Array, past: Array, nu: Mix) -> Triangle:
    """The triangle inequality of TV distance, eq (6): its three expectations over the same states."""
    one_step = _mean(mdp, past, nu, tv(pi, past[0]))
    return Triangle(penalty_tv(mdp, pi, past, nu), one_step, penalty_tv(mdp, past[0], past, nu))


def adaptive_eps(mdp: MDP, past: Array, nu: Mix, eps: float) -> float:
    """The adaptive choice of eps_gpi, eq (8): what the drift leaves of eps. Where nothing is left, keep pi_k."""
    return eps - 2 * penalty_tv(mdp, past[0], past, nu)


def theorem_3(mdp: MDP, pi: Array, past: Array, nu: Mix, eps: float) -> Chain:
    """Theorem 3, eq (9)-(11), for the update from past[0] to pi: its premise about past updates, and its conclusion."""
    newer = np.concatenate([pi[None], past[:-1]])  # newer[j] is pi_{k-j+1}, what the update at k − j made of past[j]
    steps = np.tril(d(mdp, past) @ tv(newer, past).T)
    steps[np.asarray(nu) == 0] = 0  # a policy without weight takes no part in eq (11)
    return Chain(steps, penalty_tv(mdp, pi, past, nu), eps_gpi(nu, eps), eps)


def _mean(mdp: MDP, past: Array, nu: Mix, x: Array) -> float:
    """E_{i~ν}[E_{s~d^{π_{k−i}}}[x]] with x[M, S], or x[S] if it is the same for every policy."""
    _distribution("nu", nu, (len(past),))
    return float(np.asarray(nu) @ (d(mdp, past) * x).sum(1))


def _penalty(mdp: MDP, pi: Array, pi_k: Array, expected_tv: float) -> float:
    """The penalty term of eq (1) and (4): 2γC/(1−γ)² times an expected TV distance."""
    return 2 * mdp.gamma * C(mdp, pi, pi_k) / (1 - mdp.gamma) ** 2 * expected_tv


def _transitions(mdp: MDP, pi: Array) -> Array:
    """The Markov chain P_π that a policy makes of the MDP, [..., S, S]."""
    _distribution("pi", pi, pi.shape[:-2] + mdp.r.shape)
    return np.einsum("...sa,sat->...st", pi, mdp.p)


def _distribution(name: str, x: ArrayLike, shape: tuple[int, ...]) -> None:
    x = np.asarray(x)
    if x.shape != shape:
        raise UsageError(f"{name} must have shape {shape}, got {x.shape}; give one entry per state, action or policy")
    total = x.sum(-1)
    if not (x.min() >= 0 and np.abs(total - 1).max() < 1e-9):
        got = f"a smallest entry {x.min():.3g} and sums from {total.min():.6g} to {total.max():.6g}"
        raise UsageError(f"{name} must be probabilities that sum to 1, got {got}; normalise it")
