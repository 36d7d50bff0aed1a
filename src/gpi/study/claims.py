"""The paper's claims, and the rule that decides each of them, committed before it was first applied to a result.

**The rule.** A claim is a quantity and a bar: that the quantity is above the bar, or at least at it. The quantity is
computed from the means of final performance by arm and task, and its 95 % interval over seeds within tasks is
`intervals.cautious_interval`. The claim

- *holds* when the whole interval is on the claim's side of the bar,
- *does not hold* when the whole interval is on the other side,
- is *undecided* otherwise: so few seeds cannot tell,
- is *not judged: data missing* when a task or an arm that it needs is missing, or its quantity is not defined.

A claim in words ("outperform", "small", "grow") gets a bar chosen here: half of the tasks, no difference, no
correlation. Each number of the paper makes a separate claim, that there are at least as many, in shares of the tasks
where learning occurs: 19 of 21 is a share of 90 %. Hence a study that repeats such a number exactly is undecided about
it.

**Readings.** The paper's own data are its 28 tasks and the best of kappa 0, 0.5 and 1 on each; only with all of these
is a claim judged as the paper's. Beside that, the same rule is applied to kappa = 1 alone, where nothing is chosen by
its outcome, and, where data are missing, to the available data of at least ten tasks. These are other experiments than
the paper's, and marked so. All need 5 seeds of 1,000,000 steps.

Some twenty verdicts at 95 % each: one wrong one among them would be no surprise.

**Over tasks.** The rule takes the tasks as fixed. Beside its verdict, and changing none, stand two things about tasks
(`over_tasks`, `hangs_by_one_task`): what the same rule says of an interval over tasks, as if they were drawn at random
from others like them, and whether one task on the other side would have changed the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gpi import analysis
from gpi.envs import dmc
from gpi.study.comparison import Comparison, Finals, Sides, mean_over, sides_of
from gpi.study.intervals import WHOLE, Statistic, Strata, cautious_interval
from gpi.study.statistics import exact_share, sign_test

HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold", "undecided", "not judged: data missing"
PAIRS = {"PPO": ("ppo", "geppo"), "TRPO": ("trpo", "getrpo"), "VMPO": ("vmpo", "gevmpo")}
BEST = "Best"
KAPPAS = ("0", "0.5", "1")
SEEDS, STEPS = 5, 1_000_000
"""The fewest seeds, and the steps, of a result that counts for a claim; the caller leaves out runs of other lengths."""
FEWEST_TASKS = 10  # of a reading of other data than the paper's
SPARSE = 0.99
SLACK = 1e-9


# Quantities are NaN where they are not defined.


def share(counted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return how large a share of some tasks another set of tasks is."""
    number = among.sum(axis=-1)
    return np.where(number > 0, (counted & among).sum(axis=-1) / np.maximum(number, 1), np.nan)


def ahead_by(percent: float, sides: Sides) -> np.ndarray:
    """Return the share of tasks where learning occurs and the generalized side leads by more than `percent` %."""
    return share(sides.gain > percent / 100.0 * np.maximum(sides.on_policy, 0.0), sides.learned)


def learning_share(sides: Sides) -> np.ndarray:
    """Return the share of all tasks where learning occurs."""
    return sides.learned.mean(axis=-1)


def lead(sides: Sides) -> np.ndarray:
    """Return the generalized side's mean lead where it is ahead, less the on-policy side's mean lead where that is."""
    leads = [mean_over(sign * sides.gain, sides.learned & (sign * sides.gain > 0.0)) for sign in (1.0, -1.0)]
    led = np.where(sides.learned.any(axis=-1), 0.0, np.nan)
    return led + np.nan_to_num(leads[0]) - np.nan_to_num(leads[1])


def concordance(sides: Sides) -> np.ndarray:
    """Return Kendall's rank correlation of sparsity and gain, over pairs of tasks that differ in sparsity."""
    order = np.sign(sides.sparsity[..., :, None] - sides.sparsity[..., None, :])
    pairs = sides.learned[..., :, None] & sides.learned[..., None, :] & (order != 0.0)
    signs = np.sign(sides.gain[..., :, None] - sides.gain[..., None, :]) * order
    return mean_over(signs.reshape(*signs.shape[:-2], -1), pairs.reshape(*pairs.shape[:-2], -1))


def beyond_double(sides: Sides) -> np.ndarray:
    """Return the mean gain over the sparsest tasks less twice that over all, or less 0 if that is below 0."""
    overall = mean_over(sides.gain, sides.learned)
    return mean_over(sides.gain, sides.learned & (sides.sparsity >= SPARSE)) - 2.0 * np.maximum(overall, 0.0)


