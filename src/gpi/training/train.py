"""`train`: one run from its configuration to its directory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpi import deploy, files
from gpi.envs import dmc, tasks
from gpi.envs.pool import Seekable, Spec
from gpi.envs.seeds import env_seeds
from gpi.errors import DiskError, DivergedError, EnvironmentFault, FileError, UsageError
from gpi.training import checkpoint, record, runtime
from gpi.training.checkpoint import Checkpoint
from gpi.training.config import Config, config_of, plan_of, resolved
from gpi.training.progress import RECENT_EPISODES, Progress, Report
from gpi.training.record import AUDIT, EPISODES, METRICS, TIMING, EpisodeLog, Run, Table

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


class Interrupt:
    """Remembers the first SIGINT or SIGTERM, so that the iteration under way ends well; a second ends at once."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None:
            os._exit(128 + number)  # what is on disk is whole at any time
        self.signal = number


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals end the run after its iteration; outside the main thread Python allows no handlers, so none are set."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Recorder:
    """Writes what iterations measured, and remembers what progress shows."""

    def __init__(self, directory: Path, config: Config, saved: dict[str, Any] | None = None):
        """Open the tables of a new run, or cut those of an interrupted one back to where its checkpoint was."""
        self.directory, self.config = directory, config
        self.plan = plan_of(config)
        ages = tuple(f"tv_age_{i}" for i in range(len(self.plan.nu)))
        columns = {"metrics": METRICS, "audit": AUDIT + ages, "episodes": EPISODES, "timing": TIMING}
        sizes = saved["tables"] if saved else dict.fromkeys(columns)
        self.tables = {name: Table(directory / f"{name}.csv", columns[name], sizes[name]) for name in columns}
        self.log = EpisodeLog(config.seeds, config.num_envs, reset_each_batch=bool(config.reset_each_batch))
        self.steps = np.zeros(config.seeds, np.int64)
        self.recent = [deque(maxlen=RECENT_EPISODES) for _ in range(config.seeds)]
        self.frozen: dict[str, dict[str, Any]] = {}  # by seed: the iteration and the stage of its fault
        seconds = 0.0
        if saved:
            self.steps = np.array(saved["steps"], np.int64)
            self.log.total, self.log.length = np.array(saved["total"]), np.array(saved["length"], np.int64)
            self.recent = [deque(returns, maxlen=RECENT_EPISODES) for returns in saved["recent"]]
            self.frozen, seconds = saved["frozen"], saved["seconds"]
        self.start = time.perf_counter() - seconds

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to continue the tables without a row lost or doubled."""
        return {
            "tables": {name: table.sync() for name, table in self.tables.items()},
            "steps": self.steps.tolist(), "total": self.log.total.tolist(), "length": self.log.length.tolist(),
            "recent": [list(returns) for returns in self.recent], "frozen": self.frozen,
            "seconds": time.perf_counter() - self.start,
        }  # fmt: skip

    def add(self, it: Any) -> dict[str, np.ndarray]:
        """One iteration's rows; a seed that is frozen has none. Returns the metrics, `[seeds]`."""
        from gpi.core.faults import NONE, STAGES  # JAX starts with it, and may not before `runtime.prepare`

        seeds = range(self.config.seed, self.config.seed + self.config.seeds)
        frozen = np.asarray(it.fault) != NONE
        for p, seed in enumerate(seeds):
            if frozen[p] and str(seed) not in self.frozen:
                self.frozen[str(seed)] = {"iteration": it.k, "stage": STAGES[int(it.fault[p]) - 1]}
        alive = [(p, seed) for p, seed in enumerate(seeds) if not frozen[p]]
        ended = self.log.finish(it.raw, frozen)
        before, self.steps = self.steps, self.steps + np.where(frozen, 0, it.raw.valid.sum(axis=(1, 2)))
        self.tables["episodes"].add(
            (seed, before[p] + steps, total, length) for p, seed in alive for steps, total, length in ended[p]
        )
        values = it.audit._asdict() | it.metrics._asdict()
        rows = []
        for p, seed in alive:
            totals = [total for _, total, _ in ended[p]]
            self.recent[p].extend(totals)
            row = {name: value[p] for name, value in values.items()}
            row |= {"seed": seed, "iteration": it.k, "steps": self.steps[p]}
            rows.append(row | {"episode_return": np.mean(totals) if totals else None})
        self.tables["metrics"].add([row[name] for name in METRICS] for row in rows)
        self.tables["audit"].add([*(row[name] for name in AUDIT), *row["tv_age"]] for row in rows)
        seconds = time.perf_counter() - self.start
        self.tables["timing"].add([(it.k, self.steps.max(), it.collect_seconds, it.learn_seconds, seconds)])
        measured = {name: np.full(self.config.seeds, np.nan) for name in METRICS[3:]}
        for (p, _), row in zip(alive, rows, strict=True):
            for name, column in measured.items():
                column[p] = np.nan if row[name] is None else row[name]
        return measured

    def returns(self) -> np.ndarray:
        """Mean of each seed's recent episodes; NaN before the first."""
        return np.array([np.mean(recent) if recent else np.nan for recent in self.recent])

    def close(self) -> None:
        """Close the tables."""
        for table in self.tables.values():
            table.close()


