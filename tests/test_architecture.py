"""Imports follow the layers of docs/architecture.md, and nothing in the package runs code from a file."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpi

SOURCE = Path(gpi.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def layers() -> dict[str, int]:
    """Each module or package of the page's table, and its layer."""
    table = PAGE.read_text().partition("## What may import what")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", table, flags=re.MULTILINE)
    return {name.rstrip("/"): int(layer) for layer, names in rows for name in re.findall(r"`([\w/]+)`", names)}


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports when it runs."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }  # fmt: skip
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_types:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(name: str) -> str:
    """Return the top-level package or module of gpi that a dotted name is in."""
    return name.split(".")[1]


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_module_has_a_layer():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert set(layers()) == parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_arrows_go_down_only(path: Path):
    known, name = layers(), path.relative_to(SOURCE).as_posix()
    mine = name.split("/")[0].removesuffix(".py")
    used = imports(path)
    if mine != "__init__":
        others = {part(module) for module in used if module.startswith("gpi.")} & set(known) - {mine}
        assert {other for other in others if known[other] >= known[mine]} == set()
    if mine == "theory":
        assert not any(module.startswith("jax") for module in used)
    if name != "envs/envpool.py":
        assert not any(module.split(".")[0] == "envpool" for module in used)
    if "report" not in path.parts:
        assert not any(module.split(".")[0] == "matplotlib" for module in used)


def test_a_study_uses_public_names_of_the_library_alone():
    """All but the engine; a name that is a module counts once."""
    table = PAGE.read_text().partition("A study uses the library")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, flags=re.MULTILINE)
    public = {f"{module}.{name}" for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    used: set[str] = set()
    for path in (SOURCE / "study").rglob("*.py"):
        if "engine" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] == "gpi" for alias in node.names), path
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gpi":
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
    used = {name for name in used if not name.startswith("gpi.study")}
    assert used == public and len(public) <= 30


def test_nothing_in_the_package_can_run_code_from_a_file():
    forbidden = {"pickle", "cloudpickle", "joblib", "marshal", "shelve", "dill", "yaml"}
    for path in FILES:
        assert not {module.split(".")[0] for module in imports(path)} & forbidden, path
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert not {f.id for f in calls if isinstance(f, ast.Name)} & {"eval", "exec", "compile"}, path


def test_algorithm_2_reads_in_a_minute():
    tree = ast.parse((SOURCE / "core" / "iteration.py").read_text())
    [algorithm] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "iteration"]
    assert len(algorithm.body) - 1 <= 12, "statements after the docstring"
    branches = (ast.If, ast.IfExp, ast.BoolOp, ast.Match)
    assert not [n for n in ast.walk(algorithm) if isinstance(n, branches)], "parts are chosen from tables"
    calls = [n.func for n in ast.walk(algorithm) if isinstance(n, ast.Call)]
    assert not {f.attr for f in calls if isinstance(f, ast.Attribute)} & {"cond", "switch", "where", "select"}


def test_functions_and_files_stay_short():
    for path in FILES:
        lines = path.read_text().splitlines()
        parts = path.relative_to(SOURCE).parts
        assert len(lines) <= (600 if parts[0] in ("study", "cli") else 400), path
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 40, f"{path}: {node.name}"


def test_a_directory_beside_the_tests_is_no_package(tmp_path: Path):
    """`gpi study run --out studies/quick` makes `studies`, which is also the name of a module that tests share."""
    for name in ("pyproject.toml", "src", "tests"):
        (tmp_path / name).symlink_to(PAGE.parents[1] / name)
    (tmp_path / "studies").mkdir()
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("no ruff in this environment")
    words = ["check", "--no-cache", "--select", "I", "tests/test_study_engine.py"]
    done = subprocess.run([ruff, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
