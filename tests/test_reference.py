"""Every equation against the reference numerics, one case per file in the fixtures folder."""

import functools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from agents import log_pi_of
from compiling import fast_jit
from gpi.core import normaliser, objectives, rules, solvers
from gpi.core.advantage import standardise, vtrace
from gpi.core.categorical import CategoricalTheta
from gpi.core.critic import MlpCritic
from gpi.core.gaussian import GaussianTheta
from gpi.core.network import Layer, Net
from gpi.core.policy import Theta
from gpi.core.sample import Rollout, Sample, mean, weights

FOLDER = Path(os.environ.get("GPI_FIXTURES", Path(__file__).parent / "fixtures"))
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))
# Tests of one case share a worker, and with it compiled programs.
GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CASES]


class Case(NamedTuple):
    z: dict[str, np.ndarray]
    settings: dict[str, Any]
    theta: Theta
    phi: MlpCritic
    sample: Sample  # advantages standardised over the whole batch


def net(z: dict[str, np.ndarray], prefix: str) -> Net:
    count = sum(name.startswith(f"{prefix}/layer") and name.endswith("/kernel") for name in z)
    return tuple(
        Layer(jnp.asarray(z[f"{prefix}/layer{i}/kernel"]), jnp.asarray(z[f"{prefix}/layer{i}/bias"]))
        for i in range(count)
    )


def policy(z: dict[str, np.ndarray], prefix: str) -> Theta:
    log_std = z.get(f"{prefix}/log_std")
    layers = net(z, prefix)
    return CategoricalTheta(layers) if log_std is None else GaussianTheta(layers, jnp.asarray(log_std))


def trace(z: dict[str, np.ndarray]) -> Rollout:
    last = np.append(z["trajectory"][1:] != z["trajectory"][:-1], True)
    valid = np.ones_like(last)
    arrays = (z["observations"], z["actions"], z["rewards"], z["next_observations"], z["terminated"], last, valid)
    return Rollout(*(jnp.asarray(x)[:, None] for x in arrays))


@fast_jit
def prepared(theta: Theta, raw: Sample) -> Sample:
    """Return the samples with their ratios to theta, and standardised advantages."""
    rho = objectives.ratio_to(log_pi_of(theta, raw), raw.logp_i)
    return raw._replace(rho=rho, adv=standardise(raw.adv, rho, raw.weight))


@pytest.fixture(scope="module", params=GROUPED)
def case(request: pytest.FixtureRequest) -> Case:
    with np.load(FOLDER / f"{request.param}.npz") as archive:
        z = dict(archive)
    settings = json.loads((FOLDER / f"{request.param}.json").read_text())
    obs, action = jnp.asarray(z["observations"]), jnp.asarray(z["actions"])
    logp_i = jnp.asarray(z["behaviour_log_prob"])
    theta, phi = policy(z, "policy"), MlpCritic(net(z, "value"))
    raw = Sample(
        obs, action, logp_i, logp_i, jnp.asarray(z["vtrace_advantages"]), jnp.asarray(z["vtrace_returns"]),
        jnp.asarray(z["sample_weights"]),
    )  # fmt: skip
    return Case(z, settings, theta, phi, prepared(theta, raw))


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


def close(ours: Any, theirs: Any, rtol: float = 1e-5) -> None:
    """Check equality within rtol of the largest entry, the rounding of float32 sums on either side."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=rtol, atol=rtol * float(np.abs(theirs).max()))


def same_direction(ours: np.ndarray, theirs: np.ndarray) -> None:
    cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert cosine >= 0.99


def test_there_are_cases():
    assert CASES, f"no fixtures in {FOLDER}"


@fast_jit
def read(theta: Theta, phi: MlpCritic, s: Sample) -> tuple[jax.Array, ...]:
    pi_k = theta.distribution(s.obs)
    return pi_k.log_prob(s.action), pi_k.entropy(), phi.value(s.obs)


def test_log_probabilities_entropy_and_values(case: Case):
    ours = read(case.theta, case.phi, case.sample)
    for numbers, name in zip(ours, ("current_log_prob", "entropy", "values"), strict=True):
        close(numbers, case.z[name])


@fast_jit
def advantages(phi: MlpCritic, rollout: Rollout, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    v, v_next = (phi.value(x[:, 0])[:, None] for x in (rollout.obs, rollout.next_obs))
    return vtrace(rollout, v, v_next, *rest)


@pytest.mark.parametrize("kind", ["vtrace", "gae"])
def test_advantages_and_targets(case: Case, kind: str):
    rho = case.sample.rho if kind == "vtrace" else jnp.ones_like(case.sample.rho)
    gamma, lam = jnp.float32(case.settings["gamma"]), jnp.float32(case.settings["lam"])
    adv, target = advantages(case.phi, trace(case.z), rho[:, None], gamma, lam)
    close(adv[:, 0], case.z[f"{kind}_advantages"])
    close(target[:, 0], case.z[f"{kind}_returns"])


def test_weights_of_the_mixture(case: Case):
    """Samples laid out slot by slot get the reference's weights: nu[age] * M."""
    age, nu = case.z["age"], case.z["nu"]
    rows = np.bincount(age)
    valid = np.zeros((len(nu), rows.max(), 1), bool)
    for i, count in enumerate(rows):
        valid[i, :count] = True
    ours = np.asarray(fast_jit(weights)(jnp.asarray(nu, jnp.float32), jnp.int32(len(nu)), jnp.asarray(valid)))
    ours = ours / ours[valid].mean()
    for i in range(len(nu)):
        close(ours[i, : rows[i], 0], case.z["sample_weights"][age == i])


