"""Progress of counted work: lines where there is no terminal, none for work that ends soon."""

import io

import pytest

from gpi import terminal


def test_lines_come_every_ten_seconds_and_not_before(monkeypatch: pytest.MonkeyPatch):
    now, stream = 0.0, io.StringIO()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with terminal.counted("episodes", 100, stream=stream) as show:
        for done in range(100):
            now = 0.25 * done
            show(done)
    assert stream.getvalue().splitlines() == ["episodes: 40 of 100", "episodes: 80 of 100"]


def test_a_terminal_gets_a_bar_that_leaves_nothing_behind():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with terminal.counted("frames", 3, stream=stream) as show:
        show(3)
    assert "frames" in stream.getvalue() and "3/3" in stream.getvalue()


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]):
    with terminal.counted("frames", 3, quiet=True) as show:
        show(3)
    assert capsys.readouterr() == ("", "")
