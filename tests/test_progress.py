"""The live line: it fits the terminal, says whose steps it counts, and leaves nothing behind that it never reported."""

import io
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from gpi.callbacks import Report
from gpi.config import Config
from gpi.terminal import thousands
from gpi.training import progress as progress_module
from gpi.training.job import resolve
from gpi.training.progress import BAR, Collecting, LiveLine, Progress, sentence
from gpi.training.session import Session

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(steps: int = 204_800, of: int = 1_000_000, returns: tuple[float, ...] = (294.5, 138.6, 421.5)) -> Report:
    made = SimpleNamespace(steps=steps, of=of, returns=np.array(returns), tv=0.0211, tv_bound=0.0605)
    return cast(Report, made)


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, *reports: Report) -> list[str]:
    """Return everything that a terminal of some columns shows, line by line."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with Progress(5, stream) as progress:
        progress.say("geppo on cheetah-run")
        progress.compiling()
        for each in reports:
            progress.show(each)
            cast(Any, progress.live).refresh()
    return [line for line in re.split(r"[\r\n]+", CODES.sub("", stream.getvalue())) if line.strip()]


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_the_live_line_fits_and_has_the_time_left(columns: int, monkeypatch: pytest.MonkeyPatch):
    several = [report(steps, returns=r) for steps in (1024, 204_800, 1_000_448)
               for r in ((2.3, 0.7), (-1294.5, -1138.6), (294.5, 138.6, 421.5), (np.nan, np.nan))]  # fmt: skip
    lines = shown(monkeypatch, columns, *several)
    assert max(map(len, lines)) <= columns
    assert lines[0] == "geppo on cheetah-run" and "compiling, 0:00 elapsed" in lines[1]
    assert all(" left" in line and "steps" in line and "seed" in line for line in lines[2:])
    assert any("204,800/1,000,000 steps per seed" in line for line in lines) == (columns == 200)
    assert "elapsed" in lines[-1] or columns < 200
    bars = {len(re.match(r"[━╸╺ ]*", line)[0].rstrip()) for line in lines[2:]}  # type: ignore[index]
    assert bars == ({BAR} if columns >= 120 else {0}), "of constant width, or none"


def test_a_line_says_whether_it_counts_one_seed_or_all():
    five = "204,800/1,000,000 steps per seed | return 284.9 [138.6, 421.5] | TV 0.021/0.060 | 7,540 steps/s all seeds"
    assert sentence(report(), 7540.4, 5) == f"{five} | 8:47 left"
    alone = sentence(report(returns=(2.25,)), 100.0, 1)
    assert "seed" not in alone and "return 2.2 |" in alone


def test_more_steps_than_asked_for_are_no_nonsense():
    assert sentence(report(2048, 10), 100.0, 1).startswith("2,048/2,048 steps") and "0:00 left" in sentence(
        report(2048, 10), 100.0, 1
    )
    assert [thousands(x) for x in (0, 999.6, 9_999, 10_000, 204_800, 1e6, 1.5e9)] == [
        "0", "1,000", "9,999", "10k", "204.8k", "1M", "1.5G",
    ]  # fmt: skip


def test_the_line_does_not_jump_between_two_forms():
    line = LiveLine(5)
    forms = []
    for big in (421.5, 1421.5, 421.5, 1421.5):
        line.show(report(returns=(big, 138.6)), 7540.0)
        forms.append(line.text(73).count("|"))
    assert forms == [3, 2, 2, 2], "what was too long once stays short until there is room to spare"
    line.show(report(returns=(np.nan,)), 7540.0)
    assert line.text(73).count("|") == 3


def test_a_run_that_compiles_nothing_shows_no_line(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    with Progress(1, stream) as progress:
        progress.say("runs/a is complete")
    assert stream.getvalue() == "runs/a is complete\n"
    monkeypatch.setenv("COLUMNS", "80")
    with Progress(1, stream) as progress:  # refused while it compiled
        progress.compiling()
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K"), "erased"


def test_fewer_steps_than_an_iteration_are_explained_once(tmp_path: Path):
    said = []
    for steps in (10, 5000):
        stream = io.StringIO()
        job = resolve(Config("Pendulum-v1", "ppo", steps=steps))
        Session(job, tmp_path, Progress(5, stream))._announce(jax.devices())
        said.append(stream.getvalue().splitlines()[1:])
    note = "note: --steps 10 is less than one iteration, which is 2,048 samples per seed; the run takes a whole one"
    assert said == [[note], []]


def test_a_slow_environment_is_never_silent(monkeypatch: pytest.MonkeyPatch):
    """Until the first update it says how far that is, and how fast it comes; afterwards the reports do."""
    monkeypatch.setattr(progress_module, "PLAIN_SECONDS", 0.1)

    class Pool:
        taken = iter(range(0, 3000, 300))

        @property
        def steps(self) -> int:
            return next(self.taken, 2700)

    stream, job = io.StringIO(), resolve(Config("Pendulum-v1", "ppo", n=1024, num_envs=2))
    with Progress(5, stream) as progress:
        progress.collecting(job, Pool(), job.warm_up_steps)
        time.sleep(0.6)
        progress.show(report())
        said = stream.getvalue().splitlines()
        time.sleep(0.2)
    assert stream.getvalue().splitlines() == said
    form = (
        r"(warming up|collecting) \| [\d,]+/4,096 steps per seed \| [\d.k,]+ steps/s all seeds \| first update in 0:0\d"
    )
    assert len(said) >= 4 and all(re.fullmatch(form, line) for line in said[:-1]), said
    assert said[0].startswith("warming up | 600/") and said[-2].startswith("collecting")


def test_a_terminal_shows_the_warm_up_of_a_pool_that_counts_nothing():
    line = LiveLine(1)
    line.collecting = Collecting(10, 20, 1, lambda: 0)
    assert line.text(80) == "warming up, 0:00 elapsed"
    line.show(report(returns=(2.0,)), 100.0)
    assert "204,800" in line.text(200)


def test_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    with Progress(5, stream) as progress:
        progress.compiling()
        progress.show(report())
        progress.show(report())
    assert len(stream.getvalue().splitlines()) == 1 and "\x1b" not in stream.getvalue()
