"""`train`: one run from its configuration to its directory."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from gpi import deploy
from gpi.envs import dmc
from gpi.envs.seeds import env_seeds
from gpi.training import record, runtime
from gpi.training.config import Config, plan_of, validate
from gpi.training.progress import RECENT_EPISODES, Progress, Report
from gpi.training.record import AUDIT, EPISODES, METRICS, TIMING, EpisodeLog, Run, Table

CURVE = "learning_curve.png"


class Interrupt:
    """Remembers the first SIGINT or SIGTERM, so that the iteration under way ends well; a second ends at once."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None:
            raise KeyboardInterrupt
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

    def __init__(self, directory: Path, config: Config):
        """Open the tables of a new run."""
        self.directory, self.config = directory, config
        self.plan = plan_of(config)
        self.metrics = Table(directory / "metrics.csv", METRICS)
        self.audit = Table(directory / "audit.csv", AUDIT + tuple(f"tv_age_{i}" for i in range(len(self.plan.nu))))
        self.episodes = Table(directory / "episodes.csv", EPISODES)
        self.timing = Table(directory / "timing.csv", TIMING)
        self.log = EpisodeLog(config.seeds, config.num_envs, reset_each_batch=config.reset_each_batch)
        self.steps = np.zeros(config.seeds, np.int64)
        self.recent = [deque(maxlen=RECENT_EPISODES) for _ in range(config.seeds)]
        self.start = time.perf_counter()

    def add(self, it: Any) -> Report:
        """One iteration's rows."""
        seeds = range(self.config.seed, self.config.seed + self.config.seeds)
        ended = self.log.finish(it.raw)
        before, self.steps = self.steps, self.steps + it.raw.valid.sum(axis=(1, 2))
        self.episodes.add(
            (seed, before[p] + steps, total, length)
            for p, seed in enumerate(seeds)
            for steps, total, length in ended[p]
        )
        values = it.audit._asdict() | it.metrics._asdict()
        rows = []
        for p, seed in enumerate(seeds):
            totals = [total for _, total, _ in ended[p]]
            self.recent[p].extend(totals)
            row = {name: value[p] for name, value in values.items()}
            row |= {"seed": seed, "iteration": it.k, "steps": self.steps[p]}
            rows.append(row | {"episode_return": np.mean(totals) if totals else None})
        self.metrics.add([row[name] for name in METRICS] for row in rows)
        self.audit.add([*(row[name] for name in AUDIT), *row["tv_age"]] for row in rows)
        seconds = time.perf_counter() - self.start
        self.timing.add([(it.k, self.steps[0], it.collect_seconds, it.learn_seconds, seconds)])
        returns = np.array([np.mean(recent) if recent else np.nan for recent in self.recent])
        return Report(
            int(self.steps[0]),
            total_steps(self.config),
            returns,
            float(values["tv"].mean()),
            float(values["tv_bound"].mean()),
        )

    def close(self) -> None:
        """Close the tables."""
        for table in (self.metrics, self.audit, self.episodes, self.timing):
            table.close()


def total_steps(config: Config) -> int:
    """True steps of a whole run: whole iterations, at least `config.steps`."""
    samples = plan_of(config).steps
    return -(-config.steps // samples) * samples


def default_directory(config: Config) -> Path:
    """A new directory under runs/, named by time, algorithm and task."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{stamp}-{config.algorithm}-{config.task.removeprefix('dmc/')}"


def train(config: Config, out: Path | None = None, quiet: bool = False) -> tuple[Run, int | None]:
    """Train a population and write its run directory; returns it, and the signal that cut it short, if one did."""
    began = time.perf_counter()
    validate(config)
    directory = out or default_directory(config)
    if "jax" not in sys.modules:
        runtime.prepare(config)
    import jax

    from gpi.training.loop import Trainer

    # A GPU would otherwise multiply float32 matrices with 10 bits of mantissa, too few for conjugate gradients.
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), interruptible() as interrupt:
        devices = runtime.devices(config)
        pool = make_pool(config)
        record.claim(directory)
        progress = Progress(config.seeds, open_null() if quiet else None)
        recorder = None
        try:
            write_config(directory, config, devices)
            progress.say(headline(config, devices, directory))
            trainer = Trainer(config, pool, devices)
            trainer.warm_up()
            recorder = Recorder(directory, config)
            progress.begin()
            first = None
            for it in trainer.iterations(config.steps):
                progress.show(recorder.add(it))
                first = first or time.perf_counter() - began
                if interrupt.signal is not None:
                    break
            finish(directory, config, trainer, recorder, {
                "complete": interrupt.signal is None,
                "seconds": time.perf_counter() - began,
                "first_iteration_seconds": first,
                "compile_seconds": trainer.compile_seconds,
            })  # fmt: skip
        finally:
            progress.close()
            if recorder is not None:
                recorder.close()
        return Run(directory), interrupt.signal


def seeds_of(config: Config) -> list[int]:
    """The environment seeds of all members, in the order of the pool."""
    task = dmc.find(config.task).id
    seeds = range(config.seed, config.seed + config.seeds)
    return [name for seed in seeds for name in env_seeds(task, config.algorithm, seed, config.num_envs)]


def make_pool(config: Config) -> dmc.DmcPool:
    """The population's environments; their threads stay on their cores if the run has the whole machine."""
    seeds = seeds_of(config)
    threads = config.threads or min(runtime.cores(), len(seeds))
    return dmc.make(config.task, seeds, threads, 0 if threads == os.cpu_count() == runtime.cores() else -1)


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


def write_config(directory: Path, config: Config, devices: list[Any]) -> None:
    """Everything needed to repeat the run, before anything else is written."""
    plan = plan_of(config)
    record.write_json(directory / "config.json", {
        "config": dataclasses.asdict(config),
        "plan": {**dataclasses.asdict(plan), "M": len(plan.nu)},
        "env_seeds": seeds_of(config),
        "devices": [str(device) for device in devices],
        "runtime": runtime.settings(),
        "versions": runtime.versions(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    })  # fmt: skip


def finish(directory: Path, config: Config, trainer: Any, recorder: Recorder, facts: dict[str, Any]) -> None:
    """The policies, the picture, and DONE."""
    import jax

    from gpi.figures import learning_curves

    state = jax.device_get((trainer.state.agent.policy.params, trainer.state.normaliser))
    for p, seed in enumerate(trainer.seeds):
        theta, normaliser = jax.tree.map(lambda x, p=p: x[p], state)
        about = {"task": config.task, "algorithm": config.algorithm, "seed": str(seed), "steps": str(recorder.steps[p])}
        deploy.save(directory / f"policy-{seed}.safetensors", theta, normaliser, about)
    run = Run(directory)
    if any(len(run.episodes(seed)[0]) for seed in run.seeds):
        learning_curves([run], directory / CURVE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done = {
        **facts, "iterations": trainer.done, "steps": [int(x) for x in recorder.steps],
        "returns": {str(seed): None if np.isnan(x) else x for seed, x in run.returns.items()}, "peak_rss_mb": peak,
    }  # fmt: skip
    record.write_json(directory / "DONE", done)