def default_directory(config: Config) -> Path:
    """A new directory under runs/, named by time, algorithm and task."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    task = re.sub(r"[^A-Za-z0-9._-]+", "-", config.task.removeprefix("dmc/"))
    return Path("runs") / f"{stamp}-{config.algorithm}-{task}"


def train(
    config: Config,
    out: Path | None = None,
    quiet: bool = False,
    guests: Guests = Guests(),  # noqa: B008 (immutable)
) -> tuple[Run, int | None]:
    """Train a population and write its run directory; returns it, and the signal that cut it short, if one did."""
    config = resolved(config, guests.make)
    directory = out or default_directory(config)
    with record.claim(directory):
        progress = Progress(config.seeds, open_null() if quiet else None)
        try:
            check_environment(config, guests, progress)
        except BaseException:
            progress.close()
            raise
        return carry_on(config, directory, {}, progress, guests)


def check_environment(config: Config, guests: Guests, progress: Progress) -> None:
    """Find a broken environment before anything is begun; those of EnvPool are known."""
    task = tasks.find(config.task, config.backend, guests.make)
    if task.backend in ("gymnasium", "processes"):
        from gpi.envs.checks import check

        for note in check(task, guests.make).notes:
            progress.say(f"note: {note}")


def resume(
    directory: Path, steps: int | None = None, allow_drift: bool = False, quiet: bool = False,
    env: str = "", guests: Guests = Guests(),  # noqa: B008 (immutable)
) -> tuple[Run, int | None]:  # fmt: skip
    """Continue an interrupted run to the bit as if it had never been; or extend a finished one to more steps."""
    record.open_run(directory, "config.json")
    with record.hold(directory):
        config, about = read_config(directory, guests.make)
        named_again(directory, config, env, guests)
        if steps is not None:
            config = resolved(dataclasses.replace(config, steps=steps), guests.make)
        progress = Progress(config.seeds, open_null() if quiet else None)
        done = finished(directory)
        if done is not None and done["complete"] and reached(done, config):
            progress.say(f"{directory} is complete; to train it further, name more: --steps {2 * config.steps}")
            progress.close()
            return Run(directory), None
        return carry_on(config, directory, about, progress, guests, resuming=True, allow_drift=allow_drift)


def named_again(directory: Path, config: Config, env: str, guests: Guests) -> None:
    """A user's own code is never imported because a file says so: they name it again."""
    if guests.make is not None:
        return
    if env and env != config.task:
        raise UsageError(f"{directory} was trained in {config.task}, not in {env}; name that, or train anew")
    if not env and tasks.find(config.task, config.backend).own:
        raise UsageError(
            f"{directory} was trained in {config.task}, which is your own code and is never imported because a file "
            f"says so; name it: --env {config.task}, or env=... in Python"
        )


