"""Studies: the jobs that follow from a file, and every mistake in one line with its place."""

import json
import math
import re
import sys
from pathlib import Path

import gymnasium
import pytest

import gpi
from gpi import cli
from gpi.analysis.random_policy import random_returns
from gpi.envs import dmc
from gpi.errors import GpiError, UsageError
from gpi.study.contents import report_on
from gpi.study.definition import TASK_GROUPS, Study, arm_name, builtin_names, load_study
from gpi.study.directory import open_study
from gpi.study.estimate import core_seconds, disk_bytes, hours
from gpi.study.frame import results_of
from gpi.study.sparsity import sample, sparsity_of
from made_results import made
from made_runs import job, make_study

GOOD = 'tasks = ["cheetah-run"]\nsteps = 2_000\n[[grid]]\nalgorithm = "ppo"\n'


def study_of(tmp_path: Path, text: str, **environments: str) -> Study:
    (tmp_path / "mine.toml").write_text(text)
    return load_study(tmp_path / "mine.toml", environments)


def test_the_papers_study_has_its_336_jobs():
    study = load_study("paper")
    assert len(study.jobs) == 336 == len({job.name for job in study.jobs}) and study.steps == 1_680_000_000
    arms = {job.arm: job.config for job in study.jobs}
    assert set(arms) == {"ppo", "trpo", "vmpo"} | {
        f"{name}-kappa{kappa}" for name in ("geppo", "getrpo", "gevmpo") for kappa in ("0", "0.5", "1")
    }
    assert arms["gevmpo-kappa0.5"].kappa == 0.5 and arms["gevmpo-kappa0.5"].algorithm == "gevmpo"
    assert {job.task for job in study.jobs} == set(dmc.TASKS)
    assert study.jobs[0].name == "acrobot-swingup/ppo/seeds-0-4"


def test_the_other_studies_that_are_built_in():
    assert builtin_names() == ["controls", "paper", "quick", "reuse"]
    assert len(TASK_GROUPS["dmc23"]) == 23 and not any("humanoid" in task for task in TASK_GROUPS["dmc23"])
    controls = {job.arm: job.config for job in load_study("controls").jobs}
    assert set(controls) == {"ppo-epochs20", "ppo-B1-eps0.1", "trpo-B1-eps0.1", "vmpo-B1-eps0.1"}
    assert controls["ppo-epochs20"].epochs == 20 and (controls["trpo-B1-eps0.1"].B, controls["trpo-B1-eps0.1"].eps) == (
        1,
        0.1,
    )
    reuse = load_study("reuse").jobs
    assert len(reuse) == 30 and {job.config.B for job in reuse} == {1, 2, 4, 8, 16}
    assert {(job.config.n, job.config.kappa, job.config.seeds, job.config.steps) for job in reuse} == {
        (1000, 1.0, 10, 500_000)
    }
    assert len(load_study("quick").jobs) == 12


def test_lists_multiply_and_grids_add_up(tmp_path: Path):
    study = study_of(tmp_path, """
tasks = ["cheetah-run", "dmc/walker-walk"]
seeds = 3
seed = 5
[settings]
lr = 1e-3
[[grid]]
algorithm = ["ppo", "geppo"]
hidden = [[32], [64, 64]]
[[grid]]
algorithm = "trpo"
hidden = [16, 16]
""")  # fmt: skip
    names = [job.name for job in study.jobs if job.task == "walker-walk"]
    assert names == [
        f"walker-walk/{arm}/seeds-5-7"
        for arm in ("ppo-hidden32", "ppo-hidden64x64", "geppo-hidden32", "geppo-hidden64x64", "trpo-hidden16x16")
    ]
    assert all(job.config.lr == 1e-3 and job.config.seeds == 3 for job in study.jobs)
    assert [job.arm for job in study_of(tmp_path, GOOD.replace('"ppo"', '["ppo", "geppo"]\nkappa = [0, 1]')).jobs] == [
        "ppo", "geppo-kappa0", "geppo-kappa1",
    ]  # fmt: skip
    assert study.name == "mine" and study.jobs[-1].config.hidden == (16, 16)


def test_a_list_is_one_value_of_a_setting_that_is_a_list(tmp_path: Path):
    text = GOOD + 'trust = "keep"\nreturn_range = {}\n'
    [one] = study_of(tmp_path, text.format("[-2000, 0.5]")).jobs
    assert one.config.return_range == (-2000, 0.5) and one.arm == "ppo-trustkeep-return_range-2000.0x0.5"
    several = study_of(tmp_path, text.format("[[0, 1000], [0, 1e20]]")).jobs
    assert [job.config.return_range for job in several] == [(0, 1000), (0, 1e20)]


