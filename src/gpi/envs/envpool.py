"""Environments on EnvPool, which steps them inside the compiled program through XLA, or on the host.

Rewards after an end are stale memory, most values are float64, a wrong id or shape crashes the process. All of that is
handled here and nowhere else.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import math
import re
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpi.envs.faults import ContractError, one_line
from gpi.envs.pool import Notes, Spec, Step
from gpi.envs.replay import Position, digest_of, first_digests
from gpi.errors import UsageError
from gpi.requirements import TESTED_JAX
from gpi.standalone import scale_action

if TYPE_CHECKING:  # listing tasks must start neither JAX nor EnvPool
    from collections.abc import Callable, Sequence

    import jax

MUJOCO = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
)  # fmt: skip
CLASSIC = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
ENVPOOL = "1.2.5"
TRIED = "tried on Linux x86-64; its wheels for Linux aarch64, macOS arm64 and Windows are not tried"
GYMNASIUM = (*MUJOCO, *CLASSIC)
"""Gymnasium ids that EnvPool simulates too."""


def make(
    spec: Spec | None, envpool_id: str, seeds: Sequence[int], num_threads: int, first_core: int = -1,
    keys: Sequence[str] = (),
) -> EnvPool:  # fmt: skip
    """Make a pool of `len(seeds)` environments, simulated by `num_threads` threads, for compiled programs.

    Call it, and everything that steps the pool, with 64-bit JAX (`jax.enable_x64(True)`). Results depend on the
    seeds only, not on the number of threads. Never use a pool in a forked process. With `first_core`, the threads stay
    on the cores from that one on, which is faster if nothing else runs on the machine.

    Args:
        spec: The task, if it is known already; otherwise the environments describe themselves.
        envpool_id: EnvPool's name of the task; a wrong one crashes the process.
        seeds: Distinct 31-bit numbers, one per environment.
        num_threads: Threads that simulate.
        first_core: The first core of the threads, or -1.
        keys: The parts of an observation in their order; empty where it is one array.
    """
    host = make_on_host(spec, envpool_id, seeds, num_threads, first_core, keys)
    _require_x64()
    return EnvPool(host)


def make_on_host(
    spec: Spec | None, envpool_id: str, seeds: Sequence[int], num_threads: int, first_core: int = -1,
    keys: Sequence[str] = (), **options: Any,
) -> EnvPoolOnHost:  # fmt: skip
    """Make a pool like `make`, to be stepped on the host, which does not need 64-bit JAX; options are EnvPool's."""
    if len(seeds) == 0 or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**31 for seed in seeds):
        raise UsageError(f"environment seeds must be distinct 31-bit numbers, got {list(seeds)}; use env_seeds")
    if num_threads < 1:
        raise UsageError(f"threads of the simulation must be at least 1, got {num_threads}; use 1")
    spec = spec or find_spec(envpool_id)  # before the environments are made: some that do not fit end the process
    with warnings.catch_warnings():  # Gymnasium warns that it rounds the bounds, which EnvPool declares in float64
        warnings.simplefilter("ignore", UserWarning)
        # `env_seed` and not `seed`: EnvPool would count up from the latter, and runs would share environments.
        env = _made(
            import_envpool().make_gymnasium, envpool_id, num_envs=len(seeds), num_threads=num_threads,
            env_seed=list(seeds), thread_affinity_offset=first_core, **options,
        )  # fmt: skip
        return EnvPoolOnHost(spec, env, len(seeds), keys)


def _made(make: Callable[..., Any], envpool_id: str, **options: Any) -> Any:
    """Return what a function of EnvPool makes for an id; if it cannot, one line says why."""
    if envpool_id not in ids():  # EnvPool would end the process
        raise UsageError(f"EnvPool does not have {envpool_id}; `gpi tasks --all` lists its ids")
    try:
        return make(envpool_id, **options)
    except (ImportError, RuntimeError) as error:  # a missing library of one family, or missing files
        raise UsageError(f"EnvPool cannot make {envpool_id}: {one_line(error)}") from error


@functools.cache
def ids() -> dict[str, tuple[str, str]]:
    """Return EnvPool's ids, each with the module and class that simulate it; two ids may share these."""
    return {name: tuple(entry[:2]) for name, entry in import_envpool().registration.registry.specs.items()}


