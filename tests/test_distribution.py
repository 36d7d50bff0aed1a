"""What is distributed: the wheel, the sdist and the page of a package index, and the newest versions a user may get."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("hatchling")
pytestmark = pytest.mark.xdist_group("distribution")  # one build for all


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_page_of_an_index_has_no_relative_link_or_picture(built: Path):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith("/METADATA"))
        page = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert [link for link in links if not link.startswith("https://")] == [] and "![" not in page
    assert "gpi train cheetah-run" in page and "](" in (ROOT / "README.md").read_text()


def test_the_wheel_has_every_file_of_the_package(built: Path):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if name.startswith("gpi/")}
    package = ROOT / "src" / "gpi"
    wanted = {f"gpi/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    assert there == {name for name in wanted if "__pycache__" not in name} and "gpi/py.typed" in there


def test_the_sdist_has_what_tests_read_and_is_small(built: Path):
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {"Makefile", "CONTRIBUTING.md", "requirements.lock", "tools/pythons.py", "docs/guarantee.md"} <= names
    assert {"benchmarks/study/kappa1.safetensors", "benchmarks/films.py", "examples/study.toml"} <= names
    assert not any(name.endswith(".png") and name.startswith("docs/") for name in names)
    assert sdist.stat().st_size < 3 * 2**20


@pytest.mark.slow
def test_the_newest_versions_that_are_allowed_pass_the_quick_tests(tmp_path: Path):
    """So that we hear of the next NumPy before a user does: what `make setup` installs is a lock, and knows nothing."""
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "venv" / "bin" / "python"
    (tmp_path / "override.txt").write_text("labmaze; python_version < '0'\n")  # as in pyproject.toml, without its pins
    for words in (
        [uv, "venv", "--python", sys.executable, tmp_path / "venv"],
        [uv, "pip", "install", "--no-config", "--python", python, "--override", tmp_path / "override.txt", "--group",
         "test", "--group", "docs", "--editable", ".[onnx,ray,tensorboard,video]"],
        [python, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"],
    ):  # fmt: skip
        done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
