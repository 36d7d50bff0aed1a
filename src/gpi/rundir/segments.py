"""Segments: what a critic keeps beyond the M slots, in files that are written once and never changed.

`replay/segment-000000010-000000060.safetensors` in a run directory holds batches 10 to 59 of every member. A
checkpoint's manifest lists the segments it needs, with their sizes and hashes, so that it costs only the new batches.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpi import files
from gpi.errors import DiskError, FileError, disk_error
from gpi.failpoints import failpoint
from gpi.files import ArraySpec, Specs, shown
from gpi.standalone import Facts, sha256

FOLDER = "replay"
NAME = re.compile(r"segment-[0-9]{9}-[0-9]{9}\.safetensors")
MOST = 5_000  # in a manifest, which holds 1 MiB


def name_of(segment: Facts) -> str:
    """Return the name of a segment's file."""
    return f"segment-{segment['first']:09d}-{segment['first'] + segment['batches']:09d}.safetensors"


@contextmanager
def as_disk_errors(run: Path, path: Path) -> Iterator[None]:
    """Raise what fails in writing as the error of a disk, with the checkpoints that the run keeps."""
    try:
        yield
    except (OSError, FileError) as error:
        kept = f"it keeps {', '.join(sorted(path.name for path in run.glob('ckpt-*'))) or 'no checkpoint'}"
        if isinstance(error, OSError):
            raise disk_error(path, error, kept) from error
        raise DiskError(f"{path} cannot be written: {error}; {kept}; look whether that disk is sound") from error


def end_of(segments: list[Facts]) -> int:
    """Return the number of batches up to the end of the last segment."""
    return segments[-1]["first"] + segments[-1]["batches"] if segments else 0


def add(run: Path, segments: list[Facts], first: int, arrays: Mapping[str, np.ndarray], slots: int) -> list[Facts]:
    """Write the batches from `first` on, wait until the disk has them, and return the segments that a ring needs."""
    batches = next(iter(arrays.values())).shape[1] if arrays else 0
    if not batches:
        return segments
    data = files.encode(arrays)
    new = {"first": first, "batches": batches, "size": len(data), "sha256": sha256(data)}
    with as_disk_errors(run, run / FOLDER):
        _write(run, name_of(new), data)
    return [one for one in [*segments, new] if one["first"] + one["batches"] > first + batches - slots]


def _write(run: Path, name: str, data: bytes) -> None:
    """Write a file of the folder under another name first, read it back, and wait until the disk has its name."""
    temp = files.temporary(name)
    with files.directory(run) as parent:
        if FOLDER not in os.listdir(parent):
            os.mkdir(FOLDER, dir_fd=parent)
            os.fsync(parent)
        with files.directory(FOLDER, parent, follow=False) as fd:
            try:
                files.create(fd, temp, data)
                failpoint("segment.before_verify")
                if files.read(fd, temp, len(data)) != data:
                    raise FileError(f"{name} does not read back as written")
                os.rename(temp, name, src_dir_fd=fd, dst_dir_fd=fd)
                failpoint("segment.after_rename")
                os.fsync(fd)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=fd)
                raise


def checked(listed: Any) -> list[Facts]:
    """Return the segments that a manifest lists: one follows the other."""
    segments: list[Any] = listed if isinstance(listed, list) else [listed]
    for one, before in zip(segments, [None, *segments], strict=False):
        match one:
            case {"first": first, "batches": batches, "size": size, "sha256": str(), **rest} if not rest:
                numbers = all(type(x) is int and 0 <= x < 1 << 60 for x in (first, batches, size)) and batches > 0
                if numbers and first + batches < 10**9 and (before is None or first == end_of([before])):
                    continue
        raise FileError(f"segments do not fit (expected first, batches, size and sha256, found {shown(one)})")
    return segments


def read(run: Path, segments: list[Facts], specs: Specs) -> dict[str, np.ndarray]:
    """Return the rings `[P, R, ...]` that the segments hold, checked; each batch lies in its slot."""
    rings = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    slots = {spec.shape[1] for spec in specs.values()}
    for number, one in enumerate(segments):
        if number == 0 and one["first"] > max(0, end_of(segments) - min(slots, default=0)):
            raise FileError(f"segments do not fill the ring (expected an earlier one than {name_of(one)})")
        for name, x in _read(run, one, specs).items():
            R, batch = rings[name].shape[1], np.arange(one["first"], end_of([one]))
            rings[name][:, batch[-R:] % R] = x[:, -R:]
    return rings


def _read(run: Path, one: Facts, specs: Specs) -> dict[str, np.ndarray]:
    """Return the arrays of one segment, whose size and hash must be the manifest's."""
    expected = {x: ArraySpec((s.shape[0], one["batches"], *s.shape[2:]), s.dtype) for x, s in specs.items()}
    name = name_of(one)
    if one["size"] not in files.sizes(expected):
        raise FileError(f"{name} is refused unread (expected another size than {one['size']} bytes)")
    try:
        with files.directory(run) as parent, files.directory(FOLDER, parent, follow=False) as fd:
            data = files.read(fd, name, one["size"])
    except OSError as error:
        raise FileError(f"{name} cannot be read ({error.strerror})") from error
    if len(data) != one["size"] or sha256(data) != one["sha256"]:
        raise FileError(f"{name} is damaged (expected SHA-256 {shown(one['sha256'])}, found {sha256(data)})")
    return files.decode(data, expected, finite=True)[0]


def prune(run: int, needed: set[str]) -> None:
    """Remove the segments of a run, given its descriptor, that no checkpoint needs, and leftovers of killed writers."""
    with suppress(FileNotFoundError), files.directory(FOLDER, run, follow=False) as fd:
        for name in sorted(os.listdir(fd)):
            plain = stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            if plain and (files.LEFTOVER.fullmatch(name) or (NAME.fullmatch(name) and name not in needed)):
                failpoint("segment.before_remove")
                os.unlink(name, dir_fd=fd)


def discard(run: Path) -> None:
    """Remove all segments of a run, which cannot be trained further then."""
    with suppress(OSError):
        shutil.rmtree(run / FOLDER)