def test_two_arms_are_never_one(tmp_path: Path):
    text = GOOD + "gamma = [0.999, 0.9999999, 0.99999999]\nmax_grad_norm = [1e20, 1e-20]\n"
    study = study_of(tmp_path, text)
    settings = [(job.config.gamma, job.config.max_grad_norm) for job in study.jobs]
    assert settings == [(a, b) for a in (0.999, 0.9999999, 0.99999999) for b in (1e20, 1e-20)]
    assert len({job.arm for job in study.jobs}) == 6 and study.jobs[2].arm == "ppo-gamma0.9999999-max_grad_norm1e20"
    assert arm_name({"lr": 1e-5, "eps": 0.1 + 0.2 - 0.2, "B": 4}) == "geppo-lr1e_05-eps0.10000000000000003-B4"
    runs = [made("cheetah-run", "ppo", 500, gamma=gamma) for gamma in (0.9999999, 0.99999999)]
    assert len(results_of(runs).arms) == 2, "nor in a report"


def test_an_arm_of_a_long_name_is_found_again_and_reported(tmp_path: Path):
    more = [f"{name} = [0.123456789, 0.1234567891]" for name in ("kappa", "eps", "gamma", "gae_lambda", "lr")]
    text = GOOD.replace('"ppo"', '"geppo"').replace("2_000", "20_000") + "\n".join([*more, f"hidden = {[64] * 80}"])
    arms = [job.arm for job in study_of(tmp_path, text).jobs]
    assert len(set(arms)) == 32 and {len(arm) for arm in arms} == {255}
    study = make_study(tmp_path / "long", *study_of(tmp_path, text).jobs[:2])
    assert open_study(study.path) == study and len(gpi.study.load(study.path).finals) == 2
    assert cli.main(["study", "status", str(study.path), "--once"]) == 0


def test_what_has_no_effect_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = GOOD.replace('"ppo"', '["ppo", "trpo", "trpo"]') + "lr = [1e-4, 1e-3]\n"
    study = study_of(tmp_path, text.replace('["cheetah-run"]', '["cheetah-run", "dmc23"]'))
    assert len(study.jobs) == 23 * 4
    assert [note.partition("mine.toml")[2] or note for note in study.notes] == [
        ":1: cheetah-run is named twice, and run once",
        *(f":3: trpo-lr{lr} is in the grid twice, and run once" for lr in ("0.0001", "0.001")),
        "trpo-lr0.001 trains what trpo-lr0.0001 trains: lr = 0.001 has no effect with trpo, whose step has the length "
        "of its trust region",
    ]
    assert cli.main(["study", "show", str(tmp_path / "mine.toml")]) == 0
    assert "note: trpo-lr0.001 trains" in capsys.readouterr().err
    assert not study_of(tmp_path, GOOD.replace('"ppo"', '["ppo", "geppo"]\nkappa = [0, 1]')).notes, "meant so"
    assert not any(load_study(name).notes for name in builtin_names())
    assert len(study_of(tmp_path, GOOD + 'trust = ["keep", "strict"]').jobs) == 2, "kl_slack has no effect in either"


def test_own_environments_are_named_on_the_command_line_only(tmp_path: Path):
    text = GOOD.replace("cheetah-run", "mine")
    study = study_of(tmp_path, text, mine="my_module:MyEnv-v0")
    assert study.jobs[0].name == "mine/ppo/seeds-0-4" and study.jobs[0].config.task == "my_module:MyEnv-v0"
    with pytest.raises(UsageError, match=r"'\.\./up' has no name that a path can have"):
        study_of(tmp_path, GOOD.replace("cheetah-run", "../up"), **{"../up": "my_module:MyEnv-v0"})
    line = r"mine\.toml:1: unknown task 'mine': it must be .* tasks or a Gymnasium id; .*, add --env mine=MODULE:ID$"
    with pytest.raises(UsageError, match=line):
        study_of(tmp_path, text)
    with pytest.raises(UsageError, match=r"mine\.toml:1: 'os:system' is your own code; .* --env mine=os:system"):
        study_of(tmp_path, GOOD.replace("cheetah-run", "os:system"))


