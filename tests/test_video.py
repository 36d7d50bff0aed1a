"""Videos: they show the episode that evaluation plays, or one line says why they cannot be made."""

import ctypes
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from gpi import cli, standalone, terminal, video
from gpi.envs import cameras, dmc, envpool, rendering, tasks
from gpi.envs.pool import Spec
from gpi.errors import DiskError, EnvironmentFault, UsageError
from gpi.evaluation import act, evaluate, require_fit

REMEDY = "run `apt-get install libegl1 libgl1-mesa-dri`"


def no_opengl() -> str | None:
    """Return why this machine cannot draw without a display, or None; found without the code under test."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError as error:
        return str(error)
    address, handle, number = egl.eglGetProcAddress, ctypes.c_void_p, ctypes.c_int
    address.restype = handle
    query = ctypes.CFUNCTYPE(ctypes.c_uint, number, ctypes.POINTER(handle), ctypes.POINTER(number))
    display = ctypes.CFUNCTYPE(handle, ctypes.c_uint, handle, handle)(address(b"eglGetPlatformDisplayEXT"))
    devices, count = (handle * 16)(), number()
    if not query(address(b"eglQueryDevicesEXT"))(16, devices, ctypes.byref(count)) or count.value == 0:
        return "EGL has no devices"
    egl.eglInitialize.argtypes = [handle, handle, handle]
    EGL_PLATFORM_DEVICE_EXT = 0x313F
    if not egl.eglInitialize(display(EGL_PLATFORM_DEVICE_EXT, devices[0], None), None, None):
        return "EGL does not start"
    return None


WHY_NOT = no_opengl() if sys.platform == "linux" else "EnvPool draws on Linux only"
opengl = pytest.mark.skipif(WHY_NOT is not None, reason=f"OpenGL is absent ({WHY_NOT}): {REMEDY}")
linux = pytest.mark.skipif(sys.platform != "linux", reason="EnvPool draws on Linux only")


@pytest.fixture(autouse=True)
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def policy_for(observation_size: int, action_size: int, high: float | None = 1.0) -> standalone.Policy:
    """Return an untrained policy; without a bound, its actions are discrete."""
    rng = np.random.default_rng(7)
    arrays = {
        "obs/mean": np.zeros(observation_size, np.float32), "obs/std": np.ones(observation_size, np.float32),
        "policy/layer0/kernel": rng.standard_normal((observation_size, action_size), np.float32),
        "policy/layer0/bias": rng.standard_normal(action_size, np.float32),
    }  # fmt: skip
    if high is None:
        arrays["action/start"] = np.array(0, np.int64)
    else:
        bound = np.full(action_size, high, np.float32)
        arrays |= {"policy/log_std": np.zeros(action_size, np.float32), "action/low": -bound, "action/high": bound}
    return standalone.assemble(arrays, {"seed": "5"})


class Film(NamedTuple):
    frames: np.ndarray  # [F, H, W, 3] uint8
    fps: float
    loops: bool = False


def watch(path: Path) -> Film:
    """Return the frames of a file, decoded."""
    if path.suffix in (".gif", ".webp"):
        with Image.open(path) as image:
            frames = []
            for i in range(getattr(image, "n_frames", 1)):
                image.seek(i)
                frames.append(np.asarray(image.convert("RGB")))
            image.load()  # of WebP, the duration is known then
            return Film(np.stack(frames), 1000 / image.info["duration"], image.info["loop"] == 0)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True)
    facts = re.search(rb"Video: h264 .*, yuv420p.*, (\d+)x(\d+).*, ([\d.]+) fps", decoded.stderr)
    assert facts, decoded.stderr
    return Film(np.frombuffer(decoded.stdout, np.uint8).reshape(-1, int(facts[2]), int(facts[1]), 3), float(facts[3]))


def moves(film: Film) -> bool:
    """Return whether there is something to see on every frame, and whether it moves."""
    pixels = film.frames.astype(np.int16)
    change = np.abs(np.diff(pixels, axis=0)).max(axis=(1, 2, 3))
    return bool(
        pixels.std(axis=(1, 2, 3)).min() > 5
        and (change > 20).mean() > 0.25
        and np.ptp(pixels[[0, -1]], axis=0).max() > 50
    )


# --- tasks that EnvPool draws -------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str
    policy: standalone.Policy
    suffix: str
    options: dict[str, Any]
    size: tuple[int, int]
    fps: float
    every: int = 1  # steps from one frame to the next


CASES = [
    pytest.param(Case("cheetah-run", policy_for(17, 6), ".mp4", {"steps": 30}, (480, 480), 50, 2), marks=opengl),
    pytest.param(
        Case("cheetah-run", policy_for(17, 6), ".gif", {"steps": 30, "size": (160, 120)}, (160, 120), 50, 2),
        marks=opengl,
    ),
    pytest.param(
        Case("cheetah-run", policy_for(17, 6), ".webp", {"steps": 30, "fps": 25}, (480, 480), 25, 4), marks=opengl
    ),
    pytest.param(
        Case("cartpole-swingup", policy_for(5, 1), ".mp4", {"steps": 40}, (640, 480), 50, 2), marks=opengl
    ),  # wider, so that the whole rail is in the picture
    pytest.param(
        Case("Humanoid-v5", policy_for(348, 17, 0.4), ".mp4", {"steps": 12, "size": (321, 123)}, (320, 122), 33.5, 2),
        marks=opengl,
    ),
    pytest.param(
        Case("CartPole-v1", policy_for(4, 2, None), ".mp4", {"size": (150, 100)}, (150, 100), 50), marks=linux
    ),
    pytest.param(
        Case("Pendulum-v1", policy_for(3, 1, 2.0), ".gif", {"steps": 20, "fps": 10}, (500, 500), 10, 3), marks=linux
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name + case.suffix)
def test_a_video_shows_the_episode_that_evaluation_plays(tmp_path: Path, case: Case):
    out = tmp_path / f"film{case.suffix}"
    found = video.record(case.policy, tasks.find(case.name), out, seed=5, **case.options)
    film = watch(out)
    assert found[:3] == (out, 1 + found.length // case.every, case.fps)
    assert film.frames.shape == (found.frames, case.size[1], case.size[0], 3) and film.fps == case.fps
    assert moves(film) and film.loops == (case.suffix != ".mp4")
    assert (
        film.frames[:, :, :4].mean() > 10 and film.frames[:, :4].mean() > 10
    )  # drawn in this size: no black beside it
    assert os.listdir(tmp_path) == [out.name]
    steps = case.options.get("steps", 1000)
    played = evaluate(case.policy, case.name, episodes=1, max_steps=steps)
    assert (found.episode_return, found.length) == (played.returns[5][0], played.lengths[5][0])
    assert found.ended == (played.unfinished == 0) == (found.length < steps)


@linux
def test_without_opengl_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^dmc/cheetah-run is drawn with OpenGL, which does not start .*" + REMEDY):
        video.record(policy_for(17, 6), tasks.find("cheetah-run"), tmp_path / "film.mp4", steps=3)
    assert os.listdir(tmp_path) == []


def test_without_libegl_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str, mode: int) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(UsageError, match=r"\(libEGL.so.1: cannot open shared object file\); " + REMEDY):
        rendering.make_envpool("dmc/cheetah-run", 0, (0, 0))


def test_a_refusal_of_the_drawing_process_is_one_line(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^unknown task 'dmc/cheetah-fly': it must be one of"):
        video.record(policy_for(17, 6), tasks.Task("dmc/cheetah-fly", "dmc", own=False), tmp_path / "film.gif")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "kind", "line"),
    [("ERROR: gladLoadGL error\n\n", UsageError, REMEDY), ("", EnvironmentFault, "died: exit code 3; try again")],
)
def test_a_drawing_process_that_dies_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[Exception], line: str
):
    program = tmp_path / "dies"
    program.write_text(f"#!/bin/sh\nprintf '{said}' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(kind, match=line):
        video.record(policy_for(17, 6), tasks.find("cheetah-run"), tmp_path / "film.mp4")
    assert os.listdir(tmp_path) == ["dies"]


def test_rates_and_cameras_are_those_of_dm_control_and_gymnasium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo leaves a log
    suite = pytest.importorskip("dm_control.suite")
    domains = {name.partition("-")[0]: name.partition("-")[2] for name in dmc.TASKS}
    theirs = {one: suite.load(one, task) for one, task in domains.items()}
    made = {name.partition("-")[0]: gymnasium.make(name) for name in envpool.GYMNASIUM}
    fps = {one: env.metadata["render_fps"] for one, env in made.items()}
    assert pytest.approx({one: 1 / env.control_timestep() for one, env in theirs.items()} | fps) == rendering.RATES
    models = {one: env.physics.model.ptr for one, env in theirs.items()}
    models |= {one: getattr(env.unwrapped, "model", None) for one, env in made.items()}
    names = {one: tuple(model.camera(i).name for i in range(model.ncam)) for one, model in models.items() if model}
    named = {one: tuple(filter(None, some)) for one, some in names.items()}
    assert {one: some for one, some in named.items() if some} == cameras.CAMERAS
    assert all(best in cameras.CAMERAS[name.partition("-")[0]] for name, best in cameras.BEST.items())


# --- cameras ------------------------------------------------------------------------------------------------------


def middle(frame: np.ndarray) -> np.ndarray | None:
    """Return the mean position of the pixels that have the colour of dm_control's robots, or None without any."""
    red, green, blue = np.moveaxis(frame.astype(int), -1, 0)
    found = np.argwhere((red - blue > 40) & (green - blue > 10))
    return found.mean(axis=0) if len(found) > 50 else None


