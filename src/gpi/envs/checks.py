"""Checks before training: a broken environment gets one line that names the problem, the environment and the step.

Two environments are made, the first is played for several episodes, and both must begin alike from the same seed.
Behaviour that is allowed but makes a resumed run inexact is reported as a note, not an error.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gpi.envs.faults import Hanging
from gpi.envs.gym import CheckedEnv, require_alike
from gpi.envs.importing import Make, maker
from gpi.envs.pool import HostPool, Spec
from gpi.envs.spaces import image_in
from gpi.envs.tasks import Task, make_host_pool
from gpi.envs.workers import require_importable
from gpi.errors import EnvironmentFault

STEPS = 1100
"""Most steps of the first environment: enough for episodes of 1000 steps, which are common, to end."""
RESETS = 8
"""Seeds that are compared: several, since an environment with two first states may agree by chance."""
SHARE = 0.6
"""Share of the time that is spent on the first environment alone."""
HOLD = 16
"""Steps for which an extreme action is held: only that drives some environments out of their spaces."""
_LIMIT: ContextVar[float] = ContextVar("limit", default=0.0)  # seconds of a reset or step
IRREPRODUCIBLE = "steps do not reproduce: a resumed run will not be exact"


class Checked(NamedTuple):
    """The result of checking a sound environment."""

    spec: Spec
    steps: int
    episodes: int  # number that ended
    reproducible: bool  # the same seed and the same actions gave the same episodes
    notes: tuple[str, ...]  # they do not prevent training


def check(
    task: Task, make: Make | None = None, seconds: float = 1.5, *, alone: bool = False, allow_images: bool = False,
    step_timeout: float = 60.0,
) -> Checked:  # fmt: skip
    """Play the environments of a task for a moment; raise EnvironmentFault if one breaks its contract.

    Args:
        task: The task; the module of a user's own is imported.
        make: The function that makes its environments, if it cannot be found by name.
        seconds: About how long to play; making the environments is not cut short.
        alone: Training will have one environment only, so make no second one for comparison.
        allow_images: Whether observations may be images.
        step_timeout: Seconds that a reset or step may take, 0 for no limit. Only the main thread can watch, and only
            Python code can be interrupted.
    """
    with _quiet(), _patience(step_timeout):
        if task.compiled:
            return _check_envpool(task, time.monotonic() + seconds)
        if task.backend == "processes" and make is not None:
            require_importable(task.id, make)
        return _check_gymnasium(task.id, make or maker(task.id), time.monotonic() + seconds, alone, allow_images)


class _Limited(io.TextIOBase):
    """A stream that passes the first characters on to stderr and drops the rest."""

    left = 1000

    def write(self, text: str) -> int:
        """Pass on as much as the limit still allows."""
        sys.stderr.write(text[: self.left])
        self.left = max(0, self.left - len(text))
        return len(text)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of environments, and keep their output apart from that of commands."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(_Limited()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Let `_watch` interrupt a reset or step that takes longer than this."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        seconds = 0.0  # signals reach the main thread only

    def interrupt(*_: object) -> NoReturn:
        raise Hanging(f"{seconds:g}")

    before = signal.signal(signal.SIGALRM, interrupt) if seconds else None
    token = _LIMIT.set(seconds)
    try:
        yield
    except Hanging as error:  # it came back at the last moment
        raise EnvironmentFault(f"a reset or step took {error} seconds; make it faster") from error
    finally:
        _LIMIT.reset(token)
        if seconds:
            signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _watch() -> Iterator[None]:
    """Interrupt the block when the patience is at its end."""
    if not _LIMIT.get():
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, _LIMIT.get())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class _Watched:
    """An environment whose values must all be finite, and whose observations must lie in their space."""

    def __init__(self, env: CheckedEnv):
        self.env, self.row = env, np.empty(env.observations.size, np.float32)
        self.steps = 0
        self.lengths: list[int] = []  # of the episodes that ended

    def reset(self, number: int) -> np.ndarray:
        """Begin episode `number` and return its first observation."""
        self.env.resets = number - 1
        with _watch():
            self.env.reset(self.row)
        self._check_row()
        return self.row.copy()

    def step(self, action: np.ndarray) -> tuple[bytes, float, bool, bool]:
        """Take a step; return the observation's bytes, the reward, terminated and truncated."""
        with _watch():
            reward, terminated, truncated = self.env.step(self.env.actions.scale(action), self.row)
        self.steps += 1
        self._check_row()
        if not math.isfinite(reward):
            raise self.env.fault(f"reward is {reward}, which is not finite in float32; return a finite value")
        if self.env.ended:
            self.lengths.append(self.env.calls)
        return self.row.tobytes(), reward, terminated, truncated

    def _check_row(self) -> None:
        finite = np.isfinite(self.row)
        if not finite.all():
            j = int(np.argmin(finite))
            found = f"observation {self.env.entry(j)} is {self.row[j]}"
            raise self.env.fault(f"{found}, which is not finite in float32; return finite values")
        self.env.require_inside(self.row)


