"""Populations on the real tasks: one compile, float32, the same bits twice, true counts, clean ends."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest

import gpi
from gpi.config import FIRST, Config
from gpi.core import iteration, rules
from gpi.core.agent import Hyper
from gpi.core.critic import CRITICS
from gpi.core.gaussian import GaussianTheta
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.envs.episodes import EpisodeCounter
from gpi.rundir.tables import METRICS
from gpi.training import learner
from gpi.training.collect import batch_shape
from gpi.training.job import resolve
from trainers import collecting, trainer_of, uncompiled

SOURCE = Path(gpi.__file__).parent
TASK = "cartpole-balance"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gpi_process(*arguments: str, **settings) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-m", "gpi.cli", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    )


@pytest.mark.parametrize("algorithm", ["geppo", "getrpo", "gevmpo"])
def test_no_float64_reaches_the_update(algorithm: str, x64: None):
    job = resolve(Config(task=TASK, algorithm=algorithm, seeds=1))
    spec, config = dmc.find_spec(TASK), job.config
    shape = batch_shape(1, 1, 1024, spec.horizon, reset_each_batch=True)
    rng, key = learner.origin(config, 0)
    theta = GaussianTheta.init(rng, spec.observation_size, spec.action_size, config.hidden)
    critic = CRITICS["mlp"](rng, spec.observation_size, spec.action_size, config.hidden)
    state = learner.init_state(theta, critic, key, job, spec, shape)

    def update(state: iteration.State, hyper: Hyper, key: jax.Array):
        values = iteration.read_values(state.learned.agent.value, state.learned.buffer)
        sample = iteration.estimate(state.learned.agent.policy.params, values, state.learned.buffer, hyper)
        return rules.improve(state.learned.agent, sample, key, hyper, learner.static_of(config))

    jaxpr = jax.make_jaxpr(update)(state, learner.hyper_of(job), jax.random.key(0))
    kinds = {str(getattr(v.aval, "dtype", "")) for eqn in equations(jaxpr.jaxpr) for v in eqn.outvars}
    assert "float32" in kinds and "float64" not in kinds


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def test_same_seed_gives_the_same_bits_twice_and_other_seeds_others(tmp_path: Path):
    settings: dict[str, Any] = {"seeds": 2, "steps": 4096, "quiet": True}
    a = gpi.train("geppo", TASK, out=tmp_path / "a", **settings)
    b = gpi.train("geppo", TASK, out=tmp_path / "b", **settings)
    for name in ("metrics.csv", "episodes.csv", "policy-0.safetensors", "policy-1.safetensors"):
        assert (a.dir / name).read_bytes() == (b.dir / name).read_bytes(), name
    weights = [a.policy(seed).layers[0][0] for seed in (0, 1)]
    assert not np.array_equal(weights[0], weights[1])


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> gpi.Run:
    """Train a short run of three seeds on two devices, from seed 7."""
    return gpi.train("gevmpo", TASK, seeds=3, seed=7, steps=5000, out=tmp_path_factory.mktemp("r") / "run", quiet=True)


def test_run_directory(trained_run: gpi.Run):
    names = {path.name for path in trained_run.dir.iterdir()}
    policies = {f"policy-{seed}.safetensors" for seed in (7, 8, 9)}
    assert names == policies | {
        "config.json", "metrics.csv", "audit.csv", "episodes.csv", "timing.csv", "learning_curve.png", "DONE",
        "run.lock", "ckpt-000000005",
    }  # fmt: skip
    config = json.loads((trained_run.dir / "config.json").read_text())
    assert Config(**{**config["config"], "hidden": tuple(config["config"]["hidden"])}).task == TASK
    assert {"jax", "envpool", "numpy", "python", "gpi-rl"} <= set(config["versions"])
    assert len(config["env_seeds"]) == 3 and config["plan"]["M"] == 4
    assert (trained_run.dir / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    done = json.loads((trained_run.dir / "DONE").read_text())
    assert done["complete"] and done["steps"] == [5120] * 3 and done["iterations"] == 5
    assert done["final_steps"] == 1024 and done["returns"] == {str(s): x for s, x in trained_run.returns.items()}


def test_metrics_have_every_seed_and_true_steps(trained_run: gpi.Run):
    table = rows(trained_run.dir / "metrics.csv")
    required = "seed,iteration,steps,episode_return,tv_abs,penalty_abs,kl,eps_gpi,lr,entropy,value_loss,ess".split(",")  # noqa: SIM905
    assert list(table[0])[: len(required)] == required and tuple(table[0]) == METRICS
    assert [(int(r["seed"]), int(r["iteration"]), int(r["steps"])) for r in table] == [
        (seed, i, 1024 * i) for i in range(1, 6) for seed in (7, 8, 9)
    ]
    assert all(float(r["eps_gpi"]) == pytest.approx(0.1) for r in table)
    first = [r for r in table if r["iteration"] == "1"]
    assert all(float(r["ess"]) == pytest.approx(1024) for r in first), "one policy so far"
    assert float(table[-1]["ess"]) == pytest.approx(3413.33, abs=0.01)
    assert all(float(r["tv_abs"]) == pytest.approx(float(r["penalty_abs"])) for r in first)


def test_episodes_are_whole_and_at_their_true_steps(trained_run: gpi.Run):
    table = rows(trained_run.dir / "episodes.csv")
    assert list(table[0]) == ["seed", "steps", "return", "length"]
    seven = [r for r in table if r["seed"] == "7"]
    assert [int(r["steps"]) for r in seven] == [1024 * k + 1000 for k in range(5)]
    assert all(r["length"] == "1000" and 0 < float(r["return"]) <= 1000 for r in table)


def test_policy_acts_as_it_was_trained(trained_run: gpi.Run, x64: None):
    policy = trained_run.policy(8)
    assert policy.about["seed"] == "8"
    obs = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    action = policy(obs)
    assert action.shape == (4, 1) and np.abs(action).max() <= 1
    np.testing.assert_allclose(gpi.load(trained_run.dir, 8)(obs[0]), action[0], rtol=1e-5)
    with pytest.raises(ValueError, match="NaN"):
        policy(np.full(5, np.nan))
    with pytest.raises(gpi.UsageError, match="seed 3"):
        trained_run.policy(3)


def test_members_do_not_depend_on_their_neighbours(x64: None):
    """Alone or in a population, a seed collects the same samples and makes (up to rounding) the same update."""
    results = []
    for seeds in (1, 3):
        trainer = trainer_of(Config(task=TASK, algorithm="getrpo", seeds=seeds, hidden=(8,), epochs=1))
        trainer.warm_up()
        it = next(iter(trainer.iterations(1024)))
        results.append((it.raw.obs[0], it.metrics.kl[0], it.metrics.value_loss[0]))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results[0][1:], results[1][1:], rtol=1e-2)


@pytest.mark.parametrize("T", [1, 999, 1000, 1001, 1024, 2000, 2001, 2048])
def test_exactly_n_transitions_where_each_batch_starts_with_a_reset(T: int):
    shape = batch_shape(1, 1, T, 1000, reset_each_batch=True)
    assert len(shape.drop) == (T - 1) // 1000
    assert all((row + 1) % 1001 == 0 for row in shape.drop)


def test_batches_without_reset_carry_episodes_over_and_mask_the_reset_rows(x64: None):
    config = Config(task=TASK, seeds=2, n=300, num_envs=1, reset_each_batch=False, hidden=(8,), epochs=1, minibatches=4)
    trainer = trainer_of(config)
    trainer.warm_up()
    counter = EpisodeCounter(2, 1)
    ended, invalid = [], 0
    for it in islice(trainer.iterations(10**6), 6):
        ended += counter.add_batch(it.raw, np.zeros(2, bool))[0]
        invalid += int((~it.raw.valid).sum())
    # 600 steps of warm-up, 400 to the first end, a reset that is not a transition, 1,000 to the second end.
    assert [(steps, length) for steps, _, length, _ in ended] == [(100, 400), (201, 1000)]
    assert invalid == 2 * 2


def test_reward_and_next_observation_belong_together(x64: None):
    """The row after an episode's end starts from a first observation, and its trace is cut."""
    job = resolve(Config(task="cartpole-swingup", algorithm="ppo", seeds=1, hidden=(8,), epochs=1))
    raw = jax.tree.map(lambda x: np.asarray(x)[0, :, 0], collecting(uncompiled(job)).collect())
    assert raw.valid.all() and len(raw.reward) == 2048 and np.isfinite(raw.reward).all()
    assert list(np.flatnonzero(raw.done)) == [999, 1999] and not raw.terminated.any()
    inside = np.setdiff1d(np.arange(2047), [999, 1999])
    np.testing.assert_array_equal(raw.next_obs[inside], raw.obs[inside + 1])
    assert (raw.next_obs[999] != raw.obs[1000]).any()
    assert np.abs(raw.obs[1000, 3:]).max() < 0.1, "a first observation of swing-up hangs still"