def sparse_among_largest(number: int, relative: bool, sides: Sides) -> np.ndarray:
    """Return how many of the tasks with the largest gains are among the sparsest; gains over nothing are infinite."""
    floor = np.where(sides.on_policy > 0.0, sides.on_policy, np.nan)
    percent = np.where(np.isnan(floor), np.copysign(np.inf, sides.gain), sides.gain / floor)
    size = np.where(sides.learned, percent if relative else sides.gain, -np.inf)
    first = np.argsort(-size, axis=-1, kind="stable")[..., :number]
    found = np.take_along_axis(np.broadcast_to(sides.sparsity >= SPARSE, size.shape), first, axis=-1).sum(axis=-1)
    return np.where(sides.learned.sum(axis=-1) >= number, found, np.nan)


class Claim(NamedTuple):
    """A claim: the paper's words and number, and the quantity that must be above, or at least at, the bar."""

    name: str
    column: str
    """The arms that it is about: a column of Table I."""
    words: str
    paper: str
    judged: str
    quantity: Callable[[Sides], np.ndarray]
    bar: float
    strict: bool = False
    """Whether the quantity must be above the bar, not just at it."""
    bounds: tuple[float, float] = WHOLE
    whole: bool = False
    """Whether it makes sense with all 28 tasks only."""
    scale: str = "share"
    """What the quantity is: a share of tasks, a return, a number of tasks or a correlation."""


def of_column(column: str, ahead: int, learned: int) -> list[Claim]:
    """Return the two claims of a column of Table I: that generalized outperforms, and in how many tasks."""
    against = "the best GPI against the best on-policy algorithm" if column == BEST else " against ".join(
        reversed(PAIRS[column])
    )  # fmt: skip
    number, quantity = f"{ahead} of {learned} tasks where learning occurs", partial(ahead_by, 0.0)
    where = "share of the tasks where learning occurs in which the generalized side is higher"
    return [
        Claim(f"{column}-outperforms", column, f"Generalized outperforms on-policy: {against}", number,
              f"{where}, above one half", quantity, 0.5, True, (0.0, 1.0)),
        Claim(f"{column}-number", column, f"In as many tasks as the paper says: {against}", number,
              f"{where}, at least {ahead}/{learned}", quantity, ahead / learned, False, (0.0, 1.0)),
    ]  # fmt: skip


def of_gains() -> list[Claim]:
    """Return the claims about how large the gains are, and on how many tasks anything is learned."""
    over = "share of the tasks where learning occurs with a gain of more than {} of the on-policy side, at least {}"
    return [
        Claim("gain-50", BEST, "An improvement of more than 50 %", "4 of 21 tasks", over.format("50 %", "4/21"),
              partial(ahead_by, 50.0), 4 / 21, False, (0.0, 1.0)),
        Claim("gain-10", BEST, "An improvement of more than 10 %", "13 of 21 tasks", over.format("10 %", "13/21"),
              partial(ahead_by, 10.0), 13 / 21, False, (0.0, 1.0)),
        Claim("small-losses", BEST, "Where on-policy outperforms the difference is small, elsewhere often significant",
              "none", "mean lead of the generalized side where it is ahead less that of the on-policy side where "
              "that is, above 0", lead, 0.0, True, scale="return"),
        Claim("learning", BEST, "Learning occurs", "21 of 28 tasks", "share of the 28 tasks where learning occurs, at "
              "least 21/28", learning_share, 21 / 28, False, (0.0, 1.0), whole=True),
    ]  # fmt: skip


def of_sparsity() -> list[Claim]:
    """Return the claims about tasks with sparse rewards."""
    return [
        Claim("sparsity", BEST, "The sparser the reward, the larger the benefit", "none",
              "Kendall's correlation of sparsity and gain over the tasks where learning occurs, above 0",
              concordance, 0.0, True, (-1.0, 1.0), scale="correlation"),
        Claim("sparse-double", BEST, "On tasks with a sparsity of 99 % or more the average gain more than doubles",
              "more than 2 times", "mean gain over these tasks less twice the mean gain over all (or less 0, if that "
              "is negative), above 0", beyond_double, 0.0, True, scale="return"),
        Claim("sparse-largest-3", BEST, "These tasks include the 3 with the largest total gain", "3 of 3",
              "number of the 3 that have a sparsity of 99 % or more, at least 3",
              partial(sparse_among_largest, 3, False), 3.0, False, (0.0, 3.0), scale="tasks"),
        Claim("sparse-largest-4", BEST, "These tasks include the 4 with the largest percentage gain", "4 of 4",
              "number of the 4 that have a sparsity of 99 % or more, at least 4",
              partial(sparse_among_largest, 4, True), 4.0, False, (0.0, 4.0), scale="tasks"),
    ]  # fmt: skip


