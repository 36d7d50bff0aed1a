"""Does a shrinking deviation break a policy that has mastered its task? (docs/measurements.md)

    python benchmarks/gain.py cartpole-balance_sparse cartpole-balance --seeds 5 --steps 600000
    python benchmarks/gain.py --table

It appends to benchmarks/gain.jsonl. With the paper's normaliser the running deviations shrink once a task is mastered,
because the observations vary less than those of the beginning: weights that do not change have an ever larger gain in
raw units. Here that is done by hand. GePPO trains with the paper's settings and evaluates itself every 20
updates. Each seed's best policy then plays 10 fresh episodes, taking its most likely actions, with its deviations
divided by several factors, and with the mean and the deviations that its run ended with, weights unchanged. `shrunk` is
how far they had come by then: the median over observations of deviation then by deviation at the end. A policy *breaks*
where it loses more than a fifth of its own return; seeds whose best policy has less than 800 are left out.
"""

import argparse
import copy
import json
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np

import gpi

RECORD = Path(__file__).with_name("gain.jsonl")
FACTORS = (0.5, 1.0, 1.19, 1.41, 2.0, 2.83, 4.0)
MASTERED, KEPT = 800.0, 0.8


def with_statistics(policy: gpi.Policy, mean: np.ndarray, std: np.ndarray) -> gpi.Policy:
    """Return a policy that reads its observations with other statistics."""
    other = copy.copy(policy)
    other.obs_mean, other.obs_std = mean.astype(np.float32), std.astype(np.float32)
    return other


def played(policy: gpi.Policy, task: str) -> float:
    """Return the mean return of ten fresh episodes."""
    return gpi.evaluate(policy, task, episodes=10, quiet=True).mean


def measure(task: str, seeds: int, steps: int) -> None:
    """Train, and scale every seed's best policy."""
    with tempfile.TemporaryDirectory() as where:
        run = gpi.train("geppo", task, preset="paper", seeds=seeds, steps=steps, eval_every=20, out=Path(where) / "run")
        for seed in run.seeds:
            best, last = (gpi.load(run, seed=seed, policy=which) for which in ("best", "last"))
            scaled = {f: played(with_statistics(best, best.obs_mean, best.obs_std / f), task) for f in FACTORS}
            row = {
                "task": task, "seed": seed, "steps": int(best.about["steps"]), "run_steps": steps,
                "scaled": {str(factor): round(found, 1) for factor, found in scaled.items()},
                "end_statistics": round(played(with_statistics(best, last.obs_mean, last.obs_std), task), 1),
                "end_policy": round(played(last, task), 1),
                "shrunk": round(float(np.median(best.obs_std / last.obs_std)), 3),
                "date": date.today().isoformat(), "gpi": gpi.__version__, "jax": version("jax"),
                "envpool": version("envpool"),
            }  # fmt: skip
            with RECORD.open("a") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)


def table() -> None:
    """Print what was measured, as docs/measurements.md has it."""
    rows = [json.loads(line) for line in RECORD.read_text().splitlines()]
    factors = [f"÷ {factor:g}" for factor in FACTORS]
    print(f"| task | seed | best after | {' | '.join(factors)} | shrunk | statistics of the end | policy of the end |")
    print(f"|---|--:|--:|{'--:|' * len(factors)}--:|--:|--:|")
    for row in sorted(rows, key=lambda row: (row["task"], row["seed"])):
        own = row["scaled"]["1.0"]
        if own < MASTERED:
            continue
        cells = [*row["scaled"].values(), row["shrunk"], row["end_statistics"], row["end_policy"]]
        at = len(FACTORS)
        shown = [
            f"{x:.2f}" if i == at else f"**{x:.0f}**" if x < KEPT * own else f"{x:.0f}" for i, x in enumerate(cells)
        ]
        print(f"| {row['task']} | {row['seed']} | {row['steps']:,} | {' | '.join(shown)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parsed = parser.parse_args()
    for task in parsed.tasks:
        measure(task, parsed.seeds, parsed.steps)
    if parsed.table:
        table()


if __name__ == "__main__":
    main()
