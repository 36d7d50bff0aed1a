"""Environments that gpi's authors did not write: each checked, timed, and trained for a moment.

    python benchmarks/foreign_environments.py                    # everything, an hour or two on two cores
    python benchmarks/foreign_environments.py --only minigrid    # names that contain this
    python benchmarks/foreign_environments.py --sb3              # Stable-Baselines3's test environments; needs torch

The first call makes a virtual environment beside this file (`.foreign`, or --venv) and installs this checkout and the
libraries below in it from the package registry. For every environment there is one line: accepted or refused, the
verdict on its seeds, steps per second of gpi's check and of the environment alone in the same minute, and what a short
training returned. An environment that is refused shows its line; a traceback is a fault of gpi.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

LIBRARIES = (
    "gymnasium[box2d,toy-text]", "mujoco==3.3.7", "imageio", "minigrid", "highway-env", "gymnasium-robotics",
    "metaworld", "flappy-bird-gymnasium", "bsuite", "shimmy[bsuite]",
)  # fmt: skip
THIRD = (
    "minigrid:MiniGrid-Empty-5x5-v0", "minigrid:BabyAI-GoToLocal-v0", "highway_env:highway-fast-v0",
    "highway_env:parking-v0", "gymnasium_robotics:FetchReachDense-v4", "gymnasium_robotics:PointMaze_UMazeDense-v3",
    "gymnasium_robotics:AntMaze_UMaze-v5", "foreign_environments:reach", "foreign_environments:drawer_close",
    "flappy_bird_gymnasium:FlappyBird-v0", "shimmy:bsuite/catch-v0", "shimmy:bsuite/cartpole-v0",
    "shimmy:bsuite/deep_sea-v0", "shimmy:bsuite/mountain_car-v0",
)  # fmt: skip
SB3 = ("foreign_environments:identity", "foreign_environments:identity_box", "foreign_environments:bit_flipping")
EACH = 10  # ids of every family of EnvPool
HERE = Path(__file__).parent


def reach(**options: Any) -> Any:
    import gymnasium
    import metaworld  # type: ignore[import-not-found]  # noqa: F401 (registers)

    return gymnasium.make("Meta-World/MT1", env_name="reach-v3", **options)


def drawer_close(**options: Any) -> Any:
    import gymnasium
    import metaworld  # type: ignore[import-not-found]  # noqa: F401

    return gymnasium.make("Meta-World/MT1", env_name="drawer-close-v3", **options)


def identity() -> Any:
    from stable_baselines3.common.envs import IdentityEnv  # type: ignore[import-not-found]

    return IdentityEnv(2)


def identity_box() -> Any:
    from stable_baselines3.common.envs import IdentityEnvBox  # type: ignore[import-not-found]

    return IdentityEnvBox(eps=0.5)


def bit_flipping() -> Any:
    from stable_baselines3.common.envs import BitFlippingEnv  # type: ignore[import-not-found]

    return BitFlippingEnv(discrete_obs_space=True)


def names() -> list[tuple[str, str]]:
    """Every environment and its backend: Gymnasium's newest ids, other libraries', ten of each family of EnvPool."""
    import gymnasium

    from gpi.envs import envpool

    newest: dict[str, str] = {}
    for spec in gymnasium.registry.values():
        newest[f"{spec.namespace}/{spec.name}"] = spec.id
    families: dict[str, list[str]] = {}
    for name, (module, _) in envpool.ids().items():
        families.setdefault(module, []).append(name)
    chosen = [x for family in families.values() for x in random.Random(0).sample(family, min(EACH, len(family)))]
    gymnasiums = [(name, "gymnasium") for name in newest.values() if not name.startswith("GymV")]
    return [*gymnasiums, *((name, "auto") for name in THIRD), *((name, "envpool") for name in chosen)]


def alone(name: str) -> float:
    """Steps per second of one environment, with random actions and nothing of gpi between; NaN on EnvPool."""
    from gpi.envs.importing import maker

    env = maker(name)()
    env.reset(seed=0)
    begun, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < 3.0:
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        steps += 1
        if terminated or truncated:
            env.reset()
    return steps / elapsed


def gpi(*words: str, seconds: int) -> tuple[int, str]:
    """Run a command of gpi; return its exit code and all that it said."""
    command = [sys.executable, "-m", "gpi", *words]
    try:
        ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"not done in {seconds} s"
    return ran.returncode, ran.stdout + ran.stderr


def tried(name: str, backend: str) -> dict[str, Any]:
    """One line of the table."""
    code, said = gpi("check", name, "--backend", backend, seconds=600)
    lines = [line for line in said.splitlines() if line.startswith(("note:", "gpi:", name)) or "steps/s" in line]
    found: dict[str, Any] = {"name": name, "backend": backend, "check": code, "said": lines}
    found["fault"] = "Traceback" in said or code not in (0, 2, 6)
    if code == 0 and backend != "envpool":
        command = [sys.executable, "-c", f"from foreign_environments import alone; print(alone({name!r}))"]
        ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        found["alone"] = round(float(ran.stdout.split()[-1])) if ran.returncode == 0 else None
    if code == 0:
        sb3 = ["--steps", "12288", "--gamma", "0.4"] if name in SB3 else ["--steps", "2000"]
        with tempfile.TemporaryDirectory() as out:
            words = [*sb3, "--seeds", "1", "--backend", backend, "--out", f"{out}/run"]
            found["train"], said = gpi("train", name, *words, *(() if name in SB3 else ("--n", "512")), seconds=600)
            found["fault"] |= "Traceback" in said or found["train"] not in (0, 124)
            done = Path(out, "run", "DONE")
            found["returns"] = list(json.loads(done.read_text())["returns"].values()) if done.exists() else said[-300:]
    return found


def inside(place: Path, *, sb3: bool) -> Path:
    """Make the virtual environment, if it is not there; return its Python."""
    python, torch = place / "bin" / "python", place / "has-torch"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", HERE.parent, *LIBRARIES], check=True)
    if sb3 and not torch.exists():
        subprocess.run([python, "-m", "pip", "install", "--quiet", "stable-baselines3"], check=True)
        torch.touch()
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names")
    parser.add_argument("--sb3", action="store_true", help="Stable-Baselines3's test environments alone")
    parser.add_argument("--venv", type=Path, default=HERE / ".foreign")
    parsed = parser.parse_args()
    if Path(sys.prefix).resolve() != parsed.venv.resolve():
        python = inside(parsed.venv, sb3=parsed.sb3)
        os.execv(python, [str(python), *sys.argv])
    chosen = [(name, "auto") for name in SB3] if parsed.sb3 else names()
    faults = []
    for name, backend in chosen:
        if parsed.only.lower() in name.lower():
            found = tried(name, backend)
            print(json.dumps(found), flush=True)
            faults += [name] if found["fault"] else []
    print(f"faults: {', '.join(faults) or 'none'}")


if __name__ == "__main__":
    main()
