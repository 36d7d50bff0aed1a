"""One session of a run: from its start or its newest checkpoint until it ends, for any reason.

`start` and `resume` are two lists of steps that end in the same loop, `_iterate`.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpi import files
from gpi.callbacks import Report, close_all
from gpi.envs import tasks
from gpi.envs.faults import traceback_of
from gpi.errors import DiskError, DivergedError, EnvironmentFault, FileError
from gpi.evaluation import Evaluation, play, undisturbed
from gpi.machine import cores
from gpi.policy_file import content, policy_of, save
from gpi.rundir import checkpoint, segments
from gpi.rundir.checkpoint import Checkpoint
from gpi.rundir.evaluations import kept_best, read_evaluations, rewind
from gpi.rundir.resume import ALLOW, find_checkpoint, identity_of
from gpi.rundir.run import CURVE, Run, final_window
from gpi.rundir.tables import RunTables, describe, slowest
from gpi.standalone import Facts
from gpi.training.about import environment_facts, headline, short_names, write_config, write_done
from gpi.training.devices import Device, learning_devices, machine_identity
from gpi.training.job import Job, require_not_fewer, require_policy
from gpi.training.progress import Progress
from gpi.training.signals import Interrupt, interruptible

if TYPE_CHECKING:  # a run sets JAX up before it starts
    from gpi.core.normaliser import Normaliser
    from gpi.core.policy import Theta
    from gpi.core.sample import Rollout
    from gpi.envs.pool import CompiledPool, HostPool, Spec
    from gpi.standalone import Policy
    from gpi.training.trainer import Trainer

TRACEBACK = "environment-error.txt"


class Running(NamedTuple):
    """A run under way."""

    trainer: Trainer
    tables: RunTables
    identity: Facts  # what decides its bits, for its checkpoints
    exact: bool


class Session:
    """A session of a run, in a directory whose lock this process holds."""

    def __init__(self, job: Job, directory: Path, progress: Progress):
        """Keep what to run, and where; nothing starts yet."""
        self.job, self.directory, self.progress = job, directory, progress
        self.began = time.perf_counter()
        self.first: float | None = None  # seconds to the first iteration
        self.stopped = False  # by a callback
        self.saved = -1  # the iteration of the newest checkpoint
        self.segments: list[Facts] = []  # that the newest checkpoint needs
        self.announced: set[str] = set()  # seeds that were said to be frozen
        self.warm_up: list[Rollout] = []  # its batches, if this session began the run

    def start(self) -> tuple[Run, int | None]:
        """Train from the beginning; return the run, and the signal that cut it short, if one did."""
        with self._in_environments() as (pool, devices, interrupt):
            write_config(self.directory, self.job, devices, exact=not self.job.departure)
            self._announce(devices)
            trainer, identity = self._trainer(pool, devices)
            trainer.compile()
            self.progress.collecting(self.job, pool, self.job.warm_up_steps)
            self.warm_up, tables = trainer.warm_up(), RunTables(self.directory, self.job)
            return self._train(Running(trainer, tables, identity, not self.job.departure), interrupt)

    def resume(self, about: Facts, *, allow_drift: bool) -> tuple[Run, int | None]:
        """Train from the newest checkpoint, given the content of config.json; a run that is refused stays untouched."""
        with self._in_environments() as (pool, devices, interrupt):
            trainer, identity = self._trainer(pool, devices)
            found = find_checkpoint(self.directory, trainer.layout(), identity, allow_drift=allow_drift)
            if found.checkpoint is not None:
                require_not_fewer(self.directory, self.job, about, taken_at(found.checkpoint, self.directory, self.job))
            self._announce(devices)
            if self.job.config.steps < about["config"].get("steps", 0):
                self.progress.say(
                    f"note: it will end at {self.job.config.steps:,} steps, before at {about['config']['steps']:,}"
                )
            for line in found.skipped:
                self.progress.say(f"skipped {line}")
            trainer.compile()
            self.progress.collecting(self.job, pool, 0 if found.checkpoint else self.job.warm_up_steps)
            exact = found.checkpoint is None or (about.get("exact") is not False and not found.drift)
            same = self._restore(trainer, found.checkpoint, allow_drift=allow_drift)
            read_evaluations(self.directory)  # a damaged table is refused before anything is touched
            tables = self._reopen_tables(found.checkpoint, same=same)
            rewind(self.directory, trainer.done, found.checkpoint.best if found.checkpoint else {})
            write_config(self.directory, self.job, devices, exact=exact and same, started=about.get("started"))
            (self.directory / "DONE").unlink(missing_ok=True)
            return self._train(Running(trainer, tables, identity, exact and same), interrupt)

    @contextmanager
    def _in_environments(self) -> Iterator[tuple[CompiledPool | HostPool, list[Device], Interrupt]]:
        """Make the environments, under the JAX settings that training needs; free them at the end."""
        import jax

        self.x64 = jax.dtypes.canonicalize_dtype("float64") == "float64"  # for the user's own code
        with ExitStack() as stack:
            stack.callback(close_all, self.job.callbacks)
            stack.enter_context(jax.enable_x64(True))
            # A GPU would otherwise multiply float32 matrices with 10 bits of mantissa, too few for conjugate gradients.
            stack.enter_context(jax.default_matmul_precision("highest"))
            interrupt = stack.enter_context(interruptible())
            try:
                devices = learning_devices(self.job.config)
                self.pool = pool = make_environments(self.job, self.x64)
                stack.callback(pool.close)
                require_policy(self.job.config, pool.spec)
                yield pool, devices, interrupt
            except EnvironmentFault as error:
                raise save_traceback(error, self.directory) from error.__cause__

    def _announce(self, devices: list[Device]) -> None:
        """Announce the run, and that it is being compiled."""
        self.progress.say(headline(self.job, devices, self.directory))
        whole = self.job.plan.steps
        if self.job.config.steps < whole:
            less = f"--steps {self.job.config.steps:,} is less than one iteration"
            self.progress.say(f"note: {less}, which is {whole:,} samples per seed; the run takes a whole one")
        self.progress.compiling()

    def _trainer(self, pool: CompiledPool | HostPool, devices: list[Device]) -> tuple[Trainer, Facts]:
        """Make the population in its environments; return it, and everything that decides its bits."""
        from gpi.training.trainer import Trainer

        machine = machine_identity(devices) | {"environment": environment_facts(pool.spec)}
        return Trainer(self.job, pool, devices), identity_of(self.job.config, machine)

    def _restore(self, trainer: Trainer, found: Checkpoint | None, *, allow_drift: bool) -> bool:
        """Bring a new trainer to a checkpoint, or start it; return whether its environments were replayed exactly."""
        if found is None:
            self.progress.say("no valid checkpoint: starting from the beginning")
            self.warm_up = trainer.warm_up()
            return not self.job.departure
        promised = not self.job.departure  # else nothing is replayed: the running episodes count as just begun
        arrays = found.arrays | {"place/calls": found.arrays["place/calls"] * promised}
        same = bool(trainer.restore(arrays, found.state).all()) and promised
        if not same:
            what = f"environments of {self.job.config.task} do not show again what they had shown"
            if promised and self.job.task.compiled and not allow_drift:
                raise FileError(f"{self.directory} cannot be resumed exactly: {what}; {ALLOW}")
            self.progress.say(f"{what}: they begin new episodes, and this run is no longer exact")
            trainer.start_over()
        self.saved, self.segments = found.iteration, found.segments
        self.progress.say(f"resuming after iteration {found.iteration}")
        return same

    def _reopen_tables(self, found: Checkpoint | None, *, same: bool) -> RunTables:
        """Return the tables as they were at a checkpoint; episodes that cannot be continued are forgotten."""
        if found is None:
            return RunTables(self.directory, self.job)
        try:
            tables = RunTables(self.directory, self.job, found.state)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__} {error}"
            raise FileError(
                f"checkpoint {found.iteration} of {self.directory}: state.json does not fit: {what}"
            ) from error
        if not same:
            tables.episodes.forget()
        return tables

    def _train(self, run: Running, interrupt: Interrupt) -> tuple[Run, int | None]:
        """Iterate, save, finish; return the run, and the signal that cut it short, if one did."""
        tables = run.tables
        tables.begin(self.warm_up)
        self.warm_up.clear()  # days of training need not hold it
        try:
            fault = self._iterate(run, interrupt)
            complete = interrupt.signal is None and fault is None and not tables.all_frozen()
            self._finish(run, complete=complete)
        finally:
            tables.close()
        warn(run, self.progress)
        if fault is None and tables.all_frozen():
            fault = every_seed_frozen(self.directory, self.job, tables)
        if isinstance(fault, EnvironmentFault) and not tables.all_frozen():
            fault = with_remedy(fault, self.directory, self.job)
        if fault is not None:
            raise fault
        return Run(self.directory), interrupt.signal

    def _iterate(self, run: Running, interrupt: Interrupt) -> Exception | None:
        """Iterate until the run is long enough, or something ends it.

        A fault of the environment or of a callback is returned, not raised: everything learned before it is good.
        """
        trainer, tables, config = run.trainer, run.tables, self.job.config
        self.progress.begin(tables.slowest())
        try:
            for it in () if tables.all_frozen() or interrupt.signal else trainer.iterations(config.steps):
                report = self._report(run, it.number, tables.add(it))
                self._announce_frozen(tables)
                for line in it.kept.lines if it.kept else ():
                    self.progress.say(line)
                self.progress.show(report, self.pool.notes)
                self.first = self.first or time.perf_counter() - self.began
                fault = self._call_back(report)
                if fault is not None or self.stopped or interrupt.signal is not None or tables.all_frozen():
                    return fault
                if it.number % config.checkpoint_every == 0:
                    self._try_save(run)
        except EnvironmentFault as error:
            return error
        return None

    def _announce_frozen(self, tables: RunTables) -> None:
        """Say which seeds have been frozen since this was last called."""
        new = {seed: fault for seed, fault in tables.frozen.items() if seed not in self.announced}
        if new:
            others = "" if tables.all_frozen() else "; the others continue"
            self.progress.say(f"warning: frozen at its last good state: {describe(new)}{others}")
        self.announced |= new.keys()

    def _call_back(self, report: Report) -> Exception | None:
        """Call every callback, under the user's JAX settings; return the error of one that fails: it ends the run."""
        import jax

        try:
            with jax.enable_x64(self.x64):
                answers = [callback(report) for callback in self.job.callbacks]
        except Exception as error:
            return error
        self.stopped = any(answer is True or (isinstance(answer, np.bool_) and bool(answer)) for answer in answers)
        return None

    def _report(self, run: Running, number: int, measured: dict[str, np.ndarray]) -> Report:
        """Return an iteration as progress and callbacks see it."""
        job, tables = self.job, run.tables

        def policy(seed: int) -> Policy:
            return policy_of(*learned(run, job.member(seed)))

        def evaluation(episodes: int) -> Evaluation:
            # Not the episodes of `gpi eval`: what chooses a policy must not judge it too.
            policies = {seed: policy(seed) for seed in job.seeds}
            with undisturbed():
                return play(policies, job.task, job.make, episodes, purpose="evaluation in training")

        def save_policy(seed: int, path: Path, facts: dict[str, str]) -> None:
            theta, normaliser, spec, about = learned(run, job.member(seed))
            save(path, theta, normaliser, spec, about | facts)

        return Report(
            directory=self.directory, iteration=number, seeds=tuple(job.seeds), steps=tables.slowest(),
            of=job.config.steps, seed_steps=tables.steps.copy(), returns=tables.returns(), metrics=measured,
            policy=policy, evaluate=evaluation, save=save_policy, say=self.progress.say,
        )  # fmt: skip

    def _save(self, run: Running) -> None:
        """Save a checkpoint of everything, now."""
        trainer = run.trainer
        state = run.tables.state() | {"observation_names": short_names(trainer.spec)} | trainer.facts()
        state |= self.job.departure
        policies = {f"policy-{seed}.safetensors": content(*learned(run, p)) for p, seed in enumerate(self.job.seeds)}
        packs = {checkpoint.POLICIES: policies, checkpoint.BEST: kept_best(self.directory)}
        listed = segments.add(self.directory, self.segments, *trainer.new_batches(segments.end_of(self.segments)))
        checkpoint.save(self.directory, trainer.done, trainer.snapshot(), state, run.identity, packs, listed)
        self.saved, self.segments = trainer.done, listed

    def _try_save(self, run: Running) -> None:
        """Save a checkpoint, unless the disk is full: the last one stays, training continues, the next may succeed."""
        try:
            self._save(run)
        except DiskError as error:
            self.progress.say(f"warning: {error}; training continues")

    def _finish(self, run: Running, *, complete: bool) -> None:
        """Write the last checkpoint, the policies, the picture, and DONE."""
        directory, trainer, tables = self.directory, run.trainer, run.tables
        if self.saved != trainer.done:
            self._save(run)
        for p, seed in enumerate(self.job.seeds):
            save(directory / f"policy-{seed}.safetensors", *learned(run, p))
        result = Run(directory)
        self._draw(result)
        write_done(directory, {
            "complete": complete, "stopped": self.stopped, "exact": run.exact, "frozen": tables.frozen,
            "seconds": time.perf_counter() - self.began, "first_iteration_seconds": self.first,
            "compile_seconds": trainer.compile_seconds, "iterations": trainer.done,
            "steps": [int(x) for x in tables.steps],
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "returns": {str(seed): None if np.isnan(x) else x for seed, x in result.returns.items()},
            "final_steps": final_window(max(result.steps.values())),
        } | trainer.facts() | self.job.departure)  # fmt: skip
        if complete and not self.stopped and not self.job.config.keep_replay:
            segments.discard(directory)

    def _draw(self, result: Run) -> None:
        """Draw the learning curves; a full disk or a broken matplotlib costs the picture, and nothing else."""
        try:
            from gpi.report.curves import has_episodes, learning_curves  # matplotlib takes long to import

            if has_episodes(result):
                learning_curves([result], self.directory / CURVE)
        except DiskError as error:
            self.progress.say(f"warning: {error}")
        except ImportError as error:
            again = f"`gpi plot {self.directory}` draws it once that is fixed"
            self.progress.say(f"warning: {CURVE} is not drawn: {error}; {again}")