def _check_gymnasium(name: str, make: Make, deadline: float, alone: bool, allow_images: bool) -> Checked:
    """Check two environments of one task, or one that will be alone."""
    envs: list[CheckedEnv] = []
    try:
        for number in range(1 if alone else 2):
            envs.append(CheckedEnv(name, make, 0, number))
        if not allow_images:
            _refuse_images(envs[0])
        require_alike(envs[0], envs[-1])
        one, other = _Watched(envs[0]), None if alone else _Watched(envs[1])
        spec = envs[0].spec
        actions = _trial_actions(spec.discrete, spec.action_size)
        now = time.monotonic()
        deadline = max(deadline, now + 0.2)  # making them may have taken a while
        _explore(one, actions, now + SHARE * (deadline - now))
        notes = []
        if not one.lengths and one.steps == STEPS:
            notes.append(f"no episode ended in {STEPS} steps: returns are known at ends only; add a TimeLimit wrapper")
        _require_equal_starts(one, other or one, deadline)
        if other is None:  # there is nothing to compare its steps with
            return Checked(spec, one.steps, len(one.lengths), True, tuple(notes))
        reproducible = _steps_agree(one, other, actions, deadline)
        notes += [] if reproducible else [IRREPRODUCIBLE]
        episodes = len(one.lengths) + len(other.lengths)
        return Checked(spec, one.steps + other.steps, episodes, reproducible, tuple(notes))
    finally:
        for env in envs:
            env.close()


def _refuse_images(env: CheckedEnv) -> None:
    """Raise if observations are images: a dense network sees only a row of numbers, and seldom learns from it."""
    found = image_in(env.env.observation_space)
    if found:
        why = "policies are small dense networks"
        raise env.fault(f"{found} is an image, {why}; show numbers instead, or flatten it all the same: --allow-images")


def _trial_actions(discrete: bool, size: int) -> Iterator[Any]:
    """Yield actions that find faults: every discrete one or both bounds, random ones, and a held extreme."""
    rng = np.random.default_rng(0)
    for k in itertools.count():
        if discrete:
            yield from rng.permutation(size).astype(np.int32)
            yield from np.full(HOLD, k % size, np.int32)
        else:
            lowest = -np.ones(size, np.float32)
            yield from (lowest, -lowest)
            yield from rng.uniform(-1.0, 1.0, (HOLD, size)).astype(np.float32)
            corner = (lowest, -lowest)[k] if k < 2 else rng.choice([-1.0, 1.0], size).astype(np.float32)
            yield from itertools.repeat(corner, HOLD)


def _explore(one: _Watched, actions: Iterator[np.ndarray], deadline: float) -> None:
    """Play episode after episode."""
    number = 1
    one.reset(number)
    while one.steps < STEPS and (one.steps == 0 or time.monotonic() < deadline):
        if one.env.ended:
            number += 1
            one.reset(number)
        one.step(next(actions))


