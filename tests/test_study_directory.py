"""The directory of a study: what was decided, more seeds and steps later, and names that become paths."""

import dataclasses
import json
from pathlib import Path

import pytest

from gpi.config import Config
from gpi.errors import FileError, UsageError
from gpi.study.definition import Job, builtin_text, load_study
from gpi.study.directory import FILE, Layout, StudyDir, continued, extended, last_timing, open_study, write_study
from gpi.study.engine import machine_layout
from gpi.study.engine.begin import Options, begin, chosen

LAYOUT = Layout("cpu", 1, {"PJRT_NPROC": "1", "XLA_FLAGS": ""}, {"envpool": "1.2.5"})


def job(seed: int = 0, seeds: int = 3, steps: int = 1000, **settings: object) -> Job:
    config = Config(task="cartpole-swingup", seed=seed, seeds=seeds, steps=steps)
    return Job("cartpole-swingup", "geppo", dataclasses.replace(config, **settings))  # type: ignore[arg-type]


def test_a_directory_says_what_was_written(tmp_path: Path):
    study = StudyDir(tmp_path / "a", "quick", LAYOUT, load_study("quick").jobs)
    write_study(study)
    assert open_study(tmp_path / "a") == study


def test_a_damaged_study_json_is_named_and_written_again(tmp_path: Path):
    before = begin(load_study("quick"), tmp_path / "a", Options())
    (tmp_path / "a" / "runs").mkdir()
    (tmp_path / "a" / FILE).write_text('{"format": ')
    with pytest.raises(
        FileError, match=r"^\S+/a: study\.json cannot be parsed .*; restore it, or remove it and continue"
    ):
        begin(load_study("quick"), tmp_path / "a", Options())
    (tmp_path / "a" / FILE).unlink()
    assert begin(load_study("quick"), tmp_path / "a", Options()) == before


@pytest.mark.parametrize(("options", "line"), [
    (Options(cores=0), "--cores 0 must be from 1"), (Options(only="nosuch"), "--only nosuch matches no job"),
    (Options(jobs=0), "--jobs 0 must be at least 1"),
])  # fmt: skip
def test_a_wrong_word_leaves_no_directory(options: Options, line: str, tmp_path: Path):
    with pytest.raises(UsageError, match=line):
        begin(load_study("quick"), tmp_path / "new" / "a", options)
    assert not list(tmp_path.iterdir())


def test_strict_keeps_the_normaliser_with_which_the_study_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of earlier versions `auto` was the paper's under strict; a new study has the still one, and says so."""
    path = tmp_path / "s.toml"
    text = 'tasks = "cartpole-swingup"\nseeds = {}\nsteps = 2000\n[[grid]]\nalgorithm = "geppo"\ntrust = "strict"\n'
    path.write_text(text.format(2))
    new = load_study(path)
    assert [one.config.normaliser for one in new.jobs] == ["still"]
    then = [one._replace(config=dataclasses.replace(one.config, normaliser="auto")) for one in new.jobs]
    write_study(StudyDir(tmp_path / "old", "s", LAYOUT, tuple(then)))
    path.write_text(text.format(3))
    monkeypatch.setattr(machine_layout, "require", lambda layout: None)
    study = begin(load_study(path), tmp_path / "old", Options())
    assert [(one.config.seed, one.config.seeds, one.config.normaliser) for one in study.jobs] == [
        (0, 2, "auto"), (2, 1, "auto")
    ]  # fmt: skip
    assert chosen(study, load_study(path), Options()) == list(study.jobs)


