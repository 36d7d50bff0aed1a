"""Any Gymnasium environment, continuous or discrete, as a pool on the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import gymnasium
import numpy as np

from gpi.envs.faults import ContractError, Hanging, brief, one_line
from gpi.envs.importing import Make
from gpi.envs.pool import Around, Notes, Spec, Step
from gpi.envs.replay import Position, digest_of, first_digests
from gpi.envs.seeds import reset_seed
from gpi.envs.spaces import NUMBERS, actions, observations
from gpi.errors import EnvironmentFault, UsageError

NO_DIGEST = -1
"""Never a valid checksum."""
LARGEST = float(np.finfo(np.float32).max)


class CheckedEnv:
    """One environment of a pool, whose resets are seeded and whose every return value is checked."""

    def __init__(self, name: str, make: Make, seed: int, number: int, notes: Notes | None = None):
        """Make the environment; `seed` is its own, `number` counts those of its pool, which share their notes."""
        self.name, self.seed, self.number = name, seed, number
        self.notes: Notes = {} if notes is None else notes
        self.resets = self.calls = self.ends = 0
        self.ended = False
        self.env = self._call(f"making {'another' if number else 'it'}", make)
        if not (callable(getattr(self.env, "reset", None)) and callable(getattr(self.env, "step", None))):
            what = type(self.env).__name__
            raise self.fault(f"a {what} is not an environment: it needs reset and step; return a gymnasium.Env")
        if isinstance(self.env, gymnasium.vector.VectorEnv) or hasattr(self.env, "step_async"):
            self.close()
            what = f"a {type(self.env).__name__} is a vector environment"
            raise self.fault(f"{what}; return a single one: --num-envs makes copies")
        spaces = ("observation_space", "action_space")
        see, do = (self._call(f"its {space}", getattr, self.env, space, None) for space in spaces)
        try:
            self.observations, self.actions = observations(see, self.note), actions(do)
        except ContractError as error:
            self.close()
            raise self.fault(str(error)) from error
        self.spec = Spec(
            name, self.observations.size, self.actions.size, None, self.actions.discrete,
            tuple(self.actions.low.tolist()), tuple(self.actions.high.tolist()), self.actions.start,
            self.observations.names,
        )  # fmt: skip

    def reset(self, row: np.ndarray) -> None:
        """Begin the next episode and write its first observation into a row.

        The seed of the reset follows from the environment's and from the number of the reset.
        """
        self.resets, self.calls, self.ended = self.resets + 1, 0, False
        out = self._call("reset", self.env.reset, seed=reset_seed(self.seed, self.resets))
        if not (isinstance(out, tuple) and len(out) == 2):
            raise self.fault(f"reset returned {describe_output(out)}; return (observation, info)")
        self._write(out[0], row)
        self._check_info(out[1])

    def step(self, action: np.ndarray, row: np.ndarray) -> tuple[float, bool, bool]:
        """Take a step and write the observation into a row; return reward, terminated and truncated.

        The action is one that `actions.scale` returned: a pool scales those of all its environments at once.
        """
        self.calls += 1
        out = self._call("step", self.env.step, self.actions.cast(action))
        if not (isinstance(out, tuple) and len(out) == 5):
            raise self.fault(
                f"step returned {describe_output(out)}; return (observation, reward, terminated, truncated, info)"
            )
        obs, reward, terminated, truncated, info = out
        self._write(obs, row)
        reward = self._reward(reward)
        terminated, truncated = self._flag("terminated", terminated), self._flag("truncated", truncated)
        self._check_info(info)
        self.ended = terminated or truncated
        self.ends += self.ended
        return reward, terminated, truncated

    def note_outside(self, row: np.ndarray) -> None:
        """Note an observation outside its space. Non-finite entries are left to the training loop."""
        see = self.observations
        outside = np.flatnonzero(((row < see.low) | (row > see.high)) & np.isfinite(row))
        if outside.size:
            j, bounds = outside[0], f"[{see.low[outside[0]]:.9g}, {see.high[outside[0]]:.9g}]"
            self.note(
                "outside",
                f"observation {self.entry(j)} is {row[j]:.9g}, outside its space {bounds}; "
                "widen the space, or clip the observation: the policy sees it as it is",
            )

    def note(self, kind: str, words: str) -> None:
        """Note what training can live with, the first time in this pool."""
        if kind not in self.notes:
            self.notes[kind] = str(self.fault(words))

    def entry(self, j: int) -> str:
        """Return the name of an entry of the observations, or else its index."""
        names = self.observations.names
        return names[j] if names else str(j)

    def fault(self, problem: str) -> EnvironmentFault:
        """Return the fault that names a problem, the environment and the step in one line."""
        when = f"step {self.calls} of episode {self.resets}" if self.calls else f"reset {self.resets}"
        return EnvironmentFault(f"{self.name}: {f'{when}: ' if self.resets else ''}{problem}")

    def close(self) -> None:
        """Close the environment, and ignore any exception it raises."""
        with contextlib.suppress(Exception):
            self.env.close()

    def _call(self, what: str, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except (KeyboardInterrupt, EnvironmentFault, UsageError):
            raise
        except Hanging as error:
            raise self.fault(f"{what} did not return within {error} seconds; fix the environment") from error
        except BaseException as error:  # also SystemExit: an environment must not end the run
            raise self.fault(f"{what} raised {one_line(error)}; {self._remedy(error)}") from error

    def _remedy(self, error: BaseException) -> str:
        """Return the remedy for an exception."""
        if isinstance(error, TypeError) and "keyword argument 'seed'" in str(error):
            return "define reset(self, *, seed=None, options=None)"
        if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
            return "install its dependencies"
        if self.number and not self.resets:
            return "training needs several of them at a time"
        if self.ends and self.calls == 1:
            return "let reset clear the state of the previous episode"
        return "fix the environment"

    def _write(self, obs: object, row: np.ndarray) -> None:
        try:
            self.observations.write(obs, row)
        except ContractError as error:
            raise self.fault(str(error)) from error

    def _check_info(self, info: object) -> None:
        if not isinstance(info, dict):
            self.note(
                "info",
                f"info is {brief(info)!r} of type {type(info).__name__}; return a dict: training continues without",
            )

    def _flag(self, name: str, flag: object) -> bool:
        """Return a flag, which may be any one value that is true or false."""
        if isinstance(flag, bool | np.bool_):
            return bool(flag)
        words = f"{name} is {brief(flag)!r} of type {type(flag).__name__}; return a bool"
        number = one_number(flag)
        if number not in (0.0, 1.0):
            raise self.fault(words)
        self.note("flag", f"{words}: it is taken as {bool(number)}")
        return bool(number)

    def _reward(self, reward: object) -> float:
        """Return a reward as float32 would hold it: infinite beyond its range."""
        value = float(reward) if isinstance(reward, float) else one_number(reward)
        if value is None or np.ndim(reward) > 0:  # type: ignore[arg-type]
            words = f"reward is {brief(reward)!r} of type {type(reward).__name__}; return one number"
            if value is None:
                raise self.fault(words)
            self.note("reward", f"{words}: the only one in it is taken")
        return value if abs(value) <= LARGEST or math.isnan(value) else math.copysign(math.inf, value)


def one_number(value: object) -> float | None:
    """Return the number that a value is, or the only one that it holds; None if it is not one."""
    try:
        number = np.asarray(value)
        return float(number.item()) if number.size == 1 and number.dtype.kind in NUMBERS else None
    except Exception:  # ragged lists, and values of other libraries
        return None


def describe_output(out: object) -> str:
    """Describe the value that a function returned: the number of its entries, or its type."""
    return f"{len(out)} values" if isinstance(out, tuple) else f"one {type(out).__name__}"


def require_alike(first: CheckedEnv, other: CheckedEnv) -> None:
    """Require distinct environment objects with identical spaces."""
    if other is not first and getattr(other.env, "unwrapped", other) is getattr(first.env, "unwrapped", first):
        raise other.fault("making another gave the same environment again; return a new one each time")
    mine, theirs = first.observations, other.observations
    same = (mine.size, mine.names) == (theirs.size, theirs.names)
    same = same and bool((mine.low == theirs.low).all() and (mine.high == theirs.high).all())
    for kind, good in (("observation", same), ("action", first.spec == other.spec)):
        if not good:
            spaces = " and ".join(brief(getattr(one.env, f"{kind}_space")) for one in (first, other))
            raise other.fault(f"{kind} space differs between instances: {spaces}; give all of them the same")


class GymPool:
    """A `HostPool` of Gymnasium environments in this process."""

    def __init__(self, name: str, make: Make, seeds: Sequence[int], around: Around = nullcontext):
        """One environment per seed, which determines its resets; all run inside the context that `around` makes."""
        self.num_envs, self.around, self.notes = len(seeds), around, Notes()
        self.envs: list[CheckedEnv] = []
        self.steps = 0  # of the pool
        try:
            for i, seed in enumerate(seeds):
                self.envs.append(CheckedEnv(name, make, seed, i, self.notes))
                require_alike(self.envs[0], self.envs[i])
        except BaseException:
            self.close()
            raise
        see, self.spec = self.envs[0].observations, self.envs[0].spec
        self._low, self._high = see.low[None], see.high[None]
        self._bounded = bool(np.isfinite(see.low).any() or np.isfinite(see.high).any())

    def reset(self) -> np.ndarray:
        """Start a new episode in every environment."""
        obs = self._rows()
        with self.around():
            for env, row in zip(self.envs, obs, strict=True):
                env.reset(row)
        self._note_outside(obs)
        return obs

    def step(self, action: np.ndarray) -> Step[np.ndarray]:
        """Step every environment; one that has ended begins its next episode instead."""
        self.steps += 1
        obs, reward = self._rows(), np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        valid = np.array([not env.ended for env in self.envs])
        scaled = self.envs[0].actions.scale(action)
        with self.around():
            for i, env in enumerate(self.envs):
                if env.ended:
                    env.reset(obs[i])
                else:
                    reward[i], terminated[i], truncated[i] = env.step(scaled[i], obs[i])
        self._note_outside(obs)
        return Step(obs, reward, terminated, truncated, valid)

    def seek(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """Bring the pool to a position: every reset has its own seed, so only the last one is repeated."""
        obs, digest = self._rows(), np.zeros(self.num_envs, np.int64)
        with self.around():
            for i, env in enumerate(self.envs):
                env.resets = int(position.resets[i]) - 1
                env.reset(obs[i])
                digest[i] = self._repeat(env, position.actions[: position.calls[i], i], obs[i])
        return obs, digest

    def _repeat(self, env: CheckedEnv, actions: np.ndarray, row: np.ndarray) -> int:
        """Play a running episode again and return its digest; NO_DIGEST if the environment cannot repeat it."""
        [digest] = first_digests(row[None])
        for action in env.actions.scale(actions):
            if env.ended:
                return NO_DIGEST
            try:
                reward, _, _ = env.step(action, row)
            except EnvironmentFault:
                return NO_DIGEST
            digest = digest_of(int(digest), row[None], np.array([reward], np.float32))
        return int(digest)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _rows(self) -> np.ndarray:
        return np.empty((self.num_envs, self.spec.observation_size), np.float32)

    def _note_outside(self, obs: np.ndarray) -> None:
        """Note the first observation that is outside its space."""
        if self._bounded and "outside" not in self.notes:
            outside = ((obs < self._low) | (obs > self._high)).any(axis=1)
            for i in np.flatnonzero(outside):
                self.envs[i].note_outside(obs[i])
