"""How far a study is: from its files alone, on a screen that fits, and fast for the paper's 336 jobs."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpi import cli
from gpi.cli.status_screen import cell, number, screen
from gpi.study.definition import Job, load_study
from gpi.study.directory import Failure, StudyDir, write_failure
from gpi.study.engine.locks import runner_file
from gpi.study.gathered import merge
from gpi.study.status import JobStatus, State, Status, Watch
from made_runs import job, make_run, make_study, write


def halfway(path: Path) -> tuple[StudyDir, dict[str, Job]]:
    """A study with a job in each state, and one that was done elsewhere."""
    arms = ("ppo", "trpo", "vmpo", "geppo-kappa1", "getrpo-kappa1", "gevmpo-kappa1")
    jobs = {arm: job(arm=arm, algorithm=arm.partition("-")[0]) for arm in arms}
    study = make_study(path / "a", *jobs.values(), runs=False)
    make_run(study.run(jobs["ppo"]), jobs["ppo"].config)
    make_run(study.run(jobs["trpo"]), jobs["trpo"].config, 8_000)
    make_run(study.run(jobs["vmpo"]), jobs["vmpo"].config, 5_000)
    write_failure(study, jobs["geppo-kappa1"], Failure("gpi: it \x1b[31mdiverged", 7, 1))
    make_run(path / "elsewhere", jobs["getrpo-kappa1"].config)
    merge(study.path, [path / "elsewhere"])
    return study, jobs


def test_each_state_is_what_the_files_say(tmp_path: Path):
    study, jobs = halfway(tmp_path)
    before = sorted(path for path in study.path.rglob("*"))
    with runner_file(study.path) as file:
        file.write({"running": [{"job": jobs["trpo"].name}]})
        status = Watch(study.path).look()
    states = {one.job.arm: one.state for one in status.jobs}
    assert states == {
        "ppo": "done", "trpo": "running", "vmpo": "waiting", "geppo-kappa1": "failed", "getrpo-kappa1": "done",
        "gevmpo-kappa1": "waiting",
    }  # fmt: skip
    assert status.counts == {"done": 2, "running": 1, "waiting": 2, "failed": 1}
    assert status.steps == 2 * (20_000 + 8_000 + 5_000 + 20_000) and status.goal == 12 * 20_000
    assert status.rate == pytest.approx(2 * 2_000.0), "two seeds, 1,000 steps in half a second each"
    left = (0.6 + 0.75 + 1.0) / (2_000 / 20_000)
    assert status.seconds_left == pytest.approx(left, rel=0.2), "the estimates of three arms differ a little"
    assert sorted(path for path in study.path.rglob("*") if "runners" not in path.parts) == before, "nothing is written"
    states = {one.job.arm: one.state for one in Watch(study.path).look().jobs}
    assert states["trpo"] == "waiting", "its runner has ended"


def test_a_job_that_goes_on_runs_whoever_runs_it(tmp_path: Path):
    study, jobs = halfway(tmp_path)
    watch = Watch(study.path)
    assert watch.look().counts["running"] == 0
    rows = [f"{i},{1000 * i},0.1,0.1,{0.25 * i}" for i in range(1, 10)]
    write(study.run(jobs["trpo"]) / "timing.csv", "iteration,steps,collect_seconds,learn_seconds,seconds", rows)
    status = watch.look()
    assert status.counts["running"] == 1 and status.rate == pytest.approx(8_000.0)


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study, _ = halfway(tmp_path)
    watch = Watch(study.path)
    first = watch.look()
    for name in ("ended", "timing_of", "recent_return", "packed", "open_study"):
        monkeypatch.setattr(f"gpi.study.status.{name}", lambda *_: pytest.fail("read again"))
    assert watch.look().as_json() == first.as_json()


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study, _ = halfway(tmp_path)
    assert cli.main(["study", "status", str(study.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["done"] == 2 and found["failed"] == 1 and found["seconds_left"] is None and len(found["jobs"]) == 6
    by_arm = {one["arm"]: one for one in found["jobs"]}
    assert by_arm["geppo-kappa1"]["line"] == "gpi: it \x1b[31mdiverged" and by_arm["gevmpo-kappa1"]["return"] is None
    done = json.loads((study.run(study.jobs[0]) / "DONE").read_text())["returns"].values()
    assert by_arm["ppo"]["return"] == pytest.approx(sum(done) / 2, abs=1e-3) and by_arm["vmpo"]["return"] > 0


def test_the_text_says_it_in_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study, _ = halfway(tmp_path)
    assert cli.main(["study", "status", str(study.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "made: 6 jobs: 2 done, 0 running, 3 waiting, 1 failed"
    assert lines[1] == "106,000 of 240,000 steps (44 %)"
    assert lines[3] == "  cheetah-run/geppo-kappa1/seeds-0-1: gpi: it ?[31mdiverged"
    assert lines[-2].startswith("cheetah-run") and lines[-2].split()[-2:] != [] and "·" in lines[-2]


PAPER = load_study("paper").jobs


@pytest.mark.parametrize("columns", [20, 40, 80, 120, 250])
@pytest.mark.parametrize("rows", [5, 10, 24, 60, None])
@pytest.mark.parametrize("state", ["done", "running", "failed"])
def test_the_screen_fits(columns: int, rows: int | None, state: State):
    lines = screen(Status("x", tuple(JobStatus(one, state, 9, -1e3, 1.0, "x" * 300) for one in PAPER)), columns, rows)
    assert max(map(len, lines)) <= columns and (rows is None or len(lines) <= rows)
    if columns >= 80 and rows is None:
        assert sum(line.startswith("humanoid") for line in lines) == 3, "every task"
        assert any(len(line.split()) == 13 for line in lines), "every arm"
    if columns == 40:
        assert any("…" in line for line in lines)


def test_returns_of_a_thousand_and_more_are_whole():
    jobs = [JobStatus(job("Pendulum-v1", arm), "done", 9, x, 0.0) for arm, x in (("ppo", -1262.4), ("trpo", -99.6))]
    *_, head, line, _ = screen(Status("x", tuple(jobs)), 80)
    assert screen(Status("x", tuple(jobs[:1])), 80)[0].startswith("x: 1 job: 1 done")
    assert head == "return so far     a      b" and line == "Pendulum-v1   -1262   -100"
    assert [number(x, 7) for x in (-1234.4, 12345.0, -99_999.0)] == ["-1234", "12345", "-100k"]


def test_numbers_take_four_columns():
    values = [0.0, 1.234, -9.96, 99.9, 999.9, -99.9, -1234.0, 12345.0, -123456.0, 1e7, -1e30, 1e300]
    assert all(len(number(x)) <= 4 for x in values) and [number(x) for x in values[:4]] == ["0.0", "1.2", "-10", "100"]
    blocks = [JobStatus(job(seed=n), "done", 1, 10.0 * n, 0.0) for n in (1, 3)]
    assert cell(blocks) == "  20 ", "two blocks of seeds"


def test_the_papers_study_is_looked_at_in_a_second(tmp_path: Path):
    study = make_study(tmp_path / "a", *PAPER, runs=False)
    make_run(tmp_path / "one", job(steps=1_000_000, seeds=5).config)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    for one in study.jobs:
        study.run(one).mkdir(parents=True)
        for name, data in files.items():
            (study.run(one) / name).write_bytes(data)
    watch = Watch(study.path)
    spent = []
    for _ in range(2):
        start = time.process_time()
        assert watch.look().counts["done"] == 336
        spent.append(time.process_time() - start)
    assert spent[0] < 1.0 and spent[1] < 0.5


def test_packs_alone_are_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make_run(tmp_path / "x", job(arm="geppo", kappa=0.5, lr=0.001).config)
    merge(tmp_path / "d", [tmp_path / "x"])
    assert cli.main(["study", "status", str(tmp_path / "d")]) == 0
    assert "a geppo-kappa0.5-lr0.001" in capsys.readouterr().out


def test_on_a_terminal_it_refreshes_until_ctrl_c(tmp_path: Path):
    study, jobs = halfway(tmp_path)
    terminal, inner = pty.openpty()
    command = [sys.executable, "-m", "gpi", "study", "status", str(study.path)]
    child = subprocess.Popen(command, stdout=inner, stderr=inner, stdin=inner, env={**os.environ, "TERM": "xterm"})
    os.close(inner)
    try:
        seen = until(terminal, "3 waiting")
        assert "cheetah-run" in seen + until(terminal, "not begun")
        make_run(study.run(jobs["gevmpo-kappa1"]), jobs["gevmpo-kappa1"].config)
        until(terminal, "2 waiting")
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
    finally:
        child.kill()
        os.close(terminal)


def until(terminal: int, text: str) -> str:
    """Read from a terminal until it has shown a text."""
    seen, end = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen
