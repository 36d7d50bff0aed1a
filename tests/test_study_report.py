"""A report's contents from made-up results: its numbers against independent ones, and any study however small."""

import dataclasses
import itertools
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gpi.analysis.random_policy import RandomPolicy
from gpi.analysis.retention import BIN
from gpi.cli import parser
from gpi.config import Config
from gpi.envs import dmc
from gpi.errors import UsageError
from gpi.study.claims import MISSING
from gpi.study.contents import report_of
from gpi.study.definition import Job, load_study
from gpi.study.frame import arm_of, results_of
from gpi.study.limits import RETURN
from gpi.study.report.blocks import Chart, Report, Section, Table, Verdict
from gpi.study.report.page import page
from gpi.study.results import Result, read_pack
from gpi.study.sections.missing import command_of
from gpi.study.statistics import AGGREGATES, aggregate
from made_results import changed, made, paper_study

TASKS = ("cheetah-run", "reacher-hard", "finger-spin")
PACKED = Path(__file__).parents[1] / "benchmarks" / "study"


def section(report: Report, name: str) -> Section:
    [found] = [one for one in report.sections if one.name == name]
    return found


def block(report: Report, name: str) -> Table | Chart:
    [found] = [one for part in report.sections for one in part.blocks if one.name == name]
    return found


def table(report: Report, name: str) -> dict[str, list]:
    found = block(report, name)
    assert isinstance(found, Table)
    return {column: [row[i] for row in found.rows] for i, column in enumerate(found.columns)}


def chart(report: Report, name: str) -> Chart:
    found = block(report, name)
    assert isinstance(found, Chart)
    return found


def check(report: Report) -> None:
    """What every report must be, so that it can be drawn: names once, cells for columns, tags for rows."""
    blocks = [one for part in report.sections for one in part.blocks]
    names = [one.name for one in blocks]
    assert len(set(names)) == len(names) and all(name and "/" not in name and " " not in name for name in names)
    assert len({part.name for part in report.sections}) == len(report.sections)
    for one in blocks:
        if isinstance(one, Table):
            assert len(one.tags) == len(one.rows) and all(len(row) == len(one.columns) for row in one.rows), one.name
            assert len(set(one.columns)) == len(one.columns), one.columns
            assert all(x is None or type(x) in (str, int, float, Verdict) for row in one.rows for x in row), one.name
            continue
        for line in one.lines:
            arrays = [x for x in (line.x, line.y, line.low, line.high) if x is not None]
            assert len({x.shape for x in arrays}) == 1 and (not one.names or len(one.names) == len(line.x)), one.name
            assert line.seeds is None or line.seeds.shape[1:] == line.x.shape
            assert np.isfinite(line.x).all() and not np.isinf(line.y).any()
    assert all("\n" not in text for part in report.sections for text in part.text)


def level(task: str, algorithm: str, kappa: float) -> float:
    return 300.0 + 100.0 * TASKS.index(task) + (60.0 + 40.0 * kappa if algorithm.startswith("ge") else 0.0)


@pytest.fixture(scope="module")
def several() -> list[Result]:
    return paper_study(TASKS, level)


@pytest.fixture(scope="module")
def report(several: list[Result]) -> Report:
    return report_of(several)


# --- the frame ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"algorithm": "ppo"}, "ppo"), ({"algorithm": "ppo", "kappa": 0.5}, "ppo"), ({}, "geppo-kappa1"),
     ({"kappa": 0.5}, "geppo-kappa0.5"), ({"algorithm": "ppo", "epochs": 20}, "ppo-epochs20"),
     ({"algorithm": "trpo", "eps": 0.1, "B": 1}, "trpo-B1-eps0.1"), ({"n": 1000, "B": 8}, "geppo-kappa1-B8-n1000"),
     ({"hidden": (256, 256)}, "geppo-kappa1-hidden256x256"), ({"threads": 3, "seeds": 9, "seed": 4}, "geppo-kappa1"),
     ({"reset_each_batch": False}, "geppo-kappa1-reset_each_batchFalse"), ({"reset_each_batch": None}, "geppo-kappa1")],
)  # fmt: skip
def test_an_arm_is_named_by_what_is_special_about_it(settings: dict[str, object], name: str):
    assert arm_of(Config(**{"task": "cheetah-run", "reset_each_batch": True} | settings)) == name  # type: ignore[arg-type]


