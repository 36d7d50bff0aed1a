"""Run directories and studies made up from numbers, for tests that read them."""

import dataclasses
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gpi.config import Config
from gpi.rundir.run import Run, final_window
from gpi.study.definition import Job
from gpi.study.directory import Layout, StudyDir, write_study

VERSIONS = {"python": platform.python_version(), "envpool": "1.2.5", "jax": version("jax")}
LAYOUT = Layout("cpu", 1, {"PJRT_NPROC": "1", "XLA_FLAGS": ""}, VERSIONS)
EPISODE = 500  # steps


def job(task: str = "cheetah-run", arm: str = "ppo", **settings: Any) -> Job:
    algorithm = arm.partition("-")[0]
    return Job(task, arm, Config(**{"task": task, "algorithm": algorithm, "seeds": 2, "steps": 20_000, **settings}))


def make_run(
    path: Path, config: Config, taken: int | None = None, *, versions: dict[str, str] = VERSIONS, **other: Any
):
    """Write a run that has taken so many steps; all of them by default, and then it is done."""
    steps = config.steps if taken is None else taken
    path.mkdir(parents=True)
    about = {"config": dataclasses.asdict(config), "versions": versions, "devices": ["cpu:0"]}
    (path / "config.json").write_text(json.dumps(about))
    rng = np.random.default_rng([config.seed, len(config.task), len(config.algorithm), other.get("luck", 0)])
    returns = {
        seed: rng.random(config.steps // EPISODE + 4) * 100 for seed in range(config.seed, config.seed + config.seeds)
    }
    rows = [
        f"{seed},{end},{returns[seed][end // EPISODE]:.9g},{EPISODE}"
        for end in range(EPISODE, steps + 1, EPISODE) for seed in returns
    ]  # fmt: skip
    write(path / "episodes.csv", "seed,steps,return,length", rows)
    write(path / "metrics.csv", "seed,iteration,steps", [f"{seed},1,{steps}" for seed in returns])
    timing = [f"{i},{1000 * i},0.1,0.1,{0.5 * i}" for i in range(1, steps // 1000 + 1)]
    write(path / "timing.csv", "iteration,steps,collect_seconds,learn_seconds,seconds", timing)
    (path / "audit.json").write_text(json.dumps({"updates": steps // 1000, "verdict": "held"}))
    if taken is None:
        finals = {str(seed): x for seed, x in Run(path).returns.items()}
        ended = {"complete": True, "steps": [steps] * config.seeds, "frozen": {}}
        done = {**ended, "returns": finals, "final_steps": final_window(steps)}
        (path / "DONE").write_text(json.dumps(done))


def write(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("\n".join([header, *rows]) + "\n")


def make_study(path: Path, *jobs: Job, runs: bool = True) -> StudyDir:
    """Write a study's directory, with all its runs done."""
    study = StudyDir(path, "made", LAYOUT, jobs)
    write_study(study)
    for one in jobs if runs else ():
        make_run(study.run(one), one.config)
    return study
