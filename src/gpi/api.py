"""The Python interface: `gpi.train`, `gpi.resume` and `gpi.audit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpi.errors import UsageError
from gpi.report.audit import AuditSummary, summarise
from gpi.rundir.run import Run, open_run
from gpi.training.config import Config

if TYPE_CHECKING:
    from gpi.callbacks import Callback


def train(
    algorithm: str, env: str | Callable[..., Any], *, out: str | Path | None = None, quiet: bool = False,
    callbacks: Sequence[Callback] = (), tensorboard: bool = False, **settings: Any,
) -> Run:  # fmt: skip
    """Train `algorithm` in `env` and return the Run; `settings` are the fields of `Config`, e.g. seeds and steps.

    Ctrl-C ends the run after its iteration, with everything written, and returns what there is.

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
    from gpi.envs import tasks
    from gpi.training.session import Guests
    from gpi.training.train import train as run_config

    if not (callable(env) or isinstance(env, str)):
        raise UsageError(
            f"env is a {type(env).__name__}; give a name, or the function or class that makes environments"
        )
    make = env if callable(env) else None
    name = tasks.name_of(env) if callable(env) else env
    guests = Guests(make, with_tensorboard(callbacks, tensorboard))
    config = Config(task=name, algorithm=algorithm, **settings)
    return run_config(config, Path(out) if out else None, quiet, guests)[0]


def resume(
    run: str | Path | Run, *, env: str | Callable[..., Any] | None = None, steps: int | None = None,
    allow_drift: bool = False, quiet: bool = False, callbacks: Sequence[Callback] = (), tensorboard: bool = False,
) -> Run:  # fmt: skip
    """Continue an interrupted run to the bit as if it had never been, or extend a finished one to `steps` in all.

    Where versions, threads or layout changed it raises `gpi.errors.FileError`, unless drift is allowed. A run in an
    environment of your own needs `env`, the function or name it was trained with: no file may name code to import.
    """
    from gpi.training.session import Guests
    from gpi.training.train import resume as resume_run

    guests = Guests(env if callable(env) else None, with_tensorboard(callbacks, tensorboard))
    name = env if isinstance(env, str) else ""
    return resume_run(directory_of(run), steps, allow_drift, quiet, name, guests)[0]


def audit(run: str | Path | Run) -> AuditSummary:
    """How often each bound of the theory held over all updates and seeds of a run, and how badly one broke."""
    return summarise(open_run(directory_of(run)))


def directory_of(run: str | Path | Run) -> Path:
    """The directory of a run."""
    return run.dir if isinstance(run, Run) else Path(run)


def with_tensorboard(callbacks: Sequence[Callback], tensorboard: bool) -> list[Callback]:
    """Callbacks with one that writes TensorBoard events, if asked for."""
    if not tensorboard:
        return list(callbacks)
    from gpi.callbacks import TensorBoard

    return [*callbacks, TensorBoard()]
