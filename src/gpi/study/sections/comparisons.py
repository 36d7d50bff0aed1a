"""Arms against each other: task by task, controls, and the reuse curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpi.config import Config
from gpi.study.frame import kappa_of
from gpi.study.report.blocks import Cells, Chart, Line, Section, Table, Tags
from gpi.study.sections.aggregates import BY_TASKS, PAIR_COLUMNS, all_aggregates, improvement_row
from gpi.study.sections.pairs import Pair, controls_of, pairs_of, settings_of
from gpi.study.sections.words import FINAL, INTERVALS, STUDENT, Material, listed, mean_of, slug
from gpi.study.statistics import SPLITS_LIMIT, differences
from gpi.terminal import plural

CERTAIN = 0.05
P_NOTE = (
    f"p is the two-sided permutation test of the difference of means, exact up to {SPLITS_LIMIT:,} splits; adjusted p "
    "by Benjamini and Hochberg over the tasks of the same two arms; the smallest p is the least that these numbers of "
    "seeds allow, 0.0079 for 5 against 5."
)


def differences_section(material: Material) -> Section | None:
    """Return the differences task by task; None where there is nothing to compare."""
    pairs = pairs_of(material)
    if not pairs:
        return None
    table = differences_table(material, pairs, "differences", "Differences task by task")
    lines = []
    for pair in pairs:
        found, adjusted = differences(*pair.scores(material))
        certain = [one.difference for one, p in zip(found, adjusted, strict=True) if p < CERTAIN]
        higher, lower = sum(x > 0 for x in certain), sum(x < 0 for x in certain)
        lines.append(
            f"{pair.arm} against {pair.other}: of {plural(len(pair.tasks), 'task')}, {higher} higher and {lower} lower "
            f"with an adjusted p below {CERTAIN}."
        )
    return Section("differences", "Task by task", tuple(lines), (table,))


def differences_table(material: Material, pairs: Sequence[Pair], name: str, title: str) -> Table:
    """Return each task's difference for each pair, with permutation tests."""
    rows: list[Cells] = []
    tags = []
    for pair in pairs:
        first, second = pair.scores(material)
        found, adjusted = differences(first, second)
        for task, one, p in zip(pair.tasks, found, adjusted, strict=True):
            seeds = f"{len(first[task])}, {len(second[task])}"
            means = float(first[task].mean()), float(second[task].mean())
            rows.append((task, pair.arm, pair.other, seeds, *means, one.difference, one.low, one.high,
                         p_value(one.p), p_value(float(p)), p_value(one.smallest_p)))  # fmt: skip
            tags.append(material.tags(pair.arm, task))
    columns = ("task", "arm", "against", "seeds", "mean", "mean of the other", "difference", "low", "high", "p",
               "adjusted p", "smallest p")  # fmt: skip
    return Table(name, title, f"{FINAL} {STUDENT} {P_NOTE}", columns, tuple(rows), tuple(tags))


def p_value(p: float) -> str:
    """Return a p-value as text, as tables have one digit for returns."""
    return f"{p:.4f}" if p >= 1e-4 else f"{p:.1e}"


def controls_section(material: Material) -> Section | None:
    """Return the controls against both sides; None where there are none."""
    pairs = controls_of(material)
    if not pairs:
        return None
    rows = [improvement_row(material, pair) for pair in pairs]
    summary = Table("controls", "Controls", f"{FINAL} {INTERVALS} {BY_TASKS}", PAIR_COLUMNS, tuple(rows),
                    tuple(material.tags(pair.arm) for pair in pairs))  # fmt: skip
    text = (
        "Is it the reuse, or what comes with it? A control is an on-policy algorithm with other settings than the "
        "default. Twice the epochs has the gradient steps of a generalized run; a batch of n with half the trust "
        "region (B = 1, eps = 0.1) has the number of updates and the step of kappa = 1, without reuse.",
    )
    table = differences_table(material, pairs, "controls-by-task", "Controls task by task")
    return Section("controls", "Controls", text, (summary, table))