def reached(done: dict[str, Any], config: Config) -> bool:
    """Whether every seed that can still learn has taken the steps asked for."""
    alive = [steps for p, steps in enumerate(done["steps"]) if str(config.seed + p) not in done["frozen"]]
    return all(steps >= config.steps for steps in alive)


def carry_on(
    config: Config, directory: Path, about: dict[str, Any], progress: Progress, guests: Guests,
    *, resuming: bool = False, allow_drift: bool = False,
) -> tuple[Run, int | None]:  # fmt: skip
    """The life of a run in a directory that is held: start or restore, iterate, save, finish."""
    began = time.perf_counter()
    if "jax" not in sys.modules:
        runtime.prepare(config, about.get("runtime", {}).get("PJRT_NPROC", ""))
    import jax

    from gpi.training.loop import Trainer

    # A GPU would otherwise multiply float32 matrices with 10 bits of mantissa, too few for conjugate gradients.
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), interruptible() as interrupt:
        recorder = pool = None
        try:
            devices = runtime.devices(config)
            saver = Saver(directory, config, runtime.identity(devices), progress)
            drift = saver.drift() if resuming else []
            if not allow_drift:
                saver.refuse(drift)
            pool = make_pool(config, guests.make)
            exact = about.get("exact") is not False and not drift
            if not resuming:
                write_config(directory, config, devices, about, exact)
            progress.say(headline(config, devices, directory))
            trainer = Trainer(config, pool, devices)
            if resuming:  # what is refused stays untouched: only now is anything written
                recorder, exact = saver.restore(trainer, exact, allow_drift)
                write_config(directory, config, devices, about, exact)
                (directory / "DONE").unlink(missing_ok=True)
            if recorder is None:
                trainer.warm_up()
                recorder = Recorder(directory, config)
            progress.begin(int(recorder.steps.max()))
            first, stopped, fault = None, False, None
            try:
                for it in trainer.iterations(config.steps):
                    measured = recorder.add(it)
                    report = report_of(trainer, recorder, it.k, measured, guests)
                    progress.show(report)
                    first = first or time.perf_counter() - began
                    wishes = [callback(report) for callback in guests.callbacks]  # each of them sees it
                    stopped = any(wishes)
                    if interrupt.signal is not None or stopped or len(recorder.frozen) == config.seeds:
                        break
                    if it.k % config.checkpoint_every == 0:
                        saver.try_save(trainer, recorder)
            except EnvironmentFault as error:  # what was learned before it is good
                fault = error
            finish(directory, config, trainer, recorder, saver, {
                "complete": interrupt.signal is None and fault is None,
                "stopped": stopped,
                "exact": exact,
                "frozen": recorder.frozen,
                "seconds": time.perf_counter() - began,
                "first_iteration_seconds": first,
                "compile_seconds": trainer.compile_seconds,
            })  # fmt: skip
            warn(recorder, trainer, progress)
            if fault is not None:
                raise fault
            if len(recorder.frozen) == config.seeds:
                raise every_seed_frozen(directory, config, recorder)
            return Run(directory), interrupt.signal
        except EnvironmentFault as error:
            raise kept(error, directory) from error.__cause__
        finally:
            progress.close()
            if recorder is not None:
                recorder.close()
            for callback in guests.callbacks:
                if close := getattr(callback, "close", None):
                    close()
            if pool is not None:
                pool.close()


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
        return EnvironmentFault(f"{config.task}: every seed met {faults_of(recorder)}; mend the environment; {where}")
    return DivergedError(f"every seed diverged: {faults_of(recorder)}; {where}")


