"""What people look at: learning curves that tell runs apart, the audit's verdict, and where pictures can be written."""

import dataclasses
import errno
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from test_cli import audited, refused, run_directory

import envs_own
import gpi
from gpi import cli
from gpi.analysis.audit import columns, summarise
from gpi.analysis.calibration import spans_of
from gpi.callbacks import Evaluate
from gpi.errors import DiskError, UsageError
from gpi.report.audit_figure import audit_figure
from gpi.report.curves import COLOURS, curves_figure
from gpi.report.labels import labels
from gpi.report.pictures import encode_figure, save_figure
from gpi.rundir.run import Run, open_run
from gpi.rundir.tables import AUDIT, EPISODES, KEPT, Table
from own_runs import TINY, Watch, done


def made(path: Path, **settings: Any) -> Run:
    """Make a run directory with these settings, GePPO's unless they say otherwise."""
    directory = run_directory(path, settings.get("algorithm", "geppo"), settings.get("task", "cheetah-run"))
    about = json.loads((directory / "config.json").read_text())
    about["config"] |= settings
    (directory / "config.json").write_text(json.dumps(about))
    return open_run(directory)


def empty(run: Run) -> Run:
    table = run.dir / "episodes.csv"
    table.write_text(table.read_text().splitlines()[0] + "\n")
    return run


def legend_texts(figure: Figure) -> list[str]:
    found = [text.get_text() for part in walk_parts(figure) for each in part.legends for text in each.get_texts()]
    return [text.replace("\u00a0", " ") for text in found]


def walk_parts(figure: Any) -> list[Any]:
    return [figure, *(inner for part in figure.subfigs for inner in walk_parts(part))]


def texts_of(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text().strip()]


def cut_off(figure: Figure) -> bool:
    """Return whether anything of a figure reaches beyond its edge."""
    encode_figure(figure)  # lays it out
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height


# --- gpi plot -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([{}, {"lr": 1e-3}], ["geppo lr=0.0003", "geppo lr=0.001"]),
        ([{"trust": "strict"}, {}], ["geppo trust=strict", "geppo trust=paper"]),
        ([{"hidden": [64, 64]}, {"hidden": [256]}], ["geppo hidden=64,64", "geppo hidden=256"]),
        ([{"lr": 1e-3}, {"gamma": 0.99}, {"n": 2048}], ["geppo lr=0.001", "geppo gamma=0.99", "geppo n=2048"]),
        ([{}, {}], ["geppo, run-0", "geppo, run-1"]),
        ([{"threads": 1}, {"threads": 2}], ["geppo threads=1", "geppo threads=2"]),
        ([{"threads": 1, "lr": 1.0}, {"threads": 2}], ["geppo lr=1", "geppo lr=0.0003"]),
        ([{"algorithm": "ppo"}, {"lr": 1.0}], ["ppo lr=0.0003", "geppo lr=1"]),
        ([{"algorithm": "ppo"}, {}], ["ppo", "geppo"]),
        (
            [{"algorithm": "getrpo", "kappa": 0.5}, {"trust": "keep", "normaliser": "still"}],
            ["getrpo kappa=0.5", "geppo trust=keep normaliser=still"],
        ),
        (
            [{"algorithm": "getrpo", "kappa": 0.5}, {"trust": "keep"}],
            ["getrpo kappa=0.5 trust=paper", "geppo kappa=1 trust=keep"],
        ),
        ([{"algorithm": "ppo"}, {"kappa": 0.5}], ["ppo", "geppo kappa=0.5"]),
        ([{"algorithm": "ppo", "kappa": 0.5}, {"algorithm": "ppo"}], ["ppo, run-0", "ppo, run-1"]),
        ([{"algorithm": "ppo", "threads": 1}, {"threads": 2}], ["ppo", "geppo"]),
        ([{"task": "finger-spin", "lr": 1.0}, {}], ["geppo", "geppo"]),
    ],
)
def test_runs_are_told_apart_by_whatever_differs(settings: list[dict[str, Any]], expected: list[str], tmp_path: Path):
    runs = [made(tmp_path / f"run-{i}", **each) for i, each in enumerate(settings)]
    assert labels(runs) == expected


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
    assert labels([made(tmp_path / name / "run") for name in "ab"]) == ["geppo, a/run", "geppo, b/run"]


