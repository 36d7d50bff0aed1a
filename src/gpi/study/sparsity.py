"""Sparsity of a task, the paper's measure: how seldom a random policy meets a reward."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpi import files
from gpi.envs import tasks
from gpi.envs.seeds import env_seeds
from gpi.errors import FileError
from gpi.standalone import Facts

SAMPLES = 100_000
NEGLIGIBLE = 0.01  # the largest reward that counts as none
ENVIRONMENTS = 10
MEASURED = Path(__file__).parent / "sparsity.json"
"""The 28 tasks, measured once: `python benchmarks/sparsity.py`."""


def sparsity(task: str, samples: int = SAMPLES) -> float:
    """Return the share of samples of a uniformly random policy whose reward is at most 0.01; always the same number."""
    found = tasks.find(task)
    pool = tasks.make_host_pool(found, env_seeds(found.id, "sparsity", 0, ENVIRONMENTS), 1)
    rng = np.random.default_rng(0)
    try:
        pool.reset()
        seen = negligible = 0
        while seen < samples:
            shape = (ENVIRONMENTS, pool.spec.action_size)
            step = pool.step(
                rng.integers(pool.spec.action_size, size=ENVIRONMENTS, dtype=np.int32) if pool.spec.discrete
                else rng.uniform(-1.0, 1.0, shape).astype(np.float32)
            )  # fmt: skip
            valid = np.asarray(step.valid)
            seen += int(valid.sum())
            negligible += int((valid & (np.asarray(step.reward) <= NEGLIGIBLE)).sum())
        return negligible / seen
    finally:
        pool.close()


def measured() -> dict[str, float]:
    """Return the sparsity of the 28 tasks as it was measured for the package."""
    about: Facts = files.parse_json(files.read(MEASURED.parent, MEASURED.name, files.JSON_LIMIT), MEASURED.name)
    shares = about.get("sparsity")
    if not isinstance(shares, dict):
        raise FileError(f"{MEASURED} lacks the sparsity of the tasks; install gpi again")
    return {task: float(share) for task, share in shares.items()}
