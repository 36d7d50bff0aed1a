"""Environment steps per second on cheetah-run or another environment, beside Stable-Baselines3 in the same run.

    python benchmarks/throughput.py [--quick] [--only sb3]      # needs: make bench
    python benchmarks/throughput.py --env Pendulum-v1           # a Gymnasium environment in Python on both sides

Every system runs in a process of its own and all take turns, round after round, because shared machines are noisy:
a rate is the median over rounds and a ratio the median of the rounds' own ratios. A rate is all steps over all wall
time after the first iterations (which hold compilation and warm-up), nothing else left out. The table is printed and
the figures are appended to `benchmarks/results.jsonl` with commit, hardware and versions.
"""
# The bench extra (torch, SB3, Shimmy) is not part of the development set-up.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.jsonl"
DROPPED = 2  # iterations left out of every rate
BASE = "SB3 PPO"
QUIET = 0.2  # cores busy with other work beyond which figures deserve no trust
SB3_PACKAGES = ("torch", "stable-baselines3", "sb3-contrib", "shimmy", "gymnasium", "dm-control", "mujoco")
PACKAGES = ("jax", "jaxlib", "envpool", "numpy", *SB3_PACKAGES)
SB3_COMMON = {"n_steps": 2048, "batch_size": 64, "gamma": 0.995, "gae_lambda": 0.97, "seed": 0, "device": "cpu"}
# TRPO's batch_size cuts the value fit only; its policy step takes the whole batch, as ours does.
SB3_TRPO = {"cg_max_steps": 20, "cg_damping": 0.01, "target_kl": 0.02, "line_search_shrinking_factor": 0.5**0.5}
# (steps/s, multiple of SB3's PPO) promised on 2 cores; None: not promised.
GOALS: dict[str, tuple[int | None, int | None]] = {
    "GPI geppo x5": (16_000, 15),
    "GPI ppo x5": (25_000, None),
    "GPI ppo x1": (None, 7),
    "GPI geppo x1": (None, 5),
}
GYMNASIUM_GOALS: dict[str, tuple[int | None, int | None]] = {"GPI geppo x5": (None, 4), "GPI ppo x5": (None, 4)}
CHEETAH = "cheetah-run"


@dataclasses.dataclass(frozen=True)
class Run:
    """What one finished process showed."""

    rate: float  # steps over wall time, first iterations dropped
    median_rate: float  # steps per iteration over the median iteration's time
    collect: float  # share of the time spent collecting
    learn: float  # share spent learning; what is left is bookkeeping
    wall_s: float  # the whole process, import to exit
    peak_mb: float
    other_load: float  # cores kept busy by anything else meanwhile
    first_iteration_s: float | None  # from the command to its first finished iteration, seen from outside
    compile_s: float | None = None


@dataclasses.dataclass(frozen=True)
class System:
    """One row of the table: its name, its population and how to run it once."""

    name: str
    seeds: int
    run: Callable[[], Run]


# --- Stable-Baselines3, inside its own process ------------------------------------------------------------------------


def sb3_model(algorithm: str, name: str) -> Any:
    """PPO or TRPO with our batch settings: 2,048 steps, 10 epochs of 32 minibatches, two 64x64 tanh networks."""
    import gymnasium
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    if name == CHEETAH:
        import shimmy

        gymnasium.register_envs(shimmy)
        name = "dm_control/cheetah-run-v0"
    env = DummyVecEnv([lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make(name))])
    env = VecNormalize(env, gamma=0.995)
    if algorithm == "ppo":
        return PPO("MlpPolicy", env, learning_rate=3e-4, n_epochs=10, **SB3_COMMON)
    return TRPO("MlpPolicy", env, learning_rate=3e-4, n_critic_updates=10, **SB3_TRPO, **SB3_COMMON)


