"""Tasks by name: which simulator runs each, and making its pools."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from gpi.envs import dmc, envpool
from gpi.errors import UnknownTaskError, UsageError

if TYPE_CHECKING:  # naming a task must not start anything
    from gpi.envs.importing import Make
    from gpi.envs.pool import Around, CompiledPool, HostPool

Backend = Literal["auto", "envpool", "gymnasium", "processes"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
"""EnvPool where it has the task, EnvPool, Gymnasium in this process, Gymnasium in worker processes."""


OWN_TASK = re.compile(r"[\w.]+:[\w.<>/-]+")
"""Name of a user's own task: what to import, or a function that only Python can reach, `__main__:f.<locals>.make`."""


class Task(NamedTuple):
    """A task and its simulator."""

    id: str
    backend: Literal["dmc", "envpool", "gymnasium", "processes"]
    own: bool  # the user's module or function, which no file may name for them

    @property
    def horizon(self) -> int | None:
        """Length of every episode in steps; None where episodes differ in length."""
        return dmc.HORIZON if self.backend == "dmc" else None

    @property
    def return_range(self) -> tuple[float, float] | None:
        """The least and the largest return of an episode; None where only its author knows them."""
        return (0.0, float(dmc.HORIZON)) if self.backend == "dmc" else None  # a step's reward is in [0, 1]

    @property
    def compiled(self) -> bool:
        """Whether compiled programs step its environments; otherwise the host does."""
        return self.backend in ("dmc", "envpool")


def find(name: str, backend: str = "auto", make: Make | None = None) -> Task:
    """Return the task called `name`, importing nothing of the user's. With `make`, the name is only a label."""
    if make is not None or ":" in name:
        return _own(name, backend, make)
    if dmc.short_name(name) in dmc.TASKS:
        if backend in ("gymnasium", "processes"):
            raise UsageError(
                f"backend = {backend} does not have {name}: it runs on EnvPool; leave --backend out", "backend"
            )
        return Task(dmc.find_spec(name).id, "dmc", own=False)
    if name in envpool.GYMNASIUM and backend in ("auto", "envpool") and not falls_back(name, backend):
        return Task(name, "envpool", own=False)
    import gymnasium

    known = name in gymnasium.registry
    if known and backend != "envpool":
        return Task(name, "processes" if backend == "processes" else "gymnasium", own=False)
    envpools = envpool.ids() if envpool.available() else {}
    if name in envpools and backend in ("auto", "envpool"):
        return Task(name, "envpool", own=False)
    if known or name in envpools:
        raise UsageError(f"backend = {backend} does not have {name}; leave --backend out", "backend")
    raise UnknownTaskError(unknown(name, [*dmc.TASKS, *envpool.GYMNASIUM, *gymnasium.registry, *envpools]))


def simulator(task: Task, backend: str) -> str:
    """Return the backend that config.json records: what `auto` became, where another day it might become another."""
    settled = task.own or task.backend == "dmc" or task.id in envpool.GYMNASIUM
    return task.backend if backend == "auto" and not settled else backend


def falls_back(name: str, backend: str) -> bool:
    """Return whether Gymnasium runs a task that EnvPool would run if it were installed."""
    return backend == "auto" and name in envpool.GYMNASIUM and not envpool.available()


def unknown(name: str, known: Sequence[str]) -> str:
    """Return the line about a task that does not exist, with the nearest that does, if one is near."""
    if name.startswith("ALE/"):
        install = "`pip install ale-py`, then name it"
        return f"unknown task {name!r}: it is an Atari game; {install} ale_py:{name}, with --allow-images"
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(dmc.short_name(name).lower(), lower, n=1, cutoff=0.6)
    hint = f", the nearest is {lower[near[0]]!r}" if near else ""
    rule = f"it must be one of the {len(dmc.TASKS)} DeepMind Control tasks, a Gymnasium id or module:id"
    return f"unknown task {name!r}: {rule}{hint}; `gpi tasks` lists the first"


def _own(name: str, backend: str, make: Make | None) -> Task:
    """Return a task of the user's own."""
    if backend == "envpool":
        raise UsageError(f"backend = envpool does not have {name}: it is your own; leave --backend out", "backend")
    if make is None and not OWN_TASK.fullmatch(name):
        raise UsageError(f"task {name!r} must be module:id or module:function, as in my_module:MyEnv-v0", "task")
    return Task(name, "processes" if backend == "processes" else "gymnasium", own=True)


def require_env(env: object) -> None:
    """Raise UsageError unless an environment is a name or makes environments; None leaves it to the run."""
    if not (env is None or callable(env) or isinstance(env, str)):
        kind = type(env).__name__
        raise UsageError(f"env is a {kind}; give a name, or the function or class that makes environments")


def name_of(make: Make) -> str:
    """Return the name of a function that makes environments: `my_module:make_env`."""
    name = getattr(make, "__qualname__", type(make).__qualname__)
    return f"{getattr(make, '__module__', None) or '__main__'}:{name}"


def ask_for_name(source: object, name: str) -> str:
    """Return the line that asks the user to name their own environment, in which a run or policy was trained."""
    how = "env=... in Python" if "<" in name or name.startswith("__main__:") else f"--env {name}, or env=... in Python"
    why = "is your own code; gpi never imports code named in a file"
    return f"{source} was trained in {name}, which {why}; name it: {how}"


def make_pool(
    task: Task, seeds: Sequence[int], threads: int, first_core: int = -1, make: Make | None = None,
    around: Around = nullcontext, step_timeout: float = 0.0,
) -> CompiledPool | HostPool:  # fmt: skip
    """Make one environment per seed, simulated by `threads` threads or worker processes.

    The pool is a `CompiledPool` exactly if `task.compiled`; then make and step it with 64-bit JAX.
    `around` makes the context that a user's environments in this process run in; a step in worker processes may take
    `step_timeout` seconds, or any time if that is 0.
    """
    if task.backend == "dmc":
        return dmc.make(task.id, seeds, threads, first_core)
    if task.backend == "envpool":
        return envpool.make(None, task.id, seeds, threads, first_core)
    return make_host_pool(task, seeds, threads, make, around, step_timeout)


def make_host_pool(
    task: Task, seeds: Sequence[int], threads: int = 1, make: Make | None = None, around: Around = nullcontext,
    step_timeout: float = 0.0,
) -> HostPool:  # fmt: skip
    """Make one environment per seed, stepped on the host for every task; this does not need 64-bit JAX."""
    if task.backend == "dmc":
        return dmc.make_on_host(task.id, seeds, threads)
    if task.backend == "envpool":
        return envpool.make_on_host(None, task.id, seeds, threads)
    from gpi.envs.gym import GymPool
    from gpi.envs.importing import maker

    if task.backend == "gymnasium":
        return GymPool(task.id, make or maker(task.id), seeds, around)
    from gpi.envs.workers import WorkerPool

    return WorkerPool(task.id, make, seeds, threads, step_timeout)
