"""Errors of the operating system and damaged files: one line each, with the right remedy and exit code."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gpi
from gpi import cli, errors, files
from gpi.errors import DiskError, FileError, GpiError, UsageError, disk_error, read_error, unexpected

OLD = Path(__file__).parent / "fixtures" / "runs-4027884" / "cartpole-geppo"
# Root may do everything: without these two capabilities, permissions bind it as they bind everybody.
HUMBLE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def can_be_humble() -> bool:
    if not HUMBLE:
        return True
    try:
        return subprocess.run([*HUMBLE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


bound = pytest.mark.skipif(not can_be_humble(), reason="permissions do not bind root here")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def line_of(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code and done.stderr.count("\n") == 1 and done.stderr.startswith("gpi: "), done
    return done.stderr


def refused(code: int, *arguments: str, cwd: Path) -> str:
    """Return the one line of a command that fails, run by a user whom permissions bind."""
    command = [*HUMBLE, sys.executable, "-m", "gpi", *arguments]
    return line_of(subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120), code)


@bound
@pytest.mark.parametrize(("command", "code"), [
    (["plot", "run"], 2), (["audit", "run"], 2), (["resume", "run"], 2), (["eval", "run"], 2), (["export", "run"], 2),
])  # fmt: skip
def test_a_directory_of_somebody_else_is_one_line(command: list[str], code: int, run: Path):
    run.chmod(0)
    try:
        line = refused(code, *command, cwd=run.parent)
    finally:
        run.chmod(0o755)
    assert "may not be read: Permission denied; ask its owner" in line and "run" in line


@bound
@pytest.mark.parametrize(("command", "code"), [
    (["export", "run"], 5), (["export", "run", "--format", "onnx"], 5), (["resume", "run", "--steps", "9000"], 2),
    (["train", "CartPole-v1", "--out", "run/new"], 2), (["train", "CartPole-v1", "--out", "run"], 2),
])  # fmt: skip
def test_a_directory_that_may_not_be_written_is_not_a_full_disk(command: list[str], code: int, run: Path):
    before = sorted(path.name for path in run.iterdir())
    (run / "run.lock").unlink(missing_ok=True)
    run.chmod(0o555)
    try:
        line = refused(code, *command, cwd=run.parent)
    finally:
        run.chmod(0o755)
    assert "space" not in line and "run" in line
    assert sorted(path.name for path in run.iterdir()) == [name for name in before if name != "run.lock"]


@bound
def test_a_checkpoint_that_may_not_be_read_is_not_passed_over(run: Path):
    code = "import sys, pathlib, gpi.rundir.checkpoint as c; c.newest_valid(pathlib.Path(sys.argv[1]), {})"
    for path in run.glob("ckpt-*"):
        path.chmod(0)
    try:
        command = [*HUMBLE, sys.executable, "-c", code, str(run)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        for path in run.glob("ckpt-*"):
            path.chmod(0o755)
    assert "UsageError" in done.stderr and "may not be read: Permission denied" in done.stderr, done.stderr


@pytest.mark.parametrize(("number", "remedy", "not_said"), [
    (errno.ENOSPC, "free space on that disk", "permission"), (errno.EDQUOT, "quota", "permission"),
    (errno.EACCES, "chmod u+w", "space"), (errno.EPERM, "chmod u+w", "space"), (errno.EROFS, "read-only", "space"),
    (errno.EISDIR, "name a file", "space"), (errno.ENOTDIR, "is a file", "space"),
    (errno.ENAMETOOLONG, "shorter", "space"), (errno.ELOOP, "link", "space"), (errno.ETXTBSY, "another", "space"),
])  # fmt: skip
def test_each_error_of_a_write_has_its_own_remedy(number: int, remedy: str, not_said: str, tmp_path: Path):
    line = str(disk_error(tmp_path / "x", OSError(number, os.strerror(number)), "it is whole"))
    assert line.startswith(f"{tmp_path / 'x'} cannot be written: {os.strerror(number)}; it is whole; ")
    assert remedy in line and not_said not in line.replace(os.strerror(number), "").partition("whole")[2]


def test_nobody_expected_it_but_it_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def fails(error: OSError) -> Callable[..., int]:
        def run(*_: object) -> int:
            raise error

        return run

    closed = tmp_path / "file"
    closed.write_text("")
    cases = [
        (PermissionError(errno.EACCES, "Permission denied", str(closed)), 5, "chmod u+w"),
        (OSError(errno.ENOSPC, "No space left on device"), 5, "free space"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", str(tmp_path)), 5, "name a file"),
    ]
    for error, code, remedy in cases:
        monkeypatch.setattr("gpi.cli.environments.tasks.find", fails(error))
        assert cli.main(["check", "x"]) == code
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and remedy in line
    for bug in (FileNotFoundError(errno.ENOENT, "No such file", "x"), OSError("what?"), ConnectionError("gone")):
        monkeypatch.setattr("gpi.cli.environments.tasks.find", fails(bug))
        with pytest.raises(OSError):
            cli.main(["check", "x"])
    assert isinstance(unexpected(OSError(errno.EACCES, "", "/no/such/file")), UsageError | DiskError)


def damage(run: Path, name: str, data: bytes) -> GpiError:
    """Return the error of every reader of a file that holds these bytes; all say the same."""
    (run / name).write_bytes(data)
    with pytest.raises(GpiError) as error:
        gpi.audit(run) if name == "audit.csv" else gpi.Run(run).returns
    return error.value


@pytest.mark.parametrize(("name", "data", "what"), [
    ("config.json", b"", "cannot be parsed"),
    ("config.json", b"{", "cannot be parsed"),
    ("config.json", b"\xff\xfe", "cannot be parsed"),
    ("config.json", b"[]", "expected an object"),
    ("config.json", b"{}", "lacks the settings"),
    ("config.json", b'{"config": 3}', "lacks the settings"),
    ("config.json", b'{"config": {"task": "x", "algorithm": "ppo", "seed": 0, "seeds": "five"}}', "seeds = 'five'"),
    ("config.json", b'{"config": {"task": "x", "algorithm": "sac", "seed": 0, "seeds": 1}}', "'sac'"),
    ("config.json", b'{"config": {"task": "x", "algorithm": "ppo", "seed": 0, "seeds": 1000000000000}}', "- seeds]"),
    ("episodes.csv", b"", "lacks the column 'seed'"),
    ("episodes.csv", b"seed,return\n", "lacks the column 'steps'"),
    ("episodes.csv", b"seed,steps,return,length\n0,1,\xff,2\n", "can't decode"),
    ("episodes.csv", b"seed,steps,return,length\n0,1,2.0\n0,1,2.0,3\n", "line 2 has 3 cells, not 4"),
    ("episodes.csv", b"seed,steps,return,length\n0,1,two,3\n", "'two'"),
    ("episodes.csv", b"seed,steps,return,length\n0,,2.0,3\n", "invalid literal"),
    ("audit.csv", b"\x00\x01\x02\n", "lacks the column"),
    ("audit.csv", b"seed,iteration\n0,1\n", "lacks the column 'steps'"),
])  # fmt: skip
def test_damaged_files_of_a_run_are_one_line(name: str, data: bytes, what: str, run: Path):
    error = damage(run, name, data)
    assert isinstance(error, FileError) and "\n" not in str(error)
    assert f"{name} is damaged: " in str(error) and what in str(error) and "restore it" in str(error)


def test_a_line_that_was_never_finished_is_left_out(run: Path):
    whole = gpi.Run(run).returns
    with (run / "episodes.csv").open("ab") as file:
        file.write(b"0,99")  # the disk was full, or the process was killed
    assert gpi.Run(run).returns == whole


@pytest.mark.parametrize("command", ["plot", "audit", "resume"])
def test_the_command_line_says_it_with_exit_code_3(command: str, run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "config.json").write_bytes(b'{"config": ')
    arguments = ["--out", str(run.parent / "x.png")] if command != "resume" else []
    assert cli.main([command, str(run), *arguments]) == 3
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "config.json" in line
    assert cli.main([command, str(run / "nowhere")]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_missing_files_are_said_to_be_missing(tmp_path: Path):
    with pytest.raises(FileError, match=r"config.json does not exist"):
        gpi.Run(tmp_path).seeds  # noqa: B018
    assert isinstance(read_error("x", OSError(errno.EIO, "Input/output error")), FileError)
    with pytest.raises(DiskError, match=r"cannot be written: Not a directory; .* a part of that path is a file"):
        (tmp_path / "file").write_text("")
        files.write(tmp_path / "file" / "x", b"")


def test_a_terminal_without_unicode_loses_no_result():
    command = [sys.executable, "-m", "gpi", "mixture"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "0.400000   ####" in done.stdout and done.stderr == ""


def test_exit_codes_are_distinct():
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GpiError)}
    assert codes == {1, 2, 3, 4, 5, 6, 7}
