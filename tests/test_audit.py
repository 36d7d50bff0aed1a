"""The audit's estimates against exact values, and what each trust mode promises."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents import EPS, buffer_of, estimate, flat, hyper, improve, log_pi, new_agent, probability
from compiling import fast_jit

import gpi
from gpi.core import audit, objectives, rules
from gpi.core.agent import Static
from gpi.core.categorical import Categorical
from gpi.core.gaussian import Gaussian, GaussianTheta
from gpi.core.normaliser import Normaliser, Stats
from gpi.core.sample import Buffer, Rollout, Sample
from gpi.rundir.run import read_rows

NU = (0.4, 0.3, 0.2, 0.1)

penalty, surrogate = fast_jit(objectives.penalty), fast_jit(objectives.surrogate)
tv_by_age = fast_jit(audit.tv_by_age, static_argnums=2)
improve_as_trained = jax.jit(  # bounds hold exactly for this program
    lambda *values: rules.improve(*values)[:2], static_argnums=4
)


def sample_of(action: np.ndarray, logp_i: Any, rho: Any = None, weight: Any = None) -> Sample:
    n = len(action)
    ones = jnp.ones(n, jnp.float32)
    return Sample(ones[:, None], jnp.asarray(action), logp_i, ones if rho is None else rho, ones, ones,
                  ones if weight is None else weight)  # fmt: skip


def test_tv_estimate_agrees_with_numerical_integration_for_gaussians():
    rng = np.random.default_rng(0)
    n = 400_000
    for shift, stretch in ((0.1, 0.0), (0.5, 0.2), (0.0, -0.3)):
        action = rng.standard_normal((n, 1)).astype(np.float32)
        p = Gaussian(jnp.zeros((n, 1), jnp.float32), jnp.zeros(1, jnp.float32))
        q = Gaussian(jnp.full((n, 1), shift, jnp.float32), jnp.full(1, stretch, jnp.float32))
        s = sample_of(action, probability(p, jnp.asarray(action)))
        ours = float(tv_by_age(probability(q, s.action), s, 1)[0])
        x = np.linspace(-12, 12, 200_001)
        density = [
            np.exp(-0.5 * ((x - m) / d) ** 2) / d / np.sqrt(2 * np.pi) for m, d in ((0, 1), (shift, np.exp(stretch)))
        ]
        exact = 0.5 * np.trapezoid(np.abs(density[0] - density[1]), x)
        assert ours == pytest.approx(exact, rel=0.01)


def test_tv_estimate_is_exact_in_expectation_for_categoricals():
    """Summed over all actions with their probabilities, the estimate is the TV distance itself."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    old, new = (Categorical(jnp.asarray(np.log(x)[None].repeat(3, 0), jnp.float32)) for x in (p, q))
    action = jnp.arange(3)
    ratio = fast_jit(objectives.ratio_to)(probability(new, action), probability(old, action))
    gaps = 0.5 * np.abs(np.asarray(ratio) - 1.0)
    assert p @ gaps == pytest.approx(0.5 * np.abs(p - q).sum(), rel=1e-5)


def test_tv_by_age_averages_to_the_penalty():
    agent = new_agent(0)
    s = estimate(agent.policy.params, agent.value.params, buffer_of(agent, 4, 3), hyper(NU, 0.1))
    logp = log_pi(new_agent(1).policy.params, s)
    ages = np.asarray(tv_by_age(logp, s, 4))
    assert np.isnan(ages[3]) and not np.isnan(ages[:3]).any(), "the fourth policy does not exist yet"
    nu = np.array(NU[:3]) / sum(NU[:3])
    assert nu @ ages[:3] == pytest.approx(float(penalty(logp, s)), rel=1e-5)


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


def update(rule: Any, trust: Any, seed: int, lr: float = 3e-4, drift: float = 0.05, eps: float = 0.1):
    agent = new_agent(seed)._replace(lr=jnp.float32(lr))
    h = hyper(NU, eps)
    s = estimate(agent.policy.params, agent.value.params, buffer_of(agent, 4, 4, drift), h)
    step = improve_as_trained if trust == "strict" else improve
    new, m = step(agent, s, jax.random.key(seed), h, Static(rule, 2, 4, trust=trust))
    return agent, new, m, s


@pytest.mark.parametrize("rule", ["ppo", "trpo", "vmpo"])
def test_strict_keeps_every_bound_or_the_old_policy(rule: Any):
    for seed, lr in ((0, 3e-4), (1, 0.3), (2, 3.0)):  # learning rates that overshoot the trust region by far
        old, new, m, s = update(rule, "strict", seed, lr)
        gain = surrogate(log_pi(new.policy.params, s), s) - surrogate(log_pi(old.policy.params, s), s)
        if m.fraction == 0:
            assert flat(new.policy).tobytes() == flat(old.policy).tobytes(), "optimiser restored, bit for bit"
            continue
        assert m.penalty <= EPS / 2 and gain >= -1e-6
        assert rule == "ppo" or m.kl <= 0.1**2 / 2


