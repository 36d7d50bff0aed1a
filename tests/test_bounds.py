"""Theorems 1-3 on thousands of random finite MDPs, where both sides of every inequality are exact."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from gpi.errors import UsageError
from gpi.theory.bounds import (
    MDP,
    C,
    J,
    Q,
    V,
    adaptive_eps,
    adv,
    d,
    generalized_bound,
    on_policy_bound,
    penalty_tv,
    theorem_3,
    triangle,
    tv,
    worst_case_decline,
)
from gpi.theory.mixture import eps_gpi, mean_age, nu

CASES = 500  # random MDPs of a quick test
THOROUGH = pytest.mark.parametrize("number", [CASES, pytest.param(2_000, marks=pytest.mark.slow)])
EXAMPLE = Path(__file__).parents[1] / "examples" / "bound_vs_age.py"


def random_mdp(rng: np.random.Generator) -> MDP:
    """Return an MDP, from nearly deterministic to nearly uniform, from one-step to long horizons."""
    S, A = rng.integers(1, 7), rng.integers(1, 5)
    spread = rng.choice([0.1, 1.0, 10.0])
    r = rng.normal(size=(S, A)) * rng.choice([0.01, 1.0, 100.0])
    p, rho0 = rng.dirichlet(np.full(S, spread), size=(S, A)), rng.dirichlet(np.full(S, spread))
    return MDP(p, r, rho0, float(rng.choice([0.0, 0.5, 0.9, 0.99])))


def random_policy(mdp: MDP, rng: np.random.Generator) -> np.ndarray:
    S, A = mdp.r.shape
    return rng.dirichlet(np.full(A, rng.choice([0.1, 1.0, 10.0])), size=S)


def random_past(mdp: MDP, rng: np.random.Generator, largest_step: float) -> np.ndarray:
    """past[i] is pi_{k-i}; each policy is the older one moved by at most `largest_step` in TV, in every state."""
    past = [random_policy(mdp, rng)]
    for _ in range(rng.integers(0, 7)):
        past.insert(0, moved(past[0], largest_step * rng.uniform(), mdp, rng))
    return np.array(past)


def moved(pi: np.ndarray, step: float, mdp: MDP, rng: np.random.Generator) -> np.ndarray:
    return (1 - step) * pi + step * random_policy(mdp, rng)


def random_nu(M: int, rng: np.random.Generator) -> np.ndarray:
    mixture = rng.dirichlet(np.full(M, rng.choice([0.1, 1.0])))
    mixture[rng.uniform(size=M) < 0.1] = 0
    return mixture / mixture.sum() if mixture.sum() > 0 else np.eye(M)[0]


def cases(number: int = CASES):
    for seed in range(number):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng)
        past = random_past(mdp, rng, rng.choice([0.01, 0.2, 1.0]))
        pi = moved(past[0], rng.choice([0.0, 0.01, 0.3, 1.0]), mdp, rng)
        yield seed, mdp, pi, past, random_nu(len(past), rng)


def no_less(left: float, right: float, mdp: MDP) -> bool:
    """Return whether left >= right, up to the rounding of sums as large as the rewards over a horizon squared."""
    return left >= right - 1e-12 * (1 + np.abs(mdp.r).max()) / (1 - mdp.gamma) ** 2


def small_mdp():
    rng = np.random.default_rng(3)
    return rng.dirichlet(np.ones(4), size=(4, 3)), rng.normal(size=(4, 3)), rng.dirichlet(np.ones(4)), 0.9


def straight_path(mdp: MDP, M: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Return policies that move mass from action 0 to 1 by the same TV in every state: eq (6) with equality."""
    S, A = mdp.r.shape
    move = np.zeros((S, A))
    move[:, 0], move[:, 1] = -1, 1
    start = np.full((S, A), 1 / A)
    pi, *past = [start - step * (j - M / 2) * move for j in range(M + 1)]
    return pi, np.array(past)


