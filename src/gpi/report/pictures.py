"""Writing pictures: whether a path will do, and one way to write them all."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpi import files
from gpi.errors import UsageError, disk_error

if TYPE_CHECKING:  # matplotlib takes long to import, and checking a path needs none of it
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows; `path` is the file it was written to, if it was written."""

    png: bytes
    path: Path | None = None

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self.png

    def __repr__(self) -> str:
        """Return a description without the bytes."""
        return f"Picture({len(self.png):,} bytes of PNG{f', written to {self.path}' if self.path else ''})"


def require_picture(path: Path) -> Path:
    """Return the path if a picture can be written there, otherwise raise UsageError or DiskError."""
    if path.suffix.lower() not in SUFFIXES:
        remedy = path.parent / f"{path.stem or 'picture'}.png"  # '', '.' and '/' have no name
        raise UsageError(f"picture {path} must end in .png, .pdf or .svg; use {remedy}")
    try:
        if path.is_dir():
            raise UsageError(f"picture {path} is a directory; name a file, such as {path / 'picture.png'}")
        if not path.parent.is_dir():
            why = "is a file; name another" if path.parent.exists() else "does not exist; make it first"
            raise UsageError(f"picture {path} needs the directory {path.parent}, which {why}")
    except OSError as error:
        raise disk_error(path, error) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise disk_error(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return path


def save_figure(figure: Figure, path: Path, dpi: int = 120) -> None:
    """Write a figure; the file appears when it is complete, and is readable for whom the umask allows."""
    require_picture(path)
    data = encode_figure(figure, path.suffix.lower().removeprefix("."), dpi)
    temp = path.with_name(files.temporary(path.name))
    try:
        try:
            with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(data)
            os.replace(temp, path)
        finally:
            with suppress(OSError):
                temp.unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(path, error) from error


def encode_figure(figure: Figure, format: str = "png", dpi: int = 120) -> bytes:
    """Return a figure as the bytes of a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, dpi=dpi)
    return buffer.getvalue()
