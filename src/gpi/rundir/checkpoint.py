"""Checkpoints: a run's state in one directory, which exists as a whole or not at all.

`ckpt-000000512/` holds the state after iteration 512: `arrays.safetensors`, `state.json`, `policies.safetensors` with
the files of the policies, where policies were evaluated `best.safetensors` with those of the best so far, and
`manifest.json` with the sizes and hashes of these, and its own hash. Hashes stop accidents; attackers are stopped
because nothing in these files is trusted before it has been checked. Only the process that holds the lock of a run
directory writes to it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpi import files
from gpi.errors import DENIED, FileError, UsageError, read_error
from gpi.failpoints import failpoint
from gpi.files import Specs, shown
from gpi.rundir import segments
from gpi.standalone import Facts, sha256

SCHEMA, FIRST = "gpi-checkpoint-2", "gpi-checkpoint-1"  # the first lacks what the policies read with
KEEP = 3
ARRAYS, STATE, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"
BEST, POLICIES = "best.safetensors", "policies.safetensors"  # each packs files of policies; either may be missing
UNKNOWN = range(1 << 32)  # sizes of a file whose arrays the reader does not know in advance
NAME = re.compile(r"ckpt-([0-9]{9})")
PACKED = re.compile(r"(?:best|policy)-[0-9]{1,9}\.safetensors")
ASIDE = re.compile(r"\.(ckpt-[0-9]{9})\.old")  # the predecessor of a checkpoint that is being replaced


class Checkpoint(NamedTuple):
    """A checkpoint that passed every check."""

    iteration: int
    arrays: dict[str, np.ndarray]
    state: Facts
    identity: Facts
    best: dict[str, bytes]
    """The files of the best policies so far, by name."""
    segments: list[Facts]
    """The segments that it needs, in order."""


def save(
    run: Path, iteration: int, arrays: Mapping[str, np.ndarray], state: Facts, identity: Facts,
    packs: Mapping[str, Mapping[str, bytes]] | None = None, listed: list[Facts] | None = None,
) -> Path:  # fmt: skip
    """Write a checkpoint and wait until the disk has it; only then remove all but the newest three.

    `packs` are files of policies by name, to be packed as `BEST` and `POLICIES`; `listed` the segments that it needs.
    """
    if not 0 <= iteration < 10**9:
        raise UsageError(f"iteration {iteration} cannot be saved; checkpoints count from 0 to 999999999")
    name, contents = f"ckpt-{iteration:09d}", _pack(iteration, arrays, state, identity, packs or {}, listed)
    with segments.as_disk_errors(run, run / name), files.directory(run) as parent:
        try:
            _clean(parent)
            temp = _build(parent, name, contents)
            _publish(parent, temp, name)
            _prune(parent, iteration)
        except BaseException:
            with suppress(OSError):
                _clean(parent)
            raise
    return run / name


def _pack(
    iteration: int, arrays: Mapping[str, np.ndarray], state: Facts, identity: Facts,
    packs: Mapping[str, Mapping[str, bytes]], listed: list[Facts] | None,
) -> dict[str, bytes]:  # fmt: skip
    """Return the contents of the files, checked to be readable before any of them exists."""
    contents = {ARRAYS: files.encode(arrays), STATE: files.dump_json(state)}
    for pack, packed in packs.items():
        if packed:
            contents[pack] = files.encode({name: np.frombuffer(data, np.uint8) for name, data in packed.items()})
    facts = {name: {"size": len(data), "sha256": sha256(data)} for name, data in contents.items()}
    manifest = {"schema": SCHEMA, "iteration": iteration, "files": facts, "identity": identity}
    contents[MANIFEST] = files.seal(manifest | ({"segments": listed} if listed else {}), files.dump_json)
    for name in (STATE, MANIFEST):
        files.parse_json(contents[name], name)
    return contents


def _build(parent: int, name: str, contents: dict[str, bytes]) -> str:
    """Write a directory with the files, wait until the disk has it, and read it back; return its name."""
    temp = files.temporary(name)
    failpoint("ckpt.before_mkdir")
    os.mkdir(temp, dir_fd=parent)
    failpoint("ckpt.after_mkdir")
    with files.directory(temp, parent, follow=False) as fd:
        for file, data in contents.items():
            files.create(fd, file, data)
        failpoint("ckpt.before_verify")
        for file, data in contents.items():
            if files.read(fd, file, len(data)) != data:
                raise FileError(f"{file} does not read back as written")
        failpoint("ckpt.before_dirsync")
        os.fsync(fd)
        failpoint("ckpt.after_dirsync")
    return temp


def _publish(parent: int, temp: str, name: str) -> None:
    """Give the finished directory its name; a predecessor of that name can be restored until then."""
    if name in os.listdir(parent):
        _rename(parent, name, f".{name}.old")
        os.fsync(parent)
        failpoint("ckpt.after_aside")
    failpoint("ckpt.before_rename")
    _rename(parent, temp, name)
    failpoint("ckpt.after_rename")
    os.fsync(parent)
    failpoint("ckpt.after_parentsync")


def _prune(parent: int, iteration: int) -> None:
    """Remove all but the newest three checkpoints up to this iteration; later ones are left alone."""
    # Renamed before they are emptied: even after a power cut, a half-removed one must not have a checkpoint's name.
    for old in [number for number in _iterations(parent) if number <= iteration][KEEP:]:
        failpoint("ckpt.before_retire")
        _rename(parent, f"ckpt-{old:09d}", files.temporary(f"ckpt-{old:09d}"))
        failpoint("ckpt.after_retire")
    os.fsync(parent)
    failpoint("ckpt.before_remove")
    _clean(parent)
    if segments.FOLDER in os.listdir(parent):
        try:
            needed = {name for number in _iterations(parent) for name in _needed(parent, number)}
        except (FileError, UsageError, OSError):
            return  # a checkpoint that is damaged may need any
        segments.prune(parent, needed)


def _needed(parent: int, iteration: int) -> list[str]:
    """Return the names of the segments that a checkpoint needs."""
    with files.directory(f"ckpt-{iteration:09d}", parent, follow=False) as fd:
        return [segments.name_of(one) for one in _manifest(fd, iteration)["segments"]]


def _clean(parent: int) -> None:
    """Remove the leftovers of killed writers, and restore a checkpoint whose replacement was never finished."""
    names = set(os.listdir(parent))
    for name in sorted(names):
        aside = ASIDE.fullmatch(name)
        if aside and aside[1] not in names:
            _rename(parent, name, aside[1])
            os.fsync(parent)
        elif aside or files.LEFTOVER.fullmatch(name):
            _remove(parent, name)


def _remove(parent: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return os.unlink(name, dir_fd=parent)
    with suppress(FileNotFoundError):
        os.unlink(f"{name}/{MANIFEST}", dir_fd=parent)
    failpoint("ckpt.mid_remove")
    shutil.rmtree(name, dir_fd=parent)


def _rename(parent: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)


def load(path: Path, expected: Specs | None, finite: Collection[str] | bool = ()) -> Checkpoint:
    """Load a checkpoint with exactly the arrays expected; raise FileError, in one line, if anything is wrong.

    Without `expected`, each user of an array checks it.
    """
    with _opened(path) as (fd, iteration):
        manifest = _manifest(fd, iteration)
        kept = None if expected is None else {name: spec for name, spec in expected.items() if not spec.segmented}
        data = _content(fd, manifest, ARRAYS, UNKNOWN if kept is None else files.sizes(kept))
        state = files.parse_json(_content(fd, manifest, STATE, range(files.JSON_LIMIT + 1)), STATE)
        best = _packed(fd, manifest, BEST)
        arrays, listed = files.decode(data, kept, finite)[0], manifest["segments"]
        rings = {name: spec for name, spec in (expected or {}).items() if spec.segmented}
        arrays |= segments.read(path.parent, listed, rings) if rings else {}
        return Checkpoint(iteration, arrays, state, manifest["identity"], best, listed)


def _packed(fd: int, manifest: Facts, pack: str) -> dict[str, bytes]:
    """Return the files of policies in a pack, by name; what they hold is checked when it is used."""
    found = files.decode(_content(fd, manifest, pack, UNKNOWN))[0] if pack in manifest["files"] else {}
    for name, x in found.items():
        if not PACKED.fullmatch(name) or x.dtype != np.uint8 or x.ndim != 1:
            raise FileError(f"{pack} does not fit (expected bytes of best-0.safetensors, found {shown(name)})")
    return {name: x.tobytes() for name, x in found.items()}


def read_policies(path: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint's policies by name, without reading its arrays; earlier versions pack none."""
    with _opened(path) as (fd, iteration):
        return _packed(fd, _manifest(fd, iteration), POLICIES)