def test_the_names_of_a_studys_arms_are_those_of_its_results():
    assert all(job.arm == arm_of(job.config) for name in ("paper", "controls") for job in load_study(name).jobs)


def test_blocks_of_seeds_are_joined_and_what_is_unfinished_does_not_count():
    first, later = made("cheetah-run", "ppo", [1.0, 2.0]), made("cheetah-run", "ppo", [3.0, 4.0, 5.0, 6.0], seed=2)
    later = changed(later, steps=(1_000_000, 400_000, 1_000_000, 1_000_000), final=np.array([3.0, 4.0, np.nan, 6.0]))
    short = changed(made("reacher-hard", "ppo", [7.0]), steps=(10_000,), complete=False)
    results = results_of([later, short, first])
    assert results.finals["ppo"].keys() == {"cheetah-run"} and results.tasks == ("cheetah-run", "reacher-hard")
    np.testing.assert_array_equal(results.finals["ppo"]["cheetah-run"], [1, 2, 3, 6])
    states = {(row.task, row.seed): row.state for row in results.seeds}
    assert [states["cheetah-run", seed] for seed in (3, 4)] == ["frozen", "no episode at the end"]
    assert states["reacher-hard", 0] == "unfinished"
    columns = results.table()
    assert columns["seed"] == [0, 1, 2, 3, 4, 5, 0] and columns["complete"] == [True] * 3 + [False] * 2 + [True, False]
    assert " ".join(columns) == "task arm algorithm kappa seed steps goal final state final_steps complete"
    with pytest.raises(UsageError, match="pandas is not installed"):
        results.to_pandas()


def test_curves_are_the_means_of_their_episodes_however_many_points():
    run = made("cheetah-run", "ppo", [100.0, 300.0], steps=130_000)
    curve = run.curve.copy()
    curve[1, 4] = 0.0
    curve[0, :2, 0] = 30.0, 10.0
    curve[:, -1] = 0.0
    results = results_of([changed(run, curve=curve), made("cheetah-run", "ppo", [50.0], seed=2, steps=60_000)])
    assert results.names == ("ppo", "ppo-steps60000"), (
        "runs of another length are another arm; of equals the longer is usual"
    )
    steps, returns = results.curves("cheetah-run", "ppo")
    assert steps.tolist() == [BIN * (i + 0.5) for i in range(12)] and returns.shape == (2, 12), "without an empty end"
    assert math.isnan(returns[1, 4]) and returns[0, 5] == pytest.approx(100 * 6 / 6.5)
    steps, returns = results.curves("cheetah-run", "ppo", points=6)
    assert steps.tolist() == [BIN * (2 * i + 1) for i in range(6)]
    assert returns[0, 0] == pytest.approx((30 * curve[0, 0, 1] + 10 * curve[0, 1, 1]) / 40)
    assert returns[1, 2] == pytest.approx(curve[1, 5, 1]), "an empty bin has no say"
    with pytest.raises(UsageError, match="trpo has no result on cheetah-run; the arms are ppo"):
        results.curves("cheetah-run", "trpo")


# --- numbers --------------------------------------------------------------------------------------------------------


def finals_of(several: list[Result], task: str, algorithm: str, kappa: float = 1.0) -> np.ndarray:
    [run] = [r for r in several if (r.config.task, r.config.algorithm, r.config.kappa) == (task, algorithm, kappa)]
    return run.final