def sb3_worker(algorithm: str, name: str, threads: int, iterations: int, out: Path) -> None:
    """Train, and write `timing.json`, one object per iteration."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(threads)
    marks: list[float] = []  # collecting starts, collecting ends, and so on

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _mark(self) -> None:
            marks.append(time.perf_counter())

        _on_rollout_start = _on_rollout_end = _on_training_end = _mark

    sb3_model(algorithm, name).learn(iterations * 2048, callback=Clock())
    rows = [
        {"steps": 2048, "collect_s": mid - start, "learn_s": end - mid, "total_s": end - start}
        for start, mid, end in zip(marks[::2], marks[1::2], marks[2::2], strict=False)
    ]
    (out / "timing.json").write_text(json.dumps(rows))


# --- running and reading one process ----------------------------------------------------------------------------------


def busy_seconds() -> float:
    """CPU seconds all cores have spent on anything, time stolen by other virtual machines included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def wait(process: subprocess.Popen[bytes], watched: Path | None) -> tuple[float | None, Any]:
    """Wait for the end; seconds until the table `watched` held its first row, and what the process used."""
    start, first = time.perf_counter(), None
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return first, usage
        if first is None and watched and watched.exists() and watched.read_bytes().count(b"\n") > 1:
            first = time.perf_counter() - start
        time.sleep(0.02)


def execute(command: list[str], extra_env: dict[str, str], log: Path, watched: Path | None = None) -> dict[str, Any]:
    """Run to the end; wall time, time to the first iteration, peak memory and the load that was not ours."""
    busy, start = busy_seconds(), time.perf_counter()
    with log.open("w") as sink:
        env = os.environ | {"MUJOCO_GL": "disabled"} | extra_env
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=sink, stderr=subprocess.STDOUT)
        try:
            first, usage = wait(process, watched)
        finally:
            if process.returncode is None:
                process.kill()
    wall = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit code {process.returncode}:\n{log.read_text()[-3000:]}")
    others = (busy_seconds() - busy - usage.ru_utime - usage.ru_stime) / wall
    memory = usage.ru_maxrss / 1024
    return {"wall_s": wall, "first_iteration_s": first, "peak_mb": memory, "other_load": max(0.0, others)}


def read_run(rows: list[dict[str, float]], figures: dict[str, Any]) -> Run:
    """Turn the iterations' `steps` (all seeds together) and seconds into rates."""
    rows = rows[DROPPED:] or rows
    total = sum(row["total_s"] for row in rows)
    return Run(
        rate=sum(row["steps"] for row in rows) / total,
        median_rate=median(row["steps"] / row["total_s"] for row in rows),
        collect=sum(row["collect_s"] for row in rows) / total,
        learn=sum(row["learn_s"] for row in rows) / total,
        **figures,
    )


def sb3(name: str, algorithm: str, threads: int, iterations: int) -> Run:
    """One seed of SB3's PPO or sb3-contrib's TRPO."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        worker = ["--worker", algorithm, "--threads", str(threads), "--iterations", str(iterations), "--out", folder]
        command = [sys.executable, __file__, "--env", name, *worker]
        figures = execute(command, {"OMP_NUM_THREADS": str(threads)}, out / "log")
        return read_run(json.loads((out / "timing.json").read_text()), figures)


def our_rows(path: Path, seeds: int) -> list[dict[str, float]]:
    """`timing.csv` as iterations: its steps (of one seed) and its seconds are counted from the start of training."""
    rows, steps, seconds = [], 0.0, 0.0
    with path.open() as file:
        for row in csv.DictReader(file):
            now = {key: float(text) for key, text in row.items()}
            spent = {"collect_s": now["collect_seconds"], "learn_s": now["learn_seconds"]}
            rows.append({"steps": seeds * (now["steps"] - steps), "total_s": now["seconds"] - seconds, **spent})
            steps, seconds = now["steps"], now["seconds"]
    return rows


def ours(name: str, algorithm: str, seeds: int, iterations: int, cache: Path) -> Run:
    """`gpi train` with the paper's settings, all defaults on; `cache` holds its compiled programs."""
    samples = 1024 if algorithm.startswith("ge") else 2048
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = {"algorithm": algorithm, "seeds": seeds, "steps": iterations * samples, "out": out}
        flags = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        flags += [] if name == CHEETAH else ["--backend", "gymnasium"]
        command = [sys.executable, "-m", "gpi.cli", "train", name, *flags]
        extra_env = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        figures = execute(command, extra_env, Path(folder) / "log", out / "timing.csv")
        compile_s = json.loads((out / "DONE").read_text())["compile_seconds"]
        return read_run(our_rows(out / "timing.csv", seeds), figures | {"compile_s": compile_s})


def startup(name: str) -> dict[str, Run]:
    """One iteration of GePPO, 5 seeds, with an empty compilation cache and again with a filled one."""
    with tempfile.TemporaryDirectory() as folder:
        return {state: ours(name, "geppo", 5, 1, Path(folder)) for state in ("cold", "cached")}