def make_environments(job: Job, x64: bool | None = None) -> CompiledPool | HostPool:
    """Make the population's environments; their threads are pinned to cores if the run has the whole machine.

    A user's environments in this process run with the `x64` of JAX that the user had, where it is known.
    """
    import jax

    seeds = job.env_seeds
    threads = job.config.threads or min(cores(), len(seeds))
    first_core = 0 if threads == os.cpu_count() == cores() else -1
    if job.task.backend != "gymnasium" or x64 is None:
        limit = job.config.step_timeout
        return tasks.make_pool(job.task, seeds, threads, first_core, job.make, step_timeout=limit)
    around = functools.partial(jax.enable_x64, x64)
    with around():
        return tasks.make_pool(job.task, seeds, threads, first_core, job.make, around)


def taken_at(found: Checkpoint, directory: Path, job: Job) -> int:
    """Return the steps that a run has taken by its tables, which may be ahead of its newest checkpoint.

    0 if table or checkpoint cannot say: they are refused later.
    """
    try:
        return slowest(job.seeds, list(Run(directory).steps.values()), found.state["frozen"])
    except (FileError, KeyError, TypeError, ValueError):
        return 0


def learned(run: Running, p: int) -> tuple[Theta, Normaliser, Spec, dict[str, str]]:
    """Return everything needed to build member p's policy: theta, normaliser, task, and facts about it."""
    import jax

    trainer, config = run.trainer, run.trainer.job.config
    acting = trainer.learner.acting
    theta, normaliser = jax.device_get(jax.tree.map(lambda x: x[p], (acting.theta, acting.normaliser)))
    about = {
        "task": trainer.spec.id, "backend": config.backend, "algorithm": config.algorithm,
        "seed": str(trainer.job.seeds[p]), "steps": str(run.tables.steps[p]),
    } | trainer.job.departure  # fmt: skip
    return theta, normaliser, trainer.spec, about


