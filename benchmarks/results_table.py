"""The tables of docs/results.md: final performance of every seed, and each generalized algorithm beside its partner.

    python benchmarks/results_table.py RUN_DIRECTORY...

Final performance is the mean return of the episodes that end in a seed's last 204,800 steps. p is the exact two-sided
permutation test: the share of all ways to deal the seeds into two groups whose means differ at least as much.
"""

import itertools
import json
import sys
from collections.abc import Sequence

from gpi.core.plan import ALGORITHMS
from gpi.report.labels import short_task
from gpi.rundir.run import Run, open_run


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first two columns are text, the others numbers."""
    rule = ["---", "---", *["--:"] * (len(header) - 2)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def mean(x: Sequence[float]) -> float:
    return sum(x) / len(x)


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Exact p of the difference between the means of two groups of seeds."""
    pooled, total = [*a, *b], sum(a) + sum(b)
    sums = [sum(pooled[i] for i in chosen) for chosen in itertools.combinations(range(len(pooled)), len(a))]
    gaps = [abs(s / len(a) - (total - s) / len(b)) for s in sums]
    return mean([gap >= abs(mean(a) - mean(b)) - 1e-9 for gap in gaps])


def load(directory: str) -> Run:
    """A run that reached its last step; half a run is no result."""
    run = open_run(directory)
    done = run.dir / "DONE"
    if not (done.is_file() and json.loads(done.read_text())["complete"]):
        sys.exit(f"{run.dir} did not reach its last step; leave it out, or train it again")
    return run


def main() -> None:
    """Print both tables."""
    runs = [load(directory) for directory in sys.argv[1:]]
    if not runs:
        sys.exit("no runs: name the directories that `gpi train` made")
    final = {(short_task(run), run.config["algorithm"]): run.final_performance for run in runs}
    seeds = sorted({seed for returns in final.values() for seed in returns})
    rows = []
    for (task, algorithm), returns in final.items():
        each = [f"{returns[seed]:.0f}" if seed in returns else "" for seed in seeds]
        rows.append([task, algorithm, *each, f"{mean(list(returns.values())):.0f}"])
    print(table(["task", "algorithm", *(f"seed {seed}" for seed in seeds), "mean"], rows), end="\n\n")
    rows = []
    for (task, name), returns in final.items():
        reuse = f"ge{ALGORITHMS[name].rule}"
        if reuse != name and (task, reuse) in final:
            a, b = list(returns.values()), list(final[task, reuse].values())
            numbers = [f"{mean(a):.0f}", f"{mean(b):.0f}", f"{mean(b) - mean(a):+.0f}", f"{permutation_p(a, b):.3f}"]
            rows.append([task, f"{name}, {reuse}", *numbers])
    print(table(["task", "pair", "on-policy", "generalized", "difference", "p"], rows))


if __name__ == "__main__":
    main()
