"""Damaged and hostile files: no part of them is loaded, and nothing in them runs."""

import ast
import itertools
import json
import os
import pickle
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpi
from checkpoints import NAMES, SPECS, assert_same, newest, put, python, refusal
from gpi import files
from gpi.errors import FileError
from gpi.rundir.checkpoint import load, read_identity
from hostile import ODD, Payload, attacks, bad_headers, corrupt, evenly, forge, with_header

SOURCE = Path(gpi.__file__).parent


def is_a_refusal(message: str) -> bool:
    """Return whether it is one line that names the checkpoint, and says what was expected."""
    named = message.startswith("checkpoint ckpt-000000512: ") and "expected" in message
    return named and message.isprintable() and len(message) < 500


# --- accidents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_damaged_checkpoint_is_loaded(tmp_path: Path, trials: int):
    template = tmp_path / "template"
    template.mkdir()
    put(template, 400, 512)
    whole = {name: (template / "ckpt-000000512" / name).read_bytes() for name in NAMES}
    seen: set[str] = set()
    for seed in itertools.count():
        run = tmp_path / "run"
        shutil.copytree(template, run)
        path = run / "ckpt-000000512"
        what = corrupt(np.random.default_rng(seed), path, run / "ckpt-000000400")
        if {file.name: file.read_bytes() for file in path.iterdir()} == whole:  # zeros over zeros, say
            shutil.rmtree(run)
            continue
        message = refusal(lambda path=path: load(path, SPECS, finite=True))
        assert is_a_refusal(message), (seed, what, message)
        found, skipped = newest(run, finite=True)
        assert_same(found, 400)
        assert skipped == [message], (seed, what)
        shutil.rmtree(run)
        seen.add(f"{seed}: {what}")
        if len(seen) == trials:
            break


@pytest.mark.parametrize("stride", [11, pytest.param(3, marks=pytest.mark.slow)])
def test_every_bit_of_a_manifest_counts(tmp_path: Path, stride: int):
    path = put(tmp_path, 512)
    data = (path / "manifest.json").read_bytes()
    for index, bit in itertools.product(range(0, len(data), stride), range(8)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << bit
        (path / "manifest.json").write_bytes(damaged)
        with pytest.raises(FileError):
            read_identity(path)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Make a test fail if it waits for the writer of a pipe."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_an_odd_file_is_not_read(tmp_path: Path, impatient: None):
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "a").write_bytes(b"12345")
    for name, make in ODD.items():
        make(tmp_path / name, tmp_path / "a")
        refusal(lambda name=name: files.read(tmp_path, name, 9))
        if name == "hardlink":
            refusal(lambda: files.read(tmp_path, "a", 9))
            (tmp_path / name).unlink()
    assert len(os.listdir("/proc/self/fd")) == before  # refusals leak no descriptors


# --- attacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [6, pytest.param(None, marks=pytest.mark.slow)])
def test_hostile_checkpoints_run_nothing_and_load_nothing(tmp_path: Path, each: int | None):
    """Six of every kind of attack in the quick tests; all of them, with a limit on memory, in the slow ones."""
    template = tmp_path / "template"
    template.mkdir()
    put(template, 512)
    kinds = attacks(tmp_path)
    cases = {label: attack for kind in kinds.values() for label, attack in evenly(kind, each)}
    assert len(cases) == sum(map(len, kinds.values())) if each is None else len(cases) == each * len(kinds)
    bad = dict(kinds["payloads"])["pickle0 for state"]
    for folder, attack in {"good": None, "bad": bad, **dict(enumerate(cases.values()))}.items():
        shutil.copytree(template, tmp_path / str(folder))
        if attack:
            attack(tmp_path / str(folder) / "ckpt-000000512")
    specs = json.dumps([(name, spec.shape, spec.dtype.str) for name, spec in SPECS.items()])
    room = 0 if each else 256 << 20
    done = python("hostile_child.py", str(tmp_path), specs, str(len(cases)), str(room), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    good, bad, *outcomes = report["outcomes"]
    assert good == "LOADED" and is_a_refusal(bad)
    for label, outcome in zip(cases, outcomes, strict=True):
        assert is_a_refusal(outcome), (label, outcome)
    assert len(report["events"]) == 1 and "/dev/null" in report["events"][0], report["events"]  # the hook's own test
    assert not (tmp_path / "pwned").exists() and not (tmp_path.parent / "pwned").exists()
    assert report["fds"] < 10 and not report["jax"]
    assert each is not None or report["grown_kb"] < 100_000


def test_hostile_headers_are_refused_even_without_specs():
    accepted = []
    for label, data in itertools.chain(*bad_headers({}).values()):
        try:
            files.decode(data, None, finite=True)
        except FileError as error:
            assert str(error).isprintable(), label
        else:
            accepted.append(label)
    # These are true, of other arrays.
    other = ("name ", "more ", "shape [15]", "shape [5, 3]", "dtype I32", "dtype U32", "header many")
    assert [label for label in accepted if not label.startswith(other) and " as " not in label] == []
    assert str(1 << 20) in refusal(lambda: files.decode(with_header(b"{}" + b" " * (1 << 20))))


def test_a_pickle_in_free_text_stays_text(tmp_path: Path):
    path, text = put(tmp_path, 512), pickle.dumps(Payload(f"touch {tmp_path / 'pwned'}"), 0).decode()
    forge(path, lambda manifest: manifest["identity"].update(jax=text), state=files.dump_json({"note": text}))
    found = load(path, SPECS)
    assert found.identity["jax"] == found.state["note"] == text and not (tmp_path / "pwned").exists()


def test_true_is_not_iteration_1(tmp_path: Path):
    path = put(tmp_path, 1)
    forge(path, lambda manifest: manifest.update(iteration=True))
    refusal(lambda: read_identity(path))


def test_no_loader_that_runs_code_is_named():
    """The imports and calls that test_architecture.py forbids do not occur under other names either."""
    forbidden = {"__import__", "builtins", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "jnp.load"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            name = str(node.arg) if isinstance(node, ast.keyword) else name
            name = node.name if isinstance(node, ast.alias) else name
            assert name not in forbidden and "pickle" not in name, (path, name)
