"""Certificates of performance on finite MDPs, where the performance of every policy is known exactly."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpi.theory import certificate
from gpi.theory.bounds import MDP
from gpi.theory.certificate import (
    ALPHA,
    SIZES,
    STAKES,
    certificates,
    certify,
    cost,
    episodes_to_certify,
    episodes_to_detect,
    extend,
    first_windows,
    leaves,
    log_growth,
    restart,
    room,
    turn,
)

HORIZON = 4
# Two states, of which the second pays 1 a step; action 1 changes the state with these chances, action 0 stays.
P = np.array([[[1.0, 0.0], [0.1, 0.9]], [[0.0, 1.0], [0.8, 0.2]]])
TASK = MDP(P, np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0.6, 0.4]), 0.9)
POLICIES = [np.array([[1 - a, a], [1 - b, b]]) for a, b in itertools.product((0.05, 0.5, 0.95), repeat=2)]

Adversary = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Chooses each run's next policy from the scaled returns so far `[runs]` of its episode: their sum, and the last."""


def return_distribution(mdp: MDP, pi: np.ndarray) -> np.ndarray:
    """Return the chances of every return 0, 1, ..., HORIZON of an episode, by enumeration."""
    chance = np.zeros((HORIZON + 1, len(mdp.rho0)))
    chance[0] = mdp.rho0
    for _ in range(HORIZON):
        after = np.zeros_like(chance)
        for total, s, a in itertools.product(range(HORIZON), range(len(mdp.rho0)), range(pi.shape[1])):
            after[total + int(mdp.r[s, a])] += chance[total, s] * pi[s, a] * mdp.p[s, a]
        chance = after
    return chance.sum(axis=1)


RETURNS = np.arange(HORIZON + 1) / HORIZON  # scaled
CHANCES = np.array([return_distribution(TASK, pi) for pi in POLICIES])
PERFORMANCE = CHANCES @ RETURNS


def test_the_enumerated_performance_is_the_expected_sum_of_rewards():
    for pi, performance in zip(POLICIES, PERFORMANCE, strict=True):
        chain, state, total = np.einsum("sa,sat->st", pi, TASK.p), TASK.rho0, 0.0
        for _ in range(HORIZON):
            total += state @ (pi * TASK.r).sum(axis=1)
            state = state @ chain
        assert performance * HORIZON == pytest.approx(total, abs=1e-12)
    assert PERFORMANCE.min() < 0.3 and PERFORMANCE.max() > 0.6


def test_growth_is_a_martingale_for_every_stake_and_any_way_of_choosing_policies():
    """E[prod (1 + c X_t) / (1 + c mu_t)] = 1, exactly, over every sequence of three returns."""
    rng = np.random.default_rng(0)
    for side in (0, 1):
        growth = np.exp(log_growth(RETURNS)[:, side])  # [returns, K]
        for _ in range(20):
            choice = {past: rng.integers(len(POLICIES)) for n in range(3) for past in np.ndindex(*(len(RETURNS),) * n)}
            expected = np.zeros(len(STAKES))
            for path in itertools.product(range(len(RETURNS)), repeat=3):
                chance, wealth = 1.0, np.ones(len(STAKES))
                for t, i in enumerate(path):
                    chances = CHANCES[choice[path[:t]]]
                    chance, wealth = chance * chances[i], wealth * growth[i] / (chances @ growth)
                expected += chance * wealth
            np.testing.assert_allclose(expected, 1.0, atol=1e-12)


def false_share(price: float, n: int = 12) -> float:
    """Return the exact probability that a bound of either side is false at any of n moments; returns are 0 or 1.

    The policies are an adversary's: after more luck than was to be expected the next one is the worst, and the other
    way round, so that the mean performance runs away from the returns.
    """
    total = 0.0
    for path in itertools.product((0, 1), repeat=n):
        x, chance, mus, false = np.array(path), 1.0, [], False
        for t in range(n):
            lucky = x[:t].sum() > sum(mus)
            mus.append(0.1 if lucky else 0.9)
            chance *= mus[-1] if path[t] else 1 - mus[-1]
            low, high = certify(log_growth(x[: t + 1]).sum(axis=0), t + 1, price)
            false |= bool(not low <= np.mean(mus) <= high)
        total += chance * false
    return total