def save_traceback(error: EnvironmentFault, directory: Path) -> EnvironmentFault:
    """Write the traceback of a fault of the environment into the run directory; return the fault, naming the file."""
    text = traceback_of(error)
    if text is None:
        return error
    path = directory / TRACEBACK
    files.write(path, text.encode())
    found = EnvironmentFault(f"{error} (traceback: {path})")
    found.traced = True
    return found


def with_remedy(fault: EnvironmentFault, directory: Path, job: Job) -> EnvironmentFault:
    """Return a fault of the environment that says that the run was saved, and how to continue it."""
    own = f" --env {job.config.task}" if ":" in job.config.task else ""
    said = EnvironmentFault(f"{fault}; saved: `gpi resume {directory}{own}` continues once it is fixed")
    said.__cause__, said.traced = fault.__cause__, fault.traced
    return said


def every_seed_frozen(directory: Path, job: Job, tables: RunTables) -> DivergedError | EnvironmentFault:
    """Return the error that says why every seed is frozen: the environment, if that froze all of them, or learning."""
    where = f"{directory} has their last good policies"
    if {fault["stage"] for fault in tables.frozen.values()} <= {"observation", "reward"}:
        return EnvironmentFault(
            f"{job.config.task}: every seed is frozen: {tables.faults()}; fix the environment and train again; {where}"
        )
    return DivergedError(f"every seed diverged: {tables.faults()}; {where}")


def warn(run: Running, progress: Progress) -> None:
    """Print closing lines about anything that needs attention."""
    if run.tables.frozen and not run.tables.all_frozen():  # otherwise the error says it
        progress.say(f"warning: frozen at their last good state: {run.tables.faults()}")
    low = [seed for p, seed in enumerate(run.trainer.job.seeds) if learned(run, p)[0].at_floor()]
    if low:
        progress.say(f"warning: the standard deviation of an action is at its floor of 0.001 in seeds {low}")
