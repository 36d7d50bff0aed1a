"""Single seeds: learning curves, and seeds that lost what they had learned."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpi import analysis
from gpi.study.frame import FINISHED
from gpi.study.report.blocks import Cells, Chart, Line, Section, Table
from gpi.study.sections.words import Material, bounds_of, listed, slug
from gpi.terminal import plural

POINTS = 100
LOST = (
    "A seed has lost what it had learned if the mean return of the last fifth of its run is below 80 % (or 50 %) of "
    "that of the best twentieth, by more than three standard errors of the two; and the best was above the random "
    "policy's mean return by a tenth of what that lacks to 1,000. Returns of other tasks than DeepMind Control's count "
    "from the random policy's mean, and the best must be above it by more than the standard deviation of its episodes. "
    "Of seeds that never change but have episodes of 0 or 1,000 by chance, 3 to 9 % still seem to have lost a fifth."
)


def curves_section(material: Material) -> Section:
    """Return the learning curves: a chart for each task, with every arm and every seed."""
    charts = [curve_chart(material, task) for task in material.results.tasks]
    text = ("Mean return of the episodes that end in each 10,000 steps (a hundredth of a shorter run): the mean over "
            "seeds, its interval, and every seed faintly. Unfinished seeds are shown as far as they are.",)  # fmt: skip
    return Section("curves", "Learning curves", text, tuple(chart for chart in charts if chart.lines))


def curve_chart(material: Material, task: str) -> Chart:
    """Return the learning curves of one task."""
    results = material.results
    lines = []
    for arm in dict.fromkeys(row.arm for row in results.seeds if row.task == task):
        steps, returns = results.curves(task, arm, POINTS)
        if not len(steps):
            continue
        mean, low, high = bands(returns, bounds_of([task]))
        lines.append(Line(arm, steps, mean, low, high, returns, material.tags(arm, task)))
    widths = sorted({int(line.x[0] * 2) for line in lines})
    note = "Student's interval of 95 % over the seeds at each point." + (
        f" Points are means over {listed([f'{width:,}' for width in widths])} steps." if widths else ""
    )
    return Chart(slug(f"curve-{task}"), task, note, "steps", "return", tuple(lines), tags=material.tags(task=task))


def bands(returns: np.ndarray, bounds: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over seeds at each point and the ends of Student's interval, of the seeds that have it."""
    known = np.isfinite(returns)
    count = known.sum(axis=0)
    mean = np.where(count > 0, np.where(known, returns, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    squares = np.where(known, (returns - mean) ** 2, 0.0).sum(axis=0)
    spread = np.sqrt(squares / np.maximum(count - 1, 1))
    reach = np.array([analysis.reach_of(int(seeds)) for seeds in count]) * spread
    return mean, np.maximum(mean - reach, bounds[0]), np.minimum(mean + reach, bounds[1])


def lost_section(material: Material) -> Section:
    """Return how many seeds of each arm lost what they had learned, and which."""
    runs = material.results.runs
    scales = {task: analysis.scale_of(task, material.random.get(task)) for task in material.results.tasks}
    every = [
        (row, analysis.retention_at(runs[row.run].curve[row.place], row.steps, scales[row.task], runs[row.run].bin))
        for row in material.results.seeds if row.state == FINISHED
    ]  # fmt: skip
    judged_rows = [(row, one) for row, one in every if not one.why_not]
    rows: list[Cells] = []
    for arm in material.results.arms:
        mine = [one for row, one in judged_rows if row.arm == arm]
        if mine:
            learned, fifth, half = (sum(getattr(one, name) for one in mine)
                                    for name in ("learned", "lost_fifth", "lost_half"))  # fmt: skip
            share = 100.0 * fifth / learned if learned else None
            rows.append((arm, len(mine), learned, fifth, half, share))
    lost = [
        (row.task, row.arm, row.seed, one.best.mean, one.last.mean, one.retained(one.last))
        for row, one in judged_rows if one.lost_fifth
    ]  # fmt: skip
    columns = ("arm", "seeds", "learned", "below 80 %", "below 50 %", "below 80 %, % of learned")
    tables = [
        Table("lost", "Seeds that lost what they had learned", LOST, columns, tuple(rows),
              tuple(material.tags(str(row[0])) for row in rows)),
        Table("lost-seeds", "Each of these seeds", LOST, ("task", "arm", "seed", "best", "last", "last, % of best"),
              tuple(lost), tuple(material.tags(row[1], row[0]) for row in lost)),
    ]  # fmt: skip
    judged = f"{plural(len(lost), 'seed')} of {len(judged_rows):,} that can be judged lost what they had learned."
    text = [judged] if judged_rows else []
    text += [
        f"Not judged: {plural(number, 'seed')}, as {why}."
        for why, number in Counter(one.why_not for _, one in every if one.why_not).items()
    ]
    return Section("lost", "Learned and lost", tuple(text), tuple(tables if lost else tables[:1] if rows else []))
