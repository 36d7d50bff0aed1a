"""The saver: a run's checkpoints, and whether they are of this machine, these settings and this environment."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpi.errors import DiskError, FileError
from gpi.rundir import checkpoint
from gpi.rundir.checkpoint import Checkpoint
from gpi.rundir.recorder import Recorder
from gpi.training.config import Config
from gpi.training.progress import Progress


class Saver:
    """Saves and restores a run's checkpoints, and knows whether they are of this machine and these settings."""

    def __init__(self, directory: Path, config: Config, identity: dict[str, Any], progress: Progress):
        """Nothing is read or written yet."""
        self.directory, self.progress = directory, progress
        free = ("steps", "checkpoint_every")  # may change without changing what an iteration computes
        settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in free}
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.identity = identity | {"config": json.loads(text), "config_hash": digest}
        self.saved = -1

    def drift(self) -> list[str]:
        """What differs between the newest readable checkpoint and now, each as `jax was 0.10.2, is 0.11.0`."""
        for path in checkpoint.saved(self.directory):
            with suppress(FileError):
                then = checkpoint.identity_of(path)
                break
        else:
            return []
        other = differences(then.get("environment"), self.identity.get("environment"))
        if other:  # its policies could not act there
            raise FileError(f"{self.directory} was trained in another environment: {'; '.join(other)}; name that one")
        return differences(then, self.identity)

    def refuse(self, drift: list[str]) -> None:
        """Nothing, unless something differs: then one line that names it."""
        if drift:
            raise FileError(
                f"{self.directory} cannot be resumed exactly: {'; '.join(drift)}; undo that, or --allow-drift"
            )

    def restore(self, trainer: Any, exact: bool, allow_drift: bool) -> tuple[Recorder | None, bool]:
        """Bring a new trainer to the newest valid checkpoint; returns its tables, or None if there is none."""
        layout = trainer.layout()
        weights = [name for name, (_, kind) in layout.items() if name.startswith("state/") and kind.kind == "f"]
        found, skipped = checkpoint.newest_valid(self.directory, layout, weights)
        for line in skipped:
            self.progress.say(f"skipped {line}")
        if found is None:
            self.progress.say("no valid checkpoint: starting from the beginning")
            return None, True
        if not allow_drift:
            self.refuse(differences(found.identity, self.identity))
        same = trainer.restore(found.arrays)
        if not same.all():
            what = "the replayed environments show other observations than they had shown"
            if trainer.pool.compiled and not allow_drift:
                raise FileError(f"{self.directory} cannot be resumed exactly: {what}; --allow-drift continues anyway")
            self.progress.say(f"{what}: they begin new episodes, and this run is no longer exact")
        self.saved = found.iteration
        self.progress.say(f"resuming after iteration {found.iteration}")
        recorder = restored(self.directory, trainer.config, found)
        if not same.all():
            trainer.start_over()
            recorder.log.forget()
        return recorder, exact and bool(same.all())

    def save(self, trainer: Any, recorder: Recorder) -> None:
        """A checkpoint of everything, now."""
        checkpoint.save(self.directory, trainer.done, trainer.snapshot(), recorder.state(), self.identity)
        self.saved = trainer.done

    def try_save(self, trainer: Any, recorder: Recorder) -> None:
        """A checkpoint, unless the disk is full: the last one stays, training goes on, and the next may succeed."""
        try:
            self.save(trainer, recorder)
        except DiskError as error:
            self.progress.say(f"warning: {error}; training goes on")


def restored(directory: Path, config: Config, found: Checkpoint) -> Recorder:
    """The tables of a run as they were at a checkpoint."""
    try:
        return Recorder(directory, config, found.state)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__} {error}"
        raise FileError(f"checkpoint {found.iteration} of {directory}: state.json does not fit: {what}") from error


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two nested objects, by the innermost names."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [key for key in {**then, **now} if key != "config_hash"]  # the settings themselves say more
        return [line for key in names for line in differences(then.get(key), now.get(key), key)]
    return [] if then == now else [f"{name} was {then}, is {now}"]
