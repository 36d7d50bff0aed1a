"""A normaliser whose update moves no policy: functions of raw observations stay, and what Adam knows goes with them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpi
from agents import A, O, draw_rollout, flat, hyper, new_agent, rollout_of
from compiling import fast_jit
from gpi.config import Config, as_first_saved, config_of, decided, unpromised
from gpi.core import faults, iteration, still
from gpi.core.agent import Agent, Static
from gpi.core.categorical import CategoricalTheta
from gpi.core.critic import Critic
from gpi.core.gaussian import GaussianTheta
from gpi.core.iteration import Learned, State
from gpi.core.normaliser import (
    CLIP,
    Normaliser,
    Stats,
    init_normaliser,
    normalise_obs,
    scaling_of,
    with_all_in_force,
)
from gpi.core.policy import Theta
from gpi.core.sample import init_buffer
from gpi.core.solvers import Adam
from gpi.errors import UsageError
from gpi.rundir.run import read_rows
from gpi.training.learner import static_of

Array = jax.Array
CENTRES = np.array([[3.0, -0.2, 100.0], [3.4, -0.1, 96.0]])
SCALES = np.array([[2.0, 0.05, 10.0], [1.6, 0.06, 11.0]])
COUNT = 1000.0
pytestmark = pytest.mark.usefixtures("x64")


def statistics(centre: Any, scale: Any) -> Stats:
    """Return the statistics of 1,000 samples with this mean and standard deviation."""
    mean, squares = (jnp.asarray(x, jnp.float64) for x in (centre, np.square(scale) * (COUNT - 1.0)))
    return Stats(jnp.float64(COUNT), mean, squares)


def normaliser_of(which: int, returns: float = 2.0) -> Normaliser:
    return with_all_in_force(statistics(CENTRES[which], SCALES[which]), statistics(0.0, returns))


OLD, NEW = 0, 1


def normalisers() -> tuple[Normaliser, Normaliser]:
    return normaliser_of(OLD, 2.0), normaliser_of(NEW, 2.6)


def raw_obs(rows: int = 64) -> Array:
    """Return raw observations, none of which is clipped."""
    return jnp.asarray(CENTRES[0] + SCALES[0] * np.random.default_rng(1).standard_normal((rows, O)), jnp.float32)


def agent_of(kind: type[Theta]) -> Agent:
    theta = kind.init(np.random.default_rng(0), O, A, (8,))
    first, second = (jax.tree.map(lambda x, s=s: 0.01 * jnp.cos(s + x), theta) for s in (0.0, 1.0))
    policy = Adam(theta, first, jax.tree.map(jnp.square, second), jnp.float32(7))
    return new_agent(0)._replace(policy=policy)


carry_over = fast_jit(still.carry_over)


@pytest.mark.parametrize("kind", [GaussianTheta, CategoricalTheta])
def test_policy_and_value_are_the_same_functions_of_raw_observations(kind: type[Theta]):
    def functions(agent: Agent, normaliser: Normaliser, obs: Array) -> tuple[Any, Array]:
        seen = normalise_obs(scaling_of(normaliser.obs), obs)
        value = scaling_of(normaliser.returns).scale * agent.value.value(seen)
        return agent.policy.params.distribution(seen), value

    read, agent, (old, new) = fast_jit(functions), agent_of(kind), normalisers()
    moved, obs = carry_over(agent, old, new), raw_obs()
    before, after = flat(read(agent, old, obs)), flat(read(moved, new, obs))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=2e-6)
    left = flat(read(agent, new, obs))
    assert np.abs(left - before).max() > 0.01, "the statistics alone would have moved them"
    assert moved.policy.count == agent.policy.count


def policy_objective(normaliser: Normaliser, theta: Theta, obs: Array, action: Array) -> Array:
    seen = normalise_obs(scaling_of(normaliser.obs), obs)
    return jnp.mean(theta.distribution(seen).log_prob(action) * jnp.sin(obs[:, 0]))


def value_objective(normaliser: Normaliser, phi: Critic, obs: Array, target: Array) -> Array:
    """Return the value's loss on targets in raw units of reward."""
    seen = normalise_obs(scaling_of(normaliser.obs), obs)
    return 0.5 * jnp.mean((target / scaling_of(normaliser.returns).scale - phi.value(seen)) ** 2)


