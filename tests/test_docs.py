"""Docs are code: every number, name, column and link in them is checked."""

import argparse
import importlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cases import Family
from gpi.cli import parser
from gpi.cli.guide import COMMANDS, with_actions
from gpi.rundir.tables import EPISODES, METRICS, TIMING

ROOT = Path(__file__).parent.parent
NUMBERS = [f"({i})" for i in range(1, 20)]
RESULTS = [*(f"Theorem {i}" for i in range(1, 5)), "Algorithm 1", "Algorithm 2"]
TABLES = {"episodes.csv": EPISODES, "metrics.csv": METRICS, "timing.csv": TIMING}
# A path of one developer's machine, or the host of a package index. (This line does not match itself.)
FOREIGN = re.compile(r"(?<![\w.])/(?:work|root|tmp)\b|pypi\.org")


def tracked() -> list[Path]:
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in found.stdout.split("\0") if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]


def rows(text: str) -> list[list[str]]:
    """Return the body of the first table in a text, cell by cell."""
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert lines, "no table"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[0].splitlines()[2:]]


def equations() -> list[list[str]]:
    return rows((ROOT / "docs" / "equations.md").read_text())


def find(name: str) -> Any:
    """Return the object called `gpi.module.function`, or `gpi.module.Class.attribute`."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def cited(doc: str) -> set[str]:
    """Return the citations of a docstring: `eq (9)-(11)` is three equations, `sqrt(2)` is not a citation."""
    doc = " ".join(doc.split())
    found = set(re.findall(r"(?:Theorem|Algorithm) \d", doc))
    for first, last in re.findall(r"(?<!\w)\((\d+)\)(?:-\((\d+)\))?", doc):
        found |= {f"({i})" for i in range(int(first), int(last or first) + 1)}
    return found


def test_citations_are_read_as_meant():
    doc = "Theorem 3, eq (9)-(11), and (2);\n theta + step/sqrt(2)^j of Algorithm 2"
    assert cited(doc) == {"Theorem 3", "(9)", "(10)", "(11)", "(2)", "Algorithm 2"}


def test_every_equation_theorem_and_algorithm_is_in_the_map_once():
    assert [row[0] for row in equations()] == [*NUMBERS, *RESULTS]


@pytest.mark.parametrize("row", equations(), ids=lambda row: row[0])
def test_code_in_the_map_exists_and_cites_its_number(row: list[str]):
    number, _, code, tests = row
    names = re.findall(r"`(gpi[\w.]+)`", code)
    assert names, "no code named"
    for name in names:
        assert number in cited(find(name).__doc__), f"the docstring of {name} does not cite {number}"
    checks = re.findall(r"`(\w+\.py)::(\w+)`", tests)
    assert checks, "no test named"
    for file, test in checks:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file} has no {test}"


@pytest.mark.parametrize("theme", ["target_weights", "conjugate_gradient", "line_search", "natural_step"])
def test_every_family_of_the_solvers_tests_is_explained(theme: str):
    module = importlib.import_module(f"test_{theme}")
    (families,) = (
        x for x in vars(module).values() if isinstance(x, dict) and isinstance(next(iter(x.values()), 0), Family)
    )
    page = (ROOT / "docs" / "solver-cases.md").read_text()
    section = page.split(f"`tests/test_{theme}.py`. ")[1].split("\n## ")[0]
    explained = {row[0].strip("`"): row[1] == "yes" for row in rows(section)}
    assert explained == {name: family.quick for name, family in families.items()}


def test_names_in_the_docs_exist():
    for page in pages():
        for name in re.findall(r"`(gpi(?:\.\w+)+)[`(]", page.read_text()):
            find(name)


def test_commands_in_the_docs_are_commands():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in pages():
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line.removeprefix("$ "), comments=True) or [""]
                if program == "gpi":
                    parser().parse_args(arguments)
                elif program == "make":
                    assert set(arguments) <= set(targets), line
                elif program == "python":
                    assert (ROOT / arguments[0]).is_file(), line


def test_commands_in_the_text_are_commands():
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    options = {option for _, verb in with_actions(action.choices) for option in verb._option_string_actions}
    options |= set(parser()._option_string_actions)
    for page in pages():
        if page.name == "CHANGELOG.md":
            continue  # it mentions options that are gone
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`([^`\n]+)`", prose):
            if code.startswith("gpi ") and not code.startswith("gpi --"):
                assert code.split()[1] in action.choices, f"{page.name}: {code}"
            if code.startswith(("gpi ", "--")):
                for option in re.findall(r"(?<![\w-])--[\w-]+", code):
                    assert option in options, f"{page.name}: {option} is not an option"


def test_every_command_is_in_the_page_about_the_command_line():
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert [row[0].strip("`") for row in rows(page)] == [f"gpi {name}" for group in COMMANDS.values() for name in group]
    assert {name for group in COMMANDS.values() for name in group} == set(action.choices)


@pytest.mark.parametrize("file", TABLES)
def test_every_column_is_explained(file: str):
    page = (ROOT / "docs" / "run-directory.md").read_text()
    section = page.split(f"## `{file}`")[1].split("\n## ")[0]
    assert tuple(row[0].strip("`") for row in rows(section)) == TABLES[file]


@pytest.mark.skipif(not (ROOT / "docs" / "img").is_dir(), reason="an sdist has no pictures")
def test_relative_links_resolve():
    for page in pages():
        for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text()):
            path = (target[0] or target[1]).split("#")[0]
            if path and "://" not in path:
                assert (page.parent / path).exists(), f"{page.name} links to {path}, which is not there"


def test_the_project_speaks_of_itself_alone():
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found = FOREIGN.search(text)
        assert not found, f"{path.relative_to(ROOT)} names {found and found[0]}"


HABITS = re.compile(
    r"so many|so much|of (?:its|their|our) own|of ours|of yours|goes on|go on\b|\b(?:is|are) no\b"
    r"|\b[Ww]hat (?:is|was|it|are)\b|\b(?:[Ww]hatever|[Ww]hoever|[Nn]obody)\b"
)


def test_sentences_are_plain():
    """Habits that make sentences hard to read: 438 of them once, and a few that are the right words."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    found = [f"{path.name}: {match[0]}" for path in pages for match in HABITS.finditer(path.read_text("utf-8"))]
    assert len(found) <= 37, found
