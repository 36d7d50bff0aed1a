"""Arms over all tasks: aggregates, performance profiles, and the probability of improvement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpi import analysis
from gpi.envs import dmc
from gpi.study.intervals import Interval, Strata, interval, strata_of
from gpi.study.report.blocks import Cells, Chart, Line, Section, Table
from gpi.study.sections.pairs import Pair, pairs_of
from gpi.study.sections.words import FINAL, INTERVALS, Material, bounds_of
from gpi.study.statistics import (
    AGGREGATES,
    SCALE,
    aggregate_difference,
    performance_profile,
    probability_of_improvement,
)
from gpi.terminal import plural

TAUS = np.arange(0.0, SCALE + 1.0, 25.0)
GROUPS_LIMIT = 4
PAIR_COLUMNS = ("arm", "against", "tasks", "probability of improvement, %", "low", "high", "mean difference",
                "mean low", "mean high", "IQM difference", "IQM low", "IQM high", "mean over tasks")  # fmt: skip
BY_TASKS = "The last interval of the mean is Student's over tasks, as if they were a sample of others like them."
NOTE = (
    "Mean and median are over tasks of each task's mean; the IQM is the mean of the middle half of all runs; the "
    "optimality gap is how much runs fall short of 1,000, on average, as a share of it."
)


def aggregates_section(material: Material) -> Section | None:
    """Return aggregates, profiles and the probability of improvement; None where nothing is finished."""
    if not material.finals:
        return None
    blocks: list[Table | Chart] = []
    for number, (tasks, arms) in enumerate(groups(material)):
        end = "" if number == 0 else f"-{number + 1}"
        scores = {arm: {task: material.finals[arm][task] for task in tasks} for arm in arms}
        blocks += [aggregates_table(material, tasks, scores, end), profile_chart(material, tasks, scores, end)]
    found = improvement_table(material)
    text = (
        "Arms can be compared over the same tasks and steps; others are in separate tables. A mean over tasks "
        "says nothing about a single one: see the differences task by task.",
    )
    return Section("aggregates", "Over all tasks", text, (*blocks, *([found] if found else [])))


def groups(material: Material) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return sets of tasks, and with each the arms that have all of them, with as many steps.

    Every arm's own tasks are among the sets, the largest first; of many different ones only the first few are shown.
    """
    finals, order, arms = material.finals, material.results.tasks, material.results.arms
    sets = {(arms[arm].steps, tuple(task for task in order if task in tasks)): None for arm, tasks in finals.items()}
    found = [
        (tasks, [arm for arm in finals if set(tasks) <= set(finals[arm]) and arms[arm].steps == steps])
        for steps, tasks in sets
    ]
    return sorted(found, key=lambda one: (-len(one[0]) * len(one[1]), -len(one[0])))[:GROUPS_LIMIT]


def all_aggregates(scores: Mapping[str, np.ndarray]) -> dict[str, Interval]:
    """Return every aggregate of an arm with its interval; they share their resamples, so it is one bootstrap."""

    def several(strata: Strata) -> np.ndarray:
        return np.stack([statistic(strata) for statistic, _ in AGGREGATES.values()], axis=-1)

    found = interval(several, strata_of(scores))
    ends = {}
    for place, (name, (_, bounds)) in enumerate(AGGREGATES.items()):
        least, largest = bounds if name == "optimality gap" else bounds_of(scores)
        estimate, low, high = (x[place] for x in found)
        ends[name] = Interval(estimate, np.maximum(low, least), np.minimum(high, largest))
    return ends


def aggregates_table(
    material: Material, tasks: Sequence[str], scores: Mapping[str, Mapping[str, np.ndarray]], end: str
) -> Table:
    """Return the aggregates of some arms over the same tasks."""
    scaled = set(tasks) <= set(dmc.TASKS)  # returns of other tasks have no largest value that is known
    names = [name for name in AGGREGATES if scaled or name != "optimality gap"]
    rows: list[Cells] = []
    for arm, by_task in scores.items():
        found = all_aggregates(by_task)
        seeds = sum(map(len, by_task.values()))
        cells = [float(x) * (100.0 if name == "optimality gap" else 1.0) for name in names for x in found[name]]
        rows.append((arm, len(tasks), seeds, *cells))
    shown = [name if name != "optimality gap" else "optimality gap, %" for name in names]
    columns = ("arm", "tasks", "seeds", *(part for name in shown for part in (name, f"{name} low", f"{name} high")))
    return Table(f"aggregates{end}", f"Aggregates over {plural(len(tasks), 'task')}", f"{NOTE} {FINAL} {INTERVALS}",
                 columns, tuple(rows), tuple(material.tags(str(row[0])) for row in rows))  # fmt: skip


def profile_chart(
    material: Material, tasks: Sequence[str], scores: Mapping[str, Mapping[str, np.ndarray]], end: str
) -> Chart:
    """Return the performance profiles of some arms: the share of runs above each return."""
    values = np.concatenate([x for by_task in scores.values() for x in by_task.values()])
    taus = TAUS if set(tasks) <= set(dmc.TASKS) else np.linspace(values.min(), values.max(), len(TAUS))
    lines = []
    for arm, by_task in scores.items():
        found = performance_profile(by_task, taus)
        lines.append(Line(arm, taus, found.estimate, found.low, found.high, tags=material.tags(arm)))
    note = f"The share of runs whose final performance is above a return, averaged over tasks. {FINAL} {INTERVALS}"
    title = f"Performance profiles over {plural(len(tasks), 'task')}"
    return Chart(f"profiles{end}", title, note, "final performance", "share of runs above", tuple(lines),
                 y_range=(0.0, 1.0))  # fmt: skip


def improvement_table(material: Material) -> Table | None:
    """Return how probable it is that a run of one arm beats one of another, for each pair; None without pairs."""
    rows, tags = [], []
    for pair in pairs_of(material):
        rows.append(improvement_row(material, pair))
        tags.append(material.tags(pair.arm))
    if not rows:
        return None
    note = (
        "The probability that a run of the arm has a higher final performance than one of the other on the same task, "
        f"averaged over tasks; ties count half. {FINAL} {INTERVALS} {BY_TASKS}"
    )
    return Table("improvement", "Probability of improvement", note, PAIR_COLUMNS, tuple(rows), tuple(tags))


def improvement_row(material: Material, pair: Pair) -> Cells:
    """Return one pair's probability of improvement and its differences of mean and IQM."""
    first, second = pair.scores(material)
    share = [100.0 * float(x) for x in probability_of_improvement(first, second)]
    means = [float(x) for name in ("mean", "iqm") for x in aggregate_difference(name, first, second)]
    _, low, high = analysis.student(np.array([x.mean() - second[task].mean() for task, x in first.items()]))
    return (pair.arm, pair.other, len(pair.tasks), *share, *means, f"{low:.1f} to {high:.1f}" if low <= high else None)
