"""Safe files: no code inside, validated when read, durable when written."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpi import standalone
from gpi.errors import DENIED, FileError, UsageError, disk_error, read_error
from gpi.failpoints import failpoint
from gpi.standalone import Facts

HEADER_LIMIT = JSON_LIMIT = 1 << 20
DEPTH_LIMIT, RANK_LIMIT = 16, 16
COUNT_LIMIT = 1 << 60  # elements: NumPy counts bytes in 63 bits
DTYPES = {
    kind: np.dtype(code)
    for kind, code in
    {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U32": "<u4", "U8": "u1", "BOOL": "?"}.items()
}  # fmt: skip
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
LEFTOVER = re.compile(r"\..+-[0-9a-f]{8}\.tmp")  # left behind by a killed writer, see `temporary`


class ArraySpec(NamedTuple):
    """The shape and dtype that an array in a file must have."""

    shape: tuple[int, ...]
    dtype: np.dtype
    at_most: bool = False
    """Whether the first axis may be shorter than `shape` says."""
    optional: bool = False
    """Whether it may be missing, as in files of earlier versions."""
    segmented: bool = False
    """Whether it lies in segments, along its second axis."""

    @property
    def smallest(self) -> int:
        """Bytes of the smallest array that fits."""
        return 0 if self.at_most or self.optional else self.largest

    @property
    def largest(self) -> int:
        """Bytes of the largest array that fits."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Return `float32[5, 2]`, or `float32[at most 5, 2]`."""
        first = ["at most " * self.at_most + str(n) for n in self.shape[:1]]
        return f"{self.dtype}[{', '.join([*first, *map(str, self.shape[1:])])}]"


Specs = Mapping[str, ArraySpec]


class Entry(NamedTuple):
    """One array as the header of a file declares it; its bytes are counted from the end of the header."""

    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    end: int


def sizes(expected: Specs) -> range:
    """Return the sizes in bytes that a file of these arrays can have."""
    least, most = sum(spec.smallest for spec in expected.values()), sum(spec.largest for spec in expected.values())
    return range(8 + least, 8 + most + HEADER_LIMIT + 1)


def fits(found: ArraySpec | None, expected: ArraySpec | None) -> bool:
    """Return whether an array in a file is as expected."""
    if found is None or expected is None:
        return found is expected or (expected is not None and expected.optional)
    if found.dtype != expected.dtype or len(found.shape) != len(expected.shape):
        return False
    if expected.at_most:
        return found.shape[0] <= expected.shape[0] and found.shape[1:] == expected.shape[1:]
    return found.shape == expected.shape


