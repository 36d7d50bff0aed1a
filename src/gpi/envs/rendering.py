"""Environments that are drawn, each step of theirs with its picture, without a display.

EnvPool draws the tasks it simulates, so what is seen is what was trained in; any other environment draws itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gpi.envs import dmc, envpool
from gpi.envs.pool import Spec
from gpi.envs.subprocesses import PATIENCE, begin, ended, last_words, spec_of, start
from gpi.errors import EnvironmentFault, GpiError, UsageError

if TYPE_CHECKING:  # saying what a scene is must start no environment
    from gpi.envs.gym import Make
    from gpi.envs.tasks import Task

RATES = {
    "acrobot": 100, "ball_in_cup": 50, "cartpole": 100, "cheetah": 100, "finger": 50, "fish": 25, "hopper": 50,
    "humanoid": 40, "manipulator": 100, "pendulum": 50, "point_mass": 50, "reacher": 50, "swimmer": 100 / 3,
    "walker": 40,
    "Ant": 20, "HalfCheetah": 20, "Hopper": 125, "Humanoid": 67, "HumanoidStandup": 67, "InvertedDoublePendulum": 20,
    "InvertedPendulum": 25, "Pusher": 20, "Reacher": 50, "Swimmer": 25, "Walker2d": 125,
    "Acrobot": 15, "CartPole": 50, "MountainCar": 30, "MountainCarContinuous": 30, "Pendulum": 30,
}  # fmt: skip
"""Frames per second of EnvPool's tasks, which do not say so: dm_control's steps in real time, Gymnasium's metadata."""
FPS = 30.0  # where nothing says how fast time goes
FPS_LIMITS = (1, 240)
OPENGL = re.compile(r"EGL|egl[A-Z]|OpenGL|gladLoad|GLFW|OSMesa|DISPLAY")
HEAD = struct.Struct("<d?II")  # reward, ended, height and width of the frame


class Shot(NamedTuple):
    """What an environment shows after a reset or a step."""

    obs: np.ndarray  # [O] float32
    reward: float
    ended: bool
    frame: np.ndarray  # [H, W, 3] uint8


class Scene(Protocol):
    """An environment that is drawn."""

    spec: Spec
    fps: float

    def shoot(self, action: np.ndarray | None) -> Shot:
        """Step with the agent's action, as a pool takes it, or reset without one."""
        ...

    def close(self) -> None:
        """Let go of the environment."""
        ...


def make(task: Task, own: Make | None, seed: int, size: tuple[int, int] | None) -> Scene:
    """The scene of a task, of which `own` makes the environment if given; only EnvPool draws in the size wished for."""
    return EnvPoolScene(task.id, seed, size) if task.backend in ("dmc", "envpool") else OwnScene(task.id, own, seed)


# --- environments that draw themselves ----------------------------------------------------------------------------


class OwnScene:
    """A Gymnasium environment, the user's or an installed one, in this process."""

    def __init__(self, name: str, make: Make | None, seed: int):
        from gpi.envs.gym import GymPool, maker

        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a window
        found = make or maker(name)
        with warnings.catch_warnings():  # Gymnasium warns of a render_mode that is not declared; frames decide
            warnings.simplefilter("ignore")
            self._pool = GymPool(name, lambda: _drawable(found), [seed])
        self._slot = self._pool.slots[0]
        self.spec = self._pool.spec
        rate = (getattr(self._slot.env, "metadata", None) or {}).get("render_fps")
        self.fps = float(rate) if isinstance(rate, int | float) and FPS_LIMITS[0] <= rate <= FPS_LIMITS[1] else FPS

    def shoot(self, action: np.ndarray | None) -> Shot:
        """Step, or reset without an action."""
        if action is None:
            _, obs = self._pool.reset(None)
            return Shot(obs[0], 0.0, False, self._draw())
        out = self._pool.play(action[None])
        return Shot(np.asarray(out.obs[0]), float(out.reward[0]), self._slot.ended, self._draw())

    def close(self) -> None:
        """Close the environment."""
        self._pool.close()

    def _draw(self) -> np.ndarray:
        name = self.spec.id
        try:
            frame = self._slot.env.render()
        except NotImplementedError:
            frame = None
        except GpiError:
            raise
        except Exception as error:
            raise _undrawn(name, error) from error
        if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
            what = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise UsageError(
                f"{name}: render returned {what}, a video needs an array of uint8 [height, width, 3]; "
                "let what makes the environment take render_mode='rgb_array', and render return such an array"
            )
        return frame


def _drawable(make: Make) -> Any:
    """An environment made such that it draws, if what makes it knows of that."""
    import inspect

    try:
        inspect.signature(make).bind(render_mode="rgb_array")
    except TypeError:
        return make()
    except ValueError:  # it has no signature: try
        pass
    try:
        return make(render_mode="rgb_array")
    except TypeError as error:
        if "render_mode" not in str(error):
            raise
        return make()


