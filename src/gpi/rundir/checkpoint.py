"""Checkpoints: a run's state in one directory, which is there as a whole or not at all.

`ckpt-000000512/` holds what iteration 512 left: `arrays.safetensors`, `state.json`, and `manifest.json` with the sizes
and hashes of the two, and its own. Hashes stop accidents; what stops attackers is that nothing in these files is
believed before it has been checked. One process writes to a run directory: the one that holds its lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpi import files
from gpi.errors import DiskError, FileError, UsageError
from gpi.files import Specs, failpoint, shown

SCHEMA = "gpi-checkpoint-1"
KEEP = 3
ARRAYS, STATE, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"
NAME = re.compile(r"ckpt-([0-9]{9})")
ASIDE = re.compile(r"\.(ckpt-[0-9]{9})\.old")  # the predecessor of a checkpoint that is being replaced


class Checkpoint(NamedTuple):
    """A checkpoint that passed every check."""

    iteration: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]
    identity: dict[str, Any]


# --- writing ------------------------------------------------------------------------------------------------------


def save(
    run: Path, iteration: int, arrays: Mapping[str, np.ndarray], state: dict[str, Any], identity: dict[str, Any]
) -> Path:
    """Write a checkpoint and wait until the disk has it; only then remove all but the newest three."""
    if not 0 <= iteration < 10**9:
        raise UsageError(f"iteration {iteration} cannot be saved; checkpoints count from 0 to 999999999")
    name, contents = f"ckpt-{iteration:09d}", _pack(iteration, arrays, state, identity)
    try:
        with files.directory(run) as parent:
            try:
                _clean(parent)
                temp = _build(parent, name, contents)
                _place(parent, temp, name)
                _prune(parent, iteration)
            except BaseException:
                with suppress(OSError):
                    _clean(parent)
                raise
    except (OSError, FileError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        kept = ", ".join(sorted(path.name for path in run.glob("ckpt-*"))) or "no checkpoint"
        raise DiskError(f"checkpoint {name}: saving failed: {reason}; {run} keeps {kept}; free disk space") from error
    return run / name


def _pack(
    iteration: int, arrays: Mapping[str, np.ndarray], state: dict[str, Any], identity: dict[str, Any]
) -> dict[str, bytes]:
    """The three files, known to be readable before any of them exists."""
    contents = {ARRAYS: files.encode(arrays), STATE: files.dump_json(state)}
    facts = {name: {"size": len(data), "sha256": _sha256(data)} for name, data in contents.items()}
    contents[MANIFEST] = _seal({"schema": SCHEMA, "iteration": iteration, "files": facts, "identity": identity})
    for name in (STATE, MANIFEST):
        files.parse_json(contents[name], name)
    return contents


def _seal(manifest: dict[str, Any]) -> bytes:
    """A manifest that ends with its own hash: no other bytes say the same."""
    return files.dump_json(manifest | {"sha256": _sha256(files.dump_json(manifest))})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _build(parent: int, name: str, contents: dict[str, bytes]) -> str:
    """A private directory with the three files, all of it on disk and read back."""
    temp = files.temporary(name)
    failpoint("ckpt.before_mkdir")
    os.mkdir(temp, 0o700, dir_fd=parent)
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


def _place(parent: int, temp: str, name: str) -> None:
    """Give the finished directory its name; one that has the name stays restorable until then."""
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
    """Remove all but the newest three up to this one; a later one is none of a past iteration's business."""
    # Renamed before it is emptied: what is half removed must not carry a checkpoint's name, not even after a power cut.
    for old in [number for number in _numbers(parent) if number <= iteration][KEEP:]:
        failpoint("ckpt.before_retire")
        _rename(parent, f"ckpt-{old:09d}", files.temporary(f"ckpt-{old:09d}"))
        failpoint("ckpt.after_retire")
    os.fsync(parent)
    failpoint("ckpt.before_remove")
    _clean(parent)


def _clean(parent: int) -> None:
    """Remove what killed writers left, and put back a checkpoint whose replacement never arrived."""
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


# --- reading ------------------------------------------------------------------------------------------------------