def report_of(trainer: Any, recorder: Recorder, k: int, measured: dict[str, np.ndarray], guests: Guests) -> Report:
    """An iteration for progress and callbacks."""
    from gpi.evaluation import play

    config = recorder.config
    seeds = tuple(trainer.seeds)

    def policy(seed: int) -> deploy.Policy:
        return deploy.policy_of(*learned(trainer, recorder, seeds.index(seed)))

    def evaluation(episodes: int) -> Evaluation:
        task = tasks.find(config.task, config.backend, guests.make)
        return play({seed: policy(seed) for seed in seeds}, task, guests.make, episodes)

    steps = int(recorder.steps.max())
    return Report(
        recorder.directory, k, seeds, steps, config.steps, recorder.returns(), measured, policy, evaluation
    )  # fmt: skip


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


class Saver:
    """Saves and restores a run's checkpoints, and knows whether they are of this machine and these settings."""

    def __init__(self, directory: Path, config: Config, identity: dict[str, Any], progress: Progress):
        """Nothing is read or written yet."""
        self.directory, self.progress = directory, progress
        free = ("steps", "checkpoint_every")  # may change without changing what an iteration computes
        settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in free}
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.identity = identity | {"config": json.loads(text), "config_hash": digest}
        self.saved = -1

    def drift(self) -> list[str]:
        """What differs between the newest readable checkpoint and now, each as `jax was 0.10.2, is 0.11.0`."""
        for path in checkpoint.saved(self.directory):
            with suppress(FileError):
                return differences(checkpoint.identity_of(path), self.identity)
        return []

    def refuse(self, drift: list[str]) -> None:
        """Nothing, unless something differs: then one line that names it."""
        if drift:
            raise FileError(
                f"{self.directory} cannot be resumed exactly: {'; '.join(drift)}; undo that, or --allow-drift"
            )

    def restore(self, trainer: Any, exact: bool, allow_drift: bool) -> tuple[Recorder | None, bool]:
        """Bring a new trainer to the newest valid checkpoint; returns its tables, or None if there is none."""
        layout = trainer.layout()
        weights = [name for name, (_, kind) in layout.items() if name.startswith("state/") and kind.kind == "f"]
        found, skipped = checkpoint.newest_valid(self.directory, layout, weights)
        for line in skipped:
            self.progress.say(f"skipped {line}")
        if found is None:
            self.progress.say("no valid checkpoint: starting from the beginning")
            return None, True
        if not allow_drift:
            self.refuse(differences(found.identity, self.identity))
        same = trainer.restore(found.arrays)
        if not same.all():
            what = "the replayed environments show other observations than they had shown"
            if trainer.pool.compiled and not allow_drift:
                raise FileError(f"{self.directory} cannot be resumed exactly: {what}; --allow-drift continues anyway")
            self.progress.say(f"{what}: they begin new episodes, and this run is no longer exact")
        self.saved = found.iteration
        self.progress.say(f"resuming after iteration {found.iteration}")
        recorder = restored(self.directory, trainer.config, found)
        if not same.all():
            trainer.start_over()
            recorder.log.forget()
        return recorder, exact and bool(same.all())

    def save(self, trainer: Any, recorder: Recorder) -> None:
        """A checkpoint of everything, now."""
        checkpoint.save(self.directory, trainer.done, trainer.snapshot(), recorder.state(), self.identity)
        self.saved = trainer.done

    def try_save(self, trainer: Any, recorder: Recorder) -> None:
        """A checkpoint, unless the disk is full: the last one stays, training goes on, and the next may succeed."""
        try:
            self.save(trainer, recorder)
        except DiskError as error:
            self.progress.say(f"warning: {error}; training goes on")


