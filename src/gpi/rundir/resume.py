"""Finding the checkpoint to resume from: the newest valid one, if machine and settings are the same."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpi.config import Config, as_first_saved
from gpi.errors import FileError
from gpi.files import ArraySpec
from gpi.rundir import checkpoint
from gpi.rundir.checkpoint import Checkpoint
from gpi.standalone import Facts

FREE = ("steps", "checkpoint_every", "step_timeout", "allow_images", "eval_every", "eval_episodes", "keep_replay")
"""May change without changing what an iteration computes."""


class Found(NamedTuple):
    """The checkpoint to continue from."""

    checkpoint: Checkpoint | None
    drift: list[str]  # changes since it was written, which the user has allowed
    skipped: list[str]  # why newer checkpoints cannot be used, a line for each


def identity_of(config: Config, machine: Mapping[str, object]) -> Facts:
    """Return everything that decides the bits of a result: machine, environment and settings."""
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in FREE}
    hashed = {name: value for name, value in as_first_saved(config).items() if name not in FREE}
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
    return {**machine, "config": json.loads(json.dumps(settings, sort_keys=True)), "config_hash": digest}


ALLOW = "allow it: --allow-drift, or allow_drift=True in Python"


def find_checkpoint(directory: Path, layout: Mapping[str, ArraySpec], identity: Facts, *, allow_drift: bool) -> Found:
    """Return the newest valid checkpoint; raise FileError if anything that decides its bits has changed."""
    drift: list[str] = []

    def judge(then: Facts) -> None:
        drift[:] = judge_drift(directory, then, identity, allow_drift=allow_drift)

    floats = [name for name, spec in layout.items() if spec.dtype.kind == "f"]
    weights = [name for name in floats if name.startswith(("state/", "kept/"))]
    found, skipped = checkpoint.newest_valid(directory, layout, weights, judge=judge)
    return Found(found, drift if found else [], skipped)


def judge_drift(directory: Path, then: Facts, now: Facts, *, allow_drift: bool) -> list[str]:
    """Return the differences, each as `jax was 0.10.2, is 0.11.0`; raise FileError unless they are allowed."""
    other = differences(then.get("environment"), now.get("environment"))
    if other:  # its policies could not act there
        raise FileError(f"{directory} was trained in another environment: {'; '.join(other)}; name that one")
    drift = differences(with_defaults(then), now)
    if drift and not allow_drift:
        raise FileError(f"{directory} cannot be resumed exactly: {'; '.join(drift)}; undo that, or {ALLOW}")
    return drift


def with_defaults(identity: Facts) -> Facts:
    """Return an identity with the settings that its file lacks at their defaults, as they were when it was written."""
    settings = identity.get("config")
    if not isinstance(settings, dict):
        return identity
    defaults = {field.name: field.default for field in dataclasses.fields(Config)
                if field.default is not dataclasses.MISSING and field.name not in FREE}  # fmt: skip
    return identity | {"config": json.loads(json.dumps(defaults)) | settings}


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """Return the differences between two nested objects, by the innermost names."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [key for key in {**then, **now} if key != "config_hash"]  # the settings themselves say more
        return [line for key in names for line in differences(then.get(key), now.get(key), key)]
    return [] if then == now else [f"{name} was {then}, is {now}"]