def _require_equal_starts(one: _Watched, other: _Watched, deadline: float) -> None:
    """Require that a seed gives the same first observation, in the same environment and in another."""
    for number in range(1, RESETS + 1):
        first = one.reset(number)
        for again in (one, other):
            differs = again.reset(number) != first
            if differs.any():
                j = int(np.argmax(differs))
                raise again.env.fault(
                    f"reset ignores its seed: observation {again.env.entry(j)} is {first[j]:.9g} and, from the same "
                    f"seed, {again.row[j]:.9g}; call super().reset(seed=seed) and draw from self.np_random only"
                )
        if time.monotonic() > deadline:
            return


def _steps_agree(one: _Watched, other: _Watched, actions: Iterator[np.ndarray], deadline: float) -> bool:
    """Return whether the same seed and actions give the same episodes.

    `one` has ended episodes before and `other` has not, which reveals state that survives a reset. They take turns, as
    in a pool, which reveals state that they share.
    """
    begun = one.steps
    for number in range(1, RESETS + 1):
        one.reset(number)
        other.reset(number)
        while not one.env.ended:
            action = next(actions)
            same = one.step(action) == other.step(action)
            _require_clean_start(one, other)
            if not same:
                return False
            if one.steps - begun > STEPS // 4 or time.monotonic() > deadline:
                return True
    return True


def _require_clean_start(one: _Watched, other: _Watched) -> None:
    """Raise if episodes end at once because an earlier one has ended."""
    since = one.lengths[1:]
    if one.env.ended and not other.env.ended and len(since) >= RESETS and set(since) == {1}:
        raise one.env.fault(
            "every episode after the first ends at its first step, but not in a new environment; "
            "let reset clear the state of the previous episode"
        )


def _check_envpool(task: Task, deadline: float) -> Checked:
    """Check two pools of EnvPool's environments, which are tested: only an installation can be damaged or outdated."""
    pools: list[HostPool] = []
    try:
        for _ in range(2):
            pools.append(make_host_pool(task, (1, 2)))
        return _play_envpool(pools[0], pools[1], deadline)
    finally:
        for pool in pools:
            pool.close()


def _play_envpool(pool: HostPool, other: HostPool, deadline: float) -> Checked:
    """Play two pools that have the same seeds, with the same actions."""
    spec = pool.spec
    first = pool.reset()
    steps, ends, reproducible = 0, 0, True
    _check_values(spec, "reset 1", first, np.zeros(2))
    if not np.array_equal(first, other.reset()):
        raise EnvironmentFault(f"{spec.id}: reset 1: the same seeds gave different observations; reinstall EnvPool")
    for steps, action in enumerate(_trial_actions(spec.discrete, spec.action_size), 1):
        one, two = (each.step(np.stack([action, action])) for each in (pool, other))
        _check_values(spec, f"step {steps}", one.obs, one.reward)
        reproducible &= np.array_equal(one.obs, two.obs) and np.array_equal(one.reward, two.reward)
        ends += int((one.terminated | one.truncated).sum())
        if steps >= STEPS // 4 or time.monotonic() > deadline:
            break
    return Checked(spec, 4 * steps, 2 * ends, reproducible, () if reproducible else (IRREPRODUCIBLE,))


def _check_values(spec: Spec, when: str, obs: np.ndarray, reward: np.ndarray) -> None:
    """Raise unless the observations of two environments have the right shape, and all values are finite."""
    expected = (2, spec.observation_size)
    if obs.shape != expected:
        raise EnvironmentFault(
            f"{spec.id}: {when}: observations have shape {obs.shape}, not {expected}; update EnvPool"
        )
    if not (np.isfinite(obs).all() and np.isfinite(reward).all()):
        raise EnvironmentFault(f"{spec.id}: {when}: an observation or reward is not finite; update EnvPool")
