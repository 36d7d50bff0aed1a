"""The Gymnasium part of docs/results.md: six algorithms on four environments, and PPO beside published returns.

    python benchmarks/environments.py                 # run what is missing, then print the tables and draw the curves
    python benchmarks/environments.py --table         # print the tables of benchmarks/environments.jsonl

24 populations of 3 seeds and 4 of 5 seeds, each `gpi train ENV --algorithm A --steps N --seeds S` at its defaults, then
100 evaluation episodes for every seed (20 where they take 1,000 steps). CartPole-v1 is also trained until it is solved:
until all seeds average 475 over 100 evaluation episodes. Finished runs are kept, so that the command can
be interrupted and called again. Every finished run is one line of benchmarks/environments.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gpi
from gpi.analysis.student_t import student
from gpi.callbacks import Evaluate
from gpi.core.plan import ALGORITHMS
from gpi.evaluation import evaluate
from gpi.report.curves import learning_curves
from gpi.rundir.run import Run, open_run

RECORD = Path(__file__).with_name("environments.jsonl")
MUJOCO = ("HalfCheetah-v5", "Hopper-v5")
LAST = 20  # episodes of training whose mean return is shown beside the evaluation


class Job(NamedTuple):
    """One population."""

    env: str
    algorithm: str
    steps: int
    seeds: int
    cores: int  # of the machine, at most
    episodes: int  # of the evaluation

    @property
    def name(self) -> str:
        return f"{self.env}-{self.algorithm}-{self.steps // 1000}k"


LONG = [Job(env, algorithm, 1_000_000, 5, 2, 20) for algorithm in ("geppo", "ppo") for env in MUJOCO]
SHORT = [
    Job(env, algorithm, steps, 3, 1, episodes)
    for env, steps, episodes in (
        ("HalfCheetah-v5", 300_000, 20), ("Pendulum-v1", 300_000, 100), ("Acrobot-v1", 200_000, 100),
        ("CartPole-v1", 100_000, 100),
    )
    for algorithm in reversed(ALGORITHMS)
]  # fmt: skip


def finished(directory: Path) -> bool:
    done = directory / "DONE"
    return done.is_file() and json.loads(done.read_text())["complete"]


def run_missing(out: Path, only: str) -> None:
    """Run populations side by side, each on cores of its own; longest first."""
    free = sorted(os.sched_getaffinity(0))
    most = len(free)
    todo = [job for job in [*LONG, *SHORT] if only in job.name and not finished(out / job.name)]
    running: dict[subprocess.Popen[bytes], tuple[Job, list[int]]] = {}
    began, total = time.perf_counter(), len(todo)
    out.mkdir(parents=True, exist_ok=True)
    while todo or running:
        for job in [job for job in todo if min(job.cores, most) <= len(free)]:
            if min(job.cores, most) > len(free):
                continue
            todo.remove(job)
            mine, free = free[: min(job.cores, most)], free[min(job.cores, most) :]
            running[start(job, out, mine)] = (job, mine)
        time.sleep(0.2)
        for process in [process for process in running if process.poll() is not None]:
            job, mine = running.pop(process)
            free += mine
            left, seconds = len(todo) + len(running), time.perf_counter() - began
            print(f"[{seconds:5.0f} s, {total - left} of {total}] {job.name}: exit {process.returncode}", flush=True)


def start(job: Job, out: Path, cores: list[int]) -> subprocess.Popen[bytes]:
    """`gpi train`, from its checkpoint if there is one."""
    directory, log = out / job.name, (out / f"{job.name}.log").open("w")
    new = ["train", job.env, "--algorithm", job.algorithm, "--steps", str(job.steps), "--seeds", str(job.seeds),
           "--threads", str(len(cores)), "--out", str(directory)]  # fmt: skip
    command = ["resume", str(directory)] if (directory / "config.json").exists() else new
    pinned = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "gpi.cli", *command]
    return subprocess.Popen(pinned, stdout=log, stderr=log)


def collect(out: Path) -> None:
    """One line per finished run, with its evaluation."""
    lines = {line["name"]: line for line in read()}
    for job in [*SHORT, *LONG]:
        directory = out / job.name
        if job.name in lines or not finished(directory):
            continue
        run, about = open_run(directory), json.loads((directory / "config.json").read_text())
        played = evaluate(directory, episodes=job.episodes)
        lines[job.name] = {
            "name": job.name, **job._asdict(),
            "training": {str(seed): round(float(run.episodes(seed)[1][-LAST:].mean()), 2) for seed in run.seeds},
            "early": {str(seed): round(early(run, seed, job.steps), 2) for seed in run.seeds},
            "evaluation": {str(seed): round(x, 2) for seed, x in played.means.items()},
            "worst_episode": round(min(float(x.min()) for x in played.returns.values()), 2),
            "versions": about["versions"], "devices": about["devices"], "started": about["started"],
        }  # fmt: skip
        RECORD.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))


def early(run: Run, seed: int, steps: int) -> float:
    """Mean return of the episodes that ended in the first fifth of a run."""
    ends, returns = run.episodes(seed)
    return float(returns[ends <= steps / 5].mean())


def solve(algorithm: str, out: Path) -> dict[str, Any]:
    """Steps after which all three seeds average 475 over 100 evaluation episodes of CartPole-v1: then it is solved."""
    evaluation = Evaluate(every=5, episodes=100, stop_at=475.0)
    directory = out / f"solved-{algorithm}"
    gpi.train(algorithm, "CartPole-v1", seeds=3, steps=100_000, out=directory, quiet=True, callbacks=[evaluation])
    steps, result = evaluation.results[-1]
    about = json.loads((directory / "config.json").read_text())
    return {
        "name": f"solved-{algorithm}", "algorithm": algorithm, "steps": steps, "versions": about["versions"],
        "evaluation": {str(seed): round(x, 2) for seed, x in result.means.items()},
        "solved": all(x >= evaluation.stop_at for x in result.means.values()), "started": about["started"],
    }  # fmt: skip


def solve_missing(out: Path) -> None:
    """CartPole-v1 with each algorithm, stopped when it is solved."""
    lines = {line["name"]: line for line in read()}
    for algorithm in ALGORITHMS:
        if f"solved-{algorithm}" not in lines:
            lines[f"solved-{algorithm}"] = solve(algorithm, out)
            RECORD.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose first two columns are words."""
    rule = ["---"] * 2 + ["--:"] * (len(header) - 2)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def tables() -> None:
    """Every seed of every run."""
    found = {line["name"]: line for line in read()}
    solved = [found[f"solved-{name}"] for name in ALGORITHMS if f"solved-{name}" in found]
    header = ["environment", "algorithm", "steps", *(f"seed {seed}" for seed in range(3)), "solved"]
    print(markdown(header, [
        ["CartPole-v1", x["algorithm"], f"{x['steps']:,}", *(f"{r:.1f}" for r in x["evaluation"].values()),
         "yes" if x["solved"] else "no"] for x in solved
    ]), end="\n\n")  # fmt: skip
    for jobs in (SHORT, LONG):
        seeds = jobs[0].seeds
        rows = []
        for job in sorted((job for job in jobs if job.name in found), key=order):
            line = found[job.name]
            training, evaluation = (list(line[key].values()) for key in ("training", "evaluation"))
            _, low, high = student(np.array(evaluation))
            rows.append([
                job.env, job.algorithm, f"{job.steps:,}", *(f"{x:.1f}" for x in training),
                *(f"{x:.1f}" for x in evaluation), f"{sum(evaluation) / seeds:.1f} [{low:.1f}, {high:.1f}]",
                f"{line['worst_episode']:.1f}",
            ])  # fmt: skip
        trained, played = ([f"{word} {seed}" for seed in range(seeds)] for word in ("training", "evaluation"))
        header = ["environment", "algorithm", "steps", *trained, *played, "mean [95 %]", "worst episode"]
        print(markdown(header, rows), end="\n\n")


def pairs() -> None:
    """Each generalized algorithm beside its partner, in the first fifth of the steps."""
    found = {line["name"]: line["early"] for line in read() if "early" in line}
    rows = []
    for job in sorted(SHORT, key=order):
        if not ALGORITHMS[job.algorithm].reuses and job.name in found:
            both = [found[job._replace(algorithm=name).name] for name in (job.algorithm, f"ge{job.algorithm}")]
            means = [sum(returns.values()) / len(returns) for returns in both]
            rows.append([job.env, f"{job.algorithm}, ge{job.algorithm}", *(f"{x:.1f}" for x in means)])
    print(markdown(["environment", "pair", "on-policy", "generalized"], rows), end="\n\n")


def order(job: Job) -> tuple[int, int]:
    envs = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", *MUJOCO)
    return envs.index(job.env), list(ALGORITHMS).index(job.algorithm)


def draw(out: Path, picture: Path) -> None:
    """The learning curves of all short runs."""
    runs = [open_run(out / job.name) for job in SHORT if finished(out / job.name)]
    if runs:
        learning_curves(runs, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/environments"), help="directory of the runs")
    parser.add_argument("--only", default="", help="only runs with this in their name")
    parser.add_argument("--train", action="store_true", help="run what is missing, evaluate nothing")
    parser.add_argument("--table", action="store_true", help="print the tables, run nothing")
    parsed = parser.parse_args()
    if not parsed.table:
        run_missing(parsed.out, parsed.only)
    if not (parsed.table or parsed.train):
        collect(parsed.out)
        solve_missing(parsed.out)
        draw(parsed.out, parsed.out / "curves.png")
    tables()
    pairs()


if __name__ == "__main__":
    main()