def test_certificates_are_false_with_no_more_than_their_probability_computed_exactly():
    share = 0.2
    assert false_share(np.log(2 * len(STAKES) / share), 9) <= share
    assert false_share(0.3, 9) > share  # the test can fail: a price far too low


def test_the_shares_of_alpha_add_up_to_alpha():
    many = np.exp(-cost(np.arange(1_000_000))).sum() * 2 * len(STAKES) * len(SIZES)
    assert ALPHA * (1 - 2e-6) < many < ALPHA


def steady(total: np.ndarray, last: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.full(len(total), PERFORMANCE.argmax())


def spiteful(total: np.ndarray, last: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """After a lucky return the worst policy, after an unlucky one the best: the mean runs away from the returns."""
    return np.where(last > PERFORMANCE.mean(), PERFORMANCE.argmin(), PERFORMANCE.argmax())


def greedy(total: np.ndarray, last: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The best policy until the run is ahead of what was to be expected, then the worst for ever."""
    return np.where(total > 2.0, PERFORMANCE.argmin(), PERFORMANCE.argmax())


def erratic(total: np.ndarray, last: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(len(POLICIES), size=len(total))


def share_with_a_false_certificate(adversary: Adversary, runs: int = 500, episodes: int = 280) -> float:
    """Return the share of runs in which any window's certificate was false at any moment."""
    rng = np.random.default_rng(1)
    windows, truth = first_windows(runs), np.zeros((runs, len(SIZES)))
    ahead, last, false = np.zeros(runs), np.zeros(runs), np.zeros(runs, np.bool_)
    steps = CHANCES.cumsum(axis=1)
    for _ in range(episodes):
        policy = adversary(ahead, last, rng)
        last = RETURNS[(rng.random(runs)[:, None] > steps[policy]).sum(axis=1)]
        ahead = ahead + last - PERFORMANCE[policy]
        windows, truth = extend(windows, last[None]), truth + PERFORMANCE[policy][:, None]
        found = certificates(windows)
        mean = truth / windows.n
        false |= ((mean < found.lower - 1e-12) | (mean > found.upper + 1e-12)).any(axis=1)
        truth = truth * (windows.n < SIZES)
        windows = turn(windows)
    return float(false.mean())


@pytest.mark.parametrize("adversary", [steady, spiteful, greedy, erratic])
def test_certificates_of_a_whole_run_are_true_together_whatever_chooses_the_policies(
    adversary: Adversary, monkeypatch: pytest.MonkeyPatch
):
    assert share_with_a_false_certificate(adversary) <= ALPHA
    if adversary is steady:  # the test can fail: without its price, most runs have a false certificate
        monkeypatch.setattr(certificate, "cost", lambda number, alpha: np.full(np.shape(number), 1.0))
        assert share_with_a_false_certificate(adversary, runs=100) > 0.5


def test_certificates_never_depend_on_how_episodes_come_in_batches():
    x = np.random.default_rng(2).random(40)
    one = whole = first_windows()
    for i in range(40):
        one = turn(extend(one, x[i : i + 1]))
    for part in (x[:16], x[16:32], x[32:]):
        whole = turn(extend(whole, part))
    for a, b in zip(one, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert whole.number.tolist() == [2, 0, 0, 0] and whole.n.tolist() == [8, 40, 40, 40] and room(whole) == 8


def test_before_the_first_episode_nothing_is_certified():
    low, high = certificates(restart(extend(first_windows(), np.ones(10))))
    assert (low == 0.0).all() and (high == 1.0).all()


def test_a_fall_is_detected_after_exactly_the_number_of_episodes_that_is_stated():
    """1,000 of 1,000 for 256 episodes, then 300: windows of 16 and 64 begin with the fall."""
    windows, kept = first_windows(), 0.0
    for _ in range(16):
        windows = extend(windows, np.ones(16))
        kept = float(certificates(windows).lower.max())
        windows = turn(windows)
    assert kept == pytest.approx(certify(256 * log_growth(1.0), 256, cost(0)).lower)
    after = 0
    while (certificates(windows).upper >= kept).all():
        windows, after = extend(windows, [0.3]), after + 1
    stated = [episodes_to_detect([0.3], [1.0], kept, number) for number in (16, 4)]  # windows of each level before
    assert after == min(n for n in stated if n is not None) and after < 12


def test_a_fall_of_two_valued_returns_is_detected_about_as_soon_as_is_stated():
    rng, runs = np.random.default_rng(3), 400
    windows = first_windows(runs)
    for _ in range(16):
        windows = turn(extend(windows, np.ones((16, runs))))
    stated, kept = episodes_to_detect([0.0, 1.0], [0.5, 0.5], 0.95, 4), 0.95
    assert stated is not None and stated < 30
    found = np.zeros(runs, np.bool_)
    for _ in range(3 * stated):
        windows = extend(windows, (rng.random((1, runs)) < 0.5).astype(float))
        found |= (certificates(windows).upper < kept).any(axis=1)
        windows = turn(windows)
    assert found.mean() > 0.95


def test_noisy_returns_certify_little():
    assert episodes_to_certify([1.0], [1.0], 0.9) < 100  # type: ignore[operator]
    assert episodes_to_certify([0.1, 0.9], [0.5, 0.5], 0.4) > 200  # type: ignore[operator]
    assert episodes_to_certify([0.1, 0.9], [0.5, 0.5], 0.49) is None


def test_the_numbers_of_episodes_in_the_documentation_are_those_of_the_functions():
    page = (Path(__file__).parents[1] / "docs" / "keeping.md").read_text()
    returns = {
        "always 1,000": ([1.0], [1.0]), "always 500": ([0.5], [1.0]), "100 or 900, evenly": ([0.1, 0.9], [0.5, 0.5]),
        "0 or 1,000, evenly": ([0.0, 1.0], [0.5, 0.5]), "always 300": ([0.3], [1.0]),
        "1,000 in three of ten, else 0": ([0.0, 1.0], [0.7, 0.3]), "always 0": ([0.0], [1.0]),
    }  # fmt: skip
    number = 9  # the tenth window

    def row(name: str, episodes: Callable[..., int | None], levels: Sequence[float]) -> str:
        cells = [episodes(*returns[name], level, number) for level in levels]
        return f"| {' | '.join([name, *('–' if n is None else str(n) for n in cells)])} |\n"

    for name in list(returns)[:4]:
        mean = float(np.dot(*returns[name]))
        assert row(name, episodes_to_certify, [share * mean for share in (0.5, 0.8, 0.9, 0.95)]) in page
    for name in ("always 500", *list(returns)[3:]):
        assert row(name, episodes_to_detect, (0.95, 0.9, 0.8, 0.6, 0.4)) in page


def test_a_return_leaves_its_range_by_more_than_rounding():
    assert leaves([-1, 0, 500, 1000, 1001, -np.inf], 0, 1000).tolist() == [True, False, False, False, True, True]
    assert leaves([-0.0009, -0.0011, 1000.0009, 1000.0011], 0, 1000).tolist() == [False, True, False, True]
    table = [float(f"{x:.9g}") for x in (1e6 - 0.004, 1e6 + 0.006)]
    assert not leaves(table, 1e6 - 0.004, 1e6 + 0.006).any(), "nine digits of a return at the very end"
    assert leaves([1e6 + 0.1], 1e6 - 0.004, 1e6 + 0.006).all()
