"""Environments of our own, as a user would write them: sound ones, and ones that fail late."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env[np.ndarray, np.ndarray]):
    """A walk on a line towards 1: episodes end by death beyond 2, or are cut after a length drawn at reset."""

    observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        self.limit, self.time = int(self.np_random.integers(5, 40)), 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.x, self.time / 40], np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.x += 0.2 * float(action[0]) + 0.02 * float(self.np_random.standard_normal())
        self.time += 1
        return self.seen(), 1.0 - abs(self.x - 1.0), abs(self.x) > 2.0, self.time >= self.limit, {}


class Choice(Walk):
    """The same walk with three actions, counted from 5, and observations in parts."""

    observation_space = spaces.Dict({"x": spaces.Box(-4.0, 4.0, (1,), np.float32), "late": spaces.Discrete(2)})  # type: ignore[assignment]
    action_space = spaces.Discrete(3, start=5)  # type: ignore[assignment]

    def seen(self) -> Any:
        return {"x": np.array([self.x], np.float32), "late": int(self.time > 20)}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.x += 0.2 * (int(action) - 6)
        self.time += 1
        return self.seen(), 1.0 - abs(self.x - 1.0), abs(self.x) > 2.0, self.time >= self.limit, {}


CLOCK = itertools.count()


class Drifting(Walk):
    """Starts from its seed and then moves at random, so it cannot be replayed."""

    def step(self, action: np.ndarray) -> Any:
        self.x += 1e-3 * (next(CLOCK) % 7)
        return super().step(action)


class Shared(Walk):
    """Draws its noise from the random numbers that all code in a process shares."""

    def step(self, action: np.ndarray) -> Any:
        self.x += 0.02 * float(np.random.standard_normal())  # noqa: NPY002
        return super().step(action)


class Late(Walk):
    """Raises at its 2000th step, unless it was fixed."""

    fixed = False

    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        if self.steps == 2000 and not self.fixed:
            raise RuntimeError("the motor is too hot")
        return super().step(action)


class Hangs(Walk):
    """Never returns from its 1700th step, which is after the check; from the first, if it is `lame`."""

    lame = False

    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        while self.steps >= (1 if self.lame else 1700):
            with contextlib.suppress(Exception):  # as a loop that tries again does
                time.sleep(0.01)
        return super().step(action)


class Lame(Hangs):
    """Never returns from its first step."""

    lame = True


class Camera(Walk):
    """Shows a picture beside its position."""

    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (32, 32), np.uint8), "x": spaces.Discrete(2)})  # type: ignore[assignment]

    def seen(self) -> Any:
        return {"camera": np.full((32, 32), self.time, np.uint8), "x": int(self.x > 0)}


def vector(**options: Any) -> Any:
    """Make a vector environment, which training has no use for."""
    return gymnasium.make_vec("CartPole-v1", 4, **options)


class Strict(Drifting):
    """Cannot be replayed, and refuses to be stepped after an end."""

    def reset(self, **options: Any) -> Any:
        self.over = False
        return super().reset(**options)

    def step(self, action: np.ndarray) -> Any:
        assert not self.over, "step after the end"
        obs, reward, terminated, truncated, info = super().step(action)
        self.over = terminated or truncated
        return obs, reward, terminated, truncated, info


class Wide(Walk):
    """The walk with one more observation."""

    observation_space = spaces.Box(-4.0, 4.0, (3,), np.float32)

    def seen(self) -> np.ndarray:
        return np.append(super().seen(), np.float32(0.0))


class Stuck(Walk):
    """Fails, after 500 resets, when it is reset in the middle of an episode."""

    def __init__(self) -> None:
        self.resets, self.over = 0, True

    def reset(self, **options: Any) -> Any:
        self.resets += 1
        if self.resets > 500 and not self.over:
            raise RuntimeError("the gate is stuck")
        self.over = False
        return super().reset(**options)

    def step(self, action: np.ndarray) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.over = terminated or truncated
        return obs, reward, terminated, truncated, info


class InJax(Walk):
    """Computes with JAX, in the precision that it finds."""

    def seen(self) -> Any:
        import jax.numpy as jnp

        return np.asarray(jnp.asarray([self.x, self.time / 40]))


class Single(Walk):
    """Can exist only once at a time."""

    open = 0

    def __init__(self) -> None:
        if Single.open:
            raise RuntimeError("the robot is taken")
        Single.open += 1

    def close(self) -> None:
        Single.open = 0


class Crash(Walk):
    """Raises at the third step of every episode."""

    def step(self, action: np.ndarray) -> Any:
        if self.time == 2:
            raise ZeroDivisionError("no friction\nat all")
        return super().step(action)


class Poisoned(Walk):
    """Shows NaN after its 2000th step; `only` in the environment of that number, or in all."""

    only: int | None = None
    made = 0

    def __init__(self) -> None:
        self.steps, self.number = 0, Poisoned.made
        Poisoned.made += 1

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        obs, *rest = super().step(action)
        if self.steps > 2000 and self.only in (None, self.number):
            obs = np.full_like(obs, np.nan)
        return obs, *rest


class Nothing(Walk):
    """Shows NaN at once."""

    def seen(self) -> np.ndarray:
        return np.full(2, np.nan, np.float32)


class Count(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays 1 a step for as many steps as its seed says, 1 to 9."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        return np.array([self.left], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


class Endless(Count):
    """Never ends."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.array([1.0], np.float32), 1.0, False, False, {}


gymnasium.register("OwnWalk-v0", f"{__name__}:Walk")
gymnasium.register("LongCart-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=2000)


class Unseeded(Walk):
    """Starts where it likes, whatever the seed, as a machine in a laboratory does."""

    stepped = 0

    def reset(self, **options: Any) -> Any:
        return super().reset(seed=None)

    def step(self, action: np.ndarray) -> Any:
        Unseeded.stepped += 1
        return super().step(action)


class Strays(Walk):
    """Leaves its space, but only long after the check."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        obs, *rest = super().step(action)
        return (obs + np.float32(50.0) if self.steps > 700 else obs), *rest
