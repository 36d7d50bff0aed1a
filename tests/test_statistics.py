"""Statistics of a study, each against an independent implementation: loops, or scipy."""

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
from made_up_studies import CASES, NAMES, TABLE, coverage
from scipy import stats

from gpi.analysis.random_policy import RandomPolicy, scale_of
from gpi.analysis.retention import Retention, Scale, bin_of, curve_of, retention_at, window
from gpi.analysis.retention import retention as retention_of
from gpi.analysis.student_t import t_quantile
from gpi.errors import UsageError
from gpi.study import intervals, statistics
from gpi.study.comparison import Comparison, Finals, Gain, Sides, classes_of, gains, margin, sides_of
from gpi.study.intervals import Scores, Strata, cautious_interval, interval, strata_of
from gpi.study.statistics import (
    AGGREGATES,
    aggregate,
    aggregate_difference,
    benjamini_hochberg,
    difference,
    differences,
    exact_share,
    mean,
    performance_profile,
    permutation_p,
    probability_of_improvement,
    sign_test,
    smallest_p,
)


def some(tasks: int = 7, seeds: int = 5, seed: int = 0, shift: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    means = rng.uniform(0, 1000, tasks) + shift
    return {f"task-{i}": rng.normal(means[i], 80, seeds) for i in range(tasks)}


# --- aggregates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "seeds"), [(1, 1), (1, 5), (2, 3), (7, 5), (23, 5), (28, 4)])
def test_aggregates_are_what_loops_and_scipy_say(tasks: int, seeds: int):
    scores = some(tasks, seeds, seed=tasks)
    by_task = [sum(x) / len(x) for x in (list(map(float, values)) for values in scores.values())]
    runs = [float(x) for values in scores.values() for x in values]
    assert float(aggregate("mean", scores).estimate) == pytest.approx(sum(by_task) / tasks)
    ordered = sorted(by_task)
    assert float(aggregate("median", scores).estimate) == pytest.approx(
        (ordered[(tasks - 1) // 2] + ordered[tasks // 2]) / 2
    )
    assert float(aggregate("iqm", scores).estimate) == pytest.approx(stats.trim_mean(runs, 0.25))
    short = [1 - min(x / 1000, 1) for x in runs]
    assert float(aggregate("optimality gap", scores).estimate) == pytest.approx(sum(short) / len(short))


def test_the_profile_is_the_share_of_runs_above():
    scores, taus = some(4, 3), np.array([-1e9, 200.0, 400.0, 1e9])
    runs = [float(x) for values in scores.values() for x in values]
    expected = [sum(x > tau for x in runs) / len(runs) for tau in taus]
    found = performance_profile(scores, taus)
    assert found.estimate.tolist() == pytest.approx(expected) and found.low.shape == (4,)
    assert (found.low >= 0).all() and (found.high <= 1).all() and found.estimate[[0, -1]].tolist() == [1.0, 0.0]
    assert performance_profile({"a": np.array([1.0, 2.0])}, np.array([1.0])).estimate.tolist() == [0.5], (
        "strictly above"
    )


def test_the_probability_of_improvement_is_mann_whitneys_u_over_pairs():
    x, y = some(6, 5), {name: np.round(z, -2) for name, z in some(6, 4, seed=0, shift=30).items()}
    x = {name: np.round(z, -2) for name, z in x.items()}
    u = [np.asarray(stats.mannwhitneyu(x[name], y[name]))[0] / (5 * 4) for name in x]
    found = probability_of_improvement(x, y)
    assert float(found.estimate) == pytest.approx(np.mean(u))
    assert any(set(x[name]) & set(y[name]) for name in x), "there are ties"
    backwards = probability_of_improvement(y, {name: x[name] for name in reversed(x)})
    assert float(backwards.estimate) == pytest.approx(1 - float(found.estimate))


@pytest.mark.parametrize("name", AGGREGATES)
def test_the_order_of_seeds_and_tasks_and_the_container_do_not_matter(name: str):
    scores = some()
    turned = {task: scores[task][::-1] for task in reversed(scores)}
    same: list[Scores] = [turned, list(scores.values()), np.stack(list(scores.values()))]
    one = aggregate(name, scores)
    for other in (aggregate(name, x) for x in same):
        assert float(other.estimate) == pytest.approx(float(one.estimate))
        assert float(other.high - other.low) == pytest.approx(float(one.high - one.low), rel=0.15), (
            "chance of resampling"
        )


# --- intervals ----------------------------------------------------------------------------------------------------


def test_students_quantiles_are_those_of_the_tables():
    assert t_quantile(0.975, np.array([1.0, 4.0, 9.0])).tolist() == pytest.approx([12.706205, 2.776445, 2.262157])
    assert float(t_quantile(0.025, 1e9)) == pytest.approx(-1.959966)
    with pytest.raises(UsageError, match="between 0 and 1"):
        t_quantile(1.0, 4)


@pytest.mark.parametrize("seeds", [2, 5, 10])
def test_of_one_task_the_interval_of_the_mean_is_students(seeds: int):
    [x] = some(1, seeds).values()
    found = interval(mean, [x], resamples=40_000)
    low, high = stats.t.interval(0.95, seeds - 1, x.mean(), stats.sem(x))
    assert [float(found.low), float(found.high)] == pytest.approx([low, high], abs=0.02 * (high - low))


def test_of_many_tasks_the_interval_of_the_mean_is_welch_and_satterthwaites():
    rng = np.random.default_rng(3)
    strata = [rng.normal(0, spread, seeds) for spread, seeds in ((1, 5), (30, 3), (4, 8), (10, 5))]
    errors = [x.var(ddof=1) / len(x) / 16 for x in strata]
    freedom = sum(errors) ** 2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, strata, strict=True))
    reach = stats.t.ppf(0.975, freedom) * math.sqrt(sum(errors))
    found = interval(mean, strata, resamples=40_000)
    assert float(found.high - found.low) == pytest.approx(2 * reach, rel=0.03)


def test_what_jumps_has_the_wider_of_two_intervals():
    strata = [np.array([-3.0, 1.0, 3.0 + i]) for i in range(8)] + [np.array([5.0, 5.5, 9.0, 7.0])]

    def ahead(several: Strata) -> np.ndarray:
        return np.stack([np.mean([x.mean(axis=-1) > 0.0 for x in several], axis=0), mean(several)], axis=-1)

    found, plain = cautious_interval(ahead, strata, resamples=500, seed=3), interval(ahead, strata, 0.95, 500, 3)
    rng, means = np.random.default_rng(3), []
    for x in strata:
        draws = [[x[i] - x.mean() for i in row] for row in rng.integers(0, len(x), (500, len(x)))]
        means.append([x.mean() + np.sqrt(len(x) / (len(x) - 1)) * np.mean(row) for row in draws])
    values = np.array([[np.mean([x > 0.0 for x in row]), np.mean(row)] for row in zip(*means, strict=True)])
    ends = np.percentile(values, [2.5, 97.5], axis=0)
    np.testing.assert_allclose(found.low, np.minimum(plain.low, ends[0]))
    np.testing.assert_allclose(found.high, np.maximum(plain.high, ends[1]))
    assert ends[0][0] < plain.low[0] and plain.low[1] < ends[0][1], "each is the wider one of something"
    assert math.isnan(cautious_interval(ahead, [x[:1] for x in strata]).low[0])


def test_the_difference_of_an_aggregate_is_wider_than_either_side():
    x, y = some(), some(seed=0, shift=100)
    found = aggregate_difference("mean", y, x)
    assert float(found.estimate) == pytest.approx(float(aggregate("mean", y).estimate - aggregate("mean", x).estimate))
    assert found.high - found.low > max(a.high - a.low for a in (aggregate("mean", x), aggregate("mean", y)))


def test_one_seed_leaves_the_interval_unknown_and_equal_seeds_make_it_a_point():
    found = aggregate("iqm", {"a": np.array([3.0]), "b": np.array([1.0, 2.0])})
    assert float(found.estimate) == 2.0 and math.isnan(found.low) and math.isnan(found.high)
    assert [float(x) for x in aggregate("mean", np.full((3, 5), 7.0))] == [7.0, 7.0, 7.0]
    one_sided = performance_profile(np.full((2, 4), 7.0), np.array([5.0]))
    assert 0 < float(one_sided.low[0]) < 1 == float(one_sided.high[0]), "four seeds on one side are no certainty"
    assert float(one_sided.low[0]) == pytest.approx(1 - stats.t.ppf(0.975, 3) / (5 * 2))
    nearly = probability_of_improvement([np.array([2.0, 5, 6, 7, 8])], [np.array([0.0, 0, 0, 1, 3])])
    assert float(nearly.estimate) == pytest.approx(0.96) and float(nearly.high) == 1.0
    assert float(nearly.low) == pytest.approx(0.96 - stats.t.ppf(0.975, 4) / 6), "nor is one pair of 25"
    assert math.isnan(difference(np.array([1.0]), np.array([2.0, 3.0])).low)


@pytest.mark.parametrize(
    ("scores", "message"),
    [({}, "no scores"), ({"a": np.array([1.0, np.nan])}, "a has the scores.*finite"),
     ({"a": np.zeros(0)}, "at least one"),
     ({"a": np.zeros((2, 2))}, "one score for each seed"), ([np.array([np.inf])], "task 0")],
)  # fmt: skip
def test_what_is_no_score_is_refused_in_one_line(scores: Scores, message: str):
    for act in (lambda: strata_of(scores), lambda: aggregate("mean", scores), lambda: differences(scores, scores)):
        with pytest.raises(UsageError, match=message) as caught:
            act()
        assert "\n" not in str(caught.value)


def test_arms_with_other_tasks_are_refused():
    one = {"a": np.ones(2), "b": np.ones(2)}
    with pytest.raises(UsageError, match="only one of the two arms has b, c"):
        probability_of_improvement(one, {"a": np.ones(2), "c": np.ones(2)})
    with pytest.raises(UsageError, match="2 and 1 tasks"):
        differences(one, np.ones((1, 2)))


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    for case, repetitions in (("1 task, normal", 120), ("23 tasks, normal", 20)):
        found = coverage(CASES[case], repetitions, resamples=200)
        assert set(found) == set(NAMES) and min(found.values()) >= 0.85, found
    plain = np.random.default_rng(0).normal(size=(400, 5))
    drawn = np.random.default_rng(1).integers(0, 5, (400, 5))
    ends = [np.percentile(x[drawn].mean(axis=1), [2.5, 97.5]) for x in plain]
    assert np.mean([low <= 0 <= high for low, high in ends]) < 0.88, "what the correction is for"


def test_the_table_of_coverage_is_complete_and_at_least_93_percent_on_normal_data():
    shares = json.loads(TABLE.read_text())["intervals"]
    assert list(shares) == list(CASES) and all(list(row) == list(NAMES) for row in shares.values())
    assert min(min(row.values()) for case, row in shares.items() if "normal" in case) >= 0.93


# --- two arms -----------------------------------------------------------------------------------------------------


def by_loops(x: np.ndarray, y: np.ndarray) -> float:
    pooled, n = [*x, *y], len(x)
    gap, hits, total = abs(np.mean(x) - np.mean(y)), 0, 0
    for chosen in itertools.combinations(range(len(pooled)), n):
        rest = [v for i, v in enumerate(pooled) if i not in chosen]
        hits += abs(np.mean([pooled[i] for i in chosen]) - np.mean(rest)) >= gap - 1e-9
        total += 1
    return hits / total


@pytest.mark.parametrize(("sizes", "shift"), [((5, 5), 0), ((5, 5), 60), ((3, 5), 100), ((4, 2), 30), ((1, 1), 5)])
def test_the_permutation_test_is_exact(sizes: tuple[int, int], shift: float):
    rng = np.random.default_rng(sizes[0] + sizes[1])
    x, y = rng.normal(0, 50, sizes[0]), rng.normal(shift, 50, sizes[1])
    assert permutation_p(x, y) == by_loops(x, y) == permutation_p(y, x)
    x, y = np.round(x, -1), np.round(y, -1)  # ties
    assert permutation_p(x, y) == by_loops(x, y)
    if min(sizes) > 1:
        theirs = stats.permutation_test((x, y), lambda a, b: abs(np.mean(a) - np.mean(b)), alternative="greater")
        assert permutation_p(x, y) == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (3, 3), (14, 19), (16, 19), (5, 19), (14, 28)])
