"""Checks before training: a broken environment gets one line that names the problem, the environment and the step.

Two environments are made, the first is played through several episodes, and both must begin alike from the same seed.
What an environment may do, and a resumed run would only not repeat exactly, is a note and no fault.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpi.envs.gym import Make, Slot, alike, maker
from gpi.envs.pool import Seekable, Spec
from gpi.envs.spaces import Broken
from gpi.envs.tasks import Task, make_pool
from gpi.errors import EnvironmentFault

STEPS = 1100
"""Most steps of the first environment: episodes of 1000 steps, which many have, end in them."""
RESETS = 8
"""Seeds that are compared. Several, as an environment that begins in one of two states may agree by chance."""
SHARE = 0.6
"""Of the time, for the first environment alone."""
HOLD = 16
"""Steps that an extreme action is held: only that drives some environments out of their spaces."""
IRREPRODUCIBLE = "steps do not reproduce: a resumed run will not be exact"
PACKAGE = Path(__file__).parents[1]


class Checked(NamedTuple):
    """What the checks of a sound environment found."""

    spec: Spec
    steps: int
    episodes: int  # that ended
    reproducible: bool  # the same seed and the same actions gave the same episodes
    notes: tuple[str, ...]  # what does not stop training


class WorkerError(Exception):
    """The traceback of an exception in a worker process, as text."""


def check(task: Task, make: Make | None = None, seconds: float = 1.5, *, alone: bool = False) -> Checked:
    """Play the environments of a task for a moment; raises EnvironmentFault where one breaks its contract.

    Args:
        task: The task; the module of a user's own is imported.
        make: What makes its environments, where that is not to be found by the name.
        seconds: About how long to play; making the environments and their single steps are not cut short.
        alone: There will be one environment only, so make no second one to compare it with.
    """
    with _quiet():
        if task.backend in ("dmc", "envpool"):
            return _check_native(task, time.monotonic() + seconds)
        if task.backend == "processes" and make is not None:
            from gpi.envs.workers import require_importable  # it imports this module

            require_importable(task.id, make)
        return _check_gymnasium(task.id, make or maker(task.id), time.monotonic() + seconds, alone)


def traceback_of(error: BaseException) -> str | None:
    """The traceback of the user's exception behind a fault, without the frames of this package; None without one."""
    cause = error.__cause__
    if isinstance(cause, WorkerError):
        return str(cause) or None
    trace = cause.__traceback__ if cause is not None and not isinstance(cause, Broken) else None
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    if cause is None or trace is None:
        return None
    return "".join(traceback.TracebackException(type(cause), cause, trace).format())


def _ours(file: str) -> bool:
    """Whether a frame is of this package, or of Python's importing on its behalf."""
    return Path(file).is_relative_to(PACKAGE) or "importlib" in file


class _Little(io.TextIOBase):
    """Passes on to stderr what is printed first, and no more."""

    left = 1000

    def write(self, text: str) -> int:
        """Pass on as much as may be."""
        sys.stderr.write(text[: self.left])
        self.left = max(0, self.left - len(text))
        return len(text)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Environments do not warn, and what they print does not get among what a command prints."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(_Little()):
        warnings.simplefilter("ignore")
        yield


# --- Gymnasium ----------------------------------------------------------------------------------------------------


class _Watched:
    """An environment of which every number must be finite and in its space."""

    def __init__(self, slot: Slot):
        self.slot, self.row = slot, np.empty(slot.observations.size, np.float32)
        self.steps = 0
        self.lengths: list[int] = []  # of the episodes that ended

    def reset(self, number: int) -> np.ndarray:
        """The first observation of episode `number`."""
        self.slot.resets = number - 1
        self.slot.reset(self.row)
        self._judge()
        return self.row.copy()

    def step(self, action: np.ndarray) -> tuple[bytes, float, bool, bool]:
        """All that one step shows."""
        reward, terminated, truncated = self.slot.step(action, self.row)
        self.steps += 1
        self._judge()
        if not math.isfinite(reward):
            raise self.slot.fault(f"reward is {reward}, no finite number in float32; return a finite one")
        if self.slot.ended:
            self.lengths.append(self.slot.calls)
        return self.row.tobytes(), reward, terminated, truncated

    def _judge(self) -> None:
        finite = np.isfinite(self.row)
        if not finite.all():
            j = int(np.argmin(finite))
            raise self.slot.fault(
                f"observation {self.slot.entry(j)} is {self.row[j]}, no finite number in float32; return finite ones"
            )
        self.slot.inside(self.row)