def encode(arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """Write named arrays as a safetensors file, in the order given: the same arrays give the same bytes."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    end, parts = 0, []
    for name, array in arrays.items():
        kind = KINDS.get(array.dtype)
        if kind is None or name == "__metadata__":
            raise UsageError(f"array {shown(name)} has dtype {array.dtype}; a file holds {', '.join(DTYPES)}")
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        parts.append(array.tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise UsageError(f"{len(arrays)} arrays need a header of {len(text)} bytes; at most {HEADER_LIMIT} are read")
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def decode(
    data: bytes, expected: Specs | None = None, finite: Collection[str] | bool = ()
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays and metadata of a safetensors file; no array is made unless all are as `expected`.

    `finite` names the arrays that must not hold NaN or infinity; True means all.
    """
    start, entries, metadata = _header(data)
    if expected is not None:
        found = {name: ArraySpec(entry.shape, entry.dtype) for name, entry in entries.items()}
        for name in (*expected, *found):
            if not fits(found.get(name), expected.get(name)):
                want, got = expected.get(name, "none"), found.get(name, "none")
                raise FileError(f"array {shown(name)} does not fit (expected {want}, found {got})")
    arrays = {name: _array(data, name, entry, start) for name, entry in entries.items()}
    for name in entries if finite is True else finite or ():
        missing = name not in arrays and not (expected and expected[name].optional)
        if missing or not np.isfinite(arrays.get(name, 0.0)).all():
            raise FileError(f"array {shown(name)} is not usable (expected finite numbers, found NaN, infinity or none)")
    return arrays, metadata


def _header(data: bytes) -> tuple[int, dict[str, Entry], dict[str, str]]:
    """Return where the data begin, the arrays they hold without holes or overlaps, and the metadata."""
    size, room = int.from_bytes(data[:8], "little"), min(HEADER_LIMIT, len(data) - 8)
    if size > room:
        raise FileError(f"the header is too long (expected at most {max(room, 0)} bytes, found {size})")
    header = parse_json(data[8 : 8 + size], "the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise FileError(f"the header's metadata are not plain (expected text by name, found {shown(metadata)})")
    end, entries = 0, {}
    for name, value in header.items():
        entries[name] = _entry(name, value, end)
        end = entries[name].end
    if end != len(data) - 8 - size:
        raise FileError(f"the arrays do not fill the file (expected {len(data) - 8 - size} bytes, found {end})")
    return 8 + size, entries, metadata


def _entry(name: str, value: object, begin: int) -> Entry:
    """Check one entry of the header, whose bytes must start at `begin`; Python's integers cannot overflow."""
    match value:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [first, end], **rest} if not rest:
            ints = all(type(n) is int and 0 <= n < COUNT_LIMIT for n in (*shape, first, end))  # True is not 1 here
            # Zeros count as ones: 0 x 2^62 elements have no bytes, and NumPy still refuses them.
            small = ints and len(shape) <= RANK_LIMIT and math.prod(max(n, 1) for n in shape) < COUNT_LIMIT
            if small and kind in DTYPES and first == begin and end == begin + math.prod(shape) * DTYPES[kind].itemsize:
                return Entry(tuple(shape), DTYPES[kind], begin, end)
    rule = f"dtype, shape and data_offsets that agree and begin at {begin}"
    raise FileError(f"array {shown(name)} is declared wrongly (expected {rule}, found {shown(value)})")


def _array(data: bytes, name: str, entry: Entry, start: int) -> np.ndarray:
    """Copy one array, aligned and writable."""
    if entry.dtype == np.bool_:
        most = np.ndarray(entry.shape, np.uint8, data, start + entry.begin).max(initial=0)
        if most > 1:
            raise FileError(f"array {shown(name)} is not boolean (expected 0 or 1, found {most})")
    return np.ndarray(entry.shape, entry.dtype, data, start + entry.begin).copy()


def shown(value: object) -> str:
    """Return a value from a file in a form that fits in one line of a message."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def path_of(value: object, what: str) -> Path:
    """Return the path that a caller of the Python interface gives; raise UsageError if it is none."""
    if isinstance(value, str | os.PathLike) and "\0" not in (text := str(os.fspath(value))):
        return Path(text)
    raise UsageError(f"{what} = {shown(value)} must be a path, such as 'runs/first'")


def dump_json(value: Facts) -> bytes:
    """Write a JSON object, indented; the same value gives the same bytes. NaN and infinity are refused."""
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def parse_json(data: bytes, what: str) -> Facts:
    """Read a JSON object of bounded size and depth: UTF-8 without BOM, no key twice, no NaN or infinity."""
    if len(data) > JSON_LIMIT:
        raise FileError(f"{what} is too large (expected at most {JSON_LIMIT} bytes, found {len(data)})")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_number, parse_float=_number)
        depth = _depth(value)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{what} cannot be parsed (expected plain JSON, found: {error})") from error
    if not isinstance(value, dict) or depth > DEPTH_LIMIT:
        rule = f"an object at most {DEPTH_LIMIT} deep"
        raise FileError(f"{what} cannot be used (expected {rule}, found {shown(value)})")
    return value


def _unique(pairs: list[tuple[str, object]]) -> Facts:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a duplicate key")
    return value


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # 1e999 too
        raise ValueError("a number that is not finite")
    return number


def _depth(value: object) -> int:
    """Return how deeply a value is nested; half a surrogate pair is refused, because no file or terminal accepts it."""
    if isinstance(value, str):
        value.encode()
    inner = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def seal(content: Facts, encode: Callable[[Facts], bytes]) -> bytes:
    """Return content as `encode` writes it, with the hash of its bytes at the end: no other bytes mean the same.

    To verify, remove `sha256` from the content read, seal the rest again, and compare the bytes.
    """
    return encode(standalone.seal(content, encode))


@contextmanager
def directory(path: Path | str, parent: int | None = None, *, follow: bool = True) -> Iterator[int]:
    """Open a directory, relative to the descriptor `parent` if given; yield its descriptor.

    A directory opened relative to a descriptor cannot be moved aside meanwhile.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def read(parent: int | Path, name: str, limit: int) -> bytes:
    """Read one plain file of a directory (or its descriptor): no link, pipe or device, and at most `limit` bytes."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FileError(f"{shown(name)} is not a name (expected a file in the directory itself)")
    try:
        if not isinstance(parent, int):
            with directory(parent) as fd:
                return read(fd, name, limit)
        # Non-blocking: opening a pipe must not wait for its writer.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
                found = f"mode {facts.st_mode:o} with {facts.st_nlink} links"
                raise FileError(f"{shown(name)} is refused (expected a plain file with one link, found {found})")
            if facts.st_size > limit:
                raise FileError(
                    f"{shown(name)} is too large (expected at most {limit} bytes, found {facts.st_size} bytes)"
                )
            with open(fd, "rb", closefd=False) as file:
                data = file.read(facts.st_size + 1)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in DENIED:
            raise read_error(name if isinstance(parent, int) else parent / name, error) from error
        raise FileError(f"{shown(name)} cannot be read (expected a plain file, found: {error.strerror})") from error
    if len(data) != facts.st_size:
        raise FileError(f"{shown(name)} changed meanwhile (expected {facts.st_size} bytes, found {len(data)} bytes)")
    return data


def temporary(name: str) -> str:
    """Return an unguessable temporary name for `name`, which readers ignore."""
    return f".{name}-{os.urandom(4).hex()}.tmp"


def create(parent: int, name: str, data: bytes) -> None:
    """Make a new file in the directory of a descriptor, and wait until the disk has its bytes."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=parent)
    try:
        failpoint("file.before_write")
        half = len(data) // 2
        _write_all(fd, memoryview(data)[:half])
        failpoint("file.mid_write")
        _write_all(fd, memoryview(data)[half:])
        failpoint("file.before_fsync")
        os.fsync(fd)
        failpoint("file.after_fsync")
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview) -> None:
    while data:  # a nearly full disk accepts a part first, then refuses the rest
        data = data[os.write(fd, data) :]


def write(path: Path, data: bytes) -> None:
    """Replace a file as a whole: even after a crash, it holds its old bytes or the new ones."""
    temp = temporary(path.name)
    try:
        with directory(path.parent) as parent:
            try:
                create(parent, temp, data)
                failpoint("write.before_rename")
                os.rename(temp, path.name, src_dir_fd=parent, dst_dir_fd=parent)
                failpoint("write.after_rename")
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=parent)
                raise
            os.fsync(parent)
            failpoint("write.after_dirsync")
    except OSError as error:
        raise disk_error(path, error, "it holds its old bytes or the new ones") from error