@pytest.mark.parametrize(("text", "line"), [
    (GOOD.replace("steps", "stepps"), ":2: unknown key 'stepps'; the nearest is steps"),
    (GOOD.replace("2_000", "0"), ":2: steps = 0 must be at least 1; use 1 or more"),
    (GOOD.replace('"ppo"', '"gepo"'), ":4: unknown algorithm 'gepo'"),
    (GOOD + "kapa = 1\n", ":5: unknown setting 'kapa'; the nearest is kappa"),
    (GOOD.replace("ppo", "geppo") + "kappa = [0, 2]\n", ":5: kappa = 2.0 must be in [0, 1]"),
    (GOOD + 'lr = "fast"\n', ":5: lr = 'fast'"),
    (GOOD + "seeds = 2\n", ":5: seeds is the same for the whole study; move it to the top"),
    (GOOD + '[[grid]]\nalgorithm = "ppo"\n', ":5: ppo is in the study already; remove one"),
    (GOOD.replace('["cheetah-run"]', "[]"), ":1: tasks must be a list of names or a group"),
    ('tasks = "dmc28"\n', ": no [[grid]]; add one"),
    ('name = "../evil"\n' + GOOD, ":1: name = '../evil' must be letters, digits, dots and dashes"),
    ('tasks = ["../evil"]\n[[grid]]\nalgorithm = "ppo"\n', ":1: task '../evil' has no name that a path can have"),
    ("tasks = [\n", ":1: not TOML"),
    (GOOD.replace("[[grid]]", "[grid]"), ":3: [grid] is one table, and a study has several; write [[grid]]"),
    (GOOD.replace('"ppo"', "[]"), ":4: algorithm = [] is an empty list; name a value, or leave it out"),
    (GOOD + "lr = []\n", ":5: lr = [] is an empty list"),
    (GOOD + "hidden = []\n", ":5: hidden = () must be positive numbers of units"),
    ('settings = "x"\n' + GOOD, ":1: settings must be a table; write [settings] above their lines"),
    ("settings = [1]\n" + GOOD, ":1: settings must be a table"),
    ("seeds = 1000000\n" + GOOD, ":1: seeds = 1,000,000 must be at most 1,000 in a study; use fewer"),
    (GOOD.replace("2_000", "2e9"), ":2: steps = 2,000,000,000 must be at most 1,000,000,000 in a study; use fewer"),
])  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(text: str, line: str, tmp_path: Path):
    with pytest.raises(GpiError) as error:
        study_of(tmp_path, text)
    assert f"mine.toml{line}" in str(error.value) and "\n" not in str(error.value)


def test_jobs_are_counted_before_they_are_made(tmp_path: Path):
    lists = "".join(f"{name} = {[1] * 60}\n" for name in ("B", "n", "epochs", "minibatches"))
    with pytest.raises(UsageError, match=r"toml:3: jobs = 12,960,000 must be at most 100,000; shorten "):
        study_of(tmp_path, GOOD + lists)


def test_an_unknown_study_names_the_nearest():
    with pytest.raises(UsageError, match=r"study 'papr' must be one of .*; the nearest is paper"):
        load_study("papr")


