"""Videos of a policy: one episode, drawn without a display and written as mp4 or gif.

EnvPool draws the tasks it simulates, so what is seen is what was trained in; any other environment draws itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gpi import files
from gpi.envs import dmc, native
from gpi.envs.pool import Spec
from gpi.envs.seeds import env_seeds
from gpi.errors import DiskError, EnvironmentFault, GpiError, UsageError

if TYPE_CHECKING:  # checking what the user asks for must start no environment
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
GIF_FPS = 50  # browsers slow down what is faster
FPS_LIMITS, SIZE_LIMITS = (1, 240), (16, 4096)
OPENGL = re.compile(r"EGL|egl[A-Z]|OpenGL|gladLoad|GLFW|OSMesa|DISPLAY")
HEAD = struct.Struct("<d?II")  # reward, ended, height and width of the frame


class Recorded(NamedTuple):
    """What was recorded."""

    path: Path
    frames: int
    """Pictures in the file: the first shows the reset; a gif leaves some out where there are more than 50 a second."""
    fps: float
    episode_return: float
    """Of the steps that were recorded."""
    length: int
    """Steps."""
    ended: bool
    """Whether the episode ended within them."""


class Policy(Protocol):
    """What acts; `gpi.load` returns one."""

    def __call__(self, obs: Any) -> Any:
        """The action for a flat observation, as the environment takes it."""
        ...

    def sample(self, obs: Any, rng: np.random.Generator) -> Any:
        """A random action, as in training."""
        ...


def record(
    policy: Policy, task: Task, out: str | Path, *, make: Make | None = None, seed: int = 0, steps: int = 1000,
    fps: float | None = None, size: tuple[int, int] | None = None, sampled: bool = False,
) -> Recorded:  # fmt: skip
    """Record one episode, or its beginning, as `out`, whose suffix says what: .mp4 or .gif.

    It needs no display and no GPU. The file appears when it is complete, and replaces one that was there. The episode
    of seed s is the first that an evaluation of seed s plays.

    Args:
        policy: What acts.
        task: Where it acts.
        out: The file to write.
        make: The user's function that makes the environment, where the task is their own.
        seed: What decides the episode, and the actions where they are sampled.
        steps: Steps after which the recording ends though the episode does not.
        fps: Frames per second; by default such that time passes as in the environment, where that is known.
        size: Width and height in pixels; by default the environment's own. Pictures keep their proportions.
        sampled: Draw actions as in training, instead of the likeliest.
    """
    out = Path(out)
    _check(out, steps, fps, size)
    write = _mp4(out) if out.suffix.lower() == ".mp4" else _gif(out)
    [env_seed] = env_seeds(task.id, "evaluation", seed, 1)
    by_envpool = task.backend in ("dmc", "envpool")
    scene = _Drawn(task.id, env_seed, size) if by_envpool else _Own(task.id, make, env_seed)
    temp = out.with_name(files.temporary(out.name))
    try:
        tally = _Tally()
        choose = _choice(policy, np.random.default_rng(seed) if sampled else None)
        frames, rate = write(temp, _sized(_play(scene, choose, steps, tally), size), fps or scene.fps)
        os.replace(temp, out)
    except OSError as error:
        raise DiskError(f"{out} cannot be written: {error.strerror or error}; free space on that disk") from error
    finally:
        scene.close()
        temp.unlink(missing_ok=True)
    return Recorded(out, frames, rate, tally.total, tally.length, tally.ended)


def _check(out: Path, steps: int, fps: float | None, size: tuple[int, int] | None) -> None:
    """What the user asks for, before anything starts."""
    if out.suffix.lower() not in (".mp4", ".gif"):
        raise UsageError(f"{out} has the suffix {out.suffix!r}, a video is .mp4 or .gif; use {out.with_suffix('.mp4')}")
    if not out.parent.is_dir():
        raise UsageError(f"directory {out.parent} of {out.name} does not exist; make it: mkdir -p {out.parent}")
    if out.is_dir():
        raise UsageError(f"{out} is a directory, a video is a file; name another")
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"directory {out.parent} of {out.name} cannot be written to; name another")
    if steps < 1:
        raise UsageError(f"steps must be at least 1, got {steps}; use 1000")
    if fps is not None and not FPS_LIMITS[0] <= fps <= FPS_LIMITS[1]:
        raise UsageError(f"fps must be in [{FPS_LIMITS[0]}, {FPS_LIMITS[1]}], got {fps}; use 30")
    if size is not None and not all(SIZE_LIMITS[0] <= n <= SIZE_LIMITS[1] for n in size):
        raise UsageError(
            f"size must be in [{SIZE_LIMITS[0]}, {SIZE_LIMITS[1]}] pixels, got {size[0]}x{size[1]}; use 480x480"
        )


# --- the episode --------------------------------------------------------------------------------------------------


class Shot(NamedTuple):
    """What an environment shows after a reset or a step."""

    obs: np.ndarray  # [O] float32
    reward: float
    ended: bool
    frame: np.ndarray  # [H, W, 3] uint8


class _Scene(Protocol):
    """An environment that is drawn."""

    spec: Spec
    fps: float

    def shoot(self, action: np.ndarray | None) -> Shot:
        """Step with the agent's action, as a pool takes it, or reset without one."""
        ...


