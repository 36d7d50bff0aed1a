"""Every equation against the reference numerics, one case per file in the fixtures folder."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from gpi.core import algorithms, normalize, objectives, solvers
from gpi.core.advantage import standardise, vtrace
from gpi.core.policy import Layer, Theta, distribution, entropy, kl, log_prob, value
from gpi.core.sample import Rollout, Sample, mean

FOLDER = Path(os.environ.get("GPI_FIXTURES", Path(__file__).parent / "fixtures"))
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))


class Case(NamedTuple):
    z: dict[str, np.ndarray]
    settings: dict[str, Any]
    theta: Theta
    phi: tuple[Layer, ...]
    sample: Sample  # advantages standardised over the whole batch


def net(z: dict[str, np.ndarray], prefix: str) -> tuple[Layer, ...]:
    count = sum(name.startswith(f"{prefix}/layer") and name.endswith("/kernel") for name in z)
    return tuple(
        Layer(jnp.asarray(z[f"{prefix}/layer{i}/kernel"]), jnp.asarray(z[f"{prefix}/layer{i}/bias"]))
        for i in range(count)
    )


def policy(z: dict[str, np.ndarray], prefix: str) -> Theta:
    log_std = z.get(f"{prefix}/log_std")
    return Theta(net(z, prefix), None if log_std is None else jnp.asarray(log_std))


def trace(z: dict[str, np.ndarray]) -> Rollout:
    last = np.append(z["trajectory"][1:] != z["trajectory"][:-1], True)
    valid = np.ones_like(last)
    arrays = (z["observations"], z["actions"], z["rewards"], z["next_observations"], z["terminated"], last, valid)
    return Rollout(*map(jnp.asarray, arrays))


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    with np.load(FOLDER / f"{request.param}.npz") as archive:
        z = dict(archive)
    settings = json.loads((FOLDER / f"{request.param}.json").read_text())
    obs, action = jnp.asarray(z["observations"]), jnp.asarray(z["actions"])
    logp_i = jnp.asarray(z["behaviour_log_prob"])
    theta, phi = policy(z, "policy"), net(z, "value")
    rho = objectives.ratio_to(log_prob(distribution(theta, obs), action), logp_i)
    raw = Sample(
        obs, action, logp_i, rho, jnp.asarray(z["vtrace_advantages"]), jnp.asarray(z["vtrace_returns"]),
        jnp.asarray(z["sample_weights"]),
    )  # fmt: skip
    return Case(z, settings, theta, phi, raw._replace(adv=standardise(raw.adv, raw.rho, raw.weight)))


def flat(tree: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


def close(ours: Any, theirs: Any, rtol: float = 1e-5) -> None:
    """Equal within rtol of the largest entry: float32 sums of either side carry that much."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=rtol, atol=rtol * float(np.abs(theirs).max()))


def same_direction(ours: np.ndarray, theirs: np.ndarray) -> None:
    cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert cosine >= 0.99


def test_there_are_cases():
    assert CASES, f"no fixtures in {FOLDER}"


def test_log_probabilities_entropy_and_values(case: Case):
    pi_k = distribution(case.theta, case.sample.obs)
    close(log_prob(pi_k, case.sample.action), case.z["current_log_prob"])
    close(entropy(pi_k), case.z["entropy"])
    close(value(case.phi, case.sample.obs), case.z["values"])


@pytest.mark.parametrize("kind", ["vtrace", "gae"])
def test_advantages_and_targets(case: Case, kind: str):
    rollout = trace(case.z)
    rho = case.sample.rho if kind == "vtrace" else jnp.ones_like(case.sample.rho)
    v, v_next = value(case.phi, rollout.obs), value(case.phi, rollout.next_obs)
    gamma, lam = jnp.float32(case.settings["gamma"]), jnp.float32(case.settings["lam"])
    adv, target = vtrace(rollout, v, v_next, rho, gamma, lam)
    close(adv, case.z[f"{kind}_advantages"])
    close(target, case.z[f"{kind}_returns"])


def test_weights_of_the_mixture(case: Case):
    """Samples laid out slot by slot get the reference's weights: nu[age] * M."""
    age, nu = case.z["age"], case.z["nu"]
    rows = np.bincount(age)
    valid = np.zeros((len(nu), rows.max(), 1), bool)
    for i, count in enumerate(rows):
        valid[i, :count] = True
    from gpi.core.sample import weights

    ours = np.asarray(weights(jnp.asarray(nu, jnp.float32), jnp.int32(len(nu)), jnp.asarray(valid)))
    ours = ours / ours[valid].mean()
    for i in range(len(nu)):
        close(ours[i, : rows[i], 0], case.z["sample_weights"][age == i])


@pytest.mark.parametrize("where", ["pi_k", "moved"])
def test_ppo_loss_and_gradient(case: Case, where: str):
    theta = case.theta if where == "pi_k" else policy(case.z, "ppo/policy_moved")
    eps = jnp.float32(case.settings["eps_gpi"])

    def loss(theta: Theta) -> jax.Array:
        return -objectives.clipped_surrogate(algorithms.log_pi(theta, case.sample), case.sample, eps)

    ours, gradient = jax.value_and_grad(loss)(theta)
    np.testing.assert_allclose(ours, case.z[f"ppo/loss_at_{where}"], atol=2e-6, rtol=1e-5)
    close(flat(gradient), case.z[f"ppo/grad_at_{where}"], 1e-4)


