"""Evaluations in training: their table, and each seed's best policy so far, `best-0.safetensors`.

The best policies so far are also in every checkpoint, so that a run that goes back to one goes back with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpi import files, policy_file
from gpi.errors import FileError
from gpi.policy_file import list_policy_files, number_in

EVALUATIONS = "evaluations.csv"
COLUMNS = ("seed", "iteration", "steps", "return", "low", "high", "episodes")
SIZE_LIMIT = 1 << 28


class Row(NamedTuple):
    """One evaluation of one seed."""

    seed: int
    iteration: int
    steps: int
    mean: float
    line: str  # of the table


def row_of(line: str) -> Row:
    """Return a line of the table, read; raise FileError if it is not one."""
    try:
        seed, iteration, steps, mean, _, _, _ = line.split(",")
        return Row(int(seed), int(iteration), int(steps), float(mean), line)
    except ValueError as error:
        rule = f"expected {','.join(COLUMNS)}, found {files.shown(line)}"
        raise FileError(f"{EVALUATIONS} cannot be read ({rule}); restore it, or remove it") from error


def read_evaluations(run: Path) -> list[Row]:
    """Return the evaluations of a run, none if there were none."""
    if not (run / EVALUATIONS).exists():
        return []
    text = files.read(run, EVALUATIONS, SIZE_LIMIT).decode(errors="replace")
    return [row_of(line) for line in text.splitlines()[1:]]


def write_evaluations(run: Path, rows: Iterable[Row]) -> None:
    """Write the table as a whole."""
    lines = [",".join(COLUMNS), *(row.line for row in rows)]
    files.write(run / EVALUATIONS, ("\n".join(lines) + "\n").encode())


def best_file(run: Path, seed: int) -> Path:
    """Return the file of a seed's best policy."""
    return run / f"best-{seed}.safetensors"


def best_mean(run: Path, seed: int) -> float:
    """Return the mean return of the evaluation that chose a seed's best policy; -inf if there is none that loads."""
    with suppress(FileError):
        if best_file(run, seed).exists():
            mean = number_in(policy_file.load(best_file(run, seed)).about, "evaluation")
            return mean if np.isfinite(mean) else -np.inf
    return -np.inf


def kept_best(run: Path) -> dict[str, bytes]:
    """Return the files of the best policies so far, for a checkpoint; one that does not load is left out."""
    kept = {}
    for path in list_policy_files(run, "best").values():
        with suppress(FileError):
            data = files.read(run, path.name, policy_file.SIZE_LIMIT)
            policy_file.parse(data)
            kept[path.name] = data
    return kept


def rewind(run: Path, iteration: int, best: Mapping[str, bytes]) -> None:
    """Bring table and best policies back to a checkpoint: later evaluations are repeated."""
    rows = read_evaluations(run)
    kept = [row for row in rows if row.iteration <= iteration]
    if len(kept) < len(rows):
        write_evaluations(run, kept)
    for path in list_policy_files(run, "best").values():
        if path.name not in best:
            path.unlink()
    for name, data in best.items():
        if not (run / name).exists() or (run / name).read_bytes() != data:
            files.write(run / name, data)