def test_a_report_can_be_drawn_and_has_every_section(report: Report):
    check(report)
    names = [part.name for part in report.sections]
    assert names == ["claims", "paper", "sparsity", "aggregates", "differences", "curves", "lost", "audit", "coverage",
                     "missing"]  # fmt: skip
    assert "3 tasks, 12 arms and 180 seeds, of which 180 finished; 180,000,000 steps" in report.lead[0]
    assert "controls (none was run)" in report.lead[-1] and "reuse curve" in report.lead[-1]


def test_figures_2_and_3_have_the_best_arms(report: Report, several: list[Result]):
    figure, other = chart(report, "figure-3"), chart(report, "figure-2-kappa-1")
    line = figure.lines[0]
    assert line.low is not None and line.high is not None
    for task, gap, low, high in zip(figure.names, line.y, line.low, line.high, strict=True):
        first = max((finals_of(several, task, a) for a in ("ppo", "trpo", "vmpo")), key=np.mean)
        second = max(
            (finals_of(several, task, a, k) for a in ("geppo", "getrpo", "gevmpo") for k in (0.0, 0.5, 1.0)),
            key=np.mean,
        )
        theirs = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
        assert (gap, low, high) == pytest.approx((second.mean() - first.mean(), theirs.low, theirs.high))
    assert sorted(figure.lines[0].y, reverse=True) == figure.lines[0].y.tolist() and set(figure.names) == set(TASKS)
    fixed = dict(zip(other.names, other.lines[1].y, strict=True))
    for task in TASKS:
        assert fixed[task] == max(finals_of(several, task, a).mean() for a in ("geppo", "getrpo", "gevmpo"))
    assert "204,800" in figure.note and "No learning" in figure.note


def test_table_1_and_figure_4(report: Report):
    found = table(report, "table-1")
    assert found["Best"] == [0, 3, 0, 3] and found["PPO, paper"] == [3, 18, 7, 28] and sum(found["PPO"][:3]) == 3
    bars = table(report, "figure-4-table")
    assert bars["tasks"][0] == 3 and bars["sparsity"][-1] == ">= 99 %" and bars["tasks"][-1] == 2
    gap = table(report, "by-task")
    by_task = dict(zip(gap["task"], gap["difference"], strict=True))
    assert bars["mean difference"][0] == pytest.approx(np.mean(list(by_task.values())))
    assert bars["mean difference"][-1] == pytest.approx((by_task["finger-spin"] + by_task["reacher-hard"]) / 2)
    assert bars["low"][0] < bars["mean difference"][0] < bars["high"][0]
    assert gap["sparsity, %"][gap["task"].index("finger-spin")] == pytest.approx(99.977)


def test_a_kappa_that_few_tasks_have_does_not_decide_which_tasks_are_shown(several: list[Result]):
    few = [run for run in several if run.config.kappa != 0.0 or run.config.task == TASKS[0]]
    found = report_of(few)
    assert "Best of kappa 0.5 and 1: 3 tasks" in section(found, "paper").text[2]
    assert len(table(found, "by-task")["task"]) == 3


def test_aggregates_are_those_of_the_statistics(report: Report, several: list[Result]):
    found = table(report, "aggregates")
    place = found["arm"].index("getrpo-kappa0.5")
    scores = {task: finals_of(several, task, "getrpo", 0.5) for task in sorted(TASKS)}  # the suite's order
    for name in AGGREGATES:
        shown = "optimality gap, %" if name == "optimality gap" else name
        mine = [found[f"{shown}{end}"][place] for end in ("", " low", " high")]
        assert mine == pytest.approx([float(x) * (100 if "gap" in name else 1) for x in aggregate(name, scores)])
    profile = {line.label: line for line in chart(report, "profiles").lines}["getrpo-kappa0.5"]
    runs = np.concatenate(list(scores.values()))
    assert profile.y[profile.x == 400.0].tolist() == pytest.approx([np.mean(runs > 400.0)])