@opengl
def test_the_camera_follows_a_robot_that_travels(tmp_path: Path):
    """The robot leaves the picture of a camera that stands still, and stays in that of the default."""
    policy, task, places = policy_for(17, 6), tasks.find("cheetah-run"), {}
    for camera in (None, "free"):
        found = video.record(policy, task, tmp_path / "film.mp4", steps=400, fps=2, size=(120, 120), camera=camera)
        assert found[1:3] == (9, 2.0)
        places[camera] = [middle(frame) for frame in watch(tmp_path / "film.mp4").frames]
    assert places["free"][0] is not None and places["free"][-1] is None
    for place in places[None]:
        assert place is not None and 30 < place[0] < 90 and 30 < place[1] < 90


@pytest.mark.parametrize(
    ("name", "camera", "line"),
    [
        (
            "cheetah-run",
            "top",
            r"camera = 'top' must be one that dmc/cheetah-run has.*: side \(0\), back \(1\), free \(-1\)",
        ),
        ("cheetah-run", "2", "camera = '2' must be one that"),
        ("fish-swim", -2, "camera = -2 must be one that"),
        (
            "HalfCheetah-v5",
            "side",
            r"camera = 'side' must be one that HalfCheetah-v5 has, by name or id: track \(0\); ",
        ),
        ("CartPole-v1", "side", "has no meaning for CartPole-v1, whose drawing has no cameras; leave it out"),
    ],
)
def test_a_camera_that_the_task_does_not_have_is_one_line(name: str, camera: str | int, line: str):
    with pytest.raises(UsageError, match=line):
        cameras.find_camera(tasks.find(name).id, camera)


