"""Films of the 28 DeepMind Control tasks: is the robot in the picture for the whole episode?

    python benchmarks/films.py --runs runs --out films      # needs dm_control: make setup

Each task is filmed for an episode by `gpi.video.record`, with the camera that it chooses and the policy of the highest
return of all finished runs of that task under --runs; where there is none, with random weights. How it is measured:

- EnvPool simulates the same episode again, without drawing. Its simulator is deterministic, and both returns must be
  equal. MuJoCo has hooks for its users, and EnvPool's library exports them: one of them, `mjcb_passive`, tells where
  EnvPool keeps the model and the state; after each drawn step, `mj_getState` copies the positions from there.
- dm_control, which has the same models, sets these positions and computes where the camera is, and where the centre of
  mass of the robot (for reacher and manipulator the arm, for ball_in_cup the cup). Projected through the camera, it is
  inside the frame or not: `in frame`. `body` is the mean share of the robot's parts whose centres are.
- That the film shows what dm_control computes is seen by drawing: MuJoCo draws some twenty frames from the same
  positions with the same camera. `overlap` is the number of pixels in the robot's colour in both this picture and the
  film, divided by the number of those in either: 1 if the robot is at the same place in the same pose. Targets hide
  parts of it and lie elsewhere in dm_control, so their pixels do not count.

The table is printed, and a line per film is appended to benchmarks/films.jsonl. Exit code 1 if a task has its robot in
the frame in less than 95 % of frames.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

os.environ["MUJOCO_GL"] = "egl"  # before dm_control is imported

import envpool as envpool_package
import numpy as np
from dm_control import suite

import gpi
from gpi import standalone, video
from gpi.envs import cameras, dmc, rendering, tasks
from gpi.envs.seeds import env_seeds
from gpi.evaluation import act

RECORD = Path(__file__).with_name("films.jsonl")
SHARE = 0.95
ROBOTS = {
    "acrobot": "upper_arm", "ball_in_cup": "cup", "cartpole": "cart", "cheetah": "torso", "finger": "proximal",
    "fish": "torso", "hopper": "torso", "humanoid": "torso", "manipulator": "upper_arm", "pendulum": "pole",
    "point_mass": "pointmass", "reacher": "arm", "swimmer": "head", "walker": "torso",
}  # fmt: skip
"""The body from which the rest of each robot hangs."""
POSITIONS = 1 << 1  # mjSTATE_QPOS
Hook = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


LINE = (
    "| {task} | {camera} | {policy} | {return} | {travelled} m | {com:.1%} | {body:.1%} | {overlap:.2f} "
    "| {frames} | {seconds} |"
)


class Simulator:
    """EnvPool's copy of MuJoCo: where it keeps the model and the state that it simulated last."""

    def __init__(self) -> None:
        """Find the library, which is loaded already."""
        [library] = Path(envpool_package.__file__).parent.glob("mujoco/mujoco_dmc_envpool*.so")
        self.library, self.model, self.state = ctypes.CDLL(str(library)), 0, 0
        self.library.mj_stateSize.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.library.mj_getState.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self._hook = Hook(self._simulated)

    def listen(self, on: bool) -> None:
        """Set the hook, or remove it: while EnvPool makes environments, it would wait for Python forever."""
        address = ctypes.cast(self._hook, ctypes.c_void_p).value if on else None
        ctypes.c_void_p.in_dll(self.library, "mjcb_passive").value = address

    def _simulated(self, model: int, state: int) -> None:
        self.model, self.state = model, state

    def positions(self) -> np.ndarray:
        """Return the positions of all joints."""
        qpos = np.empty(self.library.mj_stateSize(self.model, POSITIONS))
        self.library.mj_getState(self.model, self.state, qpos.ctypes.data, POSITIONS)
        return qpos


