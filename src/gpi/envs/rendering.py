"""Rendering without a display: environments that return a picture with each step.

EnvPool draws the tasks that it simulates, so that videos show what agents were trained in; any other environment draws
itself.
"""

from __future__ import annotations

import ctypes
import inspect
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
from gpi.envs.cameras import SIZES, as_camera, find_camera, unknown_camera
from gpi.envs.faults import one_line
from gpi.envs.pool import Spec
from gpi.envs.subprocesses import (
    PATIENCE,
    connect_to_parent,
    last_words,
    spec_from_json,
    start_process,
    wait_or_kill,
)
from gpi.errors import EnvironmentFault, GpiError, UsageError

if TYPE_CHECKING:  # importing this must not start Gymnasium
    from gpi.envs.importing import Make
    from gpi.envs.tasks import Task

RATES = {
    "acrobot": 100, "ball_in_cup": 50, "cartpole": 100, "cheetah": 100, "finger": 50, "fish": 25, "hopper": 50,
    "humanoid": 40, "manipulator": 100, "pendulum": 50, "point_mass": 50, "reacher": 50, "swimmer": 100 / 3,
    "walker": 40,
    "Ant": 20, "HalfCheetah": 20, "Hopper": 125, "Humanoid": 67, "HumanoidStandup": 67, "InvertedDoublePendulum": 20,
    "InvertedPendulum": 25, "Pusher": 20, "Reacher": 50, "Swimmer": 25, "Walker2d": 125,
    "Acrobot": 15, "CartPole": 50, "MountainCar": 30, "MountainCarContinuous": 30, "Pendulum": 30,
}  # fmt: skip
"""Frames per second of EnvPool's tasks, which do not say: dm_control in real time, Gymnasium as in its metadata."""
FPS = 30.0  # where the environment does not say
FPS_LIMITS = (1, 240)
OPENGL = re.compile(r"EGL|egl[A-Z]|OpenGL|gladLoad|GLFW|OSMesa|DISPLAY")
HEAD = struct.Struct("<d?II")  # reward, ended, height and width of the frame


class RenderedStep(NamedTuple):
    """The observation, reward and frame after a reset or a step."""

    obs: np.ndarray  # [O] float32
    reward: float  # 0 after a reset
    ended: bool
    frame: np.ndarray | None  # [H, W, 3] uint8; None after a step that was not to be drawn


class RenderedEnv(Protocol):
    """An environment that returns a picture with each step."""

    spec: Spec
    fps: float  # steps in a second of real time

    def reset(self) -> RenderedStep:
        """Start a new episode."""
        ...

    def step(self, action: np.ndarray, draw: bool = True) -> RenderedStep:
        """Step with the agent's action, as a pool takes it; draw the picture, which takes most of the time, or not."""
        ...

    def close(self) -> None:
        """Free the environment."""
        ...


def make_renderer(
    task: Task, own: Make | None, seed: int, size: tuple[int, int] | None, camera: str | int | None = None
) -> RenderedEnv:
    """Make the environment of a task, rendered. `own`, if given, makes it; only EnvPool honours `size`."""
    if task.compiled:
        size = size or SIZES.get(dmc.short_name(task.id).partition("-")[0])
        return RenderedEnvPool(task.id, seed, size, find_camera(task.id, camera))
    return RenderedGym(task.id, own, seed, camera)


class RenderedGym:
    """A Gymnasium environment, the user's or an installed one, in this process."""

    def __init__(self, name: str, make: Make | None, seed: int, camera: str | int | None = None):
        from gpi.envs.gym import GymPool
        from gpi.envs.importing import maker

        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a window
        found = make or maker(name)
        with warnings.catch_warnings():  # Gymnasium warns of an undeclared render_mode; only the frames matter
            warnings.simplefilter("ignore")
            self._pool = GymPool(name, lambda: _drawable(found, name, camera), [seed])
        self._env = self._pool.envs[0].env
        self.spec = self._pool.spec
        rate = (getattr(self._env, "metadata", None) or {}).get("render_fps")
        self.fps = float(rate) if isinstance(rate, int | float) and FPS_LIMITS[0] <= rate <= FPS_LIMITS[1] else FPS

    def reset(self) -> RenderedStep:
        """Start a new episode."""
        return RenderedStep(self._pool.reset()[0], 0.0, False, self._draw())

    def step(self, action: np.ndarray, draw: bool = True) -> RenderedStep:
        """Take a step."""
        out = self._pool.step(action[None])
        ended = bool(out.terminated[0] or out.truncated[0])
        return RenderedStep(out.obs[0], float(out.reward[0]), ended, self._draw() if draw else None)

    def close(self) -> None:
        """Close the environment."""
        self._pool.close()

    def _draw(self) -> np.ndarray:
        name = self.spec.id
        try:
            frame = self._env.render()
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
                "let its maker accept render_mode='rgb_array', and render return such an array"
            )
        return frame


def _drawable(make: Make, name: str, camera: str | int | None) -> Any:
    """Make an environment that draws frames, if its maker accepts `render_mode`, with the camera named, if any."""
    options: dict[str, Any] = {"render_mode": "rgb_array"}
    if camera is not None:
        return _make_with_camera(make, name, camera, options)
    try:
        inspect.signature(make).bind(**options)
    except TypeError:
        return make()
    except ValueError:  # it has no signature: just try
        pass
    try:
        return make(**options)
    except TypeError as error:
        if "render_mode" not in str(error):
            raise
        return make()


