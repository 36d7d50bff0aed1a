"""One attempt at a run: from its start or its newest checkpoint to its end, whatever ends it."""

from __future__ import annotations

import dataclasses
import functools
import os
import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpi import files, policy_file
from gpi.envs import dmc, tasks
from gpi.envs.pool import Seekable, Spec
from gpi.envs.seeds import env_seeds
from gpi.errors import DivergedError, EnvironmentFault
from gpi.rundir import run as record
from gpi.rundir.recorder import Recorder
from gpi.rundir.resume import Saver
from gpi.rundir.run import Run
from gpi.training import devices as runtime
from gpi.training.config import Config, plan_of
from gpi.training.progress import Progress, Report
from gpi.training.signals import Interrupt, interruptible

if TYPE_CHECKING:  # a run must set JAX and EnvPool up before it starts them
    from gpi.callbacks import Callback
    from gpi.envs.gym import Make
    from gpi.evaluation import Evaluation

CURVE = "learning_curve.png"
TRACEBACK = "environment-error.txt"


class Guests(NamedTuple):
    """What a user brings to a run besides settings: none of it is in the run directory."""

    make: Make | None = None  # makes the user's own environments
    callbacks: Sequence[Callback] = ()


class Attempt:
    """A run in a directory that is held."""

    def __init__(self, config: Config, directory: Path, about: dict[str, Any], progress: Progress, guests: Guests):
        """Nothing is begun; `about` is what config.json says of a run that is resumed."""
        self.config, self.directory, self.about = config, directory, about
        self.progress, self.guests = progress, guests
        self.began = time.perf_counter()
        self.first: float | None = None  # seconds to the first iteration
        self.stopped = False  # by a callback

    def carry_on(self, *, resuming: bool = False, allow_drift: bool = False) -> tuple[Run, int | None]:
        """Start or restore, iterate, save, finish; returns the run, and the signal that cut it short, if one did."""
        import jax

        self.x64 = jax.dtypes.canonicalize_dtype("float64") == "float64"  # what the user's own code is to find
        # A GPU would otherwise multiply float32 matrices with 10 bits of mantissa, too few for conjugate gradients.
        with ExitStack() as stack:
            stack.callback(self.progress.close)
            stack.callback(self._close_callbacks)
            stack.enter_context(jax.enable_x64(True))
            stack.enter_context(jax.default_matmul_precision("highest"))
            interrupt = stack.enter_context(interruptible())
            try:
                trainer, recorder, saver, exact = self._set_out(stack, resuming=resuming, allow_drift=allow_drift)
                fault = self._iterate(trainer, recorder, saver, interrupt)
                self._finish(trainer, recorder, saver, {
                    "complete": interrupt.signal is None and fault is None and not recorder.all_frozen(),
                    "stopped": self.stopped, "exact": exact, "frozen": recorder.frozen,
                })  # fmt: skip
                warn(recorder, trainer, self.progress)
                if fault is None and recorder.all_frozen():
                    fault = every_seed_frozen(self.directory, self.config, recorder)
                if fault is not None:
                    raise fault
                return Run(self.directory), interrupt.signal
            except EnvironmentFault as error:
                raise kept(error, self.directory) from error.__cause__

    def _set_out(self, stack: ExitStack, *, resuming: bool, allow_drift: bool) -> tuple[Any, Recorder, Saver, bool]:
        """The population in its environments, at its start or where its newest checkpoint was; its tables, open."""
        from gpi.training.trainer import Trainer

        config, directory = self.config, self.directory
        devices = runtime.devices(config)
        pool = make_pool(config, self.guests.make, self.x64)
        stack.callback(pool.close)
        saver = Saver(directory, config, identity_of(devices, pool), self.progress)
        drift = saver.drift() if resuming else []
        if not allow_drift:
            saver.refuse(drift)
        exact = self.about.get("exact") is not False and not drift
        if not resuming:
            write_config(directory, config, devices, self.about, exact)
        self.progress.say(headline(config, devices, directory))
        trainer, recorder = Trainer(config, pool, devices), None
        if resuming:  # what is refused stays untouched: only now is anything written
            recorder, exact = saver.restore(trainer, exact, allow_drift)
            write_config(directory, config, devices, self.about, exact)
            (directory / "DONE").unlink(missing_ok=True)
        if recorder is None:
            trainer.warm_up()
            recorder = Recorder(directory, config)
        stack.callback(recorder.close)
        return trainer, recorder, saver, exact

    def _iterate(self, trainer: Any, recorder: Recorder, saver: Saver, interrupt: Interrupt) -> Exception | None:
        """Iterate until the run is long enough, or something ends it.

        A fault of the environment or of a callback is returned, because what was learned before it is good.
        """
        self.progress.begin(recorder.slowest())
        iterations = () if recorder.all_frozen() else trainer.iterations(self.config.steps)
        try:
            for it in iterations:
                report = self._report(trainer, recorder, it.k, recorder.add(it))
                self.progress.show(report)
                self.first = self.first or time.perf_counter() - self.began
                fault = self._show(report)
                if fault is not None or self.stopped or interrupt.signal is not None or recorder.all_frozen():
                    return fault
                if it.k % self.config.checkpoint_every == 0:
                    saver.try_save(trainer, recorder)
        except EnvironmentFault as error:
            return error
        return None

    def _show(self, report: Report) -> Exception | None:
        """Call every callback, in the setting that the user had; one that fails ends the run like any other end."""
        import jax

        try:
            with jax.enable_x64(self.x64):
                wishes = [callback(report) for callback in self.guests.callbacks]
        except Exception as error:
            return error
        self.stopped = any(wish is True or (isinstance(wish, np.bool_) and bool(wish)) for wish in wishes)
        return None

    def _report(self, trainer: Any, recorder: Recorder, k: int, measured: dict[str, np.ndarray]) -> Report:
        """An iteration for progress and callbacks."""
        from gpi.evaluation import play

        config, make, seeds = self.config, self.guests.make, tuple(trainer.seeds)

        def policy(seed: int) -> policy_file.Policy:
            return policy_file.policy_of(*learned(trainer, recorder, seeds.index(seed)))

        def evaluation(episodes: int) -> Evaluation:
            task = tasks.find(config.task, config.backend, make)
            return play({seed: policy(seed) for seed in seeds}, task, make, episodes)

        return Report(
            directory=self.directory, iteration=k, seeds=seeds, steps=recorder.slowest(), of=config.steps,
            seed_steps=recorder.steps.copy(), returns=recorder.returns(), metrics=measured, policy=policy,
            evaluate=evaluation, say=self.progress.say,
        )  # fmt: skip

    def _finish(self, trainer: Any, recorder: Recorder, saver: Saver, facts: dict[str, Any]) -> None:
        """The last checkpoint, the policies, the picture, and DONE."""
        from gpi.report.curves import learning_curves

        directory = self.directory
        if saver.saved != trainer.done:
            saver.save(trainer, recorder)
        for p, seed in enumerate(trainer.seeds):
            policy_file.save(directory / f"policy-{seed}.safetensors", *learned(trainer, recorder, p))
        run = Run(directory)
        if any(len(run.episodes(seed)[0]) for seed in run.seeds):
            try:
                learning_curves([run], directory / CURVE)
            except OSError as error:  # `gpi plot` draws it again
                self.progress.say(f"warning: {directory / CURVE} cannot be written: {error.strerror}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        record.write_json(directory / "DONE", {
            **facts, "seconds": time.perf_counter() - self.began, "first_iteration_seconds": self.first,
            "compile_seconds": trainer.compile_seconds, "iterations": trainer.done,
            "steps": [int(x) for x in recorder.steps], "peak_rss_mb": peak,
            "returns": {str(seed): None if np.isnan(x) else x for seed, x in run.returns.items()},
        })  # fmt: skip

    def _close_callbacks(self) -> None:
        """Callbacks that hold files open let go of them."""
        from gpi.callbacks import TensorBoard

        for callback in self.guests.callbacks:
            if isinstance(callback, TensorBoard):
                callback.close()


