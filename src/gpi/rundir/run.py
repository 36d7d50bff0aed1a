"""A run, read from its directory."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpi.errors import UsageError
from gpi.rundir import policies
from gpi.standalone import Facts

if TYPE_CHECKING:
    from gpi.rundir.policies import Which
    from gpi.standalone import Policy

CURVE = "learning_curve.png"
FINAL_STEPS = 204_800  # the authors' window: final performance is the mean return of the episodes that end in it


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory."""

    dir: Path

    @property
    def config(self) -> Facts:
        """The run's settings."""
        return json.loads((self.dir / "config.json").read_text(encoding="utf-8"))["config"]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the run's members."""
        config = self.config
        return list(range(config["seed"], config["seed"] + config["seeds"]))

    def episodes(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps at which a seed's episodes ended, and their returns."""
        rows = [row for row in read_rows(self.dir / "episodes.csv") if int(row["seed"]) == seed]
        return np.array([int(row["steps"]) for row in rows]), np.array([float(row["return"]) for row in rows])

    @property
    def returns(self) -> dict[int, float]:
        """Final performance of each seed: mean return of the episodes of its last 204,800 steps (`FINAL_STEPS`)."""
        return {seed: final_return(*self.episodes(seed)) for seed in self.seeds}

    def policy(self, seed: int | Literal["best"] | None = None, policy: Which = "last") -> Policy:
        """Return the final policy of a seed, by default the first, or its best; see `gpi.load`."""
        return policies.load(self.dir, seed, policy)


def final_return(steps: np.ndarray, returns: np.ndarray) -> float:
    """Return the mean return of the episodes that ended in the last `FINAL_STEPS` steps; NaN if none did."""
    last = returns[steps > steps.max() - FINAL_STEPS] if len(steps) else returns
    return float(last.mean()) if len(last) else float("nan")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def open_run(directory: str | Path, *needs: str) -> Run:
    """Return the run in a directory; raise UsageError if one of the files that it `needs` is missing."""
    path = Path(directory)
    for name in needs or ("config.json", "episodes.csv"):
        if not (path / name).is_file():
            raise UsageError(f"{path} is not a run directory: it has no {name}; name a directory that `gpi train` made")
    return Run(path)
