"""Tasks by name: which simulator runs them, and the pools that do."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpi.envs import dmc, envpool
from gpi.errors import UsageError

if TYPE_CHECKING:  # naming a task must not start anything
    from gpi.envs.gym import Make
    from gpi.envs.pool import Seekable

Backend = Literal["auto", "envpool", "gymnasium", "processes"]
BACKENDS: dict[str, Backend] = {name: name for name in ("auto", "envpool", "gymnasium", "processes")}
"""EnvPool where it has the task, EnvPool, Gymnasium in this process, Gymnasium in worker processes."""


NAMED = re.compile(r"[\w.]+:[\w.<>/-]+")
"""What a user's own task is called: what to import, or a function that only Python has, `__main__:f.<locals>.make`."""


class Task(NamedTuple):
    """A task and what simulates it."""

    id: str
    backend: Literal["dmc", "envpool", "gymnasium", "processes"]
    own: bool  # the user's module or function, which no file may name for them

    @property
    def horizon(self) -> int | None:
        """Steps that every episode has; None where episodes end anywhere."""
        return dmc.HORIZON if self.backend == "dmc" else None


def find(name: str, backend: str = "auto", make: Make | None = None) -> Task:
    """The task of a name; nothing of the user's is imported. With `make`, the name is only what to call it."""
    if make is not None or ":" in name:
        return _own(name, backend, make)
    if name.removeprefix("dmc/") in dmc.TASKS:
        if backend in ("gymnasium", "processes"):
            raise UsageError(f"backend = {backend} does not have {name}: it runs on EnvPool; leave --backend out")
        return Task(dmc.find(name).id, "dmc", own=False)
    if name in envpool.GYMNASIUM and backend in ("auto", "envpool") and (sys.platform == "linux" or backend != "auto"):
        return Task(name, "envpool", own=False)
    import gymnasium

    if name not in gymnasium.registry:
        known = [*dmc.TASKS, *envpool.GYMNASIUM, *gymnasium.registry]
        nearest = difflib.get_close_matches(name.removeprefix("dmc/"), known, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"unknown task {name!r}: it must be one of the {len(dmc.TASKS)} DeepMind Control tasks, a Gymnasium id or "
            f"module:id, the nearest is {nearest!r}; `gpi tasks` lists the first"
        )
    if backend == "envpool":
        raise UsageError(f"backend = envpool does not have {name}; leave --backend out")
    return Task(name, "processes" if backend == "processes" else "gymnasium", own=False)


def _own(name: str, backend: str, make: Make | None) -> Task:
    """A task of the user's own."""
    if backend == "envpool":
        raise UsageError(f"backend = envpool does not have {name}: it is your own; leave --backend out")
    if make is None and not NAMED.fullmatch(name):
        raise UsageError(f"task {name!r} must be module:id or module:function, as in my_module:MyEnv-v0")
    return Task(name, "processes" if backend == "processes" else "gymnasium", own=True)


def name_of(make: Make) -> str:
    """What to call a function that makes environments: `my_module:make_env`."""
    name = getattr(make, "__qualname__", type(make).__qualname__)
    return f"{getattr(make, '__module__', None) or '__main__'}:{name}"


def name_it(source: Any, name: str) -> str:
    """The line for a run or policy of a user's own environment, which the user has not named."""
    how = "env=... in Python" if "<" in name or name.startswith("__main__:") else f"--env {name}, or env=... in Python"
    why = "is your own code and is never imported because a file says so"
    return f"{source} was trained in {name}, which {why}; name it: {how}"


def settings_of(task: Task) -> AbstractContextManager[Any]:
    """What to make and step the environments of a task in: EnvPool's need 64-bit JAX, a user's what they had."""
    if task.backend in ("gymnasium", "processes"):
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def make_pool(
    task: Task, seeds: Sequence[int], threads: int, first_core: int = -1, make: Make | None = None
) -> Seekable:
    """One environment for each seed, simulated by so many threads or worker processes."""
    if task.backend == "dmc":
        return dmc.make(task.id, seeds, threads, first_core)
    if task.backend == "envpool":
        return envpool.make(None, task.id, seeds, threads, first_core)
    from gpi.envs.gym import GymPool, maker

    if task.backend == "gymnasium":
        return GymPool(task.id, make or maker(task.id), seeds)
    from gpi.envs.workers import WorkerPool

    return WorkerPool(task.id, make, seeds, threads)