@pytest.mark.parametrize("part", ["policy", "value"])
def test_the_first_moment_is_the_gradient_in_the_new_units(part: str):
    objective: Callable[..., Array] = policy_objective if part == "policy" else value_objective
    data = jnp.ones((64, A), jnp.float32) if part == "policy" else jnp.linspace(-3.0, 3.0, 64, dtype=jnp.float32)
    gradient = fast_jit(jax.grad(objective, argnums=1))
    (old, new), obs, agent = normalisers(), raw_obs(), new_agent(0)

    def filled(agent: Agent, normaliser: Normaliser) -> Agent:
        adam: Any = getattr(agent, part)
        g = gradient(normaliser, adam.params, obs, data)
        return agent._replace(**{part: adam._replace(first=g, second=jax.tree.map(jnp.square, g))})

    agent = filled(agent, old)
    moved = carry_over(agent, old, new)
    expected = getattr(filled(moved, new), part)
    np.testing.assert_allclose(flat(getattr(moved, part).first), flat(expected.first), rtol=2e-3, atol=1e-6)
    same_centre = with_all_in_force(new.obs._replace(mean=old.obs.mean), new.returns)
    moved = carry_over(agent, old, same_centre)
    second = flat(getattr(filled(moved, same_centre), part).second)
    np.testing.assert_allclose(flat(getattr(moved, part).second), second, rtol=2e-3, atol=1e-9)


def test_statistics_that_stay_leave_every_bit():
    agent, (old, _) = agent_of(GaussianTheta), normalisers()
    for before, after in zip(jax.tree.leaves(agent), jax.tree.leaves(carry_over(agent, old, old)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_what_begins_to_vary_far_outside_the_clip_leaves_weights_that_can_be_unlearned():
    """An observation that never varied, and rewards that never came, have scale 1 until they do."""
    agent, unvaried = agent_of(GaussianTheta), with_all_in_force(statistics([0.0] * O, [0.0] * O), statistics(0.0, 0.0))
    for centre, scale, returns in ((1e20, 1e20, 1e-5), (-1e4, 1e3, 1e-3), (1e-5, 2e-6, 1e9)):
        moved = carry_over(
            agent, unvaried, with_all_in_force(statistics([centre] * O, [scale] * O), statistics(0.0, returns))
        )
        for one, other in ((agent.policy, moved.policy), (agent.value, moved.value)):
            kernel, first = one.params.net[0].kernel, other.params.net[0]  # type: ignore[attr-defined]
            assert np.abs(flat(first.kernel)).max() <= 1.001 * CLIP * np.abs(flat(kernel)).max()
            assert np.abs(flat(first.bias)).max() <= 1.001 * CLIP * np.abs(flat(kernel)).sum(), "biases began as 0"
            assert np.isfinite(flat(other)).all()
        last, was = (np.abs(flat(x.value.params.net[-1])).max() for x in (moved, agent))  # type: ignore[attr-defined]
        assert last <= 1.001 * CLIP * was


def course(steps: int) -> Normaliser:
    """Return statistics of a run: batch k shifts and rescales them by about 1/k, as running ones do."""
    rng, counts = np.random.default_rng(3), 2048.0 + 1024.0 * np.arange(1, steps + 1)
    noise = rng.standard_normal((2, steps, O)) * (1024.0 / counts)[:, None]
    mean = CENTRES[0] + SCALES[0] * np.cumsum(noise[0], axis=0)
    std = SCALES[0] * np.exp(np.cumsum(noise[1], axis=0))
    returns = 2.0 * np.exp(np.cumsum(noise[1, :, 0]))
    squares, totals = (x**2 * (counts - 1.0).reshape(-1, *[1] * (x.ndim - 1)) for x in (std, returns))
    stats = Stats(counts, mean, squares), Stats(counts, 0.0 * counts, totals)  # type: ignore[arg-type]
    return jax.vmap(with_all_in_force)(*jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), stats))


