"""The documentation site builds without a warning, and everything that its pages name exists."""

import argparse
import ast
import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpi.cli import main, parser
from gpi.cli.guide import with_actions
from gpi.config import Config
from gpi.core.plan import ALGORITHMS
from gpi.theory.mixture import mixture

pytest.importorskip("mkdocs")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = ["index.md", "quickstart.md", "command-line.md", "environments.md", "choosing.md"]
PAGES = [*GUIDES, "algorithms/index.md", *(f"algorithms/{name}.md" for name in ALGORITHMS)]
EQUATION = {"ppo": 13, "geppo": 14, "trpo": 15, "getrpo": 16, "vmpo": 18, "gevmpo": 19}
SECTIONS = ["Background", "Quick facts", "Key equations", "Exploration", "Pseudocode", "Parameters", "References"]

pytestmark = [
    pytest.mark.xdist_group("site"),  # one build for all
    pytest.mark.skipif(not (DOCS / "img").is_dir(), reason="an sdist has no pictures"),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    return done, site


def nav(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from nav(target) if isinstance(target, list) else [target]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def fences(page: str, *kinds: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


def test_tests_of_a_group_share_a_worker(request: pytest.FixtureRequest):
    """Their names say so to pytest-xdist, in versions that fit; else every worker would make what they share."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@site")


def test_site_builds_without_a_warning(build):
    done, _ = build
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "WARNING" not in output and "ERROR" not in output, output


def test_every_page_is_in_the_navigation_and_built(build):
    _, site = build
    pages = list(nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(pages) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md"))
    for page in pages:
        html = (site / page).with_suffix(".html").read_text(encoding="utf-8")
        assert "<h1" in html, page


class Fetched(HTMLParser):
    """The addresses that a browser loads by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "src" or (tag == "link" and name == "href")):
                self.urls.append(value)


def test_pages_load_nothing_from_the_network(build):
    _, site = build
    pages = list(site.glob("**/*.html"))
    assert pages
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text(encoding="utf-8"))
        assert fetched.urls
        for url in fetched.urls:
            assert not re.match(r"(https?:)?//", url), f"{page.name} fetches {url}"
    for sheet in site.glob("**/*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.parametrize("page", PAGES)
def test_equations_are_mathml(build, page: str):
    _, site = build
    html = (site / page).with_suffix(".html").read_text(encoding="utf-8")
    assert html.count("<math") == len(fences(page, "math"))
    assert not re.search(r"\\(?:tag|frac|mathbb|begin)", html)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_pages_have_their_equation_and_all_sections(name: str):
    page = f"algorithms/{name}.md"
    assert f"\\tag{{{EQUATION[name]}}}" in text_of(page)
    headings = re.findall(r"^## (.*)", text_of(page), re.MULTILINE)
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS
    assert f"--algorithm {name}" in text_of(page)


@pytest.mark.parametrize("page", [*(page for page in PAGES if page.startswith("algorithms/")), "equations.md"])
def test_functions_lead_to_the_api_reference(build, page: str):
    _, site = build
    html = (site / page).with_suffix(".html").read_text(encoding="utf-8").replace("<wbr>", "")
    names = re.findall(r"`(gpi\.(?:core|theory)\.\w+\.\w+)`", text_of(page))
    assert names
    for name in names:
        assert re.search(rf'href="[^"]*api\.html#[^"]*"[^>]*><code>{name}</code>', html), f"{page}: no link from {name}"


def test_public_names_are_in_the_api_reference(build):
    _, site = build
    html = (site / "api.html").read_text(encoding="utf-8")
    gpi = importlib.import_module("gpi")
    for name in gpi.__all__:
        public = getattr(gpi, name)
        ids = {f'id="gpi.{name}"', f'id="{public.__module__}.{public.__qualname__}"'}
        assert any(anchor in html for anchor in ids), f"gpi.{name} is not in the API reference"
    for field in dataclasses.fields(Config):
        assert f"<td><code>{field.name}</code></td>" in html, f"Config.{field.name} is not in the API reference"


def test_every_option_is_on_the_page_about_the_command_line(build):
    _, site = build
    html = (site / "command-line.html").read_text(encoding="utf-8")
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, verb in with_actions(action.choices):
        section = html.split(f'id="gpi-{name.replace(" ", "-")}"')[1].split("<h3")[0]
        for option in verb._option_string_actions:
            assert option in section, f"gpi {name} {option}"


def test_extras_are_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in DOCS.glob("**/*.md"):
        for named in re.findall(r"gpi-rl\[([\w,-]+)\]", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= extras.keys(), f"{page.name} names gpi-rl[{named}]"


def called(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of gpi's functions and classes, by their full names."""
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gpi")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in imported or name.startswith("gpi."):
                yield imported.get(name, name), node


@pytest.mark.parametrize("page", [page for page in [*PAGES, "run-directory.md"] if fences(page, "python")])
def test_python_calls_what_exists(page: str):
    for block in fences(page, "python"):
        for name, call in called(ast.parse(block)):
            module, _, attribute = name.rpartition(".")
            signature = inspect.signature(getattr(importlib.import_module(module), attribute))
            given = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            named = {kind.name for kind in signature.parameters.values() if kind.kind is not kind.VAR_KEYWORD}
            if len(named) < len(signature.parameters):  # **settings
                settings = {field.name for field in dataclasses.fields(Config)}
                assert given.keys() - named <= settings, f"{page}: {ast.unparse(call)}"
                given = {key: None for key in given if key in named}
            signature.bind(*call.args, **given)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("algorithms/")])
def test_parameters_have_the_defaults_of_config(page: str):
    defaults = {"--" + f.name.replace("_", "-"): f.default for f in dataclasses.fields(Config)}
    rows = re.findall(r"^\| (`--[^|]*) \| ([^|]*) \|", text_of(page), re.MULTILINE)
    assert rows
    for names, shown in rows:
        options = re.findall(r"`(--[\w-]+)`", names)
        real = [defaults[option] for option in options]
        texts = [",".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in real]
        assert ", ".join(texts) == shown, f"{page}: {names} is {texts}, not {shown}"


def test_numbers_of_the_mixture_are_those_of_the_command(capsys):
    assert main(["mixture", "--B", "2", "--kappa", "0.5"]) == 0
    assert capsys.readouterr().out in fences("choosing.md", "text")
    rows = re.findall(r"^\| (\d+) \| (any|[\d.]+) \| (.*) \|$", text_of("choosing.md"), re.MULTILINE)
    assert len(rows) >= 10
    for B, kappa, shown in rows:
        for k in (0.0, 0.5, 1.0) if kappa == "any" else (float(kappa),):
            m = mixture(int(B), k)
            cells = (f"{m.M}", f"{m.mean_age:.6f}", f"{m.eps_gpi:.6f}", f"{m.ess:.1f}", f"{m.ess_gain:+.1%}",
                     f"{m.tv_gain:+.1%}")  # fmt: skip
            assert shown.split(" | ") == list(cells), f"B = {B}, kappa = {k}"


def test_the_example_environment_passes_its_own_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "my_module.py").write_text(fences("environments.md", "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        for name in ("my_module:Park-v0", "my_module:make_env"):
            assert main(["check", name]) == 0, capsys.readouterr().err
    finally:
        sys.modules.pop("my_module", None)
        importlib.import_module("gymnasium").registry.pop("Park-v0", None)