def _undrawn(name: str, error: Exception) -> GpiError:
    """The one line of an environment that cannot draw itself."""
    from gymnasium.error import DependencyNotInstalled

    from gpi.envs.gym import told

    if isinstance(error, DependencyNotInstalled):  # which says how to install it
        return UsageError(f"{name} cannot draw itself: {' '.join(str(error).split())}")
    if OPENGL.search(str(error)):
        return _no_opengl(name, told(error))
    return EnvironmentFault(f"{name}: render raised {told(error)}; mend the environment")


def _no_opengl(name: str, why: str) -> UsageError:
    return UsageError(
        f"{name} is drawn with OpenGL, which does not start here ({why}); run `apt-get install libegl1 libgl1-mesa-dri`"
    )


# --- environments that EnvPool draws ------------------------------------------------------------------------------


class EnvPoolScene:
    """One of EnvPool's environments, in a process of its own.

    MuJoCo ends its process where OpenGL fails, and finds OpenGL only if it was loaded before EnvPool, which here it may
    be already. Nothing that can carry code crosses between the processes.
    """

    def __init__(self, name: str, seed: int, size: tuple[int, int] | None):
        self.name = name
        self._place = tempfile.TemporaryDirectory(prefix="gpi-")  # MuJoCo leaves its log where it runs
        self._log = Path(self._place.name, "log")
        extra = {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
        with self._log.open("wb") as log:
            self._process, self._pipe = start(
                "gpi.envs.rendering", extra, stdout=log, stderr=log, cwd=self._place.name
            )  # fmt: skip
        try:
            spec = json.loads(self._ask(json.dumps([name, seed, size or (0, 0)]).encode()))
        except BaseException:
            self.close()
            raise
        self.spec = spec_of(spec)
        self.fps = float(RATES.get(name.removeprefix("dmc/").partition("-")[0], FPS))

    def shoot(self, action: np.ndarray | None) -> Shot:
        """Step, or reset without an action."""
        data = self._ask(b"" if action is None else action.tobytes())
        reward, ended, height, width = HEAD.unpack_from(data)
        obs = np.frombuffer(data, np.float32, self.spec.observation_size, HEAD.size)
        frame = np.frombuffer(data, np.uint8, height * width * 3, HEAD.size + obs.nbytes)
        return Shot(obs, reward, ended, frame.reshape(height, width, 3))

    def close(self) -> None:
        """End the process."""
        self._pipe.close()  # which it takes for the end
        ended(self._process, time.monotonic() + PATIENCE)
        self._place.cleanup()

    def _ask(self, message: bytes) -> bytes:
        try:
            self._pipe.send_bytes(message)
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            said = last_words(self._log, self._process.wait())
            if OPENGL.search(said):
                raise _no_opengl(self.name, said) from error
            raise EnvironmentFault(f"{self.name}: the process that draws it died: {said}; try again") from error
        if answer[:1] == b"\1":
            raise UsageError(answer[1:].decode())
        return answer[1:]


def serve(pipe: Connection) -> None:
    """The life of the process that draws: make the environment, then do as told until the pipe closes."""
    try:
        name, seed, size = json.loads(pipe.recv_bytes())
        env, pool = make_envpool(name, seed, size)
        pipe.send_bytes(b"\0" + json.dumps(pool.spec).encode())
        kind = np.int32 if pool.spec.discrete else np.float32
        while True:
            message = pipe.recv_bytes()
            if message:
                action = np.frombuffer(message, kind).reshape((1,) if pool.spec.discrete else (1, -1))
                obs, reward, terminated, truncated = (np.asarray(x)[0] for x in pool.play(action))
                facts = float(reward), bool(terminated or truncated)
            else:
                obs, facts = pool.reset(pool.handle)[1][0], (0.0, False)
            frame = env.render()[0]  # what it raises ends this process, whose last words are read
            head = HEAD.pack(*facts, *frame.shape[:2])
            pipe.send_bytes(b"".join([b"\0", head, obs.astype(np.float32).tobytes(), frame.tobytes()]))
    except (EOFError, ConnectionError):
        pass
    except GpiError as error:
        pipe.send_bytes(b"\1" + str(error).encode())


def make_envpool(name: str, seed: int, size: tuple[int, int]) -> tuple[Any, envpool.NativePool]:
    """EnvPool's environment and, for what it shows and takes, the pool that training has."""
    spec = dmc.find(name) if name.startswith("dmc/") else None
    if name in envpool.CLASSIC:
        size = (0, 0)  # its own: in another, parts would lie outside of the picture
    else:
        try:  # MuJoCo asks this library for its functions, by this name; the copy in EnvPool's wheel has another
            ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise _no_opengl(name, str(error)) from error
    env = envpool.import_envpool().make_gymnasium(
        dmc.envpool_id(spec) if spec else name, num_envs=1, num_threads=1, env_seed=[seed],
        render_mode="rgb_array", render_width=size[0], render_height=size[1],
    )  # fmt: skip
    keys = list(dmc.keys_of(spec)) if spec else []
    return env, envpool.NativePool(spec or envpool.spec_of(name, env), env, 1, keys)


if __name__ == "__main__":
    serve(begin())
