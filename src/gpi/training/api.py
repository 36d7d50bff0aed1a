"""The Python interface: `gpi.train` and `gpi.resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpi.training.config import Config
from gpi.training.record import Run


def train(algorithm: str, task: str, *, out: str | Path | None = None, quiet: bool = False, **settings: Any) -> Run:
    """Train `algorithm` on `task` and return the Run; `settings` are the fields of `Config`, e.g. seeds and steps.

    Ctrl-C ends the run after its iteration, with everything written, and returns what there is.
    """
    from gpi.training.train import train as run_config

    run, _ = run_config(Config(task=task, algorithm=algorithm, **settings), Path(out) if out else None, quiet)
    return run


def resume(run: str | Path, *, steps: int | None = None, allow_drift: bool = False, quiet: bool = False) -> Run:
    """Continue an interrupted run to the bit as if it had never been, or extend a finished one to `steps` in all.

    Where versions, threads or layout changed it raises `gpi.errors.FileError`, unless drift is allowed.
    """
    from gpi.training.train import resume as resume_run

    return resume_run(Path(run), steps, allow_drift, quiet)[0]
