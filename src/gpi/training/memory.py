"""Memory and disk: what a run needs at least, so that an impossible size is refused before anything is allocated."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path

from gpi.config import Config, plan_of
from gpi.envs import dmc
from gpi.errors import UsageError
from gpi.machine import available_memory
from gpi.rundir import checkpoint, segments
from gpi.training.job import Job

STATES = 8  # copies of the networks: parameters and Adam's two moments, the same in an update, and in a checkpoint
KEPT_STATES = 30  # the same for the policies to go back to: five, with their moments, there and in a checkpoint
FLOAT, FLAGS = 4, 3  # bytes; of a transition the flags are terminated, done and valid
PROGRAM = 600 * 2**20  # Python, JAX and its compiled programs; measured: 900 MiB
DMC_ENVIRONMENT = 6 * 2**20  # MuJoCo's model and arena; measured: 7 to 9 MiB
SIZES = ("seeds", "num_envs", "n", "B", "hidden", "value_hidden")


def require_memory(job: Job, available: int | None = None) -> None:
    """Raise UsageError if a run needs more memory than there is; `available` in bytes, by default this machine's."""
    config, needed = job.config, memory_needed(job.config)
    available = available_memory() if available is None else available
    if needed <= available:
        return
    sizes = {name: getattr(config, name) for name in SIZES}
    usual = {field.name: field.default for field in dataclasses.fields(Config)}
    guilty = [name for name in SIZES if memory_needed(dataclasses.replace(config, **{name: usual[name]})) <= available]
    options = " or ".join("--" + name.replace("_", "-") for name in guilty)
    larger = {name: value for name, value in sizes.items() if value != usual[name]}
    values = ", ".join(f"{name} = {value}" for name, value in larger.items())
    raise UsageError(
        f"{values or 'the run'} needs at least {needed / 2**30:,.1f} GiB of memory, this machine has "
        f"{available / 2**30:,.1f} GiB free; use {f'a smaller {options}' if options else 'smaller sizes'}",
        next(iter([*larger, *guilty]), ""),
    )


def memory_needed(config: Config) -> int:
    """Return the bytes that a run needs at least.

    A lower bound: of a task that only its environment can describe, one observation and one action are counted.
    """
    spec, plan = dmc.TASKS.get(config.short_task), plan_of(config)
    observations, actions = (spec.observation_size, spec.action_size) if spec else (1, 1)
    sizes = [observations, *config.hidden, actions], [observations, *(config.value_hidden or config.hidden), 1]
    networks = sum(a * b for layers in sizes for a, b in itertools.pairwise(layers))
    keeps = config.trust == "keep" and (spec or config.return_range)
    states = STATES + (KEPT_STATES if keeps else 0)
    rows = len(plan.nu) * plan.steps
    row = 2 * observations + actions + 4  # two observations, the action, reward, log-probability, flags
    units = sum(sum(layers[1:-1]) for layers in sizes)
    samples = rows * (3 * row + units)  # raw, normalised, as one sample; the networks' layers
    environments = config.num_envs * (DMC_ENVIRONMENT if spec else 0)
    return PROGRAM + config.seeds * (FLOAT * (networks * states + samples) + environments) + replay_bytes(config)


def replay_bytes(config: Config, batches: int = 0) -> int:
    """Return the bytes of the replay of all critics, and of a number of batches more."""
    spec = dmc.TASKS.get(config.short_task)
    observations, actions = (spec.observation_size, spec.action_size) if spec else (1, 1)
    rows = config.replayed and config.replayed + batches * plan_of(config).steps
    return config.seeds * rows * (FLOAT * (2 * observations + actions + 1) + FLAGS)


def require_disk(job: Job, directory: Path, free: int | None = None) -> list[str]:
    """Return a line on what replays need, if any; raise UsageError if the disk has less, or a manifest no room."""
    config = job.config
    if not config.replayed:
        return []
    batches = -(-config.replayed // job.plan.steps)
    if batches > segments.MOST * config.checkpoint_every:
        raise UsageError(
            f"checkpoint_every = {config.checkpoint_every} would write the replay of {batches:,} batches as more than "
            f"{segments.MOST:,} files; use {-(-batches // segments.MOST)} or more"
        )
    needed = replay_bytes(config, checkpoint.KEEP * config.checkpoint_every)  # the oldest kept has batches that left
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free if free is None else free
    have = sum(path.stat().st_size for path in (directory / segments.FOLDER).glob("segment-*"))
    if needed > free + have:
        raise UsageError(
            f"the replay of {config.replayed:,} transitions a seed needs {needed / 2**30:,.1f} GiB of disk, {existing} "
            f"has {(free + have) / 2**30:,.1f} GiB; free some, or name another disk"
        )
    memory = replay_bytes(config) / 2**30
    return [f"the replay needs {memory:,.1f} GiB of memory and up to {needed / 2**30:,.1f} GiB of disk"]
