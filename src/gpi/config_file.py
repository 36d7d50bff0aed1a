"""Files of settings, TOML or a run's config.json: read strictly, every mistake one line with its line number.

A file names no code: the 28 tasks and registered Gymnasium ids only.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpi import files
from gpi.config import SYNONYMS, Config, checked_type, expanded, kinds, nearest
from gpi.errors import FileError, UsageError
from gpi.standalone import Facts

REMEDY = "name a .toml file, or a run directory"
NEWLINE = "\n"
HEADER = re.compile(r"^[ \t]*\[\[?[ \t]*(['\"]?)(?P<name>[\w-]+)\1[ \t]*\]\]?", re.MULTILINE)
PAIR = r"^[ \t]*(['\"]?){}\1[ \t]*[=:.]"
MESSAGE_LIMIT = 500  # characters of a message that repeats a value from a file


class Document(NamedTuple):
    """The content of a file, TOML or JSON."""

    name: str
    data: Facts
    text: str = ""

    def where(self, *key: str | int) -> str:
        """Return `settings.toml:12`, the line of a key, or of the table that it is in, as people usually write both.

        `key` is the name of a setting, below that of a table, and of several tables of one name their number.
        """
        names = [part for part in key if isinstance(part, str)]
        number = next((part for part in key if isinstance(part, int)), 0)
        headers = list(HEADER.finditer(self.text))
        mine = [header for header in headers if header["name"] == names[0]][number:]
        table = mine[0] if mine else None
        first, last = (table.end() if table else 0), len(self.text)
        last = next((header.start() for header in headers if header.start() >= first), last)
        found = table
        for name in names[1:] if table else names:  # in JSON a table is a key
            pair = re.compile(PAIR.format(re.escape(name)), re.MULTILINE).search(self.text, first, last)
            found, first = (pair, pair.end()) if pair else (found, first)
        return f"{self.name}:{self.text.count(NEWLINE, 0, found.start()) + 1}" if found else self.name


class Settings(NamedTuple):
    """Settings from a file, of the right types."""

    document: Document
    table: tuple[str | int, ...]
    """Where in the document they are."""
    values: dict[str, object]

    def where(self, name: str) -> str:
        """Return the file and line of a setting."""
        return self.document.where(*self.table, name)

    @contextmanager
    def blamed(self, typed: Mapping[str, object]) -> Iterator[None]:
        """Put the file and line of a setting before an error about it, unless it was typed."""
        try:
            yield
        except UsageError as error:
            if error.setting not in self.values or error.setting in typed:
                raise
            raise UsageError(f"{self.where(error.setting)}: {_brief(str(error))}") from error


NO_FILE = Settings(Document("", {}), (), {})


def read_settings(path: Path) -> Settings:
    """Read the settings of a .toml file, of a run's config.json, or of a run directory; raise at the first mistake."""
    if os.path.isdir(path):
        if not os.path.lexists(path / "config.json"):
            raise UsageError(f"{printable(path)} is not a run directory: it has no config.json; {REMEDY}")
        path = path / "config.json"
    if path.suffix.lower() not in (".toml", ".json"):
        raise UsageError(f"settings in {printable(path)} must be in a file that ends in .toml; {REMEDY}")
    if path.suffix.lower() == ".toml":
        document = read_toml(path)
        return checked(Settings(document, (), document.data))
    document = read_json(path)
    if not isinstance(document.data.get("config"), dict):
        raise FileError(f"{document.name}: it has no settings; name a run's config.json, or write a .toml file")
    found = checked(Settings(document, ("config",), document.data["config"]))
    if found.values.get("trust") == "strict" and found.values.get("normaliser", "auto") == "auto":
        return found._replace(values={**found.values, "normaliser": "paper"})  # what `auto` was when that run began
    return found


def checked(found: Settings) -> Settings:
    """Return the settings with every name known and every value of its type; raise UsageError otherwise."""
    known = kinds()
    values: dict[str, object] = {}
    for name, value in found.values.items():
        if name not in known:
            near = nearest(name, known)
            words = meant(name, repr(near)) if near else "; `gpi train --help` has them all"
            raise UsageError(f"{found.where(name)}: unknown setting {files.shown(name)}{words}")
        try:
            values[name] = checked_type(name, value, known[name])
        except UsageError as error:
            raise UsageError(f"{found.where(name)}: {_brief(str(error))}") from error
    return found._replace(values=values)


