"""Exported policies: how well they agree with JAX, how fast they act, and how soon they are imported.

    python benchmarks/export.py [--tasks cheetah-run CartPole-v1] [--steps 4096]      # needs: pip install -e '.[onnx]'

For every DeepMind Control task and CartPole-v1, one seed trains for a few iterations, so that networks and normalisers
are real, and its policy is exported in both forms. Both act on the same 10,000 observations as JAX does, drawn from the
trained normaliser with outliers beyond its clip. The NumPy form does so, and is timed, in a new virtual environment
with nothing but NumPy in it; ONNX Runtime is timed here, with one thread. Times are the best of many, because shared
machines are noisy: microseconds per single observation, and milliseconds of processor time to import NumPy and
policy.py, best of five starts. The promises: 1e-5, of actions in [-1, 1] or of logits relative to the largest; 50
microseconds; 200 milliseconds. The table is printed and appended to benchmarks/export.jsonl with versions and load.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import timeit
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import gpi
from gpi.config import Config
from gpi.envs.dmc import TASKS
from gpi.export import OBSERVATIONS, TOLERANCE, export, observations_around
from gpi.standalone import GaussianPolicy
from gpi.training import devices as runtime

RECORD = Path(__file__).with_name("export.jsonl")
SLOWEST_US, SLOWEST_IMPORT_MS = 50.0, 200.0
STARTS = 5

# Runs where there is only NumPy: the arguments are the exported directory and the file of observations.
WORKER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
began = time.process_time()
import policy
import_ms = 1e3 * (time.process_time() - began)
import timeit
import numpy
act, obs = policy.load(sys.argv[1]), numpy.load(sys.argv[2])
one = obs[0].copy()
us = min(timeit.repeat(lambda: act(one), number=200, repeat=50)) / 200 * 1e6
numpy.savez(sys.argv[3], action=act(obs), unscaled=act.unscaled(obs))
print(json.dumps({"import_ms": import_ms, "us": us, "numpy": numpy.__version__}))
"""


def numpy_only(place: Path) -> Path:
    """The Python of a new environment with NumPy and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy"]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    for name in ("jax", "gpi"):
        if subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0:
            raise SystemExit(f"{python} can import {name}: it is not alone")
    return python


def by_jax(policy: gpi.Policy, obs: np.ndarray) -> np.ndarray:
    """What training computes from the same numbers: clipped means, or logits."""
    import jax
    import jax.numpy as jnp

    from gpi.core.categorical import CategoricalTheta
    from gpi.core.gaussian import GaussianTheta
    from gpi.core.network import Layer
    from gpi.core.normaliser import Scaling, normalise_obs

    net = tuple(Layer(jnp.asarray(kernel), jnp.asarray(bias)) for kernel, bias in policy.layers)
    scaling = Scaling(jnp.asarray(policy.obs_mean), jnp.asarray(policy.obs_std))
    with jax.default_matmul_precision("highest"):
        seen = normalise_obs(scaling, jnp.asarray(obs))
        if isinstance(policy, GaussianPolicy):
            mean = GaussianTheta(net, jnp.asarray(policy.log_std)).distribution(seen).mean
            return np.asarray(jnp.clip(mean, -1.0, 1.0))
        return np.asarray(CategoricalTheta(net).distribution(seen).logits)


def apart(policy: gpi.Policy, truth: np.ndarray, found: np.ndarray) -> float:
    """The largest difference, of logits relative to the largest of its row."""
    scale = np.maximum(np.abs(truth).max(1, keepdims=True), 1.0) if policy.discrete else 1.0
    return float((np.abs(found.astype(np.float64) - truth) / scale).max())


def by_numpy(python: Path, directory: Path, obs: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Times of the NumPy form where there is only NumPy, the best of a few starts, and what decides its actions."""
    np.save(directory / "obs.npy", obs)
    command = [python, "-c", WORKER, directory, directory / "obs.npy", directory / "actions.npz"]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(STARTS)]
    best = {key: min(run[key] for run in runs) for key in runs[0]}
    return best, np.load(directory / "actions.npz")["unscaled"]


