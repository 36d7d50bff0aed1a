"""The section of the paper's claims: its numbers, ours, and the verdicts of the rule in `claims.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpi.study.claims import (
    FAILS,
    HOLDS,
    KAPPAS,
    MISSING,
    PAIRS,
    STEPS,
    UNDECIDED,
    Judgement,
    Reading,
    judge,
    readings_of,
)
from gpi.study.frame import FINISHED
from gpi.study.report.blocks import Section, Table, Tags, Verdict
from gpi.study.sections.words import FINAL, NO_LEARNING, Material, slug
from gpi.study.theory_claims import theory_claims
from gpi.terminal import plural

COLUMNS = ("claim", "paper", "ours", "95 % interval", "verdict", "over tasks", "judged by")
PAPER_ARMS = {name for one, other in PAIRS.values() for name in (one, *(f"{other}-kappa{kappa}" for kappa in KAPPAS))}
NOT_REACHED = "not reached at kappa = {}"
HANGS = "hangs by one task"
RULE = (
    "The rule, written down before it was applied to any result: each claim is a quantity and a bar. It holds when the "
    "whole 95 % interval of the quantity is on the claim's side of the bar, does not hold when all of it is on the "
    "other side, and is undecided otherwise. It is not judged where a task or an arm that it needs is missing. "
    "A claim in words gets a bar chosen here, such as half of the tasks; each number of the paper makes a separate "
    "claim, that there are at least as many, so that a study that repeats the number exactly is undecided about it.",
    "Only all 28 tasks with kappa 0, 0.5 and 1 are the paper's own data. Kappa = 1 alone, and the available data while "
    "tasks are missing, are other experiments: the same rule is applied to them beside, and they are marked so. The "
    "paper takes the best of three kappas: what kappa = 1 alone does not reach is called so, and is not refuted.",
    "These intervals are over seeds: the tasks are taken as fixed, and a verdict is about these tasks. Over tasks says "
    "what the rule makes of them as a sample: an exact interval of a share, with the sign test where the bar is one "
    "half, and else an interval that leaves out each task in turn. It changes no verdict. A verdict hangs by one task "
    "if it would be another, were its interval one task higher or lower.",
)


def claims_section(material: Material) -> Section | None:
    """Return the claims, judged on the paper's data and on what there is; None where no arm is one of the paper's."""
    finals = paper_finals(material)
    if not finals:
        return None
    readings = [(reading, judge(finals, material.random, reading)) for reading in readings_of(finals, material.random)]
    text = [*RULE, *(f"{reading.name[:1].upper()}{reading.name[1:]}: {summary(said)}." for reading, said in readings)]
    tables = [claims_table(reading, said) for reading, said in readings
              if reading.of_paper or any(one.verdict != MISSING for one in said)]  # fmt: skip
    return Section("claims", "The paper's claims", tuple(text), (*tables, theory_table()))


def paper_finals(material: Material) -> dict[str, dict[str, np.ndarray]]:
    """Return final performance of the paper's own arms: its settings, and runs of a million steps."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in material.results.seeds:
        arm = row.algorithm + (f"-kappa{row.kappa}" if row.kappa else "")
        if row.state == FINISHED and row.goal == STEPS and row.arm.removesuffix(f"-steps{STEPS}") == arm:
            found.setdefault(arm, {}).setdefault(row.task, []).append(row.final)
    return {arm: {task: np.array(x) for task, x in tasks.items()} for arm, tasks in found.items() if arm in PAPER_ARMS}


def summary(said: Sequence[Judgement]) -> str:
    """Say how many claims got each verdict."""
    counts = Counter(worded(one) for one in said)
    order = (HOLDS, FAILS, *(NOT_REACHED.format(kappa) for kappa in KAPPAS), UNDECIDED, MISSING)
    return "; ".join(f"{verdict.partition(':')[0]}: {counts[verdict]}" for verdict in order if counts[verdict])


def worded(one: Judgement) -> str:
    """Return the verdict in words: what a single kappa does not reach, the best of three may."""
    kappas = one.reading.kappas
    return NOT_REACHED.format(*kappas) if one.verdict == FAILS and len(kappas) == 1 else one.verdict


def said_of(one: Judgement) -> str:
    """Return the cell of a verdict; that a single kappa does not reach a claim is none."""
    text = worded(one) + (f"; {HANGS}" if one.hangs_by_one_task else "")
    return Verdict(one.verdict, text) if worded(one) == one.verdict else text


def claims_table(reading: Reading, said: Sequence[Judgement]) -> Table:
    """Return the table of the claims in one reading."""
    why = any(one.missing for one in said)
    rows = [
        (one.claim.words, one.claim.paper, ours(one), between(one, one.low, one.high),
         said_of(one), over_tasks(one), one.claim.judged,
         *([one.missing] if why else []))
        for one in said
    ]  # fmt: skip
    name = "claims" if reading.of_paper else slug(f"claims {reading.name.split(': ', 1)[-1]}")
    title = f"Claims, {reading.name}"
    return Table(
        name,
        title,
        f"{FINAL} {NO_LEARNING}",
        (*COLUMNS, *(["missing"] if why else [])),
        tuple(rows),
        (Tags(),) * len(rows),
    )


def ours(one: Judgement) -> str | None:
    """Return our value of a claim's quantity as text; None if there is none."""
    if not np.isfinite(one.estimate):
        return None
    if one.claim.scale == "share":
        return f"{round(one.estimate * one.tasks)} of {plural(one.tasks, 'task')} ({100 * one.estimate:.0f} %)"
    if one.claim.scale == "tasks":
        return f"{one.estimate:.0f} of {one.claim.bounds[1]:.0f}"
    return f"{one.estimate:.2f}" if one.claim.scale == "correlation" else f"{one.estimate:.1f} of return"


def between(one: Judgement, low: float, high: float) -> str | None:
    """Return an interval of a claim's quantity as text."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return None
    if one.claim.scale == "share":
        return f"{100 * low:.0f} to {100 * high:.0f} %"
    digits = 2 if one.claim.scale == "correlation" else 1
    return f"{low:.{digits}f} to {high:.{digits}f}"


def over_tasks(one: Judgement) -> str | None:
    """Return a claim's cell over tasks: the verdict, the interval and the sign test; None without a verdict."""
    over = one.over_tasks
    if over is None or over.verdict == MISSING:
        return None
    test = f", p = {over.p:.2g}" if np.isfinite(over.p) else ""
    return Verdict(over.verdict, f"{over.verdict}: {between(one, over.low, over.high)}{test}")


def theory_table() -> Table:
    """Return the claims of theory, which are computed and need no result."""
    rows = tuple((one.words, one.paper, one.ours, Verdict(one.verdict), one.judged) for one in theory_claims())
    note = "Computed from the closed form of Theorem 4; tested against a convex solver."
    return Table("claims-theory", "Claims of theory (Theorem 4, figure 1)", note,
                 ("claim", "paper", "ours", "verdict", "judged by"), rows, (Tags(),) * len(rows))  # fmt: skip
