"""The audit's estimates against exact values, and what each trust mode promises."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpi
from agents import EPS, buffer_of, estimate, flat, hyper, improve, log_pi, new_agent, probability
from compiling import fast_jit
from gpi.core import audit, objectives, rules, trust
from gpi.core.agent import Static
from gpi.core.categorical import Categorical
from gpi.core.gaussian import Gaussian, GaussianTheta
from gpi.core.normaliser import Stats, with_all_in_force
from gpi.core.sample import Rollout, Sample
from gpi.rundir.run import read_rows

NU = (0.4, 0.3, 0.2, 0.1)

penalty, surrogate = fast_jit(objectives.penalty), fast_jit(objectives.surrogate)
bounded_penalty, cautious_penalty = fast_jit(objectives.bounded_penalty), fast_jit(objectives.cautious_penalty)
tv_by_age = fast_jit(audit.tv_by_age, static_argnums=2)
improve_as_trained = jax.jit(  # bounds hold exactly for this program
    lambda *values: rules.improve(*values)[:2], static_argnums=4
)


def sample_of(action: np.ndarray, logp_i: Any, rho: Any = None, weight: Any = None) -> Sample:
    n = len(action)
    ones = jnp.ones(n, jnp.float32)
    return Sample(ones[:, None], jnp.asarray(action), logp_i, ones if rho is None else rho, ones, ones,
                  ones if weight is None else weight)  # fmt: skip


def density(x: np.ndarray, mean: float, log_std: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std) / np.sqrt(2 * np.pi)


def integrated_tv(shift: float, stretch: float) -> float:
    """TV between a standard normal distribution and another, by numerical integration in float64."""
    x = np.linspace(-12, 12, 200_001)
    return 0.5 * float(np.trapezoid(np.abs(density(x, 0.0, 0.0) - density(x, shift, stretch)), x))


def gaussian(mean: np.ndarray, log_std: np.ndarray) -> Gaussian:
    return Gaussian(jnp.asarray(mean, jnp.float32), jnp.asarray(log_std, jnp.float32))


@pytest.mark.parametrize("measure", [penalty, bounded_penalty, lambda logp, s: tv_by_age(logp, s, 1)[0]])
def test_tv_estimates_agree_with_numerical_integration_for_gaussians(measure: Any):
    rng = np.random.default_rng(0)
    n = 400_000
    for shift, stretch in ((0.1, 0.0), (0.5, 0.2), (0.0, -0.3)):
        action = rng.standard_normal((n, 1)).astype(np.float32)
        p, q = gaussian(np.zeros((n, 1)), np.zeros(1)), gaussian(np.full((n, 1), shift), np.full(1, stretch))
        s = sample_of(action, probability(p, jnp.asarray(action)))
        assert float(measure(probability(q, s.action), s)) == pytest.approx(integrated_tv(shift, stretch), rel=0.01)


def test_tv_estimates_are_exact_in_expectation_for_categoricals():
    """Weighted by the probabilities of all actions, the estimates are the TV distances themselves."""
    probabilities = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.2, 0.35]), np.array([0.3, 0.3, 0.4])
    old, last, new = (Categorical(jnp.asarray(np.log(x)[None].repeat(3, 0), jnp.float32)) for x in probabilities)
    action = jnp.arange(3)
    logp_i, logp_k, logp = (probability(pi, action) for pi in (old, last, new))
    rho, weight = jnp.exp(logp_k - logp_i), jnp.asarray(3.0 * probabilities[0], jnp.float32)
    s = sample_of(np.arange(3), logp_i, rho, weight)
    to_old, to_last = (0.5 * np.abs(x - probabilities[2]).sum() for x in probabilities[:2])
    for measured in (penalty(logp, s), bounded_penalty(logp, s), cautious_penalty(logp, s)):
        assert float(measured) == pytest.approx(to_old, rel=1e-5)
    for measure in (objectives.one_step_tv, objectives.bounded_one_step_tv):
        assert float(fast_jit(measure)(logp, s)) == pytest.approx(to_last, rel=1e-5)


def test_one_impossible_action_does_not_dominate_the_bounded_estimates():
    logp = jnp.zeros(1000, jnp.float32).at[0].set(50.0)  # ratios 1, and one beyond any limit
    s = sample_of(np.zeros((1000, 1), np.float32), jnp.zeros(1000, jnp.float32))
    assert float(penalty(logp, s)) > 1000, "no distance any more"
    assert float(bounded_penalty(logp, s)) == 0.0 and float(tv_by_age(logp, s, 1)[0]) == 0.0
    assert float(cautious_penalty(logp, s)) == pytest.approx(0.001), "it counts as one sample"
    for bounded in (bounded_penalty, cautious_penalty):
        assert float(bounded(-logp - 50.0, s)) == pytest.approx(1.0), "at most 1, when everything was taken away"


def test_a_policy_that_closes_in_on_its_samples_is_refused_by_strict():
    """Every sampled action became likelier, so that none lost probability, although TV is 0.12 where 0.1 is allowed."""
    rng = np.random.default_rng(0)
    theta_k = GaussianTheta.init(rng, 1, 1, (8,))
    theta = theta_k._replace(log_std=jnp.full(1, -0.25, jnp.float32))
    one = jnp.ones((500, 1), jnp.float32)
    action = theta_k.distribution(one).mean + jnp.asarray(rng.uniform(-0.6, 0.6, (500, 1)), jnp.float32)
    s = sample_of(np.asarray(action), probability(theta_k.distribution(one), action))
    logp = probability(theta.distribution(one), action)
    assert float(bounded_penalty(logp, s)) == 0.0 and integrated_tv(0.0, -0.25) > 0.1
    assert float(cautious_penalty(logp, s)) > 0.1
    passes = fast_jit(lambda theta_k, theta, s, h: trust.keeps_guarantee(theta_k, s, h)(theta))
    assert passes(theta_k, theta_k, s, hyper((1.0,))) and not passes(theta_k, theta, s, hyper((1.0,)))


def test_one_action_that_became_likely_does_not_outweigh_what_all_others_lost():
    """Its ratio is 20,000 and the sum of E[ratio·A] far above pi_k's; as a gain it counts as one sample."""
    s = sample_of(np.zeros((1000, 1), np.float32), jnp.zeros(1000, jnp.float32))._replace(adv=jnp.ones(1000))
    logp = jnp.full(1000, jnp.log(0.9)).at[0].set(9.9)
    gain = fast_jit(objectives.cautious_gain)
    assert float(surrogate(logp, s)) > 10 and float(gain(logp, s)) == pytest.approx(0.001 - 0.0999, rel=1e-4)
    for bad in (s._replace(adv=s.adv.at[0].set(-1.0)), s._replace(adv=-s.adv)):
        exact = float(surrogate(logp, bad) - surrogate(s.logp_i, bad))
        assert exact < -10 and float(gain(logp, bad)) == pytest.approx(exact, rel=1e-4), "a loss counts in full"
    small = jnp.full(1000, 0.01)
    assert float(gain(small, s)) == pytest.approx(float(surrogate(small, s)) - 1.0, rel=1e-4), "small steps: the same"


