"""What single seeds did: learning curves, and what was learned and lost again."""

from __future__ import annotations

import numpy as np

from gpi.report.blocks import Chart, Line, Section, Table
from gpi.rundir.course import course_at
from gpi.student import reach_of
from gpi.study.frame import FINISHED
from gpi.study.sections.words import Material, bounds_of, slug
from gpi.training.progress import plural

POINTS = 100
LOST = (
    "A seed has lost what it had learned if the mean return of its last 200,000 steps is below 80 % (or 50 %) of that "
    "of its best 50,000 steps, by more than three standard errors of the two; and the best was above 100. Of seeds "
    "that never change but have episodes of 0 or 1,000 by chance, 3 to 9 % still seem to have lost a fifth."
)
Row = tuple[str | int | float | None, ...]

# --- learning curves ------------------------------------------------------------------------------------------------


def curves_section(material: Material) -> Section:
    """Return the learning curves: a chart for each task, with every arm and every seed."""
    charts = [curve_chart(material, task) for task in material.results.tasks]
    text = ("Mean return of the episodes that end in each 10,000 steps: the mean over seeds, its interval, and every "
            "seed faintly. Unfinished seeds are shown as far as they are.",)  # fmt: skip
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
    width = max((len(line.x) for line in lines), default=0)
    note = "Student's interval of 95 % over the seeds at each point." + (
        f" Points are means over {int(lines[0].x[0] * 2):,} steps." if width else ""
    )
    return Chart(slug(f"curve-{task}"), task, note, "steps", "return", tuple(lines), tags=material.tags(task=task))


def bands(returns: np.ndarray, bounds: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over seeds at each point and the ends of Student's interval, of the seeds that have it."""
    known = np.isfinite(returns)
    count = known.sum(axis=0)
    mean = np.where(count > 0, np.where(known, returns, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    squares = np.where(known, (returns - mean) ** 2, 0.0).sum(axis=0)
    spread = np.sqrt(squares / np.maximum(count - 1, 1))
    reach = np.array([reach_of(int(seeds)) for seeds in count]) * spread
    return mean, np.maximum(mean - reach, bounds[0]), np.minimum(mean + reach, bounds[1])


# --- learned and lost -----------------------------------------------------------------------------------------------


def lost_section(material: Material) -> Section:
    """Return how many seeds of each arm lost what they had learned, and which."""
    runs = material.results.runs
    courses = [
        (row, course_at(runs[row.run].curve[row.place], row.steps))
        for row in material.results.seeds if row.state == FINISHED
    ]  # fmt: skip
    rows: list[Row] = []
    for arm in material.results.arms:
        mine = [one for row, one in courses if row.arm == arm]
        if mine:
            learned, fifth, half = (sum(getattr(one, name) for one in mine)
                                    for name in ("learned", "lost_fifth", "lost_half"))  # fmt: skip
            share = 100.0 * fifth / learned if learned else None
            rows.append((arm, len(mine), learned, fifth, half, share))
    lost = [
        (row.task, row.arm, row.seed, one.best.mean, one.last.mean, 100.0 * one.last.mean / one.best.mean)
        for row, one in courses if one.lost_fifth
    ]  # fmt: skip
    columns = ("arm", "seeds", "learned", "below 80 %", "below 50 %", "below 80 %, % of learned")
    tables = [
        Table("lost", "Seeds that lost what they had learned", LOST, columns, tuple(rows),
              tuple(material.tags(str(row[0])) for row in rows)),
        Table("lost-seeds", "Each of these seeds", LOST, ("task", "arm", "seed", "best", "last", "last, % of best"),
              tuple(lost), tuple(material.tags(row[1], row[0]) for row in lost)),
    ]  # fmt: skip
    text = f"{plural(len(lost), 'seed')} of {len(courses):,} lost what they had learned."
    return Section("lost", "Learned and lost", (text,), tuple(tables if lost else tables[:1]))