def read_identity(path: Path) -> Facts:
    """Return the identity that a checkpoint states, without reading its arrays."""
    with _opened(path) as (fd, iteration):
        return _manifest(fd, iteration)["identity"]


def newest_valid(
    run: Path, expected: Specs, finite: Collection[str] | bool = (), *, clean: bool = True,
    judge: Callable[[Facts], None] = lambda identity: None,
) -> tuple[Checkpoint | None, list[str]]:  # fmt: skip
    """Return the valid checkpoint of the highest iteration, and one line for each higher one that is not valid.

    Leftovers of killed writers are removed first; pass `clean=False` to read a run that may still be alive. `judge` is
    called with a checkpoint's identity before its arrays are read; an error that it raises ends the search.
    """
    judge_newest(run, judge)
    if clean:
        with suppress(OSError), files.directory(run) as parent:
            _clean(parent)
    skipped = []
    for path in saved(run):
        try:
            identity = read_identity(path)
        except FileError as error:
            skipped.append(str(error))
            continue
        judge(identity)
        try:
            return load(path, expected, finite), skipped
        except FileError as error:
            skipped.append(str(error))
    return None, skipped


def judge_newest(run: Path, judge: Callable[[Facts], None]) -> None:
    """Let `judge` see where the newest readable checkpoint comes from, before anything is touched."""
    for path in saved(run):
        with suppress(FileError):
            identity = read_identity(path)
            break
    else:
        return
    judge(identity)