def test_values_and_visitations_are_the_power_series():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng)
        pi = random_policy(mdp, rng)
        state, discount, occupancy, episode_return = mdp.rho0, 1.0, 0.0, 0.0
        value = np.zeros(len(mdp.rho0))
        while discount > 1e-14:
            occupancy = occupancy + (1 - mdp.gamma) * discount * state
            episode_return += discount * (state[:, None] * pi * mdp.r).sum()
            state = np.einsum("s,sa,sat->t", state, pi, mdp.p)
            value = (pi * (mdp.r + mdp.gamma * mdp.p @ value)).sum(1)
            discount *= mdp.gamma
        scale = np.abs(mdp.r).max() / (1 - mdp.gamma)
        np.testing.assert_allclose(d(mdp, pi), occupancy, atol=1e-10)
        np.testing.assert_allclose(V(mdp, pi), value, atol=1e-10 * scale)
        np.testing.assert_allclose(J(mdp, pi), episode_return, atol=1e-10 * scale)
        np.testing.assert_allclose(Q(mdp, pi), mdp.r + mdp.gamma * mdp.p @ value, atol=1e-10 * scale)


def test_returns_visitations_and_advantages_agree():
    for seed, mdp, pi, past, _ in cases():
        scale = np.abs(mdp.r).max() / (1 - mdp.gamma)
        visits = d(mdp, pi)
        assert visits.min() > -1e-12 and visits.sum() == pytest.approx(1), seed
        assert J(mdp, pi) == pytest.approx(visits @ (pi * mdp.r).sum(1) / (1 - mdp.gamma), abs=1e-10 * scale), seed
        np.testing.assert_allclose((pi * adv(mdp, pi)).sum(1), 0, atol=1e-11 * scale)
        # The performance difference lemma, from which Theorem 1 starts.
        gain = visits @ (pi * adv(mdp, past[0])).sum(1) / (1 - mdp.gamma)
        assert J(mdp, pi) - J(mdp, past[0]) == pytest.approx(gain, abs=1e-10 * scale / (1 - mdp.gamma)), seed


def test_tv_is_half_the_l1_distance():
    p, q = np.array([[1.0, 0.0], [0.7, 0.3]]), np.array([[0.0, 1.0], [0.5, 0.5]])
    np.testing.assert_allclose(tv(p, q), [1.0, 0.2])


def test_bounds_are_the_equations_written_out():
    rng = np.random.default_rng(0)
    mdp = MDP(*small_mdp())
    past = np.array([random_policy(mdp, rng) for _ in range(3)])
    pi, mixture = random_policy(mdp, rng), [0.5, 0.2, 0.3]
    surrogate = penalty = 0.0
    for i, p in enumerate(mixture):
        for s, visits in enumerate(d(mdp, past[i])):
            penalty += p * visits * 0.5 * sum(abs(pi[s] - past[i, s]))
            for a in range(mdp.r.shape[1]):
                ratio = pi[s, a] / past[i, s, a]
                surrogate += p * visits * past[i, s, a] * ratio * adv(mdp, past[0])[s, a]
    largest = max(abs(sum(pi[s] * adv(mdp, past[0])[s])) for s in range(len(pi)))
    bound = generalized_bound(mdp, pi, past, mixture)
    assert penalty_tv(mdp, pi, past, mixture) == pytest.approx(penalty)
    assert C(mdp, pi, past[0]) == pytest.approx(largest)
    assert bound.surrogate == pytest.approx(surrogate / (1 - mdp.gamma))
    assert bound.penalty == pytest.approx(2 * mdp.gamma * largest / (1 - mdp.gamma) ** 2 * penalty)
    assert bound.lower == bound.surrogate - bound.penalty
    assert worst_case_decline(mdp, pi, past[0], 0.2) == pytest.approx(-0.2 * mdp.gamma * largest / (1 - mdp.gamma) ** 2)


