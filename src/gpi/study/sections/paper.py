"""Figures 2 to 4 and Table I as the paper defines them, with the best kappa and beside that with one fixed kappa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpi.core.plan import ALGORITHMS
from gpi.envs import dmc
from gpi.study.claims import TABLE_1
from gpi.study.comparison import LEVELS, Comparison, Gain, Sides, classes_of, gains, sides_of
from gpi.study.frame import arm_of, kappa_of
from gpi.study.intervals import Strata, cautious_interval
from gpi.study.report.blocks import Chart, Line, Section, Table, Tags
from gpi.study.sections.words import (
    BEST_OF,
    FINAL,
    INTERVALS,
    NO_LEARNING,
    STUDENT,
    Material,
    listed,
    mean_of,
    slug,
)
from gpi.study.statistics import welch
from gpi.terminal import plural

FIXED = "1"


class View(NamedTuple):
    """A choice of arms: by rule the on-policy arm and the generalized ones, and the tasks that all of them have."""

    title: str
    name: str
    """What its charts and tables end in; empty for the best of several kappas with the paper's settings."""
    columns: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    tasks: tuple[str, ...]
    settings: str
    """What its arms have beside algorithm and kappa; empty for the paper's settings."""

    @property
    def on_policy(self) -> tuple[str, ...]:
        """The on-policy arms."""
        return tuple(arm for pair in self.columns.values() for arm in pair[0])

    @property
    def generalized(self) -> tuple[str, ...]:
        """The generalized arms."""
        return tuple(arm for pair in self.columns.values() for arm in pair[1])

    @property
    def compared(self) -> Comparison:
        """The best of all on-policy arms against the best of all generalized ones."""
        return Comparison(self.on_policy, self.generalized, self.tasks)


def paper_section(material: Material) -> Section | None:
    """Return the paper's figures and table from these results; None where no two sides can be compared."""
    chosen = views(material)
    if not chosen:
        return None
    text = [
        "On each task where learning occurs, the best on-policy algorithm and the best generalized one are compared by "
        "mean final performance.",
        BEST_OF,
        *(f"{view.title}: {plural(len(view.tasks), 'task')}, arms {listed([*view.on_policy, *view.generalized])}."
          for view in chosen),
    ]  # fmt: skip
    blocks = [block for view in chosen for block in blocks_of(material, view)]
    unknown = sorted(set(material.results.tasks) - set(material.judged(material.results.tasks)))
    if unknown:
        text.append(f"Left out, as their random policy is not known: {listed(unknown)}.")
    return Section("paper", "Figures 2 to 4 and Table I", tuple(text), tuple(blocks))


def views(material: Material) -> list[View]:
    """Return, for each choice of other settings, the best of the kappas there are, and one fixed kappa."""
    found = []
    for settings, arms in families(material).items():
        kappas = sorted({kappa_of(material.results.arms[arm]) for arm in arms} - {""}, key=float)
        end = slug(settings) if settings else ""
        fixed = FIXED if FIXED in kappas else kappas[-1] if kappas else ""
        several = shared_kappas(material, arms, kappas)
        words = f" ({settings})" if settings else ""
        if len(several) > 1:
            found.append(view_of(material, arms, several, f"Best of kappa {listed(several)}{words}", end, settings))
        if fixed:
            name = slug(f"{end} kappa {fixed}")
            found.append(view_of(material, arms, [fixed], f"Kappa = {fixed}{words}", name, settings))
    return [view for view in found if view.columns and view.tasks]


def families(material: Material) -> dict[str, list[str]]:
    """Return arms by the settings that they have beside algorithm and kappa, where both sides are there."""
    found: dict[str, list[str]] = {}
    for arm in material.finals:
        config = material.results.arms[arm]
        plain_arm = "-".join([config.algorithm, *([f"kappa{kappa_of(config)}"] if config.reuses else [])])
        steps = arm.removeprefix(arm_of(config))
        found.setdefault((arm_of(config) + steps).removeprefix(plain_arm).strip("-"), []).append(arm)
    sides = {name: {material.results.arms[arm].reuses for arm in arms} for name, arms in found.items()}
    return {name: arms for name, arms in sorted(found.items()) if len(sides[name]) == 2}


def shared_kappas(material: Material, arms: Sequence[str], kappas: Sequence[str]) -> list[str]:
    """Return the kappas that have at least half as many tasks as the one that has the most."""
    sizes = {kappa: len(view_of(material, arms, [kappa], "", "", "").tasks) for kappa in kappas}
    return [kappa for kappa in kappas if sizes[kappa] and 2 * sizes[kappa] >= max(sizes.values())]


