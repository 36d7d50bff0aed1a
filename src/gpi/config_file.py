"""Files of settings, TOML or a run's config.json: read strictly, every mistake one line with its line number.

A file names no code: the 28 tasks and registered Gymnasium ids only.
"""

from __future__ import annotations

import bisect
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from json import JSONDecodeError, loads
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpi import files
from gpi.config import SYNONYMS, Config, checked_type, expanded, kinds, nearest
from gpi.errors import FileError, UsageError
from gpi.standalone import Facts

Key = tuple[str | int, ...]
"""The way to a value: names of tables, and places in arrays."""
REMEDY = "name a .toml file, or a run directory"
MESSAGE_LIMIT = 500  # characters of a message that repeats a value from a file


class Document(NamedTuple):
    """The content of a file, with the text that it was read from."""

    name: str
    data: Facts
    text: str

    @property
    def lines(self) -> dict[Key, int]:
        """The line of every key, found when an error asks for one."""
        return _lines(self.text, toml=not self.name.endswith(".json"))

    def where(self, *key: str | int) -> str:
        """Return `settings.toml:12`, the line of a key, or of the innermost table around it that has a line."""
        lines = self.lines
        for end in range(len(key), 0, -1):
            if key[:end] in lines:
                return f"{self.name}:{lines[key[:end]]}"
        return self.name


class Settings(NamedTuple):
    """Settings from a file, of the right types."""

    document: Document
    table: Key
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
            found = re.match(r"(?:unknown )?(\w+) (?:=|')|.*?--([\w-]+)", str(error))
            name = (found[1] or found[2]).replace("-", "_") if found else ""
            if name not in self.values or name in typed:
                raise
            raise UsageError(f"{self.where(name)}: {_brief(str(error))}") from error


NO_FILE = Settings(Document("", {}, ""), (), {})


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
    """Read a TOML file, and find the line of every key in it."""
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
    """Read a JSON object, and find the line of every key in it."""
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
BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
BARE = re.compile(r"[\w-]+")
ATOM = re.compile(r"[^,\]}#\n]+")  # a number, a date, a truth value


def _lines(text: str, *, toml: bool) -> dict[Key, int]:
    """Return the line of every key in a text that a parser has accepted."""
    scan = _Scan(text, _read_toml_string if toml else loads)
    with suppress(IndexError, AttributeError, ValueError):  # an unknown line is better than a traceback
        scan.document() if toml else scan.value(())
    return scan.lines


def _read_toml_string(quoted: str) -> str:
    return tomllib.loads(f"x = {quoted}")["x"]


class _Scan:
    """A walk over the text of TOML or JSON that a parser has accepted; it only looks for keys."""

    def __init__(self, text: str, read_string: Callable[[str], str]):
        self.text, self.read_string = text, read_string
        self.at = 0
        self.ends = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[Key, int] = {}
        self.counts: dict[Key, int] = {}  # elements of each array of tables so far

    def document(self) -> None:
        """Walk over a TOML document: headers of tables, and pairs."""
        table: Key = ()
        while self.peek():
            if self.text.startswith("[[", self.at):
                table = self.header(2)
            elif self.peek() == "[":
                table = self.header(1)
            else:
                self.pair(table)

    def header(self, brackets: int) -> Key:
        """Walk over `[table]` or `[[table]]`; return the way to it."""
        self.at += brackets
        table: Key = ()
        names = self.key()
        for i, name in enumerate(names):
            table = (*table, name)
            self.lines.setdefault(table, self.line())
            if brackets == 2 and i == len(names) - 1:
                self.counts[table] = self.counts.get(table, 0) + 1
            if table in self.counts:  # `[a.b]` below `[[a]]` belongs to the last a
                table = (*table, self.counts[table] - 1)
                self.lines.setdefault(table, self.line())
        self.peek()
        self.at += brackets
        return table

    def pair(self, table: Key) -> None:
        """Walk over a key, its `=` or `:`, and its value."""
        self.peek()
        line = self.line()
        for name in self.key():
            table = (*table, name)
            self.lines.setdefault(table, line)
        self.peek()
        self.at += 1
        self.value(table)

    def key(self) -> list[str]:
        """Walk over a key, which TOML lets be dotted; return its names."""
        names = []
        while True:
            quoted = self.peek() in "\"'"
            word = self.take(STRING if quoted else BARE)
            names.append(self.read_string(word) if quoted else word)
            if self.peek() != ".":
                return names
            self.at += 1

    def value(self, path: Key) -> None:
        """Walk over a value: an array, an inline table or object, a string, or anything else."""
        first = self.peek()
        if first not in "[{":
            self.take(STRING if first in "\"'" else ATOM)
            return
        self.at += 1
        place = 0
        while self.peek() not in "]}":
            if first == "{":
                self.pair(path)
            else:
                self.lines.setdefault((*path, place), self.line())
                self.value((*path, place))
            place += 1
            if self.peek() == ",":
                self.at += 1
        self.at += 1

    def peek(self) -> str:
        """Skip blanks and comments; return the next character, or nothing at the end."""
        self.take(BLANK)
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[str]) -> str:
        """Walk over what a pattern matches here, and return it."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"unexpected text at {self.at}")
        self.at = match.end()
        return match[0]

    def line(self) -> int:
        """Return the line of the place where the walk is."""
        return bisect.bisect_left(self.ends, self.at) + 1
