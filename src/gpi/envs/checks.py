"""Checks before training: a broken environment gets one line that names the problem, the environment and the step.

Only what makes training impossible or meaningless is an error. The rest is a note, and a verdict on whether
environments of the same seeds repeat each other, which decides what a resumed run can promise. Steps are counted, not
seconds: the result does not depend on how busy the machine is.
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
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gpi.envs.faults import Hanging
from gpi.envs.gym import CheckedEnv, require_alike
from gpi.envs.importing import Make, maker
from gpi.envs.pool import HostPool, Notes, Repeats, Spec
from gpi.envs.replay import Position, digest_of, first_digests
from gpi.envs.spaces import image_in
from gpi.envs.tasks import Task, make_host_pool
from gpi.envs.workers import require_importable
from gpi.errors import EnvironmentFault

STEPS = 1000
"""Steps that `gpi check` takes in the first environment; more, until `EPISODES` have ended."""
EPISODES = 2
MOST = 10
"""Times as many steps are taken before episodes are believed not to end."""
BEFORE_TRAINING = 200
"""Steps of the check that training makes by itself."""
MINUTES = 5.0
"""A check that takes longer ends, and says that it is not whole."""
RESETS = 8
"""Seeds that are compared: several, since an environment with two first states may agree by chance."""
HOLD = 16
"""Steps for which an extreme action is held: only that drives some environments out of their spaces."""
_LIMIT: ContextVar[float] = ContextVar("limit", default=0.0)  # seconds of a reset or step
IRREPRODUCIBLE = "steps do not reproduce: a resumed run will not be exact"
UNSEEDED = "a resumed run will not be exact, and --trust keep certifies nothing"
SEEDING = (
    "call super().reset(seed=seed), draw from self.np_random only, and seed action_space where reset samples from it"
)
INEXACT = "its state survives a reset, or steps draw random numbers: a resumed run will not be exact"


class Checked(NamedTuple):
    """The result of checking an environment that can be trained in."""

    spec: Spec
    steps: int
    episodes: int  # number that ended
    repeats: Repeats
    notes: Notes  # they do not prevent training
    speed: float  # steps per second of one environment; NaN if none was timed
    whole: bool  # not cut short by the limit of minutes

    @property
    def reproducible(self) -> bool:
        """Whether the same seed and the same actions gave the same episodes."""
        return self.repeats == "exact"


class Effort(NamedTuple):
    """How much to play."""

    steps: int = STEPS  # of the first environment
    episodes: int = EPISODES  # that must have ended, too
    minutes: float = MINUTES
    alone: bool = False  # training will have one environment only: make no second one for comparison
    show: Callable[[int], None] = lambda steps: None  # is told how many were taken

    @property
    def most(self) -> int:
        """Steps after which episodes are believed not to end."""
        return MOST * self.steps if self.episodes else self.steps


DEFAULT = Effort()


def check(
    task: Task, make: Make | None = None, effort: Effort = DEFAULT, *, allow_images: bool = False,
    step_timeout: float = 60.0,
) -> Checked:  # fmt: skip
    """Play the environments of a task for a while; raise EnvironmentFault if training in them cannot work.

    Args:
        task: The task; the module of a user's own is imported.
        make: The function that makes its environments, if it cannot be found by name.
        effort: How much to play.
        allow_images: Whether observations may be images.
        step_timeout: Seconds that a reset or step may take, 0 for no limit. Only the main thread can watch, and only
            Python code can be interrupted.
    """
    with _quiet(), _patience(step_timeout):
        if task.compiled:
            return _check_envpool(task, effort, allow_images)
        if task.backend == "processes" and make is not None:
            require_importable(task.id, make)
        return _check_gymnasium(task.id, make or maker(task.id), effort, allow_images)


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
    """An environment whose values must all be finite; departures from its spaces are notes."""

    def __init__(self, env: CheckedEnv):
        self.env, self.row = env, np.empty(env.observations.size, np.float32)
        self.steps, self.seconds = 0, 0.0
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
        began = time.perf_counter()
        with _watch():
            reward, terminated, truncated = self.env.step(self.env.actions.scale(action), self.row)
        self.seconds += time.perf_counter() - began
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
        self.env.note_outside(self.row)


def _check_gymnasium(name: str, make: Make, effort: Effort, allow_images: bool) -> Checked:
    """Check two environments of one task, or one that will be alone."""
    envs: list[CheckedEnv] = []
    notes = Notes()
    try:
        for number in range(1 if effort.alone else 2):
            envs.append(CheckedEnv(name, make, 0, number, notes))
        if not allow_images:
            refuse_images(name, envs[0].env.observation_space)
        require_alike(envs[0], envs[-1])
        one, other = _Watched(envs[0]), None if effort.alone else _Watched(envs[1])
        spec, deadline = envs[0].spec, time.monotonic() + 60.0 * effort.minutes
        actions = _trial_actions(spec.discrete, spec.action_size)
        whole = _explore(one, actions, effort, deadline)
        if not one.lengths and effort.episodes and whole:
            endless = f"no episode ended in {one.steps:,} steps"
            notes["endless"] = f"{endless}: returns are known at ends only; add a TimeLimit wrapper"
        repeats: Repeats = "exact" if _starts_agree(one, other or one, deadline) else "unseeded"
        if other is not None:  # else there is nothing to compare its steps with
            agree = _steps_agree(one, other, actions, max(effort.steps // 4, 1), deadline)
            if repeats == "exact" and not agree:
                repeats, notes["repeats"] = "inexact", IRREPRODUCIBLE
        both = [each for each in (one, other) if each]
        steps, episodes = sum(each.steps for each in both), sum(len(each.lengths) for each in both)
        speed = steps / max(sum(each.seconds for each in both), 1e-9)
        return Checked(spec, steps, episodes, repeats, notes, speed, whole and time.monotonic() < deadline)
    finally:
        for env in envs:
            env.close()


def refuse_images(name: str, space: object) -> None:
    """Raise if observations are images: a dense network sees only a row of numbers, and seldom learns from it."""
    found = image_in(space)
    if found:
        why = "policies are small dense networks; show numbers instead, or flatten it all the same: --allow-images"
        raise EnvironmentFault(f"{name}: {found} is an image, {why}")


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


def _explore(one: _Watched, actions: Iterator[np.ndarray], effort: Effort, deadline: float) -> bool:
    """Play episode after episode; return whether there was time for all of it."""
    number = 1
    one.reset(number)
    while one.steps < effort.steps or (len(one.lengths) < effort.episodes and one.steps < effort.most):
        if one.steps and time.monotonic() > deadline:
            return False
        if one.env.ended:
            number += 1
            one.reset(number)
        one.step(next(actions))
        effort.show(one.steps)
    return True


def _starts_agree(one: _Watched, other: _Watched, deadline: float) -> bool:
    """Return whether a seed gives the same first observation, in the same environment and in another."""
    for number in range(1, RESETS + 1):
        first = one.reset(number)
        for again in (one, other):
            differs = again.reset(number) != first
            if differs.any():
                j = int(np.argmax(differs))
                again.env.note(
                    "repeats",
                    f"reset ignores its seed: observation {again.env.entry(j)} is {first[j]:.9g} and, from the same "
                    f"seed, {again.row[j]:.9g}; {SEEDING}: until then {UNSEEDED}",
                )
                return False
        if time.monotonic() > deadline:
            break
    return True


def _steps_agree(one: _Watched, other: _Watched, actions: Iterator[np.ndarray], steps: int, deadline: float) -> bool:
    """Return whether the same seed and actions give the same episodes.

    `one` has ended episodes before and `other` has not, which reveals state that survives a reset. They take turns, as
    in a pool, which reveals state that they share.
    """
    end = one.steps + steps
    for number in range(1, RESETS + 1):
        one.reset(number)
        other.reset(number)
        while not one.env.ended:
            action = next(actions)
            same = one.step(action) == other.step(action)
            _require_clean_start(one, other)
            if not same:
                return False
            if one.steps >= end or time.monotonic() > deadline:
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


def _check_envpool(task: Task, effort: Effort, allow_images: bool) -> Checked:
    """Check a pool of EnvPool's environments, and whether another can be brought to where it is."""
    pools: list[HostPool] = []
    try:
        for _ in range(2):
            pools.append(make_host_pool(task, (1, 2)))
        if not allow_images:
            refuse_images(task.id, pools[0].env.observation_space)  # type: ignore[attr-defined]
        return _play_envpool(pools[0], pools[1], effort)
    finally:
        for pool in pools:
            pool.close()


