"""Studies on Ray: the same results as on this machine, after lost workers and nodes too; and who may not use it."""

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest

from gpi import cli
from gpi.errors import LockedError, UsageError
from gpi.rundir.lock import take
from gpi.study.directory import Layout, StudyDir, is_done, last_timing, open_study, write_study
from gpi.study.engine import ray_cluster, ray_jobs
from gpi.study.engine.begin import Options, Runner
from gpi.study.engine.locks import runner_file
from gpi.study.engine.ray_cluster import Node, Where, gpu_share, require_address, require_usable, slots
from made_runs import LAYOUT, job, make_run, make_study
from own_runs import TABLES

STUDY = """
name = "tiny"
tasks = ["pendulum-swingup"]
seeds = 2
steps = {steps}
[settings]
n = 1000
hidden = [8]
epochs = 1
minibatches = 4
checkpoint_every = 10
[[grid]]
algorithm = {algorithms}
"""
pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time


def study_file(path: Path, steps: int, *algorithms: str) -> str:
    path.write_text(STUDY.format(steps=steps, algorithms=json.dumps(algorithms)))
    return str(path)


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Start `gpi study run` as users do, in a process that has no JAX."""
    command = [sys.executable, "-m", "gpi", "study", "run", *words]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def output(child: subprocess.Popen[str], code: int = 0) -> str:
    said = child.communicate(timeout=600)[0]
    assert child.returncode == code, said
    return said


def processes(word: str) -> list[str]:
    """Return the commands of processes that name something."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [command] if word in command and str(os.getpid()) != path.parent.name else []
    return found


def until(condition: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)


def no_orphans(out: Path) -> None:
    until(lambda: not processes(str(out)), 60)


def tables(study: StudyDir) -> dict[str, bytes]:
    return {f"{one.name}/{name}": (study.run(one) / name).read_bytes() for one in study.jobs for name in TABLES}


# --- in `make test` -------------------------------------------------------------------------------------------------


def test_two_jobs_on_a_ray_of_this_machine(tmp_path: Path):
    out, file = tmp_path / "a", study_file(tmp_path / "tiny.toml", 2_000, "ppo", "geppo")
    home, temp = tmp_path / "home", Path(tempfile.mkdtemp(prefix="r-"))  # Ray's sockets need a short name
    home.mkdir()
    places = {"HOME": str(home), "TMPDIR": str(temp), "RAY_ADDRESS": "192.0.2.1:6379"}
    child = start(file, "--out", str(out), "--engine", "ray", **places)
    heard: set[str] = set()
    until(lambda: child.poll() is not None or heard.update(listening(child.pid)) or heard)
    said = output(child)
    assert "tiny: 2 jobs, 0 done; Ray 2." in said and said.count("\ndone   pendulum-swingup/") == 2
    assert heard and heard <= {"127.0.0.1", "::1"}
    assert not list(home.iterdir()), "no token and no statistics of Ray's are left in the user's home"
    temp.rmdir()  # Ray's files are gone too
    study = open_study(out)
    assert all(is_done(study, one) for one in study.jobs) and len(study.jobs) == 2
    assert {ray_jobs.attempt_of(study, one) for one in study.jobs} == {1}
    no_orphans(out)
    said = output(start(file, "--out", str(out)))
    assert "2 jobs, 2 done" in said, "the local engine goes on with it"


