"""Whether learning curves of two versions lie on one another, although last bits may differ and runs then part.

    python benchmarks/curves_apart.py OLD_DIR NEW_DIR [--picture docs/img/same-curves.png]

Both directories hold one run for each algorithm, named after it: `gpi train cheetah-run --algorithm geppo --seeds 5
--steps 200000 --out OLD_DIR/geppo`. Two figures of every seed are compared: its final return (mean of the episodes that
ended in the last 50,000 steps) and its area under the curve (mean return over all steps). p is that of an exact
permutation test over seeds of the difference of means: how often a random split of the seeds of both into two groups
lies at least as far apart. With 12 tests, p below 0.05/12 would be needed to call any of them a difference.
"""

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gpi.core.plan import ALGORITHMS
from gpi.report.curves import COLOURS, draw, style
from gpi.rundir.run import Run, open_run

PICTURE = Path(__file__).parent.parent / "docs" / "img" / "same-curves.png"
LAST = 50_000  # steps whose episodes make the final return


def figures_of(run: Run) -> np.ndarray:
    """Final return and area under the curve of every seed, `[2, seeds]`."""
    found = []
    for seed in run.seeds:
        steps, returns = run.episodes(seed)
        area = np.trapezoid(returns, steps) / (steps[-1] - steps[0])
        found.append((returns[steps > steps[-1] - LAST].mean(), area))
    return np.array(found).T


def permutation_p(a: np.ndarray, b: np.ndarray) -> float:
    """The exact two-sided p of the difference of means: the share of splits that lie at least as far apart."""
    both = np.concatenate([a, b])
    firsts = np.array([both[list(chosen)].mean() for chosen in combinations(range(len(both)), len(a))])
    apart = np.abs(firsts - (both.sum() - len(a) * firsts) / len(b))
    return float((apart >= np.abs(a.mean() - b.mean()) - 1e-9).mean())


def compare(name: str, old: Run, new: Run) -> list[str]:
    """A row of the table: both figures with their difference, its p, and the seeds that are the same."""
    before, after = figures_of(old), figures_of(new)
    cells = [name]
    for a, b in zip(before, after, strict=True):
        spread = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
        cells += [f"{a.mean():.1f}", f"{b.mean():.1f}", f"{b.mean() - a.mean():+.1f}", f"{spread:.1f}"]
        cells.append(f"{permutation_p(a, b):.2f}")
    return [*cells, f"{(before == after).all(axis=0).sum()} of {len(old.seeds)}"]


def picture(pairs: dict[str, tuple[Run, Run]], path: Path) -> None:
    """A panel per algorithm with both versions, every seed thin, the mean thick."""
    figure = Figure(figsize=(14.4, 7.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    # On-policy above, its generalized partner below.
    order = sorted(pairs, key=lambda name: ALGORITHMS[name].plan == "reuse")
    for axis, name in zip(axes.flat, order, strict=False):
        for run, version, colour in zip(pairs[name], ("old", "new"), COLOURS, strict=False):
            draw(axis, run, version, colour)
        for line in axis.lines[len(axis.lines) // 2 :]:  # dashed, so that curves that agree are both seen
            line.set_linestyle((0, (3, 3)))
        style(axis, name)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    figure.supxlabel("environment steps per agent (thin: one seed, thick: mean of the seeds)", fontsize="medium")
    figure.supylabel("episode return", fontsize="medium")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Compare, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="directory of runs")
    parser.add_argument("new", type=Path, help="directory of runs")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    chosen = parser.parse_args()
    pairs = {name: (open_run(chosen.old / name), open_run(chosen.new / name)) for name in ALGORITHMS}
    header = ["algorithm"]
    for words in ("final return", "area"):
        header += [f"{words}: old", "new", "difference", "sd of seeds", "p"]
    header.append("same seeds")
    print(f"| {' | '.join(header)} |\n| --- |{' --: |' * (len(header) - 1)}")
    for name, (old, new) in pairs.items():
        print(f"| {' | '.join(compare(name, old, new))} |")
    picture(pairs, chosen.picture)
    print(f"figure: {chosen.picture}")


if __name__ == "__main__":
    main()
