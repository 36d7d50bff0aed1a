"""DONE: how a run ended."""

from __future__ import annotations

from pathlib import Path

from gpi import files
from gpi.errors import FileError
from gpi.standalone import Facts


def read_done(directory: Path) -> Facts | None:
    """Return the content of DONE, or None if the run has not ended."""
    if not (directory / "DONE").exists():
        return None
    done = files.parse_json(files.read(directory, "DONE", files.JSON_LIMIT), "DONE")
    steps, frozen = done.get("steps"), done.get("frozen")
    well_formed = type(done.get("complete")) is bool and isinstance(steps, list) and isinstance(frozen, dict)
    if not well_formed or not all(type(count) is int for count in done["steps"]):
        raise FileError(f"{directory}: DONE cannot be used: it lacks complete, steps or frozen; remove it to resume")
    return done
