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
from extensions import Laplace, LaplaceTheta, LinearCritic, QCritic, measured, plain_gradient, uniform
from gpi.core.critic import CRITICS, regression
from gpi.core.network import Change
from gpi.core.plan import ALGORITHMS, PLANS, Algorithm
from gpi.core.policy import POLICIES
from gpi.core.rules import RULES, Rule
from gpi.errors import UsageError
from gpi.rundir.run import read_rows

TINY: dict[str, Any] = {"seeds": 2, "n": 64, "hidden": (8,), "epochs": 1, "minibatches": 4, "steps": 256}


def trained(algorithm: str, tmp_path: Path, task: str = "Pendulum-v1", **settings: Any) -> gpi.Run:
    """Return a short run that was finished, resumed, and left policies that act."""
    run = gpi.train(algorithm, task, out=tmp_path / "run", quiet=True, **TINY | settings)
    gpi.resume(run, steps=384, quiet=True)
    done = json.loads((run.dir / "DONE").read_text())
    assert done["complete"] and done["exact"] and min(done["steps"]) >= 384
    obs = np.zeros(run.policy(0).obs_mean.shape)
    assert np.isfinite(run.policy(0)(obs)).all()
    return run


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_a_distribution_from_outside(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(POLICIES, "continuous", LaplaceTheta)
    run = trained("getrpo", tmp_path, backend=backend, trust="strict")
    assert gpi.audit(run).penalty_violations == 0


def test_the_distribution_from_outside_is_a_distribution():
    p, q = (Laplace(jnp.array([[mean]]), jnp.array([scale])) for mean, scale in ((0.3, -0.2), (0.1, 0.4)))
    x = jnp.linspace(-40.0, 40.0, 400_001)
    logs = [jax.jit(jax.vmap(lambda a, d=d: d.log_prob(a[None, None])[0]))(x) for d in (p, q)]
    logp, logq = (np.asarray(log, np.float64) for log in logs)
    assert np.trapezoid(np.exp(logp), x) == pytest.approx(1.0, abs=1e-3)
    assert np.trapezoid(np.exp(logp) * (logp - logq), x) == pytest.approx(float(p.kl(q)[0]), abs=1e-3)


def test_a_rule_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RULES, "plain", Rule(plain_gradient))
    monkeypatch.setitem(ALGORITHMS, "plain", Algorithm("plain", "reuse"))
    run = trained("plain", tmp_path, trust="strict")
    assert gpi.audit(run).penalty_violations == 0, "trust is a test that any rule takes"


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
    settings["steps"] = 704
    settings["steps"] = 704
    other = gpi.train("ppo-q", "Pendulum-v1", out=tmp_path / "other", quiet=True, **settings)
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
