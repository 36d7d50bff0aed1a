"""Results from wherever they lie: packs, run directories, trees and archives of them, all read without trust.

Of a run only six files are read, each a plain file of bounded size. An archive is never unpacked by the names in it:
those six are copied to a temporary directory under names chosen here.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import numpy as np

from gpi import files
from gpi.errors import FileError, UsageError, read_error
from gpi.study.results import Placed, encode_pack, parse_pack, read_pack, read_result

NEEDED = ("config.json", "episodes.csv")
TAKEN = (*NEEDED, "DONE", "metrics.csv", "audit.csv", "audit.json")
FILE_LIMIT = 1 << 26  # bytes of one file of a run: a thousand times what a run of the study has
ARCHIVE_LIMIT = 1 << 33  # bytes of an archive, unpacked
MEMBERS_LIMIT = 200_000
PIECE = 1 << 20  # bytes of an archive that are asked for at once
UNPACKING_MEMORY = 1 << 28  # bytes that a compressed file may make its reader allocate
ARCHIVES = (".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz")


def read_source(path: Path) -> list[Placed]:
    """Return the results in a pack, a run directory, a tree of run directories or an archive of them.

    Runs that are not complete are results too; those without an update are none.
    """
    if path.is_dir():
        return [one for run in run_directories(path) for one in read_run(run, str(run))]
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a pack, a run directory, a tree of them or an archive")
    if path.name.lower().endswith(ARCHIVES):
        return read_archive(path)
    return [Placed(one, str(path)) for one in read_pack(path)]


def run_directories(tree: Path) -> Iterator[Path]:
    """Yield the run directories in a tree, sorted by name; links are not followed, nor is a run searched further."""

    def refuse(error: OSError) -> None:
        raise read_error(error.filename, error) from error

    for place, inner, names in os.walk(tree, onerror=refuse):
        inner.sort()
        if set(NEEDED) <= set(names):
            inner.clear()
            yield Path(place)


def read_run(directory: Path, place: str) -> list[Placed]:
    """Return the result of a run directory that may come from anywhere; an empty list before its first update.

    The result goes through the form of a pack, so that one check serves every source.
    """
    try:
        require_plain(directory)
        if not has_updates(directory):
            return []
        with np.errstate(over="ignore", invalid="ignore"):  # a pack refuses values that are not finite
            result = read_result(directory)
        return [Placed(one, place) for one in parse_pack(encode_pack([result]))]
    except FileError as error:
        raise FileError(f"run {place}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = files.shown(f"{type(error).__name__} {error}")
        raise FileError(f"run {place} cannot be used: {why}; restore it, or leave it out") from error


def require_plain(directory: Path) -> None:
    """Raise FileError unless the files read of a run are plain and of bounded size."""
    for name in TAKEN:
        try:
            facts = os.lstat(directory / name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > FILE_LIMIT:
            found = f"mode {facts.st_mode:o} with {facts.st_size} bytes"
            raise FileError(f"{name} is refused (expected a plain file of at most {FILE_LIMIT} bytes, found {found})")


def has_updates(directory: Path) -> bool:
    """Return whether a run has a row in its audit, or the sums of one that was cut down."""
    if (directory / "audit.json").exists():
        return True
    try:
        with (directory / "audit.csv").open("rb") as file:
            return file.read(PIECE).count(b"\n") > 1
    except OSError:
        return False


class Bounded(io.RawIOBase):
    """A file that refuses to be read in large pieces or without end, as a hostile archive would have it."""

    def __init__(self, inner: BinaryIO):
        """Read from the beginning."""
        self.inner, self.place, self.last = inner, 0, b""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= PIECE or self.place + size > ARCHIVE_LIMIT:
            raise FileError(f"it asks for {size} bytes at {self.place} (at most {PIECE}, and {ARCHIVE_LIMIT} in all)")
        self.last = self.inner.read(size)
        self.place += len(self.last)
        return self.last

    def tell(self) -> int:
        """Return the place."""
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go forward by reading."""
        if whence != io.SEEK_SET or offset < self.place:
            raise FileError("it is not read from beginning to end")
        while self.place < offset and self.read(min(PIECE, offset - self.place)):
            pass
        return self.place