def test_show_prints_jobs_and_costs(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["study", "show", "quick"]) == 0
    printed = capsys.readouterr().out
    assert "quick: 12 jobs, 2 tasks by 6 arms" in printed and "1,800,000" in printed
    assert re.search(r"time +about [1-9]\d* min on the \d+ core", printed), printed
    assert re.search(r"disk +about [1-9]\d* MB\n", printed) and not re.search(r"\b0(\.0)? ", printed), printed
    assert cli.main(["study", "show", "paper"]) == 0
    assert re.search(r"time +about [\d,.]+ hours on(.|\n)*", capsys.readouterr().out)
    assert cli.main(["study", "show", "quick", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed["jobs"]) == 12 and listed["jobs"][0]["name"] == "cartpole-swingup/ppo/seeds-0-2"
    assert listed["steps"] == sum(job["seeds"] * job["steps"] for job in listed["jobs"])
    assert cli.main(["study", "show", "quick", "--env", "mine"]) == 2
    assert "must be NAME=MODULE:ID" in capsys.readouterr().err


def test_show_alone_lists_what_is_built_in(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["study", "show"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in listed] == builtin_names() and "quick: 12 jobs, 2 tasks by 6 arms" in listed
    assert cli.main(["study", "show", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == builtin_names()
    assert cli.main(["study", "show", ""]) == 2 and "study '' must be one of" in capsys.readouterr().err


def test_estimates_grow_with_what_costs():
    jobs = {job.name: job for job in load_study("paper").jobs}
    light, heavy = jobs["pendulum-swingup/ppo/seeds-0-4"], jobs["humanoid-run/ppo/seeds-0-4"]
    assert core_seconds(heavy) > 2 * core_seconds(light) and disk_bytes(heavy) > disk_bytes(light) > 10**6
    assert core_seconds(jobs["pendulum-swingup/geppo-kappa1/seeds-0-4"]) > core_seconds(light)
    assert hours(load_study("paper"), 2) == pytest.approx(8 * hours(load_study("paper"), 16))


def test_sparsity_is_the_share_of_samples_without_reward():
    share = sample("reacher-hard", 2_000).sparsity
    assert 0.9 < share <= 1.0 and share == sample("reacher-hard", 2_000).sparsity
    assert sample("walker-stand", 2_000).sparsity < 0.05 < share, "a reward in nearly every step"
    known = random_returns()
    assert set(known) == set(dmc.TASKS) and all(0.0 <= one.sparsity <= 1.0 for one in known.values())


def test_a_random_policys_return_is_that_of_its_whole_episodes():
    found = sample("cartpole-balance", 10_000)
    assert found.episodes == 10, "the samples are ten episodes of 1,000 steps, one of each environment"
    assert found.mean == pytest.approx(random_returns()["cartpole-balance"].mean, abs=4 * found.deviation / 10**0.5)
    known = random_returns()
    assert set(known) == set(dmc.TASKS) and {one.episodes for one in known.values()} == {100}
    assert all(0.0 <= one.mean < 400.0 for one in known.values()) and known["cartpole-swingup_sparse"].mean == 0.0
    cut = sample("cartpole-balance", 9_990)  # no episode has ended
    assert cut.episodes == 0 and math.isnan(cut.mean) and math.isnan(cut.deviation)


def test_other_tasks_are_measured_once_and_nobodys_code_is_started(tmp_path: Path):
    lines: list[str] = []
    names = ["dmc/cheetah-run", "CartPole-v1", "antigravity:Fly-v0", "NoSuchTask-v0"]
    found = sparsity_of(names, tmp_path, lines.append, samples=2_000)
    assert list(found) == ["cheetah-run", "CartPole-v1"] and found["cheetah-run"] == random_returns()["cheetah-run"]
    assert found["CartPole-v1"].sparsity == 0.0 and 15 < found["CartPole-v1"].mean < 30, "a reward of 1 in each step"
    assert "antigravity" not in sys.modules and len(lines) == 4 and not any("\n" in line for line in lines)
    lines.clear()
    assert sparsity_of(names[:2], tmp_path, lines.append, samples=2_000) == found and lines == [], "from the cache"
    (tmp_path / "random-policy.json").write_text("{}")
    assert sparsity_of(["CartPole-v1"], tmp_path, lines.append, samples=2_000)["CartPole-v1"] == found["CartPole-v1"]
    assert len(lines) == 1, "a damaged cache is measured again"


def test_a_report_survives_what_it_only_adds(tmp_path: Path):
    """An environment that cannot be made here, one that nobody knows, and a directory that cannot be written."""
    gymnasium.register("Lacking-v0", "no_such_module:Lacking")
    lines: list[str] = []
    (tmp_path / "file").write_text("in the way")
    names = ["Lacking-v0", "CartPole-v1", "mine"]
    found = sparsity_of(names, tmp_path / "file", lines.append, samples=2_000)
    assert list(found) == ["CartPole-v1"] and lines[1].startswith("Lacking-v0: its random policy cannot be measured: ")
    assert lines[-1].endswith("it is unknown here; if it is your own, add --env mine=MODULE:ID")
    found = sparsity_of(names[2:], None, lines.append, {"mine": "envs_own:OwnWalk-v0"}, samples=2_000)
    assert found["mine"] == sample("envs_own:OwnWalk-v0", 2_000)
    study = make_study(tmp_path / "a", job(task="CartPole-v1"))
    (study.path / "cache").write_text("in the way")
    assert report_on(study.path, say=lines.append).sections


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cheetah-run", "finger-turn_hard"])
def test_the_random_policy_in_the_package_can_be_repeated(task: str):
    assert sample(task) == random_returns()[task]


def test_the_example_is_the_one_in_the_docs_and_has_eight_jobs():
    example = (Path(__file__).parents[1] / "examples" / "study.toml").read_text()
    page = (Path(__file__).parents[1] / "docs" / "running-studies.md").read_text()
    [shown] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example.endswith(shown)
    study = load_study(Path(__file__).parents[1] / "examples" / "study.toml")
    assert len(study.jobs) == 8 and {job.arm for job in study.jobs} == {"geppo-B1", "geppo-B2", "geppo-B4", "ppo"}
