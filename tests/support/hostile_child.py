"""Load hostile checkpoints under an audit hook, and print what happened: `hostile_child.py ROOT SPECS NUMBER ROOM`.

ROOT holds a checkpoint in each of the folders good, bad, 0, 1, ...; ROOM is how many bytes of memory the process may
take beyond what it has after its imports, zero for any number.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gpi.errors import FileError
from gpi.files import ArraySpec
from gpi.rundir.checkpoint import load

HARMLESS = {"os.scandir", "builtins.id"}
NAMES = {"arrays.safetensors", "state.json", "manifest.json"}


class Watch:
    """An audit hook that writes down what Python does while a checkpoint is being loaded."""

    def __init__(self) -> None:
        self.current: Path | None = None
        self.events: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.current is None or event in HARMLESS:
            return
        opened = arguments[0] if event == "open" else None
        if isinstance(opened, int) or (opened is not None and str(opened) in {*NAMES, str(self.current)}):
            return
        self.events.append(f"{self.current}: {event} {arguments!a}")


def attempt(path: Path, specs: dict[str, Any]) -> str:
    """Return the loader's message."""
    try:
        load(path, specs, finite=True)
        return "LOADED"
    except FileError as error:
        return str(error)
    except BaseException as error:
        return f"RAISED {error!a}"


def limit_memory(room: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(root: Path, specs: dict[str, Any], number: int, room: int) -> None:
    # Import everything now that would be imported late.
    outcomes = [attempt(root / name / "ckpt-000000512", specs) for name in ("good", "bad")]
    if room:
        limit_memory(room)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.addaudithook(watch := Watch())
    for path in [root / f"{i}" / "ckpt-000000512" for i in range(number)]:
        watch.current = path
        outcome = attempt(path, specs)
        watch.current = None
        outcomes.append(outcome)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    watch.current = Path("control")  # if the hook misses this, it sees nothing
    open("/dev/null").close()
    watch.current = None
    print(json.dumps({"outcomes": outcomes, "events": watch.events, "grown_kb": grown, "jax": "jax" in sys.modules,
                      "fds": len(os.listdir("/proc/self/fd"))}))  # fmt: skip


if __name__ == "__main__":
    expected = {name: ArraySpec(tuple(shape), np.dtype(dtype)) for name, shape, dtype in json.loads(sys.argv[2])}
    main(Path(sys.argv[1]), expected, int(sys.argv[3]), int(sys.argv[4]))