def test_tv_by_age_averages_to_the_penalty():
    agent = new_agent(0)
    s = estimate(agent.policy.params, agent.value, buffer_of(agent, 4, 3), hyper(NU, 0.1))
    logp = log_pi(new_agent(1).policy.params, s)
    ages = np.asarray(tv_by_age(logp, s, 4))
    assert np.isnan(ages[3]) and not np.isnan(ages[:3]).any(), "the fourth policy does not exist yet"
    nu = np.array(NU[:3]) / sum(NU[:3])
    assert nu @ ages[:3] == pytest.approx(float(bounded_penalty(logp, s)), rel=1e-5)


# --- TV from the distributions ------------------------------------------------------------------------------------


distance = fast_jit(lambda p, q: p.tv(q))


def test_tv_of_gaussians_is_exact_where_deviations_agree_however_small_it_is():
    """The distance is erf(d / sqrt 8), with the gap d in deviations; float32 must not lose small ones."""
    rng = np.random.default_rng(0)
    log_std = np.array([-1.0, 0.5, 0.0])
    direction = rng.standard_normal(3)
    direction /= np.linalg.norm(direction)
    for d in (0.0, 1e-7, 1e-5, 1e-3, 0.1, 1.0, 20.0):
        p, q = gaussian(np.zeros((1, 3)), log_std), gaussian((d * direction * np.exp(log_std))[None], log_std)
        for measured in (distance(p, q), distance(q, p)):
            assert float(measured[0]) == pytest.approx(math.erf(d / math.sqrt(8)), rel=1e-5)


def test_tv_of_gaussians_is_an_upper_bound_and_not_a_loose_one():
    for shift, stretch in ((0.0, 1e-5), (1e-5, -1e-5), (0.001, 0.003), (0.1, 0.1), (0.5, -0.4), (0.0, 1.0), (3.0, 1.5)):
        p, q = gaussian(np.zeros((1, 1)), np.zeros(1)), gaussian(np.full((1, 1), shift), np.full(1, stretch))
        exact = integrated_tv(shift, stretch)
        for measured in (distance(p, q), distance(q, p)):
            assert exact * (1 - 1e-5) <= float(measured[0]) <= min(1.0, 1.5 * exact), (shift, stretch)