def test_distances_at_the_moved_policy(case: Case):
    moved = policy(case.z, "ppo/policy_moved")
    pi_k, pi = distribution(case.theta, case.sample.obs), distribution(moved, case.sample.obs)
    logp = log_prob(pi, case.sample.action)
    close(objectives.one_step_tv(logp, case.sample), case.z["ppo/tv_at_moved"])
    close(objectives.penalty(logp, case.sample), case.z["ppo/penalty_at_moved"])
    close(mean(kl(pi_k, pi), case.sample.weight), case.z["kl_forward_at_moved"], 1e-4)
    close(mean(kl(pi, pi_k), case.sample.weight), case.z["kl_reverse_at_moved"], 1e-4)


def test_value_loss_and_gradient(case: Case):
    loss, gradient = jax.value_and_grad(algorithms.value_loss)(case.phi, case.sample)
    close(loss, case.z["value/loss"])
    close(flat(gradient), case.z["value/grad"], 1e-4)


def spread(case: Case):
    pi_k = distribution(case.theta, case.sample.obs)
    return lambda pi: mean(kl(pi_k, pi), case.sample.weight)


def divergence(case: Case, theta: Theta) -> jax.Array:
    return spread(case)(distribution(theta, case.sample.obs))


def objective(case: Case, rule: str):
    if rule == "trpo":
        return lambda theta: objectives.surrogate(algorithms.log_pi(theta, case.sample), case.sample)
    w, _ = target(case)
    return lambda theta: objectives.likelihood(algorithms.log_pi(theta, case.sample), case.sample, w)


def target(case: Case) -> tuple[jax.Array, jax.Array]:
    base = case.sample.weight * case.sample.rho
    return objectives.target_weights(case.sample.adv, base / base.sum(), jnp.float32(case.settings["vmpo"]["delta"]))


def fisher(case: Case):
    x, unravel = ravel_pytree(case.theta)
    return jax.jit(solvers.damped_fisher(lambda x: distribution(unravel(x), case.sample.obs), spread(case), x))


def test_vmpo_target_weights(case: Case):
    w, temperature = target(case)
    close(w, case.z["vmpo/target_weights"], 1e-3)
    close(temperature, case.settings["vmpo_dual"]["lagrange"], 2e-3)


def test_fisher_vector_product(case: Case):
    close(fisher(case)(jnp.asarray(case.z["trpo/fvp_in"])), case.z["trpo/fvp_out"], 1e-4)


@pytest.mark.parametrize(("rule", "rtol"), [("trpo", 1e-4), ("vmpo", 2e-3)])
def test_natural_gradient(case: Case, rule: str, rtol: float):
    close(flat(jax.grad(objective(case, rule))(case.theta)), case.z[f"{rule}/grad"], rtol)


def test_trpo_direction(case: Case):
    """Twenty CG steps are not converged: compare the direction and the quadratic model's value."""
    F, g = fisher(case), jnp.asarray(case.z["trpo/grad"])

    def model(v: jax.Array) -> float:
        return float(g @ v - 0.5 * v @ F(v))

    ours, theirs = solvers.conjugate_gradient(F, g), jnp.asarray(case.z["trpo/direction"])
    same_direction(np.asarray(ours), np.asarray(theirs))
    assert model(ours) >= 0.98 * model(theirs)


@pytest.mark.parametrize("rule", ["trpo", "vmpo"])
def test_accepted_step(case: Case, rule: str):
    after = f"{rule}/policy_after"
    settings = case.settings[rule]
    delta = jnp.float32(settings["delta"])
    maximise = objective(case, rule)

    def accept(theta: Theta) -> jax.Array:
        return (divergence(case, theta) <= 1.5 * delta) & (maximise(theta) >= maximise(case.theta))

    @jax.jit
    def step(theta: Theta) -> tuple[Theta, jax.Array]:
        def pi(theta: Theta) -> Any:
            return distribution(theta, case.sample.obs)

        return solvers.natural_step(maximise, pi, spread(case), theta, delta, accept)

    theta, fraction = step(case.theta)
    close(fraction, settings["adj"])
    logp = algorithms.log_pi(theta, case.sample)
    close(maximise(theta) - maximise(case.theta), settings["improve"], 0.02)
    close(objectives.one_step_tv(logp, case.sample), settings["tv"], 0.02)
    close(objectives.penalty(logp, case.sample), settings["penalty"], 0.02)
    if f"{after}/layer0/kernel" in case.z:
        same_direction(flat(theta) - flat(case.theta), flat(policy(case.z, after)) - flat(case.theta))
    if "kl" in settings:
        close(divergence(case, theta), settings["kl"], 0.02)


def test_adaptive_eps(case: Case):
    """Where a case used the adaptive trust region, eq (8) gives its eps from the samples: eps - E|rho - 1|."""
    eps = case.settings["trpo"]["eps"]
    if eps == case.settings["eps_gpi"]:
        return
    s = case.sample
    logp_k = algorithms.log_pi(case.theta, s)
    close(case.settings["eps"] - 2.0 * objectives.penalty(logp_k, s), eps)


def test_normaliser(x64: None):
    with np.load(FOLDER / "normaliser.npz") as archive:
        z = dict(archive)
    stats, scalar = normalize.init_stats((3,)), normalize.init_stats(())
    for i in range(4):
        valid = jnp.ones(len(z[f"batch{i}"]), bool)
        stats = normalize.update_stats(stats, jnp.asarray(z[f"batch{i}"]), valid)
        scalar = normalize.update_stats(scalar, jnp.asarray(z[f"scalar_batch{i}"]), valid)
        close(stats.mean, z[f"mean{i}"])
        if i > 0:
            close(stats.squares / (stats.count - 1.0), z[f"var{i}"])
            close(normalize.std(stats), z[f"std{i}"])
            close(normalize.std(scalar), z[f"scalar_std{i}"])
    close(normalize.normalise_obs(normalize.lens(stats), jnp.asarray(z["query"])), z["query_normalised"])
