"""Any Gymnasium environment, continuous or discrete, as a pool on the host."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium
import numpy as np

from gpi.envs.pool import Place, Spec, Step, digest_of
from gpi.envs.seeds import reset_seed
from gpi.envs.spaces import Broken, actions, brief, observations
from gpi.errors import EnvironmentFault, UsageError

Make = Callable[..., Any]
NO_DIGEST = -1
"""What no checksum is."""
LARGEST = float(np.finfo(np.float32).max)
OWN = re.compile(r"([A-Za-z_][\w.]*):([\w./-]+)")
"""`my_module:MyEnv-v0`, or `my_module:make_env`."""


def maker(name: str) -> Make:
    """What makes the environment of a Gymnasium id, of `module:id`, or of `module:function`.

    The module is imported: only ever call this with a name that the user has just given.
    """
    own = OWN.fullmatch(name)
    if own is None and ":" in name:
        raise UsageError(f"{name} cannot be imported by its name; pass the function in Python, as env=...")
    if own is None:
        return _registered(name)
    module, what = own[1], own[2]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: nothing there may stand in for a module of Python or of a package
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise EnvironmentFault(f"{name}: importing {module} failed: {error}; install what it needs") from error
        raise UsageError(
            f"module {module!r} of {name!r} is not found; run where it can be imported, or install it"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, of a script without `if __name__ == "__main__"`
        raise EnvironmentFault(f"{name}: importing {module} failed: {told(error)}; mend the module") from error
    if what in gymnasium.registry:
        return _registered(what)
    make = getattr(found, what, None) if what.isidentifier() else None
    if not callable(make):
        raise UsageError(
            f"{name!r} is not found: importing {module} registers no id {what!r} and the module has no such function; "
            "register it with gymnasium.register, or name a function that returns the environment"
        )
    return make


def _registered(name: str) -> Make:
    def make(**options: Any) -> Any:
        try:
            return gymnasium.make(name, disable_env_checker=True, **options)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            raise UsageError(f"unknown Gymnasium id {name!r}: {brief(error, 200)}; `gpi tasks` lists them") from error

    return make


def told(error: BaseException) -> str:
    """An exception in one line."""
    text = brief(error, 300)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Slot:
    """One environment of a pool: seeds its resets, and holds it to its contract."""

    def __init__(self, name: str, make: Make, seed: int, number: int):
        """Make the environment; `seed` is its own, `number` its place in the pool."""
        self.name, self.seed, self.number = name, seed, number
        self.resets = self.calls = self.ends = 0
        self.ended = False
        self.env = self._call(f"making {'another' if number else 'it'}", make)
        if not (callable(getattr(self.env, "reset", None)) and callable(getattr(self.env, "step", None))):
            what = type(self.env).__name__
            raise self.fault(f"a {what} is not an environment: it needs reset and step; return a gymnasium.Env")
        spaces = ("observation_space", "action_space")
        see, do = (self._call(f"its {space}", getattr, self.env, space, None) for space in spaces)
        try:
            self.observations, self.actions = observations(see), actions(do)
        except Broken as broken:
            self.close()
            raise self.fault(str(broken)) from broken
        self.spec = Spec(
            name, self.observations.size, self.actions.size, None, self.actions.discrete,
            tuple(self.actions.low.tolist()), tuple(self.actions.high.tolist()), self.actions.start,
            self.observations.names,
        )  # fmt: skip

    def reset(self, row: np.ndarray) -> None:
        """The next episode's first observation into a row; its seed follows from the environment's and the count."""
        self.resets, self.calls, self.ended = self.resets + 1, 0, False
        out = self._call("reset", self.env.reset, seed=reset_seed(self.seed, self.resets))
        if not (isinstance(out, tuple) and len(out) == 2):
            raise self.fault(f"reset returned {shape_of(out)}; return (observation, info)")
        self._see(out[0], row)
        self._info(out[1])

    def step(self, action: np.ndarray, row: np.ndarray) -> tuple[float, bool, bool]:
        """The next observation into a row; returns reward, terminated and truncated."""
        self.calls += 1
        out = self._call("step", self.env.step, self.actions.read(action))
        if not (isinstance(out, tuple) and len(out) == 5):
            raise self.fault(
                f"step returned {shape_of(out)}; return (observation, reward, terminated, truncated, info)"
            )
        obs, reward, terminated, truncated, info = out
        self._see(obs, row)
        reward = self._reward(reward)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                raise self.fault(f"{name} is {brief(flag)!r} of type {type(flag).__name__}; return a bool")
        self._info(info)
        self.ended = bool(terminated or truncated)
        self.ends += self.ended
        return reward, bool(terminated), bool(truncated)

    def inside(self, row: np.ndarray) -> None:
        """Hold an observation to its space; numbers that are none are the agent's to judge."""
        see = self.observations
        outside = np.flatnonzero(((row < see.low) | (row > see.high)) & np.isfinite(row))
        if outside.size:
            j = outside[0]
            raise self.fault(
                f"observation {self.entry(j)} is {row[j]:.9g}, outside its space "
                f"[{see.low[j]:.9g}, {see.high[j]:.9g}]; widen the space, or clip what it returns"
            )

    def entry(self, j: int) -> str:
        """What an entry of the observations is called."""
        names = self.observations.names
        return names[j] if names else str(j)

    def fault(self, problem: str) -> EnvironmentFault:
        """The one line of a broken contract: problem, environment and step."""
        when = f"step {self.calls} of episode {self.resets}" if self.calls else f"reset {self.resets}"
        return EnvironmentFault(f"{self.name}: {f'{when}: ' if self.resets else ''}{problem}")

    def close(self) -> None:
        """Let go of the environment, whatever it says."""
        with contextlib.suppress(Exception):
            self.env.close()

    def _call(self, what: str, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except (KeyboardInterrupt, EnvironmentFault, UsageError):
            raise
        except BaseException as error:  # also SystemExit: an environment has no say in when the run ends
            raise self.fault(f"{what} raised {told(error)}; {self._remedy(error)}") from error

    def _remedy(self, error: BaseException) -> str:
        """What may help against an exception."""
        if isinstance(error, TypeError) and "keyword argument 'seed'" in str(error):
            return "define reset(self, *, seed=None, options=None)"
        if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
            return "install what it needs"
        if self.number and not self.resets:
            return "training needs several of them at a time"
        if self.ends and self.calls == 1:
            return "let reset clear what the episode before left"
        return "mend the environment"

    def _see(self, obs: Any, row: np.ndarray) -> None:
        try:
            self.observations.write(obs, row)
        except Broken as broken:
            raise self.fault(str(broken)) from broken

    def _info(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise self.fault(f"info is {brief(info)!r} of type {type(info).__name__}; return a dict")

    def _reward(self, reward: Any) -> float:
        """A reward as a number that float32 can hold."""
        try:
            number = reward if isinstance(reward, float | int) else np.asarray(reward)
            if isinstance(number, np.ndarray) and (number.shape != () or number.dtype.kind not in "fiub"):
                raise TypeError
            value = float(number)
        except (TypeError, ValueError, OverflowError):  # ragged lists and 10**400 included
            problem = f"reward is {brief(reward)!r} of type {type(reward).__name__}; return one number"
            raise self.fault(problem) from None
        return value if abs(value) <= LARGEST or math.isnan(value) else math.copysign(math.inf, value)


def shape_of(out: Any) -> str:
    """What a function returned, as far as it matters."""
    return f"{len(out)} values" if isinstance(out, tuple) else f"one {type(out).__name__}"


def alike(first: Slot, slot: Slot) -> None:
    """Environments of a pool are apart, and have the same spaces."""
    if slot is not first and getattr(slot.env, "unwrapped", slot) is getattr(first.env, "unwrapped", first):
        raise slot.fault("making another gave the same environment again; return a new one each time")
    see, other = first.observations, slot.observations
    same = (see.size, see.names) == (other.size, other.names)
    same = same and bool((see.low == other.low).all() and (see.high == other.high).all())
    for kind, good in (("observation", same), ("action", first.spec == slot.spec)):
        if not good:
            spaces = " and ".join(brief(getattr(one.env, f"{kind}_space")) for one in (first, slot))
            raise slot.fault(f"{kind} space differs between instances: {spaces}; give all of them the same")


class GymPool:
    """A `Pool` of Gymnasium environments in this process."""

    compiled = False
    handle = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What to run the environments in."""

    def __init__(self, name: str, make: Make, seeds: Sequence[int]):
        """One environment for each seed, which are its own and decide its resets."""
        self.num_envs = len(seeds)
        self.slots: list[Slot] = []
        try:
            for i, seed in enumerate(seeds):
                self.slots.append(Slot(name, make, seed, i))
                alike(self.slots[0], self.slots[i])
        except BaseException:
            self.close()
            raise
        see, self.spec = self.slots[0].observations, self.slots[0].spec
        self._low, self._high = see.low[None], see.high[None]
        self._bounded = bool(np.isfinite(see.low).any() or np.isfinite(see.high).any())

    def reset(self, handle: Any) -> tuple[Any, np.ndarray]:
        """Start a new episode in every environment."""
        obs = self._rows()
        with self.around():
            for slot, row in zip(self.slots, obs, strict=True):
                slot.reset(row)
        self._inside(obs)
        return handle, obs

    def step(self, handle: Any, action: np.ndarray) -> tuple[Any, Step]:
        """Step every environment."""
        return handle, self.play(action)

    def play(self, action: np.ndarray) -> Step:
        """Step every environment, on NumPy arrays; one that has ended begins its next episode instead."""
        obs, reward = self._rows(), np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        with self.around():
            for i, slot in enumerate(self.slots):
                if slot.ended:
                    slot.reset(obs[i])
                else:
                    reward[i], terminated[i], truncated[i] = slot.step(action[i], obs[i])
        self._inside(obs)
        return Step(obs, reward, terminated, truncated)  # type: ignore[arg-type]

    def seek(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """Go to a place: every reset is seeded by its number, so only the last counts, and the actions since."""
        obs, digest = self._rows(), np.zeros(self.num_envs, np.int64)
        with self.around():
            for i, slot in enumerate(self.slots):
                slot.resets = int(place.resets[i]) - 1
                slot.reset(obs[i])
                digest[i] = self._repeat(slot, place.actions[: place.calls[i], i], obs[i])
        return obs, digest

    def _repeat(self, slot: Slot, actions: np.ndarray, row: np.ndarray) -> int:
        """The digest of a running episode that is played again; no digest where it does not go as it went."""
        shown = digest_of(0, row[None], np.zeros(1, np.float32))
        for action in actions:
            if slot.ended:
                return NO_DIGEST
            try:
                reward, _, _ = slot.step(action, row)
            except EnvironmentFault:
                return NO_DIGEST
            shown = digest_of(shown, row[None], np.array([reward], np.float32))
        return shown

    def close(self) -> None:
        """Close the environments."""
        for slot in self.slots:
            slot.close()

    def _rows(self) -> np.ndarray:
        return np.empty((self.num_envs, self.slots[0].observations.size), np.float32)

    def _inside(self, obs: np.ndarray) -> None:
        """Observations must lie in their space."""
        if not self._bounded:
            return
        outside = ((obs < self._low) | (obs > self._high)).any(axis=1)
        for i in np.flatnonzero(outside):
            self.slots[i].inside(obs[i])
