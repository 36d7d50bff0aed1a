"""A distribution, a rule, a mixture plan and a critic are each one class or function, and a line or two in tables."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import extensions
import gpi
from extensions import (
    Laplace,
    LaplacePolicy,
    LaplaceTheta,
    LinearCritic,
    QCritic,
    Squashed,
    SquashedPolicy,
    SquashedTheta,
    add_squashed,
    measured,
    plain_gradient,
    uniform,
)
from gpi.config import Config, without_effect
from gpi.core.critic import CRITICS, regression
from gpi.core.network import Change
from gpi.core.plan import ALGORITHMS, PLANS, RULE_FACTS, Algorithm, RuleFacts
from gpi.core.policy import POLICIES
from gpi.core.rules import RULES, Rule
from gpi.errors import UsageError
from gpi.export import export
from gpi.onnx_export import ADD_ACTIONS
from gpi.rundir import checkpoint
from gpi.rundir.policies import policies_in
from gpi.rundir.run import read_rows
from gpi.standalone import KINDS
from gpi.training.job import resolve
from trainers import collecting, uncompiled

TINY: dict[str, Any] = {"seeds": 2, "n": 64, "hidden": (8,), "epochs": 1, "minibatches": 4, "steps": 256}


def trained(algorithm: str, tmp_path: Path, task: str = "Pendulum-v1", **settings: Any) -> gpi.Run:
    """Return a short run that was finished, resumed, and left policies that act."""
    merged: dict[str, Any] = {"checkpoint_every": 2} | TINY | settings
    run = gpi.train(algorithm, task, out=tmp_path / "run", quiet=True, **merged)
    gpi.resume(run, steps=384, quiet=True)
    done = json.loads((run.dir / "DONE").read_text())
    assert done["complete"] and done["exact"] and min(done["steps"]) >= 384
    obs = np.zeros(run.policy(0).obs_mean.shape)
    assert np.isfinite(run.policy(0)(obs)).all()
    return run


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_a_distribution_from_outside(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(POLICIES, "laplace", LaplaceTheta)
    monkeypatch.setitem(KINDS, "laplace", LaplacePolicy)
    run = trained("getrpo", tmp_path, backend=backend, trust="strict", policy="laplace")
    assert gpi.audit(run).penalty_violations == 0
    assert type(run.policy(0)) is LaplacePolicy


ALONE = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, policy
act, obs = policy.load(sys.argv[1]), np.linspace(-3, 3, 30, dtype=np.float32).reshape(10, 3)
assert not {"jax", "gpi"} & sys.modules.keys()
print(type(act).__name__, act(obs).tobytes().hex(), act.sample(obs, np.random.default_rng(0)).tobytes().hex())
"""


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_a_squashed_policy_from_outside(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(POLICIES, "squashed", SquashedTheta)
    monkeypatch.setitem(KINDS, "squashed", SquashedPolicy)
    monkeypatch.setitem(ADD_ACTIONS, "squashed", add_squashed)
    form = {"activation": "silu", "layer_norm": True}
    run = trained("getrpo", tmp_path, backend=backend, trust="strict", policy="squashed", **form)
    assert gpi.audit(run).penalty_violations == 0
    policy = run.policy(0)
    assert type(policy) is SquashedPolicy and policy.form == {"kind": "squashed", **form}
    assert policy.action_size == 1 and policy.layers[-1][1].size == 2
    saved = policies_in(checkpoint.load(checkpoint.saved(run.dir)[0], None))[0]
    assert saved.form == policy.form and saved.arrays().keys() == policy.arrays().keys()
    export(run.dir, tmp_path / "a.onnx", "onnx")  # compared with the original on 10,000 observations
    export(run.dir, tmp_path / "numpy")
    words = [sys.executable, "-I", "-c", ALONE, str(tmp_path / "numpy")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    obs = np.linspace(-3, 3, 30, dtype=np.float32).reshape(10, 3)
    drawn = policy.sample(obs, np.random.default_rng(0))
    assert done.stdout.split() == ["SquashedPolicy", policy(obs).tobytes().hex(), drawn.tobytes().hex()], done.stderr


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_samples_hold_the_action_before_it_is_squashed(backend: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(POLICIES, "squashed", SquashedTheta)
    monkeypatch.setitem(KINDS, "squashed", SquashedPolicy)
    with jax.enable_x64(True):
        trainer = collecting(uncompiled(resolve(Config("Pendulum-v1", policy="squashed", backend=backend, **TINY)), 1))
        raw = trainer.collector.collect(trainer.learner.acting, 0)
    action, played = np.asarray(raw.action)[:, :, 0], trainer.collector.position.actions  # [P, T, A], [T, P, A]
    assert np.abs(action).max() > 1.5 and np.abs(played).max() < 1.0
    np.testing.assert_allclose(np.moveaxis(played, 1, 0), np.tanh(action), rtol=1e-5)


def test_a_policy_for_other_actions_is_refused_before_anything_is_written(tmp_path: Path):
    for policy, task in (("categorical", "Pendulum-v1"), ("gaussian", "CartPole-v1")):
        with pytest.raises(UsageError, match=f"policy = {policy} must be one for .* actions, which {task} takes"):
            gpi.train("ppo", task, policy=policy, out=tmp_path / "run", quiet=True, **TINY)
        assert not (tmp_path / "run").exists()


CONTINUOUS = {
    "laplace": [Laplace(jnp.array([[mean]]), jnp.array([scale])) for mean, scale in ((0.3, -0.2), (0.1, 0.4))],
    "squashed": [Squashed(jnp.array([[mean]]), jnp.array([[scale]])) for mean, scale in ((0.3, -0.2), (0.1, 0.4))],
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_distribution_from_outside_is_a_distribution(name: str):
    p, q = CONTINUOUS[name]
    x = jnp.linspace(-40.0, 40.0, 400_001)
    logs = [jax.jit(jax.vmap(lambda a, d=d: d.log_prob(a[None, None])[0]))(x) for d in (p, q)]
    logp, logq = (np.asarray(log, np.float64) for log in logs)
    assert np.trapezoid(np.exp(logp), x) == pytest.approx(1.0, abs=1e-3)
    assert np.trapezoid(np.exp(logp) * (logp - logq), x) == pytest.approx(float(p.kl(q)[0]), abs=1e-3)


def test_a_rule_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RULES, "plain", Rule(plain_gradient))
    monkeypatch.setitem(RULE_FACTS, "plain", RuleFacts(uses_lr=True))
    monkeypatch.setitem(ALGORITHMS, "plain", Algorithm("plain", "reuse"))
    run = trained("plain", tmp_path, trust="strict")
    audit = gpi.audit(run)
    assert audit.penalty_violations == 0, "trust is a test that any rule takes"
    assert audit.bounds == ("penalty", "tv"), "it declares no bound on KL"
    config = Config("Pendulum-v1", algorithm="plain", trust="strict", kl_slack=2.0, lr=0.1)
    assert without_effect(config, ["kl_slack", "lr"]) == ["kl_slack = 2.0 has no effect with plain, which bounds no KL"]


def test_a_mixture_plan_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PLANS, "uniform", uniform)
    monkeypatch.setitem(ALGORITHMS, "uniform", Algorithm("ppo", "uniform"))
    run = trained("uniform", tmp_path, kappa=1.0)
    assert json.loads((run.dir / "config.json").read_text())["plan"]["nu"] == [1 / 3] * 3


def test_a_mixture_plan_that_changes_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ess = {}
    for name, plan in {"uniform": uniform, "measured": measured}.items():
        monkeypatch.setitem(PLANS, name, plan)
        monkeypatch.setitem(ALGORITHMS, name, Algorithm("ppo", name))
        run = trained(name, tmp_path / name, kappa=1.0, seeds=1, trust="strict")
        assert gpi.audit(run).penalty_violations == 0, "the test of eq (11) is of the mixture in force"
        ess[name] = [float(row["ess"]) for row in read_rows(run.dir / "metrics.csv")]
    assert min(ess["uniform"][2:]) > 190.0 and ess["uniform"][0] == ess["measured"][0]
    assert sum(ess["measured"][2:]) < sum(ess["uniform"][2:]) - 1.0, "a policy that was left behind weighs less"


@pytest.fixture
def with_replay(monkeypatch: pytest.MonkeyPatch):
    """Add a critic whose ring holds five batches, so that it wraps, under two rules."""
    monkeypatch.setitem(CRITICS, "q", QCritic.init)
    for rule in ("ppo", "trpo"):
        monkeypatch.setitem(ALGORITHMS, rule + "-q", Algorithm(rule, "reuse", critic="q", replay=300))


def segments_in(run: gpi.Run) -> list[str]:
    return sorted(path.name[8:-12] for path in (run.dir / "replay").glob("*"))


@pytest.mark.parametrize("rule", ["ppo", "trpo"])
def test_a_critic_with_a_replay_from_outside(rule: str, tmp_path: Path, with_replay: None):
    """The run in two parts is the run in one, bit for bit."""
    settings: dict[str, Any] = {"keep_replay": True, "checkpoint_every": 1}
    parts = trained(rule + "-q", tmp_path, **settings)
    settings |= TINY | {"steps": 384}
    whole = gpi.train(rule + "-q", "Pendulum-v1", out=tmp_path / "whole", quiet=True, **settings)
    for name in ("metrics.csv", "policy-1.safetensors", "ckpt-000000006/arrays.safetensors"):
        assert (parts.dir / name).read_bytes() == (whole.dir / name).read_bytes(), name
    assert segments_in(parts) == segments_in(whole)
    for path in whole.dir.glob("replay/*"):
        assert (parts.dir / "replay" / path.name).read_bytes() == path.read_bytes()


def test_a_checkpoint_writes_what_is_new_of_a_replay(tmp_path: Path, with_replay: None):
    settings: dict[str, Any] = {**TINY, "checkpoint_every": 1, "keep_replay": True, "steps": 640}
    run = gpi.train("ppo-q", "Pendulum-v1", out=tmp_path / "run", quiet=True, **settings)
    ends = [f"{batch:09d}-{batch + 1:09d}" for batch in range(6, 13)]
    assert segments_in(run) == ends, "three checkpoints need five batches each"
    newest = max(run.dir.glob("ckpt-*"))
    assert all(b"/rows" not in path.read_bytes() for path in newest.iterdir())
    damaged = run.dir / "replay" / f"segment-{ends[-1]}.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    again = gpi.resume(run, steps=704, quiet=True)  # from the checkpoint before
    longer: dict[str, Any] = settings | {"steps": 704}
    other = gpi.train("ppo-q", "Pendulum-v1", out=tmp_path / "other", quiet=True, **longer)
    assert (again.dir / "metrics.csv").read_bytes() == (other.dir / "metrics.csv").read_bytes()


def test_a_run_with_a_replay_that_is_killed_ends_as_if_never_killed(tmp_path: Path):
    support = Path(extensions.__file__).parent

    def run(*words: str, failpoint: str = "") -> int:
        paths = os.pathsep.join([str(support), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ,
            "PJRT_NPROC": "2",
            "GPI_FAILPOINT": failpoint,
            "PYTHONPATH": paths,
            "XLA_FLAGS": "",
        }
        command = [sys.executable, str(support / "replay_child.py"), *words]
        return subprocess.run(command, env=environment, capture_output=True, timeout=300).returncode

    words = ["Pendulum-v1", "--algorithm", "ppo-q", "--seeds", "1", "--n", "64", "--hidden", "8", "--epochs", "1"]
    words += ["--minibatches", "4", "--steps", "640", "--checkpoint-every", "1", "--keep-replay", "--out"]
    assert run("train", *words, str(tmp_path / "whole")) == 0
    begin = ["train", *words, str(tmp_path / "killed")]
    for point in ("segment.before_verify:2", "segment.after_rename:2", "segment.before_remove:1"):
        assert run(*begin, failpoint=point) == -signal.SIGKILL
        begin = ["resume", str(tmp_path / "killed")]
    assert run(*begin) == 0
    for path in (tmp_path / "whole").rglob("*.safetensors"):
        other = tmp_path / "killed" / path.relative_to(tmp_path / "whole")
        assert other.read_bytes() == path.read_bytes(), path


def test_the_end_of_a_run_deletes_its_replay(tmp_path: Path, with_replay: None, capsys: pytest.CaptureFixture[str]):
    run = gpi.train("ppo-q", "Pendulum-v1", out=tmp_path / "run", **TINY)
    assert "the replay needs" in capsys.readouterr().out and not (run.dir / "replay").exists()
    gpi.resume(run)
    assert "is complete; its replay was deleted" in capsys.readouterr().out
    with pytest.raises(UsageError, match="cannot be trained further: its replay was deleted at its end"):
        gpi.resume(run, steps=384, quiet=True)


def test_a_critic_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CRITICS, "linear", regression(LinearCritic.init))
    monkeypatch.setitem(ALGORITHMS, "linear", Algorithm("ppo", "reuse", critic="linear"))
    monkeypatch.delattr(LinearCritic, "under")  # as classes from before `--trust keep` are
    trained("linear", tmp_path, task="CartPole-v1")
    with pytest.raises(UsageError, match="LinearCritic has no `under`, which a still normaliser needs; use --norm"):
        trained("linear", tmp_path / "keep", task="CartPole-v1", normaliser="still")


def test_a_critic_from_outside_keeps_its_value_where_the_statistics_change():
    phi = LinearCritic(jnp.array([2.0, -1.0], jnp.float32), jnp.float32(0.5))
    change = Change(jnp.array([0.5, 3.0], jnp.float32), jnp.array([1.0, -2.0], jnp.float32), jnp.float32(4.0))
    seen = jnp.array([[0.3, 0.7]], jnp.float32)
    before = phi.value(seen * change.stretch[None] + change.shift[None])
    assert float(phi.under(change).value(seen)[0]) == pytest.approx(4.0 * float(before[0]))
