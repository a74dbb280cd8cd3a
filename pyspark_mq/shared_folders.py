"""Folders of files that the driver and all executors see: in a directory, or on an object store, by its URL.

On an object store there are no folders: an object `.made` in each says when it was made, and that it is there. How to
get in is up to fsspec: by environment variables (`AWS_...`, `FSSPEC_S3_...`), its configuration files, or the role of
the machine. So no secret is in an option, a checkpoint, or what tasks are sent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from store.errors import CorruptStore
from store.files.atomic import create_file, make_folder, open_file, read_file

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

ITSELF = "."  # the folder, in a list of its files
GONE = ".gone"  # ends the name of a folder that is being removed

_MADE = ".made"
# Object stores that can make an object only if it is not there, in one request, and what speaks to them.
_CREATE_ONCE = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_MEMORY = "memory"
# When an object was written, as the implementations of fsspec name it.
_TIMES = ("LastModified", "mtime", "last_modified", "created")
_memory_turn = Lock()


class SharedFolders(Protocol):
    """Every method raises `OSError`, of which `FileNotFoundError` says what it should."""

    def prepare(self) -> None:
        """Raises `OSError` where nothing can be written."""

    def place(self, folder: str, file: str) -> str:
        """A path or a URL."""

    def folders(self) -> list[str]:
        """Their names."""

    def files(self, folder: str) -> dict[str, float]:
        """Each file, and `ITSELF`: when it was written last, s since 1970. Empty where there is no such folder."""

    def make(self, folder: str) -> None:
        """And what is above it, unless it is there."""

    def must_create_once(self, folder: str) -> None:
        """Raises `OSError` where `create` might replace what another process has just made. The folder is there."""

    def read(self, folder: str, file: str, max_bytes: int) -> bytes:
        """Raises `FileNotFoundError`, `CorruptStore` for a larger file."""

    def create(self, folder: str, file: str, data: bytes) -> bool:
        """Make a file, whole, unless it is there, in which case it stays as it is; whether this made it."""

    def touch(self, folder: str, file: str) -> None:
        """Make a file, empty, or its time now."""

    def delete(self, folder: str, file: str) -> None:
        """If it is there."""

    def drop(self, folder: str) -> None:
        """Delete a folder, if no file is in it."""

    def remove(self, folder: str) -> None:
        """Delete a folder with all that is in it, so that `writing` finds none."""

    def writing(self, folder: str, file: str) -> AbstractContextManager[Path]:
        """A local file, empty, to write what is to be in a new one: it is there when this is left without an error.

        Raises `FileNotFoundError` where there is no such folder (any more).
        """

    def reading(self, place: str) -> AbstractContextManager[Path]:
        """A local file with what is at a place; it may be gone afterwards, except for who has mapped it."""


def shared_folders(path: str | os.PathLike[str]) -> SharedFolders:
    """In a directory, or by a URL with `://`."""
    text = os.fspath(path)
    return ObjectFolders(text.rstrip("/")) if "://" in text else LocalFolders(Path(text))


def why_not_shared(url: str) -> str | None:
    """Why processes on several machines cannot meet at a URL; None where they can."""
    protocol = _protocol(url)
    if protocol not in _CREATE_ONCE:
        known = ", ".join(f"{each}://" for each in _CREATE_ONCE)
        return f"{protocol}:// cannot make a file only if it is not there, or is not seen by all; use one of {known}"
    try:
        parts = urlsplit(url)
    except ValueError:  # whose words may show a password
        return "it is no URL: between :// and the next slash stands what no bucket is called"
    if parts.password is not None:
        return "it has a password, which logs would show; give it to fsspec's environment or configuration instead"
    if not parts.netloc:
        return "it names no bucket"
    return None


@dataclass(frozen=True)
class LocalFolders:
    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def prepare(self) -> None:
        make_folder(self.root)
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise PermissionError(f"no right to write to {self.root}")

    def place(self, folder: str, file: str) -> str:
        return str(self.root / folder / file)

    def folders(self) -> list[str]:
        with suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False)]
        return []

    def files(self, folder: str) -> dict[str, float]:
        found = {}
        with suppress(FileNotFoundError):  # somebody else deletes them
            found[ITSELF] = (self.root / folder).lstat().st_mtime
            for entry in os.scandir(self.root / folder):
                with suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return found

    def make(self, folder: str) -> None:
        make_folder(self.root / folder)

    def must_create_once(self, folder: str) -> None:
        """The system does."""

    def read(self, folder: str, file: str, max_bytes: int) -> bytes:
        return read_file(self.root / folder / file, max_bytes)

    def create(self, folder: str, file: str, data: bytes) -> bool:
        make_folder(self.root / folder)
        return create_file(self.root / folder / file, data)

    def touch(self, folder: str, file: str) -> None:
        path = self.root / folder / file
        os.close(open_file(path))
        os.utime(path)

    def delete(self, folder: str, file: str) -> None:
        (self.root / folder / file).unlink(missing_ok=True)

    def drop(self, folder: str) -> None:
        with suppress(OSError):  # something else is in it
            (self.root / folder).rmdir()

    def remove(self, folder: str) -> None:
        gone = self.root / f"{uuid4().hex}{GONE}"  # at once, for who knows its name and is about to make a file there
        with suppress(OSError):  # somebody else deletes it
            (self.root / folder).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @contextmanager
    def writing(self, folder: str, file: str) -> Iterator[Path]:
        path = self.root / folder / file
        os.close(open_file(path))  # with the rights that its directory gives
        yield path

    def reading(self, place: str) -> AbstractContextManager[Path]:
        return nullcontext(Path(place))


@dataclass(frozen=True)
class ObjectFolders:
    url: str

    def __str__(self) -> str:
        return self.url

    def prepare(self) -> None:
        with self._opened() as system:
            system.pipe_file(f"{self.url}/{_MADE}", b"")

    def place(self, folder: str, file: str) -> str:
        return f"{self.url}/{folder}/{file}"

    def folders(self) -> list[str]:
        with self._opened() as system:
            return [_name(each) for each in _listed(system, self.url) if each["type"] == "directory"]

    def files(self, folder: str) -> dict[str, float]:
        with self._opened() as system:
            found = {_name(each): _time(each) for each in _listed(system, f"{self.url}/{folder}")}
        if _MADE in found:
            found[ITSELF] = found.pop(_MADE)
        return found

    def make(self, folder: str) -> None:
        self.touch(folder, _MADE)

    def must_create_once(self, folder: str) -> None:
        if self.create(folder, _MADE, b""):
            raise OSError(
                "it replaces a file that was to be made only if it was not there: this needs a server that heeds "
                f"If-None-Match, and a newer {_CREATE_ONCE.get(_protocol(self.url), 'fsspec')}"
            )

    def read(self, folder: str, file: str, max_bytes: int) -> bytes:
        with self._opened() as system:
            data: bytes = system.cat_file(self.place(folder, file), end=max_bytes + 1)
        if len(data) > max_bytes:
            raise CorruptStore(f"{self.place(folder, file)}: more than {max_bytes:,} bytes; restore it from a copy")
        return data

    def create(self, folder: str, file: str, data: bytes) -> bool:
        place, is_memory = self.place(folder, file), _protocol(self.url) == _MEMORY
        if not is_memory and (why := why_not_shared(self.url)) is not None:
            raise OSError(why)
        with self._opened() as system:
            try:
                with _memory_turn if is_memory else nullcontext():
                    system.pipe_file(place, data, mode="create")
            except OSError:  # servers differ in how they refuse; and an answer that was lost is no failure
                if not system.exists(place):
                    raise
                return False
        return True

    def touch(self, folder: str, file: str) -> None:
        with self._opened() as system:
            system.pipe_file(self.place(folder, file), b"")

    def delete(self, folder: str, file: str) -> None:
        with self._opened() as system, suppress(FileNotFoundError):
            system.rm_file(self.place(folder, _MADE if file == ITSELF else file))

    def drop(self, folder: str) -> None:
        if self.files(folder).keys() == {ITSELF}:
            self.delete(folder, ITSELF)

    def remove(self, folder: str) -> None:
        with self._opened() as system, suppress(FileNotFoundError):
            system.rm(f"{self.url}/{folder}", recursive=True)

    @contextmanager
    def writing(self, folder: str, file: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="mq-") as temporary:
            path = Path(temporary, file)
            yield path
            with self._opened() as system:
                if not system.exists(self.place(folder, _MADE)):
                    raise FileNotFoundError(f"{self.url}/{folder} is not there (any more)")
                system.put_file(str(path), self.place(folder, file))

    @contextmanager
    def reading(self, place: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="mq-") as temporary:
            path = Path(temporary, "file")
            with self._opened() as system:
                system.get_file(place, str(path))
            yield path

    @contextmanager
    def _opened(self) -> Iterator[AbstractFileSystem]:
        """What fsspec has for the URL, always the same in one process. Its listings are never remembered."""
        import fsspec

        try:
            yield fsspec.filesystem(_protocol(self.url), use_listings_cache=False)
        except OSError:
            raise
        except ImportError as error:
            package = _CREATE_ONCE.get(_protocol(self.url), "its package")
            extra = "'pyspark-mq[s3]'" if package == "s3fs" else package
            raise OSError(f"fsspec needs {package} for it: pip install {extra}") from error
        except Exception as error:  # those of each library, which have no root but this
            raise OSError(f"{type(error).__name__}: {error}") from error


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower()


def _listed(system: AbstractFileSystem, url: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = system.ls(url, detail=True)
        return found
    except FileNotFoundError:
        return []


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _time(entry: dict[str, Any]) -> float:
    """Far in the future where it is not told: such a file is never old."""
    time = next((entry[name] for name in _TIMES if entry.get(name) is not None), float("inf"))
    return time.timestamp() if isinstance(time, datetime) else float(time)
