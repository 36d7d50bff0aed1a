"""The documentation site in a real browser: its search finds options, and no page is wider than the screen."""

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no browser"),
    pytest.mark.skipif(not (ROOT / "docs" / "img").is_dir(), reason="an sdist has no pictures"),
    pytest.mark.xdist_group("browser"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of the site on this machine, and its pages."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(out)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", [str(path.relative_to(out)) for path in out.rglob("*.html")]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def tab() -> "Iterator[Page]":
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_page(viewport={"width": 1400, "height": 900})
        browser.close()


@pytest.mark.parametrize("option", ["--trust", "--eval-every"])
def test_the_search_finds_options_as_they_are_typed(site: tuple[str, list[str]], tab: "Page", option: str):
    tab.goto(f"{site[0]}/index.html")
    tab.click("label.md-header__button[for=__search]", force=True) if not tab.is_visible("input[name=query]") else None
    tab.click("input[name=query]")
    tab.keyboard.type(option)
    tab.wait_for_selector(".md-search-result__link", timeout=20_000)
    first = tab.eval_on_selector_all(".md-search-result__link", "links => links.map((x) => x.pathname)")[0]
    assert first not in ("/api.html", "/architecture.html"), "a guide comes before the API"


@pytest.mark.parametrize("width", [1400, 390])
def test_no_page_is_wider_than_the_screen(site: tuple[str, list[str]], tab: "Page", width: int):
    tab.set_viewport_size({"width": width, "height": 900})
    wide = {}
    for page in site[1]:
        tab.goto(f"{site[0]}/{page}", wait_until="domcontentloaded")
        found = tab.evaluate("document.documentElement.scrollWidth")
        if found > width:
            wide[page] = found
    assert wide == {}