def listening(pid: int) -> set[str]:
    """Return the addresses that Ray's processes below one listen at."""
    children: dict[str, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(parent, []).append(path.parent.name)
    family, sockets = [str(pid)], set()
    for one in family:
        family += children.get(one, [])
        for fd in Path(f"/proc/{one}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(os.readlink(fd))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                words = bytes.fromhex(local.partition(":")[0])
                address = ip_address(b"".join(words[k : k + 4][::-1] for k in range(0, len(words), 4)))
                found.add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


def test_a_cluster_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for address in ("192.0.2.1:6379", "auto", "[2001:db8::1]:6379", "nowhere.invalid:6379"):
        with pytest.raises(UsageError, match=r"without a token can run code there; .* or add --i-trust-this-network"):
            require_address(Where(address))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UsageError, match="token cannot be read"):
        require_address(Where("auto"))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(UsageError, match=r"can be read by others \(mode 644\); run: chmod 600"):
        require_address(Where("auto"))
    (tmp_path / "token").chmod(0o600)
    require_address(Where("auto"))
    require_address(Where("auto", trusted=True))


@pytest.mark.parametrize(("words", "line"), [
    (("--engine", "ray", "--address", "ray://head:10001"), "must be host:port of the head node, or auto"),
    (("--engine", "ray", "--address", "head"), "must be host:port of the head node, or auto"),
    (("--engine", "ray", "--address", "127.0.0.1:9"), "no Ray cluster answers at --address 127.0.0.1:9"),
    (("--engine", "ray", "--address", "192.0.2.1:6379"), "without a token can run code there"),
    (("--engine", "ray", "--whole-jobs"), "--whole-jobs needs the speed of one machine"),
    (("--address", "head:6379"), "are for a Ray cluster; add --engine ray"),
    (("--engine", "slurm"), "--engine 'slurm' must be one of local, ray"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    try:
        code = cli.main(["study", "run", "quick", "--out", str(tmp_path / "a"), *words])
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr().err
    assert code == 2 and line in said and said.count("\n") == 1 and not (tmp_path / "a").exists()


def test_neither_driver_nor_worker_imports_jax():
    code = "import sys, gpi.study.engine.ray_jobs, ray; assert not {'jax', 'envpool'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_ray_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_cluster, "VERSIONS", ">=999")
    with pytest.raises(UsageError, match=r"is too old, it must be >=999; run: pip install 'gpi-rl\[ray\]'"):
        ray_cluster.imported()


def test_rays_own_lines_stay_out_of_the_output(capsys: pytest.CaptureFixture[str]):
    ray_cluster.imported()
    worker = importlib.import_module("ray._private.worker")
    worker.print_to_stdstream({"lines": ["died"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert capsys.readouterr() == ("", "")


def test_directories_of_clusters_whose_runner_was_killed_are_removed(tmp_path: Path):
    for name in ("gpi-ray-lives", "gpi-ray-dead", "gpi-ray-begins", "another"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text("secret")
    (tmp_path / "gpi-ray-link").symlink_to(tmp_path / "another")
    held = [take(tmp_path / name / ray_cluster.OWNER) for name in ("gpi-ray-lives", "gpi-ray-dead", "another")]
    for fd in held[1:]:
        assert fd is not None
        os.close(fd)  # as the kernel does for a process that is killed
    ray_cluster.remove_dead(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gpi-ray-lives", "gpi-ray-begins", "gpi-ray-link", "another"}
    os.close(held[0])  # type: ignore[arg-type]


CPU = Layout("cpu", 4, {}, {})
GPU = Layout("gpu", 1, {}, {})


def test_a_job_that_fits_no_node_is_refused_instead_of_waiting_for_ever():
    nodes = [Node("a", "10.0.0.1", 0, 0.0), Node("b", "10.0.0.2", 9, 0.0), Node("c", "10.0.0.3", 3, 2.0)]
    assert require_usable(nodes, CPU) == [nodes[1]] and slots(nodes, CPU, 0.0) == {"b": 2}
    assert require_usable(nodes, GPU) == [nodes[2]] and gpu_share(nodes, GPU) == 0.5, "no job has two"
    assert slots(nodes, GPU, gpu_share(nodes, GPU)) == {"c": 3} and gpu_share(nodes, CPU) == 0.0
    sixteen = [Node("d", "10.0.0.4", 16, 1.0)]
    assert gpu_share(sixteen, GPU) == 0.0625 and slots(sixteen, GPU, 0.0625) == {"d": 16}
    with pytest.raises(UsageError, match=r"a job needs 64 cores, no node of 3 has that \(cores: 9 at most\)"):
        require_usable(nodes, Layout("cpu", 64, {}, {}))
    with pytest.raises(UsageError, match="a job needs 4 cores and a GPU, no node of 1"):
        require_usable(nodes[:1], Layout("gpu", 4, {}, {}))


def test_attempts_are_numbered_and_end_older_ones(tmp_path: Path):
    study = make_study(tmp_path / "a", job(), runs=False)
    (one,) = study.jobs
    assert ray_jobs.attempt_of(study, one) == 0
    assert [ray_jobs.next_attempt(study, one) for _ in range(3)] == [1, 2, 3]
    here = Layout("cpu", 1, {}, ray_jobs.machine_layout.versions_here())
    write_study(StudyDir(study.path, "x", here, study.jobs))
    order = {"directory": str(study.path), "job": one.name, "attempt": 2, "environments": {}}
    assert json.loads(ray_jobs.run_job(json.dumps(order))) == {"code": 128 + signal.SIGTERM}
    assert not study.log(one).exists(), "an old attempt begins nothing"
    for damaged in (b"", b"x" * 50, b"\xff\n"):
        study.claim(one).write_bytes(damaged)
        assert ray_jobs.attempt_of(study, one) == 0


def test_a_node_says_what_it_is_like(tmp_path: Path):
    with runner_file(tmp_path) as file:
        file.write({"looked_for": "secret"})
        seen = {"file": str(file.path), "content": "secret"}
        found = json.loads(ray_jobs.look_around(json.dumps(seen)))
        assert found["sees"] and found["locked"] and found["versions"]["envpool"] == "1.2.5"
        other = json.loads(ray_jobs.look_around(json.dumps({**seen, "content": "other"})))
        assert not other["sees"] and not other["locked"], "another directory of the same name"
    assert not json.loads(ray_jobs.look_around(json.dumps(seen)))["sees"]


def test_a_node_with_other_versions_leaves_the_job_alone(tmp_path: Path):
    study = make_study(tmp_path / "a", job(), runs=False)
    other = Layout("cpu", 1, {}, LAYOUT.versions | {"envpool": "9.9"})
    write_study(StudyDir(study.path, study.name, other, study.jobs))
    order = {"directory": str(study.path), "job": study.jobs[0].name, "attempt": 1, "environments": {}}
    found = json.loads(ray_jobs.run_job(json.dumps(order)))
    assert found["code"] == 4 and "this study has envpool 9.9" in found["unfit"]
    assert not study.run(study.jobs[0]).exists()


class FakeRay:
    """A cluster that answers at once."""

    __version__, exceptions = "2.99", importlib.import_module("ray.exceptions")

    def __init__(self, *names: str, answer: dict[str, object]):
        self.alive, self.answer, self.cancelled = list(names), answer, list[object]()

    def nodes(self) -> list[dict[str, object]]:
        about = {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2}}
        return [{"NodeID": name, **about} for name in self.alive]

    def remote(self, *text: str, **options: object) -> object:
        return object() if text else lambda task: self

    def wait(self, refs: list[object], timeout: float) -> tuple[list[object], list[object]]:
        return refs, []

    def get(self, ref: object) -> str:
        return json.dumps(self.answer)

    def cancel(self, ref: object, force: bool) -> None:
        self.cancelled.append(ref)


def on_ray(study: StudyDir, fake: FakeRay, options: Options | None = None) -> ray_jobs.OnRay:
    executor = ray_jobs.OnRay(Where(), ExitStack())
    executor.ray, executor.order = fake, {}
    executor.runner = Runner(study, list(study.jobs), options or Options(), None)  # type: ignore[arg-type]
    return executor


def look(executor: ray_jobs.OnRay) -> dict[str, int]:
    executor.looked = -math.inf
    return executor.places()


def test_an_earlier_version_on_ray_keeps_this_one_out_and_the_other_way_round(tmp_path: Path):
    held = take(tmp_path / "ray.lock")
    assert held is not None
    with ExitStack() as stack, pytest.raises(LockedError, match="in use by an earlier version of gpi"):
        ray_jobs.OnRay(Where(), stack).keep_out_earlier_versions(tmp_path)
    os.close(held)
    with ExitStack() as stack:
        for _ in range(2):  # two of this version share the study
            ray_jobs.OnRay(Where(), stack).keep_out_earlier_versions(tmp_path)
        assert take(tmp_path / "ray.lock") is None
    assert take(tmp_path / "ray.lock") is not None


A, B = "aa" * 28, "bb" * 28


def test_jobs_are_dealt_out_over_the_nodes_that_are_there_and_fit(tmp_path: Path):
    study = make_study(tmp_path / "a", job(), runs=False)
    fake = FakeRay(A, B, answer={"code": 4, "unfit": "here is jax 0.1"})
    executor = on_ray(study, fake)
    assert look(executor) == {A: 2, B: 2}
    assert look(on_ray(study, fake, Options(jobs=3))) == {A: 2, B: 1}
    flight = executor.start(study.jobs[0], A)
    assert flight.poll() == 4 and flight.why == "node 10.0.0.1 gets no more jobs: here is jax 0.1"
    assert look(executor) == {B: 2}
    lost = executor.start(study.jobs[0], B)
    fake.alive.remove(B)
    assert look(executor) == {} and not executor.lost, "others may join, as `a` that is left"
    assert (lost.poll(), lost.why) == (-signal.SIGKILL, ray_jobs.LOST), "Ray may take minutes to say so"
    fake.alive.clear()
    assert look(executor) == {} and executor.lost == ray_jobs.DIED


def test_a_job_on_a_node_is_stopped_by_a_higher_number_and_left_if_it_must_be_now(tmp_path: Path):
    study = make_study(tmp_path / "a", job(), runs=False)
    fake = FakeRay(A, answer={"code": 143})
    executor = on_ray(study, fake)
    look(executor)
    flight = executor.start(study.jobs[0], A)
    assert ray_jobs.attempt_of(study, study.jobs[0]) == 1
    for _ in range(3):
        flight.stop()
    assert ray_jobs.attempt_of(study, study.jobs[0]) == 2 and flight.poll() == 143 and not fake.cancelled
    flight.stop(now=True)
    assert flight.poll() == -signal.SIGKILL and len(fake.cancelled) == 1


def pid_of(command: str, directory: Path) -> int:
    """Return the process of Ray whose program is this and that works in a directory."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace")
            if words.partition("\0")[0].endswith(command) and str(directory) in words:
                return int(path.parent.name)
    raise AssertionError(command)


@pytest.mark.slow
def test_a_ray_of_this_machine_survives_its_workers_and_ends_with_its_node(tmp_path: Path):
    out, file = tmp_path / "a", study_file(tmp_path / "tiny.toml", 1_000_000, "ppo", "geppo")
    temp = Path(tempfile.mkdtemp(prefix="r-"))
    child = start(file, "--out", str(out), "--engine", "ray", TMPDIR=str(temp))
    until(lambda: (out / "study.json").exists() and len(workers(open_study(out))) == 2)
    study = open_study(out)
    (killed, pids), (other, _) = workers(study).items()
    os.kill(pids.job, signal.SIGKILL)
    since = time.time()
    until(lambda: killed in workers(study, since) and len(workers(study)) == 2)
    os.kill(workers(study)[other].worker, signal.SIGKILL)
    until(lambda: max(ray_jobs.attempt_of(study, one) for one in study.jobs) == 2)
    until(lambda: len(workers(study)) == 2)
    os.kill(pid_of("raylet/raylet", temp), signal.SIGKILL)
    try:
        said = child.communicate(timeout=120)[0]
    finally:
        child.kill()
    assert child.returncode == 9 and "Ray's node on this machine has died, its jobs save and end; `gpi study" in said
    assert f"again  {killed}: killed by SIGKILL\n" in said and "lost with its worker or node" in said
    assert "(raylet)" not in said and "\x1b" not in said
    no_orphans(out)
    assert all(list(study.run(one).glob("ckpt-*")) for one in study.jobs)
    temp.rmdir()


# --- a cluster of three nodes ---------------------------------------------------------------------------------------


class ThreeNodes:
    """A cluster with a token, and how to use it."""

    def __init__(self, child: subprocess.Popen[str], environment: dict[str, str]):
        self.child, self.environment = child, environment
        assert child.stdout is not None
        self.address = child.stdout.readline().strip()

    def run(self, *words: str) -> subprocess.Popen[str]:
        return start(*words, "--engine", "ray", "--address", self.address, **self.environment)

    def tell(self, *words: object) -> None:
        assert self.child.stdin is not None and self.child.stdout is not None
        print(*words, file=self.child.stdin, flush=True)
        assert self.child.stdout.readline().strip() == "done"


@contextmanager
def three_nodes(**settings: str) -> Iterator[ThreeNodes]:
    directory = Path(tempfile.mkdtemp(prefix="ray-"))
    token = directory / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    environment = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", **settings,
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).parent / "support" / "ray_child.py"), "3"]
    child = subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield ThreeNodes(child, environment)
        child.communicate(timeout=60)
        until(lambda: not processes(str(directory)), 180)  # agents of a node that was removed take their time
    finally:
        child.kill()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cluster() -> Iterator[ThreeNodes]:
    with three_nodes() as nodes:
        yield nodes


class Pids(NamedTuple):
    """A process of Ray's, and the job's that it started."""

    worker: int
    job: int


def workers(study: StudyDir, since: float = 0.0) -> dict[str, Pids]:
    """Return the processes of the jobs that run and have taken steps, the last of them since then, by their names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            for one in study.jobs if "gpi.cli.child" in words else ():
                run = study.run(one)
                if str(run) in words and last_timing(run)[0] > 0 and (run / "timing.csv").stat().st_mtime > since:
                    found[one.name] = Pids(int(words[words.index("gpi.cli.child") + 1]), int(path.parent.name))
    return found


@pytest.mark.slow
def test_a_lost_worker_and_a_lost_node_cost_nothing_but_time(tmp_path: Path, cluster: ThreeNodes):
    algorithms = ("ppo", "trpo", "vmpo", "geppo", "getrpo", "gevmpo")
    file = study_file(tmp_path / "tiny.toml", 100_000, *algorithms)
    out, here = tmp_path / "a", tmp_path / "b"
    child = cluster.run(file, "--out", str(out))
    until(lambda: (out / "study.json").exists())
    study = open_study(out)
    until(lambda: len(workers(study)) >= 2)
    lost, pids = next(iter(workers(study).items()))
    os.kill(pids.worker, signal.SIGKILL)
    until(lambda: len([name for name in workers(study) if name != lost]) >= 2)
    cluster.tell("remove", 1)
    said = output(child)
    assert said.count("again  ") >= 2 and "lost with its worker or node" in said and "6 of 6 jobs done" in said
    no_orphans(out)
    assert max(ray_jobs.attempt_of(study, one) for one in study.jobs) > 1
    output(start(file, "--out", str(here)))
    assert tables(study) == tables(open_study(here)), "bit for bit what the local engine gives"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_is_saved_and_goes_on(tmp_path: Path, cluster: ThreeNodes, number: signal.Signals):
    file = study_file(tmp_path / "tiny.toml", 100_000, "ppo", "geppo")
    out, here = tmp_path / "a", tmp_path / "b"
    child = cluster.run(file, "--out", str(out))
    until(lambda: (out / "study.json").exists())
    study = open_study(out)
    until(lambda: len(workers(study)) == 2)
    child.send_signal(number)
    said = output(child, 128 + number)
    assert f"{number.name}: saving 2 jobs" in said and "all saved" in said
    no_orphans(out)
    for one in study.jobs:
        log = study.log(one).read_text()
        assert "gpi resume" in log and list(study.run(one).glob("ckpt-*")), log
    assert "2 of 2 jobs done" in output(cluster.run(file, "--out", str(out)))
    output(start(file, "--out", str(here)))
    assert tables(study) == tables(open_study(here))


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_behind_and_the_next_goes_on(tmp_path: Path, cluster: ThreeNodes):
    file = study_file(tmp_path / "tiny.toml", 200_000, "ppo", "geppo")
    out = tmp_path / "a"
    child = cluster.run(file, "--out", str(out))
    until(lambda: (out / "study.json").exists() and len(workers(open_study(out))) == 2)
    second = cluster.run(file, "--out", str(out))
    assert "2 jobs left to other runners of this directory" in output(second, 0)
    child.kill()
    child.communicate()
    no_orphans(out)
    assert "2 of 2 jobs done" in output(cluster.run(file, "--out", str(out)))


@pytest.mark.slow
def test_a_node_that_falls_silent_ends_its_job_once_another_has_it(tmp_path: Path):
    file = study_file(tmp_path / "tiny.toml", 200_000, "ppo", "geppo", "getrpo")
    out, here = tmp_path / "a", tmp_path / "b"
    quick = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "1000"}
    with three_nodes(RAY_health_check_failure_threshold="3", **quick) as cluster:
        child = cluster.run(file, "--out", str(out))
        until(lambda: (out / "study.json").exists() and len(workers(open_study(out))) == 3)
        study = open_study(out)
        cluster.tell("silence", 0)  # its worker and its job go on, as on a node whose network is gone
        said = output(child)
        assert "lost with its worker or node" in said and "3 of 3 jobs done" in said
        no_orphans(out)
    assert sorted(ray_jobs.attempt_of(study, one) for one in study.jobs)[:2] == [1, 1]
    assert max(ray_jobs.attempt_of(study, one) for one in study.jobs) >= 2
    output(start(file, "--out", str(here)))
    assert tables(study) == tables(open_study(here)), "two never wrote"


@pytest.mark.slow
def test_a_stale_attempt_saves_and_ends(tmp_path: Path, cluster: ThreeNodes):
    file = study_file(tmp_path / "tiny.toml", 100_000, "geppo")
    out = tmp_path / "a"
    child = cluster.run(file, "--out", str(out))
    until(lambda: (out / "study.json").exists() and len(workers(open_study(out))) == 1)
    study = open_study(out)
    (one,) = study.jobs
    ray_jobs.next_attempt(study, one)
    assert "1 of 1 job done" in output(child)
    assert ray_jobs.attempt_of(study, one) == 3 and study.log(one).read_text().count("gpi resume") >= 1
    no_orphans(out)


@pytest.mark.slow
def test_an_open_cluster_is_refused_unless_it_is_trusted(tmp_path: Path):
    file = study_file(tmp_path / "tiny.toml", 2_000, "ppo")
    with three_nodes(RAY_AUTH_MODE="disabled") as cluster:
        assert "without a token can run code there" in output(cluster.run(file, "--out", str(tmp_path / "a")), 2)
        token = cluster.environment | {"RAY_AUTH_MODE": "token"}
        words = (file, "--out", str(tmp_path / "a"), "--engine", "ray", "--address", cluster.address)
        said = output(start(*words, **token), 2)
        assert "was started without RAY_AUTH_MODE=token" in said or "cannot use --address " in said
        said = output(cluster.run(file, "--out", str(tmp_path / "a"), "--i-trust-this-network"))
        assert "1 of 1 job done" in said


@pytest.mark.slow
def test_nodes_that_cannot_do_the_work_are_refused(tmp_path: Path, cluster: ThreeNodes):
    file = study_file(tmp_path / "tiny.toml", 2_000, "ppo")
    out = tmp_path / "a"
    child = cluster.run(file, "--out", str(out))
    output(child)
    about = json.loads((out / "study.json").read_text())
    for change, line in (
        ({"cores": 64}, "a job needs 64 cores, no node of 3 has that (cores: 1 at most)"),
        ({"platform": "gpu"}, "a job needs 1 core and a GPU"),
        ({"versions": about["layout"]["versions"] | {"envpool": "9.9"}}, "has envpool 1.2.5, the study has 9.9"),
    ):
        (out / "study.json").write_text(json.dumps(about | {"layout": about["layout"] | change}))
        said = output(cluster.run(file, "--out", str(out)), 2)
        assert line in said and said.count("\n") == 1
    (out / "study.json").write_text(json.dumps(about))
    child = start(file, "--out", str(out), "--engine", "ray", "--address", cluster.address, **{
        **cluster.environment, "RAY_AUTH_TOKEN": "f" * 64})  # fmt: skip
    said = output(child, 2)
    assert "cannot use --address " in said and "the same token" in said and said.count("\n") == 1


@pytest.mark.slow
def test_a_job_that_always_fails_is_set_aside(tmp_path: Path, cluster: ThreeNodes):
    file = study_file(tmp_path / "tiny.toml", 2_000, "ppo", "geppo")
    out = tmp_path / "a"
    run = out / "runs" / "pendulum-swingup" / "ppo" / "seeds-0-1"
    make_run(run, job(task="pendulum-swingup").config, 500)  # of other settings, and without a checkpoint
    said = output(cluster.run(file, "--out", str(out)), 8)
    assert "failed pendulum-swingup/ppo/seeds-0-1, set aside: " in said and "1 of 2 jobs done" in said
    assert "set aside: pendulum-swingup/ppo/seeds-0-1: gpi: " in said