TABLE_1 = {"PPO": (3, 18, 7), "TRPO": (1, 19, 8), "VMPO": (3, 17, 8), BEST: (2, 19, 7)}
"""Table I of the paper: tasks where on-policy outperforms, where generalized does, and where nothing is learned."""
CLAIMS: tuple[Claim, ...] = (
    *(claim for column in (BEST, *PAIRS) for claim in of_column(
        column, TABLE_1[column][1], TABLE_1[column][0] + TABLE_1[column][1]
    )),
    *of_gains(), *of_sparsity(),
)  # fmt: skip


def verdict(low: float, high: float, bar: float, strict: bool) -> str:
    """Return what an interval says about a claim: the rule at the head of this module."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return MISSING
    if low > bar + SLACK or (not strict and low >= bar - SLACK):
        return HOLDS
    if high < bar - SLACK or (strict and high <= bar + SLACK):
        return FAILS
    return UNDECIDED


class Reading(NamedTuple):
    """A choice of data: the paper's own, or another that is marked so."""

    name: str
    of_paper: bool
    columns: dict[str, Comparison]
    kappas: tuple[str, ...] = KAPPAS


def readings_of(finals: Finals, random: Mapping[str, analysis.RandomPolicy]) -> list[Reading]:
    """Return the readings of some results: the paper's, its available part if data are missing, and kappa = 1."""
    enough = {
        arm: {task for task, seeds in tasks.items() if task in random and len(seeds) >= SEEDS}
        for arm, tasks in finals.items()
    }
    found = [Reading("the paper's: 28 tasks, best of kappa 0, 0.5 and 1", True, columns_of(enough, KAPPAS, True))]
    there = tuple(kappa for kappa in KAPPAS if len(columns_of(enough, (kappa,), False)[BEST].tasks) >= FEWEST_TASKS)
    if len(there) > 1 and any(column.missing for column in found[0].columns.values()):
        columns = columns_of(enough, there, False)
        name = f"not the paper's: {counted(columns)}, best of kappa {' and '.join(there)}"
        found.append(Reading(name, False, columns, there))
    columns = columns_of(enough, ("1",), False)
    return [*found, Reading(f"not the paper's: {counted(columns)}, kappa = 1 only", False, columns, ("1",))]


def counted(columns: Mapping[str, Comparison]) -> str:
    """Say how many tasks a reading has."""
    numbers = sorted({len(column.tasks) for column in columns.values() if not column.missing})
    return f"{' to '.join(map(str, numbers[:1] + numbers[1:][-1:]))} tasks" if numbers else "too few tasks"


def columns_of(enough: Mapping[str, set[str]], kappas: Sequence[str], whole: bool) -> dict[str, Comparison]:
    """Return the columns of Table I with these kappas: on all 28 tasks, or on those that have every arm."""
    columns = {}
    for name in (*PAIRS, BEST):
        pairs = list(PAIRS.values()) if name == BEST else [PAIRS[name]]
        on_policy = tuple(pair[0] for pair in pairs)
        generalized = tuple(f"{pair[1]}-kappa{kappa}" for pair in pairs for kappa in kappas)
        sets = [enough.get(arm, set()) for arm in (*on_policy, *generalized)]
        tasks = tuple(task for task in dmc.TASKS if all(task in one for one in sets))
        fewest = len(dmc.TASKS) if whole else FEWEST_TASKS
        missing = "" if len(tasks) >= fewest else lacking(enough, (*on_policy, *generalized), tasks, fewest)
        columns[name] = Comparison(on_policy, generalized, tasks, missing)
    return columns


def lacking(enough: Mapping[str, set[str]], arms: Sequence[str], tasks: Sequence[str], fewest: int) -> str:
    """Return the data that a column lacks, as text: whole kappas or arms, and tasks."""
    absent = [arm for arm in arms if not enough.get(arm)]
    whole = [kappa for kappa in KAPPAS if any(arm.endswith(f"-kappa{kappa}") for arm in arms)
             and all(arm in absent for arm in arms if arm.endswith(f"-kappa{kappa}"))]  # fmt: skip
    single = [arm for arm in absent if not arm.endswith(tuple(f"-kappa{kappa}" for kappa in whole))]
    words = [f"no {name}" for name in (*(f"kappa {kappa}" for kappa in whole), *single)]
    rest = [arm for arm in arms if arm not in absent]
    common = [task for task in dmc.TASKS if all(task in enough[arm] for arm in rest)] if rest else []
    if rest and len(common) < fewest:
        words.append(f"{len(common)} of {fewest} tasks have {SEEDS} seeds of {STEPS:,} steps")
    return ", ".join(words) or f"{len(tasks)} of {fewest} tasks have every arm"