# --- the plan ---------------------------------------------------------------------------------------------------------


def best_threads(name: str, algorithm: str, turns: int) -> int:
    """The thread count, 1 or 2, with which SB3 is faster here: the best of some short turns each."""
    rates = {1: 0.0, 2: 0.0}
    for threads in (1, 2) * turns:
        rates[threads] = max(rates[threads], sb3(name, algorithm, threads, DROPPED + 2).rate)
    print(f"SB3 {algorithm.upper()}: " + ", ".join(f"{t} torch threads {r:,.0f}/s" for t, r in rates.items()))
    return max(rates, key=rates.__getitem__)


def systems(name: str, quick: bool, only: str, cache: Path) -> list[System]:
    """Every row, in the order in which a round runs them."""
    rows: list[System] = []
    if only in ("", "sb3"):
        for algorithm in ("ppo", "trpo"):
            threads = best_threads(name, algorithm, turns=1 if quick else 2)
            job = functools.partial(sb3, name, algorithm, threads, DROPPED + (2 if quick else 6))
            rows.append(System(f"SB3 {algorithm.upper()}", 1, job))
    if only in ("", "gpi"):
        pairs = [("ppo", 1), ("ppo", 5), ("geppo", 1), ("geppo", 5)]
        pairs += (
            []
            if quick or name != CHEETAH
            else [("trpo", 1), ("getrpo", 5), ("gevmpo", 5), *(("geppo", p) for p in (2, 4, 8, 16))]
        )
        for algorithm, seeds in pairs:
            job = functools.partial(ours, name, algorithm, seeds, 12 if quick else 40 if seeds <= 5 else 20, cache)
            rows.append(System(f"GPI {algorithm} x{seeds}", seeds, job))
    return rows


def measure(rows: Iterable[System], rounds: int, with_startup: str) -> tuple[dict[str, list[Run]], list[Any]]:
    """All systems once per round, and the start-up of ours."""
    rows = list(rows)
    runs: dict[str, list[Run]] = {system.name: [] for system in rows}
    starts = []
    for k in range(rounds):
        for system in rows:
            run = system.run()
            runs[system.name].append(run)
            print(f"round {k + 1}/{rounds}  {system.name:<15} {run.rate:>9,.0f}/s  other load {run.other_load:.2f}")
        if with_startup:
            starts.append(startup(with_startup))
    return runs, starts


# --- the report -------------------------------------------------------------------------------------------------------


def middle(runs: list[Run], field: str) -> float:
    """Median of one figure over the rounds."""
    return median(getattr(run, field) for run in runs)


def ratio(runs: dict[str, list[Run]], name: str) -> float | None:
    """Median over rounds of a system's rate over that of SB3's PPO in the same round."""
    if BASE not in runs:
        return None
    return median(run.rate / base.rate for run, base in zip(runs[name], runs[BASE], strict=True))


def verdict(goals: dict[str, tuple[int | None, int | None]], name: str, rate: float, multiple: float | None) -> str:
    """The promised figures for this row and whether they hold."""
    steps, times = goals.get(name, (None, None))
    asked = [f"{steps:,}/s"] if steps else []
    asked += [f"{times}x"] if times else []
    if not asked or (times and multiple is None):
        return ""
    met = rate >= (steps or 0) and (multiple or 0) >= (times or 0)
    return f"{'met' if met else 'MISSED'}: at least {' and '.join(asked)}"


