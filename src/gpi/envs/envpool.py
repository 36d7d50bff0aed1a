"""Environments on EnvPool, which steps them inside the compiled program through XLA.

Rewards after an end are stale memory, most things are float64, a wrong id or shape crashes the process. All that is
settled here and nowhere else.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from gpi.envs.pool import Place, Spec, Step, digest_of
from gpi.errors import UsageError

if TYPE_CHECKING:  # listing tasks must start neither JAX nor EnvPool
    from collections.abc import Sequence

    import jax

MUJOCO = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
)  # fmt: skip
CLASSIC = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
GYMNASIUM = (*MUJOCO, *CLASSIC)
"""Gymnasium's ids that EnvPool simulates too."""


def make(
    spec: Spec | None, envpool_id: str, seeds: Sequence[int], num_threads: int, first_core: int = -1,
    keys: Sequence[str] = (),
) -> NativePool:  # fmt: skip
    """A pool of `len(seeds)` environments, simulated by `num_threads` threads.

    Call it, and everything that steps the pool, with 64-bit JAX (`jax.enable_x64(True)`). Results depend on the
    seeds only, not on the number of threads. Never use a pool in a forked process. With `first_core`, the threads stay
    on the cores from that one on, which is faster for whoever has the machine alone.

    Args:
        spec: The task, where it is known before; otherwise what the environments say of themselves.
        envpool_id: EnvPool's name of the task; a wrong one crashes the process.
        seeds: Distinct 31-bit numbers, one per environment.
        num_threads: Threads that simulate.
        first_core: The first core of the threads, or -1.
        keys: The parts of an observation in their order; nothing where it is one array.
    """
    if len(seeds) == 0 or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**31 for seed in seeds):
        raise UsageError(f"environment seeds must be distinct 31-bit numbers, got {list(seeds)}; use env_seeds")
    if num_threads < 1:
        raise UsageError(f"threads of the simulation must be at least 1, got {num_threads}; use 1")
    _require_linux(spec.id if spec else envpool_id)
    _require_x64()
    with warnings.catch_warnings():  # EnvPool declares bounds in float64 that Gymnasium then says it rounds
        warnings.simplefilter("ignore", UserWarning)
        # `env_seed` and not `seed`: EnvPool would count up from the latter, and runs would share environments.
        env = import_envpool().make_gymnasium(
            envpool_id, num_envs=len(seeds), num_threads=num_threads, env_seed=list(seeds),
            thread_affinity_offset=first_core,
        )  # fmt: skip
        return NativePool(spec or spec_of(envpool_id, env), env, len(seeds), keys)


def spec_of(name: str, env: Any) -> Spec:
    """The task of one of Gymnasium's ids, as EnvPool describes it."""
    see, do = env.observation_space, env.action_space
    if hasattr(do, "n"):
        return Spec(name, see.shape[0], int(do.n), None, discrete=True)
    low, high = (tuple(bound.astype(float).tolist()) for bound in (do.low, do.high))
    return Spec(name, see.shape[0], do.shape[0], None, low=low, high=high)


