"""By construction: on-policy is the textbook algorithm, rho = 1 is GAE, zero-padded nu changes nothing."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

from agents import (
    EPS,
    A,
    E,
    O,
    T,
    buffer_of,
    draw_rollout,
    empty,
    estimate,
    estimate_of,
    flat,
    hyper,
    improve,
    log_pi_of,
    new_agent,
    on_policy_sample,
    prior_of,
    probability,
    pushed,
)
from compiling import fast_jit
from gpi.core import normaliser, objectives, rules, solvers
from gpi.core.advantage import degenerate, standardise, vtrace
from gpi.core.agent import Agent, Static
from gpi.core.categorical import Categorical
from gpi.core.gaussian import Gaussian, GaussianTheta
from gpi.core.plan import ALGORITHMS, on_policy, plan, reuse
from gpi.core.sample import Rollout, Sample, mean, weights

# --- the six algorithms -------------------------------------------------------------------------------------------


def test_six_algorithms_are_three_rules_by_two_plans():
    assert {algorithm.rule for algorithm in ALGORITHMS.values()} == {"ppo", "trpo", "vmpo"}
    assert {algorithm.plan for algorithm in ALGORITHMS.values()} == {"on_policy", "reuse"}
    assert len(set(ALGORITHMS.values())) == len(ALGORITHMS) == 6
    assert plan("trpo", 2, 1024, 0.2, 0.5) == on_policy(2, 1024, 0.2, 0.5)
    generalized = plan("getrpo", 2, 1024, 0.2, 1.0)
    assert generalized == reuse(2, 1024, 0.2, 1.0)
    assert generalized.steps == 1024 and generalized.eps == pytest.approx(0.1) and len(generalized.nu) == 4
    assert reuse(1, 1024, 0.2, 0.5) == on_policy(1, 1024, 0.2, 0.5), "B = 1 is on-policy for every kappa"


# --- on-policy is the textbook ------------------------------------------------------------------------------------


def test_on_policy_sample_has_unit_ratios_and_weights():
    """Ratios are exactly 1, as the programs of training compute them."""
    agent = new_agent(0)
    rollout, logp = jax.jit(prior_of)(agent.policy.params, 0, 0.0)
    buffer = pushed(empty(rollout, 1), rollout, logp)
    s = jax.jit(estimate_of)(agent.policy.params, agent.value, buffer, hyper((1.0,)))
    np.testing.assert_array_equal(s.rho, 1.0)
    np.testing.assert_allclose(s.weight, 1.0, rtol=1e-6)


def test_nu_1_is_textbook_ppo():
    """A plain PPO, written here without weights, ratios to older policies or our solver, gives the same parameters."""
    agent = new_agent(1)
    s = on_policy_sample(agent)
    static = Static("ppo", epochs=3, minibatches=4)
    key = jax.random.key(7)
    ours = fast_jit(lambda a, s, key, h: rules.clipped_ascent(a, s, key, h, static).agent)(agent, s, key, hyper((1.0,)))

    def ppo_loss(theta: Any, obs: Any, action: Any, old: Any, adv: Any) -> jax.Array:
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        ratio = jnp.exp(theta.distribution(obs).log_prob(action) - old)
        return -jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - EPS, 1 + EPS) * adv).mean()

    policy_adam = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-7))
    value_adam = optax.adam(3e-4, eps=1e-7)

    @fast_jit
    def textbook_step(theta: Any, phi: Any, policy_state: Any, value_state: Any, rows: Any) -> Any:
        obs, target = s.obs[rows], s.target[rows]
        g = jax.grad(ppo_loss)(theta, obs, s.action[rows], s.logp_i[rows], s.adv[rows])
        h = jax.grad(lambda phi: 0.5 * jnp.mean((target - phi.value(obs)) ** 2))(phi)
        with jax.numpy_dtype_promotion("standard"):  # optax needs it
            update, policy_state = policy_adam.update(g, policy_state)
            theta = optax.apply_updates(theta, update)
            update, value_state = value_adam.update(h, value_state)
            phi = optax.apply_updates(phi, update)
        return theta, phi, policy_state, value_state

    theta, phi = cast(Any, agent.policy).params, cast(Any, agent.value).params
    carry = theta, phi, policy_adam.init(theta), value_adam.init(phi)
    shuffle = fast_jit(solvers.shuffle, static_argnums=1)
    for epoch_key in jax.random.split(key, 3):
        for rows in np.asarray(shuffle(epoch_key, T * E)).reshape(4, -1):
            carry = textbook_step(*carry, rows)
    theta, phi, *_ = carry
    np.testing.assert_allclose(flat(ours.policy.params), flat(theta), atol=2e-6)
    np.testing.assert_allclose(flat(cast(Any, ours.value).params), flat(phi), atol=2e-6)
    assert np.abs(flat(theta) - flat(agent.policy.params)).max() > 1e-3, "nothing was learned"


def natural_textbook(agent: Agent, s: Sample, g: np.ndarray, delta: float) -> np.ndarray:
    """Return the full natural-gradient step, by an explicit Fisher matrix and a direct solver."""
    x, unravel = ravel_pytree(agent.policy.params)
    pi_k = agent.policy.params.distribution(s.obs)
    curvature = fast_jit(jax.hessian(lambda x: pi_k.kl(unravel(x).distribution(s.obs)).mean()))
    F = np.asarray(curvature(x), np.float64)
    F += 0.01 * np.eye(len(F))
    v = np.linalg.solve(F, g)
    return np.sqrt(2 * delta / (v @ F @ v)) * v


@pytest.mark.parametrize("rule", ["trpo", "vmpo"])
def test_nu_1_is_textbook_trpo_and_vmpo(rule: Any):
    agent = new_agent(2, hidden=(2,))
    s = on_policy_sample(agent)
    adv = np.asarray(s.adv, np.float64)
    adv = (adv - adv.mean()) / adv.std()
    delta = EPS**2 / 2
    factor = adv if rule == "trpo" else textbook_target(adv, delta) - 1.0

    def likelihood(theta: Any) -> jax.Array:
        # The gradients of E[ratio A] and of E[log pi A] agree at pi_k.
        return jnp.mean(theta.distribution(s.obs).log_prob(s.action) * jnp.asarray(factor, jnp.float32))

    step = natural_textbook(agent, s, flat(fast_jit(jax.grad(likelihood))(agent.policy.params)), delta)
    ours, measured = improve(agent, s, jax.random.key(0), hyper((1.0,)), Static(rule, 1, 4))
    moved = flat(ours.policy.params) - flat(agent.policy.params)
    assert measured.fraction > 0
    np.testing.assert_allclose(moved, float(measured.fraction) * step, atol=5e-3 * np.abs(step).max())


def textbook_target(adv: np.ndarray, delta: float) -> np.ndarray:
    """Return VMPO's target weights, by a general minimiser of the dual."""

    def dual(log_lam: float) -> float:
        lam = np.exp(log_lam)
        return lam * delta + lam * (np.log(np.mean(np.exp((adv - adv.max()) / lam))) + adv.max() / lam)

    best: Any = scipy.optimize.minimize_scalar(dual, bounds=(-5, 8), method="bounded", options={"xatol": 1e-10})
    lam = np.exp(best.x)
    w = np.exp((adv - adv.max()) / lam)
    return w / w.mean()