def test_ctrl_c_ends_cleanly_with_everything_written(tmp_path: Path):
    out = tmp_path / "run"
    process = gpi_process("train", TASK, "--seeds", "2", "--steps", "100000000", "--out", str(out))
    metrics = out / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 5):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "", errors
    assert f"`gpi resume {out}` continues" in printed and "steps/s" in printed
    done = json.loads((out / "DONE").read_text())
    assert not done["complete"] and done["iterations"] >= 2
    assert len(rows(metrics)) == 2 * done["iterations"] and metrics.read_text().endswith("\n")
    assert gpi.load(out, 1)(np.zeros(5)).shape == (1,)


def test_importing_gpi_starts_nothing_and_changes_nothing():
    code = (
        "import os, sys; before = dict(os.environ); import gpi; "
        "assert not {'jax', 'envpool', 'matplotlib', 'rich'} & set(sys.modules); assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_training_after_jax_has_started(tmp_path: Path):
    """With one device and 32-bit types outside, training runs unsharded, says so, and leaves the types alone."""
    code = f"""
import jax, jax.numpy as jnp
jnp.zeros(1)
import gpi
gpi.train("ppo", {TASK!r}, seeds=2, steps=2048, out={str(tmp_path / "run")!r})
assert jnp.zeros(1).dtype == "float32" and len(jax.devices()) == 1
"""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "1 CPU device" in done.stdout
    if len(os.sched_getaffinity(0)) > 1:
        assert "JAX was started with one" in done.stdout


# --- the shape of the code ----------------------------------------------------------------------------------------


def test_settings_are_few_and_all_explained():
    fields = dataclasses.fields(Config)
    assert sum(field.metadata["group"] in FIRST for field in fields) <= 25
    assert all(field.metadata["help"] for field in fields)


def test_every_algorithm_has_its_own_randomness():
    def start(task: str, algorithm: str, seed: int) -> tuple[int, ...]:
        rng, key = learner.origin(Config(task, algorithm), seed)
        return (*np.asarray(jax.random.key_data(key)).tolist(), int(rng.integers(2**62)))

    names = [(task, algorithm, seed) for task in list(dmc.TASKS)[:4] for algorithm in ALGORITHMS for seed in range(5)]
    assert len({start(*name)[:2] for name in names}) == len({start(*name)[2] for name in names}) == len(names)
    assert start("dmc/" + TASK, "ppo", 0) == start(TASK, "ppo", 0)


STARTED = """
import jax
{used}
from gpi.config import FIRST, Config
from gpi.training import devices

before = devices.jax_has_started()
devices.prepare(Config("cheetah-run", seeds=3))
print(before, len(jax.local_devices()), jax.config.jax_compilation_cache_dir is not None, devices.jax_has_started())
"""


@pytest.mark.parametrize(("used", "found"), [("", "False 3 True True"), ("jax.devices()", "True 1 False True")])
def test_jax_that_was_imported_but_not_used_gives_a_run_its_devices(used: str, found: str):
    environment = {name: x for name, x in os.environ.items() if not name.startswith(("XLA_", "JAX_", "PJRT_"))}
    code = STARTED.format(used=used)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"PJRT_NPROC": "3"}, capture_output=True, text=True
    )
    assert done.stdout.split() == found.split(), done.stderr