@THOROUGH
def test_theorem_1_holds(number: int):
    for seed, mdp, pi, past, _ in cases(number):
        assert no_less(J(mdp, pi) - J(mdp, past[0]), on_policy_bound(mdp, pi, past[0]).lower, mdp), seed


@THOROUGH
def test_theorem_2_holds(number: int):
    for seed, mdp, pi, past, mixture in cases(number):
        assert no_less(J(mdp, pi) - J(mdp, past[0]), generalized_bound(mdp, pi, past, mixture).lower, mdp), seed


def test_no_smaller_penalty_would_do():
    """In the states where the new policy leads, it loses as much as it gains at the start: eq (1) is tight."""
    p = np.array([[[1, 0], [0, 1]], [[0, 1], [0, 1]]], dtype=float)
    mdp = MDP(p, np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([1.0, 0.0]), 0.9)
    stay, leave = np.array([[1.0, 0.0]] * 2), np.array([[0.999, 0.001]] * 2)
    bound = on_policy_bound(mdp, leave, stay)
    used = (bound.surrogate - (J(mdp, leave) - J(mdp, stay))) / bound.penalty
    assert 0.99 < used <= 1


def test_generalized_bound_is_the_on_policy_bound_at_nu_1():
    for seed, mdp, pi, past, _ in cases():
        expected = pytest.approx(on_policy_bound(mdp, pi, past[0]), rel=1e-12)
        assert generalized_bound(mdp, pi, past[:1], [1.0]) == expected, seed
        assert generalized_bound(mdp, pi, past, np.eye(len(past))[0]) == expected, seed


@THOROUGH
def test_worst_case_decline_holds_inside_the_trust_region(number: int):
    checked = 0
    for seed, mdp, pi, past, mixture in cases(number):
        bound = generalized_bound(mdp, pi, past, mixture)
        if bound.surrogate >= 0:
            eps = 2 * penalty_tv(mdp, pi, past, mixture)
            decline = worst_case_decline(mdp, pi, past[0], eps)
            assert decline <= 0 and no_less(J(mdp, pi) - J(mdp, past[0]), decline, mdp), seed
            checked += 1
    assert checked > number / 4


@THOROUGH
def test_triangle_inequality_and_adaptive_eps(number: int):
    exhausted = 0
    for seed, mdp, pi, past, mixture in cases(number):
        full, one_step, drift = triangle(mdp, pi, past, mixture)
        assert full == penalty_tv(mdp, pi, past, mixture), seed
        assert full <= one_step + drift + 1e-12, seed
        budget = adaptive_eps(mdp, past, mixture, eps=0.2)
        assert budget == pytest.approx(0.2 - 2 * drift), seed
        exhausted += budget <= 0
        if one_step <= budget / 2:  # eq (8) is what makes eq (5) hold
            assert full <= 0.1 + 1e-12, seed
    assert 0 < exhausted < number


@THOROUGH
def test_theorem_3_holds_when_its_premise_holds(number: int):
    for seed in range(number):
        rng = np.random.default_rng(seed)
        mdp, eps = random_mdp(rng), rng.choice([0.05, 0.2, 0.8])
        B, kappa = int(rng.integers(1, 4)), float(rng.uniform())
        mixture = nu(B, kappa) if seed % 2 else random_nu(int(rng.integers(1, 8)), rng)
        step = eps_gpi(mixture, eps) / 2
        past = [random_policy(mdp, rng)]
        for _ in range(len(mixture)):
            past.insert(0, moved(past[0], step * rng.choice([0.5, 1.0]), mdp, rng))
        chain = theorem_3(mdp, past[0], np.array(past[1:]), mixture, eps)
        assert chain.eps_gpi == 2 * step and chain.eps == eps
        assert chain.premise and chain.conclusion, seed


