"""Videos of a policy: one episode, drawn without a display and written as mp4, webp or gif."""

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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpi import files
from gpi.envs import rendering
from gpi.envs.seeds import env_seeds
from gpi.errors import DiskError, EnvironmentFault, GpiError, UsageError, disk_error
from gpi.evaluation import act, require_fit
from gpi.terminal import counted

if TYPE_CHECKING:  # checking the request must start no environment
    from gpi.envs.importing import Make
    from gpi.envs.tasks import Task
    from gpi.standalone import Policy

FPS = 50
"""Frames per second at most, unless the user names another number: more take longer to draw and look the same."""
GIF_FPS = 50  # browsers slow down faster ones
SIZE_LIMITS = (16, 4096)


class Recorded(NamedTuple):
    """A recording."""

    path: Path
    frames: int
    """Frames in the file: the first shows the reset; of more steps per second than `fps`, only some are drawn."""
    fps: float
    episode_return: float
    """The return of the recorded steps."""
    length: int
    """Recorded steps."""
    ended: bool
    """Whether the episode ended within these steps."""


def record(
    policy: Policy, task: Task, out: str | Path, *, make: Make | None = None, seed: int = 0, steps: int = 1000,
    fps: float = FPS, size: tuple[int, int] | None = None, camera: str | int | None = None, sampled: bool = False,
    quiet: bool = False,
) -> Recorded:  # fmt: skip
    """Record one episode, or its beginning, as an .mp4, .webp or .gif, without display or GPU.

    The file appears when it is complete, and replaces an older one. The episode is the first that an evaluation plays.

    Args:
        policy: The policy that acts.
        task: The task it acts in.
        out: The file to write; its suffix, .mp4, .webp or .gif, chooses the format.
        make: The user's function that makes the environment, if the task is their own.
        seed: Determines the episode and, if actions are sampled, the actions.
        steps: Steps after which the recording ends, even if the episode does not.
        fps: Frames per second at most; a film is in real time, and of more steps per second not every one is drawn.
        size: Width and height in pixels; by default the environment's own. Pictures keep their proportions.
        camera: Name or id of the model's camera; by default one that follows a robot that travels.
        sampled: Sample actions as in training, instead of taking the most likely.
        quiet: Show no progress.
    """
    out = _valid_path(Path(out), steps, fps, size)
    write = WRITERS[out.suffix.lower()](out)
    [env_seed] = env_seeds(task.id, "evaluation", seed, 1)
    scene = rendering.make_renderer(task, make, env_seed, size, camera)
    temp = out.with_name(files.temporary(out.name))
    try:
        require_fit(policy, scene.spec)
        tally, rng = _Tally(), np.random.default_rng(seed) if sampled else None
        every = _every(scene.fps, min(fps, GIF_FPS) if out.suffix.lower() == ".gif" else fps)
        with counted("frames", 1 + min(steps, scene.spec.horizon or steps) // every, quiet=quiet) as show:
            rate = write(temp, _resize(_play(scene, policy, rng, steps, every, tally), size, show), scene.fps / every)
        os.replace(temp, out)
    except OSError as error:
        raise disk_error(out, error) from error
    finally:
        scene.close()
        temp.unlink(missing_ok=True)
    return Recorded(out, 1 + tally.length // every, rate, tally.total, tally.length, tally.ended)


def _valid_path(out: Path, steps: int, fps: float, size: tuple[int, int] | None) -> Path:
    """Return the path; raise UsageError for a request that cannot be met, before anything starts."""
    if out.suffix.lower() not in WRITERS:
        kinds = ", ".join(WRITERS)
        remedy = out.parent / f"{out.stem or 'film'}.mp4"  # '', '.' and '/' have no name
        raise UsageError(f"{out} has the suffix {out.suffix!r}, a video is one of {kinds}; use {remedy}")
    if not out.parent.is_dir():
        raise UsageError(f"directory {out.parent} of {out.name} does not exist; make it: mkdir -p {out.parent}")
    if out.is_dir():
        raise UsageError(f"{out} is a directory, a video is a file; name another")
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"directory {out.parent} of {out.name} cannot be written to; name another")
    if steps < 1:
        raise UsageError(f"steps must be at least 1, got {steps}; use 1000")
    if not rendering.FPS_LIMITS[0] <= fps <= rendering.FPS_LIMITS[1]:
        raise UsageError(
            f"fps must be in [{rendering.FPS_LIMITS[0]}, {rendering.FPS_LIMITS[1]}], got {fps:g}; use {FPS}"
        )
    if size is not None and not all(SIZE_LIMITS[0] <= n <= SIZE_LIMITS[1] for n in size):
        raise UsageError(
            f"size must be in [{SIZE_LIMITS[0]}, {SIZE_LIMITS[1]}] pixels, got {size[0]}x{size[1]}; use 480x480"
        )
    return out


@dataclass
class _Tally:
    """The episode so far."""

    total: float = 0.0
    length: int = 0
    ended: bool = False


def _every(steps_per_second: float, fps: float) -> int:
    """Return how many steps lie between frames, so that a film in real time has at most `fps` of them a second."""
    return max(1, math.ceil(steps_per_second / fps - 1e-9))


def _play(
    scene: rendering.RenderedEnv, policy: Policy, rng: np.random.Generator | None, steps: int, every: int, tally: _Tally
) -> Iterator[np.ndarray]:
    """Play an episode; yield the frame of every n-th step, drawn when it is requested."""
    shot = scene.reset()
    assert shot.frame is not None
    shape = shot.frame.shape
    yield shot.frame
    while tally.length < steps and not tally.ended:
        shot = scene.step(act(policy, scene.spec, shot.obs, rng), draw=(tally.length + 1) % every == 0)
        tally.total += shot.reward
        tally.length += 1
        tally.ended = shot.ended
        if shot.frame is None:
            continue
        if shot.frame.shape != shape:
            raise EnvironmentFault(
                f"{scene.spec.id}: step {tally.length}: the frame has shape {shot.frame.shape}, the first had {shape}; "
                "draw all frames of one size"
            )
        yield shot.frame


def _resize(
    frames: Iterator[np.ndarray], size: tuple[int, int] | None, show: Callable[[int], None]
) -> Iterator[np.ndarray]:
    """Resize frames not drawn in the requested size, with black bars where proportions differ, and count them."""
    for i, frame in enumerate(frames, 1):
        show(i)
        if size is None or frame.shape[1::-1] == size:
            yield frame
        else:
            from PIL import Image, ImageOps

            yield np.asarray(ImageOps.pad(Image.fromarray(frame), size, Image.Resampling.LANCZOS))


FilmWriter = Callable[[Path, Iterator[np.ndarray], float], float]
"""A function that writes frames as they come, at a given rate; it returns the actual rate."""


def _mp4(out: Path) -> FilmWriter:
    """Return a writer of H.264 in colours that browsers play, by ffmpeg."""
    ffmpeg = _ffmpeg(out)

    def write(path: Path, frames: Iterator[np.ndarray], fps: float) -> float:
        first = next(frames)
        height, width = (n - n % 2 for n in first.shape[:2])  # colours have half the resolution
        command = [
            ffmpeg, "-loglevel", "error", "-nostdin",
            "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:0",
            "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4",
            f"file:{path}",
        ]  # fmt: skip
        even = (np.ascontiguousarray(frame[:height, :width]) for frame in itertools.chain([first], frames))
        _encode(command, even, out)
        return fps

    return write


def _encode(command: list[str], frames: Iterator[np.ndarray], out: Path) -> None:
    """Pass each frame to ffmpeg as it comes.

    `imageio_ffmpeg.write_frames` does the same, but keeps neither ffmpeg's exit code nor its output: a disk that is
    full at the end of a film would go unnoticed.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        try:
            for frame in frames:
                process.stdin.write(frame.data)
            process.stdin.close()
        except BrokenPipeError:
            pass  # ffmpeg has ended: its own message says more
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


def _failed(out: Path, said: str) -> GpiError:
    """Return an error with the line that ffmpeg printed when it failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing"]
    full = next((line for line in lines if "No space left" in line or "Input/output error" in line), None)
    if full:
        return DiskError(f"{out} cannot be written: {full[:300]}; free space on that disk")
    return UsageError(
        f'{out}: ffmpeg failed and said {lines[0][:300]!r}; run `pip install "gpi-rl[video]"` for another'
    )


def _ffmpeg(out: Path) -> str:
    """Return the path of ffmpeg: the one in the package imageio-ffmpeg, or else the system's."""
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


def _gif(out: Path) -> FilmWriter:
    """Return a writer of gifs, which loop."""
    return _pictures(out, "GIF", step=10, least=20, colours=256, optimize=False)


def _webp(out: Path) -> FilmWriter:
    """Return a writer of animated WebP, which loops: a tenth of a gif's size, in all colours."""
    return _pictures(out, "WEBP", step=1, least=1, quality=60, method=4)


def _pictures(out: Path, kind: str, step: int, least: int, colours: int = 0, **options: object) -> FilmWriter:
    """Return a writer of animated pictures, whose frames last a multiple of `step` milliseconds."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f'{out} needs Pillow, which is missing; run `pip install "gpi-rl[video]"`') from error

    def write(path: Path, frames: Iterator[np.ndarray], fps: float) -> float:
        delay = max(step * round(1000 / fps / step), least)
        pictures = (Image.fromarray(frame) for frame in frames)
        if colours:
            pictures = (picture.quantize(colours, dither=Image.Dither.NONE) for picture in pictures)
        with path.open("wb") as file:  # Pillow would leave its own open when interrupted
            next(pictures).save(file, kind, save_all=True, append_images=pictures, duration=delay, loop=0, **options)
        return 1000 / delay

    return write


WRITERS: dict[str, Callable[[Path], FilmWriter]] = {".mp4": _mp4, ".webp": _webp, ".gif": _gif}