def simulate(
    simulator: Simulator, task: tasks.Task, policy: standalone.Policy, every: int, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Play the episode of the film again; return its return, and the positions at each frame `[F, Q]`."""
    pool = dmc.make_on_host(task.id, env_seeds(task.id, "evaluation", seed, 1), 1)
    simulator.listen(True)
    obs, positions, total, ended = pool.reset()[0], [simulator.positions()], 0.0, False
    length = 0
    while not ended:
        out = pool.step(act(policy, pool.spec, obs)[None])
        obs, length, total = out.obs[0], length + 1, total + float(out.reward[0])
        ended = bool(out.terminated[0] or out.truncated[0])
        if length % every == 0:
            positions.append(simulator.positions())
    simulator.listen(False)
    pool.close()
    return total, np.stack(positions)


class Sight(NamedTuple):
    """What a camera sees of a robot during an episode."""

    com: float  # share of frames that have the centre of mass inside
    body: float  # mean share of the robot's parts inside
    overlap: float  # of the robot in the film with the robot in MuJoCo's own picture


def look(name: str, camera: int, positions: np.ndarray, film: np.ndarray) -> Sight:
    """Return what a film shows, given the positions at each of its frames."""
    domain, _, task = name.partition("-")
    physics = suite.load(domain, task).physics
    model, data = physics.model, physics.data
    height, width = film.shape[1:3]
    root = model.name2id(ROBOTS[domain], "body")
    parts = [body for body in range(1, model.nbody) if root in ancestors(model.body_parentid, body)]
    com, body, overlap = [], [], []
    for i, qpos in enumerate(positions):
        data.qpos[:] = qpos
        physics.forward()
        fovy = model.cam_fovy[camera]
        pose = data.cam_xpos[camera], data.cam_xmat[camera].reshape(3, 3)
        com.append(inside(data.subtree_com[root], *pose, fovy, width / height))
        body.append(np.mean([inside(data.xipos[part], *pose, fovy, width / height) for part in parts]))
        if i % max(len(positions) // 20, 1) == 0:
            overlap.append(agreement(film[i], physics.render(height, width, camera_id=camera)))
    return Sight(float(np.mean(com)), float(np.mean(body)), float(np.mean(overlap)))


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """Return how well the robots of two pictures overlap, where no target hides them: targets differ."""
    pictures = [np.moveaxis(frame.astype(int), -1, 0) for frame in (one, other)]
    warm = [red - blue > 40 for red, _, blue in pictures]  # the floor is blue
    brown = [green - blue > 10 for _, green, blue in pictures]  # robots are light brown, targets red
    seen = ~np.logical_or(*(w & ~b for w, b in zip(warm, brown, strict=True)))
    a, b = (w & b & seen for w, b in zip(warm, brown, strict=True))
    return float((a & b).sum() / max((a | b).sum(), 1))


def ancestors(parents: np.ndarray, body: int) -> set[int]:
    """Return a body and all that it hangs from."""
    found = {body}
    while body:
        body = int(parents[body])
        found.add(body)
    return found


def inside(point: np.ndarray, at: np.ndarray, axes: np.ndarray, fovy: float, aspect: float) -> bool:
    """Return whether a point is inside the frame of a camera, which looks along its negative z axis."""
    x, y, z = axes.T @ (point - at)
    half = -z * np.tan(np.radians(fovy) / 2)
    return bool(z < 0 and abs(y) < half and abs(x) < half * aspect)


def watch(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """Return the frames of a film, decoded."""
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(decoded, np.uint8).reshape(-1, shape[1], shape[0], 3)


def best_policies(runs: Path | None) -> dict[str, tuple[float, Path]]:
    """Return for each task the policy of the highest return under a directory, and that return."""
    found: dict[str, tuple[float, Path]] = {}
    for done in sorted(runs.rglob("DONE")) if runs else []:
        task = json.loads((done.parent / "config.json").read_text())["config"]["task"]
        for seed, value in json.loads(done.read_text())["returns"].items():
            file = done.parent / f"policy-{seed}.safetensors"
            if value is not None and file.exists() and value > found.get(task, (-np.inf, file))[0]:
                found[task] = value, file
    return found


def random_policy(spec: dmc.Spec) -> standalone.Policy:
    """Return a policy with random weights, which moves much."""
    rng, bound = np.random.default_rng(0), np.ones(spec.action_size, np.float32)
    shape = spec.observation_size, spec.action_size
    arrays = {
        "obs/mean": np.zeros(shape[0], np.float32), "obs/std": np.ones(shape[0], np.float32),
        "policy/layer0/kernel": rng.standard_normal(shape, np.float32),
        "policy/layer0/bias": np.zeros(shape[1], np.float32),
        "policy/log_std": np.zeros(shape[1], np.float32), "action/low": -bound, "action/high": bound,
    }  # fmt: skip
    return standalone.assemble(arrays, {"seed": "0"})


def measure(simulator: Simulator, name: str, file: Path | None, out: Path, fps: float, seed: int) -> dict[str, object]:
    """Film a task, and measure what the film shows."""
    task, camera = tasks.find(name), cameras.find_camera(name, None)
    policy = gpi.load(file) if file else random_policy(dmc.find_spec(name))
    began = time.monotonic()
    film = video.record(policy, task, out / f"{name}.mp4", fps=fps, seed=seed, quiet=True)
    seconds = time.monotonic() - began
    domain = name.partition("-")[0]
    total, positions = simulate(simulator, task, policy, round(rendering.RATES[domain] / film.fps), seed)
    if total != film.episode_return or len(positions) != film.frames:
        raise SystemExit(f"{name}: the film's return is {film.episode_return}, that of the same episode again {total}")
    seen = look(name, camera, positions, watch(film.path, cameras.SIZES.get(domain, (480, 480))))
    return {
        "task": name, "camera": cameras.CAMERAS[domain][camera], "policy": "trained" if file else "random",
        "seed": seed, "return": round(total, 1), "frames": film.frames, "seconds": round(seconds, 1),
        "travelled": travelled(name, positions), **{key: round(value, 4) for key, value in seen._asdict().items()},
    }  # fmt: skip


def travelled(name: str, positions: np.ndarray) -> float:
    """Return how far the robot went from where it started, at most, in metres: along x, or in the plane."""
    plane = {"cheetah": [0], "walker": [1], "hopper": [0], "humanoid": [0, 1], "fish": [0, 1], "swimmer": [0, 1]}
    axes = plane.get(name.partition("-")[0], [])
    return round(float(np.linalg.norm(positions[:, axes] - positions[0, axes], axis=1).max(initial=0)), 2)


def main() -> int:
    """Film the tasks, print the table, and keep it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="directory with finished runs, at any depth")
    parser.add_argument(
        "--out", type=Path, default=Path("films"), help="directory for the films (default: %(default)s)"
    )
    parser.add_argument("--fps", type=float, default=video.FPS, help="frames per second (default: %(default)s)")
    parser.add_argument("--record", type=Path, default=RECORD, help="file to append to (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which episode (default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", default=list(dmc.TASKS), help="default: all 28")
    parsed = parser.parse_args()
    parsed.out.mkdir(parents=True, exist_ok=True)
    simulator, policies = Simulator(), best_policies(parsed.runs)
    versions = {one: importlib.metadata.version(one) for one in ("envpool", "dm_control", "mujoco")}
    print("| task | camera | policy | return | travels | in frame | body | overlap | frames | seconds |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|")
    worst = 1.0
    for name in parsed.tasks:
        _, file = policies.get(name, (0, None))
        row = measure(simulator, name, file, parsed.out, parsed.fps, parsed.seed)
        print(LINE.format(**row), flush=True)
        worst = min(worst, float(str(row["com"])))
        with parsed.record.open("a") as record:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            record.write(json.dumps({"time": now, "load": os.getloadavg()[0], **versions, **row}) + "\n")
    return 0 if worst >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