def show(header: list[str], rows: list[list[str]]) -> None:
    """Print one aligned table: first column left, the others right, the last left."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(w) if i in (0, len(row) - 1) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print()


def show_rates(env: str, rows: list[System], runs: dict[str, list[Run]]) -> None:
    """Rates and ratios, with the range over rounds, where the time goes and the peak memory."""
    goals = GOALS if env == CHEETAH else GYMNASIUM_GOALS
    table = []
    for system in rows:
        mine, multiple = runs[system.name], ratio(runs, system.name)
        rate = middle(mine, "rate")
        low, high = min(run.rate for run in mine), max(run.rate for run in mine)
        shares = [f"{middle(mine, share):.0%}" for share in ("collect", "learn")]
        times = "" if multiple is None else f"{multiple:.1f}x"
        span, memory = f"{low:,.0f}-{high:,.0f}", f"{middle(mine, 'peak_mb'):,.0f}"
        goal = verdict(goals, system.name, rate, multiple)
        table.append([system.name, str(system.seeds), f"{rate:,.0f}", span, times, *shares, memory, goal])
    show(["system", "seeds", "steps/s", "range", f"/ {BASE}", "collect", "learn", "peak MB", "goal"], table)


def show_growth(runs: dict[str, list[Run]]) -> None:
    """How GePPO's rate grows with its population."""
    sizes = sorted(int(name.split("x")[-1]) for name in runs if name.startswith("GPI geppo"))
    rates = [middle(runs[f"GPI geppo x{size}"], "rate") for size in sizes]
    table = [[str(p), f"{r:,.0f}", f"{r / p:,.0f}", f"{r / rates[0]:.2f}"] for p, r in zip(sizes, rates, strict=True)]
    show(["GePPO seeds", "steps/s", "per seed", "/ smallest"], table)


def show_startup(starts: list[dict[str, Run]]) -> None:
    """Compilation, and the wait from the command to the first iteration and to the end of a run of one iteration."""
    table = []
    for state, limit in (("cold", 15), ("cached", 8)):
        runs = [start[state] for start in starts]
        seconds = [f"{middle(runs, field):.1f}" for field in ("compile_s", "first_iteration_s", "wall_s")]
        met = "met" if middle(runs, "first_iteration_s") < limit else "MISSED"
        table.append([state, *seconds, f"{met}: first iteration below {limit} s"])
    show(["cache", "compile s", "first iteration s", "1-iteration process s", "goal"], table)


def hardware() -> dict[str, Any]:
    """What this ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_gb": round(memory, 1)}


def versions() -> dict[str, str]:
    """Installed versions of everything that matters to the figures."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def commit() -> str:
    """The commit measured, marked when the tree differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "none"


def record(runs: dict[str, list[Run]], starts: list[dict[str, Run]], options: dict[str, Any]) -> None:
    """Append this run to `results.jsonl`."""
    line = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "options": options,
        "hardware": hardware(),
        "versions": versions(),
        "ratio_to_sb3_ppo": {name: ratio(runs, name) for name in runs},
        "rounds": {name: [dataclasses.asdict(run) for run in mine] for name, mine in runs.items()},
        "startup": [{state: dataclasses.asdict(run) for state, run in start.items()} for start in starts],
    }
    with RESULTS.open("a") as sink:
        sink.write(json.dumps(line) + "\n")


def report(env: str, rows: list[System], runs: dict[str, list[Run]], starts: list[dict[str, Run]]) -> None:
    """Print everything."""
    machine = hardware()
    loads = [run.other_load for mine in runs.values() for run in mine]
    print(f"\n{env} on {machine['cpu']}, {machine['cores']} cores; ", end="")
    print(f"busy with other work meanwhile: {median(loads):.2f} cores (median), {max(loads):.2f} (worst)\n")
    if median(loads) > QUIET:
        print(f"WARNING: the machine was not quiet (more than {QUIET} cores): repeat before quoting a figure.\n")
    show_rates(env, rows, runs)
    if "GPI geppo x5" in runs:
        show_growth(runs)
        show_startup(starts)


def parse() -> argparse.Namespace:
    """The command line; the worker's options are for this script's own use."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--env", default=CHEETAH, help="cheetah-run, or a Gymnasium id, in Python on both sides")
    parser.add_argument("--quick", action="store_true", help="one short round, populations 1 and 5")
    parser.add_argument("--rounds", type=int, default=3, help="how often every system runs (default 3)")
    parser.add_argument("--only", choices=["sb3", "gpi"], default="", help="measure one side alone, without ratios")
    for hidden in ("--worker", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--threads", "--iterations"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print, record."""
    arguments = parse()
    if arguments.worker:
        return sb3_worker(arguments.worker, arguments.env, arguments.threads, arguments.iterations, Path(arguments.out))
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory() as cache:
        rows = systems(arguments.env, arguments.quick, arguments.only, Path(cache))
        runs, starts = measure(rows, rounds, with_startup="" if arguments.only == "sb3" else arguments.env)
    report(arguments.env, rows, runs, starts)
    options = {"env": arguments.env, "quick": arguments.quick, "rounds": rounds, "only": arguments.only}
    record(runs, starts, options)


if __name__ == "__main__":
    main()