def test_only_arms_with_the_same_tasks_and_steps_stand_in_one_table_and_intervals_end_where_returns_do():
    runs = [made(task, "ppo", [5.0, 990.0, 5.0]) for task in TASKS]
    runs += [made(task, "geppo", [400.0, 500.0, 600.0]) for task in TASKS[:2]]
    runs += [made(task, "geppo", [400.0, 500.0, 600.0], B=4, steps=100_000) for task in TASKS]
    found = report_of(runs)
    tables = [table(found, name) for name in ("aggregates", "aggregates-2", "aggregates-3")]
    assert [one["arm"] for one in tables] == [["ppo", "geppo-kappa1"], ["ppo"], ["geppo-kappa1-B4-steps100000"]]
    assert [one["tasks"][0] for one in tables] == [2, 3, 3]
    by_task = table(found, "by-task-kappa-1")
    assert by_task["on-policy low"] == [0.0, 0.0] and by_task["on-policy high"] == [1000.0, 1000.0]
    line = chart(found, "curve-cheetah-run").lines[0]
    assert line.low is not None and line.high is not None and line.low.min() == 0.0 and line.high.max() == 1000.0


def test_differences_have_exact_and_adjusted_p_values(report: Report, several: list[Result]):
    found = table(report, "differences")
    assert len(found["task"]) == 9 * 3 and set(found["against"]) == {"ppo", "trpo", "vmpo"}
    mine = [i for i, arm in enumerate(found["arm"]) if arm == "gevmpo-kappa1"]
    p = []
    for i in mine:
        x, y = finals_of(several, found["task"][i], "gevmpo"), finals_of(several, found["task"][i], "vmpo")
        pooled, gap = [*x, *y], abs(x.mean() - y.mean())
        splits = [np.mean([pooled[j] for j in chosen]) for chosen in itertools.combinations(range(10), 5)]
        p.append(np.mean([abs(2 * one - 2 * np.mean(pooled)) >= gap - 1e-9 for one in splits]))
        assert found["difference"][i] == pytest.approx(x.mean() - y.mean()) and found["smallest p"][i] == "0.0079"
    assert [float(found["p"][i]) for i in mine] == pytest.approx(p, abs=1e-4)
    adjusted = stats.false_discovery_control(p)
    assert [float(found["adjusted p"][i]) for i in mine] == pytest.approx(adjusted, abs=1e-4)


def test_learning_curves_have_every_seed_and_students_interval(report: Report, several: list[Result]):
    found = chart(report, "curve-reacher-hard")
    assert len(found.lines) == 12 and found.tags.task == "reacher-hard"
    [line] = [one for one in found.lines if one.label == "geppo-kappa0.5"]
    finals = finals_of(several, "reacher-hard", "geppo", 0.5)
    assert line.seeds is not None and line.low is not None and line.high is not None and line.seeds.shape == (5, 100)
    np.testing.assert_allclose(line.seeds[:, -1], finals, rtol=1e-5)
    low, high = stats.t.interval(0.95, 4, finals.mean(), stats.sem(finals))
    assert (line.y[-1], line.low[-1], line.high[-1]) == pytest.approx((finals.mean(), low, high), rel=1e-4)
    assert line.tags == ("reacher-hard", "geppo", "0.5") and line.x[-1] == 995_000


def test_lost_seeds_are_counted_and_named():
    run = made("cheetah-run", "ppo", [500.0, 500.0, 500.0])
    curve = run.curve.copy()
    for seed, share in ((1, 0.7), (2, 0.3)):
        curve[seed, 75:, 1] *= share
        curve[seed, 75:, 2] = curve[seed, 75:, 1] ** 2 + 25
    found = report_of([changed(run, curve=curve)])
    counts = table(found, "lost")
    assert [counts[name] for name in ("arm", "learned", "below 80 %", "below 50 %")] == [["ppo"], [3], [2], [1]]
    assert table(found, "lost-seeds")["seed"] == [1, 2] and "2 seeds of 3" in section(found, "lost").text[0]


def test_learning_in_short_runs_is_judged_by_their_few_episodes():
    runs = [made("reacher-easy", a, [115.0] * 3, steps=50_000) for a in ("ppo", "geppo")]
    for steps, learned in ((204_800, "yes"), (10_000, "no")):
        found = report_of([changed(run, final_steps=steps) for run in runs])
        assert table(found, "by-task-kappa-1")["learning"] == [learned], steps


