"""Small studies that tests run for real, in processes of their own, and what they left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parent
TABLES = ("metrics.csv", "audit.csv", "episodes.csv")
STUDY = """
name = "small"
tasks = ["CartPole-v1", "Acrobot-v1"]
seeds = 2
steps = {steps}
[settings]
hidden = [8]
epochs = 2
minibatches = 4
checkpoint_every = 5
[[grid]]
algorithm = ["ppo", "geppo"]
"""


def write_study(directory: Path, steps: int = 20_000, text: str = STUDY) -> Path:
    """Write the file of a study, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "small.toml"
    path.write_text(text.replace("{steps}", str(steps)))
    return path


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a runner: programs that compile fast, and tests' own environments to import."""
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    fast = {"XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": paths}
    return {**os.environ, **fast, **more}


def runner(study: Path, out: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """Start `gpi study run`."""
    command = [sys.executable, "-m", "gpi", "study", "run", str(study), "--out", str(out), *words]
    return subprocess.Popen(
        command, env=environment(**more), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def ended(process: subprocess.Popen[str], code: int, seconds: float = 300.0) -> str:
    """Wait for a runner and return what it printed; its exit code must be this."""
    printed, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, (process.returncode, printed)
    return printed


def wait_for(what: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def children(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a process has started and that live."""
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Return whether a process lives; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def results(out: Path) -> dict[str, bytes]:
    """Return the files of a study's runs that must be the same to the last byte, however often they were disturbed."""
    found = [path for name in TABLES for path in (out / "runs").rglob(name)]
    found += [path for path in (out / "runs").rglob("policy-*.safetensors") if "ckpt" not in str(path)]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in found}