def _check_gymnasium(name: str, make: Make, deadline: float, alone: bool) -> Checked:
    """Check two environments of one task, or one that will be alone."""
    slots: list[Slot] = []
    try:
        for number in range(1 if alone else 2):
            slots.append(Slot(name, make, 0, number))
        alike(slots[0], slots[-1])
        one, other = _Watched(slots[0]), None if alone else _Watched(slots[1])
        spec = slots[0].spec
        actions = _actions(spec.discrete, spec.action_size)
        now = time.monotonic()
        deadline = max(deadline, now + 0.2)  # making them may have taken long
        _explore(one, actions, now + SHARE * (deadline - now))
        notes = []
        if not one.lengths and one.steps == STEPS:
            notes.append(f"no episode ended in {STEPS} steps: returns are known at ends only; add a TimeLimit wrapper")
        _begin_alike(one, other or one, deadline)
        if other is None:  # whether steps reproduce cannot be seen
            return Checked(spec, one.steps, len(one.lengths), True, tuple(notes))
        reproducible = _go_alike(one, other, actions, deadline)
        notes += [] if reproducible else [IRREPRODUCIBLE]
        episodes = len(one.lengths) + len(other.lengths)
        return Checked(spec, one.steps + other.steps, episodes, reproducible, tuple(notes))
    finally:
        for slot in slots:
            slot.close()


def _actions(discrete: bool, size: int) -> Iterator[Any]:
    """Actions that find faults: every discrete one or both bounds, random ones, and one of the extremes held."""
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
        if one.slot.ended:
            number += 1
            one.reset(number)
        one.step(next(actions))


def _begin_alike(one: _Watched, other: _Watched, deadline: float) -> None:
    """The same seed gives the same first observation, in the same environment and in another."""
    for number in range(1, RESETS + 1):
        first = one.reset(number)
        for again in (one, other):
            differs = again.reset(number) != first
            if differs.any():
                j = int(np.argmax(differs))
                raise again.slot.fault(
                    f"reset ignores its seed: observation {again.slot.entry(j)} is {first[j]:.9g} and, from the same "
                    f"seed, {again.row[j]:.9g}; call super().reset(seed=seed) and draw from self.np_random only"
                )
        if time.monotonic() > deadline:
            return


def _go_alike(one: _Watched, other: _Watched, actions: Iterator[np.ndarray], deadline: float) -> bool:
    """Whether the same seed and actions give the same episodes.

    `one` has ended episodes before and `other` has not, which shows what their resets leave behind. They take turns, as
    in a pool, which shows what environments share.
    """
    begun = one.steps
    for number in range(1, RESETS + 1):
        one.reset(number)
        other.reset(number)
        while not one.slot.ended:
            action = next(actions)
            alike = one.step(action) == other.step(action)
            _begin_afresh(one, other)
            if not alike:
                return False
            if one.steps - begun > STEPS // 4 or time.monotonic() > deadline:
                return True
    return True


def _begin_afresh(one: _Watched, other: _Watched) -> None:
    """Episodes must not end at once because an earlier one has ended."""
    since = one.lengths[1:]
    if one.slot.ended and not other.slot.ended and len(since) >= RESETS and set(since) == {1}:
        raise one.slot.fault(
            "every episode after the first ends at its first step, but not in a new environment; "
            "let reset clear what the episode before left"
        )


# --- EnvPool ------------------------------------------------------------------------------------------------------


def _check_native(task: Task, deadline: float) -> Checked:
    """Check two pools of EnvPool's environments, which were tested and can only be damaged or of another version."""
    import jax

    pools: list[Seekable] = []
    with jax.enable_x64(True):
        try:
            for _ in range(2):
                pools.append(make_pool(task, (1, 2), 1))
            return _play_native(pools[0], pools[1], deadline)
        finally:
            for pool in pools:
                pool.close()


def _play_native(pool: Seekable, other: Seekable, deadline: float) -> Checked:
    """Play two pools of the same seeds alike."""
    spec = pool.spec
    _, first = pool.reset(pool.handle)
    fresh, steps, ends, reproducible = np.zeros(2, np.bool_), 0, 0, True
    _judge_native(spec, "reset 1", np.asarray(first), np.zeros(2))
    if not np.array_equal(first, other.reset(other.handle)[1]):
        raise EnvironmentFault(f"{spec.id}: reset 1: the same seeds gave different observations; reinstall EnvPool")
    for steps, action in enumerate(_actions(spec.discrete, spec.action_size), 1):
        one, two = (each.play(np.stack([action, action])) for each in (pool, other))
        reward, again = (np.where(fresh, 0.0, np.asarray(out.reward)) for out in (one, two))  # stale after an end
        _judge_native(spec, f"step {steps}", np.asarray(one.obs), reward)
        reproducible &= np.array_equal(one.obs, two.obs) and np.array_equal(reward, again)
        fresh = np.asarray(one.terminated) | np.asarray(one.truncated)
        ends += int(fresh.sum())
        if steps >= STEPS // 4 or time.monotonic() > deadline:
            break
    return Checked(spec, 4 * steps, 2 * ends, reproducible, () if reproducible else (IRREPRODUCIBLE,))


def _judge_native(spec: Spec, when: str, obs: np.ndarray, reward: np.ndarray) -> None:
    wanted = (2, spec.observation_size)
    if obs.shape != wanted:
        raise EnvironmentFault(f"{spec.id}: {when}: observations have shape {obs.shape}, not {wanted}; update EnvPool")
    if not (np.isfinite(obs).all() and np.isfinite(reward).all()):
        raise EnvironmentFault(f"{spec.id}: {when}: an observation or reward is not finite; update EnvPool")
