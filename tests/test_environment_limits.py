"""Environments that gpi does not take, or not for long: vectors of them, images, steps that hang; and no EnvPool."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import envs_own
import gpi
from gpi.cli import main
from gpi.envs import tasks
from gpi.envs.checks import check
from gpi.envs.spaces import image_in
from gpi.envs.workers import WorkerPool
from gpi.errors import EnvironmentFault
from own_runs import TINY, done


def test_a_vector_environment_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(EnvironmentFault, match="is a vector environment; return a single one: --num-envs makes copies"):
        check(tasks.find("envs_own:vector"))
    with pytest.raises(EnvironmentFault, match="is a vector environment"):
        gpi.train("ppo", envs_own.vector, out=tmp_path / "run", **TINY)
    assert main(["check", "envs_own:vector"]) == 6
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("space", "where"), [
    (spaces.Box(0, 255, (84, 84, 3), np.uint8), "observation of shape (84, 84, 3)"),
    (spaces.Box(0, 255, (32, 32), np.uint8), "observation of shape (32, 32)"),
    (spaces.Tuple([spaces.Dict({"eye": spaces.Box(0, 255, (4, 64, 64), np.uint8)})]), "'0.eye'"),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), None),  # a board
    (spaces.Box(0, 255, (21168,), np.uint8), None),  # flattened by the user
    (spaces.Box(0, 1, (84, 84), np.float32), None),  # a map of heights
    (spaces.Dict({"x": spaces.Discrete(3)}), None),
])  # fmt: skip
def test_what_counts_as_an_image(space: spaces.Space, where: str | None):
    found = image_in(space)
    assert found is None if where is None else found is not None and where in found


def test_images_are_refused_unless_they_are_allowed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(EnvironmentFault, match=r"observation 'camera' of shape \(32, 32\) is an image.*--allow-images"):
        gpi.train("ppo", envs_own.Camera, out=tmp_path / "run", **TINY)
    assert main(["check", "envs_own:Camera"]) == 6 and "--allow-images" in capsys.readouterr().err
    assert main(["check", "envs_own:Camera", "--allow-images"]) == 0
    assert "sees 1026 numbers" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_with_images_of_earlier_versions_resume(tmp_path: Path):
    run = gpi.train("ppo", envs_own.Camera, out=tmp_path / "run", steps=300, allow_images=True, **TINY)
    about = json.loads((run.dir / "config.json").read_text())
    for name in ("allow_images", "step_timeout"):  # which they had not
        del about["config"][name]
    (run.dir / "config.json").write_text(json.dumps(about))
    run = gpi.resume(run, env=envs_own.Camera, steps=900, quiet=True)
    assert done(run)["exact"] and min(done(run)["steps"]) >= 900


def test_a_step_that_hangs_ends_the_check():
    with pytest.raises(EnvironmentFault, match=r"Lame: step 1 of episode 1: step did not return within 0.2 seconds"):
        check(tasks.find("envs_own:Lame"), step_timeout=0.2)
    seen: list[object] = []  # signals do not reach other threads: there, nothing is watched, and nothing breaks
    watched = threading.Thread(target=lambda: seen.append(check(tasks.find("envs_own:Walk"), step_timeout=0.2)))
    watched.start()
    watched.join(60)
    assert len(seen) == 1


def test_a_worker_that_hangs_is_named_and_ended():
    pool = WorkerPool("envs_own:Lame", None, [1, 2, 3], 2, step_timeout=0.5)
    pool.reset()
    with pytest.raises(EnvironmentFault) as fault:
        pool.step(np.zeros((3, 1), np.float32))
    line = str(fault.value)
    assert "envs_own:Lame: step 1 of the pool: environments 0 to 1 did not return within 1 seconds" in line
    assert "0.5 for each call" in line and "--step-timeout" in line
    workers = [process for process, _ in pool.workers]
    pool.close()
    assert [worker.poll() for worker in workers] == [-9, -9]


def test_no_limit_on_steps_is_no_limit():
    pool = WorkerPool("envs_own:Walk", None, [1, 2], 2)
    try:
        assert pool.step_timeout == 0.0 and pool.reset().shape == (2, 2)
    finally:
        pool.close()


@pytest.mark.slow
def test_a_run_whose_step_hangs_is_saved(tmp_path: Path):
    settings = TINY | {"seeds": 1, "backend": "processes", "step_timeout": 2.0}
    with pytest.raises(EnvironmentFault, match="did not return within 2 seconds"):
        gpi.train("ppo", "envs_own:Hangs", out=tmp_path / "run", steps=100_000, **settings)
    run = gpi.Run(tmp_path / "run")
    assert not done(run)["complete"] and done(run)["steps"][0] > 1000
    assert list(run.dir.glob("ckpt-*")) and run.policy() is not None
    about = json.loads((run.dir / "config.json").read_text())
    about["config"]["step_timeout"] = 1.0  # a different limit is no drift
    (run.dir / "config.json").write_text(json.dumps(about))
    with pytest.raises(EnvironmentFault, match="did not return within 1 seconds"):
        gpi.resume(run.dir, env="envs_own:Hangs", quiet=True)
    assert done(run)["exact"]


WITHOUT_ENVPOOL = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "envpool":
            raise ModuleNotFoundError("No module named 'envpool'", name="envpool")

sys.meta_path.insert(0, Finder())
from gpi.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_envpool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where EnvPool is not installed."""
    command = [sys.executable, "-c", WITHOUT_ENVPOOL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"XLA_FLAGS": ""})


def test_without_envpool_gymnasium_has_its_tasks(tmp_path: Path):
    seen = without_envpool("check", "Pendulum-v1")
    assert seen.returncode == 0 and seen.stdout.startswith("note: EnvPool is not installed here"), seen
    refused = without_envpool("train", "cheetah-run", "--out", str(tmp_path / "run"))
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused
    assert "pip install envpool" in refused.stderr and "Linux" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_envpool_a_run_says_and_records_that_it_is_on_gymnasium(tmp_path: Path):
    out, tiny = str(tmp_path / "run"), ["--seeds", "1", "--n", "128", "--minibatches", "4", "--hidden", "8"]
    trained = without_envpool("train", "Pendulum-v1", *tiny, "--steps", "300", "--out", out)
    assert trained.returncode == 0 and trained.stdout.count("note: EnvPool is not installed here") == 1, trained
    assert json.loads(Path(out, "config.json").read_text())["config"]["backend"] == "gymnasium"
    resumed = without_envpool("resume", out, "--steps", "600")
    assert resumed.returncode == 0 and "EnvPool" not in resumed.stdout, resumed
    with_envpool = [sys.executable, "-m", "gpi", "train", "Pendulum-v1", *tiny, "--steps", "300", "--out", out + "2"]
    assert subprocess.run(with_envpool, timeout=300, env=os.environ | {"XLA_FLAGS": ""}).returncode == 0
    assert json.loads(Path(out + "2", "config.json").read_text())["config"]["backend"] == "auto"
    refused = without_envpool("resume", out + "2", "--steps", "600")
    assert refused.returncode == 2 and "pip install envpool" in refused.stderr, refused
