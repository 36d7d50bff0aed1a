"""One small checkpoint, saved and loaded, shared by the tests of files and the processes that they start.

Neither pytest nor JAX is imported here, so that a process starts quickly.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpi import failpoints, files
from gpi.errors import FileError
from gpi.rundir import checkpoint, segments
from gpi.rundir.checkpoint import save

# The tests of files name these here and nowhere else.
FAILPOINTS, failpoint, forget_failpoint = failpoints.FAILPOINTS, failpoints.failpoint, failpoints.read_trap.cache_clear

HERE = Path(__file__).parent
NAMES = ("arrays.safetensors", "manifest.json", "state.json")
IDENTITY = {"jax": "0.10.2", "threads": 2, "layout": [5, 1024]}
SCENES = ("first", "full", "replace", "ring")  # what `prepare` makes
SLOTS = 1  # of the ring in the last of them, to which every checkpoint adds a batch


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


def specs_of(arrays: dict[str, np.ndarray]) -> files.Specs:
    """Return the shapes and dtypes that a file of these arrays must have."""
    return {name: files.ArraySpec(array.shape, array.dtype) for name, array in arrays.items()}


SPECS = specs_of(arrays_of(0))


def state_of(iteration: int) -> dict[str, Any]:
    return {"iteration": iteration, "lr": 1 / (iteration + 3), "offsets": {"metrics.csv": 17 * iteration}, "ok": [True]}


def put(run: Path, *iterations: int, state: dict[str, Any] | None = None, ring: bool = False) -> Path:
    """Save checkpoints; return the path of the last. A run with a `ring` has one from then on."""
    for iteration in iterations:
        listed: list[Any] = []
        if ring or (run / "replay").exists():
            found = newest(run, clean=False)[0]
            first = segments.end_of(found.segments) if found else 0
            listed = segments.add(run, found.segments if found else [], first, batches_of(first, iteration), SLOTS)
        save(run, iteration, arrays_of(iteration), state or state_of(iteration), IDENTITY, listed=listed)
    return run / f"ckpt-{iterations[-1]:09d}"


def batches_of(first: int, end: int) -> dict[str, np.ndarray]:
    """Return batches of one member."""
    return {"replay/0/obs": np.arange(first, end, dtype=np.float32)[None, :, None]}


RING = {"replay/0/obs": files.ArraySpec((1, SLOTS, 1), np.dtype(np.float32), segmented=True)}


def newest(run: Path, *, finite: bool = False, clean: bool = True) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    """Return the newest valid checkpoint, and one line for each newer one that is not valid."""
    specs = {**SPECS, **(RING if (run / "replay").exists() else {})}
    return checkpoint.newest_valid(run, specs, finite and list(SPECS), clean=clean)


def assert_same(found: checkpoint.Checkpoint | None, iteration: int) -> None:
    assert found is not None and found.iteration == iteration
    assert found.state == state_of(iteration) and found.identity == IDENTITY
    for name, array in arrays_of(iteration).items():
        assert found.arrays[name].dtype == array.dtype and found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()
    if found.segments:
        assert found.arrays["replay/0/obs"].ravel().tolist() == [iteration - 1]


def refusal(call: Callable[[], Any]) -> str:
    """Return the message of a refusal, which is one line."""
    try:
        call()
    except FileError as error:
        assert str(error).isprintable() and len(str(error)) < 500
        return str(error)
    raise AssertionError("it was not refused")


def prepare(run: Path, scene: str) -> None:
    """Make the state before checkpoint 4 is saved: nothing, three others, or another one of that iteration."""
    run.mkdir()
    if scene == "full":
        put(run, 1, 2, 3)
    elif scene == "ring":
        put(run, 1, 2, 3, ring=True)
    elif scene == "replace":
        put(run, 4, state={"old": 1})


def python(program: str, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of this folder in a process without JAX."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **settings.pop("env", {})}
    command = [sys.executable, str(HERE / program), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **settings)
