"""A study made in parts: gathered, packed and merged, each result once; foreign files are read without trust."""

import dataclasses
import json
from pathlib import Path

import pytest

import gpi
import hostile
from gpi import cli
from gpi.config import Config
from gpi.errors import FileError, GpiError, UsageError
from gpi.study import gathered as gathering
from gpi.study.gathered import covered, gathered, merge
from gpi.study.results import Result, encode_pack, read_pack, write_pack
from gpi.study.sources import TAKEN, read_source
from made_runs import VERSIONS, job, make_run, make_study

DATA = Path(__file__).parents[1] / "benchmarks" / "study"


def same(a: list[Result], b: list[Result]) -> bool:
    return sorted(encode_pack([one]) for one in a) == sorted(encode_pack([one]) for one in b)


# --- one study ------------------------------------------------------------------------------------------------------


def test_all_results_of_a_study_are_gathered_once(tmp_path: Path):
    jobs = [job(arm="ppo"), job(arm="trpo"), job(task="walker-run"), job(task="fish-swim")]
    study = make_study(tmp_path / "a", *jobs, runs=False)
    make_run(study.run(jobs[0]), jobs[0].config)
    make_run(study.run(jobs[1]), jobs[1].config, 9_500)
    make_run(tmp_path / "elsewhere" / "x", jobs[2].config)
    assert [one.config for one in gathered(study.path)] == [jobs[0].config]
    assert [one.config for one in gathered(study.path, unfinished=True)] == [jobs[0].config, jobs[1].config]
    merge(study.path, [tmp_path / "elsewhere", study.run(jobs[0])])
    assert [one.config for one in gathered(study.path)] == [jobs[0].config, jobs[2].config]
    assert covered(study) == {jobs[2].name}
    assert [one.config.task for one in gathered(tmp_path / "elsewhere")] == ["walker-run"], "a tree of runs will do"
    with pytest.raises(UsageError, match="is not a study directory, and holds no runs"):
        gathered(tmp_path / "nothing")


def test_a_finished_run_is_read_from_its_tables_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = make_study(tmp_path / "a", job())
    first = gathered(study.path)
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "read_run", lambda *_: pytest.fail("read again"))
        assert same(gathered(study.path), first)
    (small,) = (tmp_path / "a" / "cache").iterdir()
    small.write_bytes(b"damaged")
    assert same(gathered(study.path), first)
    longer = dataclasses.replace(study.jobs[0].config, steps=30_000)
    for path in study.run(study.jobs[0]).iterdir():
        path.unlink()
    study.run(study.jobs[0]).rmdir()
    make_run(study.run(study.jobs[0]), longer)
    assert gathered(study.path)[0].steps == (30_000, 30_000)


def test_a_study_directory_that_cannot_be_written_is_read_all_the_same(tmp_path: Path):
    study = make_study(tmp_path / "a", job())
    (study.path / "cache").write_text("in the way")
    assert len(gathered(study.path)) == 1


def test_names_of_own_environments_go_with_results(tmp_path: Path):
    code = "my_module:MyEnv-v0"
    mine, own = job(task="mine"), job(task="mine", arm="trpo")
    study = make_study(tmp_path / "a", mine, own, runs=False)
    make_run(study.run(mine), dataclasses.replace(mine.config, task=code))
    assert [one.config.task for one in gathered(study.path)] == ["mine"]
    make_run(tmp_path / "plain", dataclasses.replace(own.config, task=code))
    merge(study.path, [tmp_path / "plain"], {"mine": code})
    assert covered(study) == {own.name}
    assert {one.config.task for one in gathered(study.path)} == {"mine"}
    other = make_study(tmp_path / "b", own, runs=False)
    merge(other.path, [tmp_path / "plain"])
    assert covered(other) == set() and covered(other, {"mine": code}) == {own.name}


# --- parts become one -----------------------------------------------------------------------------------------------


def test_packs_trees_and_studies_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make_study(tmp_path / "a", job(), job(arm="trpo"))
    make_run(tmp_path / "tree" / "deep" / "one", job(task="walker-run").config)
    make_run(tmp_path / "tree" / "begun", job(task="fish-swim").config, 4_000)
    make_run(tmp_path / "runs" / "..odd name\n", job(arm="geppo-kappa1", algorithm="geppo").config)
    assert cli.main(["study", "pack", str(tmp_path / "a"), "--out", str(tmp_path / "a.safetensors")]) == 0
    assert "2 results, 1 task, 2 arms, 4 seeds, 0.0" in capsys.readouterr().out
    out = str(tmp_path / "new" / "all")
    parts = [str(tmp_path / name) for name in ("a.safetensors", "tree", "runs", "a")]
    assert cli.main(["study", "merge", out, *parts]) == 0
    said = capsys.readouterr().out
    assert "5 results, 3 tasks, 3 arms, 10 seeds came in" in said and "of these 1 have not ended" in said
    assert "2 results were there already" in said
    assert cli.main(["study", "merge", out, *parts]) == 0 and "came in" not in capsys.readouterr().out
    (pack,) = (tmp_path / "new" / "all" / "packs").iterdir()
    assert len(read_pack(pack)) == 5 and len(gathered(out)) == 4
    assert cli.main(["study", "pack", out, "--out", str(tmp_path / "again.safetensors")]) == 0
    assert "left out: 1 run that have not ended" in capsys.readouterr().out
    assert cli.main(["study", "pack", out, "--all", "--out", str(tmp_path / "again.safetensors")]) == 0
    assert same(read_pack(tmp_path / "again.safetensors"), gathered(out, unfinished=True))