def meant(name: str, near: str | None) -> str:
    """Return words that say what an unknown name means: gpi's own for another library's, or the nearest."""
    if near is None:
        return ""
    known = name.lower().replace("-", "_") in SYNONYMS
    return f"; {near} is its name here" if known else f"; the nearest is {near}"


def combined(file: Settings, typed: Mapping[str, object]) -> Config:
    """Return the settings of a run: typed ones beat the file, which beats a preset, which beats the defaults."""
    task = file.values.get("task")
    if "task" not in typed and task is None:
        _no_task(file)
    if "task" not in typed and ":" in str(task):
        rule = "which is your own code; gpi never imports code named in a file"
        raise UsageError(
            f"{file.where('task')}: task = {files.shown(task)}, {rule}; type it: gpi train {task} --config ..."
        )
    return Config(**expanded({**file.values, **typed}))


def _no_task(file: Settings) -> NoReturn:
    """Raise because nothing says what to train in."""
    if file is NO_FILE:
        raise UsageError("no task is named; name one, as in `gpi train cheetah-run`: `gpi tasks` lists them")
    name = file.document.name
    raise UsageError(f'{name}: no task; add task = "cheetah-run", or type it: gpi train cheetah-run --config {name}')


def read_toml(path: Path) -> Document:
    """Read a TOML file."""
    return parse_toml(printable(path), read_text(path))


def parse_toml(name: str, text: str) -> Document:
    """Parse the text of a TOML file, whose name is for messages."""
    dots = DOTTED.search(text)
    if dots:  # tomllib needs memory and time with the square of their number
        raise FileError(f"{name}:{text.count(chr(10), 0, dots.start()) + 1}: a key of too many parts; use fewer dots")
    try:
        data = tomllib.loads(text)
        too_deep = _deeper(data, files.DEPTH_LIMIT)
    except RecursionError:
        data, too_deep = {}, True
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int((found and found[1]) or text.rstrip().count("\n") + 1)
        said = str(error)[: found.start()] if found else str(error)
        raise FileError(f"{name}:{line}: not TOML: {_brief(said)}; correct it") from error
    except ValueError as error:
        raise FileError(f"{name}: a number has more digits than can be read; use fewer") from error
    if too_deep:
        raise FileError(f"{name}: tables or arrays are nested more than {files.DEPTH_LIMIT} deep; flatten them")
    return Document(name, data, text)


def read_json(path: Path) -> Document:
    """Read a JSON object."""
    name, text = printable(path), read_text(path)
    try:
        data = files.parse_json(text.encode(), "it")
    except FileError as error:
        at = f":{error.__cause__.lineno}" if isinstance(error.__cause__, JSONDecodeError) else ""
        raise FileError(f"{name}{at}: {_brief(str(error))}; name the config.json of a run") from error
    return Document(name, data, text)


def read_text(path: Path) -> str:
    """Read a text file strictly: plain, at most 1 MB, UTF-8 with or without a byte-order mark, no NUL."""
    name, real = printable(path), Path(os.path.realpath(path))
    if not os.path.lexists(real):
        raise UsageError(f"{name} does not exist; {REMEDY}")
    try:
        data = files.read(real.parent, real.name, files.JSON_LIMIT)
    except FileError as error:
        raise FileError(f"{name}: {error}; {REMEDY}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8") from error
    if "\0" in text:
        raise FileError(f"{name}:{text[: text.index(chr(0))].count(chr(10)) + 1}: a NUL character; save it as text")
    return text.replace("\r\n", "\n")


def printable(path: Path) -> str:
    """Return a path as it fits in one line."""
    return str(path) if str(path).isprintable() else files.shown(str(path))


def _brief(text: str) -> str:
    """Return a message in one line of bounded length."""
    text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "..."


def _deeper(value: object, limit: int) -> bool:
    """Return whether tables and arrays are nested deeper than the limit."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return limit == 0 or any(_deeper(part, limit - 1) for part in inner if isinstance(part, dict | list))


DOTTED = re.compile(r"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}")