@pytest.mark.parametrize("count", [1, 8])
def test_different_labels_have_different_colours_and_the_legend_fits(count: int, tmp_path: Path):
    runs = [made(tmp_path / f"a-directory-with-a-very-long-name-of-many-words-in-the-middle-{i}") for i in range(count)]
    figure = curves_figure(runs)
    texts = legend_texts(figure)
    assert len(texts) == count and all("seeds" in text for text in texts)
    lines = [line for line in figure.findobj(Line2D) if isinstance(line, Line2D) and line.get_linewidth() == 2.4]
    assert [line.get_color() for line in lines] == [*COLOURS[:count], *COLOURS[:count]], "curves, then legend"
    assert not cut_off(figure)
    legend = next(part for part in walk_parts(figure) if part.legends).legends[0]
    [label] = [text for text in texts_of(figure) if "environment steps" in text.get_text()]
    assert legend.get_window_extent().y1 <= label.get_window_extent().y0, "it does not cover the label of the axis"


def test_labels_of_the_user_s_own(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    a, b = (str(made(tmp_path / name).dir) for name in "ab")
    line = refused(capsys, "plot", a, b, "--label", "one", "--out", str(tmp_path / "x.png"))
    assert "2 runs need as many labels, found 1" in line and "one --label per run" in line
    figure = curves_figure([open_run(a), open_run(b)], ["costs $5 and $6", "_hidden"])
    assert legend_texts(figure) == [r"costs \$5 and \$6 (5 seeds)", "_hidden (5 seeds)"]
    assert not cut_off(figure)
    arguments = ["plot", a, b, a, "--label", "one", "--label", "two", "--label", "three"]
    assert cli.main([*arguments, "--out", str(tmp_path / "x.png")]) == 0
    assert "named twice is drawn once" in capsys.readouterr().err


def test_a_run_without_a_finished_episode_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    new = empty(made(tmp_path / "new", task="finger-spin"))
    assert "no finished episode yet" in refused(capsys, "plot", str(new.dir), "--out", str(tmp_path / "x.png"))
    assert not (tmp_path / "x.png").exists()
    old = made(tmp_path / "old")
    assert cli.main(["plot", str(new.dir), str(old.dir), "--out", str(tmp_path / "x.png")]) == 0
    assert f"{new.dir} has no finished episode yet" in capsys.readouterr().err
    texts = [text.get_text() for text in texts_of(curves_figure([new, old]))]
    assert texts.count("no finished episode yet") == 1, "in the panel of the new run"


# --- gpi audit ----------------------------------------------------------------------------------------------------


def on_policy(path: Path, algorithm: str, *updates: tuple[float, float, float]) -> Path:
    audited(path, "paper", list(updates))
    about = json.loads((path / "config.json").read_text())
    about["config"]["algorithm"] = algorithm
    (path / "config.json").write_text(json.dumps(about))
    return path


def test_audit_begins_with_a_verdict_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    long = "paper-with-a-rather-long-name"
    audited(tmp_path / long, "paper", [(0.5, 1.2, 0.9), (1.5, 0.2, 1.1), (0.2, 1, 1)])
    audited(tmp_path / "strict", "strict", [(0.5, 0.6, 0.9), (0.9, 0.5, 0.9)])
    on_policy(tmp_path / "ppo", "ppo", (1.25, 1.25, 2.0), (0.5, 0.5, 3.0))
    assert cli.main(["audit", long, "strict", "ppo", "--out", "x.png"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 80
    text = " ".join(out.split())
    rests = "which the guarantee rests on, held in"
    assert text.startswith(f"{long}: eq (11), {rests} 2 of 3 updates (66.7 %); worst 1.5 times the bound (seed 1, iter")
    assert "One-step TV, eq (7), held in 2 of 3" in text and "KL, eq (16), held in 2 of 3 updates" in text
    assert "1 update kept the old policy." in text
    assert f"strict: eq (11), {rests} every update (2); at most 0.9 times" in text
    assert f"ppo: eq (2), {rests} 1 of 2 updates (50.0 %); worst 1.25" in text
    assert summarise(open_run("ppo")).bounds == ("tv",), "KL is no bound of PPO's"
    assert summarise(open_run(on_policy(tmp_path / "trpo", "trpo", (1, 1, 1)))).bounds == ("tv", "kl")
    assert summarise(open_run(on_policy(tmp_path / "geppo", "geppo", (1, 1, 1)))).bounds == ("penalty", "tv")


def test_an_audit_prints_as_its_verdict(tmp_path: Path):
    summary = gpi.audit(audited(tmp_path / "a", "paper", [(0.5, 1.2, 0.9)]))
    text = str(summary)
    assert text.startswith("a: eq (11), which the guarantee rests on, held in every update (1)")
    assert text == repr(summary) and max(map(len, text.splitlines())) < 80 and "Worst(" not in text


def test_the_verdict_says_what_is_certified(tmp_path: Path):
    summary = gpi.audit(audited(tmp_path / "a", "paper", [(0.5, 1.2, 0.9)]))
    assert "ertified" not in summary.verdict(), "a run of another mode"
    without = dataclasses.replace(summary, trust="keep").verdict()
    assert " Nothing is certified, since the range of returns is not known (--return-range)." in without
    for certified, words in (
        ((None, None), " Nothing is certified yet, so no loss could be proven."),
        ((950.0, None, 812.3), " not of the last policy: a mean return of 812.3 to 950; nothing for 1 seed."),
        ((4.5,), " Certified of past episodes, not of the last policy: a mean return of 4.5."),
        ((428.69, 428.71), " a mean return of 428.7."),
    ):
        assert words in dataclasses.replace(summary, certified=certified).verdict()


@pytest.mark.parametrize("header", [(*AUDIT, *KEPT), AUDIT])
def test_a_false_certificate_of_an_earlier_version_is_not_shown(header: tuple[str, ...], tmp_path: Path):
    """It certified a mean return of -995, clipping what was outside the range that the user had named."""
    made(tmp_path / "run", task="Pendulum-v1", trust="keep", seeds=3, return_range=[-1000, -900])
    audit, episodes = Table(tmp_path / "run" / "audit.csv", header), Table(tmp_path / "run" / "episodes.csv", EPISODES)
    for seed in range(3):
        row = dict.fromkeys(AUDIT, 1.0) | {"seed": seed, "kept_return": -995.1 - seed, "undone": seed == 1}
        audit.add([[row[name] for name in header]])
    returns = {0: [-950.0, -1300.0, -899.0], 1: [-899.5], 2: [-1000.00005, -899.99995]}
    episodes.add((seed, 200 * i, x, 200) for seed, some in returns.items() for i, x in enumerate(some, 1))
    for table in (audit, episodes):
        table.close()
    summary = summarise(open_run(tmp_path / "run"))
    if header == AUDIT:
        assert summary.withdrawn == summary.certified == (), "nothing was certified"
        return
    assert summary.withdrawn == ((0, 400, -1300.0), (1, 200, -899.5)), "the first, and rounding is no news"
    assert summary.certified == (None, None, -997.1)
    assert (
        " a mean return of -997.1. A return left the range that certificates assume: seed 0 (-1,300 at step 400), seed "
        "1 (-899.5 at step 200); there they are withdrawn, and the undone losses were not proven."
    ) in summary.verdict()
    alone = dataclasses.replace(summary, certified=(None,), withdrawn=summary.withdrawn[:1], undone=0).verdict()
    assert "ertified" not in alone and alone.count("withdrawn") == 1 and "there they are withdrawn. " in alone
    assert json.loads(json.dumps(summary.as_json()))["withdrawn"][1] == {"seed": 1, "step": 200, "value": -899.5}


def followed(path: Path, returns: np.ndarray, told: float = 1.0) -> Run:
    """Make a run whose policies have these expected returns `[seeds, updates]`, with gains `told` times the truth."""
    seeds, updates = returns.shape
    made(path, seeds=seeds)
    episodes, audit = (
        Table(path / name, columns) for name, columns in (("episodes.csv", EPISODES), ("audit.csv", AUDIT))
    )
    for k in range(updates):
        for seed in range(seeds):
            after = returns[seed, min(k + 1, updates - 1)]
            row = dict.fromkeys(AUDIT, 1.0) | {"seed": seed, "iteration": k + 1, "steps": 1000 * (k + 1)}
            row |= {"surrogate_gain": told * (after - returns[seed, k]) / 500, "gain_se": 0.0}
            audit.add([row.values()])
            episodes.add([(seed, 1000 * k + end, returns[seed, k], 500) for end in (500, 1000)])
    for table in (episodes, audit):
        table.close()
    return open_run(path)


def test_promises_are_held_against_what_came(tmp_path: Path):
    """Neighbouring means differ by the changes between their policies, each with its weight: exactly as promised."""
    walk = np.cumsum(np.random.default_rng(0).normal(0, 10, (3, 130)), axis=1)
    true = summarise(followed(tmp_path / "a", walk)).calibration
    assert true and (true.window, true.spans, len(true.bins), sum(one.spans for one in true.bins)) == (10, 18, 3, 18)
    assert true.slope == pytest.approx(1) and true.slope_error == pytest.approx(0, abs=1e-6) and true.kept == 1
    assert true.promised == pytest.approx(true.realised) and [one.promised for one in true.bins] == sorted(
        one.promised for one in true.bins
    )
    bold = summarise(followed(tmp_path / "b", walk, told=4.0))
    assert bold.calibration and bold.calibration.slope == pytest.approx(0.25) and 0.2 < bold.calibration.kept < 0.9
    told = bold.as_json()["calibration"]
    assert told["bins"][0].keys() == {"promised", "realised", "error", "spans"} and json.dumps(told, allow_nan=False)
    spread = spans_of(open_run(tmp_path / "b"), columns(open_run(tmp_path / "b"))).realised.std(ddof=1) / 18**0.5
    assert bold.calibration.realised_error == pytest.approx(spread) and 5 < spread < 20
    words = rf"changed by [+-][\d.]+ ± {spread:.3g} on average \(18 spans\)\. .* promised [+-][\d.]+; slope 0\.25 ± "
    assert re.search(words, bold.calibration.words()) and "kept" not in bold.calibration.words()
    assert summarise(followed(tmp_path / "c", walk[:1, :60])).calibration is None, "too short to say"
    run = open_run(tmp_path / "a")
    table = columns(run)
    table["undone"] = ((table["seed"] == 1) & (table["iteration"] == 45)).astype(float)
    assert len(spans_of(run, table).promised) == 17, "the span in which a seed went back promised nothing"
    table["undone"] = ((table["seed"] == 1) & (table["iteration"] == 60)).astype(float)
    assert len(spans_of(run, table).promised) == 18, "it went back after the span: what it had promised counts"


def test_the_audit_names_seeds_that_lost_what_they_had_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    noise = np.random.default_rng(0).normal(0, 5, (3, 500))
    level = np.array([[20] * 500, [20] * 150 + [980] * 150 + [315] * 200, [20] * 420 + [900] * 80], float)
    run = followed(tmp_path / "a", level + noise)
    summary = summarise(run)
    assert summary.learned == 2 and [one.seed for one in summary.lost] == [1], "seed 2 has just learned"
    words = re.search(
        r"Lost what it had learned: seed 1 fell from 98\d \(at step (\d+),000\) to 31\d\.$", summary.verdict()
    )
    assert words and 200 <= int(words[1]) <= 300
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", "a", "--json"]) == 0
    [printed] = json.loads(capsys.readouterr().out)
    assert printed["lost"] == [summary.lost[0]._asdict()] and printed["verdict"] == summary.verdict()
    kept = summarise(followed(tmp_path / "b", level[:, :310] + noise[:, :310]))
    assert kept.lost == () and "No seed lost what it had learned (1 of 3 had learned)." in kept.verdict()
    short = summarise(followed(tmp_path / "c", level[:, 150:230] + noise[:, :80]))
    assert short.learned == 0 and "had learned" not in short.verdict(), "a twentieth of the run has 8 episodes"
    huge = summarise(followed(tmp_path / "d", 1e30 * level))
    assert huge.learned == 0 and json.dumps(huge.as_json(), allow_nan=False), "no curve holds such returns"


def test_the_audit_s_picture_names_its_runs_and_cuts_nothing_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept: list[Figure] = []
    monkeypatch.setattr("gpi.report.audit_figure.save_figure", lambda figure, path: kept.append(figure))
    ratios = [(0.5, 1.2, 0.9), (0.61, 0.9, 0.8), (0.55, 1.1, 0.85)]
    long = audited(tmp_path / "a-directory-with-a-very-long-name-of-many-words-in-the-middle", "paper", ratios)
    runs = [open_run(long), followed(tmp_path / "b", np.random.default_rng(0).normal(0, 10, (2, 130)))]
    for some in ([runs[0]], runs):
        audit_figure(some, [summarise(run) for run in some], tmp_path / "x.png")
    for figure, names in zip(kept, (["a-directory"], ["a-directory", "b\n"]), strict=True):
        assert not cut_off(figure)
        texts = [text.get_text() for text in texts_of(figure)]
        assert all(any(text.startswith(name) for text in texts) for name in names)
        assert not [text for text in texts if "{" in text or "10^" in text or "times" in text], "raw LaTeX"
        assert ("as promised" in texts) == (len(names) == 2) and texts.count("too few updates to say") == 1


# --- pictures -----------------------------------------------------------------------------------------------------


def commands(run: Path, picture: Path) -> list[list[str]]:
    return [["plot", str(run), "--out", str(picture)], ["audit", str(run), "--out", str(picture)],
            ["mixture", "--plot", str(picture)]]  # fmt: skip


def failing(number: int) -> Callable[..., int]:
    """Return an os.open, or the like, that fails for every picture."""
    real = os.open

    def opened(path: Any, *rest: Any, **more: Any) -> int:
        if ".png" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *rest, **more)

    return opened


@pytest.mark.parametrize("which", [0, 1, 2], ids=["plot", "audit", "mixture"])
def test_a_picture_that_cannot_be_written_is_one_line(
    which: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = audited(tmp_path / "run", "paper", [(0.5, 1.2, 0.9)])
    (tmp_path / "d.png").mkdir()
    (tmp_path / "file").write_text("")
    for picture, words in (("d.png", "is a directory; name a file"), ("x.doc", "must end in .png"),
                           ("nowhere/x.png", "does not exist"), ("file/x.png", "is a file"),
                           ("/", "must end in .png, .pdf or .svg; use /picture.png")):  # fmt: skip
        assert words in refused(capsys, *commands(run, tmp_path / picture)[which])
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    assert cli.main(commands(run, tmp_path / "x.png")[which]) == 5
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "Permission denied; change its permissions (chmod u+w " in line


def test_a_full_disk_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.png").write_text("old")
    with monkeypatch.context() as patch, pytest.raises(DiskError, match="No space left on device; free space"):
        patch.setattr(os, "replace", failing(errno.ENOSPC))
        save_figure(Figure(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"], "nothing is left behind"


def test_an_audit_of_somebody_else_s_run_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = audited(tmp_path / "run", "paper", [(0.5, 1.2, 0.9)])
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    assert cli.main(["audit", str(run)]) == 0
    shown = capsys.readouterr()
    assert "held in every update" in shown.out and "figure:" not in shown.out
    assert shown.err.count("\n") == 1 and "Permission denied" in shown.err and "--out FILE" in shown.err


def test_a_run_whose_curve_cannot_be_drawn_ends_in_order(
    walk: tuple[gpi.Run, Watch, Evaluate], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(os, "open", failing(errno.ENOSPC))
    settings: dict[str, Any] = TINY | {"quiet": False}
    run = gpi.train("geppo", envs_own.Walk, out=tmp_path / "run", steps=200, **settings)
    assert "learning_curve.png cannot be written: No space left on device" in capsys.readouterr().out
    assert done(run)["complete"] and not (run.dir / "learning_curve.png").exists()


def test_a_run_without_a_matplotlib_that_works_loses_only_its_picture(
    walk: tuple[gpi.Run, Watch, Evaluate], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.delitem(sys.modules, "gpi.report.curves")
    monkeypatch.setitem(sys.modules, "matplotlib.lines", None)
    settings: dict[str, Any] = TINY | {"quiet": False}
    run = gpi.train("geppo", envs_own.Walk, out=tmp_path / "run", steps=200, **settings)
    said = capsys.readouterr().out
    assert "warning: learning_curve.png is not drawn: " in said and "matplotlib.lines" in said and "gpi plot" in said
    assert done(run)["complete"] and (run.dir / "policy-0.safetensors").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_directory_is_refused_before_anything_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    run = made(tmp_path / "run")
    (tmp_path / "shut").mkdir(mode=0o500)
    assert cli.main(["plot", str(run.dir), "--out", str(tmp_path / "shut" / "x.png")]) == 5
    assert "Permission denied; change its permissions (chmod u+w " in capsys.readouterr().err


def test_a_picture_replaces_an_older_one_and_others_may_read_it(tmp_path: Path):
    (tmp_path / "x.png").write_text("old")
    before = os.umask(0o022)
    try:
        assert cli.main(["plot", str(made(tmp_path / "a").dir), "--out", str(tmp_path / "x.png")]) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    assert stat.S_IMODE((tmp_path / "x.png").stat().st_mode) == 0o644


# --- gpi mixture --------------------------------------------------------------------------------------------------


def test_a_mixture_of_very_many_policies_is_short(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert cli.main(["mixture", "--B", "100000", "--plot", str(tmp_path / "x.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and len([line for line in lines if "299,973 more" in line or " 299997 " in line]) == 2
    line = refused(capsys, "mixture", "--B", "1e9")
    assert "at most 1,000,000" in line and "1,000,000,000" in line and "use a smaller B" in line


def test_a_mixture_prints_where_only_ascii_can_be():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "gpi", "mixture"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "" and re.search(r"0 +0.400000 +#{40}\n", done.stdout)


@pytest.mark.parametrize("command", ["plot", "audit", "mixture"])
def test_reports_are_explained_in_help(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert len(text.partition("\n\n")[2].partition("\n\n")[0]) > 80, "a description before the options"


# --- gpi.Run ------------------------------------------------------------------------------------------------------


def test_a_run_can_do_what_the_commands_do(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    run = walk[0]
    assert isinstance(run, gpi.Run) and gpi.Run(str(run.dir)) == run
    picture = run.plot(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == picture._repr_png_()[:4] == b"\x89PNG" and "x.png" in repr(picture)
    assert run.plot().path is None and len(repr(run.plot())) < 80
    assert run.audit() == gpi.audit(run)
    result = run.evaluate(envs_own.Walk, episodes=2, seed=1)
    assert list(result.returns) == [1] and result.means == gpi.evaluate(run, envs_own.Walk, episodes=2, seed=1).means
    exported = run.export(tmp_path / "policy", seed=1)
    assert {path.name for path in exported.files} == {"policy.py", "policy.json", "policy.safetensors"}
    assert gpi.load(tmp_path / "policy").about["seed"] == "1"
    with pytest.raises(gpi.UsageError, match=r"one of \.mp4, \.webp, \.gif"):
        run.record(tmp_path / "film.avi", envs_own.Walk)


def test_a_run_shows_itself(walk: tuple[gpi.Run, Watch, Evaluate]):
    run = walk[0]
    text, page = repr(run), run._repr_html_()
    assert text.startswith(f"Run in {run.dir}: geppo on envs_own:Walk, seeds 0 to 1, 900 steps each\n")
    assert "final return by seed: 0: " in text and "audit: eq (11)" in text and len(text.splitlines()) <= 8
    assert "data:image/png;base64,iVBOR" in page and "hidden = 8" in page and "eq (11)" in page


def test_a_notebook_shows_no_markup_of_a_file_and_never_fails(tmp_path: Path):
    run = gpi.Run(made(tmp_path / "a<b>", task="<script>alert(1)</script>").dir)
    page = run._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "a&lt;b&gt;" in page
    assert "not finished" in page and "no audit.csv" in page
    assert "no finished episode yet" in gpi.Run(empty(run).dir)._repr_html_() and "<img" not in run._repr_html_()
    for content in ("", "[]", "{}", '{"config": 3}'):
        (run.dir / "config.json").write_text(content)
        assert "cannot be read" in repr(run) and "cannot be read" in run._repr_html_()
    (tmp_path / "empty").mkdir()
    assert "cannot be read" in repr(gpi.Run(tmp_path / "empty"))
    with pytest.raises(UsageError, match="nowhere does not exist"):
        gpi.Run(tmp_path / "nowhere")
    assert not np.isnan(gpi.Run(made(tmp_path / "good").dir).returns[0])