def kept(error: EnvironmentFault, directory: Path) -> EnvironmentFault:
    """A fault of the environment whose traceback is in the run directory."""
    from gpi.envs.checks import traceback_of

    text = traceback_of(error)
    if text is None:
        return error
    path = directory / TRACEBACK
    files.write(path, text.encode())
    return EnvironmentFault(f"{error} (traceback: {path})")


def every_seed_frozen(directory: Path, config: Config, recorder: Recorder) -> DivergedError | EnvironmentFault:
    """Why nothing is left to train: the environment, if that is what froze all of them, or learning."""
    where = f"{directory} has their last good policies"
    if {fault["stage"] for fault in recorder.frozen.values()} <= {"observation", "reward"}:
        return EnvironmentFault(
            f"{config.task}: every seed met {recorder.faults()}; mend the environment and train anew; {where}"
        )
    return DivergedError(f"every seed diverged: {recorder.faults()}; {where}")


def learned(trainer: Any, recorder: Recorder, p: int) -> tuple[Any, Any, Spec, dict[str, str]]:
    """What makes a policy of the member in place `p`: theta, normaliser, task, and facts about it."""
    import jax

    config, seed = recorder.config, trainer.seeds[p]
    state = (trainer.state.agent.policy.params, trainer.state.normaliser)
    theta, normaliser = jax.device_get(jax.tree.map(lambda x: x[p], state))
    about = {
        "task": trainer.pool.spec.id, "backend": config.backend, "algorithm": config.algorithm, "seed": str(seed),
        "steps": str(recorder.steps[p]),
    }  # fmt: skip
    return theta, normaliser, trainer.pool.spec, about


