"""The 28 tasks of the DeepMind Control suite on EnvPool, with observations exactly as dm_control's.

EnvPool's observations sometimes differ from dm_control's: some tasks have more keys, one has them in another order.
That is handled here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from gpi.envs import envpool
from gpi.envs.pool import Spec
from gpi.errors import UsageError

HORIZON = 1000

# dm_control's observation keys, in dm_control's order, with their sizes when flattened.
_ACROBOT = {"orientations": 4, "velocity": 2}
_BALL_IN_CUP = {"position": 4, "velocity": 4}
_CARTPOLE = {"position": 3, "velocity": 2}
_CHEETAH = {"position": 8, "velocity": 9}
_FINGER_SPIN = {"position": 4, "velocity": 3, "touch": 2}
_FINGER_TURN = {**_FINGER_SPIN, "target_position": 2, "dist_to_target": 1}
_FISH_UPRIGHT = {"joint_angles": 7, "upright": 1, "velocity": 13}
_FISH_SWIM = {"joint_angles": 7, "upright": 1, "target": 3, "velocity": 13}
_HOPPER = {"position": 6, "velocity": 7, "touch": 2}
_HUMANOID = {
    "joint_angles": 21,
    "head_height": 1,
    "extremities": 12,
    "torso_vertical": 3,
    "com_velocity": 3,
    "velocity": 27,
}
_MANIPULATOR = {
    "arm_pos": 16,
    "arm_vel": 8,
    "touch": 5,
    "hand_pos": 4,
    "object_pos": 4,
    "object_vel": 3,
    "target_pos": 4,
}
_PENDULUM = {"orientation": 2, "velocity": 1}
_POINT_MASS = {"position": 2, "velocity": 2}
_REACHER = {"position": 2, "to_target": 2, "velocity": 2}
_SWIMMER6 = {"joints": 5, "to_target": 2, "body_velocities": 18}
_SWIMMER15 = {"joints": 14, "to_target": 2, "body_velocities": 45}
_WALKER = {"orientations": 14, "height": 1, "velocity": 9}

_LAYOUT: dict[str, tuple[dict[str, int], int]] = {
    "acrobot-swingup": (_ACROBOT, 1),
    "acrobot-swingup_sparse": (_ACROBOT, 1),
    "ball_in_cup-catch": (_BALL_IN_CUP, 2),
    "cartpole-balance": (_CARTPOLE, 1),
    "cartpole-balance_sparse": (_CARTPOLE, 1),
    "cartpole-swingup": (_CARTPOLE, 1),
    "cartpole-swingup_sparse": (_CARTPOLE, 1),
    "cheetah-run": (_CHEETAH, 6),
    "finger-spin": (_FINGER_SPIN, 2),
    "finger-turn_easy": (_FINGER_TURN, 2),
    "finger-turn_hard": (_FINGER_TURN, 2),
    "fish-upright": (_FISH_UPRIGHT, 5),
    "fish-swim": (_FISH_SWIM, 5),
    "hopper-stand": (_HOPPER, 4),
    "hopper-hop": (_HOPPER, 4),
    "humanoid-stand": (_HUMANOID, 21),
    "humanoid-walk": (_HUMANOID, 21),
    "humanoid-run": (_HUMANOID, 21),
    "manipulator-bring_ball": (_MANIPULATOR, 5),
    "pendulum-swingup": (_PENDULUM, 1),
    "point_mass-easy": (_POINT_MASS, 2),
    "reacher-easy": (_REACHER, 2),
    "reacher-hard": (_REACHER, 2),
    "swimmer-swimmer6": (_SWIMMER6, 5),
    "swimmer-swimmer15": (_SWIMMER15, 14),
    "walker-stand": (_WALKER, 6),
    "walker-walk": (_WALKER, 6),
    "walker-run": (_WALKER, 6),
}
"""Observation keys and number of actions of each task."""

_PREFIX = "dmc/"

TASKS: dict[str, Spec] = {
    name: Spec(
        _PREFIX + name, sum(keys.values()), action_size, HORIZON, False, (-1.0,) * action_size, (1.0,) * action_size
    )
    for name, (keys, action_size) in _LAYOUT.items()
}
"""The tasks of `dm_control.suite.BENCHMARKING`, by name and in its order."""


def short_name(task: str) -> str:
    """Return the name of a task without the prefix: `cheetah-run`."""
    return task.removeprefix(_PREFIX)


def find_spec(task: str) -> Spec:
    """Return the spec of the task called `cheetah-run` or, canonically, `dmc/cheetah-run`."""
    name = short_name(task)
    if name in TASKS:
        return TASKS[name]
    nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
    raise UsageError(
        f"unknown task {task!r}: it must be one of the {len(TASKS)} DeepMind Control tasks, "
        f"the nearest is {nearest!r}; `gpi tasks` lists them"
    )


def make(task: str, seeds: Sequence[int], num_threads: int, first_core: int = -1) -> envpool.EnvPool:
    """Make a pool of `len(seeds)` environments of `task`, as `envpool.make` does."""
    spec = find_spec(task)
    return envpool.make(spec, envpool_id(spec), seeds, num_threads, first_core, list(observation_keys(spec)))


def make_on_host(task: str, seeds: Sequence[int], num_threads: int) -> envpool.EnvPoolOnHost:
    """Make a pool of `len(seeds)` environments of `task`, as `envpool.make_on_host` does."""
    spec = find_spec(task)
    return envpool.make_on_host(spec, envpool_id(spec), seeds, num_threads, keys=list(observation_keys(spec)))


def observation_keys(spec: Spec) -> dict[str, int]:
    """Return the observation keys of a task and their sizes."""
    return _LAYOUT[short_name(spec.id)][0]


def envpool_id(spec: Spec) -> str:
    """Return EnvPool's id of a known task: `BallInCupCatch-v1` for `dmc/ball_in_cup-catch`.

    Never call it for an unknown task: wrong ids crash the process.
    """
    words = re.split("[-_]", short_name(spec.id))
    return "".join(word.capitalize() for word in words) + "-v1"
