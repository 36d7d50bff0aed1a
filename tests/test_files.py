"""Checkpoints on disk: what was saved comes back or nothing does, whoever damaged, forged, filled or killed what."""

import ast
import bz2
import gzip
import io
import itertools
import json
import lzma
import marshal
import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

import gpi
from gpi import errors, files
from gpi.errors import DiskError, FileError, UsageError
from gpi.rundir import checkpoint
from gpi.rundir.checkpoint import identity_of, load, newest_valid, save

SOURCE = Path(gpi.__file__).parent
NAMES = ("arrays.safetensors", "manifest.json", "state.json")
IDENTITY = {"jax": "0.10.2", "threads": 2, "layout": [5, 1024]}


def arrays_of(iteration: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(iteration)
    return {
        "theta/kernel": rng.standard_normal((3, 5)).astype(np.float32),
        "adam/count": np.array(iteration, np.int32),
        "normaliser/mean": rng.standard_normal(4),
        "buffer/valid": rng.random((2, 3)) < 0.5,
        "key": rng.integers(2**32, size=2, dtype=np.uint32),
        "steps": rng.integers(2**60, size=1),
        "empty": np.zeros((0, 7), np.float32),
        "bytes": rng.integers(256, size=3, dtype=np.uint8),
    }


SPECS = files.specs_of(arrays_of(0))


def state_of(iteration: int) -> dict[str, Any]:
    return {"iteration": iteration, "lr": 1 / (iteration + 3), "offsets": {"metrics.csv": 17 * iteration}, "ok": [True]}


def put(run: Path, *iterations: int, state: dict[str, Any] | None = None) -> Path:
    for iteration in iterations:
        save(run, iteration, arrays_of(iteration), state or state_of(iteration), IDENTITY)
    return run / f"ckpt-{iterations[-1]:09d}"


def assert_same(found: checkpoint.Checkpoint | None, iteration: int) -> None:
    assert found is not None and found.iteration == iteration
    assert found.state == state_of(iteration) and found.identity == IDENTITY
    for name, array in arrays_of(iteration).items():
        assert found.arrays[name].dtype == array.dtype and found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()


def refusal(call: Callable[[], Any]) -> str:
    """The message of a refusal, which is one line."""
    with pytest.raises(FileError) as caught:
        call()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    return str(caught.value)


def python(code: str, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a process without JAX."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **settings.pop("env", {})}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **settings)


def test_every_error_has_its_exit_code():
    codes = {c.__name__: c.exit_code for c in errors.GpiError.__subclasses__()}
    assert codes == {
        "UsageError": 2, "FileError": 3, "LockedError": 4, "DiskError": 5, "EnvironmentFault": 6, "DivergedError": 7,
    }  # fmt: skip
    assert issubclass(UsageError, ValueError)


# --- the format ---------------------------------------------------------------------------------------------------


def test_arrays_come_back_bit_by_bit():
    arrays = arrays_of(1) | {"nan": np.array([np.nan, -0.0, np.inf]), "fortran": np.asfortranarray(np.eye(3)[:2])}
    data = files.encode(arrays, {"a": "ä\n"})
    found, metadata = files.decode(data, files.specs_of(arrays))
    assert metadata == {"a": "ä\n"} and list(found) == list(arrays)
    assert all(found[name].tobytes() == arrays[name].tobytes() for name in arrays)
    assert all(x.flags.writeable and x.flags.aligned and x.flags.owndata for x in found.values())
    assert files.encode(found, metadata) == data and int.from_bytes(data[:8], "little") % 8 == 0


def test_safetensors_reads_ours_and_we_read_theirs():
    arrays = arrays_of(2)  # in an order that leaves some of them unaligned
    theirs = safetensors.numpy.load(files.encode(arrays, {"by": "gpi"}))
    ours, metadata = files.decode(safetensors.numpy.save(arrays, {"by": "them"}), SPECS)
    assert metadata == {"by": "them"}
    for name, array in arrays.items():
        assert theirs[name].dtype == ours[name].dtype == array.dtype
        assert theirs[name].shape == ours[name].shape == array.shape
        assert theirs[name].tobytes() == ours[name].tobytes() == array.tobytes()


def test_we_accept_no_damaged_header_that_safetensors_refuses():
    data, rng = files.encode(arrays_of(3)), np.random.default_rng(0)
    end, accepted = 8 + int.from_bytes(data[:8], "little"), 0
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[rng.integers(end)] ^= 1 << rng.integers(8)
        try:
            files.decode(bytes(damaged))
        except FileError:
            continue
        accepted += 1  # a letter of a name changed: the hash, or the names expected, tell
        try:
            safetensors.numpy.load(bytes(damaged))
        except SafetensorError as error:
            pytest.fail(f"we are laxer: {error}")
    assert 0 < accepted < 2000


def test_what_a_file_cannot_hold_is_not_written():
    for array in (np.zeros(2, np.float16), np.array([object()]), np.zeros(2, ">f4"), np.array(["a"])):
        with pytest.raises(UsageError, match="dtype"):
            files.encode({"x": array})
    with pytest.raises(UsageError):
        files.encode({"__metadata__": np.zeros(2)})
    with pytest.raises(UsageError, match="header"):
        files.encode({f"{i:0100}": np.zeros(0) for i in range(8000)})


def test_no_array_is_made_before_all_are_as_expected(monkeypatch: pytest.MonkeyPatch):
    data = files.encode(arrays_of(4))
    monkeypatch.setattr(files, "_array", lambda *_: pytest.fail("an array was made"))
    shape, dtype = SPECS["theta/kernel"]
    for wrong in ((shape[::-1], dtype), ((*shape, 1), dtype), (shape, np.dtype(np.int32))):
        assert "theta/kernel" in refusal(lambda wrong=wrong: files.decode(data, {**SPECS, "theta/kernel": wrong}))
    assert "'more'" in refusal(lambda: files.decode(data, {**SPECS, "more": ((1,), np.dtype(np.float32))}))
    assert "'key'" in refusal(lambda: files.decode(data, {k: v for k, v in SPECS.items() if k != "key"}))


def test_finiteness_is_checked_where_asked():
    data = files.encode({"good": np.ones(2), "bad": np.array([1.0, np.nan])})
    for finite in (True, ["bad"], ["absent"]):
        refusal(lambda finite=finite: files.decode(data, None, finite))
    for finite in (False, (), ["good"]):
        assert np.isnan(files.decode(data, None, finite)[0]["bad"][1])


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"1", b"null", b'"a"', b"{", b"{}{}", b"{'a':1}", b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}',
     b'{"a":1,"a":1}', b'{"b":{"a":1,"a":2}}', b'\xef\xbb\xbf{"a":1}', '{"a":1}'.encode("utf-16"), b'{"a":"\xff"}',
     b'{"a":"\xc0\xaf"}', b'{"a":"\x00"}', b'{"a":["\\ud800"]}', b'{"\\udc80":1}',
     b'{"a":' + b"9" * 5000 + b"}", b'{"a":' + b"[" * 16 + b"]" * 16 + b"}",
     b'{"a":' * 500_000, b"[" * 1_000_000, b'{"a":"' + b"x" * (1 << 20) + b'"}', b'{"a":1}//', b'{"a":01}'],
)  # fmt: skip
def test_json_is_strict(text: bytes):
    assert refusal(lambda: files.parse_json(text, "state.json")).startswith("state.json ")


