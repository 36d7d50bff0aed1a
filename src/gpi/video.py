"""Videos of a policy: one episode, drawn without a display and written as mp4 or gif."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpi import files
from gpi.envs import rendering
from gpi.envs.seeds import env_seeds
from gpi.errors import DiskError, EnvironmentFault, GpiError, UsageError
from gpi.evaluation import to_agent

if TYPE_CHECKING:  # checking what the user asks for must start no environment
    from gpi.envs.gym import Make
    from gpi.envs.pool import Spec
    from gpi.envs.tasks import Task
    from gpi.standalone import Policy

GIF_FPS = 50  # browsers slow down what is faster
SIZE_LIMITS = (16, 4096)


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
    scene = rendering.make(task, make, env_seed, size)
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
    if fps is not None and not rendering.FPS_LIMITS[0] <= fps <= rendering.FPS_LIMITS[1]:
        raise UsageError(f"fps must be in [{rendering.FPS_LIMITS[0]}, {rendering.FPS_LIMITS[1]}], got {fps}; use 30")
    if size is not None and not all(SIZE_LIMITS[0] <= n <= SIZE_LIMITS[1] for n in size):
        raise UsageError(
            f"size must be in [{SIZE_LIMITS[0]}, {SIZE_LIMITS[1]}] pixels, got {size[0]}x{size[1]}; use 480x480"
        )


# --- the episode --------------------------------------------------------------------------------------------------


@dataclass
class _Tally:
    """What has happened so far."""

    total: float = 0.0
    length: int = 0
    ended: bool = False


def _play(
    scene: rendering.Scene, choose: Callable[[np.ndarray], Any], steps: int, tally: _Tally
) -> Iterator[np.ndarray]:
    """The frames of an episode, drawn when asked for."""
    shot = scene.shoot(None)
    shape = shot.frame.shape
    yield shot.frame
    while tally.length < steps and not tally.ended:
        shot = scene.shoot(agents_action(scene.spec, choose(shot.obs)))
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


def agents_action(spec: Spec, action: Any) -> np.ndarray:
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
    return to_agent(found, spec)


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