def test_a_short_run_in_a_pack_of_an_earlier_version_is_named():
    old = made("cheetah-run", "ppo", [500.0], steps=100_000)
    lead = " ".join(report_of([old, made("cheetah-run", "trpo", [500.0], steps=500_000)]).lead)
    assert "1 run of fewer than 409,600 steps is from a pack of an earlier version" in lead
    assert "earlier version" not in " ".join(report_of([changed(old, final_steps=20_000)]).lead)


def test_what_cannot_be_judged_as_lost_is_said():
    runs = [made("cheetah-run", "ppo", [500.0] * 3, steps=100_000), made("Unknown-v0", "ppo", [500.0, 400.0])]
    found = section(report_of(runs), "lost")
    assert found.text == ("Not judged: 3 seeds, as the run is too short.",
                          "Not judged: 2 seeds, as the random policy is not known.")  # fmt: skip
    assert not found.blocks
    known = report_of(runs, random={"Unknown-v0": RandomPolicy(1.0, 350.0, 100.0, 9)})
    assert section(known, "lost").text[0] == "0 seeds of 2 that can be judged lost what they had learned."
    assert table(known, "lost")["learned"] == [1], "above the random policy by more than its spread"


def test_the_audit_is_summed_over_the_runs_of_an_arm():
    runs = [made(task, "getrpo", [1.0, 2.0]) for task in TASKS]
    runs[1] = changed(runs[1], audit={"updates": "many"})  # a file may hold anything
    runs[2] = changed(runs[2], audit=dict(runs[2].audit, updates=30, ess_share=0.9, worst={"kl": {"ratio": 7}}))
    found = report_of(runs)
    bounds = table(found, "audit-bounds")
    of = " by E[(1 - ratio)+]"
    assert bounds["bound"] == [f"eq (11) TV{of}", f"eq (7) TV{of}", "eq (16) KL"] and bounds["broken"] == [2, 4, 6]
    assert bounds["updates"] == [40] * 3 and bounds["kept, %"] == pytest.approx([95.0, 90.0, 85.0])
    assert bounds["worst"] == [None, None, 7.0]
    updates = table(found, "audit-updates")
    assert updates["runs"] == [2] and updates["realised sample size, %"] == pytest.approx([80.0])


def test_counts_by_two_estimates_of_tv_are_never_added_and_what_is_not_known_is_no_share():
    runs = [made(task, "getrpo", [1.0, 2.0]) for task in TASKS[:3]]
    for number, estimate in enumerate(("abs", "unknown")):
        runs[number] = changed(runs[number], audit=dict(runs[number].audit, estimate=estimate))
    bounds = table(report_of(runs), "audit-bounds")
    rows = list(
        zip(bounds["bound"], bounds["updates"], bounds["broken"], bounds["kept, %"], bounds["worst"], strict=True)
    )
    assert [row for row in rows if row[0].startswith("eq (11)")] == [
        ("eq (11) TV by E[(1 - ratio)+]", 10, 1, 90.0, 1.5),
        ("eq (11) TV by ½ E[abs(ratio - 1)]", 10, 1, 90.0, 1.5),
        ("eq (11) TV by an unknown estimate", 10, 1, None, None),
    ]
    assert [row[3] for row in rows if row[0] == "eq (16) KL"] == [70.0] * 3, "KL has one estimate"


# --- controls and reuse -----------------------------------------------------------------------------------------------


def test_a_last_bin_that_steps_hardly_reach_is_left_out_of_a_curve():
    one = made("cheetah-run", "ppo", [1.0, 2.0])
    curve = np.ones((2, 101, 3), np.float32)
    run = dataclasses.replace(one, curve=curve, steps=(1_001_472, 1_001_472))
    steps, returns = results_of([run]).curves("cheetah-run", "ppo")
    assert len(steps) == 100 and returns.shape == (2, 100)
    steps, _ = results_of([dataclasses.replace(run, steps=(1_005_472, 1_001_472))]).curves("cheetah-run", "ppo")
    assert len(steps) == 101