class OverTasks(NamedTuple):
    """What a claim's quantity comes to if the tasks are a sample of others like them."""

    low: float
    high: float
    verdict: str
    p: float
    """Of the sign test; NaN where the bar is not one half of the tasks."""


class Judgement(NamedTuple):
    """A claim and what the data of a reading say: its quantity, the interval, the verdict."""

    claim: Claim
    reading: Reading
    estimate: float
    low: float
    high: float
    verdict: str
    missing: str = ""
    tasks: int = 0
    """With a share: the number of tasks that it is a share of."""
    over_tasks: OverTasks | None = None
    """None for a claim about certain tasks, or about all 28."""
    hangs_by_one_task: bool = False
    """With a share: the verdict would be another if one task changed sides."""


def quantities(column: Comparison, claims: Sequence[Claim], random: Mapping[str, analysis.RandomPolicy]) -> Statistic:
    """Return the function that computes the quantities `[..., claims]` of a column from the seeds of its arms."""

    def statistic(strata: Strata) -> np.ndarray:
        sides = sides_of(column, strata, random)
        return np.stack([claim.quantity(sides) for claim in claims], axis=-1)

    return statistic


def judge(finals: Finals, random: Mapping[str, analysis.RandomPolicy], reading: Reading) -> list[Judgement]:
    """Return every claim with its verdict in one reading, in the order of `CLAIMS`."""
    found = {}
    for name, column in reading.columns.items():
        claims = [claim for claim in CLAIMS if claim.column == name]
        found |= {one.claim.name: one for one in judge_column(finals, random, reading, column, claims)}
    return [found[claim.name] for claim in CLAIMS]


def judge_column(
    finals: Finals,
    random: Mapping[str, analysis.RandomPolicy],
    reading: Reading,
    column: Comparison,
    claims: Sequence[Claim],
) -> list[Judgement]:
    """Return the claims about one column, judged together: they share their resamples."""
    nothing = partial(Judgement, reading=reading, estimate=np.nan, low=np.nan, high=np.nan, verdict=MISSING)
    if column.missing:
        return [nothing(claim, missing=column.missing) for claim in claims]
    strata = column.strata(finals)
    interval = cautious_interval(quantities(column, claims, random), strata)
    sides = sides_of(column, strata, random)
    learned = int(sides.learned.sum())
    rows = []
    for claim, estimate, low, high in zip(claims, *(map(float, x) for x in interval), strict=True):
        if claim.whole and not reading.of_paper:
            rows.append(nothing(claim, missing="it is about all 28 tasks"))
            continue
        low, high = max(low, claim.bounds[0]), min(high, claim.bounds[1])  # NaN stays: max returns its first argument
        said = verdict(low, high, claim.bar, claim.strict)
        why = "too few tasks where learning occurs" if said == MISSING else ""
        tasks = (len(column.tasks) if claim.whole else learned) if claim.scale == "share" else 0
        over = None if said == MISSING else over_tasks(claim, sides)
        hangs = tasks > 0 and said != MISSING and hangs_by_one_task(claim, low, high, tasks)
        rows.append(Judgement(claim, reading, estimate, low, high, said, why, tasks, over, hangs))
    return rows


def over_tasks(claim: Claim, sides: Sides) -> OverTasks | None:
    """Return what a claim comes to over tasks, if it is about tasks such as those where learning occurs.

    A share has Clopper and Pearson's interval. Others have the jackknife's, which leaves out each task in turn: for a
    mean it is Student's. Seeds are as they are: their errors are part of how tasks differ.
    """
    places = np.flatnonzero(sides.learned)
    n, p = len(places), np.nan
    if claim.whole or claim.scale == "tasks" or n < 2:
        return None
    estimate = float(claim.quantity(sides.at(places)))
    if claim.scale == "share":
        k = round(estimate * n)
        low, high = exact_share(k, n)
        p = sign_test(k, n) if claim.bar == 0.5 else np.nan
    else:
        without = claim.quantity(sides.at(np.array([np.delete(places, i) for i in range(n)])))
        reach = float(analysis.t_quantile((1.0 + analysis.LEVEL) / 2, n - 1.0)) * float(
            np.sqrt((n - 1) * without.var())
        )
        low, high = max(estimate - reach, claim.bounds[0]), min(estimate + reach, claim.bounds[1])
    return OverTasks(low, high, verdict(low, high, claim.bar, claim.strict), p)


def hangs_by_one_task(claim: Claim, low: float, high: float, tasks: int) -> bool:
    """Return whether a share's verdict would be another if its interval lay one task higher or lower."""
    said = verdict(low, high, claim.bar, claim.strict)
    return any(verdict(low + x, high + x, claim.bar, claim.strict) != said for x in (-1.0 / tasks, 1.0 / tasks))
