"""A trained policy for machines without gpi: as one NumPy file, or as ONNX, compared with the original once written.

    from gpi.export import export
    export("runs/spin", "spin")                         # spin/policy.py, policy.json, policy.safetensors
    export("runs/spin", "spin.onnx", format="onnx")     # needs: pip install "gpi-rl[onnx]"

Both forms take observations as the environment gives them and return actions as it takes them. Neither acts on NaN.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gpi import files, standalone
from gpi.errors import GpiError, UsageError, disk_error
from gpi.onnx_export import encode_onnx, load_onnx
from gpi.rundir.policies import Which, load
from gpi.standalone import ContinuousPolicy, Policy

FORMATS = ("numpy", "onnx")
OBSERVATIONS = 10_000
TOLERANCE = 1e-5  # of actions within [-1, 1], and of logits relative to the largest
REFUSED = "nothing was kept; keep the source and report this"


class Exported(NamedTuple):
    """The result of an export: the files written, and how far they differ from the original."""

    files: tuple[Path, ...]
    worst: float
    """The largest difference, of actions within [-1, 1], or of logits relative to the largest."""
    observations: int


Outputs = tuple[np.ndarray, np.ndarray]  # actions, and what `Policy.unscaled` gives
Act = Callable[[np.ndarray], Outputs]


def export(
    source: str | Path | Policy, out: str | Path, format: str = "numpy", seed: int | Literal["best"] | None = None,
    policy: Which = "last",
) -> Exported:  # fmt: skip
    """Write a policy in another form, and compare it with the original on 10,000 observations.

    `source` is a run directory (then `seed` and `policy` choose as in `gpi.load`), a policy file or a policy.
    `numpy` makes `out` a directory of three files, `onnx` one file. An export that differs by more than 1e-5 is
    removed, and raises `GpiError`.
    """
    if format not in FORMATS:
        raise UsageError(f"format {format!r} is not known; it must be one of {', '.join(FORMATS)}")
    original = require_usable(source) if isinstance(source, Policy) else load(source, seed, policy)
    path = Path(out)
    if format == "onnx":
        content, load_act, claim = {path: encode_onnx(original)}, load_onnx, claim_file
    else:
        content = {path / name: data for name, data in encode_numpy(original).items()}
        load_act, claim = load_numpy, claim_directory
    try:
        made = claim(path)
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        for file, data in content.items():
            files.write(file, data)
        with files.directory(path.parent) as parent:
            os.fsync(parent)  # a new directory must survive a power cut too
        return Exported(tuple(content), compare(original, load_act(path)), OBSERVATIONS)
    except BaseException:
        withdraw(content, made)
        raise


def require_usable(policy: Policy) -> Policy:
    """Return the policy; raise UsageError if it was made by hand and could not be loaded from a file."""
    try:
        return standalone.assemble(policy.arrays(), policy.about, policy.form)
    except (ValueError, KeyError) as error:
        raise UsageError(f"this policy cannot be exported: {error}; take one that `gpi.load` returned") from error


def claim_file(path: Path) -> list[Path]:
    """Raise unless a file can be written without replacing anything; return the directories made for it."""
    if path.suffix != ".onnx":
        raise UsageError(f"{path} does not end in .onnx; name a file that does")
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already; remove it or name another file")
    return make_directories(path.parent)


def claim_directory(path: Path) -> list[Path]:
    """Make an empty directory, unless there is one; return the directories made for it."""
    if path.exists() or path.is_symlink():
        if not path.is_dir() or any(path.iterdir()):
            raise UsageError(f"{path} exists and is not an empty directory; remove it or name another")
        return []
    return make_directories(path)


def make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it; return those that were made, the innermost first."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def withdraw(content: dict[Path, bytes], made: list[Path]) -> None:
    """Remove the files and directories of an export."""
    for file in content:
        file.unlink(missing_ok=True)
    for directory in made:
        with suppress(OSError):  # not empty: somebody else has put something there
            directory.rmdir()


def encode_numpy(policy: Policy) -> dict[str, bytes]:
    """Return the files of the NumPy form; the description comes last, and no policy loads without it."""
    arrays = policy.arrays()
    data = files.encode(arrays)
    described = policy.describe() | {
        "arrays": {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()},
        "file": {"size": len(data), "sha256": standalone.sha256(data)},
    }
    sealed = files.dump_json(standalone.seal(described))
    return {"policy.safetensors": data, "policy.py": code_of(policy), "policy.json": sealed}


def code_of(policy: Policy) -> bytes:
    """Return the file that acts with a policy: `standalone`, and the source of a class from elsewhere."""
    code, made = Path(standalone.__file__).read_bytes(), type(policy)
    if made.__module__ == standalone.__name__:
        return code
    try:
        source = inspect.getsource(made)
    except (OSError, TypeError) as error:
        raise UsageError(
            f"the export carries the source of {made.__name__}, but {error}; define it in a file"
        ) from error
    return code + f"\n\n{source}\n\nKINDS[{made.kind!r}] = {made.__name__}\n".encode()


def load_numpy(directory: Path) -> Act:
    """Return a function that acts with the exported files, loaded by `standalone`: their policy.py is a copy of it."""
    policy = standalone.load(directory)
    return lambda obs: (policy(obs), policy.unscaled(obs))


def observations_around(policy: Policy, count: int = OBSERVATIONS, seed: int = 0) -> np.ndarray:
    """Draw observations as in training and, row by row, up to a thousand deviations away, beyond the clip."""
    rng = np.random.default_rng(seed)
    spread = np.resize([0.1, 1.0, 1.0, 3.0, 10.0, 1000.0], count)[:, None]
    noise = spread * rng.standard_normal((count, policy.obs_mean.size))
    obs = policy.obs_mean + policy.obs_std * noise
    most = np.finfo(np.float32).max
    return np.clip(obs, -most, most).astype(np.float32)


def compare_continuous(policy: ContinuousPolicy, mine: Outputs, theirs: Outputs) -> tuple[float, bool]:
    """Return the largest difference of actions within [-1, 1], and whether actions within the bounds agree as well."""
    # Where bounds are far from zero, float32 itself is coarser than the tolerance.
    coarse = np.spacing(np.maximum(np.abs(policy.low), np.abs(policy.high)))
    room = TOLERANCE * (policy.high.astype(np.float64) - policy.low) / 2 + coarse
    agree = np.abs(theirs[0].astype(np.float64) - mine[0]) <= room
    return float(np.abs(theirs[1] - mine[1]).max()), bool(agree.all())


def compare_discrete(mine: Outputs, theirs: Outputs) -> tuple[float, bool]:
    """Return the largest difference of logits, relative to the largest, and whether all clear choices agree."""
    apart = np.abs(theirs[1].astype(np.float64) - mine[1])
    scale = np.maximum(np.abs(mine[1]).max(1, keepdims=True), 1.0)
    ranked = np.sort(mine[1], axis=1)
    clear = ranked[:, -1] - ranked[:, -2:-1].max(1, initial=-np.inf) > 2.0 * apart.max(1)
    return float((apart / scale).max()), bool((mine[0] == theirs[0])[clear].all())


def compare(policy: Policy, act: Act) -> float:
    """Return the largest difference between a policy and its export; raise GpiError if it is too large."""
    obs = observations_around(policy)
    mine, theirs = (policy(obs), policy.unscaled(obs)), act(obs)
    for ours, other in zip(mine, theirs, strict=True):
        if other.shape != ours.shape or other.dtype != ours.dtype or not np.isfinite(other).all():
            wanted = f"finite {ours.dtype}{list(ours.shape)}"
            raise GpiError(f"the export gives {other.dtype}{list(other.shape)} instead of {wanted}; {REFUSED}")
    continuous = isinstance(policy, ContinuousPolicy)
    difference, agree = compare_continuous(policy, mine, theirs) if continuous else compare_discrete(mine, theirs)
    if difference > TOLERANCE:
        raise GpiError(f"the export differs by {difference:.1e}, at most {TOLERANCE:.0e} is allowed; {REFUSED}")
    if not agree:
        raise GpiError(f"the export chooses other actions, where they must be the same; {REFUSED}")
    return difference
