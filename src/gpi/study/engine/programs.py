"""Which jobs run the same compiled program, so that one of them compiles it and the others find it in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from contextlib import suppress
from pathlib import Path

from gpi.config import Config, plan_of
from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.study.definition import Job
from gpi.study.directory import Layout

SHAPING = [field.name for field in dataclasses.fields(Config) if field.metadata["compiled"]]
"""Settings that are compiled into a program; others are its arguments."""


def program_of(job: Job, layout: Layout) -> str:
    """Return a name that two jobs have in common only if they learn with the same program.

    That depends on the algorithm's parts, on shapes (batch, slots of the buffer, networks, observations, actions) and
    on the settings of XLA. The sizes of tasks outside the suite are unknown here, so each has separate programs.
    """
    config, plan = job.config, plan_of(job.config)
    algorithm, spec = ALGORITHMS[config.algorithm], dmc.TASKS.get(config.short_task)
    sizes = [spec.observation_size, spec.action_size, spec.horizon] if spec else [job.task]
    settings = [getattr(config, name) for name in SHAPING]
    parts = [
        algorithm.rule, algorithm.critic, plan.steps, len(plan.nu), sizes, settings, layout.platform,
        layout.environment, layout.versions,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class Compiled:
    """Programs that the compilation cache has, as marks beside its entries: they go where the cache goes."""

    def __init__(self, cache: Path):
        """Read nothing yet."""
        self.cache = cache
        self.known: set[str] = set()

    def has(self, program: str) -> bool:
        """Return whether a job has compiled a program here, in this session or an earlier one."""
        return program in self.known or self.mark(program).exists()

    def add(self, program: str) -> None:
        """Note that a job has compiled a program."""
        if program not in self.known:
            self.known.add(program)
            with suppress(OSError):
                self.cache.mkdir(parents=True, exist_ok=True)
                self.mark(program).touch()

    def forget(self) -> None:
        """Forget everything: the cache lost an entry, and its program is unknown."""
        self.known.clear()
        for path in self.cache.glob("gpi-program-*"):
            with suppress(OSError):
                path.unlink()

    def mark(self, program: str) -> Path:
        """Return the file that says that a program was compiled."""
        return self.cache / f"gpi-program-{program}"
