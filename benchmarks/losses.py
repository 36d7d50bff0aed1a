"""What losses look like (docs/measurements.md, "Why policies were lost"), and the figure and tables of that section.

    python benchmarks/losses.py count STUDY            # a folder of run directories TASK/ARM; rewrites its lines
    python benchmarks/losses.py table
    python benchmarks/losses.py figure docs/img/cause.png

`count` finds the seeds that lost what they had learned, by the study's rule and after their best (`Course.fell`), and
writes a line for each seed that learned to benchmarks/cause.jsonl, beside those of `cause.py`. A fall begins where the
mean of 20 episodes was last at 90 % of the best or above, and has happened where it first is at or below half the way
from there to the mean of the last 200,000 steps. What preceded it is the median over the 100,000 steps before it began;
of a seed that held, over its last 200,000 steps.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpi.analysis.audit import retentions_of
from gpi.analysis.retention import Retention, Scale
from gpi.rundir.run import Run, open_run, read_rows

RECORD = Path(__file__).with_name("cause.jsonl")
ARMS = ("geppo-kappa1", "getrpo-kappa1", "gevmpo-kappa1", "ppo", "trpo", "vmpo")
COLUMNS = {"metrics.csv": ("entropy", "lr", "adv_std", "tv"), "audit.csv": ("normaliser_tv",)}
QUANTITIES = tuple(name for names in COLUMNS.values() for name in names)
SCALE = Scale(0.0, 100.0)  # something is learned above 100
BEFORE, AFTER = 100_000, 200_000  # steps: before a fall, and at the end of a seed that held
EPISODES = 20
SUDDEN = 20_480  # steps: 20 updates of 1,024 samples, or 10 of 2,048
Line = dict[str, Any]


def fall_of(steps: np.ndarray, returns: np.ndarray, one: Retention) -> tuple[int, int]:
    """The steps at which a fall began and had happened."""
    running = np.convolve(returns, np.ones(EPISODES) / EPISODES, "valid")
    ends = steps[EPISODES - 1 :]
    began = int(np.flatnonzero(running >= 0.9 * one.best.mean)[-1])
    low = np.flatnonzero(running[began:] <= 0.5 * (0.9 * one.best.mean + one.after.mean))
    return int(ends[began]), int(ends[began + (low[0] if len(low) else len(running) - began - 1)])


def columns_of(run: Run) -> dict[str, np.ndarray]:
    """Seed, steps and the quantities, by column: the rows of both tables are the same updates."""
    table: dict[str, np.ndarray] = {}
    for name, columns in COLUMNS.items():
        rows = read_rows(run.dir / name, "seed", "steps")
        rows = [row | {"tv": row["tv_abs"]} if "tv_abs" in row else row for row in rows]  # as it was called at first
        table |= {key: np.array([float(row[key] or "nan") for row in rows]) for key in ("seed", "steps", *columns)}
    return table


def lines_of(task: str, arm: str, run: Run) -> list[Line]:
    """A line for each seed that learned."""
    table, episodes, lines = columns_of(run), run.all_episodes(), []
    for seed, one in retentions_of(run, table, SCALE).items():
        if not one.learned:
            continue
        end = int(table["steps"][table["seed"] == seed].max())
        began, fallen = fall_of(*episodes[seed], one) if one.fell else (end, end)
        inside = (table["seed"] == seed) & (table["steps"] <= began)
        inside &= table["steps"] > began - (BEFORE if one.fell else AFTER)
        line: Line = {"kind": "seed", "task": task, "arm": arm, "seed": seed, "best": one.best.mean,
                      "best_end": one.best_end, "last": one.last.mean, "lost_fifth": one.lost_fifth,
                      "lost_half": one.lost_half, "fell": one.fell}  # fmt: skip
        line |= {"began": began, "fallen": fallen} if one.fell else {}
        lines.append(line | {name: float(np.nanmedian(table[name][inside])) for name in QUANTITIES})
    return lines


def count(parsed: argparse.Namespace) -> None:
    """Write the lines of all runs of a study."""
    lines = [line for line in record() if line["kind"] != "seed"]
    for directory in sorted(parsed.study.glob("*/*/")):
        if directory.name in ARMS and (directory / "DONE").is_file():
            lines += lines_of(directory.parent.name, directory.name, open_run(directory))
    RECORD.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table(parsed)


def record() -> list[Line]:
    return [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.is_file() else []


# --- tables ---------------------------------------------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def against_held(mine: Sequence[Line], name: str) -> str:
    """The median over lost seeds of their value over that of the seeds of the same task and arm that held."""
    ratios = []
    for line in mine:
        held = [x[name] for x in mine if not x["fell"] and not x["lost_fifth"] and x["task"] == line["task"]]
        if line["fell"] and held:
            middle = float(np.median(held))
            ratios.append(line[name] - middle if name == "entropy" else line[name] / middle)
    if not ratios:
        return "-"
    return f"{np.median(ratios):+.2f}" if name == "entropy" else f"x{np.median(ratios):.2f}"


def loss_rows(lines: Sequence[Line]) -> list[list[str]]:
    """A row per rule: how many were lost, how suddenly, and what preceded it."""
    rows = []
    for arm in ARMS:
        mine = [line for line in lines if line["arm"] == arm]
        lost = [line for line in mine if line["fell"]]
        took = [line["fallen"] - line["began"] for line in lost]
        sudden = f"{sum(x <= SUDDEN for x in took)} ({np.median(took) / 1000:.0f}k)" if lost else "-"
        counts = [
            len(mine),
            sum(x["lost_fifth"] for x in mine),
            len(lost),
            sum(x["fell"] and x["lost_half"] for x in mine),
        ]
        medians = [f"{np.median([x[name] for x in lost]):.3g} ({against_held(mine, name)})" if lost else "-"
                   for name in QUANTITIES]  # fmt: skip
        rows.append([arm, *map(str, counts), sudden, *medians])
    return rows


def plain(x: float) -> str:
    """A number in two digits, or whole from 100 on."""
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.2g}"


def moment_rows(lines: Sequence[Line]) -> list[list[str]]:
    """A row per task, normaliser and phase: medians and ranges over the moments that were measured."""
    rows = []
    groups = dict.fromkeys((x["task"], x["normaliser"], x["phase"]) for x in lines)
    for group in groups:
        mine = [x for x in lines if (x["task"], x["normaliser"], x["phase"]) == group]

        def spread(name: str, mine: Sequence[Line] = mine) -> str:
            values = [x[name] for x in mine]
            middle, low, high = (plain(x) for x in (float(np.median(values)), min(values), max(values)))
            return f"{middle} ({low} to {high})"

        rows.append([" ".join(group), str(len(mine)), spread("episode_return"), spread("adv_std"), spread("confirmed"),
                     spread("value_error")])  # fmt: skip
    return rows


def table(_: argparse.Namespace) -> None:
    """Print both tables."""
    lines = record()
    header = ["arm", "learned", "lost, by the rule", "fell after their best", "below half", "sudden (median)"]
    print(markdown([*header, *QUANTITIES], loss_rows([x for x in lines if x["kind"] == "seed"])), end="\n\n")
    header = ["task, normaliser, phase", "moments", "return", "adv_std", "confirmed", "value error"]
    print(markdown(header, moment_rows([x for x in lines if x["kind"] == "moment"])))


# --- figure ---------------------------------------------------------------------------------------------------------


def figure(parsed: argparse.Namespace) -> None:
    """Draw every moment, every run and every seed of the record."""
    from matplotlib.figure import Figure

    from gpi.report.curves import COLOURS, step_label
    from gpi.report.pictures import require_picture, save_figure

    lines = record()
    picture = Figure(figsize=(12, 8), layout="constrained")
    axes = picture.subplots(2, 2)
    phases = {"learning": COLOURS[0], "mastered": COLOURS[2], "fallen": COLOURS[1]}
    draw_moments(axes[0, 0], [x for x in lines if x["kind"] == "moment"], phases)
    runs = [x for x in lines if x["kind"] == "run" and x["frozen_from"]]
    for run, colour in zip(runs, (COLOURS[1], COLOURS[0]), strict=False):
        for seed in dict.fromkeys(point[0] for point in run["returns"]):
            points = [point[1:] for point in run["returns"] if point[0] == seed]
            axes[0, 1].plot(*zip(*points, strict=True), color=colour, lw=1, alpha=0.8)
        label = "statistics move (paper)" if run["normaliser"] == "paper" else f"fixed from {run['frozen_from']:,} on"
        axes[0, 1].plot([], [], color=colour, label=label)
        axes[0, 1].set_title(f"GePPO on {run['task']}, twice from the same state", fontsize=10)
    axes[0, 1].xaxis.set_major_formatter(step_label)
    axes[0, 1].set(xlabel="environment steps", ylabel="return, mean of 10 episodes")
    axes[0, 1].legend(frameon=False, fontsize=8)
    seeds = [x for x in lines if x["kind"] == "seed"]
    draw_seeds(axes[1, 0], seeds, "normaliser_tv", "TV that the normaliser's update moves the policy by", COLOURS)
    draw_seeds(axes[1, 1], seeds, "adv_std", "standard deviation of the advantages, normalised reward", COLOURS)
    save_figure(picture, require_picture(parsed.out))


def draw_moments(axis: Any, moments: Sequence[Line], phases: dict[str, str]) -> None:
    """Draw the confirmed share of each moment against the standard deviation of its advantages."""
    marks = {"paper": "o", "frozen": "s"}
    for x in moments:
        colour, error = phases[x["phase"]], x["confirmed_error"]
        axis.errorbar(x["adv_std"], x["confirmed"], error, fmt=marks[x["normaliser"]], color=colour, ms=5, alpha=0.8,
                      mfc=colour if x["task"] == moments[0]["task"] else "white")  # fmt: skip
    for name, colour in phases.items():
        axis.plot([], [], "o", color=colour, label=name)
    axis.plot([], [], "s", color="grey", label="statistics fixed")
    others = [x["task"] for x in moments if x["task"] != moments[0]["task"]]
    if others:
        axis.plot([], [], "o", color="grey", mfc="white", label=others[0])
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xscale("log")
    axis.set(xlabel="standard deviation of the run's advantages, normalised reward", ylabel="share of its variance")
    axis.set_title("confirmed by fresh Monte Carlo estimates (± standard error)", fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def draw_seeds(axis: Any, seeds: Sequence[Line], name: str, title: str, colours: Sequence[str]) -> None:
    """Draw a quantity of every seed that learned, by rule: before a fall, or at the end of those that held."""
    rng = np.random.default_rng(0)
    for place, arm in enumerate(ARMS):
        for fell, shift, colour in ((False, -0.18, colours[0]), (True, 0.18, colours[1])):
            values = [x[name] for x in seeds if x["arm"] == arm and x["fell"] == fell]
            across = place + shift + rng.uniform(-0.1, 0.1, len(values))
            axis.plot(across, values, ".", color=colour, alpha=0.6)
            if values:
                axis.plot([place + shift - 0.13, place + shift + 0.13], [np.median(values)] * 2, color=colour, lw=2)
    axis.plot([], [], ".", color=colours[0], label="held (last 200k steps)")
    axis.plot([], [], ".", color=colours[1], label="fell (100k steps before)")
    axis.set_xticks(range(len(ARMS)), [arm.removesuffix("-kappa1") for arm in ARMS])
    axis.set_yscale("log")
    axis.set_title(title, fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("count", help="find the seeds that lost what they had learned")
    verb.add_argument("study", type=Path)
    verb.set_defaults(run=count)
    verbs.add_parser("table", help="print the tables").set_defaults(run=table)
    verb = verbs.add_parser("figure", help="draw the figure")
    verb.add_argument("out", type=Path)
    verb.set_defaults(run=figure)
    parsed = parser.parse_args()
    parsed.run(parsed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