def test_vmpo_target_is_the_textbook_minimiser():
    adv = np.random.default_rng(0).standard_normal(500)
    ours, _ = fast_jit(objectives.target_weights)(
        jnp.asarray(adv, jnp.float32), jnp.full(500, 1 / 500, jnp.float32), jnp.float32(0.02)
    )
    np.testing.assert_allclose(ours, textbook_target(adv, 0.02), rtol=2e-4)


# --- V-trace ------------------------------------------------------------------------------------------------------


def gae_by_definition(reward, v, v_next, terminated, done, gamma, lam):
    """The double sum: adv_t = sum_l (gamma lambda)^l td_{t+l}, up to the end of the trajectory."""
    td = reward + gamma * (1 - terminated) * v_next - v
    adv = np.zeros_like(td)
    for t in range(len(td)):
        for j in range(t, len(td)):
            adv[t] += (gamma * lam) ** (j - t) * td[j]
            if done[j]:
                break
    return adv


def test_rho_1_makes_vtrace_gae():
    rng = np.random.default_rng(1)
    reward, v, v_next = rng.standard_normal((3, 64, 1))
    done = rng.random((64, 1)) < 0.1
    terminated = done & (rng.random((64, 1)) < 0.5)
    none = np.zeros((64, 1, 1))
    fields = (none, none, reward, none, terminated, done, np.ones((64, 1), bool))
    rollout = Rollout(*(jnp.asarray(x, jnp.float32) if x.dtype == np.float64 else jnp.asarray(x) for x in fields))
    v32, next32, rho = (jnp.asarray(x, jnp.float32) for x in (v, v_next, np.ones((64, 1))))
    adv, target = fast_jit(vtrace)(rollout, v32, next32, rho, jnp.float32(0.995), jnp.float32(0.97))
    expected = gae_by_definition(reward, v, v_next, terminated, done, 0.995, 0.97)
    np.testing.assert_allclose(adv, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(target, v + expected, rtol=2e-5, atol=2e-5)


# --- the mixture in the buffer ------------------------------------------------------------------------------------


def test_push_keeps_the_policies_in_order_of_age():
    agent = new_agent(0)
    buffer = empty(draw_rollout(jax.random.key(0), agent.policy.params)[0], 3)
    for k in range(5):
        rollout, logp = draw_rollout(jax.random.key(k), agent.policy.params)
        buffer = pushed(buffer, rollout._replace(reward=jnp.full((T, E), k, jnp.float32)), logp)
        assert buffer.policies == min(k + 1, 3)
    np.testing.assert_array_equal(buffer.rollout.reward[:, 0, 0], [4, 3, 2])


@pytest.mark.parametrize("filled", [1, 2, 3, 4])
def test_weights_are_nu_over_the_policies_that_exist(filled: int):
    nu = np.array([0.4, 0.3, 0.2, 0.1])
    valid = np.random.default_rng(0).random((4, T, E)) < 0.8
    w = np.asarray(fast_jit(weights)(jnp.asarray(nu, jnp.float32), jnp.int32(filled), jnp.asarray(valid)))
    share = w.sum(axis=(1, 2)) / w.sum()
    expected = np.where(np.arange(4) < filled, nu, 0)
    np.testing.assert_allclose(share, expected / expected.sum(), rtol=1e-5)
    np.testing.assert_allclose(w.mean(), 1.0, rtol=1e-5)
    assert (w[~valid] == 0).all()


@fast_jit
def gradients_of(agent: Agent, s: Sample) -> tuple[Any, Any]:
    """Return the gradients of the clipped surrogate and of the value loss."""

    def clipped(theta: Any) -> jax.Array:
        return objectives.clipped_surrogate(log_pi_of(theta, s), rules.standardised(s), jnp.float32(0.1))

    return jax.grad(clipped)(agent.policy.params), jax.grad(rules.value_loss)(cast(Any, agent.value).params, s)


@pytest.mark.parametrize("rule", ["trpo", "vmpo"])
def test_zero_padded_nu_changes_nothing(rule: Any):
    agent = new_agent(3)
    nu = (0.4, 0.3, 0.2, 0.1)
    results = []
    for padding in (0, 3):
        h = hyper(nu + (0.0,) * padding, 0.1)
        buffer = buffer_of(agent, 4 + padding, 4)
        s = estimate(agent.policy.params, agent.value, buffer, h)
        new, m = improve(agent, s, jax.random.key(0), h, Static(rule, 2, 4))
        measured = [float(x) for x in (m.tv_abs, m.penalty_abs, m.kl, m.ess)]
        results.append((flat(new.policy.params), flat(gradients_of(agent, s)), measured))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_standardised_advantages_have_no_weighted_mean():
    rng = np.random.default_rng(0)
    adv, rho, w = (
        jnp.asarray(x, jnp.float32) for x in (rng.normal(5, 3, 200), rng.lognormal(0, 0.3, 200), rng.random(200))
    )
    standard = fast_jit(standardise)
    z = standard(adv, rho, w)
    assert abs(mean(rho * z, w)) < 1e-5
    equal = standard(jnp.ones(200, jnp.float32), rho, w)
    assert np.isfinite(np.asarray(equal)).all()


# --- distributions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_kl_is_the_forward_divergence_of_its_arguments(kind: str):
    """By sampling: KL(p‖q) is the mean under p of log p - log q, and not the other way round."""
    rng = np.random.default_rng(0)
    n = 400_000
    if kind == "gaussian":
        p = Gaussian(jnp.asarray([[0.3, -0.2]], jnp.float32), jnp.asarray([0.2, -0.5], jnp.float32))
        q = Gaussian(jnp.asarray([[0.0, 0.4]], jnp.float32), jnp.asarray([0.6, -0.1], jnp.float32))
        action = np.asarray(p.mean) + np.exp(np.asarray(p.log_std)) * rng.standard_normal((n, 2))
        action = jnp.asarray(action, jnp.float32)
    else:
        p = Categorical(jnp.asarray([[0.0, 1.0, -1.0]], jnp.float32))
        q = Categorical(jnp.asarray([[1.0, 0.0, 0.5]], jnp.float32))
        probabilities = np.exp(np.asarray(jax.nn.log_softmax(p.logits[0]), np.float64))
        action = jnp.asarray(rng.choice(3, n, p=probabilities / probabilities.sum()))
    wide: list[Any] = [
        jax.tree.map(lambda x: np.broadcast_to(x, (n, *x.shape[1:])) if x.ndim == 2 else x, d) for d in (p, q)
    ]
    logp = [np.asarray(probability(d, action)) for d in wide]
    sampled = float(np.mean(logp[0] - logp[1], dtype=np.float64))
    forward, reverse, none = (float(fast_jit(lambda p, q: p.kl(q))(*pair)[0]) for pair in ((p, q), (q, p), (p, p)))
    assert forward == pytest.approx(sampled, rel=0.02)
    assert abs(forward - reverse) > 0.03, "the case must tell the directions apart"
    assert none == pytest.approx(0.0, abs=1e-6)
    h = -float(np.mean(logp[0], dtype=np.float64))
    assert float(fast_jit(lambda p: p.entropy())(p)[0]) == pytest.approx(h, rel=0.02)


# --- the line search ----------------------------------------------------------------------------------------------


def test_refused_step_returns_the_old_parameters_bit_for_bit():
    theta = jnp.asarray(np.random.default_rng(0).standard_normal(50), jnp.float32)
    refuse = jax.jit(lambda theta, step: solvers.backtrack(theta, step, lambda _: jnp.bool_(False)))
    for step in (jnp.full(50, jnp.nan, jnp.float32), jnp.full(50, 1e38, jnp.float32)):
        new, fraction = refuse(theta, step)
        assert fraction == 0 and np.asarray(new).tobytes() == np.asarray(theta).tobytes()


def test_line_search_takes_the_first_accepted_fraction():
    theta, step = jnp.zeros(3, jnp.float32), jnp.ones(3, jnp.float32)
    new, fraction = fast_jit(lambda t, s: solvers.backtrack(t, s, lambda x: x[0] < 0.4))(theta, step)
    assert fraction == pytest.approx(2**-1.5) and new[0] == pytest.approx(2**-1.5)


@pytest.mark.parametrize("rule", ["trpo", "vmpo"])
def test_natural_step_stays_inside_the_trust_region(rule: Any):
    for seed in range(3):
        agent = new_agent(seed)
        h = hyper((0.4, 0.3, 0.2, 0.1), 0.1)
        s = estimate(agent.policy.params, agent.value, buffer_of(agent, 4, 4), h)
        _, m = improve(agent, s, jax.random.key(seed), h, Static(rule, 2, 4))
        assert m.kl <= 1.5 * 0.1**2 / 2
        assert m.fraction == 0 or m.improvement > -1e-3


def test_learning_rate_falls_only_when_the_trust_region_is_left():
    agent = new_agent(4)._replace(lr=jnp.float32(1e-2))
    s = on_policy_sample(agent)
    for eps, falls in ((1e-4, True), (10.0, False)):
        new, m = improve(agent, s, jax.random.key(0), hyper((1.0,), eps), Static("ppo", 2, 4))
        assert (m.tv_abs > eps / 2) == falls
        assert float(new.lr) == pytest.approx(1e-2 / 1.03 if falls else 1e-2)


# --- degenerate data ----------------------------------------------------------------------------------------------


def test_equal_advantages_are_recognised_as_degenerate():
    alike = fast_jit(degenerate)
    ones, noise = np.ones(1000, np.float32), np.asarray(jax.random.normal(jax.random.key(0), (1000,), jnp.float32))
    for adv in (0.0 * ones, 5.0 * ones, 1e-12 * noise, 5.0 + 1e-7 * noise):
        assert alike(adv, ones)
    third = np.arange(1000) == 3
    spike = np.where(third, np.float32(1e-3), 0.0 * ones)
    for adv in (noise, 1e-5 * noise, 5.0 + 1e-3 * noise, spike):
        assert not alike(adv, ones)
    assert alike(spike, np.where(third, 0.0 * ones, ones)), "samples without weight do not count"


@pytest.mark.parametrize("rule", ["ppo", "trpo", "vmpo"])
def test_without_any_advantage_the_policy_is_kept_bit_for_bit(rule: Any):
    agent = new_agent(3)
    h = hyper(NU := (0.4, 0.3, 0.2, 0.1), 0.1)
    s = estimate(agent.policy.params, agent.value, buffer_of(agent, len(NU), len(NU)), h)
    new, m = improve(agent, s._replace(adv=jnp.full_like(s.adv, 5.0)), jax.random.key(0), h, Static(rule, 2, 4))
    assert m.degenerate_batch and m.fraction == 0 and all(np.isfinite(np.asarray(x)).all() for x in m)
    assert flat(new.policy).tobytes() == flat(agent.policy).tobytes()
    assert flat(new.value).tobytes() != flat(agent.value).tobytes(), "the value is fitted all the same"
    new, m = improve(agent, s, jax.random.key(0), h, Static(rule, 2, 4))
    assert not m.degenerate_batch and flat(new.policy).tobytes() != flat(agent.policy).tobytes()


@pytest.mark.parametrize("rule", ["ppo", "trpo", "vmpo"])
def test_a_collapsed_standard_deviation_stays_at_its_floor_and_finite(rule: Any):
    sound = new_agent(4)
    theta = cast(GaussianTheta, sound.policy.params)._replace(log_std=jnp.full(A, -60.0, jnp.float32))
    agent = sound._replace(policy=sound.policy._replace(params=theta))
    s = estimate(theta, agent.value, buffer_of(sound, 1, 1), hyper((1.0,)))
    new, m = improve(agent, s, jax.random.key(0), hyper((1.0,)), Static(rule, 2, 4))
    assert all(np.isfinite(np.asarray(x)).all() for x in (*m, flat(new.policy.params)))
    if m.fraction > 0:
        assert float(new.policy.params.log_std.min()) == pytest.approx(np.log(1e-3))


def test_a_quantity_that_never_varied_is_not_scaled(x64: None):
    rollout, _ = draw_rollout(jax.random.key(0), new_agent(0).policy.params)
    obs = np.where(np.arange(O) == 0, np.float32(7.0), rollout.obs)
    still = rollout._replace(obs=jnp.asarray(obs), reward=jnp.zeros_like(rollout.reward))
    stats = normaliser.init_normaliser(O)
    update = fast_jit(normaliser.update)
    for _ in range(3):
        stats = update(stats, still, jnp.float32(0.995), jnp.bool_(False))
    seen = fast_jit(normaliser.normalise)(stats, still._replace(reward=jnp.ones_like(still.reward)))
    np.testing.assert_array_equal(seen.obs[..., 0], 0.0)
    assert float(fast_jit(normaliser.scaling_of)(stats.obs).scale[0]) == 1.0
    np.testing.assert_array_equal(seen.reward, 1.0)  # no reward has varied yet: its scale is 1, not 1e8
