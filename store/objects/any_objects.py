"""`Objects`: files in a directory or on an object store."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from store.disk.atomic import create_file, make_folder, open_file, sync_directory, write_file
from store.model.errors import ObjectsUnavailable
from store.objects.urls import local_path, must_be_plain


class LocalObjects:
    """`Objects` in a directory.

    Files are not memory-mapped, because an I/O error on a mapped page, as on a network file system, kills the process.
    """

    ahead = 0  # the system prefetches

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def read(self, path: str, begin: int, end: int) -> bytes:
        with self._translated(path) as file, _regular(file) as opened:
            length = min(end, os.fstat(opened.fileno()).st_size) - begin
            return os.pread(opened.fileno(), length, begin) if length > 0 else b""

    def read_all(self, path: str) -> bytes:
        with self._translated(path) as file, _regular(file) as opened:
            return opened.read()

    def size(self, path: str) -> int:
        with self._translated(path) as file, _regular(file) as opened:
            return os.fstat(opened.fileno()).st_size

    def mark(self, path: str) -> Hashable:
        with suppress(FileNotFoundError), self._translated(path) as file, _regular(file) as opened:
            status = os.fstat(opened.fileno())  # an NFS client revalidates its cache when a file is opened
            return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return None

    def names(self, path: str) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        with self._translated(path) as folder:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                return found
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted concurrently
                    is_folder = entry.is_dir(follow_symlinks=False)
                    found[entry.name] = None if is_folder else entry.stat(follow_symlinks=False).st_mtime
        return found

    def write(self, path: str, data: bytes | memoryview) -> None:
        with self._translated(path) as file:
            self._make_folder_of(path)
            write_file(file, data)

    def create(self, path: str, data: bytes) -> bool:
        with self._translated(path) as file:
            self._make_folder_of(path)
            return create_file(file, data)

    def delete(self, path: str) -> None:
        with self._translated(path) as file:
            file.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for folder in file.parents[: len(Path(path).parents) - 1]:
                    folder.rmdir()

    def delete_all(self, path: str) -> None:
        with suppress(FileNotFoundError), self._translated(path) as folder:
            shutil.rmtree(folder)

    @contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        with self._translated(path) as file:
            make_folder(file.parent)
            fd = open_file(file, os.O_TRUNC)
            _must_be_regular(fd)
            os.close(fd)
        try:
            yield file
        except BaseException:
            self.delete(path)
            raise

    @contextmanager
    def reading(self, path: str) -> Iterator[Path]:
        with self._translated(path) as file, _regular(file):
            pass
        yield file

    @contextmanager
    def _translated(self, path: str) -> Iterator[Path]:
        with translated(self._root / path):
            yield self._root / path

    def _make_folder_of(self, path: str) -> None:
        above = (self._root / path).parents
        if above[0].is_dir():
            return
        existing = next(number for number, folder in enumerate(above) if folder.is_dir())
        make_folder(above[0])
        # Always sync the root's parent: the process that created the root may have died before its own sync.
        for folder in above[: max(existing, len(Path(path).parents)) + 1]:
            sync_directory(folder, if_readable=True)


class ByteReader(Protocol):
    """Reads bytes of objects. url: for error messages. ahead: how many reads a caller should send in advance."""

    url: str
    ahead: int

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of an object, fewer if the object is shorter.

        Raises `FileNotFoundError`, `ObjectsUnavailable`.
        """


class Objects(ByteReader, Protocol):
    """A tree of objects. Paths are relative, with slashes. A folder exists while it contains an object.

    Every method raises `ObjectsUnavailable` if the file system denies access, fails, or does not answer.
    """

    def read_all(self, path: str) -> bytes:
        """Return the content of an object. Raises `FileNotFoundError`."""

    def size(self, path: str) -> int:
        """Return the length in bytes. Raises `FileNotFoundError`."""

    def mark(self, path: str) -> Hashable:
        """Return a value that changes with the object, such as an ETag; None if there is none."""

    def names(self, path: str) -> dict[str, float | None]:
        """Return the names in a folder, sorted, with modification times (s since 1970), None for a subfolder.

        Empty if the folder does not exist.
        """

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace an object, durably. Readers see the old content or the new one."""

    def create(self, path: str, data: bytes) -> bool:
        """Create an object durably, unless it exists. Return whether this call created it."""

    def delete(self, path: str) -> None:
        """Delete an object, if it exists."""

    def delete_all(self, path: str) -> None:
        """Delete a folder with its content, if it exists."""

    def writing(self, path: str) -> AbstractContextManager[Path]:
        """Yield an empty local file, which becomes the object if the context exits without an error.

        The object may not be durable. In a directory, readers see the incomplete file.
        """

    def reading(self, path: str) -> AbstractContextManager[Path]:
        """Yield a local copy of an object, which can be read until the context exits. Raises `FileNotFoundError`."""


def objects_at(url: str, options: Mapping[str, Any]) -> Objects:
    """Return the objects at a URL. options: fsspec's storage options. Raises `ConfigError`, `ObjectsUnavailable`."""
    local = local_path(url)
    if local is not None:
        return LocalObjects(Path(local))
    must_be_plain(url)
    from store.objects.remote import remote_at  # its imports take 100 ms

    return remote_at(url, options)


_REFUSALS = (errno.EACCES, errno.EPERM)
_GIVE_CREDENTIALS = "give the credentials in the environment, or as storage options"


@contextmanager
def translated(where: object, secrets: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors into `ObjectsUnavailable`, except `FileNotFoundError`.

    where: path or URL for messages. secrets: texts that no error may show. An error that contains one is replaced,
    without its cause.
    """
    try:
        yield
    except ObjectsUnavailable:
        raise
    except Exception as error:  # fsspec's libraries have error classes without a common base
        is_secret = any(secret in text for text in _texts(error) for secret in secrets)
        if isinstance(error, FileNotFoundError):
            if not is_secret:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(where)) from None
        reason = _reason(error, is_secret)
        raise ObjectsUnavailable(f"{where}: {reason}") from (None if is_secret else error)


def _reason(error: Exception, is_secret: bool) -> str:
    kind = type(error).__name__
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in _REFUSALS):
        return f"no permission. Change the permissions; or, for a URL, {_GIVE_CREDENTIALS}"
    if is_timeout(error):
        return "no answer in time; try again"
    if is_secret:
        return (
            f"{kind}. Its text has a secret of the URL and is not shown; to see it, {_GIVE_CREDENTIALS}, not in the URL"
        )
    if isinstance(error, OSError) and error.errno:
        return error.strerror or os.strerror(error.errno)
    said = f"{kind}: {error}" if str(error) else kind
    return f"{said}; {_GIVE_CREDENTIALS}" if "Credentials" in kind else said  # botocore's and Google's names


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def is_timeout(error: BaseException) -> bool:
    """Return whether an error is a timeout or a lost connection."""
    # botocore's timeouts have only the name in common
    return isinstance(error, TimeoutError | ConnectionError) or (
        isinstance(error, OSError) and "Timeout" in type(error).__name__
    )


def _regular(file: Path) -> FileIO:
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    # a pipe or a device would block
    _must_be_regular(fd)
    return FileIO(fd)


def _must_be_regular(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "a pipe or a device, where a file belongs"
        raise OSError(errno.EINVAL, what)
