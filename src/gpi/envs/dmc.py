"""The 28 tasks of the DeepMind Control suite on EnvPool, with observations exactly as dm_control's.

EnvPool steps inside the compiled program through XLA. What it gives is not always what dm_control gives: some tasks
have more observation keys, one has them in another order, rewards after an end are stale memory, everything is
float64. All that is settled here and nowhere else.
"""

from __future__ import annotations

import difflib
import re
import sys
from typing import TYPE_CHECKING, Any

from gpi.envs.pool import Spec, Step
from gpi.errors import UsageError

if TYPE_CHECKING:  # listing tasks must start neither JAX nor EnvPool
    from collections.abc import Mapping, Sequence

    import jax
    import numpy as np

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
    name: Spec(_PREFIX + name, sum(keys.values()), action_size, HORIZON)
    for name, (keys, action_size) in _LAYOUT.items()
}
"""The tasks of `dm_control.suite.BENCHMARKING`, by name and in its order."""


def find(task: str) -> Spec:
    """The task called `cheetah-run` or, canonically, `dmc/cheetah-run`."""
    name = task.removeprefix(_PREFIX)
    if name in TASKS:
        return TASKS[name]
    nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
    raise UsageError(
        f"unknown task {task!r}: it must be one of the {len(TASKS)} DeepMind Control tasks, "
        f"the nearest is {nearest!r}; `gpi tasks` lists them"
    )


def make(task: str, seeds: Sequence[int], num_threads: int, first_core: int = -1) -> DmcPool:
    """A pool of `len(seeds)` environments of `task`, simulated by `num_threads` threads.

    Call it, and everything that steps the pool, with 64-bit JAX (`jax.enable_x64(True)`). Results depend on the
    seeds only, not on the number of threads. Never use a pool in a forked process. With `first_core`, the threads stay
    on the cores from that one on, which is faster for whoever has the machine alone.
    """
    spec = find(task)
    if len(seeds) == 0 or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**31 for seed in seeds):
        raise UsageError(f"environment seeds must be distinct 31-bit numbers, got {list(seeds)}; use env_seeds")
    if num_threads < 1:
        raise UsageError(f"threads of the simulation must be at least 1, got {num_threads}; use 1")
    _require_linux(spec)
    _require_x64()
    return DmcPool(spec, _import_envpool(), seeds, num_threads, first_core)


class DmcPool:
    """A `Pool` of DeepMind Control tasks."""

    def __init__(self, spec: Spec, envpool: Any, seeds: Sequence[int], num_threads: int, first_core: int):
        """Make it with `make`, which checks what would otherwise crash the process."""
        self.spec = spec
        self.num_envs = len(seeds)
        # `env_seed` and not `seed`: EnvPool would count up from the latter, and runs would share environments.
        self._env: Any = envpool.make_gymnasium(
            _envpool_id(spec), num_envs=self.num_envs, num_threads=num_threads, env_seed=list(seeds),
            thread_affinity_offset=first_core,
        )  # fmt: skip
        self.handle: Any
        self._xla_step: Any
        self.handle, _, _, self._xla_step = self._env.xla()

    def reset(self, handle: Any) -> tuple[Any, np.ndarray]:
        """Start a new episode in every environment."""
        import jax
        import numpy as np

        # The program that returned this handle may still be running, and stepping the same environments.
        jax.block_until_ready(handle)
        obs, _ = self._env.reset()
        rows = [np.reshape(obs[key], (self.num_envs, -1)) for key in self._keys]
        return handle, np.concatenate(rows, axis=1, dtype=np.float32)

    def step(self, handle: Any, action: jax.Array) -> tuple[Any, Step]:
        """Step every environment with action [N, A], clipped to [-1, 1]."""
        import jax.numpy as jnp

        _require_x64()
        if action.shape != (self.num_envs, self.spec.action_size):  # EnvPool would read beyond the array
            raise ValueError(f"action must be {(self.num_envs, self.spec.action_size)}, got {action.shape}")
        # MuJoCo also acts with zero where it gets NaN, but leaves a log file in the working directory.
        action = jnp.where(jnp.isnan(action), 0.0, jnp.clip(action, -1.0, 1.0))
        handle, (obs, reward, terminated, truncated, _) = self._xla_step(handle, action.astype(jnp.float64))
        rows = [obs[key].reshape(self.num_envs, -1).astype(jnp.float32) for key in self._keys]
        return handle, Step(jnp.concatenate(rows, axis=1), reward.astype(jnp.float32), terminated, truncated)

    def close(self) -> None:
        """Free the environments and their threads. No program compiled with this pool may run afterwards."""
        self._env = self._xla_step = None

    @property
    def _keys(self) -> Mapping[str, int]:
        return _LAYOUT[self.spec.id.removeprefix(_PREFIX)][0]


def _envpool_id(spec: Spec) -> str:
    """`dmc/ball_in_cup-catch` is EnvPool's `BallInCupCatch-v1`. Only for known tasks: wrong ids crash the process."""
    words = re.split("[-_]", spec.id.removeprefix(_PREFIX))
    return "".join(word.capitalize() for word in words) + "-v1"


def _require_linux(spec: Spec) -> None:
    if sys.platform != "linux":
        raise UsageError(
            f"{spec.id} cannot run on {sys.platform}: EnvPool's XLA interface exists on Linux only; "
            "use a Linux machine or container"
        )


def _require_x64() -> None:
    from jax import dtypes

    # With x64 off EnvPool writes 8-byte values into 4-byte buffers: garbage, then a corrupted heap. Asking for the
    # dtype, as EnvPool does, sees the global setting and the context manager alike.
    if dtypes.canonicalize_dtype("float64") != "float64":
        raise UsageError(
            "jax_enable_x64 is off, but EnvPool needs 64-bit JAX; "
            "set JAX_ENABLE_X64=1 or use `with jax.enable_x64(True):`"
        )


def _import_envpool() -> Any:
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise UsageError(
            f"module {error.name!r} is missing, but the DeepMind Control tasks need EnvPool 1.2.5; "
            "run `pip install envpool==1.2.5`"
        ) from error
    except ImportError as error:
        library = re.match(r"(\S+\.so[.\d]*): cannot open shared object file", str(error))
        if library is None:
            raise
        remedy = "run `apt-get install libegl1 libopengl0`" if "GL" in library[1] else "install the package that has it"
        raise UsageError(f"system library {library[1]} is missing, but EnvPool needs it; {remedy}") from error
    return envpool
