"""A run, read from its directory."""

from __future__ import annotations

import csv
import io
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpi import files
from gpi.config import Config, config_of
from gpi.core.plan import ALGORITHMS
from gpi.envs.seeds import MAX_SEED
from gpi.errors import FileError, UsageError, read_error
from gpi.rundir import policies
from gpi.standalone import Facts

if TYPE_CHECKING:
    from gpi.envs.importing import Make
    from gpi.rundir.policies import Which
    from gpi.standalone import Policy

CURVE = "learning_curve.png"
FINAL_STEPS = 204_800  # the authors' window of final performance, of runs that have at least twice as many steps


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory."""

    dir: Path
    env: str | Make | None = field(default=None, compare=False)
    """The user's own environment, as this process trained in it; no file names it, so another process asks for it."""

    def __fspath__(self) -> str:
        """Return the directory: a run may stand wherever a path does."""
        return str(self.dir)

    @property
    def config(self) -> Facts:
        """The run's settings."""
        return read_settings(self.dir / "config.json")

    @property
    def repeats(self) -> str:
        """Whether environments of the same seeds repeat each other, as the check before training found."""
        self.config  # noqa: B018 (config.json is checked)
        return str(files.parse_json((self.dir / "config.json").read_bytes(), "it").get("repeats", "exact"))

    @property
    def seeds(self) -> list[int]:
        """The seeds of the run's members."""
        config = self.config
        return list(range(config["seed"], config["seed"] + config["seeds"]))

    def episodes(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps at which a seed's episodes ended, and their returns."""
        return self._episodes([seed])[seed]

    def all_episodes(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return the steps at which episodes ended, and their returns, by seed: the table is read once."""
        return self._episodes(self.seeds)

    def _episodes(self, seeds: list[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return the episodes of some seeds."""
        path = self.dir / "episodes.csv"
        ends: dict[int, list[tuple[int, float]]] = {seed: [] for seed in seeds}
        try:
            for row in read_rows(path, "seed", "steps", "return"):
                if int(row["seed"]) in ends:
                    ends[int(row["seed"])].append((int(row["steps"]), float(row["return"])))
        except ValueError as error:
            raise damaged(path, error) from error
        return {
            seed: (np.array([steps for steps, _ in rows]), np.array([total for _, total in rows]))
            for seed, rows in ends.items()
        }

    @property
    def steps(self) -> dict[int, int]:
        """The steps that each seed has taken."""
        taken = dict.fromkeys(self.seeds, 0)
        taken |= {int(row["seed"]): int(row["steps"]) for row in read_rows(self.dir / "metrics.csv")}
        return taken

    @property
    def returns(self) -> dict[int, float]:
        """Final performance of each seed: mean return of the episodes of the last 204,800 steps, or of the last fifth.

        The last fifth is that of runs of fewer than 409,600 steps.
        """
        taken = max(self.steps.values())
        return {seed: final_performance(*ends, taken) for seed, ends in self.all_episodes().items()}

    @property
    def final_performance(self) -> dict[int, float]:
        """The same as `returns`."""
        return self.returns

    def policy(self, seed: int | Literal["best"] | None = None, policy: Which = "last") -> Policy:
        """Return the final policy of a seed, by default the first, or its best; see `gpi.load`."""
        return policies.load(self.dir, seed, policy)


def final_window(taken: int) -> int:
    """Return over how many of its last steps a run's final performance is: 204,800, or a fifth of a shorter run."""
    return FINAL_STEPS if taken >= 2 * FINAL_STEPS else max(1, taken // 5)


def final_performance(steps: np.ndarray, returns: np.ndarray, taken: int) -> float:
    """Return one seed's final performance: the mean return of the episodes that ended in the last steps of its run.

    Episodes are given by the steps at which they ended. The window is that of a run of `taken` steps, and it ends
    with the last episode. NaN without an episode.
    """
    last = returns[steps > steps.max() - final_window(taken)] if len(steps) else returns
    return float(last.mean()) if len(last) else math.nan


def window_in_words(taken: int) -> str:
    """Return over which steps final performance is, in words."""
    window = final_window(taken)
    return f"last {window:,} steps" if window == FINAL_STEPS else f"last fifth, {window:,} steps"


def read_settings(path: Path) -> Facts:
    """Return the settings in a config.json; those that are known here have their types. Raise FileError otherwise."""
    try:
        settings = files.parse_json(path.read_bytes(), "it").get("config")
        if not isinstance(settings, dict) or not {"task", "algorithm", "seed", "seeds"} <= settings.keys():
            raise FileError("it lacks the settings of a run")
        known = Config.__dataclass_fields__.keys() & settings.keys()
        config = config_of({name: settings[name] for name in known})
        if config.algorithm not in ALGORITHMS or not 1 <= config.seeds <= MAX_SEED:
            raise FileError(f"algorithm {config.algorithm!r} with {config.seeds} seeds is not a valid run")
        return settings
    except OSError as error:
        raise read_error(path, error) from error
    except (FileError, UsageError) as error:
        raise damaged(path, error) from error


def read_rows(path: Path, *columns: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file that has these columns; a last line that was never finished is left out."""
    try:
        text = path.read_bytes().decode()
        rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    except OSError as error:
        raise read_error(path, error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, error) from error
    header = rows[0] if rows else []
    missing = [name for name in columns if name not in header]
    if missing:
        raise damaged(path, f"it lacks the column {missing[0]!r}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise damaged(path, f"line {number} has {len(row)} cells, not {len(header)}")
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


def damaged(path: Path, why: object) -> FileError:
    """Return the error of a file of a run that is not as `gpi train` wrote it."""
    return FileError(f"{path} is damaged: {' '.join(str(why).split())[:200]}; restore it, or train again")


def exists(path: Path) -> bool:
    """Return whether there is something; raise OSError where that may not be known, unlike `Path.exists` since 3.14."""
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()
        return True
    return False


def open_run(directory: str | Path, *needs: str) -> Run:
    """Return the run in a directory; raise UsageError if one of the files that it `needs` is missing."""
    path = Path(directory)
    try:
        if not exists(path):
            raise UsageError(f"{path} does not exist; name a directory that `gpi train` made")
        for name in needs or ("config.json", "episodes.csv"):
            if not exists(path / name):
                what = "is not a run directory: it has no"
                raise UsageError(f"{path} {what} {name}; name a directory that `gpi train` made")
    except OSError as error:
        raise read_error(path, error) from error
    return Run(path)