def test_strict_refuses_bit_for_bit_when_nothing_passes():
    """Prior policies so far away that even pi_k breaks eq (11): no step can pass."""
    for rule in ("ppo", "trpo", "vmpo"):
        old, new, m, _ = update(rule, "strict", 0, drift=5.0)
        assert m.penalty > EPS / 2 and m.fraction == 0
        assert flat(new.policy).tobytes() == flat(old.policy).tobytes()
        assert flat(new.value.params).tobytes() != flat(old.value.params).tobytes(), "the value is fitted all the same"


def test_paper_mode_breaks_what_strict_keeps():
    _, _, m, _ = update("ppo", "paper", 2, lr=3.0)
    assert m.penalty > EPS / 2


@pytest.mark.parametrize("rule", ["ppo", "trpo", "vmpo"])
def test_adaptive_budget_is_what_the_measured_tv_leaves(rule: Any):
    old, new, m, s = update(rule, "adaptive", 0)
    left = EPS - 2 * float(penalty(log_pi(old.policy.params, s), s))
    assert 0 < left < EPS and float(m.eps_gpi) == pytest.approx(left, rel=1e-4)
    old, new, m, s = update(rule, "adaptive", 0, drift=5.0)
    assert m.eps_gpi == 0 and m.fraction == 0, "nothing is left"
    assert m.tv == 0 and m.kl == 0, "a policy that was kept keeps even a bound of zero"
    assert flat(new.policy).tobytes() == flat(old.policy).tobytes()
    assert all(np.isfinite(np.asarray(x)).all() for x in m)


# --- the normaliser, which moves the policy too -------------------------------------------------------------------


def test_normaliser_tv_is_the_distance_between_the_policy_before_and_after():
    """For Gaussians of equal deviations the distance is erf(|gap|/(2 sqrt 2)), with the gap in deviations."""
    rng = np.random.default_rng(0)
    rows, size = 200_000, 3
    theta_k, theta = (GaussianTheta.init(rng, size, 2, (8,)) for _ in range(2))
    last = theta.net[-1]  # starts near zero: make the mean depend on what is seen
    theta = theta._replace(net=(*theta.net[:-1], last._replace(kernel=30.0 * last.kernel)))
    with jax.enable_x64(True):
        old = Stats(*(jnp.asarray(x, jnp.float64) for x in (100.0, np.zeros(size), np.full(size, 99.0))))
        new = Stats(*(jnp.asarray(x, jnp.float64) for x in (100.0, np.full(size, 0.3), np.full(size, 99.0))))
        returns = Stats(*(jnp.asarray(x, jnp.float64) for x in (100.0, 0.0, 99.0)))
        obs = jnp.asarray(rng.standard_normal((rows, 1, size)), jnp.float32)
        obs = obs.at[: rows // 2].multiply(5.0)
        pi_k = theta_k.distribution(obs[:, 0])
        noise = rng.standard_normal((rows, 2)).astype(np.float32)
        action = pi_k.mean + jnp.exp(pi_k.log_std)[None] * noise
        zero, no = jnp.zeros((rows, 1), jnp.float32), jnp.zeros((rows, 1), jnp.bool_)
        valid = ~no.at[: rows // 2].set(True)  # rows that are not transitions must not count
        raw = Rollout(obs, action[:, None], zero, obs, no, no, valid)
        logp = pi_k.log_prob(action)[None, :, None]
        slots = jax.tree.map(lambda x: jnp.asarray(x)[None], raw)
        before, after = Normaliser(old, returns), Normaliser(new, returns)
        normaliser_tv = fast_jit(audit.normaliser_tv)
        measured = normaliser_tv(theta, raw, Buffer(slots, logp, jnp.int32(1)), before, after)
        assert normaliser_tv(theta, raw, Buffer(slots, logp, jnp.int32(1)), before, before) == 0.0
    seen = obs[rows // 2 :, 0]
    one, two = theta.distribution(seen), theta.distribution(seen - jnp.float32(0.3))
    gap = np.linalg.norm(np.asarray(one.mean - two.mean) / np.exp(np.asarray(one.log_std)), axis=1)
    exact = np.mean([math.erf(x / (2 * math.sqrt(2))) for x in gap])
    assert exact > 0.01 and float(measured) == pytest.approx(exact, rel=0.03)


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