def warn(recorder: Recorder, trainer: Any, progress: Progress) -> None:
    """Closing lines about what needs attention."""
    from gpi.core.policy import MIN_LOG_STD

    if recorder.frozen:
        progress.say(f"warning: frozen at their last good state: {recorder.faults()}")
    if trainer.pool.spec.discrete:
        return
    log_std = np.asarray(trainer.state.agent.policy.params.log_std)
    low = [seed for p, seed in enumerate(trainer.seeds) if (log_std[p] <= MIN_LOG_STD).any()]
    if low:
        progress.say(f"warning: the standard deviation of an action is at its floor of 0.001 in seeds {low}")


def seeds_of(config: Config) -> list[int]:
    """The environment seeds of all members, in the order of the pool."""
    name = config.task.removeprefix("dmc/")
    task = dmc.TASKS[name].id if name in dmc.TASKS else config.task
    seeds = range(config.seed, config.seed + config.seeds)
    return [name for seed in seeds for name in env_seeds(task, config.algorithm, seed, config.num_envs)]


def make_pool(config: Config, make: Make | None = None, x64: bool | None = None) -> Seekable:
    """The population's environments; their threads stay on their cores if the run has the whole machine.

    A user's environments in this process run with the `x64` of JAX that the user had, where it is known.
    """
    import jax

    seeds = seeds_of(config)
    threads = config.threads or min(runtime.cores(), len(seeds))
    first_core = 0 if threads == os.cpu_count() == runtime.cores() else -1
    task = tasks.find(config.task, config.backend, make)
    if task.backend != "gymnasium" or x64 is None:
        return tasks.make_pool(task, seeds, threads, first_core, make)
    with jax.enable_x64(x64):
        pool: Any = tasks.make_pool(task, seeds, threads, first_core, make)
    pool.around = functools.partial(jax.enable_x64, x64)
    return pool


def identity_of(devices: list[Any], pool: Seekable) -> dict[str, Any]:
    """Everything besides the settings that decides the bits of a result, and what the environments are like."""
    spec = pool.spec
    environment = {
        "observation_size": spec.observation_size, "action_size": spec.action_size, "discrete": spec.discrete,
        "low": list(spec.low), "high": list(spec.high), "start": spec.start,
    }  # fmt: skip
    return runtime.identity(devices) | {"environment": environment}


def headline(config: Config, devices: list[Any], directory: Path) -> str:
    """What is about to run, in one line."""
    plan = plan_of(config)
    last = config.seed + config.seeds - 1
    seeds = f"seed {config.seed}" if config.seeds == 1 else f"seeds {config.seed} to {last}"
    where = f"{len(devices)} {devices[0].platform.upper()} device{'s' if len(devices) > 1 else ''}"
    fewer = " (JAX was started with one; `gpi train` would use every core)" if unsharded(config, devices) else ""
    reuse = f"reuses {len(plan.nu)} policies, eps_gpi {plan.eps:.4f}" if len(plan.nu) > 1 else f"eps {plan.eps:.4f}"
    return f"{config.algorithm} on {config.task}, {seeds}, {reuse}, {where}{fewer}, writing {directory}"


def unsharded(config: Config, devices: list[Any]) -> bool:
    """Whether JAX was running before us with fewer CPU devices than this machine could give the population."""
    return devices[0].platform == "cpu" and len(devices) < runtime.host_devices(config)


def write_config(directory: Path, config: Config, devices: list[Any], about: dict[str, Any], exact: bool) -> None:
    """Everything needed to repeat the run, before anything else is written; a resumed run keeps when it started."""
    plan = plan_of(config)
    record.write_json(directory / "config.json", {
        "config": dataclasses.asdict(config),
        "plan": {**dataclasses.asdict(plan), "M": len(plan.nu)},
        "env_seeds": seeds_of(config),
        "devices": [str(device) for device in devices],
        "runtime": runtime.settings(),
        "versions": runtime.versions(),
        "exact": exact,
        "started": about.get("started") or datetime.now().astimezone().isoformat(timespec="seconds"),
    })  # fmt: skip