def view_of(
    material: Material, arms: Sequence[str], kappas: Sequence[str], title: str, name: str, settings: str
) -> View:
    """Return the view of some arms with these kappas."""
    configs = {arm: material.results.arms[arm] for arm in arms}
    columns = {}
    for rule in dict.fromkeys(algorithm.rule for algorithm in ALGORITHMS.values()):
        same = [arm for arm in arms if ALGORITHMS[configs[arm].algorithm].rule == rule]
        first = tuple(arm for arm in same if not configs[arm].reuses)
        second = tuple(arm for arm in same if configs[arm].reuses and kappa_of(configs[arm]) in kappas)
        if first and second:
            columns[rule.upper()] = (first, second)
    used = [arm for pair in columns.values() for side in pair for arm in side]
    tasks = [task for task in material.results.tasks if all(task in material.finals[arm] for arm in used)]
    return View(title, name, columns, material.judged(tasks) if used else (), settings)


def sides_in(material: Material, on_policy: Sequence[str], generalized: Sequence[str], view: View) -> Sides:
    """Return both sides of some arms on the tasks of a view."""
    compared = Comparison(tuple(on_policy), tuple(generalized), view.tasks)
    return sides_of(compared, compared.strata(material.finals), material.random, material.shares)


def blocks_of(material: Material, view: View) -> list[Table | Chart]:
    """Return the figures and tables of a view."""
    sides = sides_in(material, view.on_policy, view.generalized, view)
    found = gains(material.finals, view.compared, sides)
    shown = [gain for gain in found if gain.learned]
    blocks: list[Table | Chart] = [table_1_of(material, view)]
    if shown:
        blocks += [figure_2_of(view, shown), figure_3_of(view, shown), *figure_4_of(material, view, sides)]
    return [*blocks, table_of(material, view, found)]


def called(view: View, what: str) -> str:
    """Return the name of a block of a view."""
    return f"{what}-{view.name}" if view.name else what


def figure_2_of(view: View, shown: Sequence[Gain]) -> Chart:
    """Return figure 2: final performance of the best arm of each side, with every seed."""
    shown, lines = sorted(shown, key=lambda gain: -gain.on_policy.finals.mean()), []
    for label, sides in (
        ("on-policy", [gain.on_policy for gain in shown]),
        ("generalized", [gain.generalized for gain in shown]),
    ):
        ends = np.array([mean_of(gain.task, side.finals) for gain, side in zip(shown, sides, strict=True)]).T
        seeds = np.full((max(len(side.finals) for side in sides), len(sides)), np.nan)
        for place, side in enumerate(sides):
            seeds[: len(side.finals), place] = side.finals
        x = np.arange(len(shown), dtype=np.float64)
        lines.append(Line(f"best {label}", x, *ends, seeds=seeds, generalized=label == "generalized"))
    note = f"Sorted by on-policy performance; tasks without learning are left out. {FINAL} {NO_LEARNING} {STUDENT}"
    return Chart(called(view, "figure-2"), f"Figure 2. Final performance by task. {view.title}", note, "", "return",
                 tuple(lines), tuple(gain.task for gain in shown))  # fmt: skip


def figure_3_of(view: View, shown: Sequence[Gain]) -> Chart:
    """Return figure 3: the difference of the two sides."""
    shown = sorted(shown, key=lambda gain: -gain.difference)
    ends = np.array([welch(gain.generalized.finals, gain.on_policy.finals) for gain in shown])
    line = Line("generalized less on-policy", np.arange(len(shown), dtype=np.float64), *ends.T, generalized=True)
    note = f"Sorted by the difference; tasks without learning are left out. {FINAL} {NO_LEARNING} {STUDENT}"
    return Chart(called(view, "figure-3"), f"Figure 3. Difference in final performance. {view.title}", note, "",
                 "difference in return", (line,), tuple(gain.task for gain in shown))  # fmt: skip


