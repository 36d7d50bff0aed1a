"""Callbacks that hold resources are closed when the run ends."""

from typing import Any

import pytest

import envs_own
import gpi
from gpi.callbacks import Callback, Evaluate, PrintEvery, Report, StopAt, close_all
from own_runs import TINY


class Holder:
    """A callback of a user's own class that has to be closed."""

    def __init__(self, error: Exception | None = None):
        self.error, self.closed = error, 0

    def __call__(self, report: Report) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
        if self.error:
            raise self.error


EVALUATE: Any = Evaluate
PRINT: Any = PrintEvery
STOP: Any = StopAt


@pytest.mark.parametrize(("make", "line"), [
    (lambda: Evaluate(every=0), "every = 0 must be a whole number of at least 1; use 1 or more"),
    (lambda: EVALUATE(every=2.5), "every = 2.5 must be a whole number of at least 1"),
    (lambda: Evaluate(episodes=-1), "episodes = -1 must be a whole number of at least 1"),
    (lambda: EVALUATE(stop_at="x"), "stop_at = 'x' must be a number, such as 0.5"),
    (lambda: PrintEvery(0), "iterations = 0 must be a whole number of at least 1"),
    (lambda: PRINT(10, "x"), "show = 'x' must be a function that takes a line"),
    (lambda: STOP("x"), "episode_return = 'x' must be a number, such as 0.5"),
    (lambda: STOP(None), "episode_return = 'None' must be a number"),
])  # fmt: skip
def test_a_callback_says_at_once_what_it_cannot_use(make: Any, line: str):
    with pytest.raises(gpi.UsageError) as error:
        make()
    assert str(error.value).startswith(line) and "\n" not in str(error.value)


@pytest.mark.parametrize(("ask", "line"), [
    (lambda report: report.policy(9), "seed = 9 is not in this run; its seeds are 0 to 1"),
    (lambda report: report.save(-1, report.directory / "x", {}), "seed = -1 is not in this run; its seeds are 0 to 1"),
    (lambda report: report.evaluate(0), "episodes = 0 must be a whole number of at least 1"),
])  # fmt: skip
def test_a_report_names_the_seeds_it_has(ask: Callback, line: str, tmp_path: Any):
    with pytest.raises(gpi.UsageError) as error:
        gpi.train("ppo", envs_own.Walk, out=tmp_path / "run", steps=300, callbacks=[ask], **TINY)
    assert str(error.value).startswith(line)


def test_callbacks_of_any_class_are_closed_and_functions_left_alone():
    holders = [Holder(), Holder()]
    close_all([holders[0], lambda report: None, holders[1]])
    assert [holder.closed for holder in holders] == [1, 1]


def test_a_callback_that_fails_to_close_does_not_keep_the_others_open():
    holders = [Holder(), Holder(OSError("full")), Holder()]
    with pytest.raises(OSError, match="full"):
        close_all(holders)
    assert [holder.closed for holder in holders] == [1, 1, 1]
