"""How the policy improvement bound changes as older data are mixed in, on an MDP small enough to be exact.

Five states in a row, two actions (left, right), reward at the right end. Every update moves the policy towards "right"
by the same TV distance in every state, the worst case of Theorem 3: its triangle inequalities hold with equality.

    python examples/bound_vs_age.py
"""

import numpy as np

from gpi.theory.bounds import MDP, Array, J, generalized_bound, penalty_tv
from gpi.theory.mixture import eps_gpi, mean_age, nu

EPS = 0.1
MIXTURES = {
    "on-policy": (1.0,),
    "B = 2, kappa = 0": nu(2, 0.0),
    "B = 2, kappa = 0.5": nu(2, 0.5),
    "B = 2, kappa = 1": nu(2, 1.0),
    "B = 3, kappa = 1": nu(3, 1.0),
    "B = 4, kappa = 1": nu(4, 1.0),
}


def corridor(states: int = 5, slip: float = 0.1, gamma: float = 0.8) -> MDP:
    p = np.zeros((states, 2, states))
    for s in range(states):
        ends = max(s - 1, 0), min(s + 1, states - 1)
        for a in (0, 1):
            p[s, a, ends[a]] += 1 - slip
            p[s, a, ends[1 - a]] += slip
    r = np.zeros((states, 2))
    r[-1] = 1
    return MDP(p, r, np.full(states, 1 / states), gamma)


def policy(mdp: MDP, right: float) -> Array:
    return np.tile([1 - right, right], (len(mdp.rho0), 1))


def table(mdp: MDP, shrink: bool) -> None:
    print(
        f"{'mixture':<20}{'M':>3}{'E[i+1]':>8}{'TV/(eps/2)':>12}{'surrogate':>11}{'penalty':>9}{'bound':>9}{'true':>8}"
    )
    for name, mixture in MIXTURES.items():
        step = (eps_gpi(mixture, EPS) if shrink else EPS) / 2
        pi, *past = [policy(mdp, 0.7 - step * j) for j in range(-1, len(mixture))]  # past[i] is i updates old
        bound = generalized_bound(mdp, pi, np.array(past), mixture)
        used = penalty_tv(mdp, pi, np.array(past), mixture) / (EPS / 2)
        true = J(mdp, pi) - J(mdp, past[0])
        numbers = f"{bound.surrogate:>11.4f}{bound.penalty:>9.4f}{bound.lower:>9.4f}{true:>8.4f}"
        print(f"{name:<20}{len(mixture):>3}{mean_age(mixture):>8.2f}{used:>12.2f}{numbers}")


if __name__ == "__main__":
    mdp = corridor()
    print(f"Every update as large as on-policy's, TV = eps/2 = {EPS / 2}: older data, larger penalty, eq (4).\n")
    table(mdp, shrink=False)
    print("\nUpdates shrunk to eps_gpi/2, eq (10): the penalty's TV stays at eps/2, however old the data, eq (11).\n")
    table(mdp, shrink=True)
    print("\nbound = surrogate - penalty <= true = J(pi) - J(pi_k) in every row: Theorem 2.")
    print("Reuse makes B of these smaller updates from the samples of one on-policy update.")