def restored(directory: Path, config: Config, found: Checkpoint) -> Recorder:
    """The tables of a run as they were at a checkpoint."""
    try:
        return Recorder(directory, config, found.state)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__} {error}"
        raise FileError(f"checkpoint {found.iteration} of {directory}: state.json does not fit: {what}") from error


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two nested objects, by the innermost names."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [key for key in {**then, **now} if key != "config_hash"]  # the settings themselves say more
        return [line for key in names for line in differences(then.get(key), now.get(key), key)]
    return [] if then == now else [f"{name} was {then}, is {now}"]


def read_config(directory: Path, make: Make | None = None) -> tuple[Config, dict[str, Any]]:
    """A run's settings and what config.json says around them; nothing in it is believed unchecked."""
    try:
        about = files.parse_json(files.read(directory, "config.json", files.JSON_LIMIT), "config.json")
        threads = about["runtime"]["PJRT_NPROC"]
        if not isinstance(threads, str) or not re.fullmatch(r"[0-9]{0,4}", threads):
            raise UsageError(f"PJRT_NPROC = {str(threads)[:80]!r} must be a number of threads")
        return config_of(about["config"], make), about
    except (UsageError, FileError, KeyError, TypeError) as error:
        raise FileError(f"{directory}: config.json cannot be used: {error}") from error


def finished(directory: Path) -> dict[str, Any] | None:
    """What DONE says, if the run ended."""
    if not (directory / "DONE").exists():
        return None
    done = files.parse_json(files.read(directory, "DONE", files.JSON_LIMIT), "DONE")
    steps, frozen = done.get("steps"), done.get("frozen")
    plain = type(done.get("complete")) is bool and isinstance(steps, list) and isinstance(frozen, dict)
    if not plain or not all(type(count) is int for count in done["steps"]):
        raise FileError(f"{directory}: DONE cannot be used: it lacks complete, steps or frozen; remove it to resume")
    return done


def faults_of(recorder: Recorder) -> str:
    """Which seeds are frozen, since when, and why."""
    return ", ".join(
        f"seed {seed} at iteration {fault['iteration']} ({fault['stage']} not finite)"
        for seed, fault in recorder.frozen.items()
    )


def warn(recorder: Recorder, trainer: Any, progress: Progress) -> None:
    """Closing lines about what needs attention."""
    from gpi.core.policy import MIN_LOG_STD

    if recorder.frozen:
        progress.say(f"warning: frozen at their last good state: {faults_of(recorder)}")
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


def make_pool(config: Config, make: Make | None = None) -> Seekable:
    """The population's environments; their threads stay on their cores if the run has the whole machine."""
    seeds = seeds_of(config)
    threads = config.threads or min(runtime.cores(), len(seeds))
    first_core = 0 if threads == os.cpu_count() == runtime.cores() else -1
    return tasks.make_pool(tasks.find(config.task, config.backend, make), seeds, threads, first_core, make)


def open_null() -> Any:
    """A stream nobody reads."""
    import io

    return io.StringIO()


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


def finish(
    directory: Path, config: Config, trainer: Any, recorder: Recorder, saver: Saver, facts: dict[str, Any]
) -> None:
    """The last checkpoint, the policies, the picture, and DONE."""
    from gpi.figures import learning_curves

    if saver.saved != trainer.done:
        saver.save(trainer, recorder)
    for p, seed in enumerate(trainer.seeds):
        deploy.save(directory / f"policy-{seed}.safetensors", *learned(trainer, recorder, p))
    run = Run(directory)
    if any(len(run.episodes(seed)[0]) for seed in run.seeds):
        try:
            learning_curves([run], directory / CURVE)
        except OSError as error:  # `gpi plot` draws it again
            saver.progress.say(f"warning: {directory / CURVE} cannot be written: {error.strerror}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done = {
        **facts, "iterations": trainer.done, "steps": [int(x) for x in recorder.steps],
        "returns": {str(seed): None if np.isnan(x) else x for seed, x in run.returns.items()}, "peak_rss_mb": peak,
    }  # fmt: skip
    record.write_json(directory / "DONE", done)