def test_a_shares_exact_interval_and_the_sign_test_are_scipys(k: int, n: int):
    found = stats.binomtest(k, n)
    assert exact_share(k, n) == pytest.approx(tuple(found.proportion_ci(0.95, "exact")), abs=1e-9)
    assert sign_test(k, n) == pytest.approx(found.pvalue)


def test_at_the_lower_end_of_a_share_as_many_or_more_have_a_chance_of_one_in_forty():
    def at_least(k: int, n: int, p: float) -> float:
        return sum(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for i in range(k, n + 1))

    low, high = exact_share(14, 19)
    assert at_least(14, 19, low) == pytest.approx(0.025) and at_least(5, 19, 1.0 - high) == pytest.approx(0.025)
    assert sign_test(14, 19) == pytest.approx(2 * at_least(14, 19, 0.5)) and exact_share(0, 5)[0] == 0.0


def test_the_smallest_p_is_reached_by_arms_that_do_not_overlap():
    assert smallest_p(5, 5) == 2 / 252
    for m, n in ((5, 5), (3, 6), (10, 10)):
        x, y = np.arange(m) * 1.01, 1000 + np.arange(n) ** 2.0
        assert permutation_p(x, y) == smallest_p(m, n) == (2 if m == n else 1) / math.comb(m + n, m)
    assert permutation_p(np.ones(5), np.ones(5)) == 1.0
    x, y = np.arange(12.0), 100 + np.arange(12.0)
    assert permutation_p(x, y) == smallest_p(12, 12) == 1 / 100_001, "random splits"
    x, y = np.random.default_rng(0).normal(size=(2, 15))
    assert permutation_p(x, y) == pytest.approx(stats.ttest_ind(x, y)[1], abs=0.02)


