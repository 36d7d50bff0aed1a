"""JAX's cache of compiled programs: entries that a kill has cut short are removed, because JAX never does.

JAX writes an entry in place. One that is cut short stays: every later start warns, compiles, and does not replace it.
An entry is a zlib or zstd stream, so whether it is whole is seen by decompressing it. With a limit on the cache's size,
each entry has a file with its time of use, without which JAX cannot write any more.
"""

from __future__ import annotations

import importlib
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ENTRY, USED = "-cache", "-atime"
ZSTD, ZLIB = b"\x28\xb5\x2f\xfd", b"\x78"  # how entries begin
CHUNK = 1 << 20
MOMENT = 0.5  # seconds in which an entry that is being written would grow


class CompileCache:
    """A cache, and which of its entries are known to be whole."""

    def __init__(self, path: Path):
        """Nothing is known yet."""
        self.path = path
        self.whole: dict[str, tuple[int, int]] = {}
        """Size and time of writing of the entries that were whole."""

    def repair(self) -> list[str]:
        """Remove damaged entries; return their names. One that another process is writing is left alone."""
        suspects = {path: stamp(path) for path in self._damaged()}
        if suspects:
            time.sleep(MOMENT)
        removed = []
        for path, before in suspects.items():
            if before is None or stamp(path) != before:
                continue
            with suppress(OSError):
                path.unlink()
                path.with_name(path.name.removesuffix(ENTRY) + USED).unlink(missing_ok=True)
                removed.append(path.name)
        return removed

    def _damaged(self) -> list[Path]:
        """Return the entries that cannot be read, among those that are new or have changed."""
        limited = any(self.path.glob(f"*{USED}"))
        found = []
        for path in sorted(self.path.glob(f"*{ENTRY}")):
            now = stamp(path)
            if now is None or self.whole.get(path.name) == now:
                continue
            used = path.with_name(path.name.removesuffix(ENTRY) + USED)
            if is_whole(path) and not (limited and not used.exists()):
                self.whole[path.name] = now
            else:
                found.append(path)
        return found


def stamp(path: Path) -> tuple[int, int] | None:
    """Return the size and the time of the last writing of a file; None if it is gone."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def is_whole(path: Path) -> bool:
    """Return whether an entry can be decompressed to its end; True if this process cannot tell."""
    try:
        with path.open("rb") as file:
            begin = file.read(4)
            file.seek(0)
            if begin == ZSTD:
                decompress = zstd()
                if decompress is not None:
                    decompress(file.read())
                return True
            if len(begin) == 4 and begin[:1] != ZLIB and any(begin):
                return True  # a form that we do not know
            stream = zlib.decompressobj()
            while not stream.eof and (data := file.read(CHUNK)):
                while data:
                    stream.decompress(data, CHUNK)
                    data = stream.unconsumed_tail
            return stream.eof
    except OSError:
        return True  # another process removed it, or it may not be read
    except Exception:  # each library has its own error for damaged data
        return False


def zstd() -> Callable[[bytes], bytes] | None:
    """Return what decompresses zstd here: Python's own since 3.14, or the library that JAX takes; None without."""
    for name in ("compression.zstd", "zstandard"):
        with suppress(ImportError):
            return importlib.import_module(name).decompress
    return None