def test_names_of_own_environments_stay_names(tmp_path: Path):
    own = Job("mine", "ppo", Config(task="my_module:MyEnv-v0", algorithm="ppo"))
    write_study(StudyDir(tmp_path, "own", LAYOUT, (own,)))
    assert "my_module" not in (tmp_path / FILE).read_text()
    assert open_study(tmp_path).jobs[0].config.task == "mine"


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".", "x\n", 3])
def test_a_name_that_is_no_plain_name_is_refused(tmp_path: Path, name: object):
    write_study(StudyDir(tmp_path, "quick", LAYOUT, (job(),)))
    about = json.loads((tmp_path / FILE).read_text())
    about["jobs"][0]["arm"] = name
    (tmp_path / FILE).write_text(json.dumps(about))
    with pytest.raises(FileError, match="not plain"):
        open_study(tmp_path)


def test_more_seeds_are_another_block_and_more_steps_the_same_job():
    first = extended([], [job(seeds=3)])
    assert extended(first, [job(seeds=3)]) == first
    more = extended(first, [job(seeds=8, steps=2000)])
    assert [one.name for one in more] == ["cartpole-swingup/geppo/seeds-0-2", "cartpole-swingup/geppo/seeds-3-7"]
    assert [one.config.steps for one in more] == [2000, 2000]
    assert extended(more, [job(seeds=5, steps=2000)]) == more
    holes = extended([job(seed=2, seeds=1), job(seed=4, seeds=2)], [job(seeds=7)])
    blocks = [one.name.rpartition("seeds-")[2] for one in holes]
    assert blocks == ["2-2", "4-5", "0-1", "3-3", "6-6"]


def test_other_settings_under_the_same_name_are_refused():
    with pytest.raises(UsageError, match=r"gamma = 0.9, but this study began with 0.995; name another directory"):
        extended([job()], [job(gamma=0.9)])


@pytest.mark.parametrize(("before", "after", "line"), [
    ("name = 'quick'", "name = 'other'",
     r"holds the study 'quick', not 'other'; name another directory, or write name = \"quick\" into the file$"),
    ("steps = 50_000", "steps = 40_000", r"^steps = 40,000, but this study has 50,000, which are never taken back; "),
])  # fmt: skip
def test_another_study_and_fewer_steps_are_refused_and_nothing_is_written(
    tmp_path: Path, before: str, after: str, line: str
):
    text = builtin_text("quick").replace('"quick"', "'quick'")
    write_study(StudyDir(tmp_path / "a", "quick", LAYOUT, load_study("quick").jobs))
    content = (tmp_path / "a" / FILE).read_bytes()
    (tmp_path / "mine.toml").write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=line):
        begin(load_study(tmp_path / "mine.toml"), tmp_path / "a", Options())
    assert (tmp_path / "a" / FILE).read_bytes() == content and not (tmp_path / "a" / "study.toml").exists()


def test_an_arm_keeps_the_name_that_an_earlier_version_gave_it(tmp_path: Path):
    text = 'tasks = ["cartpole-swingup"]\n[[grid]]\nmax_grad_norm = [1e20]\ngamma = [0.9999999]\n'
    (tmp_path / "mine.toml").write_text(text)
    wanted = load_study(tmp_path / "mine.toml")
    old = StudyDir(tmp_path, "mine", LAYOUT, (wanted.jobs[0]._replace(arm="geppo-max_grad_norm1e+20-gamma1"),))
    write_study(old)
    assert continued(open_study(tmp_path), wanted).jobs == old.jobs == tuple(chosen(old, wanted, Options()))
    more = dataclasses.replace(wanted, jobs=(*wanted.jobs, wanted.jobs[0]._replace(config=job(gamma=0.9).config)))
    assert [one.arm for one in continued(old, more).jobs] == [old.jobs[0].arm, wanted.jobs[0].arm]


def test_steps_taken_ignores_a_torn_row(tmp_path: Path):
    assert last_timing(tmp_path)[0] == 0
    for text, steps in (("iteration,steps,seconds\n", 0), ("iteration,steps,s\n1,1024,0.5\n2,20", 1024), ("", 0)):
        (tmp_path / "timing.csv").write_text(text)
        assert last_timing(tmp_path)[0] == steps
