"""Results from wherever they lie: packs, run directories and trees of them, all read without trust.

Of a run only six files are read, each a plain file of bounded size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpi import files
from gpi.errors import FileError, UsageError, read_error
from gpi.study.results import Placed, encode_pack, parse_pack, read_pack, read_result

NEEDED = ("config.json", "episodes.csv")
TAKEN = (*NEEDED, "DONE", "metrics.csv", "audit.csv", "audit.json")
FILE_LIMIT = 1 << 26  # bytes of one file of a run: a thousand times what a run of the study has
START = 1 << 20  # bytes in which an audit has its first row
ARCHIVES = (".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz", ".zip")


def read_source(path: Path) -> list[Placed]:
    """Return the results in a pack, a run directory or a tree of run directories.

    Runs that are not complete are results too; those without an update are none.
    """
    if path.is_dir():
        return [one for run in run_directories(path) for one in read_run(run, str(run))]
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a pack, a run directory or a tree of them")
    if path.name.lower().endswith(ARCHIVES):
        raise UsageError(f"{path} is an archive; unpack it and name the directory, or a pack (`gpi study pack`)")
    return [Placed(one, str(path)) for one in read_pack(path)]


def run_directories(tree: Path) -> Iterator[Path]:
    """Yield the run directories in a tree, sorted by name; links are not followed, nor is a run searched further."""

    def refuse(error: OSError) -> None:
        raise read_error(error.filename, error) from error

    for place, inner, names in os.walk(tree, onerror=refuse):
        inner.sort()
        if set(NEEDED) <= set(names):
            inner.clear()
            yield Path(place)


def read_run(directory: Path, place: str) -> list[Placed]:
    """Return the result of a run directory that may come from anywhere; an empty list before its first update.

    The result goes through the form of a pack, so that one check serves every source.
    """
    try:
        require_plain(directory)
        if not has_updates(directory):
            return []
        with np.errstate(over="ignore", invalid="ignore"):  # a pack refuses values that are not finite
            result = read_result(directory)
        return [Placed(one, place) for one in parse_pack(encode_pack([result]))]
    except FileError as error:
        raise FileError(f"run {place}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = files.shown(f"{type(error).__name__} {error}")
        raise FileError(f"run {place} cannot be used: {why}; restore it, or leave it out") from error


def require_plain(directory: Path) -> None:
    """Raise FileError unless the files read of a run are plain and of bounded size."""
    for name in TAKEN:
        try:
            facts = os.lstat(directory / name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > FILE_LIMIT:
            found = f"mode {facts.st_mode:o} with {facts.st_size} bytes"
            raise FileError(f"{name} is refused (expected a plain file of at most {FILE_LIMIT} bytes, found {found})")


def has_updates(directory: Path) -> bool:
    """Return whether a run has a row in its audit, or the sums of one that was cut down."""
    if (directory / "audit.json").exists():
        return True
    try:
        with (directory / "audit.csv").open("rb") as file:
            return file.read(START).count(b"\n") > 1
    except OSError:
        return False
