"""Made-up results: runs whose returns follow from a few numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gpi.analysis.retention import BIN
from gpi.config import Config
from gpi.study.results import Result

VERSIONS = {"python": "3.12.3", "jax": "0.11.2", "envpool": "1.2.5"}
AUDIT = {
    "updates": 10, "penalty_violations": 1, "one_step_violations": 2, "kl_violations": 3, "refused": 4,
    "budget_exhausted": 0, "shortened": 5, "ess_share": 0.5, "normaliser_tv": 0.01, "estimate": "lost",
    "worst": {name: {"ratio": 1.5, "seed": 0, "iteration": 3} for name in ("penalty", "tv", "kl")},
}  # fmt: skip


def made(task: str, algorithm: str, level: float | Sequence[float] | np.ndarray, **settings: object) -> Result:
    """A run whose seeds rise to a level of return in the first half of their steps, with ten episodes in each bin."""
    levels = np.atleast_1d(np.asarray(level, np.float64))
    settings = {"steps": 1_000_000, "seeds": len(levels), "reset_each_batch": True, "threads": 1} | settings
    config = Config(task=task, algorithm=algorithm, **settings)  # type: ignore[arg-type]
    bins = -(-config.steps // BIN)
    rise = np.minimum(1.0, (np.arange(bins) + 1) / (0.5 * bins))
    mean = levels[:, None] * rise
    curve = np.stack([np.full_like(mean, 10.0), mean, mean**2 + 25.0], axis=-1).astype(np.float32)
    steps = (config.steps,) * config.seeds
    return Result(config, steps, curve, levels, AUDIT, VERSIONS, ("cuda:0",), True)


def changed(result: Result, **fields: object) -> Result:
    """The same with other fields, of the result or of its settings."""
    settings = {name: x for name, x in fields.items() if name in Config.__dataclass_fields__ and name != "steps"}
    rest = {name: x for name, x in fields.items() if name not in settings}
    config = dataclasses.replace(result.config, **settings)  # type: ignore[arg-type]
    return dataclasses.replace(result, config=config, **rest)  # type: ignore[arg-type]


def paper_study(tasks: Sequence[str], level: Callable[[str, str, float], float], seeds: int = 5) -> list[Result]:
    """Every arm of the paper on some tasks: `level` gives the mean of a task, an algorithm and a kappa."""
    rng = np.random.default_rng(0)
    arms = [(a, 1.0) for a in ("ppo", "trpo", "vmpo")]
    arms += [(a, kappa) for a in ("geppo", "getrpo", "gevmpo") for kappa in (0.0, 0.5, 1.0)]
    return [
        made(task, algorithm, rng.normal(level(task, algorithm, kappa), 40.0, seeds), kappa=kappa)
        for task in tasks for algorithm, kappa in arms
    ]  # fmt: skip