def find_spec(envpool_id: str) -> Spec:
    """Return the spec of an id, without making its environments; raise UsageError if it cannot be trained in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return spec_of(envpool_id, _made(import_envpool().make_spec, envpool_id))


def spec_of(name: str, about: Any) -> Spec:
    """Return the spec of an id, as EnvPool describes it; raise UsageError if it cannot be trained in."""
    from gpi.envs.spaces import MAX_NAMED, actions

    if about.config.max_num_players > 1:
        raise UsageError(f"{name} has {about.config.max_num_players} players, and an agent plays alone; choose another")
    try:
        do = actions(about.gymnasium_action_space)
    except ContractError as error:
        raise UsageError(f"{name}: {str(error).split(';')[0]}; choose another") from error
    parts = layout_of(about.gymnasium_observation_space)
    size = sum(part.size for part in parts)
    named = size <= MAX_NAMED and parts[0].path
    names = tuple(f"{'.'.join(part.path)}[{i}]" for part in parts for i in range(part.size)) if named else ()
    low, high = tuple(do.low.tolist()), tuple(do.high.tolist())
    return Spec(name, size, do.size, None, do.discrete, low, high, do.start, names)


class Part(NamedTuple):
    """One array of an observation."""

    path: tuple[str, ...]  # its keys
    size: int = 0
    one_hot: bool = False  # a whole number, shown as `size` zeros and ones
    start: int = 0  # the first of these numbers


def layout_of(space: Any, path: tuple[str, ...] = ()) -> list[Part]:
    """Return the arrays that an agent sees, those of a Dict in the alphabetical order of their keys.

    Where the simulator also shows what no robot can measure, the agent sees `state` alone. EnvPool's bounds are not
    used: some are nonsense.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        keys = {"state"} if {"state", "privileged_state"} <= space.keys() else space.keys()
        return [part for key in sorted(keys) for part in layout_of(space[key], (*path, key))]
    if isinstance(space, spaces.Discrete):
        return [Part(path, int(space.n), True, int(space.start))]
    return [Part(path, math.prod(space.shape))]


class Handle(NamedTuple):
    """The state that a compiled program passes from one step to the next."""

    xla: Any  # EnvPool's own handle, which orders the steps
    ended: np.ndarray | jax.Array  # [N] bool: the episode has ended, so the next step only begins another


class EnvPool:
    """A `CompiledPool` on EnvPool."""

    def __init__(self, host: EnvPoolOnHost):
        """Let compiled programs step the environments; `make` first refuses arguments that would crash the process."""
        self.spec, self.num_envs, self.notes = host.spec, host.num_envs, host.notes
        self._host = host
        self._xla_step: Any
        try:
            xla, _, _, self._xla_step = host.env.xla()
        except Exception as error:  # JAX has its own kinds, which differ between versions
            if "FFI" not in str(error):
                raise
            raise UsageError(unfit_pair()) from error
        self.handle = Handle(xla, np.zeros(self.num_envs, np.bool_))

    def reset(self, handle: Handle) -> tuple[Handle, np.ndarray]:
        """Start a new episode in every environment."""
        import jax

        # The program that returned this handle may still be running, and stepping the same environments.
        jax.block_until_ready(handle)
        return handle._replace(ended=np.zeros(self.num_envs, np.bool_)), self._host.reset()

    def step(self, handle: Handle, action: jax.Array) -> tuple[Handle, Step[jax.Array]]:
        """Step every environment with actions [N, A], clipped to [-1, 1], or [N] where discrete."""
        import jax.numpy as jnp

        _require_x64()
        spec = self.spec
        expected = (self.num_envs,) if spec.discrete else (self.num_envs, spec.action_size)
        if action.shape != expected:  # EnvPool would read beyond the array
            raise ValueError(f"action must be {expected}, got {action.shape}")
        if not spec.discrete:
            # MuJoCo also acts with zero where it gets NaN, but leaves a log file in the working directory.
            bounds = (jnp.asarray(bound, jnp.float64)[None] for bound in (spec.low, spec.high))
            action = scale_action(action.astype(jnp.float64), *bounds, xp=jnp)
        host = self._host
        action = host.shaped(action.astype(host.action_dtype))
        xla, (obs, reward, terminated, truncated, _) = self._xla_step(handle.xla, action)
        rows = [part.astype(jnp.float32) for part in host.parts(obs, self.num_envs)]
        valid = jnp.logical_not(handle.ended)
        terminated, truncated = terminated & valid, truncated & valid
        reward = jnp.where(valid, reward.astype(jnp.float32), 0.0)  # after an end it is uninitialised memory
        step = Step(jnp.concatenate(rows, axis=1), reward, terminated, truncated, valid)
        return Handle(xla, terminated | truncated), step

    def seek(self, position: Position) -> tuple[Handle, np.ndarray, np.ndarray]:
        """Bring a newly made pool to a position."""
        obs, digest = self._host.seek(position)
        return self.handle._replace(ended=self._host.ended.copy()), obs, digest

    def on_host(self) -> EnvPoolOnHost:
        """Return the same environments, stepped on the host; begin with a reset or a seek."""
        return self._host

    def close(self) -> None:
        """Free the environments and their threads. No program compiled with this pool may run afterwards."""
        self._host.close()
        self._xla_step = None