def test_5000_updates_of_the_statistics_leave_the_policy_within_rounding():
    obs, agent = raw_obs(), agent_of(GaussianTheta)

    def mean_action(agent: Agent, normaliser: Normaliser) -> Array:
        pi: Any = agent.policy.params.distribution(normalise_obs(scaling_of(normaliser.obs), obs))
        return pi.mean

    def run(agent: Agent, normalisers: Normaliser) -> tuple[Array, Array]:
        first = jax.tree.map(lambda x: x[0], normalisers)

        def step(carry: tuple[Agent, Normaliser], new: Normaliser) -> tuple[tuple[Agent, Normaliser], None]:
            return (still.carry_over(*carry, new), new), None

        end, _ = jax.lax.scan(step, (agent, first), normalisers)
        return mean_action(agent, first), mean_action(*end)

    before, after = fast_jit(run)(agent, course(5000))
    assert np.abs(flat(before) - flat(after)).max() < 1e-5  # the standard deviation of actions is 1


def test_a_fault_leaves_the_last_good_state_and_is_named_where_it_began(monkeypatch: pytest.MonkeyPatch):
    agent, static = new_agent(0), Static("ppo", 1, 4, trust="keep", normaliser="still")
    raw, _ = draw_rollout(jax.random.key(0), agent.policy.params)
    state = State(
        Learned(agent, init_buffer(raw, 2), init_normaliser(O)), (), jax.random.key(0), jnp.int32(faults.NONE)
    )
    update = iteration.update

    def spoiled(normaliser: Normaliser, raw: Any, *rest: Array) -> Normaliser:
        """Return statistics that are NaN after a reward of a million."""
        bad = jnp.where(raw.reward[0, 0] > 1e5, jnp.nan, 0.0).astype(jnp.float64)
        return jax.tree.map(lambda x: x + bad.astype(x.dtype), update(normaliser, raw, *rest))

    monkeypatch.setattr(iteration, "update", spoiled)

    @fast_jit
    def learn(state: State, raw: Any) -> State:
        return iteration.learn(state, raw, hyper((0.5, 0.5)), jnp.int32(3), static)[0]

    good = learn(learn(state, raw), raw)
    assert good.fault == faults.NONE
    kept = good.learned.buffer.rollout.obs[0]
    np.testing.assert_array_equal(kept, raw.obs, "the buffer holds what came, not normalised")
    for stage, field, place, bad in (
        ("observation", "obs", (0, 0, 0), np.nan), ("observation", "next_obs", (3, 1, 2), -np.inf),
        ("reward", "reward", (2, 1), np.nan), ("reward", "reward", (2, 1), np.inf),
        ("normaliser", "reward", (0, 0), 1e6),
    ):  # fmt: skip
        after = learn(good, raw._replace(**{field: getattr(raw, field).at[place].set(bad)}))
        assert faults.STAGES[int(after.fault) - 1] == stage
        for kept, was in zip(jax.tree.leaves(after.learned), jax.tree.leaves(good.learned), strict=True):
            np.testing.assert_array_equal(kept, was)