def _play_envpool(pool: HostPool, other: HostPool, effort: Effort) -> Checked:
    """Play a pool of two environments, then bring a new one of the same seeds to the same position."""
    spec, notes = pool.spec, Notes()
    first = pool.reset()
    _check_values(spec, "reset 1", first, np.zeros(2))
    if not np.array_equal(first, other.reset()):
        raise EnvironmentFault(f"{spec.id}: reset 1: the same seeds gave different observations; reinstall EnvPool")
    steps, ends, resets, seconds = 0, 0, np.ones(2, np.int64), 0.0
    actions, deadline = _trial_actions(spec.discrete, spec.action_size), time.monotonic() + 60.0 * effort.minutes
    while steps < effort.steps or (ends < effort.episodes and steps < effort.most):
        if steps and time.monotonic() > deadline:
            break
        began = time.perf_counter()
        out = pool.step(np.stack([next(actions)] * 2))
        seconds += time.perf_counter() - began
        steps, resets = steps + 2, resets + ~out.valid
        _check_values(spec, f"step {steps // 2}", out.obs, out.reward)
        ends += int((out.terminated | out.truncated).sum())
        effort.show(steps)
    whole = steps >= effort.steps and time.monotonic() < deadline
    if not ends and effort.episodes and whole:
        notes["endless"] = f"no episode ended in {steps:,} steps: returns are known at ends only"
    repeats: Repeats = "exact" if _continue_alike(pool, other, resets + 1, actions) else "inexact"
    if repeats == "inexact":
        notes["repeats"] = INEXACT
    return Checked(spec, steps, ends, repeats, notes, steps / max(seconds, 1e-9), whole)