class EnvPoolOnHost:
    """A `HostPool` on EnvPool."""

    def __init__(self, spec: Spec, env: Any, num_envs: int, keys: Sequence[str]):
        """Step EnvPool's `env`; `make_on_host` first refuses arguments that would crash the process."""
        self.spec, self.num_envs, self.notes = spec, num_envs, Notes()
        self.env: Any = env
        self.ended = np.zeros(num_envs, np.bool_)  # these begin a new episode on the next step
        self.action_dtype: np.dtype = env.spec.action_array_spec["action"].dtype
        self._action_shape = env.action_space.shape
        self._layout = [Part((key,)) for key in keys] or layout_of(env.observation_space)
        self._low, self._high = np.array(spec.low), np.array(spec.high)
        self._resets = 0  # of all environments since they were made
        self._first_obs = np.zeros((num_envs, spec.observation_size), np.float32)

    def reset(self) -> np.ndarray:
        """Start a new episode in every environment."""
        obs, _ = self.env.reset()
        self.ended[:] = False
        self._resets += 1
        self._first_obs = self._flatten(obs, self.num_envs)
        return self._first_obs

    def step(self, action: np.ndarray) -> Step[np.ndarray]:
        """Step every environment, but never while a compiled program does."""
        obs, reward, terminated, truncated = self._step_some(action, np.arange(self.num_envs, dtype=np.int32))
        valid = ~self.ended
        terminated, truncated = terminated & valid, truncated & valid
        self.ended = terminated | truncated
        reward = np.where(valid, reward, np.float32(0))  # after an end it is uninitialised memory
        return Step(obs, reward, terminated, truncated, valid)

    def _step_some(self, action: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Step some of the environments; return EnvPool's results, with the values as float32."""
        if not self.spec.discrete:
            action = scale_action(action.astype(np.float64), self._low, self._high)
        obs, reward, terminated, truncated, _ = self.env.step(self.shaped(action.astype(self.action_dtype)), ids)
        return self._flatten(obs, len(ids)), reward.astype(np.float32), terminated, truncated

    def seek(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """Bring a newly made pool to a position: only resets draw random numbers, so all of them are repeated."""
        obs = self._first_obs.copy()
        for reset in range(self._resets + 1, int(position.resets.max()) + 1):
            ids = np.flatnonzero(position.resets >= reset).astype(np.int32)
            obs[ids] = self._flatten(self.env.reset(ids)[0], len(ids))
        digest = first_digests(obs)
        self.ended[:] = False
        for call in range(int(position.calls.max())):
            ids = np.flatnonzero(position.calls > call).astype(np.int32)
            obs[ids], rewards, terminated, truncated = self._step_some(position.actions[call, ids], ids)
            self.ended[ids] = terminated | truncated
            for i, reward in zip(ids, rewards, strict=True):
                digest[i] = digest_of(int(digest[i]), obs[i][None], reward[None])
        return obs, digest

    def close(self) -> None:
        """Free the environments and their threads."""
        self.env = None

    def parts(self, obs: Any, rows: int) -> list[Any]:
        """Return the arrays `[rows, ...]` of an observation, in the order in which the agent sees them."""
        found = []
        for path, size, one_hot, start in self._layout:
            x = functools.reduce(lambda inner, key: inner[key], path, obs).reshape(rows, -1)
            found.append(x == np.arange(start, start + size, dtype=x.dtype)[None] if one_hot else x)
        return found

    def shaped(self, action: Any) -> Any:
        """Return actions `[N, A]` in the shape that the environments take."""
        return action if len(self._action_shape) < 2 else action.reshape(len(action), *self._action_shape)

    def _flatten(self, obs: Any, rows: int) -> np.ndarray:
        return np.concatenate(self.parts(obs, rows), axis=1, dtype=np.float32, casting="unsafe")


def _require_x64() -> None:
    from jax import dtypes

    # With x64 off EnvPool writes 8-byte values into 4-byte buffers: garbage, then a corrupted heap. Asking for the
    # dtype, as EnvPool does, sees the global setting and the context manager alike.
    if dtypes.canonicalize_dtype("float64") != "float64":
        raise UsageError(
            "jax_enable_x64 is off, but EnvPool needs 64-bit JAX; "
            "set JAX_ENABLE_X64=1 or use `with jax.enable_x64(True):`"
        )


def unfit_pair() -> str:
    """Return the line that says that these versions of EnvPool and JAX cannot work together."""
    have = " and ".join(f"{name} {importlib.metadata.version(name)}" for name in ("envpool", "jax"))
    fit = f"envpool=={ENVPOOL} jax=={TESTED_JAX[0]} jaxlib=={TESTED_JAX[0]}"
    return f"{have} cannot work together: their XLA interfaces differ; run `pip install {fit}`"


def available() -> bool:
    """Return whether EnvPool is installed and can run here; only importing it tells whether its libraries are there."""
    try:
        return importlib.util.find_spec("envpool") is not None
    except ModuleNotFoundError:
        return False
    except (ImportError, ValueError):
        return True


def import_envpool() -> Any:
    """Import EnvPool; raise UsageError if something that it needs is missing, naming it in one line."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise UsageError(
            f"module {error.name!r} is missing, but this task needs EnvPool; run `pip install envpool=={ENVPOOL}` "
            f"({TRIED})"
        ) from error
    except ImportError as error:
        library = re.match(r"(\S+\.so[.\d]*): cannot open shared object file", str(error))
        if library is None:
            raise
        remedy = "run `apt-get install libegl1 libopengl0`" if "GL" in library[1] else "install the package that has it"
        raise UsageError(f"system library {library[1]} is missing, but EnvPool needs it; {remedy}") from error
    return envpool