def figure_4_of(material: Material, view: View, sides: Sides) -> list[Table | Chart]:
    """Return figure 4: the mean difference over tasks that are at least so sparse, as a chart and a table."""
    counts = {level: int((sides.learned & (100.0 * sides.sparsity >= level)).sum()) for level in LEVELS}
    counts = {level: number for level, number in counts.items() if number}

    def by_level(strata: Strata) -> np.ndarray:
        resampled = sides_of(view.compared, strata, material.random, material.shares)
        return resampled.gain_by_sparsity(list(counts))

    ends = cautious_interval(by_level, view.compared.strata(material.finals))
    names = tuple(f">= {level:g} %" for level in counts)
    overall = float(ends.estimate[0])
    note = (
        "Sparsity is the percentage of 100,000 samples of a uniformly random policy with a reward of at most 0.01. "
        f"Tasks without learning are left out. {FINAL} {NO_LEARNING} {INTERVALS}"
    )
    title = f"Figure 4. Mean difference by sparsity. {view.title}"
    line = Line("generalized less on-policy", np.arange(len(names), dtype=np.float64), *ends, generalized=True)
    rows = tuple(
        (name, number, *map(float, three), float(three[0]) / overall if overall else np.nan)
        for name, number, three in zip(names, counts.values(), zip(*ends, strict=True), strict=True)
    )
    columns = ("sparsity", "tasks", "mean difference", "low", "high", "relative to all tasks")
    return [
        Chart(called(view, "figure-4"), title, note, "sparsity", "difference in return", (line,), names),
        Table(called(view, "figure-4-table"), title, note, columns, rows, (Tags(),) * len(rows), 2),
    ]


def table_1_of(material: Material, view: View) -> Table:
    """Return Table I: how many tasks each side wins, by rule and for the best of all; with the paper's numbers."""
    sides: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
        **view.columns, **({"Best": (view.on_policy, view.generalized)} if len(view.columns) > 1 else {}),
    }  # fmt: skip
    counts = {name: classes_of(sides_in(material, *pair, view)) for name, pair in sides.items()}
    known = set(view.tasks) <= set(dmc.TASKS) and not view.settings
    paper = {f"{name}, paper": TABLE_1[name] for name in counts if name in TABLE_1 and known}
    rows = [
        (words, *(row[i] for row in counts.values()), *(row[i] for row in paper.values()))
        for i, words in enumerate(("On-policy outperforms", "Generalized outperforms", "No learning"))
    ]
    rows.append(("Tasks", *(sum(row) for row in counts.values()), *(sum(row) for row in paper.values())))
    note = f"{FINAL} {NO_LEARNING} Each column's arms judge learning. The paper: 28 tasks, the best of three kappas."
    return Table(called(view, "table-1"), f"Table I. Tasks by outcome. {view.title}", note,
                 ("", *counts, *paper), tuple(rows), (Tags(),) * len(rows))  # fmt: skip


def table_of(material: Material, view: View, found: Sequence[Gain]) -> Table:
    """Return the numbers behind figures 2 and 3, for every task."""
    rows, tags = [], []
    for gain in sorted(found, key=lambda gain: -gain.difference):
        on_policy, generalized = (mean_of(gain.task, side.finals) for side in gain[1:3])
        gap = welch(gain.generalized.finals, gain.on_policy.finals)
        learned = "yes" if gain.learned else "no"
        percent = gain.percent if np.isfinite(gain.percent) else None
        sparsity = 100.0 * material.random[gain.task].sparsity
        rows.append((gain.task, gain.on_policy.arm, *on_policy, gain.generalized.arm, *generalized, *gap, percent,
                     learned, sparsity))  # fmt: skip
        tags.append(Tags(gain.task))
    three = [(f"{what} mean", f"{what} low", f"{what} high") for what in ("on-policy", "generalized")]
    columns = ("task", "on-policy arm", *three[0], "generalized arm", *three[1], "difference", "difference low",
               "difference high", "difference, %", "learning", "sparsity, %")  # fmt: skip
    note = f"{FINAL} {NO_LEARNING} {STUDENT} A difference over nothing has no percentage."
    return Table(called(view, "by-task"), f"Both sides, task by task. {view.title}", note, columns, tuple(rows),
                 tuple(tags))  # fmt: skip


def sparsity_section(material: Material) -> Section | None:
    """Return the table of what a random policy meets on each task."""
    tasks = [task for task in material.results.tasks if task in material.random]
    if not tasks:
        return None
    rows = []
    for task in sorted(tasks, key=lambda task: -material.random[task].sparsity):
        one = material.random[task]
        rows.append((task, 100.0 * one.sparsity, one.mean, one.deviation, one.episodes))
    note = "Of 100,000 samples of a uniformly random policy: the share with a reward of at most 0.01, and the return."
    table = Table("sparsity", "A random policy on each task", note,
                  ("task", "sparsity, %", "mean return", "standard deviation", "episodes"), tuple(rows),
                  tuple(Tags(str(row[0])) for row in rows), 2)  # fmt: skip
    text = "How seldom a random policy meets a reward, the paper's measure of sparsity, and the return it gets."
    return Section("sparsity", "Sparsity", (text,), (table,))
