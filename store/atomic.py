"""Small files that are whole whenever they are there: after a crash of process or machine, the old content or the new.

The content goes to the device under another name, beside the file, and takes the file's name then; the directory goes
to the device last. A process that is killed meanwhile leaves the other name behind; nothing reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_MODE = 0o644


def write_file(path: Path, data: bytes, *, backup: Path | None = None) -> None:
    """Make `path` or replace it; on the device when this returns. backup: the name that the old content then has."""
    with _complete(path, data) as temporary:
        if backup is not None and path.exists():
            path.replace(backup)
        temporary.replace(path)


def create_file(path: Path, data: bytes) -> bool:
    """Make `path` unless it is there, in which case it stays as it is; whether this made it. On the device then."""
    with _complete(path, data) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, this never replaces
        except FileExistsError:
            return False
        return True


def open_file(path: Path, flags: int = 0) -> int:
    """A descriptor to read and write `path` with, made empty if it is not there: all files of a store get their mode
    here."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, _MODE)


def make_directory(path: Path) -> None:
    """Make a directory unless it is there; its name is on the device when this returns."""
    path.mkdir(parents=True, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the device."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _complete(path: Path, data: bytes) -> Iterator[Path]:
    """`data` on the device under another name, which is gone afterwards; then the names of the directory."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        with open(open_file(temporary, os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except OSError as error:
        error.filename = str(path)  # some have no name, others that of the temporary
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
