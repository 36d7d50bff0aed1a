"""Callbacks that hold resources are closed when the run ends."""

import pytest

from gpi.callbacks import Report, close_all


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


def test_callbacks_of_any_class_are_closed_and_functions_left_alone():
    holders = [Holder(), Holder()]
    close_all([holders[0], lambda report: None, holders[1]])
    assert [holder.closed for holder in holders] == [1, 1]


def test_a_callback_that_fails_to_close_does_not_keep_the_others_open():
    holders = [Holder(), Holder(OSError("full")), Holder()]
    with pytest.raises(OSError, match="full"):
        close_all(holders)
    assert [holder.closed for holder in holders] == [1, 1, 1]