@dataclass
class _Tally:
    """What has happened so far."""

    total: float = 0.0
    length: int = 0
    ended: bool = False


def _play(scene: _Scene, choose: Callable[[np.ndarray], Any], steps: int, tally: _Tally) -> Iterator[np.ndarray]:
    """The frames of an episode, drawn when asked for."""
    shot = scene.shoot(None)
    shape = shot.frame.shape
    yield shot.frame
    while tally.length < steps and not tally.ended:
        shot = scene.shoot(_agents(scene.spec, choose(shot.obs)))
        tally.total += shot.reward
        tally.length += 1
        tally.ended = shot.ended
        if shot.frame.shape != shape:
            raise EnvironmentFault(
                f"{scene.spec.id}: step {tally.length}: the frame has shape {shot.frame.shape}, the first had {shape}; "
                "draw all frames of one size"
            )
        yield shot.frame


def _sized(frames: Iterator[np.ndarray], size: tuple[int, int] | None) -> Iterator[np.ndarray]:
    """The frames in the size that is wished for, where they were not drawn so, with black beside them if need be."""
    for frame in frames:
        if size is None or frame.shape[1::-1] == size:
            yield frame
        else:
            from PIL import Image, ImageOps

            yield np.asarray(ImageOps.pad(Image.fromarray(frame), size, Image.Resampling.LANCZOS))


def _choice(policy: Policy, rng: np.random.Generator | None) -> Callable[[np.ndarray], Any]:
    """How the policy acts; what it refuses is the fault of whoever named the environment."""

    def choose(obs: np.ndarray) -> Any:
        try:
            return policy(obs) if rng is None else policy.sample(obs, rng)
        except ValueError as error:
            raise UsageError(f"the policy does not act here: {error}") from error

    return choose


def _agents(spec: Spec, action: Any) -> np.ndarray:
    """An action of the environment's units as a pool takes it: within [-1, 1], or counted from 0."""
    found = np.asarray(action)
    if spec.discrete:
        fits = found.shape == () and found.dtype.kind in "iu" and 0 <= int(found) - spec.start < spec.action_size
    else:
        fits = found.shape == (spec.action_size,) and found.dtype.kind in "fiu"
    if not fits:  # EnvPool would not notice
        wanted = f"one of {spec.action_size} actions" if spec.discrete else f"{spec.action_size} numbers"
        raise UsageError(
            f"the policy's action is {str(found)[:60]}, {spec.id} takes {wanted}; name the one it was trained in"
        )
    if spec.discrete:
        return (found - spec.start).astype(np.int32)
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    return ((found - 0.5 * (low + high)) / (0.5 * (high - low))).astype(np.float32)


# --- environments that draw themselves ----------------------------------------------------------------------------


class _Own:
    """A Gymnasium environment, the user's or an installed one, in this process."""

    def __init__(self, name: str, make: Make | None, seed: int):
        from gpi.envs.gym import GymPool, maker

        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a window
        found = make or maker(name)
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


class _Drawn:
    """One of EnvPool's environments, in a process of its own.

    MuJoCo ends its process where OpenGL fails, and finds OpenGL only if it was loaded before EnvPool, which here it may
    be already. Nothing that can carry code crosses between the processes.
    """

    def __init__(self, name: str, seed: int, size: tuple[int, int] | None):
        self.name = name
        self._place = tempfile.TemporaryDirectory(prefix="gpi-")  # MuJoCo leaves its log where it runs
        self._log = Path(self._place.name, "log")
        here, there = socket.socketpair()
        self._pipe = Connection(here.detach())
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        with there, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpi.video", str(there.fileno())], pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._place.name,
                env=os.environ | {"PYTHONPATH": paths, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"},
            )  # fmt: skip
        try:
            spec = json.loads(self._ask(json.dumps([name, seed, size or (0, 0)]).encode()))
        except BaseException:
            self.close()
            raise
        self.spec = Spec._make(tuple(x) if isinstance(x, list) else x for x in spec)
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
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._place.cleanup()

    def _ask(self, message: bytes) -> bytes:
        try:
            self._pipe.send_bytes(message)
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.wait()
            lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            said = lines[-1][:300] if lines else f"exit code {self._process.returncode}"
            if OPENGL.search(said):
                raise _no_opengl(self.name, said) from error
            raise EnvironmentFault(f"{self.name}: the process that draws it died: {said}; try again") from error
        if answer[:1] == b"\1":
            raise UsageError(answer[1:].decode())
        return answer[1:]


