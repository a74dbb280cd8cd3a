"""`Objects`: files in a directory or on an object store. Each is written as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from store.objects.directory import LocalObjects
from store.objects.urls import local_path


class ByteReader(Protocol):
    """url: of all objects, for errors. ahead: how many reads are worth having under way at once."""

    url: str
    ahead: int

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end), fewer if the object is shorter.

        Raises `FileNotFoundError`, `ObjectsUnavailable`.
        """


class Objects(ByteReader, Protocol):
    """Paths are relative, with slashes. A folder exists while something is in it.

    Every method raises `ObjectsUnavailable` if the file system refuses, or does not answer.
    """

    def read_all(self, path: str) -> bytes:
        """Raises `FileNotFoundError`."""

    def size(self, path: str) -> int:
        """Return the length in bytes. Raises `FileNotFoundError`."""

    def mark(self, path: str) -> Hashable:
        """Return a value that changes when the object is written; None if it is missing, or if that cannot be told."""

    def names(self, path: str) -> dict[str, float | None]:
        """Return what lies directly in a folder: when each object was written (s since 1970), None for a folder.

        In the order of the names; empty if there is no such folder.
        """

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Make or replace an object. It is durable then, and readers see the old content or the new one."""

    def create(self, path: str, data: bytes) -> bool:
        """Make an object unless it exists, and return whether this call made it. It is durable then."""

    def delete(self, path: str) -> None:
        """Delete an object, if it exists."""

    def delete_all(self, path: str) -> None:
        """Delete a folder with everything in it."""

    def writing(self, path: str) -> AbstractContextManager[Path]:
        """Give an empty local file, which becomes the object if the context ends without an error.

        The object need not be durable then. In a directory, readers see it while it is written.
        """

    def reading(self, path: str) -> AbstractContextManager[Path]:
        """Give a local file with the object's content, for the context. Raises `FileNotFoundError`."""


def objects_at(url: str, options: Mapping[str, Any]) -> Objects:
    """Return the objects below a directory or a URL. Raises `ConfigError`, `ObjectsUnavailable`.

    options: fsspec's storage options.
    """
    local = local_path(url)
    if local is not None:
        return LocalObjects(Path(local))
    from store.objects.remote import remote_at  # imports tenacity and fsspec: 100 ms, for remote objects only

    return remote_at(url, options)