@pytest.mark.parametrize("trust", ["keep", "strict", "paper"])
def test_statistics_go_as_far_as_eq_11_of_the_policies_that_act_allows(trust: Any):
    """An observation that hardly varied begins to: reading it otherwise moves what is clipped, and so the policy."""
    agent, static, nu = new_agent(0), Static("ppo", 1, 4, trust=trust, normaliser="still"), (0.4, 0.3, 0.3)
    first, *between, last = agent.policy.params.net  # type: ignore[attr-defined]
    net = first._replace(kernel=0.1 * first.kernel), *between, last._replace(kernel=300.0 * last.kernel)
    theta = agent.policy.params._replace(net=net)  # type: ignore[attr-defined]  # a mean that depends on what is seen
    agent = agent._replace(policy=agent.policy._replace(params=theta))
    calm = with_all_in_force(statistics([0.0] * O, [0.01, 1.0, 1.0]), statistics(0.0, 1.0))
    learned = Learned(agent, init_buffer(draw_rollout(jax.random.key(0), theta)[0], 3), calm)
    state = State(learned, (), jax.random.key(0), jnp.int32(0))

    @fast_jit
    def learn(state: State, key: jax.Array, batch: jax.Array) -> tuple[State, Any]:
        def see(params: Any, obs: jax.Array) -> jax.Array:
            return params.distribution(normalise_obs(state.learned.normaliser.in_force, obs))

        raw, _ = rollout_of(key, state.learned.agent.policy.params)
        pi: Any = see(state.learned.agent.policy.params, raw.obs.reshape(-1, O))
        noise = jax.random.normal(jax.random.fold_in(key, 1), pi.mean.shape, jnp.float32)
        raw = raw._replace(action=(pi.mean + jnp.exp(pi.log_std)[None] * noise).reshape(raw.action.shape))
        new, _, report = iteration.learn(state, raw, hyper(nu), batch, static)
        return new, report

    reports = []
    for number in range(12):
        before, (state, report) = state, learn(state, jax.random.key(number), jnp.int32(number))
        assert state.fault == faults.NONE and state.learned.buffer.policies == min(number + 1, 3)
        reports.append(report)
        seen, read = scaling_of(state.learned.normaliser.obs), state.learned.normaliser.in_force
        behind = np.abs(flat(seen) - flat(read)).max()
        assert (report.normaliser_lag > 0) == (behind > 0)
        if report.normaliser_lag > 0:  # on the way between what was in force and what was seen
            start = flat(before.learned.normaliser.in_force)
            way = (flat(read) - start) / (flat(seen) - start)
            assert np.allclose(way, way[0], atol=1e-3) and way[0] in (
                0.0,
                *(pytest.approx(0.5**i, abs=1e-3) for i in range(7)),
            )
        new, buffer = state.learned.agent, state.learned.buffer
        seen_now = normalise_obs(read, buffer.rollout.obs.reshape(-1, O))
        logp = new.policy.params.distribution(seen_now).log_prob(buffer.rollout.action.reshape(-1, A))
        ratio = jnp.exp(logp - buffer.logp_i.reshape(-1))
        lost = np.asarray(jnp.maximum(1.0 - ratio, 0.0)).reshape(3, -1).mean(axis=1)
        weights = np.array(nu) * (np.arange(3) <= number)
        assert float(report.penalty_acted) == pytest.approx(weights @ lost / weights.sum(), abs=1e-5)
    acted, lags = (
        np.array([getattr(report, name) for report in reports]) for name in ("penalty_acted", "normaliser_lag")
    )
    if trust == "paper":
        assert acted.max() > 0.1 and not lags.any(), "nothing checks eq (11): all is in force at once"
    else:
        assert 0 < acted.max() <= 0.1 and lags.max() > 0.1 and lags[-1] < lags.max(), "it lags, and catches up"