def _make_with_camera(make: Make, name: str, camera: str | int, options: dict[str, Any]) -> Any:
    """Make an environment that takes the camera's name or id as Gymnasium's MuJoCo environments do."""
    given = as_camera(camera)
    key = "camera_id" if isinstance(given, int) else "camera_name"
    try:
        env = make(**options, **{key: given})
    except TypeError as error:
        if "camera" not in str(error) and "render_mode" not in str(error):
            raise
        raise UsageError(
            f"camera = {camera!r} has no meaning for {name}: only an environment whose maker takes {key}, as those of "
            "MuJoCo in Gymnasium do, has cameras; leave it out"
        ) from error
    model: Any = getattr(getattr(env, "unwrapped", env), "model", None)
    if hasattr(model, "ncam"):  # MuJoCo itself would draw by another camera without a word
        names = [model.camera(i).name for i in range(model.ncam)]
        if given not in names and not (isinstance(given, int) and -1 <= given < len(names)):
            raise unknown_camera(name, camera, {one: i for i, one in enumerate(names)})
    return env


def _undrawn(name: str, error: Exception) -> GpiError:
    """Return the error of an environment that cannot draw itself."""
    from gymnasium.error import DependencyNotInstalled

    if isinstance(error, DependencyNotInstalled):  # which says how to install it
        return UsageError(f"{name} cannot draw itself: {' '.join(str(error).split())}")
    if OPENGL.search(str(error)):
        return _no_opengl(name, one_line(error))
    return EnvironmentFault(f"{name}: render raised {one_line(error)}; fix the environment")


def _no_opengl(name: str, why: str) -> UsageError:
    return UsageError(
        f"{name} is drawn with OpenGL, which does not start here ({why}); run `apt-get install libegl1 libgl1-mesa-dri`"
    )


class RenderedEnvPool:
    """One of EnvPool's environments, in a separate process.

    MuJoCo ends its process where OpenGL fails, and finds OpenGL only if that was loaded before EnvPool, which may not
    be the case in this process. Nothing that can carry code passes between the processes.
    """

    def __init__(self, name: str, seed: int, size: tuple[int, int] | None, camera: int):
        self.name = name
        self._directory = tempfile.TemporaryDirectory(prefix="gpi-")  # MuJoCo leaves its log where it runs
        self._log = Path(self._directory.name, "log")
        extra = {"JAX_PLATFORMS": "cpu"}  # EnvPool imports JAX, which must not take a GPU
        with self._log.open("wb") as log:
            self._process, self._pipe = start_process(
                "gpi.envs.rendering", extra, stdout=log, stderr=log, cwd=self._directory.name
            )
        try:
            spec = json.loads(self._ask(json.dumps([name, seed, size or (0, 0), camera]).encode()))
        except BaseException:
            self.close()
            raise
        self.spec = spec_from_json(spec)
        self.fps = float(RATES.get(dmc.short_name(name).partition("-")[0], FPS))

    def reset(self) -> RenderedStep:
        """Start a new episode."""
        return self._read(self._ask(b""))

    def step(self, action: np.ndarray, draw: bool = True) -> RenderedStep:
        """Take a step."""
        return self._read(self._ask(bytes([draw]) + action.tobytes()))

    def _read(self, data: bytes) -> RenderedStep:
        reward, ended, height, width = HEAD.unpack_from(data)
        obs = np.frombuffer(data, np.float32, self.spec.observation_size, HEAD.size)
        frame = np.frombuffer(data, np.uint8, height * width * 3, HEAD.size + obs.nbytes)
        return RenderedStep(obs, reward, ended, frame.reshape(height, width, 3) if frame.size else None)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()  # end of file tells the process to exit
        wait_or_kill(self._process, time.monotonic() + PATIENCE)
        self._directory.cleanup()

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
    """Run the process that draws: make the environment, then answer messages until the pipe closes."""
    try:
        name, seed, size, camera = json.loads(pipe.recv_bytes())
        pool = make_envpool(name, seed, size)
        pipe.send_bytes(b"\0" + json.dumps(pool.spec).encode())
        kind = np.int32 if pool.spec.discrete else np.float32
        while True:
            message = pipe.recv_bytes()
            if message:
                action = np.frombuffer(message[1:], kind).reshape((1,) if pool.spec.discrete else (1, -1))
                out = pool.step(action)
                obs, reward, ended = out.obs[0], float(out.reward[0]), bool(out.terminated[0] or out.truncated[0])
            else:
                obs, reward, ended = pool.reset()[0], 0.0, False
            frame = np.empty((0, 0, 3), np.uint8)
            if message[:1] != b"\0":  # an exception here ends this process, and the parent reads its last line
                frame = pool.env.render(camera_id=camera)[0]
            head = HEAD.pack(reward, ended, *frame.shape[:2])
            pipe.send_bytes(b"".join([b"\0", head, obs.tobytes(), frame.tobytes()]))
    except (EOFError, ConnectionError):
        pass
    except GpiError as error:
        pipe.send_bytes(b"\1" + str(error).encode())


def make_envpool(name: str, seed: int, size: tuple[int, int]) -> envpool.EnvPoolOnHost:
    """Make a pool of one environment that EnvPool can render, in the size given."""
    spec = dmc.find_spec(name) if name.startswith("dmc/") else None
    if name in envpool.CLASSIC:
        size = (0, 0)  # the default: in another, parts would lie outside the picture
    else:
        try:  # MuJoCo looks up its functions in this library, by this name; the copy in EnvPool's wheel has another
            ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise _no_opengl(name, str(error)) from error
    return envpool.make_on_host(
        spec, dmc.envpool_id(spec) if spec else name, [seed], 1, keys=list(dmc.observation_keys(spec)) if spec else (),
        render_mode="rgb_array", render_width=size[0], render_height=size[1],
    )  # fmt: skip


if __name__ == "__main__":
    serve(connect_to_parent())
