"""A run's description of itself: its first line, config.json and DONE."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpi import files
from gpi.standalone import Facts
from gpi.training import devices as machine
from gpi.training.devices import Device
from gpi.training.job import Job

if TYPE_CHECKING:
    from gpi.envs.pool import Spec


def headline(job: Job, devices: list[Device], directory: Path) -> str:
    """Return one line that describes the run about to start."""
    config, plan = job.config, job.plan
    seeds = f"seed {job.seeds[0]}" if len(job.seeds) == 1 else f"seeds {job.seeds[0]} to {job.seeds[-1]}"
    where = f"{len(devices)} {devices[0].platform.upper()} device{'s' if len(devices) > 1 else ''}"
    fewer = devices[0].platform == "cpu" and len(devices) < machine.host_devices(config)
    why = " (JAX was started with one; `gpi train` would use every core)" if fewer else ""
    reuse = f"reuses {len(plan.nu)} policies, eps_gpi {plan.eps:.4f}" if len(plan.nu) > 1 else f"eps {plan.eps:.4f}"
    each = " each" if len(job.seeds) > 1 else ""
    steps = f"{config.steps:,} steps{each} after {job.warm_up_steps:,} to warm up"
    return f"{config.algorithm} on {config.task}, {seeds}, {steps}, {reuse}, {where}{why}, writing {directory}"


def environment_facts(spec: Spec) -> Facts:
    """Return the facts about the environments that a policy depends on."""
    return {
        "observation_size": spec.observation_size, "action_size": spec.action_size, "discrete": spec.discrete,
        "low": list(spec.low), "high": list(spec.high), "start": spec.start,
    }  # fmt: skip


def short_names(spec: Spec) -> list[str]:
    """Return the names of observations, for policies read from a checkpoint; none if they would fill its state."""
    names = spec.observation_names
    return list(names) if sum(map(len, names)) + 8 * len(names) < files.JSON_LIMIT // 4 else []


def write_config(directory: Path, job: Job, devices: list[Device], *, exact: bool, started: str | None = None) -> None:
    """Write config.json, with everything needed to repeat the run; a resumed run keeps the time it `started`."""
    plan = job.plan
    write_json(directory / "config.json", {
        "config": dataclasses.asdict(job.config),
        "plan": {"nu": plan.nu, "steps": plan.steps, "eps": plan.eps, "M": len(plan.nu)},
        "env_seeds": job.env_seeds,
        "devices": [str(device) for device in devices],
        "runtime": machine.runtime_settings(),
        "versions": machine.versions(),
        "exact": exact,
        "repeats": job.repeats,
        "started": started or datetime.now().astimezone().isoformat(timespec="seconds"),
    })  # fmt: skip


def write_done(directory: Path, facts: Facts) -> None:
    """Write DONE: how the run ended."""
    write_json(directory / "DONE", facts)


def write_json(path: Path, value: Facts) -> None:
    """Write a JSON object, indented; the file is replaced as a whole or not at all."""
    files.write(path, (json.dumps(value, indent=2, sort_keys=False) + "\n").encode())