def by_onnx(path: Path, obs: np.ndarray) -> tuple[float, np.ndarray]:
    """Microseconds per observation by ONNX Runtime with one thread, and what decides its actions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    one = {"observation": obs[:1].copy()}
    us = min(timeit.repeat(lambda: session.run(["action"], one), number=200, repeat=50)) / 200 * 1e6
    return us, session.run(["unscaled"], {"observation": obs})[0]


def measure(task: str, algorithm: str, steps: int, python: Path, place: Path) -> dict[str, Any]:
    """One line of the table."""
    run = gpi.train(algorithm, task, seeds=1, steps=steps, out=place / "run", quiet=True)
    policy = run.policy()
    written = [export(run.dir, place / "numpy"), export(run.dir, place / "policy.onnx", format="onnx")]
    obs = observations_around(policy, OBSERVATIONS, seed=1)
    truth = by_jax(policy, obs)
    times, unscaled = by_numpy(python, place / "numpy", obs)
    onnx_us, onnx_unscaled = by_onnx(place / "policy.onnx", obs)
    sizes = [policy.obs_mean.size, *(bias.size for _, bias in policy.layers)]
    return {
        "task": task, "steps": int(policy.about["steps"]), "sizes": sizes, "discrete": policy.discrete,
        "numpy_apart": max(written[0].worst, apart(policy, truth, unscaled)),
        "onnx_apart": max(written[1].worst, apart(policy, truth, onnx_unscaled)),
        "numpy_us": times["us"], "onnx_us": onnx_us, "import_ms": times["import_ms"], "numpy": times["numpy"],
    }  # fmt: skip


def verdict(line: dict[str, Any]) -> str:
    """Which promises a line keeps."""
    kept = {
        "difference": max(line["numpy_apart"], line["onnx_apart"]) <= TOLERANCE,
        "action": line["numpy_us"] < SLOWEST_US,
        "import": line["import_ms"] < SLOWEST_IMPORT_MS,
    }
    return "kept" if all(kept.values()) else "BROKEN: " + ", ".join(name for name in kept if not kept[name])


def main() -> None:
    """Measure, print, record."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", nargs="+", default=[*TASKS, "CartPole-v1"], help="default: all of them")
    options.add_argument("--algorithm", default="geppo")
    options.add_argument("--steps", type=int, default=4096, help="steps of training (default: %(default)s)")
    chosen = options.parse_args()
    runtime.prepare(Config(chosen.tasks[0]))
    print(
        f"{'task':24} {'sizes':>13}  {'NumPy - JAX':>11}  {'ONNX - JAX':>10}  {'NumPy us':>8}  {'ONNX us':>7}  "
        f"{'import ms':>9}  promises", flush=True,
    )  # fmt: skip
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        python = numpy_only(Path(folder) / "venv")
        for task in chosen.tasks:
            place = Path(folder) / task.replace("/", "-")
            place.mkdir()
            line = measure(task, chosen.algorithm, chosen.steps, python, place)
            lines.append(line)
            print(
                f"{task:24} {'-'.join(map(str, line['sizes'])):>13}  {line['numpy_apart']:>11.1e}  "
                f"{line['onnx_apart']:>10.1e}  {line['numpy_us']:>8.1f}  {line['onnx_us']:>7.1f}  "
                f"{line['import_ms']:>9.0f}  {verdict(line)}", flush=True,
            )  # fmt: skip
    versions = runtime.versions() | {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")}
    facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(), "load": os.getloadavg()}
    with RECORD.open("a", encoding="utf-8") as file:
        print(json.dumps(facts | {"versions": versions, "observations": OBSERVATIONS, "results": lines}), file=file)
    if any(verdict(line) != "kept" for line in lines):
        raise SystemExit("a promise was broken")


if __name__ == "__main__":
    main()