def test_tv_of_gaussians_in_six_dimensions_is_an_upper_bound():
    rng = np.random.default_rng(0)
    n = 100_000
    noise = jnp.asarray(rng.standard_normal((n, 6)), jnp.float32)
    for size in (0.03, 0.3):
        shift, stretch = size * rng.standard_normal(6), size * rng.standard_normal(6)
        p, q = gaussian(np.zeros((n, 6)), np.zeros(6)), gaussian(shift[None].repeat(n, 0), stretch)
        lost = np.maximum(1.0 - np.exp(np.asarray(probability(q, noise) - probability(p, noise), np.float64)), 0.0)
        sampled, error = lost.mean(), lost.std() / math.sqrt(n)
        assert sampled - 4 * error <= float(distance(p, q)[0]) <= 1.5 * sampled


def test_tv_of_categoricals_is_exact():
    rng = np.random.default_rng(0)
    for size in (0.0, 1e-5, 0.1, 3.0, 200.0):
        logits = rng.standard_normal((50, 4)).astype(np.float32)
        other = (logits + size * rng.standard_normal((50, 4))).astype(np.float32)
        p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (logits.astype(np.float64), other.astype(np.float64)))
        exact = 0.5 * np.abs(p / p.sum(1, keepdims=True) - q / q.sum(1, keepdims=True)).sum(1)
        measured = distance(Categorical(jnp.asarray(logits)), Categorical(jnp.asarray(other)))
        np.testing.assert_allclose(np.asarray(measured), exact, rtol=1e-5, atol=1e-7)


# --- the audit and the trust modes --------------------------------------------------------------------------------


def test_realised_ess_and_high_advantage():
    rng = np.random.default_rng(0)
    rho, adv, w = (
        jnp.asarray(x, jnp.float32) for x in (rng.lognormal(0, 1, 1000), rng.normal(0, 3, 1000), np.ones(1000))
    )
    s = sample_of(np.zeros((1000, 1), np.float32), jnp.zeros(1000, jnp.float32), rho, w)._replace(adv=adv)
    x = np.asarray(rho, np.float64)
    assert float(fast_jit(audit.realised_ess)(s)) == pytest.approx(x.sum() ** 2 / (x**2).sum(), rel=1e-4)
    expected = np.quantile(np.abs(np.asarray(adv)), 0.99, method="lower")
    high_advantage = fast_jit(audit.high_advantage)
    assert float(high_advantage(s)) == pytest.approx(float(expected))
    padded = s._replace(adv=s.adv.at[500:].set(1e6), weight=s.weight.at[500:].set(0.0))
    assert float(high_advantage(padded)) < 100, "samples without weight do not count"


def update(rule: Any, mode: Any, seed: int, lr: float = 3e-4, drift: float = 0.05, eps: float = 0.1):
    agent = new_agent(seed)._replace(lr=jnp.float32(lr))
    h = hyper(NU, eps)
    s = estimate(agent.policy.params, agent.value, buffer_of(agent, 4, 4, drift), h)
    step = improve_as_trained if mode == "strict" else improve
    new, m = step(agent, s, jax.random.key(seed), h, Static(rule, 2, 4, trust=mode))
    return agent, new, m, s


@pytest.mark.parametrize("rule", ["ppo", "trpo", "vmpo"])
def test_strict_keeps_every_bound_or_the_old_policy(rule: Any):
    for seed, lr in ((0, 3e-4), (1, 0.3), (2, 3.0)):  # learning rates that overshoot the trust region by far
        old, new, m, s = update(rule, "strict", seed, lr)
        gain = surrogate(log_pi(new.policy.params, s), s) - surrogate(log_pi(old.policy.params, s), s)
        if m.fraction == 0:
            assert flat(new.policy).tobytes() == flat(old.policy).tobytes(), "optimiser restored, bit for bit"
            continue
        assert cautious_penalty(log_pi(new.policy.params, s), s) <= EPS / 2 and gain >= -1e-6
        assert rule == "ppo" or m.kl <= 0.1**2 / 2


def test_strict_refuses_bit_for_bit_when_nothing_passes():
    """Prior policies so far away that even pi_k breaks eq (11): no step can pass."""
    for rule in ("ppo", "trpo", "vmpo"):
        old, new, m, _ = update(rule, "strict", 0, drift=5.0)
        assert m.penalty_abs > EPS / 2 and m.fraction == 0
        assert flat(new.policy).tobytes() == flat(old.policy).tobytes()
        assert flat(new.value).tobytes() != flat(old.value).tobytes(), "the value is fitted all the same"