def test_json_comes_back():
    value = {"a": [1, 2.5, None, True, "ä\U0001f600"], "b": {"c": 2**100}, "d": 1 / 3}
    assert files.parse_json(files.dump_json(value), "x") == value
    deep = b'{"a":' + b"[" * 14 + b"1" + b"]" * 14 + b"}"
    assert files.parse_json(deep, "x")
    with pytest.raises(ValueError):
        files.dump_json({"a": float("nan")})


# --- one file -----------------------------------------------------------------------------------------------------


def test_a_plain_file_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12345")
    with files.directory(tmp_path) as fd:
        assert files.read(tmp_path, "a", 5) == files.read(fd, "a", 9) == b"12345"
    assert "at most 4" in refusal(lambda: files.read(tmp_path, "a", 4))
    refusal(lambda: files.read(tmp_path / "none", "a", 9))
    refusal(lambda: files.read(Path("/proc/self"), "status", 1 << 20))  # it has more bytes than it says
    for name in ("", ".", "..", "../a", f"{tmp_path}/a", "a\0", "absent", "absent\n"):
        refusal(lambda name=name: files.read(tmp_path, name, 9))


@pytest.fixture
def impatient() -> Iterator[None]:
    """Whoever waits for the writer of a pipe fails."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_an_odd_file_is_not_read(tmp_path: Path, impatient: None):
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "a").write_bytes(b"12345")
    for name, make in ODD.items():
        make(tmp_path / name, tmp_path / "a")
        refusal(lambda name=name: files.read(tmp_path, name, 9))
        if name == "hardlink":
            refusal(lambda: files.read(tmp_path, "a", 9))
            (tmp_path / name).unlink()
    assert len(os.listdir("/proc/self/fd")) == before  # refusals leak no descriptors


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    path, other = tmp_path / "config.json", tmp_path / "other"
    other.write_bytes(b"other")
    path.symlink_to(other)
    for data in (b"", b"old", b"x" * 100_000):
        files.write(path, data)
        assert path.read_bytes() == data and stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert other.read_bytes() == b"other" and sorted(os.listdir(tmp_path)) == ["config.json", "other"]
    with pytest.raises(DiskError, match="No such file"):
        files.write(tmp_path / "none" / "x", b"")


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_and_three_are_kept(tmp_path: Path):
    for iteration in (0, 7, 512, 513, 999_999_999):
        path = put(tmp_path, iteration)
        assert_same(load(path, SPECS, finite=True), iteration)
        assert identity_of(path) == IDENTITY
        assert sorted(os.listdir(path)) == sorted(NAMES)
    assert [p.name for p in checkpoint.saved(tmp_path)] == ["ckpt-999999999", "ckpt-000000513", "ckpt-000000512"]
    assert len(os.listdir(tmp_path)) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in path.iterdir())
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["schema"] == "gpi-checkpoint-1" and manifest["iteration"] == 999_999_999


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
    found, skipped = newest_valid(tmp_path, SPECS)
    assert_same(found, 100)
    assert skipped == []


def test_a_save_removes_nothing_newer_and_never_itself(tmp_path: Path):
    put(tmp_path, 90, 91, 92)
    (tmp_path / "ckpt-000000093").mkdir()  # damaged, like the three below it: training went back to 10
    for number in (90, 91, 92):
        (tmp_path / f"ckpt-0000000{number}" / "state.json").unlink()
    for iteration in (10, 11, 12, 13):
        put(tmp_path, iteration)
        found, skipped = newest_valid(tmp_path, SPECS)
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


def test_what_cannot_be_loaded_again_is_not_saved(tmp_path: Path):
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
    bigger = {**SPECS, "theta/kernel": ((1 << 20, 5), np.dtype(np.float32))}
    assert "unread" in refusal(lambda: load(path, bigger))
    identity_of(path)
    assert names == ["manifest.json", "manifest.json"]


def test_a_file_of_another_size_is_called_so(tmp_path: Path):
    for name in NAMES[::2]:
        path = put(tmp_path, 1)
        os.truncate(path / name, (path / name).stat().st_size - 1)
        assert f"{name} has another size" in refusal(lambda path=path: load(path, SPECS))


def test_missing_places_are_one_line(tmp_path: Path):
    with pytest.raises(DiskError, match="No such file") as caught:
        put(tmp_path / "none", 1)
    assert str(caught.value).isprintable()
    refusal(lambda: load(tmp_path / "ckpt-000000001", SPECS))
    refusal(lambda: newest_valid(tmp_path / "none", SPECS))
    assert newest_valid(tmp_path, SPECS) == (None, [])


def test_leftovers_are_cleared_without_following_links(tmp_path: Path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text("mine")
    for clear in (lambda: put(run, 3), lambda: newest_valid(run, SPECS)):
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
    newest_valid(run, SPECS, mend=False)  # a reader leaves a living writer's directory alone
    assert (run / ".ckpt-000000007-0a1b2c3d.tmp").exists()


def test_a_write_that_does_not_read_back_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, 1)
    create = files.create
    for name in NAMES:

        def flip(fd: int, file: str, data: bytes, name: str = name):
            create(fd, file, bytes([data[0] ^ 1]) + data[1:] if file == name else data)

        monkeypatch.setattr(files, "create", flip)
        with pytest.raises(DiskError, match=f"{name} does not read back"):
            put(tmp_path, 2)
        assert os.listdir(tmp_path) == ["ckpt-000000001"]


# --- accidents ----------------------------------------------------------------------------------------------------


def corrupt(rng: np.random.Generator, path: Path, other: Path) -> str:
    """One accident in the checkpoint `path`, whose neighbour is `other`; says which."""
    name = NAMES[rng.integers(3)]
    file, data = path / name, bytearray((path / name).read_bytes())
    begin, end = sorted(rng.integers(len(data) + 1, size=2))
    kinds = ("flip", "flip", "flips", "truncate", "zeros", "append", "insert", "cut", "swap", "other", "all", "missing",
             "extra", "empty", "renamed", "repeat")  # fmt: skip
    kind = str(rng.choice(kinds))
    if kind in ("flip", "flips"):
        for place in rng.integers(len(data), size=1 if kind == "flip" else 9):
            data[place] ^= 1 << rng.integers(8)
    elif kind == "truncate":
        del data[begin:]
    elif kind == "zeros":
        data[begin:end] = bytes(end - begin)
    elif kind == "append":
        data += [b"\n", b" ", b"\0", bytes(512), bytes(data)][rng.integers(5)]
    elif kind in ("insert", "repeat"):
        data[begin:begin] = data[begin:end] if kind == "repeat" else b" "
    elif kind == "cut":
        del data[begin:end]
    elif kind == "swap":
        target = path / NAMES[(NAMES.index(name) + 1) % 3]
        data, was = bytearray(target.read_bytes()), data
        target.write_bytes(was)
    elif kind == "other":
        data = bytearray((other / name).read_bytes())
    elif kind == "missing":
        file.unlink()
        return f"{name} missing"
    elif kind == "extra":
        (path / ("extra" if rng.random() < 0.5 else f"{name}.tmp")).write_bytes(data)
    elif kind == "empty":
        shutil.rmtree(path)
        path.mkdir()
        return kind
    elif kind in ("all", "renamed"):  # a whole and valid checkpoint under another's name
        shutil.rmtree(path)
        shutil.copytree(other, path)
        return kind
    file.write_bytes(data)
    return f"{name} {kind} {begin}:{end}"


@pytest.mark.parametrize("trials", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_damaged_checkpoint_is_loaded(tmp_path: Path, trials: int):
    template = tmp_path / "template"
    template.mkdir()
    put(template, 400, 512)
    whole = {name: (template / "ckpt-000000512" / name).read_bytes() for name in NAMES}
    seen: set[str] = set()
    for seed in itertools.count():
        run = tmp_path / "run"
        shutil.copytree(template, run)
        path = run / "ckpt-000000512"
        what = corrupt(np.random.default_rng(seed), path, run / "ckpt-000000400")
        if {file.name: file.read_bytes() for file in path.iterdir()} == whole:  # zeros over zeros, say
            shutil.rmtree(run)
            continue
        message = refusal(lambda path=path: load(path, SPECS, finite=True))
        assert message.startswith("checkpoint ckpt-000000512: ") and "(expected " in message, (seed, what)
        found, skipped = newest_valid(run, SPECS, finite=True)
        assert_same(found, 400)
        assert skipped == [message], (seed, what)
        shutil.rmtree(run)
        seen.add(f"{seed}: {what}")
        if len(seen) == trials:
            break


def test_every_bit_of_a_manifest_counts(tmp_path: Path):
    path = put(tmp_path, 512)
    data = (path / "manifest.json").read_bytes()
    for place, bit in itertools.product(range(0, len(data), 3), range(8)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        (path / "manifest.json").write_bytes(damaged)
        with pytest.raises(FileError):
            identity_of(path)


# --- attacks ------------------------------------------------------------------------------------------------------


def make_socket(path: Path, _: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(here)


ODD: dict[str, Callable[[Path, Path], Any]] = {
    "symlink": lambda path, target: path.symlink_to(target),
    "dangling": lambda path, target: path.symlink_to(target.parent / "nothing"),
    "loop": lambda path, target: path.symlink_to(path),
    "device": lambda path, target: path.symlink_to("/dev/zero"),
    "passwd": lambda path, target: path.symlink_to("/etc/passwd"),
    "hardlink": lambda path, target: path.hardlink_to(target),
    "fifo": lambda path, target: os.mkfifo(path),
    "directory": lambda path, target: path.mkdir(),
    "socket": make_socket,
}


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def payloads(root: Path) -> dict[str, bytes]:
    """What other loaders have run or unpacked."""
    evil = Payload(f"touch {root / 'pwned'}")
    found = {f"pickle{protocol}": pickle.dumps(evil, protocol) for protocol in range(6)}
    archive, tarball, bomb, npy, npz = (io.BytesIO() for _ in range(5))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", found["pickle2"])
    with tarfile.open(fileobj=tarball, mode="w") as file:
        member = tarfile.TarInfo("../../pwned")
        member.size = 4
        file.addfile(member, io.BytesIO(b"evil"))
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("theta.npy", bytes(1 << 26))
    np.save(npy, np.array([evil], object), allow_pickle=True)
    np.savez(npz, theta=np.array([evil], object), allow_pickle=True)
    script = f"import os; os.system('touch {root / 'pwned'}')"
    return found | {
        "zip": archive.getvalue(), "tar": tarball.getvalue(), "zip bomb": bomb.getvalue(), "npy": npy.getvalue(),
        "npz": npz.getvalue(), "7z": b"7z\xbc\xaf\x27\x1c\x00\x04" + found["pickle4"],
        "gzip bomb": gzip.compress(bytes(1 << 26)), "bz2 bomb": bz2.compress(bytes(1 << 24)),
        "xz bomb": lzma.compress(bytes(1 << 24)), "marshal": marshal.dumps(compile(script, "x", "exec")),
        "python": script.encode(), "yaml": f"!!python/object/apply:os.system ['touch {root / 'pwned'}']".encode(),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(57), "nothing": b"",
    }  # fmt: skip


def forge(path: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None, **contents: bytes) -> None:
    """Replace `arrays` or `state`, change the manifest, and make all hashes right again."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    for name, data in contents.items():
        file = {"arrays": "arrays.safetensors", "state": "state.json"}[name]
        (path / file).write_bytes(data)
        manifest["files"][file] = {"size": len(data), "sha256": checkpoint._sha256(data)}
    change(manifest)
    (path / "manifest.json").write_bytes(checkpoint._seal(manifest))