OF_THE_NEXT = (b"x", b"g", b"X", b"L", b"K")  # headers whose content is names of, and facts about, the next member


class Header(tarfile.TarInfo):
    """The header of an archive's member, refused where names and facts about the next one would fill the memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:  # which tarfile's comments give to subclasses
        """Process the header."""
        if self.size > PIECE and self.type in OF_THE_NEXT:
            raise FileError(f"it asks for {self.size} bytes of facts about a file (at most {PIECE})")
        return super()._proc_member(archive)  # type: ignore[misc]


class Unpacked(io.RawIOBase):
    """The content of an xz file, whose reader may not allocate what the file demands."""

    def __init__(self, inner: BinaryIO):
        """Read from the beginning."""
        self.inner, self.reader = inner, lzma.LZMADecompressor(memlimit=UNPACKING_MEMORY)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: object, /) -> int:
        """Fill the buffer as far as one step of unpacking goes."""
        view = memoryview(cast(bytearray, buffer))
        while not self.reader.eof:
            packed = self.inner.read(PIECE // 16) if self.reader.needs_input else b""
            if self.reader.needs_input and not packed:
                raise EOFError("it ends too early")
            data = self.reader.decompress(packed, len(view))
            if data:
                view[: len(data)] = data
                return len(data)
        return 0


def opened(file: BinaryIO) -> Bounded:
    """Return the content of an archive, unpacked if it was packed; the file itself says how, not its name."""
    start = file.read(6)
    file.seek(0)
    if start == b"\xfd7zXZ\0":
        return Bounded(cast(BinaryIO, io.BufferedReader(Unpacked(file), PIECE)))
    return Bounded(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if start[:2] == b"\x1f\x8b" else file)


def read_archive(path: Path) -> list[Placed]:
    """Return the results of the runs in a .tar, .tar.xz or .tar.gz file."""
    with tempfile.TemporaryDirectory(prefix="gpi-archive-") as temp:
        try:
            with path.open("rb") as file:
                runs = copied(opened(file), Path(temp))
        except (tarfile.TarError, EOFError, lzma.LZMAError, OSError, ValueError, FileError) as error:
            if isinstance(error, OSError) and error.errno is not None and not isinstance(error, gzip.BadGzipFile):
                raise read_error(path, error) from error
            why = files.shown(str(error))
            raise FileError(f"archive {path} cannot be used: {why}; restore it, or leave it out") from error
        return [
            one for name, run in runs.items() if all((run / needed).exists() for needed in NEEDED)
            for one in read_run(run, f"{files.shown(name)[1:-1]} in {path}")
        ]  # fmt: skip


def copied(file: Bounded, temp: Path) -> dict[str, Path]:
    """Copy the files of runs out of an archive; return each run's directory, named by a number, by its name there."""
    runs: dict[str, Path] = {}
    with tarfile.open(fileobj=file, mode="r:", tarinfo=Header) as tar:
        for count, member in enumerate(tar):
            if count >= MEMBERS_LIMIT or member.offset_data + member.size > ARCHIVE_LIMIT:
                raise FileError(f"it is too large (at most {MEMBERS_LIMIT} files and {ARCHIVE_LIMIT} bytes)")
            copy(tar, member, runs, temp)
        if len(file.last) != tarfile.BLOCKSIZE or any(file.last):  # tarfile takes any unreadable block for the end
            raise FileError("it ends too early")
    return runs


def copy(tar: tarfile.TarFile, member: tarfile.TarInfo, runs: dict[str, Path], temp: Path) -> None:
    """Copy one file, if it is one of a run's; `runs` has the directories so far."""
    name = PurePosixPath(member.name)
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    if not plain or name.name not in TAKEN:
        return
    run = runs.setdefault(str(name.parent), temp / str(len(runs)))
    run.mkdir(exist_ok=True)
    if member.size > FILE_LIMIT or (run / name.name).exists():
        raise FileError(f"{files.shown(member.name)} is in it twice, or larger than {FILE_LIMIT} bytes")
    source = tar.extractfile(member)
    with (run / name.name).open("xb") as target:
        while source is not None and (data := source.read(PIECE)):
            target.write(data)
