"""Files of settings repeat a run, what is typed beats them, and every mistake in them is one line with its number."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import gpi
from gpi import cli
from gpi.callbacks import Evaluate
from gpi.cli.train import typed_settings
from gpi.config import PRESETS, Config
from gpi.config_file import combined, read_json, read_settings, read_toml
from gpi.training.job import resolve
from own_runs import TABLES, Watch

EXAMPLE = Path(__file__).parent.parent / "examples" / "settings.toml"
TABLES_OF_TOML = """# kappa = 1
kappa = 0.5
'seed' = 1 # seeds = 2
tasks = [
  "a ] }",
  "b",
]

[settings] # of all
lr = 1
  [ "run" ]
  seeds = 5
[[grid]]
algorithm = "ppo"
kappa = 0.5
[[grid]]
kappa.x = 1
"""


def test_a_setting_has_its_line(tmp_path: Path):
    file = tmp_path / "tables.toml"
    lines = list(map(str, TABLES_OF_TOML.splitlines()))
    for text in (TABLES_OF_TOML, TABLES_OF_TOML.replace("\n", "\r\n"), "\ufeff" + TABLES_OF_TOML):
        file.write_bytes(text.encode())
        where = read_toml(file).where
        for key, line in {
            ("kappa",): "kappa = 0.5", ("seed",): lines[2], ("tasks", 1): "tasks = [", ("settings",): lines[8],
            ("settings", "lr"): "lr = 1", ("run", "seeds"): "  seeds = 5", ("run", "nothing"): '  [ "run" ]',
            ("grid", 0, "algorithm"): 'algorithm = "ppo"', ("grid", 1, "kappa"): "kappa.x = 1",
        }.items():  # fmt: skip
            assert where(*key) == f"{file}:{lines.index(line) + 1}", key
        assert where("grid", 0, "kappa") == f"{file}:{lines.index('[[grid]]') + 3}"
        assert where("grid", 1, "algorithm") == f"{file}:{len(lines) - 1}"
        assert where("nothing") == where("lr") == where("seeds") == str(file)


def test_a_setting_in_json_has_its_line(tmp_path: Path):
    file = tmp_path / "config.json"
    about = {"config": {"task": "a: {", "hidden": [1, 2], "lr": 1}, "plan": {"nu": [0.5]}}
    file.write_text(json.dumps(about, indent=2))
    assert [read_json(file).where("config", name) for name in ("task", "lr")] == [f"{file}:3", f"{file}:8"]
    assert read_json(file).where("config") == f"{file}:2"
    file.write_text(json.dumps(about))
    assert read_json(file).where("config", "task") == str(file)


def settings(*arguments: str) -> Config:
    """Return the settings of a command `gpi train`."""
    parsed = cli.parser().parse_args(["train", *arguments])
    return combined(read_settings(parsed.config), typed_settings(parsed))


def test_what_is_typed_beats_the_file_which_beats_the_defaults(tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'task = "hopper-hop"\nkappa = 0.5\nsteps = 1e6\nseeds = 3\nhidden = [8, 8]\nreset_each_batch = false\n'
    )
    found = settings("--config", str(file), "--kappa", "1", "--seeds", "5")
    assert found == Config("hopper-hop", kappa=1.0, steps=1_000_000, seeds=5, hidden=(8, 8), reset_each_batch=False)
    assert settings("walker-walk", "--config", str(file)).task == "walker-walk"
    assert typed_settings(cli.parser().parse_args(["train", "x", "--seeds", "5"])) == {"task": "x", "seeds": 5}


def test_a_file_beats_a_preset_which_beats_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PRESETS, "paper", {"epochs": 7, "kappa": 0.25, "B": 3})
    file = tmp_path / "settings.toml"
    file.write_text('task = "hopper-hop"\npreset = "paper"\nkappa = 0.5\n')
    expected = Config("hopper-hop", epochs=7, kappa=0.5, B=4)
    assert settings("--config", str(file), "--B", "4") == expected
    file.write_text('task = "hopper-hop"\nkappa = 0.5\n')
    assert settings("--config", str(file), "--B", "4", "--preset", "paper") == expected, "wherever it is said"
    assert settings("--config", str(file)).epochs == 10
    monkeypatch.setitem(PRESETS, "paper", {"epochs": -7})
    with pytest.raises(gpi.UsageError, match="epochs = -7 must be at least 1"):
        gpi.train("geppo", "CartPole-v1", preset="paper", out=tmp_path / "run", quiet=True)


def test_the_example_is_a_file_of_settings():
    config = resolve(settings("--config", str(EXAMPLE))).config
    assert (config.task, config.algorithm, config.trust) == ("finger-spin", "getrpo", "strict")


def test_a_run_directory_repeats_the_run(walk: tuple[gpi.Run, Watch, Evaluate], tmp_path: Path):
    """What config.json says is enough: the same bytes in every table."""
    run, _, _ = walk
    again = tmp_path / "again"
    for config in (run.dir, run.dir / "config.json"):
        with pytest.raises(gpi.UsageError, match=r"config.json:3: task = 'envs_own:Walk', which is your own code"):
            settings("--config", str(config))
    assert cli.main(["train", "envs_own:Walk", "--config", str(run.dir), "--out", str(again)]) == 0
    for table in TABLES:
        assert (again / table).read_bytes() == (run.dir / table).read_bytes(), table
    assert gpi.Run(again).config == run.config


@pytest.mark.slow
def test_the_command_line_repeats_a_run_on_envpool(tmp_path: Path):
    (tmp_path / "tiny.toml").write_text(
        'task = "CartPole-v1"\nalgorithm = "ppo"\nsteps = 1024\nseeds = 1\nn = 128\nminibatches = 4\nhidden = [8]\n'
    )
    for config, out in (("tiny.toml", "a"), ("a", "b"), ("b/config.json", "c")):
        command = [sys.executable, "-m", "gpi", "train", "--config", config, "--out", out]
        assert subprocess.run(command, cwd=tmp_path, timeout=300, capture_output=True).returncode == 0
    for name in "bc":
        for table in TABLES:
            assert (tmp_path / name / table).read_bytes() == (tmp_path / "a" / table).read_bytes()


def test_no_file_of_settings_gets_code_imported(tmp_path: Path):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    (tmp_path / "trap.toml").write_text('\ntask = "trap:make"\n')
    command = [sys.executable, "-m", "gpi", "train", "--config", "trap.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("gpi: trap.toml:2: task =")
    assert "type it: gpi train trap:make" in done.stderr and sorted(path.name for path in tmp_path.iterdir()) == [
        "trap.py", "trap.toml"
    ]  # fmt: skip


# --- mistakes -----------------------------------------------------------------------------------------------------

GOOD = b'task = "cheetah-run"\nalgorithm = "geppo"\n# a comment\nkappa = 0.5\nn = 1024\nhidden = [64, 64]\n'


def refusal(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> tuple[int, str]:
    """Return the exit code and the one line about a file; the run directory is refused if nothing in the file is."""
    taken = path.parent / "taken"
    taken.mkdir(exist_ok=True)
    (taken / "config.json").write_text("{}")
    code = cli.main(["train", "--config", str(path), "--out", str(taken), *more])
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("gpi: ") and err[:-1].isprintable(), err
    assert code in (2, 3) and len(err) < 800 and len(list(taken.iterdir())) == 1, (code, err)
    return code, err.removeprefix("gpi: ").removeprefix(f"{path.parent}/")


@pytest.mark.parametrize(("text", "code", "words"), [
    (b"kapa = 1", 2, "x.toml:7: unknown setting 'kapa'; the nearest is 'kappa'"),
    (b"learning_rate = 1", 2, "x.toml:7: unknown setting 'learning_rate'; 'lr' is its name here"),
    (b"num-envs = 1", 2, "x.toml:7: unknown setting 'num-envs'; the nearest is 'num_envs'"),
    (b"zzz = 1", 2, "x.toml:7: unknown setting 'zzz'; `gpi train --help` has them all"),
    (b"\n[grid]\nkappa = [0, 1]", 2, "x.toml:8: unknown setting 'grid'"),
    (b"B = 'two'", 2, "x.toml:7: B = 'two' must be"),
    (b"B = 2.5", 2, "x.toml:7: B = '2.5' must be"),
    (b"trust = 1", 2, "x.toml:7: trust = '1' must be"),
    (b"reset_each_batch = 'no'", 2, "x.toml:7: reset_each_batch = 'no' must be"),
    (b"gamma = 2", 2, "x.toml:7: gamma = 2.0 must be in [0, 1)"),
    (b"lr = nan", 2, "x.toml:7: lr = nan must be positive"),
    (b"trust = 'lax'", 2, "x.toml:7: trust = lax must be one of paper, adaptive, strict, keep"),
    (b'trust = "\\u001b[31m"', 2, r"x.toml:7: trust = \x1b[31m must be one of"),
    (b"backend = 'gpu'", 2, "x.toml:7: backend = gpu must be one of"),
    (b"num_envs = 3", 2, "x.toml:5: n = 1024 does not divide among 3 environments"),
    (b"num_envs = 2", 2, "x.toml:5: a batch of 1024 gives each of 2 environments 512 steps"),
    (b"kappa = 1", 3, "x.toml:7: not TOML: Cannot overwrite a value"),
    (b"lr 1", 3, "x.toml:7: not TOML: Expected '='"),
    (b"trust = 'lax", 3, "x.toml:7: not TOML: "),
    (b"trust = '''\n\n", 3, "x.toml:7: not TOML: "),
    (b"\n# \xff", 3, "x.toml:8: byte 0xff is not UTF-8; save it as UTF-8"),
    (b"# a\0b", 3, "x.toml:7: a NUL character"),
    (b"lr = " + b"[" * 30 + b"]" * 30, 3, "x.toml: tables or arrays are nested more than 16 deep"),
    (b"lr = " + b"[" * 9999, 3, "x.toml: tables or arrays are nested more than 16 deep"),
    (b"a." * 200_000 + b"b = 1", 3, "x.toml:7: a key of too many parts"),
    (b"n = " + b"9" * 5000, 3, "x.toml"),
    (b"seed = " + b"9" * 5000, 3, "x.toml: a number has more digits than can be read"),
    (b"#" * 2_000_000, 3, "x.toml: 'x.toml' is too large (expected at most 1048576 bytes"),
])  # fmt: skip
def test_mistakes_have_file_and_line(
    text: bytes, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "x.toml").write_bytes(GOOD + text + b"\n")
    found, line = refusal(capsys, tmp_path / "x.toml")
    assert found == code and line.startswith(words), line


def test_a_mistake_in_what_is_typed_is_not_the_file_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x.toml").write_bytes(GOOD)
    assert "holds another run" in refusal(capsys, tmp_path / "x.toml")[1]
    assert refusal(capsys, tmp_path / "x.toml", "--kappa", "7")[1].startswith("kappa = 7.0 must be in [0, 1]")
    assert refusal(capsys, tmp_path / "x.toml", "--n", "512")[1].startswith("a batch of 512 gives")


def test_files_that_are_no_settings_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x.yaml").write_bytes(GOOD)
    (tmp_path / "run").mkdir()
    (tmp_path / "plain.json").write_text('{\n "kappa": 1\n}')
    (tmp_path / "torn.json").write_text('{\n "config": {\n')
    (tmp_path / "twice.json").write_text('{"config": {"kappa": 1, "kappa": 2}}')
    (tmp_path / "typo.json").write_text('{\n "config": {\n  "task": "hopper-hop",\n  "kapa": 1}}')
    (tmp_path / "empty.toml").write_text("")
    for name, code, words in (
        ("nowhere.toml", 2, "nowhere.toml does not exist; name a .toml file, or a run directory"),
        ("x.yaml", 2, "settings in"), ("run", 2, "run is not a run directory: it has no config.json"),
        ("plain.json", 3, "plain.json: it has no settings"), ("torn.json", 3, "torn.json:3: it cannot be parsed"),
        ("twice.json", 3, "twice.json: it cannot be parsed (expected plain JSON, found: a duplicate key)"),
        ("typo.json", 2, "typo.json:4: unknown setting 'kapa'; the nearest is 'kappa'"),
        ("empty.toml", 2, "empty.toml: no task; add task = "),
    ):  # fmt: skip
        found, line = refusal(capsys, tmp_path / name)
        assert found == code and line.startswith(words), line


def spoiled(rng: random.Random) -> bytes:
    """Return a file of settings with something wrong in it, or at least odd."""
    lines, what = GOOD.splitlines(), rng.randrange(9)
    names = [field.encode() for field in Config.__dataclass_fields__]
    odd = [b"nan", b"-1", b"0", b"''", b"[]", b"{}", b"true", b"1e400", b"1979-05-27", b"'\\\\'", b"[[1]]",
           b'"\\u0000"', b"9" * 400, b'"\\n"', b"-inf", b"{a.b = 1}", b'"' + b"x" * 5000 + b'"',
           b"[0, 1, 'x']"]  # fmt: skip
    if what == 0:  # bytes changed
        data = bytearray(GOOD)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if what == 1:
        return GOOD[: rng.randrange(len(GOOD))]
    if what == 2:
        return rng.randbytes(rng.randrange(200))
    if what == 3:
        lines.insert(rng.randrange(len(lines)), rng.choice(names) + b" = " + rng.choice(odd))
    elif what == 4:
        lines.insert(rng.randrange(len(lines)), bytes(rng.choices(b"abcdefgh_-.\"'", k=rng.randint(1, 12))) + b" = 1")
    elif what == 5:
        lines.insert(
            rng.randrange(len(lines)), rng.choice([b"[x]", b"[[x]]", b"[kappa]", b"x.y = 1", b"]", b"= 1", b"\r"])
        )
    elif what == 6:
        lines.append(rng.choice(names) + b" = " + b"[" * rng.randint(1, 3000) + b"]" * rng.randint(0, 3000))
    elif what == 7:
        lines = [line.replace(b"=", rng.choice([b"==", b":", b"", b"= #", b"=\n"]), 1) for line in lines]
    else:
        data = rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b""]) + rng.choice([b"\r\n", b"\n", b"\r"]).join(lines)
        return data.decode("latin-1").encode(rng.choice(["utf-16", "latin-1", "utf-32", "utf-8"]))
    return b"\n".join(lines)


def refuse_spoiled_files(count: int, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(count):
        (directory / "x.toml").write_bytes(spoiled(random.Random(seed)))
        refusal(capsys, directory / "x.toml")


def test_thirty_spoiled_files_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    refuse_spoiled_files(30, tmp_path, capsys)


@pytest.mark.slow
def test_a_thousand_spoiled_files_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    refuse_spoiled_files(1000, tmp_path, capsys)
