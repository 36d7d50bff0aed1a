"""A policy at any time: of the newest checkpoint while a run goes on, the best of its evaluations, or of its end."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_resume import ended, gpi_process, options_of

import envs_own
import gpi
from gpi import cli, files, policy_file, terminal
from gpi.callbacks import Evaluate, Report
from gpi.core import normaliser
from gpi.core.plan import ALGORITHMS
from gpi.envs.dmc import TASKS
from gpi.envs.seeds import env_seeds
from gpi.errors import FileError
from gpi.rundir import checkpoint, policies
from gpi.rundir.evaluations import read_evaluations
from gpi.rundir.policies import find
from gpi.standalone import sha256
from hostile import forge
from own_runs import TABLES, TINY, Watch, done

WRITTEN = Path(__file__).parent / "fixtures" / "runs-4027884"
UNFINISHED = "policies of the checkpoint at 1,244 steps; the run has not finished"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run that an earlier version trained, as a kill before its end would have left it."""
    run = Path(shutil.copytree(WRITTEN / "pendulum-getrpo", tmp_path / "run"))
    for name in ("DONE", "policy-0.safetensors"):
        (run / name).unlink()
    return run


def same(one: gpi.Policy, other: gpi.Policy) -> bool:
    """Return whether two policies are the same to the bit, and say the same of themselves."""
    ours, theirs = one.arrays(), other.arrays()
    equal = [x.dtype == theirs[name].dtype and x.tobytes() == theirs[name].tobytes() for name, x in ours.items()]
    return ours.keys() == theirs.keys() and all(equal) and one.about == other.about


# --- of a checkpoint ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cartpole-geppo", "pendulum-getrpo"])
def test_the_policies_of_a_checkpoint_are_those_that_the_end_would_have_written(name: str, tmp_path: Path):
    run = Path(shutil.copytree(WRITTEN / name, tmp_path / name))
    final = {seed: gpi.load(run, seed) for seed in gpi.Run(run).seeds}
    for path in (run / "DONE", *run.glob("policy-*")):
        path.unlink()
    found = find(run)
    assert found.policies.keys() == final.keys() and all(same(found.policies[seed], final[seed]) for seed in final)
    assert same(gpi.load(run), final[0]) and same(gpi.Run(run).policy(max(final)), final[max(final)])
    assert policies.MIN_STD == normaliser.MIN_STD


def test_names_of_observations_are_in_a_checkpoint_too(tmp_path: Path):
    kept = tmp_path / "kept"

    def keep(report: Report) -> None:
        if report.iteration == 2:
            shutil.copytree(report.directory, kept)

    settings = {**TINY, "num_envs": 2, "threads": 2, "checkpoint_every": 1, "callbacks": [keep]}
    run = gpi.train("trpo", envs_own.Choice, out=tmp_path / "r", steps=512, **settings)
    running = gpi.load(kept, 1)
    assert (
        running.about["observation_names"] == run.policy(1).about["observation_names"] == ["late[0]", "late[1]", "x[0]"]
    )
    assert int(running.about["steps"]) < done(run)["steps"][1] and running.start == 5
    assert same(find(run.dir).policies[1], policies.newest_policies(run.dir)[0][1]), "its last checkpoint is its end"