def load(path: Path, expected: Specs, finite: Collection[str] | bool = ()) -> Checkpoint:
    """A checkpoint with exactly the arrays expected, or a `FileError` of one line; never a part of one."""
    with _opened(path) as (fd, iteration):
        manifest = _manifest(fd, iteration)
        data = _content(fd, manifest, ARRAYS, files.sizes(expected))
        state = files.parse_json(_content(fd, manifest, STATE, range(files.JSON_LIMIT + 1)), STATE)
        return Checkpoint(iteration, files.decode(data, expected, finite)[0], state, manifest["identity"])


def identity_of(path: Path) -> dict[str, Any]:
    """What a checkpoint says of its origin, before any array of it is read."""
    with _opened(path) as (fd, iteration):
        return _manifest(fd, iteration)["identity"]


def newest_valid(
    run: Path, expected: Specs, finite: Collection[str] | bool = (), *, mend: bool = True
) -> tuple[Checkpoint | None, list[str]]:
    """The valid checkpoint of the highest iteration, and one line for each higher one that is not valid.

    It first clears away what a killed writer left; readers of a run that may be alive say `mend=False`.
    """
    if mend:
        with suppress(OSError), files.directory(run) as parent:
            _clean(parent)
    skipped = []
    for path in saved(run):
        try:
            return load(path, expected, finite), skipped
        except FileError as error:
            skipped.append(str(error))
    return None, skipped


def saved(run: Path) -> list[Path]:
    """The checkpoints of a run by name, newest first; clocks have no say in it."""
    try:
        with files.directory(run) as parent:
            return [run / f"ckpt-{number:09d}" for number in _numbers(parent)]
    except OSError as error:
        raise FileError(f"run {run}: cannot be read (expected a directory, found: {error.strerror})") from error


def _numbers(parent: int) -> list[int]:
    matches = [NAME.fullmatch(name) for name in os.listdir(parent)]
    return sorted((int(match[1]) for match in matches if match), reverse=True)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """A checkpoint's directory and number; every complaint about it names it."""
    match = NAME.fullmatch(path.name)
    if not match:
        raise FileError(f"checkpoint {shown(path.name)}: wrong name (expected ckpt-000000000 or another number)")
    try:
        with files.directory(path, follow=False) as fd:
            yield fd, int(match[1])
    except OSError as error:
        what = f"cannot be read (expected a directory of plain files, found: {error.strerror})"
        raise FileError(f"checkpoint {path.name}: {what}") from error
    except FileError as error:
        raise FileError(f"checkpoint {path.name}: {error}") from error


def _manifest(fd: int, iteration: int) -> dict[str, Any]:
    """The manifest of a directory that holds its three files and nothing else, believed in form."""
    with os.scandir(fd) as entries:  # four are enough to refuse a million
        found = sorted(entry.name for entry in islice(entries, 4))
    if found != [ARRAYS, MANIFEST, STATE]:
        raise FileError(f"other files (expected {ARRAYS}, {MANIFEST}, {STATE}, found {shown(found)})")
    data = files.read(fd, MANIFEST, files.JSON_LIMIT)
    manifest = files.parse_json(data, MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise FileError(f"schema of another version (expected {SCHEMA!r}, found {shown(manifest.get('schema'))})")
    claim = manifest.pop("sha256", None)
    if data != _seal(manifest):
        raise FileError(f"{MANIFEST} was changed (expected the hash of its own content, found {shown(claim)})")
    match manifest:
        case {"schema": _, "iteration": number, "files": dict(facts), "identity": dict(), **rest} if not rest:
            if type(number) is int and number == iteration and facts.keys() == {ARRAYS, STATE}:
                return manifest
    rule = f"schema, iteration {iteration}, files and identity"
    raise FileError(f"{MANIFEST} does not fit (expected {rule}, found {shown(manifest)})")


def _content(fd: int, manifest: dict[str, Any], name: str, allowed: range) -> bytes:
    """The bytes of one file, of the size and hash the manifest says; a size not allowed is not read."""
    match manifest["files"][name]:
        case {"size": size, "sha256": str(claim), **rest} if not rest and type(size) is int and size in allowed:
            data = files.read(fd, name, size)
        case facts:
            rule = f"a hash and a size of {allowed.start} to {allowed.stop - 1} bytes"
            raise FileError(f"{name} is refused unread (expected {rule}, found {shown(facts)})")
    if len(data) != size:
        raise FileError(f"{name} has another size (expected {size} bytes, found {len(data)} bytes)")
    if _sha256(data) != claim:
        raise FileError(f"{name} is damaged (expected SHA-256 {shown(claim)}, found {_sha256(data)})")
    return data
