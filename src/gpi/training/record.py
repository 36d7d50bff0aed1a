"""The run directory: what a run is, what it measured, and what it learned, in files people can open."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpi.errors import UsageError

if TYPE_CHECKING:  # reading a run must not start JAX
    from gpi.core.sample import Rollout

EPISODES = ("seed", "steps", "return", "length")
METRICS = (
    "seed", "iteration", "steps", "episode_return", "tv", "penalty", "kl", "eps_gpi", "lr", "entropy", "value_loss",
    "ess", "improvement", "fraction", "adv_std",
)  # fmt: skip
AUDIT = (
    "seed", "iteration", "steps", "penalty", "penalty_bound", "penalty_held", "tv", "tv_bound", "tv_held", "kl",
    "kl_bound", "kl_held", "ess", "ess_realised", "surrogate_gain", "c_estimate", "worst_case_decline",
    "normaliser_tv", "fraction", "budget_exhausted",
)  # fmt: skip
TIMING = ("iteration", "steps", "collect_seconds", "learn_seconds", "seconds")
FINAL_STEPS = 204_800  # final performance is the mean return of the episodes that end in so many last steps


def claim(directory: Path) -> None:
    """Make a run directory; one that holds another run is refused."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"--out {directory} holds another run or other files; name a new directory, or remove that one"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out {directory} cannot be made: {error.strerror}; name a place you may write to"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """One JSON object, readable."""
    path.write_text(json.dumps(value, indent=2, sort_keys=False) + "\n", encoding="utf-8")


def cell(x: Any) -> str:
    """A number as text: nine digits hold every float32; nothing for what does not exist."""
    if x is None or x != x:
        return ""
    return str(int(x)) if isinstance(x, int | np.integer | np.bool_) else f"{float(x):.9g}"


class Table:
    """A CSV file that grows by rows and is on disk after each batch of them."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        """Start the file with its header."""
        self.file = path.open("w", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.add([columns])

    def add(self, rows: Iterable[Iterable[Any]]) -> None:
        """Append rows, and flush."""
        self.writer.writerows([[x if isinstance(x, str) else cell(x) for x in row] for row in rows])
        self.file.flush()

    def close(self) -> None:
        """No more rows."""
        self.file.close()


class EpisodeLog:
    """Adds up rewards into episode returns; episodes span batches, unless every batch starts with a reset."""

    def __init__(self, P: int, E: int, *, reset_each_batch: bool):
        """No episode has begun."""
        self.reset_each_batch = reset_each_batch
        self.total = np.zeros((P, E))
        self.length = np.zeros((P, E), np.int64)

    def finish(self, raw: Rollout) -> list[list[tuple[int, float, int]]]:
        """For each member, the episodes that ended in this batch: steps into the batch, return, length."""
        P, _, E = raw.reward.shape
        if self.reset_each_batch:  # what the last batch left unfinished never ends
            self.total[:], self.length[:] = 0.0, 0
        ended: list[list[tuple[int, float, int]]] = [[] for _ in range(P)]
        steps = np.cumsum(raw.valid.sum(axis=2), axis=1)
        for p, e in np.ndindex(P, E):
            begin = 0
            for t in np.flatnonzero(raw.done[p, :, e]):
                self._extend(raw, p, e, begin, int(t) + 1)
                ended[p].append((int(steps[p, t]), float(self.total[p, e]), int(self.length[p, e])))
                self.total[p, e], self.length[p, e] = 0.0, 0
                begin = int(t) + 1
            self._extend(raw, p, e, begin, raw.reward.shape[1])
        return [sorted(member) for member in ended]

    def _extend(self, raw: Rollout, p: int, e: int, begin: int, end: int) -> None:
        self.total[p, e] += raw.reward[p, begin:end, e].sum(dtype=np.float64)
        self.length[p, e] += int(raw.valid[p, begin:end, e].sum())


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory."""

    dir: Path

    @property
    def config(self) -> dict[str, Any]:
        """The run's settings."""
        return json.loads((self.dir / "config.json").read_text(encoding="utf-8"))["config"]

    @property
    def seeds(self) -> list[int]:
        """The seeds of its members."""
        config = self.config
        return list(range(config["seed"], config["seed"] + config["seeds"]))

    def episodes(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps at which a seed's episodes ended, and their returns."""
        rows = [row for row in read(self.dir / "episodes.csv") if int(row["seed"]) == seed]
        return np.array([int(row["steps"]) for row in rows]), np.array([float(row["return"]) for row in rows])

    @property
    def returns(self) -> dict[int, float]:
        """Final performance of each seed: mean return of the episodes of its last 204,800 steps."""
        return {seed: final_return(*self.episodes(seed)) for seed in self.seeds}

    def policy(self, seed: int | None = None) -> Any:
        """The final policy of a seed, by default the first."""
        from gpi.deploy import load

        return load(self.dir, seed)


def final_return(steps: np.ndarray, returns: np.ndarray) -> float:
    """Mean return of the episodes that ended in the last 204,800 steps; NaN if none did."""
    last = returns[steps > steps.max() - FINAL_STEPS] if len(steps) else returns
    return float(last.mean()) if len(last) else float("nan")


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def open_run(directory: str | Path) -> Run:
    """A run directory, checked to be one."""
    path = Path(directory)
    for name in ("config.json", "episodes.csv"):
        if not (path / name).is_file():
            raise UsageError(f"{path} is not a run directory: it has no {name}; name a directory that `gpi train` made")
    return Run(path)