def with_header(text: bytes | dict[str, Any], length: int | None = None) -> bytes:
    """The good arrays under another header."""
    data = files.encode(arrays_of(512))
    body = data[8 + int.from_bytes(data[:8], "little") :]
    text = json.dumps(text).encode() if isinstance(text, dict) else text
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def good_header() -> dict[str, Any]:
    data = files.encode(arrays_of(512))
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


Attack = Callable[[Path], Any]


def bad_headers(texts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Arrays files whose header lies: first in one field, then in its form, then in its length."""
    huge, shape = 2**63, [3, 5]
    lies: dict[str, list[Any]] = {
        "shape": [[huge], [2 * huge], [huge, 2], [2**32, 2**32], [0, huge], [0, 2**40, 2**40], [-3, -5], [-15], [15.0],
                  [True, 15], ["3", 5], [[3, 5]], [], [15], [5, 3], None, "3,5", {"0": 3}, [1] * 17 + shape,
                  [15] + [1] * 100, [huge] * 40_000, [2**59] * 40_000, 15],
        "data_offsets": [[-60, 0], [0, -60], [60, 0], [4, 64], [0, 61], [0, huge], [huge, huge], [0, 2 * huge],
                         [0.0, 60.0], [False, 60], ["0", "60"], [0], [0, 60, 60], [], None, 60, [[0, 60]], {"0": 60}],
        "dtype": ["F64", "F16", "BF16", "I32", "U32", "O", "object", "|O", "<f4", "f32", "", None, 5, ["F32"], {}],
    }  # fmt: skip
    for field, values in lies.items():
        for value in [*values, *texts.values()]:
            header = good_header()
            header["theta/kernel"][field] = value
            yield f"{field} {str(value)[:30]}", with_header(header)
    for second in ([60, 60], [0, 4], [59, 63], [61, 65], [56, 60]):  # overlaps and holes between two
        header = good_header()
        header["adam/count"]["data_offsets"] = second
        yield f"second at {second}", with_header(header)
    for empty in ([0, 2**59, 2**59], [2**59, 0, 2**59], [-1, 0]):  # no bytes, and yet too much
        header = good_header()
        header["empty"]["shape"] = empty
        yield f"empty {empty}", with_header(header)
    for field in lies:
        header = good_header()
        del header["theta/kernel"][field]
        yield f"no {field}", with_header(header)
    for value in (None, [], 5, "F32", {}, {**good_header()["theta/kernel"], "loader": "pickle"}, *texts.values()):
        yield f"entry {str(value)[:30]}", with_header({**good_header(), "theta/kernel": value})
    for name in ("../../etc/passwd", "/etc/passwd", "", "__class__", "theta/kernel\0", "\ud800", *texts.values()):
        header = good_header()
        yield f"name {name[:30]!a}", with_header({name if k == "key" else k: v for k, v in header.items()})
        header[name] = {"dtype": "F32", "shape": [0], "data_offsets": [header["bytes"]["data_offsets"][1]] * 2}
        yield f"more {name[:30]!a}", with_header(header)
    for value in (None, [], "x", {"a": 1}, {"a": {}}, {"a": None}):
        yield f"metadata {value}", with_header({"__metadata__": value, **good_header()})
    yield "order", with_header(dict(reversed(good_header().items())))
    yield "fewer", with_header({k: v for k, v in good_header().items() if k != "bytes"})
    text = json.dumps(good_header()).encode()
    inner = text[1:-1]
    for label, header in {
        "twice": b"{" + inner + b"," + inner + b"}", "bom": b"\xef\xbb\xbf" + text,
        "field twice": text.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1),
        "utf-16": text.decode().encode("utf-16"), "bad utf-8": text.replace(b"key", b"k\xff"),
        "deep list": b'{"a":' + b"[" * 200_000, "deep dict": b'{"a":' * 200_000,
        "deep closed": b'{"a":' * 999 + b"1" + b"}" * 999,
        "17 deep": b'{"a":' + b"[" * 17 + b"]" * 17 + b"," + inner + b"}", "list": b"[" + text + b"]", "null": b"null",
        "empty": b"", "spaces": b" " * 64, "rest": text + b"x", "second": text + text, "comment": text + b"//",
        "NaN": b'{"a":NaN,' + inner + b"}", "infinite": text.replace(b"[3, 5]", b"[3, 1e999]"), "nul": text + b"\0",
        "long int": text.replace(b"[3, 5]", b"[3, " + b"9" * 5000 + b"]"), "cut": text[:-1],
        "long name": b'{"' + b"n" * 900_000 + b'":5,' + inner + b"}", "too long": text + b" " * (1 << 20),
        "long float": text.replace(b"[3, 5]", b"[3, 5." + b"0" * 900_000 + b"]"),
        "many": b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(15_000))
                + b"," + inner + b"}",
    }.items():  # fmt: skip
        yield f"header {label}", with_header(header)
    for length in (0, 1, 7, len(text) - 1, len(text) + 1, 1 << 20, (1 << 20) + 1, 2**31, 2**32, 2**63, 2**64 - 1):
        yield f"length {length}", with_header(text, length)
    yield "8 bytes", bytes(8)
    yield "7 bytes", bytes(7)
    arrays = arrays_of(512)
    for value in (np.nan, np.inf, -np.inf):
        for name in ("theta/kernel", "normaliser/mean"):
            bad = arrays[name].copy()
            bad.flat[-1] = value
            yield f"{value} in {name}", files.encode({**arrays, name: bad})
    for name in arrays:
        for dtype in (np.float64, np.uint8, np.int64):
            if arrays[name].dtype != dtype:
                yield f"{name} as {dtype.__name__}", files.encode({**arrays, name: arrays[name].astype(dtype)})
    data = bytearray(files.encode(arrays))
    start = 8 + int.from_bytes(data[:8], "little") + good_header()["buffer/valid"]["data_offsets"][0]
    data[start] = 2
    yield "bool of 2", bytes(data)


def bad_manifests(texts: dict[str, str]) -> Iterator[tuple[str, Attack]]:
    """Manifests with right hashes and wrong content."""

    def setting(*keys: str, value: Any) -> Attack:
        def change(manifest: dict[str, Any]) -> None:
            for key in keys[:-1]:
                manifest = manifest[key]
            manifest[keys[-1]] = value

        return lambda path: forge(path, change)

    odd: list[Any] = [None, [], {}, "", 5.0, True, -1, 0, 2**63, 2**64, "512", 512.0, *texts.values()]
    file = ("files", "arrays.safetensors")
    for value in odd:
        for keys in (("schema",), ("iteration",), ("files",), file, (*file, "size"), (*file, "sha256")):
            yield f"{'.'.join(keys)} = {str(value)[:30]}", setting(*keys, value=value)
        if value != {}:
            yield f"identity = {str(value)[:30]}", setting("identity", value=value)
    for schema in ("gpi-checkpoint-2", "gpi-checkpoint-0", "gpi-checkpoint-1 "):
        yield schema, setting("schema", value=schema)
    yield (
        "size as float",
        lambda path: forge(
            path,
            lambda manifest: manifest["files"]["state.json"].update(size=float((path / "state.json").stat().st_size)),
        ),
    )
    yield "iteration + 1", setting("iteration", value=513)
    yield "more", setting("more", value=1)
    yield "more about a file", setting(*file, "loader", value="pickle")
    yield "more files", setting("files", "../../../etc/passwd", value={"size": 1, "sha256": "0"})
    zero = {"size": len(files.dump_json(state_of(512))), "sha256": "0" * 64}
    yield "hash of zeros", setting("files", "state.json", value=zero)
    for key in ("schema", "iteration", "files", "identity"):
        yield f"no {key}", lambda path, key=key: forge(path, lambda manifest: manifest.pop(key))
    for key in NAMES[::2]:
        yield f"no {key}", lambda path, key=key: forge(path, lambda manifest: manifest["files"].pop(key))


def bad_json(good: bytes) -> dict[str, bytes]:
    """Files that are not the strict JSON we write."""
    inner = good.strip()[1:-1]
    return {
        "twice": b"{" + inner + b"," + inner + b"}", "bom": b"\xef\xbb\xbf" + good,
        "utf-16": good.decode().encode("utf-16"), "utf-8": good[:-2] + b',"a":"\xff"}',
        "NaN": b'{"a":NaN,' + inner + b"}",
        "inf": b'{"a":-1e999,' + inner + b"}", "deep": b'{"a":' + b"[" * 300_000 + b"]" * 300_000 + b"}", "list": b"[]",
        "17 deep": b'{"a":' + b"[" * 17 + b"]" * 17 + b"," + inner + b"}", "large": good + b" " * (1 << 20),
        "long int": b'{"a":' + b"9" * 5000 + b"," + inner + b"}", "number": b"1", "cut": good[:-3],
    }  # fmt: skip


def sparse(path: Path, name: str, consistent: bool = False) -> None:
    """A file of 8 GB that takes no space, with a manifest that may agree."""
    os.truncate(path / name, 1 << 33)
    if consistent:
        forge(path, lambda manifest: manifest["files"][name].update(size=1 << 33))


def bad_places() -> Iterator[tuple[str, Attack]]:
    """Things of the file system where plain files should be."""

    def swap(path: Path, name: str, make: Callable[[Path, Path], Any]) -> None:
        target = path.parent / f"outside-{name}"
        (path / name).rename(target)  # whoever follows the link finds the right bytes
        make(path / name, target)

    for name in NAMES:
        for label, make in ODD.items():
            yield f"{name} is {label}", lambda path, name=name, make=make: swap(path, name, make)
        yield f"{name} of 8 GB", lambda path, name=name: sparse(path, name)
    yield "8 GB of arrays as told", lambda path: sparse(path, "arrays.safetensors", consistent=True)
    yield "8 GB of state as told", lambda path: sparse(path, "state.json", consistent=True)
    for label, make in ODD.items():
        if label != "hardlink":

            def replace(path: Path, make: Callable[[Path, Path], Any] = make) -> None:
                path.rename(path.parent / "moved")
                make(path, path.parent / "moved")

            yield f"checkpoint is {label}", replace
    for name in ("evil.py", "__init__.py", ".hidden", "arrays.safetensors.pkl", "conftest.py", "\n"):
        yield f"beside {name!a}", lambda path, name=name: (path / name).write_text("import os")
    yield "link beside", lambda path: (path / "more").symlink_to("/")
    yield "many beside", lambda path: [(path / f"{i}").touch() for i in range(2000)]


def attacks(root: Path) -> Iterator[tuple[str, Attack]]:
    """All of them, by name."""
    raw = payloads(root)
    texts = {name: raw[name].decode("latin-1") for name in ("pickle0", "pickle4", "python", "yaml")}
    for name, data in raw.items():
        yield f"{name} for arrays", lambda path, data=data: forge(path, arrays=data)
        yield f"{name} for a header", lambda path, data=data: forge(path, arrays=with_header(data))
        yield f"{name} for state", lambda path, data=data: forge(path, state=data)
        yield f"{name} for manifest", lambda path, data=data: (path / "manifest.json").write_bytes(data)
        yield (
            f"{name} after arrays",
            lambda path, data=data: forge(path, arrays=with_header(good_header()) + data + b"x"),
        )
    for label, data in bad_headers(texts):
        yield f"arrays: {label}", lambda path, data=data: forge(path, arrays=data)
    yield from bad_manifests(texts)
    state = files.dump_json(state_of(512))
    for label, data in bad_json(state).items():
        yield f"state: {label}", lambda path, data=data: forge(path, state=data)
    for label in bad_json(b"{}"):
        yield (
            f"manifest: {label}",
            lambda path, label=label: (path / "manifest.json").write_bytes(
                bad_json((path / "manifest.json").read_bytes())[label]
            ),
        )
    yield from bad_places()


HARNESS = """
import json, os, resource, sys, time
from pathlib import Path
import numpy as np
from gpi.errors import FileError
from gpi.rundir.checkpoint import load

root = Path(sys.argv[1])
specs = {name: (tuple(shape), np.dtype(dtype)) for name, shape, dtype in json.loads(sys.argv[2])}
paths = [root / f"{i}" / "ckpt-000000512" for i in range(int(sys.argv[3]))]
events, outcomes, seconds, current = [], [], [], None
harmless = {"os.scandir", "builtins.id"}

def hook(event, arguments):
    if current is None or event in harmless:
        return
    if event == "open" and (isinstance(arguments[0], int) or str(arguments[0]) in names):
        return
    events.append(f"{current}: {event} {arguments!a}")

def attempt(path):
    try:
        load(path, specs, finite=True)
        return "LOADED"
    except FileError as error:
        return str(error)
    except BaseException as error:
        return f"RAISED {error!a}"

outcomes.append(attempt(root / "good" / "ckpt-000000512"))  # whatever is imported late is imported now
outcomes.append(attempt(root / "bad" / "ckpt-000000512"))
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sys.addaudithook(hook)
for path in paths:
    names = {"arrays.safetensors", "state.json", "manifest.json", str(path)}
    begin = time.process_time()
    current = path
    outcome = attempt(path)
    current = None
    seconds.append(time.process_time() - begin)
    outcomes.append(outcome)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
current = "control"
open("/dev/null").close()
current = None
print(json.dumps({"outcomes": outcomes, "events": events, "slowest": max(seconds), "grown_kb": grown,
                  "jax": "jax" in sys.modules, "fds": len(os.listdir("/proc/self/fd"))}))
"""


def test_hostile_checkpoints_run_nothing_and_load_nothing(tmp_path: Path):
    template = tmp_path / "template"
    template.mkdir()
    put(template, 512)
    cases = dict(every := list(attacks(tmp_path)))
    assert len(cases) == len(every) >= 200
    for place, attack in {"good": None, "bad": cases["pickle0 for state"], **dict(enumerate(cases.values()))}.items():
        shutil.copytree(template, tmp_path / str(place))
        if attack:
            attack(tmp_path / str(place) / "ckpt-000000512")
    specs = json.dumps([(name, shape, dtype.str) for name, (shape, dtype) in SPECS.items()])
    done = python(HARNESS, str(tmp_path), specs, str(len(cases)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    good, bad, *outcomes = report["outcomes"]
    assert good == "LOADED" and bad.startswith("checkpoint ")
    for label, outcome in zip(cases, outcomes, strict=True):
        one_line = outcome.startswith("checkpoint ckpt-000000512: ") and outcome.isprintable() and len(outcome) < 500
        assert one_line and "(expected " in outcome, (label, outcome)
    assert len(report["events"]) == 1 and "/dev/null" in report["events"][0], report["events"]  # the hook's own test
    assert not (tmp_path / "pwned").exists() and not (tmp_path.parent / "pwned").exists()
    assert report["slowest"] < 2 and report["grown_kb"] < 100_000 and report["fds"] < 10 and not report["jax"]


def test_hostile_headers_are_refused_without_knowing_what_to_expect():
    accepted = []
    for label, data in bad_headers({}):
        try:
            files.decode(data, None, finite=True)
        except FileError as error:
            assert str(error).isprintable(), label
        else:
            accepted.append(label)
    # These are true, of other arrays.
    other = ("name ", "more ", "shape [15]", "shape [5, 3]", "dtype I32", "dtype U32", "header many")
    assert [label for label in accepted if not label.startswith(other) and " as " not in label] == []
    assert "header is too long" in refusal(lambda: files.decode(with_header(b"{}" + b" " * (1 << 20))))


def test_a_pickle_in_free_text_stays_text(tmp_path: Path):
    path, text = put(tmp_path, 512), pickle.dumps(Payload(f"touch {tmp_path / 'pwned'}"), 0).decode()
    forge(path, lambda manifest: manifest["identity"].update(jax=text), state=files.dump_json({"note": text}))
    found = load(path, SPECS)
    assert found.identity["jax"] == found.state["note"] == text and not (tmp_path / "pwned").exists()


def test_true_is_not_iteration_1(tmp_path: Path):
    path = put(tmp_path, 1)
    forge(path, lambda manifest: manifest.update(iteration=True))
    refusal(lambda: identity_of(path))


# --- full disks ---------------------------------------------------------------------------------------------------


def armed(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("GPI_FAILPOINT", setting)
    files._trap.cache_clear()


@pytest.fixture
def disarmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv("GPI_FAILPOINT", raising=False)
    files._trap.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    files._trap.cache_clear()


SCENES = ("first", "full", "replace")
POINTS = {kind: [p for p in files.FAILPOINTS if p.startswith(kind)] for kind in ("file.", "write.", "ckpt.")}


def prepare(run: Path, scene: str) -> None:
    """The state before checkpoint 4 is saved: nothing, three others, or another one of that iteration."""
    run.mkdir()
    if scene == "full":
        put(run, 1, 2, 3)
    elif scene == "replace":
        put(run, 4, state={"old": 1})


def assert_old_or_new(run: Path, scene: str, *, mend: bool = True) -> bool:
    """The newest checkpoint is the one before or the new one, whole; says if it is the new one."""
    found, skipped = newest_valid(run, SPECS, finite=True, mend=mend)
    assert skipped == [], run
    if scene == "replace" and found is not None and found.state == {"old": 1}:
        return False
    if found is not None and found.iteration == 4:
        assert_same(found, 4)
        return True
    if scene == "full":
        assert_same(found, 3)
        assert [p.name[-1] for p in checkpoint.saved(run)] == ["3", "2", "1"], (
            run
        )  # nothing goes before the new one is safe
    else:
        assert found is None and (scene == "first" or not mend), run
    return False


def assert_goes_on(run: Path) -> None:
    """The next save clears the run of all but checkpoints and what is not ours."""
    put(run, 5)
    assert_same(newest_valid(run, SPECS)[0], 5)
    names = {*os.listdir(run)} - {"config.json"}
    assert len(names) <= 3 and all(checkpoint.NAME.fullmatch(name) for name in names), names


def test_a_full_disk_takes_no_checkpoint_away(tmp_path: Path, disarmed: pytest.MonkeyPatch):
    met = set()
    for scene, point in itertools.product(SCENES, files.FAILPOINTS):
        for count in itertools.count(1):
            run = tmp_path / f"{scene}-{point}-{count}"
            prepare(run, scene)
            armed(disarmed, f"{point}:{count}:enospc")
            try:
                put(run, 4)
                break  # the point is not passed so often
            except DiskError as error:
                message = str(error)
            finally:
                armed(disarmed, "")
            met.add(point)
            assert "No space left on device" in message and message.isprintable()
            assert all(checkpoint.NAME.fullmatch(name) for name in os.listdir(run)), os.listdir(run)
            assert_old_or_new(run, scene, mend=False)  # nothing is left to mend
            for path in checkpoint.saved(run):
                assert path.name in message
            assert_goes_on(run)
    assert met == {*POINTS["file."], *POINTS["ckpt."]}


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


def test_a_failpoint_mistyped_is_an_error(disarmed: pytest.MonkeyPatch):
    for setting in ("ckpt.after_rename", "ckpt.after_rename:0", "ckpt.after_renam:1", "ckpt.after_rename:1:eio", ":"):
        armed(disarmed, setting)
        with pytest.raises(UsageError, match="GPI_FAILPOINT"):
            files.failpoint("file.mid_write")
    armed(disarmed, "file.mid_write:2:enospc")
    files.failpoint("file.mid_write")
    files.failpoint("file.before_write")
    with pytest.raises(OSError):
        files.failpoint("file.mid_write")
    files.failpoint("file.mid_write")


def test_the_list_of_failpoints_is_the_code():
    used = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("failpoint", "files.failpoint"):
                used.add(ast.literal_eval(node.args[0]))
    assert used == set(files.FAILPOINTS) and len(used) == len(files.FAILPOINTS)


# A limit on the size of files is a disk that fills up in mid-write, for real: part of the bytes are taken.
LIMITED = """
import os, resource, sys
from pathlib import Path
import numpy as np
from gpi.errors import DiskError
from gpi.rundir.checkpoint import save
arrays, run = {"x": np.arange(5000.0)}, Path(sys.argv[1])
save(run, 1, arrays, {}, {})
for size in range(0, 40_960, 640):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        save(run, 2, arrays, {}, {})
        print("saved")
    except DiskError as error:
        assert os.listdir(run) == ["ckpt-000000001"] and "File too large" in str(error), error
        print("refused")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_a_disk_that_fills_up_in_a_write(tmp_path: Path):
    done = python(LIMITED, str(tmp_path))
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    assert len(outcomes) == 64 and outcomes.count("refused") >= 62
    found, skipped = newest_valid(tmp_path, {"x": ((5000,), np.dtype(float))})
    assert found and skipped == [] and (found.arrays["x"] == np.arange(5000.0)).all()


# --- kills --------------------------------------------------------------------------------------------------------

# One process, forked before each kill: Python and NumPy start once.
KILLS = """
root, killed = Path(sys.argv[1]), []
for scene, point in itertools.product(("first", "full", "replace", "write"), files.FAILPOINTS):
    for count in itertools.count(1):
        run = root / f"{scene}-{point}-{count}"
        prepare(run, scene)
        if scene == "write":
            files.write(run / "config.json", b"old" * 1000)
        child = os.fork()
        if child == 0:
            try:
                os.environ["GPI_FAILPOINT"] = f"{point}:{count}"
                files._trap.cache_clear()
                files.write(run / "config.json", b"new" * 1000) if scene == "write" else put(run, 4)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            shutil.rmtree(run)
            break
        assert os.WTERMSIG(status) == 9
        killed.append((scene, point, count))
print(json.dumps(killed))
"""


def here(*names: str) -> str:
    """The start of a script with functions of this file, for processes without JAX."""
    nodes = [n for n in ast.parse(Path(__file__).read_text()).body if isinstance(n, ast.FunctionDef)]
    imports = "import itertools, json, os, shutil, sys\nfrom pathlib import Path\nfrom typing import Any\n"
    imports += "import numpy as np\nfrom gpi import files\nfrom gpi.rundir.checkpoint import save\n"
    functions = [ast.unparse(node) for node in nodes if node.name in names]
    return "\n".join([imports, f"IDENTITY = {IDENTITY}", *functions, ""])


HERE = here("arrays_of", "state_of", "put", "prepare")


def test_a_kill_at_any_point_leaves_the_old_or_the_new(tmp_path: Path):
    done = python(HERE + KILLS, str(tmp_path), env={"GPI_FAILPOINT": ""})
    assert done.returncode == 0, done.stderr
    killed = json.loads(done.stdout)
    assert {point for _, point, _ in killed} == set(itertools.chain(*POINTS.values()))
    new = dict.fromkeys(SCENES, 0)
    for scene, point, count in killed:
        run = tmp_path / f"{scene}-{point}-{count}"
        if scene == "write":
            assert (run / "config.json").read_bytes() in (b"old" * 1000, b"new" * 1000)
        else:
            assert_old_or_new(run, scene, mend=False)
            new[scene] += assert_old_or_new(run, scene)
            if point in ("ckpt.after_parentsync", "ckpt.before_remove"):
                assert newest_valid(run, SPECS)[0].state == state_of(4)  # type: ignore[union-attr]
        assert_goes_on(run)
    assert all(new.values()), new


def test_a_failpoint_kills_through_the_environment(tmp_path: Path):
    prepare(tmp_path / "run", "full")
    code = HERE + "put(Path(sys.argv[1]), 4)"
    done = python(code, str(tmp_path / "run"), env={"GPI_FAILPOINT": "file.mid_write:3"})
    assert done.returncode == -signal.SIGKILL
    (left,) = [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]
    assert sorted(os.listdir(tmp_path / "run" / left)) == sorted(NAMES)  # the third file is half written
    assert not assert_old_or_new(tmp_path / "run", "full")
    assert_goes_on(tmp_path / "run")


# --- power cuts ---------------------------------------------------------------------------------------------------


class Disk:
    """Watches the calls that reach the disk: what is synced, and which renames may still be lost."""

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
        """The source and all in it must be on disk; the directory that gets the name is to be synced."""
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
    assert disk.renames == 6 + 2 + 1  # six get their names, two are retired, one is put aside
    files.write(tmp_path / "config.json", b"x")
    assert not disk.pending and disk.renames == 10
    with files.directory(tmp_path) as fd:
        os.rename("ckpt-000000005", ".ckpt-000000005.old", src_dir_fd=fd, dst_dir_fd=fd)
        os.fsync(fd)
    assert_same(newest_valid(tmp_path, SPECS)[0], 5)
    assert not disk.pending and disk.renames == 12


# --- the shape of the code ----------------------------------------------------------------------------------------


def test_no_loader_that_runs_code_is_named():
    """Beside the imports and calls that test_training.py forbids: the same by other names."""
    forbidden = {"__import__", "builtins", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "jnp.load"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            name = str(node.arg) if isinstance(node, ast.keyword) else name
            name = node.name if isinstance(node, ast.alias) else name
            assert name not in forbidden and "pickle" not in name, (path, name)