def _continue_alike(pool: HostPool, new: HostPool, resets: np.ndarray, actions: Iterator[np.ndarray]) -> bool:
    """Return whether a new pool, brought by resets and the actions since the last to where another is, continues alike.

    Checkpoints hold no more than these: state that survives a reset, and random numbers that steps draw, are lost.
    """
    digest = first_digests(pool.reset())
    chosen = np.stack([[action] * 2 for action in itertools.islice(actions, 2 * HOLD)])
    calls, ended = 0, np.zeros(2, np.bool_)
    while calls < HOLD and not ended.any():
        out = pool.step(chosen[calls])
        digest = np.array([digest_of(int(digest[i]), out.obs[i][None], out.reward[i][None]) for i in range(2)])
        calls, ended = calls + 1, out.terminated | out.truncated
    _, found = new.seek(Position(resets, np.full(2, calls), digest, chosen[:calls]))
    pairs = ((pool.step(action), new.step(action)) for action in chosen[calls:])
    return bool((found == digest).all()) and all(
        np.array_equal(x, y) for one, two in pairs for x, y in zip(one, two, strict=True)
    )


def _check_values(spec: Spec, when: str, obs: np.ndarray, reward: np.ndarray) -> None:
    """Raise unless the observations of two environments have the right shape, and all values are finite."""
    expected = (2, spec.observation_size)
    if obs.shape != expected:
        raise EnvironmentFault(
            f"{spec.id}: {when}: observations have shape {obs.shape}, not {expected}; update EnvPool"
        )
    if not (np.isfinite(obs).all() and np.isfinite(reward).all()):
        raise EnvironmentFault(f"{spec.id}: {when}: an observation or reward is not finite; update EnvPool")
