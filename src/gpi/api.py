"""The Python interface: `gpi.train`, `gpi.resume` and `gpi.audit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpi.callbacks import Callback, TensorBoard
from gpi.config import Config
from gpi.envs import tasks
from gpi.errors import UsageError
from gpi.report.audit import AuditSummary, summarise
from gpi.run import Run
from gpi.rundir import run as rundir
from gpi.rundir.run import open_run


def train(
    algorithm: str, env: str | Callable[..., Any], *, out: str | Path | None = None, quiet: bool = False,
    callbacks: Sequence[Callback] = (), tensorboard: bool = False, **settings: Any,
) -> Run:  # fmt: skip
    """Train `algorithm` in `env` and return the Run; `settings` are the fields of `Config`, e.g. seeds and steps.

    Ctrl-C ends the run after its iteration, with everything written, and returns the run so far.

    Args:
        algorithm: ppo, trpo, vmpo, geppo, getrpo or gevmpo.
        env: A DeepMind Control task, a Gymnasium id, `module:id`, or a function that returns an environment.
        out: The run directory; by default a new one under runs/.
        quiet: Show no progress.
        callbacks: Functions that see a `gpi.callbacks.Report` after every iteration; one that returns True ends the
            run.
        tensorboard: Write TensorBoard events into the run directory.
        settings: Fields of `Config`.
    """
    from gpi.training import train as training  # it needs all of gpi

    if not (callable(env) or isinstance(env, str)):
        raise UsageError(
            f"env is a {type(env).__name__}; give a name, or the function or class that makes environments"
        )
    make = env if callable(env) else None
    name = tasks.name_of(env) if callable(env) else env
    user = training.UserCode(make, with_tensorboard(callbacks, tensorboard))
    config = Config(task=name, algorithm=algorithm, **settings)
    return Run(training.train(config, Path(out) if out else None, user, quiet=quiet)[0].dir)


def resume(
    run: str | Path | rundir.Run, *, env: str | Callable[..., Any] | None = None, steps: int | None = None,
    allow_drift: bool = False, quiet: bool = False, callbacks: Sequence[Callback] = (), tensorboard: bool = False,
) -> Run:  # fmt: skip
    """Continue an interrupted run, bit for bit, as if it had never been interrupted; or extend a finished one.

    Where versions, threads or layout changed it raises `gpi.errors.FileError`, unless drift is allowed. A run in an
    environment of your own needs `env`, the function or name it was trained with: no file may name code to import.
    """
    from gpi.training import train as training

    user = training.UserCode(env if callable(env) else None, with_tensorboard(callbacks, tensorboard))
    name = env if isinstance(env, str) else ""
    done = training.resume(directory_of(run), steps, user, env=name, allow_drift=allow_drift, quiet=quiet)
    return Run(done[0].dir)


def audit(run: str | Path | rundir.Run) -> AuditSummary:
    """Count how often each bound of the theory held over all updates and seeds of a run, and find the worst update."""
    return summarise(open_run(directory_of(run)))


def directory_of(run: str | Path | rundir.Run) -> Path:
    """Return the directory of a run."""
    return run.dir if isinstance(run, rundir.Run) else Path(run)


def with_tensorboard(callbacks: Sequence[Callback], tensorboard: bool) -> list[Callback]:
    """Return the callbacks, with one added that writes TensorBoard events if requested."""
    if not tensorboard:
        return list(callbacks)
    return [*callbacks, TensorBoard()]