def test_the_setting_decides_and_auto_is_still_only_where_the_mode_says_so():
    name_of = {
        (trust, normaliser): static_of(Config("cheetah-run", trust=trust, normaliser=normaliser)).normaliser
        for trust in ("paper", "adaptive", "strict", "keep") for normaliser in ("auto", "paper", "still")
    }  # fmt: skip
    assert {pair for pair, name in name_of.items() if name == "still"} == {
        ("keep", "auto"), *((trust, "still") for trust in ("paper", "adaptive", "strict", "keep"))
    }  # fmt: skip
    strict = Config("cheetah-run", trust="strict")
    assert decided(strict).normaliser == "still" and static_of(decided(strict)).normaliser == "still", "in a new run"
    assert "not promised" in unpromised(replace(strict, normaliser="paper"))[0] and not unpromised(decided(strict))
    assert config_of({"task": "cheetah-run"}).normaliser == "auto", "as in files of earlier versions"
    assert "normaliser" not in as_first_saved(Config("cheetah-run")), "so that their hashes stay valid"
    assert config_of(as_first_saved(Config("cheetah-run", normaliser="still"))).normaliser == "still"
    with pytest.raises(UsageError, match="normaliser = calm must be one of auto, paper, still; use auto"):
        gpi.train("ppo", "cheetah-run", normaliser="calm")


TINY: dict[str, Any] = {"seeds": 2, "n": 1000, "hidden": (8,), "epochs": 1, "minibatches": 4, "checkpoint_every": 3,
                        "lr": 0.03}  # fmt: skip
FILES = ("metrics.csv", "audit.csv", "episodes.csv", "policy-0.safetensors", "policy-1.safetensors")


def moved_by_normaliser(run: gpi.Run) -> np.ndarray:
    return np.array([float(row["normaliser_tv"]) for row in read_rows(run.dir / "audit.csv")])


def trained(algorithm: str, out: Path, trust: str, steps: int) -> gpi.Run:
    return gpi.train(algorithm, "cartpole-balance", out=out, trust=trust, steps=steps, quiet=True, **TINY)


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("getrpo", "gevmpo")]


@pytest.mark.parametrize(("algorithm", "trust"), [("getrpo", "keep"), ("gevmpo", "strict")])  # geppo: below
def test_training_moves_the_policy_by_the_update_alone(algorithm: str, trust: str, tmp_path: Path):
    run = trained(algorithm, tmp_path / "run", trust, 3000)
    moved, rows = moved_by_normaliser(run), read_rows(run.dir / "audit.csv")
    assert len(moved) >= 6 and moved.max() < 1e-4
    assert all(0 < float(row["penalty_acted"]) <= float(row["penalty_bound"]) for row in rows)
    for row in rows:  # nothing lags, so the policies that act are those of the update
        assert float(row["normaliser_lag"]) == 0
        assert float(row["penalty_acted"]) == pytest.approx(float(row["penalty_lost"]), abs=1e-4)
    audit = gpi.audit(run)
    assert audit.estimate == "acted" and audit.demanded and "is tested for it" in audit.verdict()


@pytest.mark.parametrize("algorithm", ["geppo", *OTHERS])
def test_the_papers_normaliser_moves_the_policy(algorithm: str, tmp_path: Path):
    run = trained(algorithm, tmp_path / "run", "paper", 3000)
    assert moved_by_normaliser(run).max() > 1e-3
    apart = [float(row["penalty_acted"]) - float(row["penalty_lost"]) for row in read_rows(run.dir / "audit.csv")]
    assert max(map(abs, apart)) > 1e-3, "which the ratios of the update do not see"
    assert not gpi.audit(run).demanded and "nothing demands it" in gpi.audit(run).verdict()


@pytest.mark.parametrize("algorithm", ["geppo", *OTHERS])
def test_a_run_that_keeps_its_policy_still_resumes_to_the_last_bit(algorithm: str, tmp_path: Path):
    whole, part = (trained(algorithm, tmp_path / str(steps), "keep", steps) for steps in (6000, 3000))
    assert len(moved_by_normaliser(whole)) >= 12 and moved_by_normaliser(whole).max() < 1e-4
    gpi.resume(part, steps=6000, quiet=True)
    for name in FILES:
        assert (whole.dir / name).read_bytes() == (part.dir / name).read_bytes(), name