def saved(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first by the numbers in their names; clocks do not matter."""
    try:
        with files.directory(run) as parent:
            return [run / f"ckpt-{number:09d}" for number in _iterations(parent)]
    except OSError as error:
        if error.errno in DENIED:
            raise read_error(run, error) from error
        raise FileError(f"run {run}: cannot be read (expected a directory, found: {error.strerror})") from error


def _iterations(parent: int) -> list[int]:
    matches = [NAME.fullmatch(name) for name in os.listdir(parent)]
    return sorted((int(match[1]) for match in matches if match), reverse=True)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """Open a checkpoint; yield its descriptor and its number. Errors inside the block are raised with its name."""
    match = NAME.fullmatch(path.name)
    if not match:
        raise FileError(f"checkpoint {shown(path.name)}: wrong name (expected ckpt-000000000 or another number)")
    try:
        with files.directory(path, follow=False) as fd:
            yield fd, int(match[1])
    except OSError as error:
        if error.errno in DENIED:  # the newest state must not be passed over because of that
            raise read_error(path, error) from error
        what = f"cannot be read (expected a directory of plain files, found: {error.strerror})"
        raise FileError(f"checkpoint {path.name}: {what}") from error
    except FileError as error:
        raise FileError(f"checkpoint {path.name}: {error}") from error


def _manifest(fd: int, iteration: int) -> Facts:
    """Return the manifest of a checkpoint, checked; raise FileError unless the directory holds exactly its files."""
    with os.scandir(fd) as entries:  # a sixth is reason enough to refuse, however many follow
        found = sorted(entry.name for entry in islice(entries, 6))
    if [name for name in found if name not in (BEST, POLICIES)] != [ARRAYS, MANIFEST, STATE]:
        raise FileError(f"other files (expected {ARRAYS}, {MANIFEST}, {STATE}, found {shown(found)})")
    data = files.read(fd, MANIFEST, files.JSON_LIMIT)
    manifest = files.parse_json(data, MANIFEST)
    if manifest.get("schema") not in (SCHEMA, FIRST):
        raise FileError(f"schema of another version (expected {SCHEMA!r}, found {shown(manifest.get('schema'))})")
    claim = manifest.pop("sha256", None)
    if data != files.seal(manifest, files.dump_json):
        raise FileError(f"{MANIFEST} was changed (expected the hash of its content, found {shown(claim)})")
    match manifest:
        case {"schema": _, "iteration": number, "files": dict(facts), "identity": dict(), **rest}:
            listed = segments.checked(rest.pop("segments", []))
            if not rest and type(number) is int and number == iteration and sorted([*facts, MANIFEST]) == found:
                return manifest | {"segments": listed}
    rule = f"schema, iteration {iteration}, files and identity"
    raise FileError(f"{MANIFEST} does not fit (expected {rule}, found {shown(manifest)})")


def _content(fd: int, manifest: Facts, name: str, allowed: range) -> bytes:
    """Return the bytes of one file, whose size and hash must be the manifest's; a size not allowed is not read."""
    match manifest["files"][name]:
        case {"size": size, "sha256": str(claim), **rest} if not rest and type(size) is int and size in allowed:
            data = files.read(fd, name, size)
        case facts:
            rule = f"a hash and a size of {allowed.start} to {allowed.stop - 1} bytes"
            raise FileError(f"{name} is refused unread (expected {rule}, found {shown(facts)})")
    if len(data) != size:
        raise FileError(f"{name} has another size (expected {size} bytes, found {len(data)} bytes)")
    if sha256(data) != claim:
        raise FileError(f"{name} is damaged (expected SHA-256 {shown(claim)}, found {sha256(data)})")
    return data