def test_welchs_interval_is_scipys():
    x, y = np.array([1.0, 5.0, 2.0, 8.0]), np.array([100.0, 30.0, 50.0])
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.9)
    found = difference(x, y, level=0.9)
    assert [found.low, found.high] == pytest.approx([theirs.low, theirs.high])
    assert found.difference == pytest.approx(-56.0) and found.p == by_loops(x, y) and found.smallest_p == 1 / 35
    same = difference(np.full(5, 3.0), np.full(5, 1.0))
    assert (same.low, same.difference, same.high, same.p) == (2.0, 2.0, 2.0, 2 / 252)


def test_p_values_are_adjusted_for_their_number():
    assert benjamini_hochberg([0.04, 0.01, 0.03]).tolist() == pytest.approx([0.04, 0.03, 0.04])
    assert benjamini_hochberg([]).tolist() == []
    with pytest.raises(UsageError, match="from 0 to 1"):
        benjamini_hochberg([0.5, math.nan])
    found, adjusted = differences(some(), some(seed=0, shift=200))
    assert adjusted.tolist() == pytest.approx(stats.false_discovery_control([one.p for one in found]).tolist())


# --- learning -----------------------------------------------------------------------------------------------------


SCALE = Scale(0.0, 100.0)


def loss_of(points: np.ndarray, scale: Scale | None = SCALE) -> Retention:
    return retention_of(points, scale)


