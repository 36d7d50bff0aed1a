"""`gpi study run` with real processes: several runners, kills, interrupts, failures; the same results to the byte."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gpi
from gpi.cli import main
from gpi.errors import UsageError
from gpi.study.definition import load_study
from gpi.study.directory import last_timing, open_study
from gpi.study.engine.begin import Options, begin
from gpi.study.engine.locks import read_runners
from gpi.study.gathered import covered
from gpi.study.results import read_result, write_pack
from studies import STUDY, children, ended, environment, lives, results, runner, wait_for, write_study

JOBS = 4


def begins(out: Path, job: str) -> int:
    """Return how often a job has been begun or continued."""
    log = out / "logs" / f"{job}.log"
    return log.read_text().count(", writing ") if log.exists() else 0


def iterating(out: Path, least: int = 1) -> bool:
    """Return whether so many jobs have taken steps."""
    return sum(last_timing(path.parent)[0] > 0 for path in (out / "runs").rglob("timing.csv")) >= least


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A study that two runners did together, started at the same moment; and what each printed."""
    place = tmp_path_factory.mktemp("study")
    study, out = write_study(place), place / "out"
    both = [runner(study, out, "--jobs", "1") for _ in range(2)]
    return out, [ended(one, 0) for one in both]


engine_group = pytest.mark.xdist_group("study-engine")


@engine_group
def test_two_runners_started_together_take_disjoint_jobs_and_do_them_all(undisturbed: tuple[Path, list[str]]):
    out, printed = undisturbed
    done = [[line.split()[1].rstrip(":") for line in text.splitlines() if line.startswith("done ")] for text in printed]
    assert sorted(done[0] + done[1]) == sorted(job.name for job in open_study(out).jobs)
    assert all(begins(out, job.name) == 1 for job in open_study(out).jobs)
    assert min(map(len, done)) >= 1, "one runner did everything"
    assert all("final return " in line for text in printed for line in text.splitlines() if line.startswith("done "))
    assert all(f"next: gpi study report {out}" in text for text in printed)
    assert len(results(out)) == JOBS * 5
    assert not list((out / "runners").iterdir())


@engine_group
def test_a_study_survives_kills_of_jobs_and_runner_and_ctrl_c(undisturbed: tuple[Path, list[str]], tmp_path: Path):
    study, out = write_study(tmp_path), tmp_path / "out"
    first = runner(study, out, "--only", "CartPole-v1")
    wait_for(lambda: iterating(out))
    victim = children(first)[0]
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(children(first)) == 2 and victim not in children(first))
    assert [one["pid"] for one in read_runners(out)] == [first.pid]
    alive, jobs = children(first), [f"CartPole-v1/{arm}/seeds-0-1" for arm in ("ppo", "geppo")]
    first.kill()
    printed = ended(first, -signal.SIGKILL)
    before = sum(begins(out, job) for job in jobs)
    assert "killed by SIGKILL" in printed
    second = runner(study, out, "--only", "CartPole-v1")  # while the jobs of the first may still be saving
    wait_for(lambda: not any(map(lives, alive)), 60.0)
    wait_for(lambda: children(second) and sum(begins(out, job) for job in jobs) > before)
    second.send_signal(signal.SIGINT)
    assert "interrupted, all saved; `gpi study run " in ended(second, 130)
    assert children(second) == []
    ended(runner(study, out, "--only", "CartPole-v1"), 0)
    expected = {name: content for name, content in results(undisturbed[0]).items() if "CartPole" in name}
    assert results(out) == expected