@fast_jit
@jax.value_and_grad
def ppo_loss(theta: Theta, s: Sample, eps: jax.Array) -> jax.Array:
    return -objectives.clipped_surrogate(log_pi_of(theta, s), s, eps)


@pytest.mark.parametrize("where", ["pi_k", "moved"])
def test_ppo_loss_and_gradient(case: Case, where: str):
    theta = case.theta if where == "pi_k" else policy(case.z, "ppo/policy_moved")
    ours, gradient = ppo_loss(theta, case.sample, jnp.float32(case.settings["eps_gpi"]))
    np.testing.assert_allclose(ours, case.z[f"ppo/loss_at_{where}"], atol=2e-6, rtol=1e-5)
    close(flat(gradient), case.z[f"ppo/grad_at_{where}"], 1e-4)


class Distances(NamedTuple):
    tv: jax.Array
    penalty: jax.Array
    forward: jax.Array
    reverse: jax.Array


@fast_jit
def distances(theta_k: Theta, theta: Theta, s: Sample) -> Distances:
    pi_k, pi = theta_k.distribution(s.obs), theta.distribution(s.obs)
    logp = pi.log_prob(s.action)
    divergences = mean(pi_k.kl(pi), s.weight), mean(pi.kl(pi_k), s.weight)
    return Distances(objectives.one_step_tv(logp, s), objectives.penalty(logp, s), *divergences)


def test_distances_at_the_moved_policy(case: Case):
    ours = distances(case.theta, policy(case.z, "ppo/policy_moved"), case.sample)
    close(ours.tv, case.z["ppo/tv_at_moved"])
    close(ours.penalty, case.z["ppo/penalty_at_moved"])
    close(ours.forward, case.z["kl_forward_at_moved"], 1e-4)
    close(ours.reverse, case.z["kl_reverse_at_moved"], 1e-4)


def test_value_loss_and_gradient(case: Case):
    loss, gradient = fast_jit(jax.value_and_grad(rules.value_loss))(case.phi, case.sample)
    close(loss, case.z["value/loss"])
    close(flat(gradient), case.z["value/grad"], 1e-4)


def spread(theta_k: Theta, s: Sample):
    pi_k = theta_k.distribution(s.obs)
    return lambda pi: mean(pi_k.kl(pi), s.weight)


def objective(rule: str, s: Sample, delta: jax.Array):
    if rule == "trpo":
        return lambda theta: objectives.surrogate(log_pi_of(theta, s), s)
    w, _ = target_of(s, delta)
    return lambda theta: objectives.likelihood(log_pi_of(theta, s), s, w)


def target_of(s: Sample, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
    base = s.weight * s.rho
    return objectives.target_weights(s.adv, base / base.sum(), delta)


target = fast_jit(target_of)


def vmpo_delta(case: Case) -> jax.Array:
    return jnp.float32(case.settings["vmpo"]["delta"])


def fisher(theta: Theta, s: Sample):
    x, unravel = ravel_pytree(theta)
    return solvers.damped_fisher(lambda x: unravel(x).distribution(s.obs), spread(theta, s), x)


@fast_jit
def fisher_product(theta: Theta, s: Sample, v: jax.Array) -> jax.Array:
    return fisher(theta, s)(v)


def test_vmpo_target_weights(case: Case):
    w, temperature = target(case.sample, vmpo_delta(case))
    close(w, case.z["vmpo/target_weights"], 1e-3)
    close(temperature, case.settings["vmpo_dual"]["lagrange"], 2e-3)


def test_fisher_vector_product(case: Case):
    ours = fisher_product(case.theta, case.sample, jnp.asarray(case.z["trpo/fvp_in"]))
    close(ours, case.z["trpo/fvp_out"], 1e-4)


@functools.partial(fast_jit, static_argnums=0)
def gradient_of(rule: str, theta: Theta, s: Sample, delta: jax.Array) -> Theta:
    return jax.grad(objective(rule, s, delta))(theta)


@pytest.mark.parametrize(("rule", "rtol"), [("trpo", 1e-4), ("vmpo", 2e-3)])
def test_natural_gradient(case: Case, rule: str, rtol: float):
    close(flat(gradient_of(rule, case.theta, case.sample, vmpo_delta(case))), case.z[f"{rule}/grad"], rtol)


@fast_jit
def direction(theta: Theta, s: Sample, g: jax.Array) -> jax.Array:
    return solvers.conjugate_gradient(fisher(theta, s), g)


def test_trpo_direction(case: Case):
    """Twenty CG steps are not converged: compare the direction and the quadratic model's value."""
    g, theirs = (jnp.asarray(case.z[f"trpo/{name}"]) for name in ("grad", "direction"))

    def model(v: jax.Array) -> float:
        return float(g @ v - 0.5 * v @ fisher_product(case.theta, case.sample, v))

    ours = direction(case.theta, case.sample, g)
    same_direction(np.asarray(ours), np.asarray(theirs))
    assert model(ours) >= 0.98 * model(theirs)


@functools.partial(fast_jit, static_argnums=0)
def natural_step(rule: str, theta_k: Theta, s: Sample, delta: jax.Array) -> tuple[Theta, jax.Array, jax.Array]:
    """Return the step, its fraction, and its gain."""
    maximise, divergence = objective(rule, s, delta), spread(theta_k, s)

    def pi(theta: Theta) -> Any:
        return theta.distribution(s.obs)

    def accept(theta: Theta) -> jax.Array:
        return (divergence(pi(theta)) <= 1.5 * delta) & (maximise(theta) >= maximise(theta_k))

    direction = solvers.natural_direction(maximise, pi, divergence, theta_k, delta)
    step = solvers.take_step(theta_k, direction, accept)
    return step.theta, step.fraction, maximise(step.theta) - maximise(theta_k)


@pytest.mark.parametrize("rule", ["trpo", "vmpo"])
def test_accepted_step(case: Case, rule: str):
    after = f"{rule}/policy_after"
    settings = case.settings[rule]
    theta, fraction, gain = natural_step(rule, case.theta, case.sample, jnp.float32(settings["delta"]))
    close(fraction, settings["adj"])
    close(gain, settings["improve"], 0.02)
    ours = distances(case.theta, theta, case.sample)
    close(ours.tv, settings["tv"], 0.02)
    close(ours.penalty, settings["penalty"], 0.02)
    if f"{after}/layer0/kernel" in case.z:
        same_direction(flat(theta) - flat(case.theta), flat(policy(case.z, after)) - flat(case.theta))
    if "kl" in settings:
        close(ours.forward, settings["kl"], 0.02)


def test_adaptive_eps(case: Case):
    """Where a case used the adaptive trust region, eq (8) gives its eps from the samples: eps - E|rho - 1|."""
    eps = case.settings["trpo"]["eps"]
    if eps == case.settings["eps_gpi"]:
        return
    close(case.settings["eps"] - 2.0 * distances(case.theta, case.theta, case.sample).penalty, eps)


def test_normaliser(x64: None):
    with np.load(FOLDER / "normaliser.npz") as archive:
        z = dict(archive)
    update_stats, std = fast_jit(normaliser.update_stats), fast_jit(normaliser.std)
    stats, scalar = normaliser.init_stats((3,)), normaliser.init_stats(())
    for i in range(4):
        valid = jnp.ones(len(z[f"batch{i}"]), bool)
        stats = update_stats(stats, jnp.asarray(z[f"batch{i}"]), valid)
        scalar = update_stats(scalar, jnp.asarray(z[f"scalar_batch{i}"]), valid)
        close(stats.mean, z[f"mean{i}"])
        if i > 0:
            close(stats.squares / (stats.count - 1.0), z[f"var{i}"])
            close(std(stats), z[f"std{i}"])
            close(std(scalar), z[f"scalar_std{i}"])
    seen = fast_jit(lambda stats, obs: normaliser.normalise_obs(normaliser.scaling_of(stats), obs))
    close(seen(stats, jnp.asarray(z["query"])), z["query_normalised"])