def curve(*levels: tuple[int, float], spread: float = 30.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps and returns of episodes of 1,000 steps, so many bins at each level, and their curve."""
    rng = np.random.default_rng(seed)
    returns = np.concatenate([rng.normal(level, spread, 10 * bins) for bins, level in levels])
    steps = 1_000 * np.arange(1, len(returns) + 1)
    points = [(10, x.mean(), (x**2).mean()) for x in returns.reshape(-1, 10)]
    return steps, returns, np.array(points, np.float32)  # as results keep it


def test_windows_are_those_of_the_episodes_themselves():
    steps, returns, points = curve((30, 0), (10, 500), (60, 300))
    found = loss_of(points)
    windows = [returns[(steps > 10_000 * i) & (steps <= 10_000 * (i + 5))] for i in range(96)]
    best = max(windows, key=np.mean)
    assert found.best == pytest.approx((50, best.mean(), stats.sem(best)), rel=1e-3)
    assert found.last == pytest.approx((200, returns[-200:].mean(), stats.sem(returns[-200:])), rel=1e-3)
    assert found.learned and found.lost_fifth and not found.lost_half


def test_a_bin_that_the_steps_hardly_reach_into_has_no_say():
    points = curve((80, 0), (1, 900), (19, 100))[2]
    longer = np.concatenate([points, np.zeros((1, 3), np.float32)])  # 977 batches of 1,024 are 1,000,448 steps
    assert retention_at(longer, 1_000_448, SCALE) == loss_of(points) and retention_at(
        longer, 1_005_001, SCALE
    ) == loss_of(longer)
    assert loss_of(longer).last.episodes == 190 and retention_at(points[:1], 10, SCALE).last.episodes == 10


@pytest.mark.parametrize(
    ("levels", "spread", "verdict"),
    [(((50, 500), (50, 420)), 10, (True, False, False)), (((50, 500), (50, 240)), 10, (True, True, True)),
     (((50, 90), (50, 0)), 5, (False, False, False)), (((100, 300),), 400, (True, False, False)),
     (((3, 700),), 10, (False, False, False)), (((100, 800),), 0, (True, False, False))],
)  # fmt: skip
def test_what_was_learned_and_lost(levels: tuple[tuple[int, float], ...], spread: float, verdict: tuple[bool, ...]):
    found = loss_of(curve(*levels, spread=spread)[2])
    assert (found.learned, found.lost_fifth, found.lost_half) == verdict


def test_a_seed_that_learned_late_did_not_fall():
    late = loss_of(curve((80, 10), (20, 10), (15, 800))[2])
    assert late.lost_fifth and not late.fell
    fallen = loss_of(curve((40, 0), (10, 900), (50, 100))[2])
    assert fallen.fell and fallen.after == fallen.last and fallen.best_end in range(450_000, 510_000, 10_000)
    within = loss_of(curve((85, 0), (6, 900), (9, 100))[2])
    assert within.fell and within.after.episodes in (90, 100) and within.after.mean < 200
    recovered = loss_of(curve((80, 800), (10, 0), (10, 900))[2])
    assert recovered.lost_fifth and not recovered.fell


def test_windows_without_episodes():
    points = np.zeros((40, 3))
    assert (
        loss_of(points).learned is False
        and math.isnan(loss_of(points).last.mean)
        and loss_of(points).best.episodes == 0
    )
    points[3] = 1, 900, 900**2  # one episode has no spread, and makes no best window
    assert not loss_of(points).learned and window(points[:5]).error == math.inf
    assert loss_of(points).why_not == "the run is too short", "no window has ten episodes"
    points[10] = 10, 500, 500**2
    found = loss_of(points)
    assert found.best == (10, 500, 0) and found.learned and not found.lost_half, "nothing is known about the end"
    for wrong in (np.zeros((0, 3)), np.zeros((4, 2)), np.full((4, 3), np.nan)):
        with pytest.raises(UsageError, match="bins, 3"):
            loss_of(wrong)


@pytest.mark.parametrize("steps", [20_000, 50_000, 500_000, 1_000_000, 10_000_000])
def test_windows_are_shares_of_the_run(steps: int):
    size = bin_of(steps)
    ends = np.arange(steps // 1_000, steps + 1, steps // 1_000)
    returns = np.where(ends <= 0.6 * steps, 500.0, 350.0) + np.random.default_rng(0).normal(0, 10, len(ends))
    found = retention_at(curve_of(ends, returns, -(-steps // size), size), steps, SCALE, size)
    assert (found.best.episodes, found.last.episodes) == (50, 200) and found.learned and found.fell
    assert 0.05 * steps <= found.best_end <= 0.6 * steps and found.last == found.after


def test_returns_count_from_the_random_policy_where_no_scale_is_known():
    pendulum = RandomPolicy(1.0, -1200.0, 300.0, 100)
    assert scale_of("Pendulum-v1", pendulum) == (-1200.0, -900.0) and scale_of("Pendulum-v1") is None
    assert scale_of("x", pendulum._replace(deviation=math.nan)) is None
    walker = scale_of("walker-walk")
    assert walker and walker.zero == 0.0 and walker.learned == pytest.approx(32.1 + 0.1 * (1000 - 32.1), abs=0.1)
    points = curve((60, -200), (40, -500))[2]
    found = loss_of(points, scale_of("Pendulum-v1", pendulum))
    assert found.learned and found.lost_fifth and found.retained(found.last) == pytest.approx(70, abs=1)
    assert (
        not loss_of(points, Scale(-1200.0, -190.0)).learned and not loss_of(points, Scale(-2700.0, -900.0)).lost_fifth
    )
    assert loss_of(points, None).why_not == "the random policy is not known" and not loss_of(points, None).learned
    assert loss_of(points[:19]).why_not == "the run is too short"


def test_learning_occurs_above_the_margin():
    assert margin(RandomPolicy(0.0, 0.0, 1.0, 100), 5) == 10.0
    random = RandomPolicy(0.0, 7.0, 200.0, 100)
    assert margin(random, 5) == pytest.approx(600 * math.sqrt(1 / 100 + 1 / (5 * 204)))
    assert margin(random, 5, 0.05) == pytest.approx(600 * math.sqrt(1 / 100 + 20 / (5 * 204))), "few episodes: luck"
    compared = Comparison(("ppo",), ("geppo",), ("a",))
    for arms, share, learned in (((0.0, 68.0), 1.0, False), ((0.0, 72.0), 1.0, True), ((0.0, 72.0), 0.05, False)):
        strata = [np.full(5, mean) for mean in arms]
        assert sides_of(compared, strata, {"a": random}, {"a": share}).learned == [learned], (arms, share)


# --- the paper's table and figures ----------------------------------------------------------------------------------


TASKS = ("a", "b", "c", "d")
ARMS = {
    "ppo": (10, 100, 0, 300), "geppo-kappa0": (20, 90, 1, 300), "geppo-kappa1": (5, 80, 2, 290),
    "trpo": (40, 20, 3, 1), "getrpo-kappa0": (30, 500, 0, 2), "getrpo-kappa1": (90, 10, 1, 3),
}  # fmt: skip
FINALS = {
    arm: {t: np.array([m - 1.0, m + 1.0]) for t, m in zip(TASKS, means, strict=True)} for arm, means in ARMS.items()
}


RANDOM = {
    task: RandomPolicy(share / 100, -6.0, 0.0, 100) for task, share in zip(TASKS, (10, 99.5, 100, 99), strict=True)
}


def compare(finals: Finals, *arms: str) -> tuple[list[Gain], Sides]:
    """Compare the generalized arms among some with the others, on all tasks, where a mean above 4 is learning."""
    generalized = tuple(arm for arm in arms if arm.startswith("ge"))
    compared = Comparison(tuple(arm for arm in arms if arm not in generalized), generalized, tuple(finals[arms[0]]))
    found = sides_of(compared, compared.strata(finals), RANDOM)
    return gains(finals, compared, found), found


def test_table_1_by_hand():
    ppo, trpo = ("ppo", "geppo-kappa0", "geppo-kappa1"), ("trpo", "getrpo-kappa0", "getrpo-kappa1")
    assert classes_of(compare(FINALS, *ppo)[1]) == (2, 1, 1), "equal is not better"
    assert classes_of(compare(FINALS, *trpo)[1]) == (0, 2, 2)
    assert classes_of(compare(FINALS, *ppo, *trpo)[1]) == (1, 2, 1), "the column Best"
    assert classes_of(compare(FINALS, "trpo", "getrpo-kappa1")[1]) == (1, 1, 2), "kappa = 1 alone does worse"


def test_best_and_the_figures():
    found, sides = compare(FINALS, *ARMS)
    assert [(gain.task, gain.difference, gain.learned) for gain in found] == [
        ("a", 50, True), ("b", 400, True), ("c", -1, False), ("d", 0, True),
    ]  # fmt: skip
    best = found[0].generalized
    assert (best.arm, best.finals.tolist()) == ("getrpo-kappa1", [89.0, 91.0])
    assert {gain.task: gain.percent for gain in found} == pytest.approx({"a": 125, "b": 400, "c": -100 / 3, "d": 0})
    assert sides.gain_by_sparsity((0, 99, 99.9)).tolist() == pytest.approx([150, 200, math.nan], nan_ok=True)
    with pytest.raises(UsageError, match="ppo on a has the scores"):
        compare({"ppo": {"a": np.array([math.nan])}, "geppo": {"a": np.zeros(1)}}, "ppo", "geppo")


def test_a_gain_over_nothing_is_infinite_and_is_learning():
    finals = {"ppo": {"a": np.zeros(2)}, "geppo": {"a": np.full(2, 5.0)}}
    [gain], sides = compare(finals, "ppo", "geppo")
    assert gain.percent == math.inf and gain.learned and classes_of(sides) == (0, 1, 0)
    [same], _ = compare({"ppo": finals["ppo"], "geppo": finals["ppo"]}, "ppo", "geppo")
    assert same.percent == 0.0 and not same.learned


def test_the_best_of_three_equal_arms_is_optimistic_as_the_docstring_says():
    draws = np.random.default_rng(0).normal(size=(20_000, 9, 5)).mean(axis=-1)
    assert draws[:, :3].max(axis=1).mean() == pytest.approx(0.38, abs=0.01)
    assert draws.max(axis=1).mean() == pytest.approx(0.66, abs=0.01)


# --- many seeds -----------------------------------------------------------------------------------------------------


def test_what_is_calculated_in_parts_is_the_same_to_the_last_bit(monkeypatch: pytest.MonkeyPatch):
    scores, others, taus = some(3, 11), some(3, 11, seed=1), np.linspace(0, 1000, 7)

    def all_of_it() -> list[np.ndarray]:
        several = [aggregate(name, scores) for name in AGGREGATES]
        several += [probability_of_improvement(scores, others), performance_profile(scores, taus)]
        several.append(cautious_interval(mean, strata_of(scores)))
        return [np.asarray(part) for one in several for part in one] + [
            np.array(permutation_p(scores["task-0"], others["task-0"]))
        ]

    whole = all_of_it()
    for module in (intervals, statistics):
        monkeypatch.setattr(module, "AT_ONCE", 40_000)
    assert all(np.array_equal(a, b) for a, b in zip(whole, all_of_it(), strict=True))


def test_a_comparison_of_a_thousand_seeds_needs_little_memory():
    x, y = ({"a": np.random.default_rng(i).normal(size=1_000)} for i in (0, 1))
    tracemalloc.start()
    found = probability_of_improvement(x, y)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 600e6, "pairs of all resamples would be 32 GB"
    assert 0.4 < found.low < found.estimate < found.high < 0.6
