"""Checkpoints on disk: each comes back whole or not at all, after full disks, kills and power cuts."""

import ast
import itertools
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpi
from checkpoints import (
    FAILPOINTS,
    IDENTITY,
    NAMES,
    SCENES,
    SPECS,
    arrays_of,
    assert_same,
    failpoint,
    forget_failpoint,
    newest,
    prepare,
    put,
    python,
    refusal,
    state_of,
)
from gpi import files
from gpi.errors import DiskError, FileError, UsageError
from gpi.rundir import checkpoint, lock
from gpi.rundir.checkpoint import load, newest_valid, read_identity, save
from gpi.rundir.segments import name_of
from gpi.rundir.tables import Table

SOURCE = Path(gpi.__file__).parent
# Quick: the first passage of every failpoint; a save before which three others exist, or one of the same iteration.
THOROUGH = [(1, SCENES[1:]), pytest.param(99, SCENES, marks=pytest.mark.slow)]
POINTS = {kind: [p for p in FAILPOINTS if p.startswith(kind)] for kind in ("file.", "write.", "ckpt.", "segment.")}


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    path, other = tmp_path / "config.json", tmp_path / "other"
    other.write_bytes(b"other")
    path.symlink_to(other)
    for data in (b"", b"old", b"x" * 100_000):
        files.write(path, data)
        assert path.read_bytes() == data and stat.S_ISREG(path.lstat().st_mode)
    assert other.read_bytes() == b"other" and sorted(os.listdir(tmp_path)) == ["config.json", "other"]
    with pytest.raises(DiskError, match="No such file"):
        files.write(tmp_path / "none" / "x", b"")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_decides_who_may_read_a_run(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        with lock.claim(tmp_path / "run"):
            put(tmp_path / "run", 1)
            files.write(tmp_path / "run" / "config.json", b"{}")
            Table(tmp_path / "run" / "metrics.csv", ("seed",)).close()
    finally:
        os.umask(before)
    made = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert len(made) == 8
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_checkpoint_comes_back_and_three_are_kept(tmp_path: Path):
    for iteration in (0, 7, 512, 513, 999_999_999):
        path = put(tmp_path, iteration)
        assert_same(load(path, SPECS, finite=True), iteration)
        assert read_identity(path) == IDENTITY
        assert sorted(os.listdir(path)) == sorted(NAMES)
    assert [p.name for p in checkpoint.saved(tmp_path)] == ["ckpt-999999999", "ckpt-000000513", "ckpt-000000512"]
    assert len(os.listdir(tmp_path)) == 3
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["schema"] == "gpi-checkpoint-2" and manifest["iteration"] == 999_999_999


def test_the_same_state_is_the_same_bytes(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
        put(tmp_path / name, 5)
    for name in NAMES:
        assert len({(tmp_path / run / "ckpt-000000005" / name).read_bytes() for run in "ab"}) == 1


def test_newest_is_by_number_whatever_the_clock_says(tmp_path: Path):
    put(tmp_path, 9, 10, 100)
    for age, path in enumerate(checkpoint.saved(tmp_path)):  # the newest looks the oldest
        os.utime(path, (10**9 * (age - 1), 10**9 * (age - 1)))
    for name in ("ckpt-000000200x", "ckpt-200", "ckpt-00000020٠", "xckpt-000000200", "ckpt-000000200\n"):
        shutil.copytree(tmp_path / "ckpt-000000100", tmp_path / name)
        refusal(lambda name=name: load(tmp_path / name, SPECS))
    found, skipped = newest(tmp_path)
    assert_same(found, 100)
    assert skipped == []


def test_a_save_removes_nothing_newer_and_never_itself(tmp_path: Path):
    put(tmp_path, 90, 91, 92)
    (tmp_path / "ckpt-000000093").mkdir()  # damaged, like the three below it: training went back to 10
    for number in (90, 91, 92):
        (tmp_path / f"ckpt-0000000{number}" / "state.json").unlink()
    for iteration in (10, 11, 12, 13):
        put(tmp_path, iteration)
        found, skipped = newest(tmp_path)
        assert_same(found, iteration)
        assert len(skipped) == 4
    assert [int(p.name[5:]) for p in checkpoint.saved(tmp_path)] == [93, 92, 91, 90, 13, 12, 11]


@pytest.mark.parametrize("kind", ["valid", "damaged", "file", "symlink"])
def test_a_checkpoint_replaces_one_of_its_iteration(tmp_path: Path, kind: str):
    path = tmp_path / "ckpt-000000005"
    if kind in ("valid", "damaged"):
        put(tmp_path, 5, state={"other": 1})
        (path / "state.json").write_bytes(b"") if kind == "damaged" else None
    else:
        (tmp_path / "target").mkdir()
        path.write_bytes(b"") if kind == "file" else path.symlink_to(tmp_path / "target")
    put(tmp_path, 5)
    assert_same(load(path, SPECS), 5)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_checkpoint_that_could_not_be_loaded_is_not_saved(tmp_path: Path):
    put(tmp_path, 1)
    for state in ({"lr": float("nan")}, {"x": object()}, {"x": "y" * (1 << 20)}, {1: 1, "1": 2}):
        with pytest.raises((ValueError, TypeError, FileError)):
            save(tmp_path, 2, arrays_of(2), state, IDENTITY)
    for iteration in (-1, 10**9):
        with pytest.raises(UsageError):
            save(tmp_path, iteration, arrays_of(2), {}, {})
    assert os.listdir(tmp_path) == ["ckpt-000000001"]


def test_sizes_are_checked_before_arrays_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, names, read = put(tmp_path, 1), [], files.read
    monkeypatch.setattr(files, "read", lambda fd, name, limit: (names.append(name), read(fd, name, limit))[1])
    bigger = {**SPECS, "theta/kernel": files.ArraySpec((1 << 20, 5), np.dtype(np.float32))}
    assert "unread" in refusal(lambda: load(path, bigger))
    read_identity(path)
    assert names == ["manifest.json", "manifest.json"]


def test_a_file_of_the_wrong_size_is_named(tmp_path: Path):
    for name in NAMES[::2]:
        path = put(tmp_path, 1)
        os.truncate(path / name, (path / name).stat().st_size - 1)
        assert f"{name} has another size" in refusal(lambda path=path: load(path, SPECS))


def test_missing_directories_are_one_line(tmp_path: Path):
    with pytest.raises(DiskError, match="No such file") as caught:
        put(tmp_path / "none", 1)
    assert str(caught.value).isprintable()
    refusal(lambda: load(tmp_path / "ckpt-000000001", SPECS))
    refusal(lambda: newest(tmp_path / "none"))
    assert newest(tmp_path) == (None, [])


def test_leftovers_are_cleared_without_following_links(tmp_path: Path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text("mine")
    for clear in (lambda: put(run, 3), lambda: newest(run)):
        run.mkdir(exist_ok=True)
        (run / ".ckpt-000000007-0a1b2c3d.tmp").symlink_to(outside)
        (run / ".ckpt-000000003.old").symlink_to(outside)
        (run / ".ckpt-000000008-0a1b2c3d.tmp" / "nested").mkdir(parents=True)
        (run / ".config.json-0a1b2c3d.tmp").write_text("")
        clear()
        put(run, 4)
        assert sorted(os.listdir(run)) == ["ckpt-000000003", "ckpt-000000004"]
        assert (outside / "manifest.json").read_text() == "mine"
    (run / ".ckpt-000000007-0a1b2c3d.tmp").mkdir()
    newest(run, clean=False)  # a reader does not touch the directory of a running writer
    assert (run / ".ckpt-000000007-0a1b2c3d.tmp").exists()


def test_a_write_that_does_not_read_back_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, 1)
    create = files.create
    for name in NAMES:

        def flip(fd: int, file: str, data: bytes, name: str = name):
            create(fd, file, bytes([data[0] ^ 1]) + data[1:] if file == name else data)

        monkeypatch.setattr(files, "create", flip)
        with pytest.raises(DiskError, match=f"{name} does not read back"):
            put(tmp_path, 2)
        assert os.listdir(tmp_path) == ["ckpt-000000001"]


# --- full disks ----------------------------------------------------------------------------------------------------


def armed(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("GPI_FAILPOINT", setting)
    forget_failpoint()


@pytest.fixture
def disarmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv("GPI_FAILPOINT", raising=False)
    forget_failpoint()
    yield monkeypatch
    monkeypatch.undo()
    forget_failpoint()


def assert_old_or_new(run: Path, scene: str, *, clean: bool = True) -> bool:
    """Check that the newest checkpoint is the one before or the new one, whole; return whether it is the new one."""
    found, skipped = newest(run, finite=True, clean=clean)
    assert skipped == [], run
    if scene == "replace" and found is not None and found.state == {"old": 1}:
        return False
    if found is not None and found.iteration == 4:
        assert_same(found, 4)
        return True
    if scene in ("full", "ring"):
        assert_same(found, 3)
        # Nothing is removed before the new one is safe.
        assert [p.name[-1] for p in checkpoint.saved(run)] == ["3", "2", "1"], run
    else:
        assert found is None and (scene == "first" or not clean), run
    return False


def assert_goes_on(run: Path) -> None:
    """Check that the next save works, and removes leftovers but no foreign files."""
    put(run, 5)
    assert_same(newest(run)[0], 5)
    names = {*os.listdir(run)} - {"config.json", "replay"}
    if (run / "replay").exists():  # one batch each, but for what a failed save had not counted
        kept = checkpoint.saved(run)
        needed = {name_of(one) for path in kept for one in load(path, None).segments}
        assert needed == {*os.listdir(run / "replay")} and len(needed) == 3
    assert len(names) <= 3 and all(checkpoint.NAME.fullmatch(name) for name in names), names


@pytest.mark.parametrize(("passages", "scenes"), THOROUGH)
def test_a_full_disk_takes_no_checkpoint_away(
    tmp_path: Path, disarmed: pytest.MonkeyPatch, passages: int, scenes: tuple[str, ...]
):
    met = set()
    for scene, point in itertools.product(scenes, FAILPOINTS):
        for count in range(1, passages + 1):
            run = tmp_path / f"{scene}-{point}-{count}"
            prepare(run, scene)
            armed(disarmed, f"{point}:{count}:enospc")
            try:
                put(run, 4)
                break  # the point is passed less often
            except DiskError as error:
                message = str(error)
            finally:
                armed(disarmed, "")
            met.add(point)
            assert "No space left on device" in message and message.isprintable()
            assert all(checkpoint.NAME.fullmatch(name) for name in {*os.listdir(run)} - {"replay"}), os.listdir(run)
            assert_old_or_new(run, scene, clean=False)  # nothing is left to clean up
            for path in checkpoint.saved(run):
                assert path.name in message
            assert_goes_on(run)
    assert met == {*POINTS["file."], *POINTS["ckpt."], *POINTS["segment."]}


def test_a_full_disk_takes_no_file_away(tmp_path: Path, disarmed: pytest.MonkeyPatch):
    path = tmp_path / "config.json"
    points = POINTS["file."] + POINTS["write."]
    for point in points:
        armed(disarmed, "")
        files.write(path, b"old")
        armed(disarmed, f"{point}:1:enospc")
        with pytest.raises(DiskError, match="No space left"):
            files.write(path, b"new")
        assert path.read_bytes() == (b"new" if point in points[-2:] else b"old")
        assert os.listdir(tmp_path) == ["config.json"]


def test_a_mistyped_failpoint_is_an_error(disarmed: pytest.MonkeyPatch):
    for setting in ("ckpt.after_rename", "ckpt.after_rename:0", "ckpt.after_renam:1", "ckpt.after_rename:1:eio", ":"):
        armed(disarmed, setting)
        with pytest.raises(UsageError, match="GPI_FAILPOINT"):
            failpoint("file.mid_write")
    armed(disarmed, "file.mid_write:2:enospc")
    failpoint("file.mid_write")
    failpoint("file.before_write")
    with pytest.raises(OSError):
        failpoint("file.mid_write")
    failpoint("file.mid_write")


def test_the_list_of_failpoints_is_the_code():
    used = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "failpoint",
                "files.failpoint",
                "failpoints.failpoint",
            ):
                used.add(ast.literal_eval(node.args[0]))
    assert used == set(FAILPOINTS) and len(used) == len(FAILPOINTS)


def test_a_disk_that_fills_up_in_a_write(tmp_path: Path):
    done = python("durability_child.py", "fill", str(tmp_path))
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    assert len(outcomes) == 64 and outcomes.count("refused") >= 62
    found, skipped = newest_valid(tmp_path, {"x": files.ArraySpec((5000,), np.dtype(float))})
    assert found and skipped == [] and (found.arrays["x"] == np.arange(5000.0)).all()


@pytest.mark.parametrize(("passages", "scenes"), THOROUGH)
def test_a_kill_at_any_point_leaves_the_old_or_the_new(tmp_path: Path, passages: int, scenes: tuple[str, ...]):
    arguments = ("kill", str(tmp_path), str(passages), *scenes, "write")
    done = python("durability_child.py", *arguments, env={"GPI_FAILPOINT": ""})
    assert done.returncode == 0, done.stderr
    killed = json.loads(done.stdout)
    assert {point for _, point, _ in killed} == set(itertools.chain(*POINTS.values()))
    new = dict.fromkeys(scenes, 0)
    for scene, point, count in killed:
        run = tmp_path / f"{scene}-{point}-{count}"
        if scene == "write":
            assert (run / "config.json").read_bytes() in (b"old" * 1000, b"new" * 1000)
        else:
            assert_old_or_new(run, scene, clean=False)
            new[scene] += assert_old_or_new(run, scene)
            if point in ("ckpt.after_parentsync", "ckpt.before_remove"):
                assert newest(run)[0].state == state_of(4)  # type: ignore[union-attr]
        assert_goes_on(run)
    assert all(new.values()), new


def test_a_failpoint_kills_through_the_environment(tmp_path: Path):
    prepare(tmp_path / "run", "full")
    done = python("durability_child.py", "save", str(tmp_path / "run"), env={"GPI_FAILPOINT": "file.mid_write:3"})
    assert done.returncode == -signal.SIGKILL
    (left,) = [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]
    assert sorted(os.listdir(tmp_path / "run" / left)) == sorted(NAMES)  # the third file is half written
    assert not assert_old_or_new(tmp_path / "run", "full")
    assert_goes_on(tmp_path / "run")


# --- power cuts ---------------------------------------------------------------------------------------------------


class Disk:
    """Watches the calls that reach the disk: which files are synced, and which renames may still be lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.synced: set[int] = set()
        self.pending: dict[int, str] = {}  # directories with a rename that is not on disk, and its new name
        self.renames = 0
        for name in ("open", "mkdir", "write", "fsync", "rename", "replace", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in ("rename", "replace"):
                self.before_rename(*args, **kwargs)
            elif name in ("unlink", "rmdir"):
                assert not self.pending, f"{args[0]} is removed before a rename is on disk"
            result = call(*args, **kwargs)
            if name == "open" and args[1] & os.O_CREAT:
                self.synced.discard(os.fstat(result).st_ino)
            elif name == "mkdir":
                self.synced.discard(os.stat(args[0], dir_fd=kwargs.get("dir_fd")).st_ino)
            elif name == "write":
                self.synced.discard(os.fstat(args[0]).st_ino)
            elif name == "fsync":
                self.synced.add(os.fstat(args[0]).st_ino)
                self.pending.pop(os.fstat(args[0]).st_ino, None)
            return result

        return wrapper

    def before_rename(self, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """Check that the source and everything in it is on disk; the directory that gets the name must be synced."""
        facts = os.stat(old, dir_fd=src_dir_fd, follow_symlinks=False)
        inside = [facts.st_ino]
        if stat.S_ISDIR(facts.st_mode):
            path = Path(os.readlink(f"/proc/self/fd/{src_dir_fd}")) / old
            inside += [file.stat().st_ino for file in path.iterdir()]
        assert set(inside) <= self.synced, f"{old} becomes {new} before it is on disk"
        for name in self.pending.values():  # only retirements may be lost in any order
            assert name.endswith(".tmp") and new.endswith(".tmp"), f"{new} is named before {name} is on disk"
        self.pending[os.fstat(dst_dir_fd).st_ino] = new
        self.renames += 1


def test_every_rename_is_between_two_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Disk(monkeypatch)
    for iteration in (1, 2, 3, 4, 5, 5):
        put(tmp_path, iteration)
        assert not disk.pending
    assert disk.renames == 6 + 2 + 1  # six are published, two are retired, one is moved aside
    files.write(tmp_path / "config.json", b"x")
    assert not disk.pending and disk.renames == 10
    with files.directory(tmp_path) as fd:
        os.rename("ckpt-000000005", ".ckpt-000000005.old", src_dir_fd=fd, dst_dir_fd=fd)
        os.fsync(fd)
    assert_same(newest(tmp_path)[0], 5)
    assert not disk.pending and disk.renames == 12
    (tmp_path / "run").mkdir()
    put(tmp_path / "run", 1, 2, 3, 4, ring=True)
    assert not disk.pending and disk.renames == 12 + 2 * 4 + 1