def test_cameras_have_names_and_ids():
    found = [cameras.find_camera("dmc/fish-upright", one) for one in (None, "tracking_x", "1", 1, "free", "-1")]
    assert found == [2, 1, 1, 1, -1, -1]
    assert [cameras.find_camera("Ant-v5", one) for one in (None, "track", "0")] == [-1, 0, 0]


@opengl
def test_gymnasium_environments_of_mujoco_take_a_camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    task, policy = tasks.find("Hopper-v5", "gymnasium"), policy_for(11, 3)
    with pytest.raises(UsageError, match=r"camera = 'side' must be one that Hopper-v5 has, by name or id: track \(0\)"):
        video.record(policy, task, tmp_path / "film.gif", steps=2, camera="side")
    shown = []
    for camera in ("track", -1):
        video.record(policy, task, tmp_path / "film.gif", steps=2, camera=camera)
        shown.append(watch(tmp_path / "film.gif").frames[0].astype(int))
    assert np.abs(shown[0] - shown[1]).mean() > 5


@pytest.mark.slow
@opengl
def test_all_28_tasks_have_the_robot_in_the_picture(tmp_path: Path):
    """Its centre of mass in at least 95 % of frames: see the benchmark, which exits with 1 otherwise."""
    script = Path(__file__).parents[1] / "benchmarks" / "films.py"
    command = [sys.executable, str(script), "--out", str(tmp_path), "--record", str(tmp_path / "table"), "--fps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "table").read_text().splitlines()]
    assert [row["task"] for row in rows] == list(dmc.TASKS) and min(row["overlap"] for row in rows) > 0.5


# --- environments that draw themselves ----------------------------------------------------------------------------

RED, GREEN, BLUE = (250, 10, 10), (10, 240, 10), (10, 10, 230)


class Slide(gymnasium.Env):
    """A green block that slides to the right on red above blue."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012 (as Gymnasium has it)
    height, width = 47, 65

    def __init__(self, render_mode: str | None = None):
        self.render_mode, self.at = render_mode, 0
        self.observation_space = spaces.Dict({"at": spaces.Box(0, 1000, (1,)), "even": spaces.Discrete(2)})
        self.action_space = spaces.Box(-3.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0 if seed is None else seed % 8
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.see(), float(action[0]) + 10 * float(action[1]), False, self.at >= 400, {}

    def see(self) -> dict[str, Any]:
        return {"at": np.array([self.at], np.float32), "even": np.int64(self.at % 2)}

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        frame = np.empty((self.height, self.width, 3), np.uint8)
        frame[: self.height // 2], frame[self.height // 2 :] = RED, BLUE
        left = 2 * self.at % (self.width - 12)
        frame[:12, left : left + 12] = GREEN
        return frame


class Steady(standalone.Policy):
    """A policy with known actions."""

    discrete, start = False, 0

    def __init__(self, stop: int = -1):
        layers = ((np.zeros((3, 2), np.float32), np.zeros(2, np.float32)),)
        super().__init__(layers, np.zeros(3, np.float32), np.ones(3, np.float32), {})
        self.stop, self.seen = stop, []

    def __call__(self, obs: np.ndarray) -> Any:
        if len(self.seen) == self.stop:
            raise KeyboardInterrupt
        self.seen.append(obs.copy())
        return np.array([-2.5, 0.5], np.float32)

    def sample(self, obs: np.ndarray, rng: np.random.Generator) -> Any:
        return self(obs) + rng.uniform(-0.5, 0.5, 2).astype(np.float32)


def film_of(make: Any, out: Path, policy: Any = None, **options: Any) -> video.Recorded:
    task = tasks.find("mine:make", make=make)
    return video.record(policy or Steady(), task, out, make=make, **{"steps": 20, **options})


@pytest.mark.parametrize(("suffix", "size"), [(".mp4", (64, 46)), (".gif", (65, 47)), (".webp", (65, 47))])
def test_own_environments_draw_themselves(tmp_path: Path, suffix: str, size: tuple[int, int]):
    out, policy = tmp_path / f"film{suffix}", Steady()
    found = film_of(Slide, out, policy)
    assert found == (out, 21, 25.0, pytest.approx(20 * 2.5), 20, False)
    film = watch(out)
    assert film.frames.shape == (21, size[1], size[0], 3) and film.fps == 25 and moves(film)
    first = int(policy.seen[0][0])
    for i, frame in enumerate(film.frames):
        left = 2 * (first + i) % 53
        for at, colour in (((6, left + 6), GREEN), ((18, 30), RED), ((40, 30), BLUE)):
            np.testing.assert_allclose(frame[at].astype(int), colour, atol=25)
    assert np.array_equal(
        policy.seen[1], [first + 1, (first + 1) % 2 == 0, (first + 1) % 2]
    )  # flattened as in training


def test_seeds_decide_the_episode_and_the_sampled_actions(tmp_path: Path):
    def returned(**options: Any) -> float:
        return film_of(Slide, tmp_path / "film.gif", **options).episode_return

    sampled = [returned(sampled=True, seed=seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2] and returned() not in sampled
    starts = []
    for seed in (0, 0, 1, 2, 3):
        policy = Steady()
        film_of(Slide, tmp_path / "film.gif", policy, seed=seed, steps=1)
        starts.append(policy.seen[0][0])
    assert starts[0] == starts[1] and len(set(starts)) > 1


def test_a_chosen_size_keeps_proportions(tmp_path: Path):
    film_of(Slide, tmp_path / "film.mp4", size=(65 * 2, 47 * 2 + 40), fps=10)
    film = watch(tmp_path / "film.mp4")
    assert film.frames.shape == (7, 134, 130, 3) and film.fps == 8.33  # 25 steps per second: every third is drawn
    for at, colour in (((8, 60), (0, 0, 0)), ((60, 60), RED), ((100, 60), BLUE), ((125, 60), (0, 0, 0))):
        np.testing.assert_allclose(film.frames[5][at].astype(int), colour, atol=25)


def test_frames_are_written_as_they_come(tmp_path: Path):
    class Large(Slide):
        height, width = 240, 320

    tracemalloc.start()
    try:
        found = film_of(Large, tmp_path / "film.mp4", steps=200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.frames == 201 and peak < 30 * 240 * 320 * 3


def test_makers_that_do_not_know_render_mode_are_called_without_it(tmp_path: Path):
    class Always(Slide):
        def __init__(self):
            super().__init__("rgb_array")

    gymnasium.register("Always-v0", lambda **options: Always(**options))
    for make in (Always, lambda: Always(), lambda **options: Always(**options)):
        assert film_of(make, tmp_path / "film.gif").frames == 21
    found = video.record(Steady(), tasks.find("Always-v0"), tmp_path / "film.gif", steps=20)
    assert found.frames == 21


def render_as(result: Any) -> type:
    """Return an environment whose render returns or raises `result`."""

    class Odd(Slide):
        def render(self) -> Any:
            if isinstance(result, Exception):
                raise result
            return result(self) if callable(result) else result

    return Odd


@pytest.mark.parametrize(
    ("result", "kind", "line"),
    [
        (None, UsageError, r"render returned NoneType, a video needs .*; let its maker accept render_mode="),
        (NotImplementedError(), UsageError, "render returned NoneType, a video needs"),
        (np.zeros((8, 8, 3)), UsageError, r"render returned float64 \(8, 8, 3\), a video needs"),
        (np.zeros((8, 8), np.uint8), UsageError, r"render returned uint8 \(8, 8\), a video needs"),
        (lambda env: np.zeros((64, 64 + env.at // 9, 3), np.uint8), EnvironmentFault, "step .*draw all frames of one"),
        (RuntimeError("out\nof paint"), EnvironmentFault, "render raised RuntimeError: out of paint; fix the"),
        (
            gymnasium.error.DependencyNotInstalled("no pygame,\nrun `pip`"),
            UsageError,
            "cannot draw itself: no pygame, run `pip`",
        ),
        (RuntimeError("Cannot initialize a EGL device display"), UsageError, REMEDY),
    ],
)
def test_an_environment_that_cannot_be_drawn_is_one_line(tmp_path: Path, result: Any, kind: type[Exception], line: str):
    with pytest.raises(kind, match=line) as caught:
        film_of(render_as(result), tmp_path / "film.mp4")
    assert str(caught.value).startswith("mine:make") and "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_policies_of_other_environments_are_refused(tmp_path: Path):
    for observations, actions, high, sees in (
        (4, 2, 1.0, "sees 4 numbers and has 2 continuous actions"),
        (3, 3, 1.0, "sees 3 numbers and has 3 continuous actions"),
        (3, 2, None, "sees 3 numbers and has 2 discrete actions from 0"),
    ):
        takes = "mine:make shows 3 and takes 2 continuous actions; name the environment it was trained in"
        with pytest.raises(UsageError, match=rf"^the policy {sees}, {takes}$"):
            film_of(Slide, tmp_path / "film.mp4", policy_for(observations, actions, high))
    assert os.listdir(tmp_path) == []


def test_discrete_actions_must_be_counted_from_the_same_number():
    """Otherwise an action could be outside the environment's range, which EnvPool would not notice."""
    three = Spec("three", 1, 3, None, discrete=True, start=2)
    policy = policy_for(1, 3, None)
    with pytest.raises(UsageError, match=r"has 3 discrete actions from 0, three .* 3 discrete actions from 2; name"):
        require_fit(policy, three)
    policy.start = 2
    require_fit(policy, three)
    obs = np.linspace(-3, 3, 100, dtype=np.float32)[:, None]
    assert set(act(policy, three, obs)) <= {0, 1, 2} and len(set(policy(obs))) > 1
    assert (act(policy, three, obs) + 2 == policy(obs)).all()


def test_an_environment_without_cameras_refuses_one(tmp_path: Path):
    with pytest.raises(
        UsageError, match=r"^camera = 'side' has no meaning for mine:make: only .* camera_name.*leave it out"
    ):
        film_of(Slide, tmp_path / "film.gif", camera="side")


def test_progress_is_shown_beside_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(terminal, "PLAIN_SECONDS", 0.0)
    film_of(Slide, tmp_path / "film.gif", quiet=True)
    assert capsys.readouterr() == ("", "")
    film_of(Slide, tmp_path / "film.gif", fps=13)
    assert capsys.readouterr() == ("", "".join(f"frames: {i} of 11\n" for i in range(1, 12)))


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["film.mp4", "film.gif", "film.webp"])
def test_an_interrupted_recording_leaves_the_old_file(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"older")
    with pytest.raises(KeyboardInterrupt):
        film_of(Slide, tmp_path / name, Steady(stop=5))
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"older"
    film_of(Slide, tmp_path / name)
    assert len(watch(tmp_path / name).frames) == 21 and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("said", "kind", "line"),
    [
        ("Unknown encoder", UsageError, "ffmpeg failed and said 'Unknown encoder'; run `pip install"),
        ("x\nwriting: No space left on device", DiskError, "cannot be written: writing: No space left .*; free space"),
    ],
)
def test_when_ffmpeg_fails_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[Exception], line: str
):
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\nhead -c 30000 >/dev/null\necho '{said}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    with pytest.raises(kind, match=line):
        film_of(Slide, tmp_path / "film.mp4")
    assert os.listdir(tmp_path) == ["ffmpeg"]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("film.avi", {}, r"film.avi has the suffix '.avi', a video is one of .mp4, .webp, .gif; use .*film.mp4"),
        ("film", {}, r"has the suffix '', a video is"),
        ("/", {}, r"^/ has the suffix '', a video is one of .mp4, .webp, .gif; use /film.mp4$"),
        ("none/film.mp4", {}, r"directory .*none of film.mp4 does not exist; make it: mkdir -p"),
        ("dir.mp4", {}, "dir.mp4 is a directory, a video is a file"),
        ("film.mp4", {"steps": 0}, "steps must be at least 1, got 0"),
        ("film.mp4", {"fps": 0.0}, r"fps must be in \[1, 240\], got 0; use 50"),
        ("film.mp4", {"size": (4, 480)}, r"size must be in \[16, 4096\] pixels, got 4x480; use 480x480"),
        ("film.mp4", {"seed": -1}, "seed must be in"),
    ],
)
def test_requests_that_cannot_be_met_are_one_line(tmp_path: Path, name: str, options: dict[str, Any], line: str):
    (tmp_path / "dir.mp4").mkdir()
    with pytest.raises(UsageError, match=line):
        film_of(Slide, tmp_path / name, **options)
    assert os.listdir(tmp_path) == ["dir.mp4"]


def test_missing_packages_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match=r'needs ffmpeg, which is missing; run `pip install "gpi-rl\[video\]"`, or'):
        film_of(Slide, tmp_path / "film.mp4")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r'needs Pillow, which is missing; run `pip install "gpi-rl\[video\]"`'):
        film_of(Slide, tmp_path / "film.gif")


def test_importing_starts_nothing():
    heavy = ["jax", "envpool", "mujoco", "imageio", "imageio_ffmpeg", "PIL", "gymnasium"]
    code = f"import sys, gpi.video; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("size", ["640", "640x", "x480", "-4x4", "640x480x3", "axb"])
def test_a_size_of_another_form_is_one_line(size: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.main(["record", "runs/first", f"--size={size}"])
    line = f"gpi: argument --size: '{size}' must be WIDTHxHEIGHT in pixels; use 640x480; see `gpi record --help`\n"
    assert ended.value.code == 2 and capsys.readouterr() == ("", line)
