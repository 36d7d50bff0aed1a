"""What the site's build adds to MkDocs, so that the same pages read well on GitHub and need no network."""

from __future__ import annotations

import dataclasses
import os
import re
from html import escape
from posixpath import dirname, join, normpath
from typing import Any

from math_core import LatexError, LatexToMathML
from pymdownx.slugs import slugify
from pymdownx.superfences import SuperFencesException

SETTINGS, COMMANDS = "<!-- settings -->", "<!-- commands -->"
TAG = re.compile(r"\\tag\{([^}]*)\}")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
NAME = re.compile(r"(?<!\">)<code>(gpi(?:\.\w+)+)</code>")
LONG = re.compile(r"(?<=<code>)[\w.:/]{24,}(?=</code>)")  # names that may be broken, but only between their parts
BREAK = re.compile(r"::|[._/]")
SKIPPED = r"(<(pre|code|math|a)\b.*?</\2>|<[^>]*>)"  # code and equations stay as they are
BELOW = re.compile(SKIPPED + r"|([πενδθψ])_(\{[^{}]*\}|GPI|targ|[ki](?!\w))", re.DOTALL)
MATHML = LatexToMathML(fancy_error=False)


def on_config(config: Any) -> Any:
    """Fences called `math` are equations, and headings have GitHub's anchors."""
    fence = {"name": "math", "class": "math", "format": equation}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Text that GitHub understands and Python-Markdown does not."""
    here = dirname(page.file.src_uri)

    def kept(match: re.Match[str]) -> str:
        # A file of the repository that is not a page of the site is its name alone.
        leaves = normpath(join(here, match[2])).startswith("..")
        return match[1] if leaves else match[0]

    if SETTINGS in markdown:
        markdown = markdown.replace(SETTINGS, settings())
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    return LINK.sub(kept, markdown.replace("<details>", '<details markdown="1">'))


def on_page_content(html: str, **_: Any) -> str:
    """Names of the package lead to the API reference, where it has them; π_k in text has its k below the line."""
    html = BELOW.sub(lambda m: m[1] or f"{m[3]}<sub>{m[4].strip('{}')}</sub>", html)
    html = html.replace("A^{π<sub>k</sub>}", "A<sup>π<sub>k</sub></sup>")
    html = NAME.sub(r'<autoref optional identifier="\1"><code>\1</code></autoref>', html)
    return LONG.sub(lambda m: BREAK.sub(r"\g<0><wbr>", m[0]), html)


def settings() -> str:
    """Every field of Config as a row of a table."""
    from gpi.config import Config

    rows = ["| field | default | what it is |", "|---|---|---|"]
    for field in dataclasses.fields(Config):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.append(f"| `{field.name}` | {default} | {field.metadata['help']} |")
    return "\n".join(rows)


def commands() -> str:
    """The help of every command, as 80 columns show it."""
    from gpi.cli import parser
    from gpi.cli.guide import COMMANDS as GROUPED
    from gpi.cli.guide import with_actions

    os.environ["COLUMNS"] = "80"  # argparse asks for the width of the terminal
    verbs = next(action for action in parser()._actions if action.metavar == "COMMAND").choices
    names = [name for group in GROUPED.values() for name in group]
    grouped = with_actions({name: verbs[name] for name in names})
    return "\n".join(f"### gpi {name}\n\n```text\n{verb.full_help()}```\n" for name, verb in grouped)


def equation(source: str, *_: Any, **__: Any) -> str:
    """LaTeX as MathML, with its number beside it; LaTeX that cannot be read ends the build."""
    tag = TAG.search(source)
    try:
        mathml = MATHML.convert_with_local_state(TAG.sub("", source).strip(), displaystyle=True)
    except LatexError as error:
        raise SuperFencesException(f"equation {source.strip()!r}: {error}") from error
    number = f'<span class="number">({escape(tag[1])})</span>' if tag else ""
    return f'<div class="equation">{mathml}{number}</div>'
