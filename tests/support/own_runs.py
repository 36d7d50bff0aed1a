"""Runs in environments of the tests' own, shared by several files."""

import json
from typing import Any

import pytest

import envs_own
import gpi
from gpi.callbacks import Evaluate, Report

TINY: dict[str, Any] = {
    "seeds": 2, "n": 128, "minibatches": 4, "epochs": 1, "hidden": (8,), "checkpoint_every": 2, "quiet": True,
}  # fmt: skip
ONE: dict[str, Any] = TINY | {"seeds": 1}
TABLES = ("metrics.csv", "episodes.csv", "audit.csv")


def done(run: gpi.Run) -> dict[str, Any]:
    return json.loads((run.dir / "DONE").read_text())


def stop_after(iterations: int) -> Any:
    return lambda report: report.iteration == iterations


class Watch:
    """A callback that keeps its reports."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.closed = 0

    def __call__(self, report: Report) -> None:
        self.reports.append(report)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[gpi.Run, Watch, Evaluate]:
    """Train GePPO in an environment of our own, with every kind of callback."""
    watch, evaluation = Watch(), Evaluate(every=3, episodes=4)
    out = tmp_path_factory.mktemp("walk") / "run"
    callbacks = [watch, evaluation]
    run = gpi.train("geppo", envs_own.Walk, out=out, steps=900, callbacks=callbacks, tensorboard=True, **TINY)
    return run, watch, evaluation