def reuse_section(material: Material) -> Section | None:
    """Return final performance over B; None where no arms differ in B alone."""
    families = reuse_families(material)
    if not families:
        return None
    blocks: list[Table | Chart] = []
    tasks = dict.fromkeys(task for arms in families for arm in arms for task in material.finals[arm])
    blocks += [reuse_chart(material, families, task) for task in material.results.tasks if task in tasks]
    blocks = [block for block in blocks if isinstance(block, Chart) and block.lines]
    blocks += [table for number, arms in enumerate(families) for table in reuse_tables(material, arms, number)]
    text = (
        "B is how many batches of n samples an on-policy update would have. With larger B more prior policies are "
        "reused, each update is as large a sample as B n, and the step is smaller.",
    )
    return Section("reuse", "The reuse curve", text, tuple(blocks))


def reuse_families(material: Material) -> list[list[str]]:
    """Return groups of generalized arms that differ in B alone, with two values of it or more, smallest B first."""
    found: dict[tuple[str, int], list[str]] = {}
    for arm in material.finals:
        config = material.results.arms[arm]
        if config.reuses:
            found.setdefault(settings_of(config, B=1), []).append(arm)
    return [sorted(arms, key=lambda arm: material.results.arms[arm].B) for arms in found.values() if len(arms) > 1]


def reuse_label(config: Config) -> str:
    """Return what the arms of a reuse curve have in common, in short."""
    return f"{config.algorithm}, kappa {kappa_of(config)}, n = {config.n}, {config.steps:,} steps"


def reuse_chart(material: Material, families: Sequence[Sequence[str]], task: str) -> Chart:
    """Return the reuse curve of one task: a bar for each B, with every seed as a point."""
    several = [[arm for arm in arms if task in material.finals[arm]] for arms in families]
    several = [arms for arms in several if len(arms) > 1]
    batches = sorted({material.results.arms[arm].B for arms in several for arm in arms})
    lines = []
    for arms in several:
        configs = {material.results.arms[arm].B: (arm, material.results.arms[arm]) for arm in arms}
        most = max(len(material.finals[arm][task]) for arm in arms)
        seeds, ends = np.full((most, len(batches)), np.nan), np.full((3, len(batches)), np.nan)
        for place, number in enumerate(batches):
            if number in configs:
                values = material.finals[configs[number][0]][task]
                seeds[: len(values), place], ends[:, place] = values, mean_of(task, values)
        config = next(iter(configs.values()))[1]
        tags = Tags(task, config.algorithm, kappa_of(config))
        x = np.arange(len(batches), dtype=np.float64)
        lines.append(Line(reuse_label(config), x, ends[0], ends[1], ends[2], seeds, tags))
    note = f"{FINAL} {STUDENT} Every seed is a point."
    return Chart(slug(f"reuse-{task}"), f"Reuse on {task}", note, "B", "final performance", tuple(lines),
                 names=tuple(str(number) for number in batches), tags=Tags(task))  # fmt: skip


def reuse_tables(material: Material, arms: Sequence[str], number: int) -> list[Table]:
    """Return the numbers of one group: by task and B, and the mean over the tasks that all of its arms have."""
    config = material.results.arms[arms[0]]
    rows: list[Cells] = []
    tags = []
    for task in material.results.tasks:
        for arm in arms:
            if task in material.finals[arm]:
                x = material.finals[arm][task]
                rows.append((task, material.results.arms[arm].B, len(x), *mean_of(task, x)))
                tags.append(material.tags(arm, task))
    end = "" if number == 0 else f"-{number + 1}"
    columns = ("task", "B", "seeds", "mean", "low", "high")
    table = Table(f"reuse-by-task{end}", f"Final performance over B. {reuse_label(config)}", f"{FINAL} {STUDENT}",
                  columns, tuple(rows), tuple(tags))  # fmt: skip
    common = [task for task in material.results.tasks if all(task in material.finals[arm] for arm in arms)]
    if not common:
        return [table]
    rows = []
    for arm in arms:
        found = all_aggregates({task: material.finals[arm][task] for task in common})
        rows.append((material.results.arms[arm].B, *(float(x) for name in ("mean", "iqm") for x in found[name])))
    note = f"Over {listed(common)}. {FINAL} {INTERVALS}"
    columns = ("B", "mean", "mean low", "mean high", "IQM", "IQM low", "IQM high")
    title = f"Over the tasks that every B has. {reuse_label(config)}"
    return [Table(f"reuse{end}", title, note, columns, tuple(rows), tuple(map(material.tags, arms))), table]