def test_controls_are_compared_with_both_sides():
    runs = [made(task, "ppo", [1.0, 2.0, 3.0]) for task in TASKS]
    runs += [made(task, "ppo", [11.0, 12.0, 13.0], epochs=20) for task in TASKS]
    runs += [made(task, "ppo", [21.0, 22.0, 23.0], B=1, eps=0.1) for task in TASKS[:2]]
    runs += [made(task, "geppo", [31.0, 32.0, 33.0]) for task in TASKS]
    found = report_of(runs)
    check(found)
    pairs = table(found, "controls")
    assert list(zip(pairs["arm"], pairs["against"], pairs["tasks"], strict=True)) == [
        ("ppo-B1-eps0.1", "ppo", 2), ("geppo-kappa1", "ppo-B1-eps0.1", 2),
        ("ppo-epochs20", "ppo", 3), ("geppo-kappa1", "ppo-epochs20", 3),
    ]  # fmt: skip
    assert pairs["mean difference"] == pytest.approx([20, 10, 10, 20])
    assert pairs["probability of improvement, %"] == [100.0] * 4
    assert table(found, "improvement")["against"] == ["ppo"], "a generalized arm's counterpart has the same settings"


def test_a_mean_difference_has_students_interval_over_tasks_beside_the_one_over_seeds():
    gains = dict(zip(TASKS, (10.0, 30.0, 80.0), strict=True))
    runs = [made(task, "ppo", [1.0, 2.0, 3.0]) for task in TASKS]
    runs += [made(task, "geppo", [1.0 + gain, 2.0 + gain, 3.0 + gain]) for task, gain in gains.items()]
    theirs = stats.ttest_1samp(list(gains.values()), 0.0).confidence_interval()
    assert table(report_of(runs), "improvement")["mean over tasks"] == [f"{theirs.low:.1f} to {theirs.high:.1f}"]
    one = [run for run in runs if run.config.task == TASKS[0]]
    assert table(report_of(one), "improvement")["mean over tasks"] == [None], "of one task nobody knows"


def test_the_reuse_curve_is_over_arms_that_differ_in_b_alone():
    runs = [made(task, "geppo", [float(b), b + 2.0, b + 4.0], n=1000, B=b) for task in TASKS[:2] for b in (8, 1, 16)]
    runs += [made("cheetah-run", "geppo", [1.0, 2.0], n=500), made("cheetah-run", "geppo", [4.0, 5.0], n=1000, B=2)]
    found = report_of(runs)
    check(found)
    drawn = chart(found, "reuse-cheetah-run")
    [line] = drawn.lines
    assert drawn.names == ("1", "2", "8", "16") and line.y.tolist() == [3, 4.5, 10, 18] and line.seeds is not None
    assert line.seeds.shape == (3, 4) and math.isnan(line.seeds[2, 1])
    assert chart(found, "reuse-reacher-hard").names == ("1", "8", "16")
    assert table(found, "reuse")["B"] == [1, 2, 8, 16] and len(table(found, "reuse-by-task")["B"]) == 7


# --- what is missing, and how to repeat it --------------------------------------------------------------------------


