"""The command line as a user sees it: output, errors of one line, nothing written on bad input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpi
from gpi import cli
from gpi.cli.train import numbers
from gpi.config import Config
from gpi.envs import dmc
from gpi.report.summary import percent
from gpi.rundir.run import final_performance, final_window, window_in_words
from gpi.rundir.tables import AUDIT, EPISODES, METRICS, Table
from gpi.training.about import write_json
from made_runs import job, make_run, make_study


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line of a refused command."""
    try:
        code = cli.main(arguments)
    except SystemExit as stop:  # argparse
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1 and err.startswith("gpi: "), (code, out, err)
    return err


@pytest.mark.parametrize(("options", "value", "rule", "remedy"), [
    (["cheeta-run"], "cheeta-run", "28 DeepMind Control tasks", "cheetah-run"),
    (["cheetah-run", "--algorithm", "gepo"], "gepo", "one of ppo, trpo, vmpo, geppo, getrpo, gevmpo", "'geppo'"),
    (["cheetah-run", "--kappa", "1.5"], "kappa = 1.5", "in [0, 1]", "use"),
    (["cheetah-run", "--kappa", "-0.1"], "kappa = -0.1", "in [0, 1]", "use"),
    (["cheetah-run", "--kappa", "nan"], "kappa = nan", "in [0, 1]", "use"),
    (["cheetah-run", "--B", "0"], "B = 0", "at least 1", "use 1 or more"),
    (["cheetah-run", "--n", "0"], "n = 0", "at least 1", "use 1 or more"),
    (["cheetah-run", "--seeds", "0"], "seeds = 0", "at least 1", "use 1 or more"),
    (["cheetah-run", "--steps", "-5"], "steps = -5", "at least 1", "use 1 or more"),
    (["cheetah-run", "--seed", "-1"], "seed = -1", "in [0,", "use 0"),
    (["cheetah-run", "--eps", "0"], "eps = 0.0", "positive", "use 0.2"),
    (["cheetah-run", "--gamma", "1"], "gamma = 1.0", "[0, 1)", "use 0.995"),
    (["cheetah-run", "--n", "2049", "--num-envs", "2"], "n = 2049", "divide among 2 environments", "--n 2050"),
    (["cheetah-run", "--n", "512"], "512", "below the horizon of 1000", "--n 1000"),
    (["cheetah-run", "--n", "1024", "--num-envs", "2"], "512", "below the horizon of 1000", "--n 2000"),
    (["cheetah-run", "--no-such-option"], "--no-such-option", "unknown option", "--help"),
    (["cheetah-run", "--seeds", "two"], "two", "whole number", "1e6"),
])  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(
    options: list[str], value: str, rule: str, remedy: str,
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "train", *options, "--out", str(tmp_path / "run"))
    assert value in line and rule in line and remedy in line
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_another_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    line = refused(capsys, "train", "cartpole-balance", "--out", str(tmp_path))
    assert str(tmp_path) in line and "holds another run" in line and "name a new directory" in line
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("library", ["libEGL.so.1", "libOpenGL.so.0"])
def test_a_missing_system_library_is_one_line(
    library: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Finder:
        """Makes `import envpool` fail as the loader does."""

        def find_spec(self, name: str, *_: object) -> None:
            if name.split(".")[0] == "envpool":
                raise ImportError(f"{library}: cannot open shared object file: No such file or directory")

    for name in [name for name in sys.modules if name.split(".")[0] == "envpool"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    line = refused(capsys, "train", "cartpole-balance", "--out", str(tmp_path / "run"))
    assert library in line and "missing" in line and "apt-get install" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", ["0", "two"])
def test_an_invalid_number_of_threads_is_refused(threads: str, tmp_path: Path):
    options = ["train", "cartpole-balance", "--seeds", "2", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PJRT_NPROC": threads}
    command = [sys.executable, "-m", "gpi.cli", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"PJRT_NPROC = {threads}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_tasks(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["tasks"]) == 0
    table = capsys.readouterr().out
    assert len(table.splitlines()) == 33 and re.search(r"dmc/cheetah-run +17 +6", table)
    assert cli.main(["tasks", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 28 and {"id": "dmc/cheetah-run", "observation_size": 17, "action_size": 6} in listed
    assert all(set(task) == {"id", "observation_size", "action_size"} for task in listed)


def test_mixture(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    options = ["mixture", "--B", "2", "--kappa", "0.5", "--eps", "0.2", "--n", "1024"]
    assert cli.main(options) == 0
    table = capsys.readouterr().out
    assert "0.506538" in table and "0.120949" in table and "2603.4" in table
    assert cli.main([*options, "--json", "--plot", str(tmp_path / "figure.png")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["nu", "M", "mean_age", "eps_gpi", "delta_gpi", "ess", "tv_size", "ess_gain", "tv_gain"]
    assert printed["nu"] == pytest.approx([0.506538, 0.333333, 0.160128], abs=1e-6) and printed["M"] == 3
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert "kappa" in refused(capsys, "mixture", "--kappa", "2")
    assert "figure.gif" in refused(capsys, "mixture", "--plot", str(tmp_path / "figure.gif"))


def run_directory(path: Path, algorithm: str, task: str = "cheetah-run") -> Path:
    """Make a run directory with made-up episodes, as `gpi train` writes them."""
    path.mkdir()
    config = {field: getattr(Config(task, algorithm), field) for field in Config.__dataclass_fields__}
    write_json(path / "config.json", {"config": config})
    table = Table(path / "episodes.csv", EPISODES)
    rng = np.random.default_rng(0)
    table.add((seed, 1024 * k + 1000, rng.random() * k, 1000) for k in range(300) for seed in range(5))
    table.close()
    table = Table(path / "metrics.csv", METRICS)
    table.add([seed, 300, 307_200, *[None] * (len(METRICS) - 3)] for seed in range(5))
    table.close()
    return path


def test_plot_compares_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    a, b = run_directory(tmp_path / "a", "ppo"), run_directory(tmp_path / "b", "geppo", "finger-spin")
    assert cli.main(["plot", str(a), str(b), "--out", str(tmp_path / "both.png")]) == 0
    assert "both.png" in capsys.readouterr().out
    assert (tmp_path / "both.png").read_bytes()[:4] == b"\x89PNG"
    assert "does not exist" in refused(capsys, "plot", str(tmp_path / "nowhere"))


def test_final_is_one_number_wherever_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from gpi.cli.train import closing
    from gpi.study.engine.screen import final_return
    from gpi.study.status import Watch

    study = make_study(tmp_path / "a", job(seeds=2, steps=300_000), runs=False)
    path = study.run(study.jobs[0])
    make_run(path, study.jobs[0].config)
    run = gpi.Run(path)
    finals = {seed: float(totals[steps > 240_000].mean()) for seed in (0, 1) for steps, totals in [run.episodes(seed)]}
    assert run.returns == run.final_performance == finals
    mean = sum(finals.values()) / 2
    (path / "audit.csv").write_text("seed\n0\n")
    assert closing(run, None) == 0
    printed = capsys.readouterr().out
    assert f"seed 1: {finals[1]:.1f}\n  (mean of the episodes in the last fifth, 60,000 steps)" in printed
    assert final_return(path).startswith(f"final return {mean:.1f} [")
    assert Watch(study.path).look().jobs[0].returns == pytest.approx(mean)
    done = json.loads((path / "DONE").read_text())
    assert done.pop("final_steps") == 60_000
    (path / "DONE").write_text(json.dumps({**done, "returns": {"0": 1.0, "1": 2.0}}))
    assert Watch(study.path).look().jobs[0].returns == pytest.approx(mean), "an earlier version's are over other steps"
    results = gpi.study.load(study.path)
    assert results.finals["ppo"]["cheetah-run"].tolist() == list(finals.values())
    assert results.table()["final"] == list(finals.values()) and results.table()["final_steps"] == [60_000, 60_000]
    assert cli.main(["study", "report", str(study.path)]) == 0
    csv = (study.path / "report" / "tables" / "aggregates.csv").read_text().splitlines()[1].split(",")
    assert float(csv[3]) == pytest.approx(mean, abs=0.06), csv


@pytest.mark.parametrize(("taken", "window", "words"), [
    (1_000_448, 204_800, "last 204,800 steps"), (409_600, 204_800, "last 204,800 steps"),
    (409_599, 81_919, "last fifth, 81,919 steps"), (50, 10, "last fifth, 10 steps"), (3, 1, "last fifth, 1 steps"),
])  # fmt: skip
def test_final_is_over_204800_steps_or_the_last_fifth(taken: int, window: int, words: str):
    steps = np.arange(1, taken + 1, max(1, taken // 5000))
    returns = steps.astype(float)
    assert final_window(taken) == window and window_in_words(taken) == words
    expected = returns[steps > steps[-1] - window].mean()
    assert final_performance(steps, returns, taken) == expected
    assert np.isnan(final_performance(steps[:0], returns[:0], taken))


def test_the_closing_lines_fit_a_terminal_and_break_no_number():
    lines = numbers("final return", {seed: 1000.0 + seed for seed in range(20)})
    assert len(lines) > 2 and all(len(line) < 80 for line in lines) and "\xa0" not in "".join(lines)
    assert all(f"seed {seed}: {1000 + seed}.0" in "\n".join(lines) for seed in range(20))


def audited(path: Path, trust: str, updates: list[tuple[float, float, float]]) -> Path:
    """Make a run directory whose audit.csv holds these measured/allowed ratios of eq (11), the one-step TV and KL."""
    run_directory(path, "getrpo")
    about = json.loads((path / "config.json").read_text())
    about["config"] |= {"trust": trust, "seeds": 2}
    write_json(path / "config.json", about)
    table = Table(path / "audit.csv", (*AUDIT, "tv_age_0", "tv_age_1"))
    for i, ratios in enumerate(updates):
        row = dict.fromkeys(AUDIT, 1.0) | {"seed": i % 2, "iteration": 1 + i // 2, "steps": 1024 * (1 + i // 2)}
        measured = {"penalty": "penalty_lost", "tv": "tv_lost", "kl": "kl"}
        for (bound, column), ratio in zip(measured.items(), ratios, strict=True):
            allowed = 0.0 if ratio == np.inf else 0.1
            row |= {column: 0.1 if ratio == np.inf else 0.1 * ratio, f"{bound}_bound": allowed}
            row[f"{bound}_held"] = bool(ratio <= 1.0)
        row["penalty_acted"] = row["penalty_lost"]
        row |= {"ess": 1000.0, "ess_realised": 800.0, "budget_exhausted": False, "fraction": 0.0 if i == 0 else 0.5}
        table.add([[*row.values(), 0.01, np.nan if i < 2 else 0.02]])
    table.close()
    return path


def test_a_mixture_of_a_trust_region_that_nothing_can_leave_is_refused(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["mixture", "--eps", "2", "--json"]) == 0 and capsys.readouterr().out
    assert "eps = 3 must be at most 2: TV distance is at most 1" in refused(capsys, "mixture", "--eps", "3")


def test_audit_counts_violations_over_all_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    a = audited(tmp_path / "a", "paper", [(0.5, 1.2, 0.9), (1.5, 0.2, 1.1), (0.5, 3.0, 0.9), (1.01, 0.5, 0.5)])
    b = audited(tmp_path / "b", "strict", [(0.5, 0.6, 0.9), (1.0, np.inf, 0.9)])
    assert cli.main(["audit", str(a), str(b), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    counted = ("algorithm", "trust", "updates", "penalty_violations", "one_step_violations", "kl_violations")
    assert [first[name] for name in counted] == ["getrpo", "paper", 4, 2, 2, 1]
    assert [second[name] for name in counted] == ["getrpo", "strict", 2, 0, 1, 0]
    assert first["worst"]["penalty"] == {"ratio": pytest.approx(1.5), "seed": 1, "iteration": 1}
    assert first["worst"]["tv"]["ratio"] == pytest.approx(3.0) and second["worst"]["tv"]["ratio"] is None
    assert first["refused"] == 1 and first["ess_share"] == pytest.approx(0.8)
    assert first["bounds"] == ["penalty", "tv", "kl"] and first["verdict"].startswith("eq (11), which the guarantee")
    assert not list(tmp_path.glob("**/*.png")), "JSON alone draws nothing"
    assert cli.main(["audit", str(a), str(b), "--out", str(tmp_path / "both.png")]) == 0
    table = capsys.readouterr().out
    assert re.search(
        r"a +eq \(11\) TV +50.000% +x1.5 +1 +1\n +eq \(7\) TV +50.000% +x3 +0 +2\n +eq \(16\) KL +75", table
    )
    assert re.search(r"b +eq \(11\) TV +100% +x1 +1 +1\n +eq \(7\) TV +50.000% +xinf", table)
    assert (tmp_path / "both.png").read_bytes()[:4] == b"\x89PNG"


def test_audit_refuses_a_directory_without_an_audit_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert "not a run directory" in refused(capsys, "audit", str(tmp_path))
    run = run_directory(tmp_path / "old", "ppo")
    assert "no audit.csv" in refused(capsys, "audit", str(run))
    Table(run / "audit.csv", AUDIT).close()
    assert "no update yet" in refused(capsys, "audit", str(run))
    with (run / "audit.csv").open("a") as file:
        file.write("0,1,torn\n")
    assert cli.main(["audit", str(run)]) == 3 and "damaged: line 2 has 3 cells" in capsys.readouterr().err


def test_a_share_is_never_rounded_up_to_100_percent():
    assert percent(1.0) == "100%" and percent(1.0 - 1e-9) == "99.999%" and percent(0.5) == "50.000%"


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--help", "all"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "gpi train cheetah-run --algorithm geppo --seeds 5" in text
    wrapped = "".join(text.split())  # argparse breaks lines at spaces and hyphens
    for name, field in Config.__dataclass_fields__.items():
        option = "TASK" if name == "task" else f"--{name.replace('_', '-')}"
        assert re.search(rf"\n  {option}[ ,]", text) and "".join(field.metadata["help"].split()) in wrapped, name


def test_numbers_may_be_written_as_people_do():
    parsed = cli.parser().parse_args(["train", "cheetah-run", "--steps", "1e6", "--hidden", "32,16"])
    assert parsed.steps == 1_000_000 and parsed.hidden == (32, 16)
    assert cli.parser().parse_args(["train", "cheetah-run", "--step", "10", "--algo", "ppo"]).steps == 10
    assert dmc.find_spec("dmc/cheetah-run") == dmc.find_spec("cheetah-run")
