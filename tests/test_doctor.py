"""gpi doctor: it tries what training needs, survives whatever is broken, and names a remedy for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from gpi import cli, doctor, requirements
from gpi.doctor import Devices, Finding
from gpi.errors import UsageError
from gpi.training import devices

JAX = requirements.pin_of("jax")
NAMES = ["Python", "packages", "cores", "memory", "disk", "JAX", "GPU", "EnvPool", "Gymnasium", "rendering", "ffmpeg",
         "ONNX", "Ray", "TensorBoard", "cache", "encoding"]  # fmt: skip


def test_what_needs_no_long_try_is_well():
    quick = (doctor.python, doctor.packages, doctor.cores, doctor.memory, doctor.disk, doctor.gymnasium, doctor.ffmpeg)
    assert [check().state for check in quick] == ["ok"] * len(quick)
    assert [check().name for check in (doctor.tensorboard, doctor.cache, doctor.encoding)] == NAMES[-3:]


@pytest.mark.slow
def test_a_machine_that_trains_is_healthy(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True and [finding["name"] for finding in found["findings"]] == NAMES
    states = {finding["name"]: finding["state"] for finding in found["findings"]}
    assert {states[name] for name in ("Python", "packages", "JAX", "EnvPool", "Gymnasium", "rendering", "ffmpeg")} == {
        "ok"
    }
    for finding in found["findings"]:
        assert (finding["remedy"] != "") == (finding["state"] != "ok"), finding


def test_a_problem_is_exit_code_2_and_the_last_line_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    ill = [Finding("disk", "note", "Platte, ganz voll: ä"), Finding("JAX", "problem", "x " * 90, 'pip install "jax"')]
    monkeypatch.setattr(doctor, "examine", lambda: iter(ill))
    assert cli.main(["doctor"]) == 2
    out = capsys.readouterr().out
    assert out.isascii() and max(map(len, out.splitlines()[:-1])) <= 80
    assert out.splitlines()[0] == "note     disk         Platte, ganz voll: \\xe4"
    assert out.splitlines()[-2] == '                      -> pip install "jax"'
    assert out.splitlines()[-1].startswith("training does not work yet: see JAX above")


def test_what_crashes_or_hangs_is_an_answer():
    assert doctor.attempt("print(1)\nprint('two')") == (True, "two")
    assert doctor.attempt("import os, sys\nprint('x'); os.abort()") == (False, "exit code -6")
    assert doctor.attempt("raise OSError('no\\n such thing')") == (False, "OSError: no")
    assert doctor.attempt("import time; time.sleep(60)", timeout=0.5) == (False, "it did not answer within 0.5 s")
    assert doctor.run(["no-such-program"], 1) == (False, "No such file or directory")
    wrong = "from gpi.errors import UsageError\nraise UsageError('a.b: c. d')"
    assert doctor.attempt(wrong) == (False, "UsageError: a.b: c. d")
    assert doctor.attempt("import gpi, os; print(os.listdir())").said == "[]"


def test_a_check_that_fails_itself_is_a_note():
    [found] = doctor.look({"disk": lambda: doctor.disk(Path("/no/such/directory"))})
    assert found.state == "note" and "FileNotFoundError" in found.found


def test_jax_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    found = doctor.jax_works(doctor.jax_devices())
    assert found.state == "problem" and "nonsense" in found.found
    assert found.remedy == f'pip install --force-reinstall "jax{JAX}" "jaxlib{JAX}"' and ">=" in JAX


@pytest.mark.parametrize(("used", "there", "state", "words"), [
    ("cpu", "", "ok", "none found"), ("gpu", "NVIDIA H200, 580.65.06", "ok", "JAX uses it"),
    ("cpu", "NVIDIA H200, 580.65.06", "note", f'pip install -U "jax[cuda13]=={jax.__version__}"'),
    ("cpu", "Tesla T4, 535.104.05", "note", f'pip install -U "jax[cuda12]=={jax.__version__}"'),
    ("cpu", "an NVIDIA GPU", "note", f'pip install -U "jax[cuda13]=={jax.__version__}"'),
])  # fmt: skip
def test_a_gpu_that_jax_does_not_use_is_a_note(used: str, there: str, state: str, words: str):
    found = doctor.gpu(Devices(used, "1 device"), there)
    assert found.state == state and words in found.found + found.remedy
    extras = doctor.importlib.metadata.metadata("jax").get_all("Provides-Extra") or []
    assert {"cuda12", "cuda13"} <= set(extras)


@pytest.mark.parametrize(("version", "wanted", "holds"), [
    ("0.10.2", "==0.10.2", True), ("0.10.1", "==0.10.2", False), ("1.4", ">=1.1", True), ("1.0.9", ">=1.1", False),
    ("0.2.9", "<0.3,>=0.2.8", True), ("0.3", "<0.3,>=0.2.8", False), ("3.11.7", ">=3.11", True),
    ("2.0rc1", ">=2", False), ("2.1rc1", ">=2", True), ("1.10", ">1.9", True), ("5", "", True), ("4.0", "!=4", False),
])  # fmt: skip
def test_versions_are_compared_as_numbers(version: str, wanted: str, holds: bool):
    assert requirements.satisfies(version, wanted) is holds


def test_pins_come_from_the_metadata(monkeypatch: pytest.MonkeyPatch):
    found = {(r.name, r.extra): r.versions for r in requirements.requirements()}
    assert found["jax", ""] == JAX == "<0.13,>=0.10.2" and found["onnx", "onnx"] == ">=1.17"
    assert (("envpool", "") in found) == (sys.platform == "linux")
    monkeypatch.setattr(requirements, "PACKAGE", "no-such-package")
    assert requirements.requirements() == []
    assert doctor.packages().state == "note" and doctor.python().state == "ok"


def test_wrong_and_missing_packages_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch):
    wanted = [requirements.Requirement("numpy", ">=99", ""), requirements.Requirement("no-such-package", "==1", "onnx")]
    monkeypatch.setattr(doctor, "requirements", lambda: wanted)
    assert doctor.packages().state == "problem" and doctor.packages().remedy == 'pip install "numpy>=99"'
    found = doctor.extra("ONNX", "onnx", "gpi export --format onnx")
    assert found.state == "note" and found.remedy == 'pip install "gpi-rl[onnx]"'
    assert found.found == "no-such-package is missing; `gpi export --format onnx` needs it"


def test_places_that_cannot_be_written_are_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert doctor.cache().state == "ok" and not (tmp_path / "a").exists()
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)  # tests may run as root, who may write everywhere
    assert doctor.cache().state == doctor.disk(tmp_path).state == "note"


def test_what_was_not_tested_is_a_note(monkeypatch: pytest.MonkeyPatch):
    """A version of JAX that nobody tried, and a missing EnvPool: neither forbids training."""
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "0.12.7")
    found = doctor.jax_works(Devices("cpu", "2 cpu devices"))
    assert found.state == "note" and "tested with gpi are 0.10.2, 0.11.2, 0.12.0.1" in found.found
    assert found.remedy == 'pip install "jax==0.10.2" "jaxlib==0.10.2"'
    monkeypatch.setattr(requirements.Requirement, "installed", lambda one: "" if one.name == "envpool" else "99")
    monkeypatch.setattr(doctor, "requirements", lambda: [requirements.Requirement("envpool", "==1.2.5", "")])
    found = [doctor.packages(), doctor.envpool()]
    assert [one.state for one in found] == ["note", "note"]
    assert "macOS arm64 and Windows are not tried" in found[1].found
    assert found[1].remedy == 'pip install "envpool==1.2.5"'
    assert doctor.verdict(found) == (
        "training works, but for DeepMind Control's tasks; begin with: gpi train CartPole-v1 --steps 50000"
    )


def test_a_jax_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices.importlib.metadata, "version", lambda name: "0.9.0")
    with pytest.raises(UsageError) as error:
        devices.require_jax()
    assert str(error.value) == (
        "JAX 0.9.0 is too old, it must be >=0.10.2; run `pip install jax==0.10.2 jaxlib==0.10.2`"
    )


@pytest.mark.parametrize("words", [["--help"], ["doctor"], ["train", "cheetah-run"], ["study", "run", "quick"]])
def test_without_unix_every_command_is_one_line(words: list[str]):
    program = "import sys; sys.modules['fcntl'] = None; import gpi; from gpi.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert "module fcntl" in done.stderr and "use Linux, or Linux in WSL" in done.stderr


def test_files_that_an_installer_linked_are_read(tmp_path: Path):
    """uv and conda link the files of a package from their caches."""
    package = Path(doctor.__file__).parent
    shutil.copytree(package, tmp_path / "one" / "gpi", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=os.link)
    program = (
        "from gpi.analysis.random_policy import random_returns; "
        "from gpi.study.definition import builtin_names, load_study; "
        "from gpi.study.report import page; print(len(random_returns()), len(page.style()) > 999, "
        "*(load_study(name).name for name in builtin_names()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "two")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "28 True controls paper quick reuse\n", done