def _serve(pipe: Connection) -> None:
    """The life of the process that draws: make the environment, then do as told until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the process that started us
    try:
        name, seed, size = json.loads(pipe.recv_bytes())
        env, pool = _envpool(name, seed, size)
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


def _envpool(name: str, seed: int, size: tuple[int, int]) -> tuple[Any, native.NativePool]:
    """EnvPool's environment and, for what it shows and takes, the pool that training has."""
    spec = dmc.find(name) if name.startswith("dmc/") else None
    if name in native.CLASSIC:
        size = (0, 0)  # its own: in another, parts would lie outside of the picture
    else:
        try:  # MuJoCo asks this library for its functions, by this name; the copy in EnvPool's wheel has another
            ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise _no_opengl(name, str(error)) from error
    env = native._import_envpool().make_gymnasium(
        dmc._envpool_id(spec) if spec else name, num_envs=1, num_threads=1, env_seed=[seed],
        render_mode="rgb_array", render_width=size[0], render_height=size[1],
    )  # fmt: skip
    keys = list(dmc._keys(spec)) if spec else []
    return env, native.NativePool(spec or native.spec_of(name, env), env, 1, keys)


# --- files --------------------------------------------------------------------------------------------------------

Write = Callable[[Path, Iterator[np.ndarray], float], tuple[int, float]]
"""Writes frames as they come, so many a second; returns how many there are, and how many a second."""


def _mp4(out: Path) -> Write:
    """H.264 in colours that browsers play, by ffmpeg."""
    ffmpeg = _ffmpeg(out)

    def write(path: Path, frames: Iterator[np.ndarray], fps: float) -> tuple[int, float]:
        first = next(frames)
        height, width = (n - n % 2 for n in first.shape[:2])  # colours have half the resolution
        command = [
            ffmpeg, "-loglevel", "error", "-nostdin",
            "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:0",
            "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4",
            f"file:{path}",
        ]  # fmt: skip
        even = (np.ascontiguousarray(frame[:height, :width]) for frame in itertools.chain([first], frames))
        return _encode(command, even, out), fps

    return write


def _encode(command: list[str], frames: Iterator[np.ndarray], out: Path) -> int:
    """Hand ffmpeg each frame as it comes; returns how many came."""
    count = 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        try:
            for frame in frames:
                process.stdin.write(frame.data)
                count += 1
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended: what it said is of more use
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()
        if process.returncode != 0:
            said.seek(0)
            raise _failed(out, said.read().decode(errors="replace"))
    return count


def _failed(out: Path, said: str) -> GpiError:
    """The one line of what ffmpeg said when it failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing"]
    full = next((line for line in lines if "No space left" in line or "Input/output error" in line), None)
    if full:
        return DiskError(f"{out} cannot be written: {full[:300]}; free space on that disk")
    return UsageError(
        f'{out}: ffmpeg failed and said {lines[0][:300]!r}; run `pip install "gpi-rl[video]"` for another'
    )


def _ffmpeg(out: Path) -> str:
    """The ffmpeg of the package imageio-ffmpeg, or else the system's."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        found = shutil.which("ffmpeg")
        if found is None:
            raise UsageError(
                f'{out} needs ffmpeg, which is missing; run `pip install "gpi-rl[video]"`, or record a .gif'
            ) from error
        return found


def _gif(out: Path) -> Write:
    """A gif, which loops; where frames come faster than browsers show them, every other is left out."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f'{out} needs Pillow, which is missing; run `pip install "gpi-rl[video]"`') from error

    def write(path: Path, frames: Iterator[np.ndarray], fps: float) -> tuple[int, float]:
        every = math.ceil(fps / GIF_FPS)
        delay = max(round(100 * every / fps), 2)  # hundredths of a second, the format's unit
        count = 0

        def images() -> Iterator[Image.Image]:
            nonlocal count
            for i, frame in enumerate(frames):
                if i % every == 0:
                    count += 1
                    yield Image.fromarray(frame).quantize(dither=Image.Dither.NONE)

        pictures = images()
        options = {"save_all": True, "append_images": pictures, "duration": 10 * delay, "loop": 0, "optimize": False}
        with path.open("wb") as file:  # Pillow would leave its own open when interrupted
            next(pictures).save(file, "GIF", **options)
        return count, 100 / delay

    return write


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
