"""The recorder: what iterations measured becomes the tables of the run directory."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from gpi.rundir.run import AUDIT, EPISODES, METRICS, TIMING, EpisodeLog, Table
from gpi.training.config import Config, plan_of
from gpi.training.progress import RECENT_EPISODES


class Recorder:
    """Writes what iterations measured, and remembers what progress shows."""

    def __init__(self, directory: Path, config: Config, saved: dict[str, Any] | None = None):
        """Open the tables of a new run, or cut those of an interrupted one back to where its checkpoint was."""
        self.directory, self.config = directory, config
        self.plan = plan_of(config)
        ages = tuple(f"tv_age_{i}" for i in range(len(self.plan.nu)))
        columns = {"metrics": METRICS, "audit": AUDIT + ages, "episodes": EPISODES, "timing": TIMING}
        sizes = saved["tables"] if saved else dict.fromkeys(columns)
        self.tables = {name: Table(directory / f"{name}.csv", columns[name], sizes[name]) for name in columns}
        self.log = EpisodeLog(config.seeds, config.num_envs, reset_each_batch=bool(config.reset_each_batch))
        self.steps = np.zeros(config.seeds, np.int64)
        self.recent = [deque(maxlen=RECENT_EPISODES) for _ in range(config.seeds)]
        self.frozen: dict[str, dict[str, Any]] = {}  # by seed: the iteration and the stage of its fault
        seconds = 0.0
        if saved:
            self.steps = np.array(saved["steps"], np.int64)
            self.log.total, self.log.length = np.array(saved["total"]), np.array(saved["length"], np.int64)
            self.recent = [deque(returns, maxlen=RECENT_EPISODES) for returns in saved["recent"]]
            self.frozen, seconds = saved["frozen"], saved["seconds"]
        self.start = time.perf_counter() - seconds

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to continue the tables without a row lost or doubled."""
        return {
            "tables": {name: table.sync() for name, table in self.tables.items()},
            "steps": self.steps.tolist(), "total": self.log.total.tolist(), "length": self.log.length.tolist(),
            "recent": [list(returns) for returns in self.recent], "frozen": self.frozen,
            "seconds": time.perf_counter() - self.start,
        }  # fmt: skip

    def add(self, it: Any) -> dict[str, np.ndarray]:
        """One iteration's rows; a seed that is frozen has none. Returns the metrics, `[seeds]`."""
        from gpi.core.faults import NONE, STAGES  # JAX starts with it, and may not before `runtime.prepare`

        seeds = range(self.config.seed, self.config.seed + self.config.seeds)
        frozen = np.asarray(it.fault) != NONE
        for p, seed in enumerate(seeds):
            if frozen[p] and str(seed) not in self.frozen:
                self.frozen[str(seed)] = {"iteration": it.k, "stage": STAGES[int(it.fault[p]) - 1]}
        alive = [(p, seed) for p, seed in enumerate(seeds) if not frozen[p]]
        ended = self.log.finish(it.raw, frozen)
        before, self.steps = self.steps, self.steps + np.where(frozen, 0, it.raw.valid.sum(axis=(1, 2)))
        self.tables["episodes"].add(
            (seed, before[p] + steps, total, length) for p, seed in alive for steps, total, length in ended[p]
        )
        values = it.audit._asdict() | it.metrics._asdict()
        rows = []
        for p, seed in alive:
            totals = [total for _, total, _ in ended[p]]
            self.recent[p].extend(totals)
            row = {name: value[p] for name, value in values.items()}
            row |= {"seed": seed, "iteration": it.k, "steps": self.steps[p]}
            rows.append(row | {"episode_return": np.mean(totals) if totals else None})
        self.tables["metrics"].add([row[name] for name in METRICS] for row in rows)
        self.tables["audit"].add([*(row[name] for name in AUDIT), *row["tv_age"]] for row in rows)
        seconds = time.perf_counter() - self.start
        self.tables["timing"].add([(it.k, self.steps.max(), it.collect_seconds, it.learn_seconds, seconds)])
        measured = {name: np.full(self.config.seeds, np.nan) for name in METRICS[3:]}
        for (p, _), row in zip(alive, rows, strict=True):
            for name, column in measured.items():
                column[p] = np.nan if row[name] is None else row[name]
        return measured

    def returns(self) -> np.ndarray:
        """Mean of each seed's recent episodes; NaN before the first."""
        return np.array([np.mean(recent) if recent else np.nan for recent in self.recent])

    def close(self) -> None:
        """Close the tables."""
        for table in self.tables.values():
            table.close()

    def slowest(self) -> int:
        """Steps of the slowest seed that can still learn, or of the fastest if none can: these decide the end."""
        seeds = range(self.config.seed, self.config.seed + self.config.seeds)
        alive = [int(steps) for seed, steps in zip(seeds, self.steps, strict=True) if str(seed) not in self.frozen]
        return min(alive) if alive else int(self.steps.max())

    def all_frozen(self) -> bool:
        """Whether nothing is left to train."""
        return len(self.frozen) == self.config.seeds

    def faults(self) -> str:
        """Which seeds are frozen, since when, and why."""
        return ", ".join(
            f"seed {seed} at iteration {fault['iteration']} ({fault['stage']} not finite)"
            for seed, fault in self.frozen.items()
        )