def test_the_data_of_the_repository_are_taken_as_they_are(tmp_path: Path):
    came = merge(tmp_path / "d", [DATA / "reuse.safetensors"])
    assert len(came.new) == 30 and all(one.complete and one.config.seeds == 10 for one in came.new)
    assert {one.config.B for one in came.new} == {1, 2, 4, 8, 16}


def test_contradictions_are_refused_in_one_line_that_names_both(tmp_path: Path):
    study = make_study(tmp_path / "a", job())
    make_run(tmp_path / "other", job().config, luck=1)
    with pytest.raises(UsageError, match=r"two different results of cheetah-run, ppo, seeds 0 to 1: \S+/a/runs/\S+ and "
                                         r"\S+/other; leave one out"):  # fmt: skip
        merge(study.path, [tmp_path / "other"])
    make_run(tmp_path / "new", job(arm="trpo").config, versions=VERSIONS | {"envpool": "1.3.0"})
    with pytest.raises(UsageError, match=r"results of EnvPool 1\.2\.5 and 1\.3\.0, .*/a/runs/\S+ and \S+/new"):
        merge(study.path, [tmp_path / "new"])
    make_run(tmp_path / "part", job(seed=1, seeds=3).config)
    with pytest.raises(UsageError, match="two different results"):
        merge(study.path, [tmp_path / "part"])
    assert not (study.path / "packs").exists(), "nothing came in"
    waiting = make_study(tmp_path / "b", job(), runs=False)
    with pytest.raises(UsageError, match=r"some seeds of cheetah-run/ppo/seeds-0-1 have a result, .* with seed 0 too"):
        merge(waiting.path, [tmp_path / "part"])


def test_a_result_takes_the_place_of_what_it_continues(tmp_path: Path):
    config = dataclasses.replace(job().config, steps=40_000)
    make_run(tmp_path / "begun", config, 24_000)
    make_run(tmp_path / "later", config, 36_000)
    make_run(tmp_path / "end", config)
    make_run(tmp_path / "another", config, 38_000, luck=1)
    out = tmp_path / "all"
    for name, steps in (("later", 36_000), ("begun", 36_000), ("end", 40_000), ("later", 40_000), ("another", 40_000)):
        merge(out, [tmp_path / name])
        (result,) = gathered(out, unfinished=True)
        assert result.steps == (steps, steps), name
    with pytest.raises(UsageError, match="two different results"):
        merge(tmp_path / "b", [tmp_path / "later", tmp_path / "another"])


def test_a_run_that_is_being_extended_is_not_complete(tmp_path: Path):
    study = make_study(tmp_path / "a", job())
    about = json.loads((study.run(study.jobs[0]) / "config.json").read_text())
    about["config"]["steps"] = 50_000
    (study.run(study.jobs[0]) / "config.json").write_text(json.dumps(about))
    assert gathered(study.path) == [] and len(gathered(study.path, unfinished=True)) == 1