def test_jobs_without_a_result_are_named():
    def job(task: str, **settings: object) -> Job:
        run = made(task, "ppo", np.zeros(3), **settings)
        return Job("mine" if task == "m:E-v0" else task, "ppo", run.config)

    half = changed(made("reacher-hard", "ppo", [1.0, 2.0, 3.0]), steps=(1_000_000, 1_000_000, 500_000), complete=False)
    extra = made("finger-spin", "trpo", [1.0])
    jobs = [job("cheetah-run"), job("reacher-hard"), job("m:E-v0"), job("reacher-hard", seed=3)]
    found = report_of([made("cheetah-run", "ppo", [1.0, 2.0, 3.0]), half, extra], jobs)
    rows = table(found, "missing")
    assert rows["task"] == ["reacher-hard", *["mine"] * 3, *["reacher-hard"] * 3] and rows["seed"] == [
        2,
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert rows["state"] == ["unfinished", *["no result"] * 6] and rows["steps"][0] == 500_000
    assert "1 run among them is not part of the study" in " ".join(found.lead)
    longer = [dataclasses.replace(job("cheetah-run").config, steps=2_000_000)]
    more = report_of(
        [made("cheetah-run", "ppo", [1.0, 2.0, 3.0])], [Job("cheetah-run", "ppo", config) for config in longer]
    )
    assert table(more, "missing")["of"] == [2_000_000] * 3, "the study was given more steps"
    done = report_of([made("cheetah-run", "ppo", [1.0, 2.0, 3.0])], jobs[:1])
    assert section(done, "missing").blocks == () and "Every job" in section(done, "missing").text[0]


def test_the_commands_make_the_same_settings_again_and_hold_no_command_of_a_file():
    for settings in ({}, {"algorithm": "vmpo"}, {"B": 8, "n": 1000, "seed": 5, "hidden": (32, 32), "kappa": 0.5,
                                                   "reset_each_batch": False, "trust": "strict"}):  # fmt: skip
        config = Config(**{"task": "cheetah-run", "reset_each_batch": True} | settings)  # type: ignore[arg-type]
        words = command_of(config).replace('"$TASK"', "cheetah-run").split()[1:]
        parsed = vars(parser().parse_args(words))
        again = Config(**{name: x for name, x in parsed.items() if name in Config.__dataclass_fields__})
        assert dataclasses.replace(again, reset_each_batch=config.reset_each_batch) == config
    evil = made("x; rm -rf ~", "geppo", [1.0, 2.0], reset_each_batch=False)
    assert report_of([evil]).commands == (
        "gpi train 'x; rm -rf ~' --algorithm geppo --seeds 2 --steps 1000000 --kappa 1 --threads 1",
    )


def test_versions_that_differ_are_counted(several: list[Result]):
    found = report_of([changed(several[0], versions={"jax": "0.12"}), *several[1:3]]).versions
    assert found == {"jax": "0.11.2 (2 runs); 0.12 (1 run)", "python": "3.12.3 (2 runs); unknown (1 run)",
                     "envpool": "1.2.5 (2 runs); unknown (1 run)", "devices": "cuda:0"}  # fmt: skip


# --- any study ------------------------------------------------------------------------------------------------------


def test_nothing_is_one_line():
    with pytest.raises(UsageError, match="there is no result yet; run the study") as caught:
        report_of([])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "case", ["one seed", "one arm", "own task", "two unrelated", "unfinished", "silent", "odd names", "largest"]
)
def test_any_study_has_a_report(case: str):
    one = made("cheetah-run", "ppo", [3.0])
    runs = {
        "one seed": [one],
        "one arm": [made("cheetah-run", "geppo", [3.0, 5.0])],
        "own task": [made("m:E-v0", a, [-500.0, -400.0, -300.0], reset_each_batch=False) for a in ("ppo", "geppo")],
        "two unrelated": [made("cheetah-run", "ppo", [3.0, 4.0], lr=1e-3), made("cheetah-run", "gevmpo", [5.0, 8.0])],
        "unfinished": [changed(made("cheetah-run", a, [3, 4]), steps=(5, 5), complete=False) for a in ("ppo", "geppo")],
        "silent": [changed(one, final=np.array([np.nan]), curve=np.zeros((1, 100, 3), np.float32))],
        "largest": [made("cheetah-run", a, [RETURN, -RETURN, 5.0]) for a in ("ppo", "geppo")],
        "odd names": [made(task, "ppo", [3.0, 4.0]) for task in ("a/b", "a b", "a:b", "../..", "é", "<script>")],
    }[case]  # fmt: skip
    found = report_of(runs)
    check(found)
    assert page(found)
    names = {part.name for part in found.sections}
    assert {"curves", "lost", "coverage", "missing"} <= names
    if case == "two unrelated":
        assert table(found, "differences")["arm"] == ["gevmpo-kappa1"] and "paper" not in names
    if case == "own task":
        assert "paper" not in names and "differences" in names, "its random policy is not known"
        known = report_of(runs, random={"m:E-v0": RandomPolicy(1.0, -900.0, 50.0, 100)})
        check(known)
        assert table(known, "table-1-kappa-1")["PPO"] == [1, 0, 0, 1] and "PPO, paper" not in table(
            known, "table-1-kappa-1"
        )
    if case == "unfinished":
        assert "aggregates" not in names and len(table(found, "missing")["seed"]) == 4
    if case == "one seed":
        assert math.isnan(table(found, "aggregates")["mean low"][0])