def test_paper_mode_breaks_what_strict_keeps():
    _, _, m, _ = update("ppo", "paper", 2, lr=3.0)
    assert m.penalty_abs > EPS / 2


@pytest.mark.parametrize("rule", ["ppo", "trpo", "vmpo"])
def test_adaptive_budget_is_what_the_measured_tv_leaves(rule: Any):
    old, new, m, s = update(rule, "adaptive", 0)
    left = EPS - 2 * float(penalty(log_pi(old.policy.params, s), s))
    assert 0 < left < EPS and float(m.eps_gpi) == pytest.approx(left, rel=1e-4)
    old, new, m, s = update(rule, "adaptive", 0, drift=5.0)
    assert m.eps_gpi == 0 and m.fraction == 0, "nothing is left"
    assert m.tv_abs == 0 and m.kl == 0, "a policy that was kept keeps even a bound of zero"
    assert flat(new.policy).tobytes() == flat(old.policy).tobytes()
    assert all(np.isfinite(np.asarray(x)).all() for x in m)


audit_as_trained = fast_jit(audit.audit)


def test_the_audit_measures_one_step_by_samples_and_by_distributions():
    for drift in (0.05, 5.0):  # with the second nothing passes
        old, new, m, s = update("trpo", "strict", 0, drift=drift)
        theta_k, theta = old.policy.params, new.policy.params
        done = jnp.zeros((4, s.weight.size // 4, 1), jnp.bool_)
        found = audit_as_trained(theta_k, theta, s, done, m, hyper(NU, 0.1), jnp.float32(1.0))
        if m.fraction == 0:
            assert (
                found.tv_lost == 0 and found.tv_closed == 0 and found.penalty_lost > EPS / 2 and not found.penalty_held
            )
            continue
        apart = distance(theta_k.distribution(s.obs), theta.distribution(s.obs))
        assert float(found.tv_closed) == pytest.approx(float(jnp.vdot(s.weight, apart)) / s.weight.size, rel=1e-5)
        assert found.tv_lost <= found.tv_closed < 2 * found.tv_lost, "few samples, but of the same distance"
        change = surrogate(log_pi(theta, s), s) - surrogate(log_pi(theta_k, s), s)
        assert float(found.surrogate_gain) == pytest.approx(float(change), rel=0.05, abs=1e-4)
        wild = s._replace(rho=s.rho.at[5].set(1e6), adv=s.adv.at[5].set(1.0))  # nearly impossible for pi_{k-i}
        tail = audit_as_trained(theta_k, theta, wild, done, m, hyper(NU, 0.1), jnp.float32(1.0))
        assert tail.tv_lost == tail.tv_closed == found.tv_closed and tail.tv_held, "no sample takes it beyond its bound"
        assert abs(float(tail.surrogate_gain - found.surrogate_gain)) < 5 / s.weight.size and tail.gain_se < 0.1
        assert found.penalty_held and 0 < found.penalty_lost <= EPS / 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["geppo", "getrpo", "gevmpo"])
def test_strict_keeps_eq_11_in_training(algorithm: Any, tmp_path: Path):
    run = gpi.train(
        algorithm, "Pendulum-v1", trust="strict", seeds=2, n=250, steps=5000, eps=0.1, hidden=(8,),
        epochs=4, minibatches=4, lr=0.003, out=tmp_path / "r", quiet=True,
    )  # fmt: skip
    rows = read_rows(run.dir / "audit.csv")
    assert len(rows) >= 38 and gpi.audit(run).penalty_violations == 0
    assert all(float(row["penalty_lost"]) <= 0.05 and row["penalty_held"] == "1" for row in rows)
    assert max(float(row["penalty_lost"]) for row in rows) > 0.005, "the policy moves"
    by_halves = [float(row["penalty_abs"]) for row in read_rows(run.dir / "metrics.csv")]
    assert any(x != float(row["penalty_lost"]) for x, row in zip(by_halves, rows, strict=True)), (
        "two estimates, two tables"
    )
    assert all(0 < float(row["tv_closed"]) < 2 * float(row["tv_lost"]) for row in rows if row["fraction"] != "0")


# --- the normaliser, which moves the policy too -------------------------------------------------------------------


def test_normaliser_tv_is_the_distance_between_the_policy_before_and_after():
    """For Gaussians of equal deviations the distance is erf(|gap|/(2 sqrt 2)), with the gap in deviations."""
    rng = np.random.default_rng(0)
    rows, size = 2000, 3
    theta = GaussianTheta.init(rng, size, 2, (8,))
    last = theta.net[-1]  # starts near zero: make the mean depend on what is seen
    theta = theta._replace(net=(*theta.net[:-1], last._replace(kernel=30.0 * last.kernel)))
    with jax.enable_x64(True):
        old = Stats(*(jnp.asarray(x, jnp.float64) for x in (100.0, np.zeros(size), np.full(size, 99.0))))
        new = Stats(*(jnp.asarray(x, jnp.float64) for x in (100.0, np.full(size, 0.3), np.full(size, 99.0))))
        returns = Stats(*(jnp.asarray(x, jnp.float64) for x in (100.0, 0.0, 99.0)))
        obs = jnp.asarray(rng.standard_normal((rows, 1, size)), jnp.float32)
        obs = obs.at[: rows // 2].multiply(5.0)
        zero, no = jnp.zeros((rows, 1), jnp.float32), jnp.zeros((rows, 1), jnp.bool_)
        valid = ~no.at[: rows // 2].set(True)  # rows that are not transitions must not count
        raw = Rollout(obs, jnp.zeros((rows, 1, 2), jnp.float32), zero, obs, no, no, valid)
        before, after = with_all_in_force(old, returns), with_all_in_force(new, returns)
        normaliser_tv = fast_jit(audit.normaliser_tv)
        measured = normaliser_tv((theta, before), (theta, after), raw)
        assert normaliser_tv((theta, before), (theta, before), raw) == 0.0
    seen = obs[rows // 2 :, 0]
    one, two = theta.distribution(seen), theta.distribution(seen - jnp.float32(0.3))
    gap = np.linalg.norm(np.asarray(one.mean - two.mean) / np.exp(np.asarray(one.log_std)), axis=1)
    exact = np.mean([math.erf(x / (2 * math.sqrt(2))) for x in gap])
    assert exact > 0.01 and float(measured) == pytest.approx(exact, rel=1e-4)


@pytest.mark.xdist_group("ppo")  # the program of the tests of resuming
def test_frozen_statistics_no_longer_move_the_policy(tmp_path: Path):
    run = gpi.train(
        "ppo", "cartpole-balance", seeds=2, n=1000, steps=8000, freeze_normaliser=4000, hidden=(8,), epochs=1,
        minibatches=4, out=tmp_path / "r", quiet=True,
    )  # fmt: skip
    for seed in ("0", "1"):
        moved = [float(row["normaliser_tv"]) for row in read_rows(run.dir / "audit.csv") if row["seed"] == seed]
        assert len(moved) == 4 and all(x > 0 for x in moved[:2]) and moved[2:] == [0.0, 0.0]


# --- the gain, and how sure it is ------------------------------------------------------------------------------------


def test_the_error_of_the_gain_is_that_of_episodes_not_of_samples():
    """Against loops over episodes; and over many batches it is the spread of the gain itself."""
    gain_error, rng = fast_jit(audit.gain_error), np.random.default_rng(0)
    M, T, E = 3, 40, 2
    done, valid = rng.random((M, T, E)) < 0.1, rng.random((M, T, E)) < 0.9
    level = rng.normal(0, 1, (300, M, T, E))  # of an episode, given to all its samples below
    weight = valid * rng.choice([0.5, 1.0], (M, 1, 1))
    weight *= weight.size / weight.sum()
    episodes: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for i, e in np.ndindex(M, E):
        number = 0
        for t in range(T):
            episodes.setdefault((i, e, number), []).append((i, t, e))
            number += done[i, t, e]
    found, gains = [], []
    for batch in level:
        gain = rng.normal(0, 0.1, (M, T, E))
        for rows in episodes.values():
            for row in rows:
                gain[row] += batch[rows[0]]
        flat = [jnp.asarray(x.reshape(-1), jnp.float32) for x in (gain, weight)]
        found.append(float(gain_error(*flat, jnp.asarray(done))))
        gains.append((weight * gain).mean())
        if len(found) == 1:
            share = {key: sum(weight[row] for row in rows) / weight.size for key, rows in episodes.items()}
            part = {key: sum(weight[row] * gain[row] for row in rows) / weight.size for key, rows in episodes.items()}
            squares = sum((part[key] - share[key] * gains[0]) ** 2 for key in episodes)
            assert found[0] == pytest.approx(np.sqrt(squares / (1 - sum(x**2 for x in share.values()))), rel=1e-4)
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(np.std(gains), rel=0.15)
    one = jnp.zeros((1, 60, 1), bool)
    assert np.isnan(gain_error(flat[0][:60], jnp.ones(60, jnp.float32), one)), "one episode has no spread"