@pytest.mark.parametrize(("words", "line"), [
    (("pack", "a", "--out", "x.pt"), "--out x.pt must end in .safetensors"),
    (("pack", "empty", "--out", "x.safetensors"), "empty is not a study directory, and holds no runs"),
    (("pack", "begun", "--out", "x.safetensors"), "has no complete result; --all takes those that have not ended"),
    (("pack", "nothing", "--out", "x.safetensors"), "nothing does not exist"),
    (("merge", "d", "nothing"), "nothing does not exist"),
    (("merge", "d", "empty"), "empty holds no result"),
    (("merge", "full", "a"), "full is not a study directory; name one, or a new one"),
    (("merge", "d", "a", "--env", "x"), "--env x must be NAME=MODULE:ID"),
    (("status", "empty"), "empty is not a study directory"),
])  # fmt: skip
def test_a_wrong_word_is_one_line(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    make_study(tmp_path / "a", job())
    make_run(tmp_path / "begun" / "x", job().config, 3_000)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1 and not (tmp_path / "d").exists()


# --- files from other people ----------------------------------------------------------------------------------------


def good_files(tmp_path: Path) -> dict[str, bytes]:
    make_run(tmp_path / "good", job().config)
    return {path.name: path.read_bytes() for path in sorted((tmp_path / "good").iterdir())}


def test_hostile_files_are_refused_in_one_line(tmp_path: Path):
    (tmp_path / "in").mkdir()
    for label, data in hostile.payloads(tmp_path).items():
        for name in ("x.safetensors", "x.tar.xz"):
            path = tmp_path / "in" / name
            path.write_bytes(data)
            with pytest.raises(GpiError) as raised:
                merge(tmp_path / "d", [path])
            assert "\n" not in str(raised.value) and len(str(raised.value)) < 500, label
    with pytest.raises(UsageError, match="is an archive; unpack it and name the directory"):
        read_source(tmp_path / "in" / "x.tar.xz")
    assert [one.name for one in tmp_path.iterdir()] == ["in"], "nothing was made, nothing ran"


@pytest.mark.parametrize("name", TAKEN)
def test_odd_files_in_a_run_are_refused(name: str, tmp_path: Path):
    good = good_files(tmp_path)
    (tmp_path / "target").write_bytes(good.get(name, b"x"))
    for label, make in hostile.ODD.items():
        if label == "hardlink" and name not in ("config.json", "DONE"):
            continue  # of tables, as backups have them
        run = tmp_path / label
        make_run(run, job().config)
        (run / name).unlink(missing_ok=True)
        make(run / name, tmp_path / "target")
        with pytest.raises(GpiError) as error:
            merge(tmp_path / "d", [run])
        assert "\n" not in str(error.value), label
    assert not (tmp_path / "d").exists()


FORGED: list[tuple[str, object]] = [
    ("DONE", {"complete": True, "steps": [10**18] * 2, "frozen": {}}),
    ("DONE", {"complete": True, "steps": [20_000], "frozen": {}}),
    ("DONE", {"complete": True, "steps": [-1, -1], "frozen": {}}),
    ("DONE", "null"), ("audit.json", [1]), ("audit.json", '{"a": NaN}'),
    ("episodes.csv", "seed,steps,return,length\n0,500,nan,500\n"),
    ("episodes.csv", "seed,steps,return,length\n0,500,inf,500\n"),
    ("episodes.csv", "seed,steps,return,length\n0,500,1e300,500\n"),
    ("episodes.csv", f"seed,steps,return,length\n0,{10**30},1,500\n"),
    ("episodes.csv", "seed,steps,return,length\n0,-5,x,500\n"), ("episodes.csv", "seed,steps\n0\n"),
    ("episodes.csv", b"\xff\xfe"),
    ("config.json", {"config": {"task": "x", "algorithm": "ppo", "seed": 0, "seeds": 10**6}}),
    ("config.json", {"config": {"task": "x", "algorithm": "evil", "seed": 0, "seeds": 1}}),
    ("config.json", {"config": {"task": ["x"], "algorithm": "ppo", "seed": 0, "seeds": 2}}),
    ("config.json", {"config": dataclasses.asdict(Config(task="x", algorithm="ppo", seeds=2)), "versions": 3}),
    ("config.json", {"config": dataclasses.asdict(Config(task="x", algorithm="ppo", seeds=2)), "devices": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), FORGED, ids=lambda x: str(x)[:40])
def test_forged_runs_are_refused(name: str, content: object, tmp_path: Path):
    make_run(tmp_path / "run", job().config)
    data = (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    (tmp_path / "run" / name).write_bytes(data)
    with pytest.raises(GpiError) as error:
        merge(tmp_path / "d", [tmp_path / "run"])
    assert "\n" not in str(error.value) and len(str(error.value)) < 600 and not (tmp_path / "d").exists()


def test_a_pack_is_loaded_as_it_is(tmp_path: Path):
    study = make_study(tmp_path / "a", job(), job(arm="trpo"))
    write_pack(tmp_path / "p.safetensors", gathered(study.path))
    found = gpi.study.load(tmp_path / "p.safetensors")
    assert same(list(found.runs), gathered(study.path)) and set(found.finals) == {"ppo", "trpo"}


def test_what_is_no_pack_is_said_to_be_none(tmp_path: Path):
    (tmp_path / "keep8.toml").write_text('tasks = ["cheetah-run"]\n' * 20)
    write_pack(tmp_path / "p.safetensors", gathered(make_study(tmp_path / "a", job()).path))
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "p.safetensors").read_bytes()[:500])
    for name in ("keep8.toml", "cut.safetensors"):
        with pytest.raises(FileError, match=rf"^pack \S+/{name}: it is not a pack, or only a part of one: "):
            merge(tmp_path / "d", [tmp_path / name])


def test_a_hostile_pack_in_a_study_is_refused_by_name(tmp_path: Path):
    study = make_study(tmp_path / "a", job())
    write_pack(tmp_path / "p.safetensors", gathered(study.path))
    (study.path / "packs").mkdir()
    data = (tmp_path / "p.safetensors").read_bytes()
    for bad in (data[:-1], b"", data.replace(b"cheetah", b"cheetax")):
        (study.path / "packs" / "x.safetensors").write_bytes(bad)
        with pytest.raises(FileError, match=r"^pack .*/packs/x\.safetensors: "):
            gathered(study.path)