class NativePool:
    """A `Pool` on EnvPool."""

    compiled = True

    def __init__(self, spec: Spec, env: Any, num_envs: int, keys: Sequence[str]):
        """Make it with `make`, which checks what would otherwise crash the process."""
        self.spec, self.num_envs = spec, num_envs
        self._env: Any = env
        self._keys = keys
        self._dtype = env.spec.action_array_spec["action"].dtype
        low, high = np.array(spec.low), np.array(spec.high)
        self._centre, self._half = 0.5 * (low + high), 0.5 * (high - low)
        self._drawn = 0  # resets of all environments since they were made
        self._first = np.zeros((num_envs, spec.observation_size), np.float32)
        self.handle: Any
        self._xla_step: Any
        self.handle, _, _, self._xla_step = env.xla()

    def reset(self, handle: Any) -> tuple[Any, np.ndarray]:
        """Start a new episode in every environment."""
        import jax

        # The program that returned this handle may still be running, and stepping the same environments.
        jax.block_until_ready(handle)
        obs, _ = self._env.reset()
        self._drawn, self._first = self._drawn + 1, self._flat(obs, self.num_envs)
        return handle, self._first

    def step(self, handle: Any, action: jax.Array) -> tuple[Any, Step]:
        """Step every environment with action [N, A], clipped to [-1, 1], or [N] where discrete."""
        import jax.numpy as jnp

        _require_x64()
        wanted = (self.num_envs,) if self.spec.discrete else (self.num_envs, self.spec.action_size)
        if action.shape != wanted:  # EnvPool would read beyond the array
            raise ValueError(f"action must be {wanted}, got {action.shape}")
        if not self.spec.discrete:
            # MuJoCo also acts with zero where it gets NaN, but leaves a log file in the working directory.
            action = jnp.where(jnp.isnan(action), 0.0, jnp.clip(action, -1.0, 1.0)).astype(jnp.float64)
            action = jnp.asarray(self._centre)[None] + jnp.asarray(self._half)[None] * action
        handle, (obs, reward, terminated, truncated, _) = self._xla_step(handle, action.astype(self._dtype))
        parts = [obs[key] for key in self._keys] if self._keys else [obs]
        rows = [part.reshape(self.num_envs, -1).astype(jnp.float32) for part in parts]
        return handle, Step(jnp.concatenate(rows, axis=1), reward.astype(jnp.float32), terminated, truncated)

    def play(self, action: np.ndarray) -> Step:
        """Step every environment on the host; not while a compiled program does."""
        return self._play(action, np.arange(self.num_envs, dtype=np.int32))

    def _play(self, action: np.ndarray, ids: np.ndarray) -> Step:
        """Step some of the environments."""
        if not self.spec.discrete:
            action = np.where(np.isnan(action), 0.0, np.clip(action, -1.0, 1.0)).astype(np.float64)
            action = self._centre + self._half * action
        obs, reward, terminated, truncated, _ = self._env.step(action.astype(self._dtype), ids)
        return Step(self._flat(obs, len(ids)), reward.astype(np.float32), terminated, truncated)

    def seek(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """Go to a place: only resets draw random numbers, so each environment repeats all of its own."""
        obs = self._first.copy()
        for reset in range(self._drawn + 1, int(place.resets.max()) + 1):
            ids = np.flatnonzero(place.resets >= reset).astype(np.int32)
            obs[ids] = self._flat(self._env.reset(ids)[0], len(ids))
        zero = np.zeros(1, np.float32)
        digest = np.array([digest_of(0, row[None], zero) for row in obs], np.int64)
        for call in range(int(place.calls.max())):
            ids = np.flatnonzero(place.calls > call).astype(np.int32)
            out = self._play(place.actions[call, ids], ids)
            obs[ids] = out.obs
            for i, row, reward in zip(ids, obs[ids], np.asarray(out.reward), strict=True):
                digest[i] = digest_of(int(digest[i]), row[None], reward[None])
        return obs, digest

    def close(self) -> None:
        """Free the environments and their threads. No program compiled with this pool may run afterwards."""
        self._env = self._xla_step = None

    def _flat(self, obs: Any, rows: int) -> np.ndarray:
        parts = [obs[key] for key in self._keys] if self._keys else [obs]
        return np.concatenate([np.reshape(part, (rows, -1)) for part in parts], axis=1, dtype=np.float32)


def _require_linux(task: str) -> None:
    if sys.platform != "linux":
        raise UsageError(
            f"{task} cannot run on {sys.platform}: EnvPool's XLA interface exists on Linux only; "
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


def import_envpool() -> Any:
    """The module; the one line of what it lacks where it does not start."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise UsageError(
            f"module {error.name!r} is missing, but this task needs EnvPool 1.2.5; run `pip install envpool==1.2.5`"
        ) from error
    except ImportError as error:
        library = re.match(r"(\S+\.so[.\d]*): cannot open shared object file", str(error))
        if library is None:
            raise
        remedy = "run `apt-get install libegl1 libopengl0`" if "GL" in library[1] else "install the package that has it"
        raise UsageError(f"system library {library[1]} is missing, but EnvPool needs it; {remedy}") from error
    return envpool
