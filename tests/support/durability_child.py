"""Processes that are killed, or whose disk fills up, in mid-write: `durability_child.py save|kill|fill RUN ...`."""

import itertools
import json
import os
import resource
import shutil
import sys
from pathlib import Path

import numpy as np

from checkpoints import FAILPOINTS, forget_failpoint, prepare, put
from gpi import files
from gpi.errors import DiskError
from gpi.rundir.checkpoint import save


def killed_at(run: Path, scene: str, point: str, count: int) -> bool:
    """Fork a process that saves, or writes, and is killed at a failpoint; return whether it got that far."""
    prepare(run, scene)
    if scene == "write":
        files.write(run / "config.json", b"old" * 1000)
    child = os.fork()
    if child == 0:
        try:
            os.environ["GPI_FAILPOINT"] = f"{point}:{count}"
            forget_failpoint()
            files.write(run / "config.json", b"new" * 1000) if scene == "write" else put(run, 4)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        shutil.rmtree(run)
        return False
    assert os.WTERMSIG(status) == 9
    return True


def kill(root: Path, passages: int, *scenes: str) -> None:
    """Kill a process at the first passages of every failpoint in every scene; print which were reached.

    One process is forked before each kill: Python and NumPy start once.
    """
    killed = []
    for scene, point in itertools.product(scenes, FAILPOINTS):
        for count in range(1, passages + 1):
            if not killed_at(root / f"{scene}-{point}-{count}", scene, point, count):
                break
            killed.append((scene, point, count))
    print(json.dumps(killed))


def fill(run: Path) -> None:
    """Save under 64 limits on the size of files: each is a disk that accepts part of the bytes and refuses the rest."""
    arrays = {"x": np.arange(5000.0)}
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


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["save", run]:
            put(Path(run), 4)
        case ["kill", root, passages, *scenes]:
            kill(Path(root), int(passages), *scenes)
        case ["fill", run]:
            fill(Path(run))