def test_a_run_that_has_not_finished_is_evaluated_exported_and_loaded_without_jax(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["eval", str(killed), "--episodes", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert UNFINISHED in printed.err
    assert json.loads(printed.out)["seeds"]["0"]["steps"] == gpi.evaluate(killed, episodes=1).steps[0] == 1244
    assert cli.main(["export", str(killed), "--out", str(tmp_path / "p")]) == 0
    assert UNFINISHED in capsys.readouterr().err and gpi.load(tmp_path / "p").about["steps"] == "1244"
    program = f"import gpi, sys; print(gpi.load({str(killed)!r})); assert 'jax' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "GaussianPolicy(Pendulum-v1, seed 0, 1,244 steps, 3 observations, 1 action)\n", shown.stderr


@pytest.mark.parametrize(("steps", "wins"), [("100", "1244"), ("1244", "1244"), ("9999", "9999")])
def test_of_a_run_that_goes_on_after_an_end_the_newer_policy_wins(killed: Path, steps: str, wins: str):
    arrays, metadata = files.decode((WRITTEN / "pendulum-getrpo" / "policy-0.safetensors").read_bytes())
    text = json.dumps(json.loads(metadata["gpi"]) | {"steps": steps})
    (killed / "policy-0.safetensors").write_bytes(policy_file.encode(arrays, text))
    assert gpi.load(killed).about["steps"] == wins
    assert f"{int(wins):,} steps; the run has not finished" in find(killed).notes[-1]
    (killed / "DONE").write_text("{}")
    assert gpi.load(killed).about["steps"] == steps and find(killed).notes == ()


def test_a_checkpoint_that_vanishes_while_it_is_read_is_read_again(killed: Path, monkeypatch: pytest.MonkeyPatch):
    listings = [[killed / "ckpt-000000003"], [killed / "ckpt-000000004"]]
    real = checkpoint.saved
    monkeypatch.setattr(checkpoint, "saved", lambda run: listings.pop() if listings else real(run))
    assert gpi.load(killed).about["steps"] == "1244"


def test_a_damaged_checkpoint_is_skipped_and_named(killed: Path):
    shutil.copytree(killed / "ckpt-000000005", killed / "ckpt-000000006")
    found = find(killed)
    assert "skipped checkpoint ckpt-000000006: manifest.json does not fit" in found.notes[0]
    assert found.notes[1] == UNFINISHED
    shutil.rmtree(killed / "ckpt-000000005")
    with pytest.raises(
        FileError, match=r"no policy that can be used: checkpoint ckpt-000000006.*`gpi resume .*` trains on"
    ):
        gpi.load(killed)


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no environment": lambda m: m["identity"].pop("environment"),
    "no settings": lambda m: m["identity"].update(config=[]),
    "other seeds": lambda m: m["identity"]["config"].update(seeds=10**9),
    "seeds that are no number": lambda m: m["identity"]["config"].update(seeds="1"),
    "a negative seed": lambda m: m["identity"]["config"].update(seed=-1),
    "a task that is no name": lambda m: m["identity"]["config"].update(task=7),
    "no algorithm": lambda m: m["identity"]["config"].pop("algorithm"),
    "other observations": lambda m: m["identity"]["environment"].update(observation_size=4),
    "observations that are no number": lambda m: m["identity"]["environment"].update(observation_size="x"),
    "bounds of another size": lambda m: m["identity"]["environment"].update(low=[0.0, 0.0]),
    "bounds that are no numbers": lambda m: m["identity"]["environment"].update(low=["x"]),
    "bounds exchanged": lambda m: m["identity"]["environment"].update(low=[2.0], high=[-2.0]),
    "discrete": lambda m: m["identity"]["environment"].update(discrete=True),
    "no start": lambda m: m["identity"]["environment"].update(discrete=True, start="1"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_contradicts_itself_is_no_policy(killed: Path, lie: str):
    forge(killed / "ckpt-000000005", LIES[lie])
    with pytest.raises(FileError, match="no policies can be read from it") as error:
        gpi.load(killed)
    assert str(error.value).isprintable() and len(str(error.value)) < 600


@pytest.mark.parametrize("steps", [[], ["1"], "1", None, [True]])
def test_a_checkpoint_without_its_steps_is_no_policy(killed: Path, steps: Any):
    forge(killed / "ckpt-000000005", state=files.dump_json({"steps": steps}))
    with pytest.raises(FileError, match="no policies can be read from it"):
        gpi.load(killed)


def test_without_any_policy_one_line_says_what_to_do(killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(killed / "ckpt-000000005")
    for command in ("eval", "export", "record"):
        assert cli.main([command, str(killed)]) == 2
        assert f"it has no checkpoint yet; wait, or `gpi resume {killed}`" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["eval", str(tmp_path / "empty")]) == 2
    assert "name a directory that `gpi train` made" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [("afile", b""), ("config.json", None), ("metrics.csv", None), ("notes.txt", b"x"), ("long", b"y" * 99)],
)
def test_a_file_of_another_kind_is_named_as_such(
    killed: Path, name: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
):
    if content is not None:
        (killed / name).write_bytes(content)
    for command in ("eval", "export"):
        assert cli.main([command, str(killed / name)]) == 3
        assert capsys.readouterr().err == (
            f"gpi: policy {killed / name}: not a policy file; name the run directory, {killed}\n"
        )


# --- evaluated in training ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[gpi.Run, Path]:
    """Train with evaluations; return the run, and what a kill after iteration 5 would have left of it."""
    folder = tmp_path_factory.mktemp("judged")

    def keep(report: Report) -> None:
        if report.iteration == 5:
            shutil.copytree(report.directory, folder / "killed")

    settings: dict[str, Any] = {**TINY, "eval_every": 1, "eval_episodes": 3, "callbacks": [keep]}
    return gpi.train("geppo", envs_own.Walk, out=folder / "run", steps=900, **settings), folder / "killed"


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "evaluations.csv").open() as file:
        return list(csv.DictReader(file))


def test_evaluations_change_no_bit_of_training(judged: tuple[gpi.Run, Path], walk: tuple[gpi.Run, Watch, Evaluate]):
    """`walk` was trained with the same settings, and evaluated at other iterations."""
    for name in (*TABLES, "policy-0.safetensors", "policy-1.safetensors"):
        assert (judged[0].dir / name).read_bytes() == (walk[0].dir / name).read_bytes(), name


def test_evaluations_leave_shared_random_numbers_as_they_were(tmp_path: Path):
    def trained(name: str, every: int) -> list[bytes]:
        np.random.seed(3)  # noqa: NPY002
        run = gpi.train("ppo", envs_own.Shared, out=tmp_path / name, steps=512, eval_every=every, **TINY)
        assert (run.dir / "evaluations.csv").exists() == bool(every)
        return [(run.dir / table).read_bytes() for table in TABLES]

    assert trained("on", 1) == trained("off", 0)


def test_the_best_policy_is_the_one_of_the_best_evaluation(judged: tuple[gpi.Run, Path]):
    for run in (judged[0].dir, judged[1]):
        rows = rows_of(run)
        assert [row.line.split(",") for row in read_evaluations(run)] == [list(row.values()) for row in rows]
        for seed in (0, 1):
            best = max((row for row in rows if row["seed"] == str(seed)), key=lambda row: float(row["return"]))
            about = gpi.load(run, seed, "best").about
            said = {name: about[name] for name in ("iteration", "steps", "evaluation", "episodes")}
            assert said == {"iteration": best["iteration"], "steps": best["steps"], "evaluation": best["return"],
                            "episodes": "3"}  # fmt: skip
    assert len(rows_of(judged[0].dir)) == 2 * done(judged[0])["iterations"]


def test_a_killed_run_comes_back_with_the_best_policies_of_its_checkpoint(judged: tuple[gpi.Run, Path], tmp_path: Path):
    """Iteration 5 was evaluated after the checkpoint of 4: it is forgotten, and evaluated again."""
    run, copy = judged[0].dir, Path(shutil.copytree(judged[1], tmp_path / "run"))
    assert max(int(row["iteration"]) for row in rows_of(copy)) == 5
    forged = gpi.load(copy, 0, "best").about | {"iteration": "5", "evaluation": "1e9", "format": "gpi-policy-2"}
    arrays, _ = files.decode((copy / "best-0.safetensors").read_bytes())
    (copy / "best-0.safetensors").write_bytes(policy_file.encode(arrays, json.dumps(forged)))
    watch = Watch()

    def look(report: Report) -> None:
        if not watch.reports:
            assert [int(row["iteration"]) for row in rows_of(copy)] == [i for i in range(1, 6) for _ in (0, 1)]
        watch(report)

    gpi.resume(copy, env=envs_own.Walk, quiet=True, callbacks=[look])
    assert watch.reports[0].iteration == 5
    for name in (
        *TABLES,
        "evaluations.csv",
        *(f"{kind}-{seed}.safetensors" for kind in ("policy", "best") for seed in (0, 1)),
    ):
        assert (copy / name).read_bytes() == (run / name).read_bytes(), name


def test_without_a_checkpoint_evaluations_begin_again(judged: tuple[gpi.Run, Path], tmp_path: Path):
    copy = Path(shutil.copytree(judged[1], tmp_path / "run"))
    for path in copy.glob("ckpt-*"):
        shutil.rmtree(path)
    seen: list[int] = []

    def look(report: Report) -> bool:
        seen.append(len(rows_of(copy)))
        return True

    gpi.resume(copy, env=envs_own.Walk, quiet=True, callbacks=[look])
    assert seen == [2]


def test_the_best_policies_in_a_checkpoint_are_checked(judged: tuple[gpi.Run, Path], tmp_path: Path):
    newest = max(judged[1].glob("ckpt-*"))
    best = checkpoint.load(newest, None).best
    assert best.keys() == {"best-0.safetensors", "best-1.safetensors"}
    assert all(policy_file.parse(data).about["evaluation"] for data in best.values())
    cases: dict[str, bytes | None] = {
        "does not fit": files.encode({"../best-0.safetensors": np.zeros(3, np.uint8)}),
        "best-0.safetensors, found": files.encode({"best-0.safetensors": np.zeros(3, np.float32)}),
        "manifest.json does not fit": None,
    }
    for number, (line, data) in enumerate(cases.items()):
        path = Path(shutil.copytree(newest, tmp_path / str(number) / newest.name))
        if data is None:
            (path / "best.safetensors").unlink()
        else:
            (path / "best.safetensors").write_bytes(data)
            facts = {"size": len(data), "sha256": sha256(data)}
            forge(path, lambda manifest, facts=facts: manifest["files"].update({"best.safetensors": facts}))
        with pytest.raises(FileError, match=line):
            checkpoint.load(path, None)


def test_policies_of_a_checkpoint_are_read_without_its_arrays(judged: tuple[gpi.Run, Path], tmp_path: Path):
    run = Path(shutil.copytree(judged[0].dir, tmp_path / "run"))
    packed, ended = checkpoint.read_policies(max(run.glob("ckpt-*"))), find(run).policies
    assert packed == {path.name: path.read_bytes() for path in run.glob("policy-*")}
    for path in (run / "DONE", *run.glob("policy-*"), *run.glob("ckpt-*/arrays.safetensors")):
        path.unlink() if path.parent == run else path.write_bytes(b"")
    assert [same(one, ended[seed]) for seed, one in find(run).policies.items()] == [True, True]
    for path in run.glob("ckpt-*/policies.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(FileError, match=r"policies\.safetensors has another size"):
        find(run)


def test_the_best_seed_of_last_policies_is_that_of_the_latest_evaluation(judged: tuple[gpi.Run, Path], tmp_path: Path):
    run = Path(shutil.copytree(judged[0].dir, tmp_path / "run"))
    best = int(gpi.load(run, "best", "best").about["seed"])
    with (run / "evaluations.csv").open("a") as file:
        file.write(f"{best},99,900,-5,,,1\n{1 - best},99,900,-4,,,1\n")
    assert gpi.load(run, "best").about["seed"] == str(1 - best)
    assert gpi.load(run, "best", "best").about["seed"] == str(best)


def test_the_episodes_that_choose_a_policy_do_not_judge_it(judged: tuple[gpi.Run, Path]):
    chose = {int(row["seed"]): float(row["return"]) for row in rows_of(judged[0].dir)}  # of the final policies
    judges = gpi.evaluate(judged[0], envs_own.Walk, episodes=3).means
    assert chose.keys() == judges.keys() and all(abs(chose[seed] - judges[seed]) > 1e-6 for seed in chose)


def test_best_is_chosen_by_name(judged: tuple[gpi.Run, Path], capsys: pytest.CaptureFixture[str]):
    run, rows = judged[0].dir, rows_of(judged[0].dir)
    means = {seed: [float(row["return"]) for row in rows if row["seed"] == str(seed)] for seed in (0, 1)}
    first = max(means, key=lambda seed: max(means[seed]))
    latest = max(means, key=lambda seed: means[seed][-1])
    assert gpi.load(run, "best", "best").about["seed"] == str(first)
    assert judged[0].policy("best").about["seed"] == str(latest)
    assert list(gpi.evaluate(run, envs_own.Walk, policy="best", seed="best", episodes=2).returns) == [first]
    options = ["--env", "envs_own:Walk", "--policy", "best", "--episodes", "2"]
    assert cli.main(["eval", str(run), *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"best of {len(rows) // 2} evaluations of each seed")
    assert cli.main(["eval", str(run), *options, "--seed", "best"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"chosen for its mean ({first}: {max(means[first]):.2f}), which is therefore too high" in last
    assert "the best of 2 seeds is not typical of the algorithm" in last


def test_the_best_is_exported_under_its_own_name(judged: tuple[gpi.Run, Path], tmp_path: Path):
    run = Path(shutil.copytree(judged[1], tmp_path / "run"))
    assert cli.main(["export", str(run), "--policy", "best", "--seed", "1"]) == 0
    assert gpi.load(run / "best-1-numpy").about["evaluation"] == gpi.load(run, 1, "best").about["evaluation"]


def test_best_is_refused_where_nothing_was_evaluated(killed: Path, capsys: pytest.CaptureFixture[str]):
    for options in (["--policy", "best"], ["--seed", "best"]):
        for command in ("eval", "record", "export"):
            assert cli.main([command, str(killed), *options]) == 2
            assert "none was evaluated in training; train with --eval-every" in capsys.readouterr().err
    wrong: dict[str, Any]
    for wrong in ({"policy": "worst"}, {"seed": "worst"}, {"seed": 7}):
        with pytest.raises(gpi.UsageError, match=r"worst' must be|no policy of seed 7; it has \[0\]"):
            gpi.load(killed, **wrong)
    with pytest.raises(gpi.UsageError, match="is a single policy"):
        gpi.load(WRITTEN / "pendulum-getrpo" / "policy-0.safetensors", policy="best")


def test_evaluations_play_other_episodes_than_training_and_than_eval():
    """For every task and algorithm, and more seeds than a study has."""
    for task in TASKS.values():
        numbers = [
            {n for seed in range(20) for n in env_seeds(task.id, purpose, seed, 16)}
            for purpose in (*ALGORITHMS, "evaluation", "evaluation in training")
        ]
        for judging in numbers[-2:]:
            assert sum(len(judging & other) for other in numbers) == len(judging)


def test_how_often_to_evaluate_decides_no_bit_and_is_checked():
    with pytest.raises(gpi.UsageError, match="eval_episodes = 0 must be at least 1"):
        gpi.train("ppo", "Pendulum-v1", eval_every=5, eval_episodes=0)
    with pytest.raises(gpi.UsageError, match="eval_every = -1 must be 0 or more"):
        gpi.train("ppo", "Pendulum-v1", eval_every=-1)


def test_a_damaged_table_of_evaluations_is_one_line(judged: tuple[gpi.Run, Path], tmp_path: Path):
    copy = Path(shutil.copytree(judged[1], tmp_path / "run"))
    (copy / "evaluations.csv").write_text("seed\nx,1\n")
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file() and path.name != "run.lock"}
    with pytest.raises(FileError, match=r"evaluations.csv cannot be read .*; restore it, or remove it"):
        gpi.resume(copy, env=envs_own.Walk, quiet=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.name in before} == before
    assert gpi.load(copy, 0, "best")


@pytest.mark.slow
def test_a_run_killed_while_it_evaluates_ends_as_if_never_killed(tmp_path: Path):
    settings = {"seeds": 2, "n": 1000, "hidden": (8,), "epochs": 1, "minibatches": 4, "algorithm": "geppo",
                "steps": 8000, "checkpoint_every": 2, "eval_every": 1, "eval_episodes": 2}  # fmt: skip
    for name, every in (("whole", 1), ("off", 0)):
        options = options_of({**settings, "eval_every": every})
        ended(gpi_process("train", "cartpole-balance", *options, "--out", str(tmp_path / name)), 0)
    run = tmp_path / "killed"
    for kill in ("write.before_rename:3", "write.after_rename:8", "ckpt.before_rename:1", "write.before_rename:7"):
        started = (run / "config.json").exists()
        arguments = (
            ["resume", str(run)] if started else ["train", "cartpole-balance", *options_of(settings), "--out", str(run)]
        )
        ended(gpi_process(*arguments, failpoint=kill), -9)
    ended(gpi_process("resume", str(run)), 0)
    kept = [*TABLES, "policy-0.safetensors", "policy-1.safetensors"]
    for name in (*kept, "evaluations.csv", "best-0.safetensors", "best-1.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (run / name).read_bytes(), name
    for name in kept:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "off" / name).read_bytes(), name


# --- what eval prints ---------------------------------------------------------------------------------------------


def test_one_episode_has_no_interval(killed: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["eval", str(killed), "--episodes", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[3] == "-"
    assert cli.main(["eval", str(killed), "--episodes", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["low"] is printed["high"] is printed["seeds"]["0"]["interval"] is None


def test_eval_shows_its_progress(killed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(terminal, "PLAIN_SECONDS", 0.0)
    assert cli.main(["eval", str(killed), "--episodes", "2"]) == 0
    assert "episodes: 2 of 2" in capsys.readouterr().err
    gpi.evaluate(killed, episodes=1, quiet=True)
    assert capsys.readouterr().err == ""


def test_only_the_setting_at_fault_is_named(killed: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["eval", str(killed), "--episodes", "0"]) == 2
    assert capsys.readouterr().err == "gpi: episodes = 0 must be a whole number of at least 1; use 1 or more\n"
    assert cli.main(["eval", str(killed), "--max-steps", "-1"]) == 2
    assert capsys.readouterr().err == "gpi: max_steps = -1 must be a whole number of at least 1; use 1 or more\n"
