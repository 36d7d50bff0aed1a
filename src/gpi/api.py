"""The Python interface: `gpi.train`, `gpi.resume` and `gpi.audit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from gpi.analysis.audit import AuditSummary, summarise
from gpi.callbacks import Callback, TensorBoard
from gpi.config import Config, checked_type, expanded, require_known
from gpi.core.plan import ALGORITHMS
from gpi.envs import tasks
from gpi.errors import UsageError
from gpi.files import path_of, shown
from gpi.run import Run
from gpi.rundir import run as rundir
from gpi.rundir.run import open_run


class Settings(TypedDict, total=False):
    """The fields of `Config` as editors and type checkers know them; `task` and `algorithm` are separate arguments."""

    preset: Literal["paper"]
    seeds: int
    seed: int
    steps: int
    kappa: float
    B: int
    n: int
    eps: float
    num_envs: int
    backend: str
    reset_each_batch: bool | None
    gamma: float
    gae_lambda: float
    lr: float
    value_lr: float
    max_grad_norm: float
    epochs: int
    minibatches: int
    kl_slack: float
    trust: str
    policy: str
    normaliser: str
    return_range: Sequence[float]
    freeze_normaliser: int
    hidden: Sequence[int]
    value_hidden: Sequence[int]
    activation: str
    layer_norm: bool
    step_timeout: float
    allow_images: bool
    threads: int
    checkpoint_every: int
    eval_every: int
    eval_episodes: int
    keep_replay: bool


def train(
    algorithm: str, env: str | Callable[..., Any], *, out: str | Path | None = None, quiet: bool = False,
    callbacks: Sequence[Callback] = (), tensorboard: bool = False, **settings: Unpack[Settings],
) -> Run:  # fmt: skip
    """Train `algorithm` in `env` and return the Run; `settings` are the fields of `Config`, e.g. seeds and steps.

    Ctrl-C ends the run after its iteration, with everything written, and then raises KeyboardInterrupt, whose message
    says how to continue; a second one ends the program at once.

    Args:
        algorithm: ppo, trpo, vmpo, geppo, getrpo or gevmpo.
        env: A DeepMind Control task, a Gymnasium id, `module:id`, or a function that returns an environment.
        out: The run directory; by default a new one under runs/.
        quiet: Show no progress.
        callbacks: Functions that see a `gpi.callbacks.Report` after every iteration; one that returns True ends the
            run.
        tensorboard: Write TensorBoard events into the run directory.
        settings: Fields of `Config`; `preset="paper"` gives those that are left out the paper's values instead of the
            defaults.
    """
    from gpi.training import train as training  # it needs all of gpi

    given = expanded(settings)
    require_known(given, "gpi.train")
    checked_type("quiet", quiet, bool)
    if isinstance(env, str) and env in ALGORITHMS and not (isinstance(algorithm, str) and algorithm in ALGORITHMS):
        other = repr(algorithm) if isinstance(algorithm, str) else "env"
        raise UsageError(f"gpi.train takes the algorithm first; write gpi.train({env!r}, {other}, ...)")
    tasks.require_env(env)
    make = env if callable(env) else None
    name = tasks.name_of(env) if callable(env) else env
    user = training.UserCode(make, with_tensorboard(callbacks, tensorboard))
    config = Config(task=name, algorithm=algorithm, **given)
    directory = None if out is None else path_of(out, "out")
    return passing_on(*training.train(config, directory, user, quiet=quiet, typed=settings), env)


def resume(
    run: str | Path | rundir.Run, *, env: str | Callable[..., Any] | None = None, steps: int | None = None,
    allow_drift: bool = False, quiet: bool = False, callbacks: Sequence[Callback] = (), tensorboard: bool = False,
) -> Run:  # fmt: skip
    """Continue an interrupted run, bit for bit, as if it had never been interrupted; or extend a finished one.

    Where versions, threads or layout changed it raises `gpi.errors.FileError`, unless drift is allowed. A run in an
    environment of your own needs `env`, the function or name it was trained with: no file may name code to import.
    """
    from gpi.training import train as training

    checked_type("quiet", quiet, bool)
    checked_type("allow_drift", allow_drift, bool)
    if env is None and isinstance(run, rundir.Run):
        env = run.env
    tasks.require_env(env)
    user = training.UserCode(env if callable(env) else None, with_tensorboard(callbacks, tensorboard))
    name = env if isinstance(env, str) else ""
    ended = training.resume(path_of(run, "run"), steps, user, env=name, allow_drift=allow_drift, quiet=quiet)
    return passing_on(*ended, env)


def passing_on(run: rundir.Run, number: int | None, env: str | Callable[..., Any] | None) -> Run:
    """Return a run that no signal ended, with the user's own environment if it was trained in one.

    Otherwise pass the signal on, so that a loop around it ends too.
    """
    from gpi.training.signals import pass_on

    if number is not None:
        pass_on(number, f"interrupted and saved: gpi.resume({str(run.dir)!r}) continues")
    return Run(run.dir, env if callable(env) or ":" in (env or "") else None)


def audit(run: str | Path | rundir.Run) -> AuditSummary:
    """Count how often each bound of the theory held over all updates and seeds of a run, and find the worst update."""
    return summarise(open_run(path_of(run, "run")))


def with_tensorboard(callbacks: Sequence[Callback], tensorboard: bool) -> list[Callback]:
    """Return the callbacks, with one added that writes TensorBoard events if requested."""
    if not isinstance(callbacks, Iterable):
        raise UsageError(f"callbacks = {shown(callbacks)} must be a list of functions; write callbacks=[...]")
    every = list(callbacks)
    for callback in every:
        if not callable(callback) or isinstance(callback, type):
            raise UsageError(f"callback {shown(callback)} must be a function, or an object that can be called")
        if not takes_one_argument(callback):
            rule = "must take one argument, the report of an iteration"
            raise UsageError(f"callback {shown(callback)} {rule}; write def callback(report): ...")
    checked_type("tensorboard", tensorboard, bool)
    return [*every, TensorBoard()] if tensorboard else every


def takes_one_argument(function: Callable[..., object]) -> bool:
    """Return whether a function can be called with one argument; of one that does not say, assume it."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # some of C's
        return True
    return True
