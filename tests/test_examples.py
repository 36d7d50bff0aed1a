"""The examples run, and stay short enough to be read."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "quickstart": "updates inside eq (11):",
    "own_environment": "mean return of 200 at most:",
    "callbacks": "evaluations.csv",
    "deploy": "torque for a pendulum that hangs still:",
}


QUICK = ("quickstart", "own_environment")


@pytest.mark.parametrize("name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in SAYS])
def test_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    steps = 4000 if name == "callbacks" else 1500
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(steps)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out
    assert list((tmp_path / "runs").glob("*/DONE"))


def test_every_example_is_short_and_run():
    ours = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert ours.keys() == SAYS.keys() | {"bound_vs_age"}, "test_bounds runs the one about theory"
    assert all(ours[name] < 40 for name in SAYS)