def test_claims_need_the_papers_settings_and_steps(report: Report, several: list[Result]):
    found = table(report, "claims")
    assert set(found["verdict"]) == {MISSING}
    assert set(found["missing"]) == {"3 of 28 tasks have 5 seeds of 1,000,000 steps"}
    short = [dataclasses.replace(run, config=dataclasses.replace(run.config, steps=50_000)) for run in several]
    assert "claims" not in {part.name for part in report_of(short).sections}
    other = [dataclasses.replace(run, config=dataclasses.replace(run.config, lr=1e-3)) for run in several]
    names = {part.name for part in report_of(other).sections}
    assert "claims" not in names and "paper" in names, "the same comparison with other settings"


def test_the_papers_study_takes_seconds():
    everything = paper_study(tuple(dmc.TASKS), lambda task, a, kappa: 300.0 + 60.0 * a.startswith("ge"))
    begin = time.process_time()
    found = report_of(everything, load_study("paper").jobs)
    spent = time.process_time() - begin
    check(found)
    assert len(everything) == 336 and spent < 30.0, f"{spent:.1f} s"
    assert MISSING not in table(found, "claims")["verdict"] and "missing" not in table(found, "claims")
    assert section(found, "missing").blocks == ()


def test_at_one_kappa_a_claim_is_not_reached_where_the_best_of_three_would_not_hold():
    """Ten tasks of 28 against the paper's 18 of 21; and what tasks as a sample say stands beside."""
    gain = {task: 150.0 if i % 3 == 0 else -150.0 for i, task in enumerate(dmc.TASKS)}
    made = paper_study(tuple(gain), lambda task, a, kappa: 300.0 + gain[task] * a.startswith("ge"))
    found = report_of(made)
    best, fixed = table(found, "claims"), table(found, "claims-28-tasks-kappa-1-only")
    of_number = fixed["claim"].index("In as many tasks as the paper says: geppo against ppo")
    assert best["verdict"][of_number].startswith("does not hold")
    assert fixed["verdict"][of_number].startswith("not reached at kappa = 1")
    assert not any("does not hold" in words for words in fixed["verdict"])
    assert re.fullmatch(r"undecided: \d+ to \d+ %, p = [\d.]+", fixed["over tasks"][of_number - 1])
    assert re.search(r"kappa = 1 only: .*not reached at kappa = 1: \d+", section(found, "claims").text[-1])


def test_real_results_have_a_report():
    wanted = ("pendulum-swingup", "acrobot-swingup_sparse")
    results = results_of([one for one in read_pack(PACKED / "kappa1.safetensors") if one.config.short_task in wanted])
    assert list(results.arms) == ["ppo", "trpo", "vmpo", "geppo-kappa1", "getrpo-kappa1", "gevmpo-kappa1"]
    found = report_of(results)
    check(found)
    best = table(found, "table-1-kappa-1")["Best"]
    assert sum(best[:3]) == 2 and best[2] == 1, "nothing is learned on acrobot-swingup_sparse"
    assert len(chart(found, "curve-pendulum-swingup").lines) == 6 and table(found, "audit-bounds")["updates"][0] > 4000