@THOROUGH
def test_theorem_3_never_fails_without_a_broken_premise(number: int):
    broken = failed = 0
    for seed, mdp, pi, past, mixture in cases(number):
        chain = theorem_3(mdp, pi, past, mixture, eps=0.1)
        assert chain.conclusion or not chain.premise, seed
        broken += not chain.premise
        failed += not chain.conclusion
    assert broken > failed > number / 20


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_theorem_3_is_tight_and_a_broken_premise_is_detected(kappa):
    mdp, eps, mixture = MDP(*small_mdp()), 0.1, nu(3, kappa)
    step = eps_gpi(mixture, eps) / 2
    pi, past = straight_path(mdp, len(mixture), step)
    chain = theorem_3(mdp, pi, past, mixture, eps)
    assert chain.premise and chain.conclusion
    assert chain.penalty == pytest.approx(eps / 2) == pytest.approx(step * mean_age(mixture))

    pi, past = straight_path(mdp, len(mixture), 1.01 * step)
    chain = theorem_3(mdp, pi, past, mixture, eps)
    assert not chain.premise and not chain.conclusion

    # One past update too large is enough, and the table says which: pi_{k-1} to pi_k, under older data.
    pi, past = straight_path(mdp, len(mixture), step)
    past[1:] -= 0.01 * (past[0] - past[1]) / step
    chain = theorem_3(mdp, pi, past, mixture, eps)
    assert not chain.premise and not chain.conclusion
    too_large = chain.steps > step + 1e-9
    assert too_large[1:, 1].all() and too_large.sum() == len(mixture) - 1


def test_policies_without_weight_take_no_part_in_theorem_3():
    mdp = MDP(*small_mdp())
    pi, past = straight_path(mdp, 2, 0.05)
    wild = np.array([*past, np.eye(3)[[0, 1, 2, 0]]])
    padded, plain = theorem_3(mdp, pi, wild, [0.5, 0.5, 0.0], 0.15), theorem_3(mdp, pi, past, [0.5, 0.5], 0.15)
    assert padded.premise and plain.premise and not theorem_3(mdp, pi, wild, [0.5, 0.4, 0.1], 0.15).premise
    assert padded.penalty == pytest.approx(plain.penalty)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"gamma": 1.0}, "gamma"),
        ({"gamma": np.nan}, "gamma"),
        ({"rho0": np.array([0.5, 0.5, 0.5, -0.5])}, "rho0"),
        ({"rho0": np.full(3, 1 / 3)}, "rho0"),
        ({"p": np.ones((4, 3, 4))}, "p"),
        ({"p": np.full((4, 3, 4), np.nan)}, "p"),
        ({"r": np.zeros(4)}, "r"),
    ],
)
def test_a_wrong_mdp_gets_one_line(change, name):
    fields = dict(zip(("p", "r", "rho0", "gamma"), small_mdp(), strict=True))
    with pytest.raises(UsageError, match=rf"^{name} must .*, got .*; [a-z ,.0-9]+$"):
        MDP(**{**fields, **change})


def test_wrong_policies_and_mixtures_get_one_line():
    mdp = MDP(*small_mdp())
    pi, past = straight_path(mdp, 2, 0.05)
    with pytest.raises(UsageError, match=r"^pi must be probabilities"):
        J(mdp, 2 * pi)
    with pytest.raises(UsageError, match=r"^pi must have shape"):
        J(mdp, pi[:, :2])
    with pytest.raises(UsageError, match=r"^nu must have shape"):
        generalized_bound(mdp, pi, past, [1.0])
    with pytest.raises(UsageError, match=r"^nu must be probabilities"):
        generalized_bound(mdp, pi, past, [0.5, 0.6])


def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    rows = [line.split()[-5:] for line in out.splitlines() if line.startswith(("on-policy", "B = "))]
    used, _, _, bound, true = np.array(rows, dtype=float).T
    assert len(rows) == 12 and (bound <= true).all()
    assert (np.diff(bound[:6]) < 0).all() and (used[6:] == 1).all()