@engine_group
def test_a_finished_study_has_nothing_to_do_and_its_runner_never_starts_jax(undisturbed: tuple[Path, list[str]]):
    out, _ = undisturbed
    script = (
        "import sys, gpi; ended = gpi.study.run(sys.argv[1], sys.argv[2], quiet=True); "
        "print(ended.done, ended.left, dict(ended.failed), ended.exit_code, 'jax' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(out.parent / "small.toml"), str(out)]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["4", "0", "{}", "0", "False"]


@pytest.mark.slow
def test_more_steps_are_a_resume_and_more_seeds_another_block(undisturbed: tuple[Path, list[str]], tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(undisturbed[0], out)
    study = write_study(
        tmp_path, 20_000, STUDY.replace("steps = {steps}", "steps = 21_000").replace("= 2\n", "= 3\n", 1)
    )
    printed = ended(runner(study, out, "--only", "CartPole-v1/geppo"), 0)
    assert "2 of 2 jobs done" in printed
    assert last_timing(out / "runs/CartPole-v1/geppo/seeds-0-1")[0] >= 21_000
    assert last_timing(out / "runs/CartPole-v1/geppo/seeds-2-2")[0] >= 21_000
    assert begins(out, "CartPole-v1/geppo/seeds-0-1") == 2
    assert begins(out, "CartPole-v1/ppo/seeds-0-1") == 1
    assert len(open_study(out).jobs) == 8


@engine_group
def test_jobs_that_a_pack_covers_are_done(undisturbed: tuple[Path, list[str]], tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(undisturbed[0], out, ignore=shutil.ignore_patterns("runs"))
    known = open_study(out)
    runs = [undisturbed[0] / "runs" / job.name for job in known.jobs]
    (out / "packs").mkdir()
    write_pack(out / "packs" / "other.safetensors", [read_result(run) for run in runs[:3]])
    assert covered(known) == {job.name for job in known.jobs[:3]}
    write_pack(out / "packs" / "last.safetensors", [read_result(runs[3])])
    assert "4 of 4 jobs done" in ended(runner(undisturbed[0].parent / "small.toml", out), 0)
    assert not (out / "runs").exists()
    study = write_study(tmp_path, 30_000)
    longer = begin(load_study(study), out, Options())
    assert covered(longer) == set(), "they have too few steps"


FAILING = """
tasks = ["mine"]
seeds = 1
steps = 2048
[settings]
hidden = [8]
num_envs = 1
[[grid]]
algorithm = ["ppo", "geppo"]
"""


@engine_group
def test_a_job_that_always_fails_is_set_aside_and_the_others_go_on(tmp_path: Path):
    (tmp_path / "broken_or_not.py").write_text(
        "import os, envs_own\n"
        "class Broken(envs_own.Walk):\n"
        "    def step(self, action):\n"
        "        if 'geppo' in ' '.join(open('/proc/self/cmdline').read().split('\\0')):\n"
        "            raise RuntimeError('no such luck')\n"
        "        return super().step(action)\n"
    )
    study, out = write_study(tmp_path, text=FAILING), tmp_path / "out"
    words = ("--env", "mine=broken_or_not:Broken", "--jobs", "1")
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    printed = ended(runner(study, out, *words, PYTHONPATH=paths), 8)
    assert "failed mine/geppo/seeds-0-0, set aside: gpi: " in printed
    assert "no such luck" in printed
    assert "1 of 2 jobs done" in printed
    failure = json.loads((out / "failed/mine/geppo/seeds-0-0.json").read_text())
    assert (failure["code"], failure["attempts"]) == (6, 1)
    assert "no such luck" in failure["line"]
    printed = ended(runner(study, out, *words, PYTHONPATH=paths), 8)
    assert "1 job that had been set aside get one more attempt" in printed
    assert json.loads((out / "failed/mine/geppo/seeds-0-0.json").read_text())["attempts"] == 2
    assert "broken_or_not" not in (out / "study.json").read_text()


@engine_group
def test_jobs_end_with_a_runner_that_is_killed_or_whose_time_is_up(tmp_path: Path):
    study, out = write_study(tmp_path, 10_000_000), tmp_path / "out"
    killed = runner(study, out, "--only", "CartPole-v1/ppo")
    wait_for(lambda: iterating(out))
    [job] = children(killed)
    killed.kill()
    ended(killed, -signal.SIGKILL)
    wait_for(lambda: not lives(job), 60.0)
    assert "interrupted and saved" in (out / "logs/CartPole-v1/ppo/seeds-0-1.log").read_text()
    start = time.monotonic()
    printed = ended(runner(study, out, "--for", "5s", "--shard", "1/2"), 9)
    assert time.monotonic() - start < 5.0 + 8.0
    how = r"time is up, (all saved|\d jobs? killed before saving); "  # five seconds are short for a start
    assert re.search(how + re.escape(f"`gpi study run {study} --out {out}` continues"), printed)
    assert "0 of 2 jobs done" in printed


def test_a_pattern_that_matches_nothing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study = write_study(tmp_path)
    assert main(["study", "run", str(study), "--out", str(tmp_path / "out"), "--only", "Cartpool*"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "CartPole-v1" in error


def test_a_study_is_run_in_the_main_thread(tmp_path: Path):
    raised: list[Exception] = []

    def body() -> None:
        try:
            gpi.study.run(write_study(tmp_path), tmp_path / "out", quiet=True)
        except UsageError as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text() if lives(pid) else ""


HURRIED = (
    "import sys; from gpi.study.engine import schedule; schedule.SAVING = 1.0; import gpi.cli; sys.exit(gpi.cli.main())"
)


@engine_group
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=["SIGTERM", "SIGINT twice"])
def test_jobs_that_do_not_answer_are_killed_and_said_to_be(signals: list[signal.Signals], tmp_path: Path):
    words = ["study", "run", str(write_study(tmp_path)), "--out", str(tmp_path / "out"), "--jobs", "1"]
    command = [sys.executable, "-c", HURRIED, *words]
    one = subprocess.Popen(command, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(lambda: any("gpi.cli.child" in command_of(pid) for pid in children(one)))  # a fork would stop its parent
    [stopped] = children(one)
    os.kill(stopped, signal.SIGSTOP)
    for number in signals:
        one.send_signal(number)
        time.sleep(0.5)
    try:
        printed = ended(one, 128 + signals[0], 20.0)
    finally:
        one.kill()
    assert "interrupted, 1 job killed before saving; `gpi study run " in printed and not lives(stopped)
    assert f"{signals[0].name}: saving 1 job; a second Ctrl-C kills what has not saved\n" in printed


# --- slow -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_twenty_kills_of_the_runner_and_fifty_of_jobs_change_no_byte(tmp_path: Path):
    study = write_study(tmp_path, 60_000, STUDY.replace("seeds = 2", "seeds = 1").replace("[8]", "[16]"))
    calm, out = tmp_path / "calm", tmp_path / "out"
    ended(runner(study, calm), 0, 1200.0)
    rng = random.Random(12)
    runners, jobs, code = 20, 50, None
    while code is None or runners + jobs:
        one = runner(study, out)
        while one.poll() is None and runners + jobs:
            time.sleep(rng.expovariate(1 / 2.5))
            victims = children(one)
            if rng.random() < jobs / (runners + jobs):
                if victims:
                    os.kill(rng.choice(victims), signal.SIGKILL)
                    jobs -= 1
            else:
                one.kill()
                runners -= 1
        one.communicate(timeout=1200.0)
        code = one.returncode
        if code == 0 and runners + jobs:  # it was faster than the kills: once more, with what is left of them
            assert results(out) == results(calm)
            shutil.rmtree(out)
    assert code == 0
    assert results(out) == results(calm)
    assert not list((out / "failed").rglob("*.json"))


@pytest.mark.slow
def test_a_second_ctrl_c_kills_jobs_and_nothing_is_lost_but_time(tmp_path: Path):
    study, out = write_study(tmp_path, 200_000), tmp_path / "out"
    one = runner(study, out, "--only", "CartPole-v1")
    wait_for(lambda: iterating(out, 2))
    alive = children(one)
    one.send_signal(signal.SIGINT)
    time.sleep(0.3)
    one.send_signal(signal.SIGINT)
    ended(one, 130, 20.0)
    assert not any(map(lives, alive))


@pytest.mark.slow
def test_a_signal_that_reaches_jobs_too_lets_them_save_once(tmp_path: Path):
    study, out = write_study(tmp_path, 400_000), tmp_path / "out"
    one = runner(study, out, "--only", "CartPole-v1")
    wait_for(lambda: iterating(out, 2))
    for pid in [*children(one), one.pid]:  # as a cluster's scheduler does
        os.kill(pid, signal.SIGTERM)
    ended(one, 143, 60.0)
    assert len(list((out / "runs").rglob("DONE"))) == 2


@pytest.mark.slow
def test_a_full_disk_makes_jobs_wait_and_loses_nothing(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        study = write_study(tmp_path, 100_000)
        calm, out, ballast = tmp_path / "calm", disk / "out", disk / "ballast"
        ended(runner(study, calm), 0, 600.0)
        one = runner(study, out)
        wait_for(lambda: iterating(out, 2))
        fill(ballast)  # under jobs that run
        time.sleep(20.0)
        assert one.poll() is None
        ballast.unlink()
        printed = ended(one, 0, 600.0)
        assert results(out) == results(calm)
        shutil.rmtree(out)
        ballast.write_bytes(bytes(28 << 20))  # room for the estimate, but none to spare
        one = runner(study, out)
        time.sleep(8.0)
        assert one.poll() is None
        ballast.unlink()
        printed = ended(one, 0, 600.0)
        assert printed.count("wait   ") == 1, printed
        assert "free space, and it continues" in printed
        assert results(out) == results(calm)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(path: Path) -> None:
    """Fill a disk with a file."""
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass


JUMPING = """
import time
real = time.time
def jumping():
    now = real()
    return now + (int(now) % 7 - 3) * 315_360_000.0
time.time = jumping
time.time_ns = lambda: int(1e9 * jumping())
"""


@pytest.mark.slow
def test_a_clock_that_jumps_by_decades_changes_nothing(tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(JUMPING)
    study, calm, out = write_study(tmp_path), tmp_path / "calm", tmp_path / "out"
    ended(runner(study, calm), 0, 600.0)
    paths = os.pathsep.join([str(tmp_path / "site"), environment()["PYTHONPATH"]])
    one = runner(study, out, PYTHONPATH=paths)
    wait_for(lambda: iterating(out))
    one.kill()
    one.communicate()
    printed = ended(runner(study, out, PYTHONPATH=paths), 0, 600.0)
    assert "jobs done; 0:" in printed
    assert results(out) == results(calm)
