"""The tables of docs/measurements.md: six algorithms under every trust mode on four tasks, 300k steps, 3 seeds.

    python benchmarks/guarantee.py                    # run what is missing, one run per core, then print the tables
    python benchmarks/guarantee.py --table            # print the tables of benchmarks/guarantee.jsonl

84 populations, each `gpi train TASK --algorithm A --trust T --steps 300000 --seeds 3`. Finished runs are kept, so that
the command can be interrupted and called again. Every finished run is one line of benchmarks/guarantee.jsonl: its
audit, whose estimates of TV are bounded, and under `halves` what the paper's estimate, half the mean absolute
difference of ratios, says of the same updates; metrics.csv has it. A line without `halves` is of a version whose audit
had that estimate. Without reuse `adaptive` is `paper`, and is not run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpi.analysis.audit import summarise
from gpi.core.plan import ALGORITHMS, TRUST_MODES
from gpi.rundir.run import Run, open_run, read_rows

TASKS = ("cheetah-run", "walker-walk", "cartpole-balance_sparse", "cartpole-swingup_sparse")
STEPS, SEEDS = 300_000, 3
COUNTS = ("penalty_violations", "one_step_violations", "kl_violations", "refused")
RECORD = Path(__file__).with_name("guarantee.jsonl")


def name_of(task: str, algorithm: str, trust: str) -> str:
    return f"{task}-{algorithm}-{trust}"


def every_job() -> list[tuple[str, str, str]]:
    """Task, algorithm and trust mode of every run, in the order of the tables."""
    jobs = [(t, a, m) for t in TASKS for a in ALGORITHMS for m in TRUST_MODES]
    return [(t, a, m) for t, a, m in jobs if m != "adaptive" or ALGORITHMS[a].reuses]


def finished(directory: Path) -> bool:
    done = directory / "DONE"
    return done.is_file() and json.loads(done.read_text())["complete"]


def run_missing(out: Path, jobs: int, only: str) -> None:
    """Run populations side by side, each on a core of its own; longest first."""
    cores = sorted(os.sched_getaffinity(0))
    free = [cores[i % len(cores)] for i in range(jobs)]
    order = sorted(every_job(), key=lambda job: list(ALGORITHMS).index(job[1]), reverse=True)
    todo = [job for job in order if only in name_of(*job) and not finished(out / name_of(*job))]
    running: dict[subprocess.Popen[bytes], tuple[str, int]] = {}
    began, total = time.perf_counter(), len(todo)
    out.mkdir(parents=True, exist_ok=True)
    while todo or running:
        while todo and free:
            task, algorithm, trust = todo.pop(0)
            name, core = name_of(task, algorithm, trust), free.pop()
            settings = {"algorithm": algorithm, "trust": trust, "steps": STEPS, "seeds": SEEDS, "threads": 1}
            options = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
            command = [sys.executable, "-m", "gpi.cli", "train", task, *options, "--out", str(out / name)]
            log = (out / f"{name}.log").open("w")
            process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=log, stderr=log)
            running[process] = (name, core)
        time.sleep(0.2)
        for process in [process for process in running if process.poll() is not None]:
            name, core = running.pop(process)
            free.append(core)
            left, seconds = len(todo) + len(running), time.perf_counter() - began
            print(f"[{seconds:5.0f} s, {total - left} of {total}] {name}: exit {process.returncode}", flush=True)


def halves_of(run: Run) -> dict[str, float]:
    """Violations by the estimates of metrics.csv: ½ E|ratio - 1| against eps/2, ½ E|ratio - rho| against eps_gpi/2."""
    names = ("penalty_abs", "tv_abs", "eps_gpi")
    rows = read_rows(run.dir / "metrics.csv", *names)
    penalty, tv, eps_gpi = (np.array([row[name] for row in rows], np.float32) for name in names)
    allowed = np.float32(0.5) * np.float32(run.config["eps"])
    return {
        "penalty_violations": int(np.sum(penalty > allowed)),
        "one_step_violations": int(np.sum(tv > np.float32(0.5) * eps_gpi)),
        "worst_penalty": float(np.max(penalty) / allowed),
    }


def collect(out: Path, record: Path) -> None:
    """One line per finished run."""
    lines = []
    for directory in sorted(path.parent for path in out.glob("*/DONE") if finished(path.parent)):
        run = open_run(directory)
        about = json.loads((directory / "config.json").read_text())
        returns = {str(seed): round(value, 2) for seed, value in run.final_performance.items()}
        line = {**summarise(run).as_json(), "halves": halves_of(run), "returns": returns}
        about = {name: about[name] for name in ("versions", "devices", "started")}
        lines.append(line | {"steps": run.config["steps"], **about})
    if lines:
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))


def markdown(header: list[str], text: int, rows: list[list[str]]) -> str:
    """A Markdown table whose first `text` columns are words."""
    rule = ["---"] * text + ["--:"] * (len(header) - text)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def mean(x: list[float]) -> float:
    return sum(x) / len(x)


def overview(found: dict[tuple[str, str, str], Any]) -> str:
    """Algorithm by trust mode over all tasks: violations of each bound, refusals, and the mean return on each task."""
    rows = []
    for algorithm, trust in dict.fromkeys((a, m) for _, a, m in every_job()):
        mine = [found[task, algorithm, trust] for task in TASKS]
        updates = sum(x["updates"] for x in mine)
        shares = [f"{sum(x[name] for x in mine) / updates:.1%}" for name in COUNTS]
        worst = f"{max(x['worst']['penalty']['ratio'] for x in mine):.3g}"
        halves = [x["halves"] for x in mine if "halves" in x]
        share = sum(x["penalty_violations"] for x in halves) / updates
        by_halves = [f"{share:.1%}", f"{max(x['worst_penalty'] for x in halves):.3g}"] if halves else ["–", "–"]
        returns = [f"{mean(list(x['returns'].values())):.0f}" for x in mine]
        rows.append([algorithm, trust, f"{updates:,}", shares[0], worst, *by_halves, *shares[1:], *returns])
    header = ["algorithm", "trust", "updates", "outside eq (11)", "worst", "outside by halves", "worst by halves"]
    return markdown([*header, "outside one-step", "outside KL", "kept old", *TASKS], 2, rows)


def every_run(found: dict[tuple[str, str, str], Any]) -> str:
    """Every run: violations of eq (11), and the final return of every seed."""
    rows = []
    for (task, algorithm, trust), x in sorted(found.items(), key=lambda item: place(item[0])):
        returns = [f"{r:.0f}" for r in x["returns"].values()]
        outside = [f"{x[name]} of {x['updates']}" for name in COUNTS[:1]]
        worst = f"{x['worst']['penalty']['ratio']:.3g}"
        halves = x.get("halves")
        by_halves = [str(halves["penalty_violations"]), f"{halves['worst_penalty']:.3g}"] if halves else ["–", "–"]
        numbers = [f"{x['ess_share']:.0%}", f"{x['normaliser_tv']:.4f}", *returns]
        rows.append([task, algorithm, trust, *outside, worst, *by_halves, *numbers])
    header = ["task", "algorithm", "trust", "outside eq (11)", "worst", "outside by halves", "worst by halves"]
    return markdown([*header, "ESS", "normaliser TV", *(f"seed {seed}" for seed in range(SEEDS))], 3, rows)


def place(key: tuple[str, str, str]) -> tuple[int, int, int]:
    """The order of the tables."""
    task, algorithm, trust = key
    return TASKS.index(task), list(ALGORITHMS).index(algorithm), TRUST_MODES.index(trust)


def main() -> None:
    """Run, record, print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("runs/guarantee"), help="directory of the runs")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side")
    options.add_argument("--only", default="", help="only runs whose name contains this")
    options.add_argument("--record", type=Path, default=RECORD, help="file of the finished runs, a line each")
    options.add_argument("--table", action="store_true", help="only print the tables of what was recorded")
    chosen = options.parse_args()
    if not chosen.table:
        run_missing(chosen.out, chosen.jobs, chosen.only)
        collect(chosen.out, chosen.record)
    lines = [json.loads(line) for line in chosen.record.read_text().splitlines()]
    found = {(x["task"].removeprefix("dmc/"), x["algorithm"], x["trust"]): x for x in lines}
    missing = [name_of(*job) for job in every_job() if job not in found]
    if missing:
        print(every_run(found))
        sys.exit(f"{len(missing)} of {len(every_job())} runs are missing, {missing[0]} among them; run the rest first")
    print(overview(found), every_run(found), sep="\n\n")


if __name__ == "__main__":
    main()
