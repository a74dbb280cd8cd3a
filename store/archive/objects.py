"""Where an archive lies: a directory, or objects that fsspec reaches. Each is written whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from store.errors import ArchiveUnavailable, ConfigError
from store.files.atomic import make_folder, sync_directory, write_file

_URL = re.compile(r"(?P<scheme>([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")
_SECRET = re.compile(r"(?<=://)[^/@]*@")  # a user, or a key, and its password
_EXTRAS = {"s3": "s3", "s3a": "s3"}  # scheme to our extra; others have packages of their own
_ATOMIC = {"s3", "gs", "gcs", "abfs", "az", "memory"}  # whose puts are, whatever they do to rename
_WITHOUT_LISTINGS = {"sftp", "ssh"}  # which keep none, and take the word for an option of ssh
_PART, _NEW = ".part", ".new"  # behind the name of what is being written, and of what is about to have it
_GIVE_CREDENTIALS = "give the credentials in the environment, or as storage options"
_TRIES = 3

Found = TypeVar("Found")


class Objects(Protocol):
    """Paths are relative, with slashes. Every verb raises `ArchiveUnavailable` where the system refuses.

    url: of all of it, for errors. ahead: how many reads at once are worth having under way.
    """

    url: str
    ahead: int

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), fewer where it is shorter. Raises `FileNotFoundError`."""

    def read_all(self, path: str) -> bytes:
        """Raises `FileNotFoundError`."""

    def size(self, path: str) -> int:
        """Its bytes. Raises `FileNotFoundError`."""

    def mark(self, path: str) -> Hashable:
        """What is another one when it was written anew; None where it is not there, or nothing tells."""

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Make or replace it, durable when this returns; whoever reads it sees the old content or the new."""

    def delete(self, path: str) -> None:
        """Also where it is gone already."""

    def names(self, path: str) -> list[str]:
        """Of what lies below a path, by name; none where there is nothing."""


def objects_at(url: str, options: Mapping[str, Any]) -> Objects:
    """options: fsspec's storage options. Raises `ArchiveUnavailable`."""
    local = local_path(url)
    if local is not None:
        return Directory(Path(local))
    files, root = _file_system(url, options)
    if not _renames(files):
        return Remote(url, files, root)
    return Renaming(url, files, root, lambda: _file_system(url, {**options, "skip_instance_cache": True})[0])


def local_path(url: str) -> str | None:
    """The absolute path of a directory or a `file:` URL, None for other URLs. Raises `ConfigError`."""
    found = _URL.fullmatch(url)
    if found is None:
        path = url.removeprefix("file:")
        if slashed := _ONE_SLASH.match(path):  # as a path it would be one below the working directory
            raise ConfigError(
                f"{slashed[0]}...: a URL has two slashes there; a folder of that name is ./{slashed[0]}..."
            )
        return os.path.abspath(os.path.expanduser(path))
    if found["scheme"].lower() not in ("file", "local"):
        return None
    host, slash, path = found["rest"].partition("/")
    if host not in ("", "localhost") or not slash:  # likewise
        raise ConfigError(f"{url}: a URL of a local directory begins with file:///")
    return os.path.abspath(slash + path)


def parsed(options: str) -> dict[str, Any]:
    """Storage options, which are given as JSON. Raises `ConfigError`."""
    try:
        found = json.loads(options or "{}")
    except ValueError as error:
        raise ConfigError(f"storage options are no JSON ({error.args[0]}); give an object") from None
    if not isinstance(found, dict):
        raise ConfigError("storage options are a JSON object, name to value")
    return found


def without_secrets(url: str) -> str:
    return _SECRET.sub("", url)


class Directory:
    """An archive in a directory, where the system reads ahead. It is not mapped: a page that is gone, as on a network's
    file system or a bad disk, would end the process."""

    ahead = 0

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def read(self, path: str, begin: int, end: int) -> bytes:
        with _explained(self._root / path):
            fd = os.open(self._root / path, os.O_RDONLY)
            try:
                length = min(end, os.fstat(fd).st_size) - begin  # what says how much is there may be wrong
                return os.pread(fd, length, begin) if length > 0 else b""
            finally:
                os.close(fd)

    def read_all(self, path: str) -> bytes:
        with _explained(self._root / path):
            return (self._root / path).read_bytes()

    def size(self, path: str) -> int:
        with _explained(self._root / path):
            return os.stat(self._root / path).st_size

    def mark(self, path: str) -> Hashable:
        with suppress(FileNotFoundError), _explained(self._root / path), (self._root / path).open("rb") as file:
            there = os.fstat(file.fileno())  # of an open one, for which a network's file system asks anew
            return there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns
        return None

    def write(self, path: str, data: bytes | memoryview) -> None:
        target = self._root / path
        with _explained(target):
            if not target.parent.is_dir():
                there = next(number for number, folder in enumerate(target.parents) if folder.is_dir())
                self._root.mkdir(parents=True, exist_ok=True)
                make_folder(target.parent)
                # The one above the archive always: who made it may have died before this.
                for folder in target.parents[: max(there, len(Path(path).parents)) + 1]:
                    with suppress(PermissionError):  # one may pass through a directory without the right to read it
                        sync_directory(folder)
            write_file(target, data)

    def delete(self, path: str) -> None:
        with _explained(self._root / path):
            (self._root / path).unlink(missing_ok=True)

    def names(self, path: str) -> list[str]:
        with _explained(self._root / path):
            try:
                return sorted(os.listdir(self._root / path))
            except (FileNotFoundError, NotADirectoryError):
                return []


class Remote:
    """An archive on what fsspec reaches, where a put replaces an object at once. What takes too long is tried again."""

    ahead = 6

    def __init__(self, url: str, files: Any, root: str) -> None:
        """files: fsspec's. root: below which it lies there."""
        self.url = without_secrets(url).rstrip("/")
        self._files = files
        self._root = root
        self._secrets = _SECRET.findall(url)

    def read(self, path: str, begin: int, end: int) -> bytes:
        try:
            return bytes(self._try(path, lambda: self._files.cat_file(self._at(path), start=begin, end=end)))
        except ArchiveUnavailable as error:
            is_refused = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL
            if is_refused and self.size(path) <= begin:  # S3 has no range that begins behind the end
                return b""
            raise

    def read_all(self, path: str) -> bytes:
        return bytes(self._try(path, lambda: self._files.cat_file(self._at(path))))

    def size(self, path: str) -> int:
        return int(self._try(path, lambda: self._files.info(self._at(path)))["size"])

    def mark(self, path: str) -> Hashable:
        with suppress(FileNotFoundError):
            there = self._try(path, lambda: self._files.info(self._at(path)))
            return str(there.get("ETag") or there.get("etag") or "") or None
        return None

    def write(self, path: str, data: bytes | memoryview) -> None:
        whole = bytes(data)
        try:
            self._try(path, lambda: self._files.pipe_file(self._at(path), whole))
        except FileNotFoundError as error:
            raise ArchiveUnavailable(f"{self.url}: there is no such place to write to; create the bucket") from error

    def delete(self, path: str) -> None:
        try:
            self._try(path, lambda: self._files.rm_file(self._at(path)))
        except FileNotFoundError:
            return

    def names(self, path: str) -> list[str]:
        try:
            self._files.invalidate_cache(self._at(path))
            listed = self._try(path, lambda: self._files.ls(self._at(path), detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({name.rstrip("/").rpartition("/")[2] for name in listed} - {""})

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _try(self, path: str, verb: Callable[[], Any]) -> Any:
        return _tried(f"{self.url}/{path}".rstrip("/"), self._secrets, verb)


class Renaming(Remote):
    """The same where a file that is written is seen, and cut off when its writer is killed: sftp, ftp, smb, hdfs.

    So it is written under another name. Not all of these replace what has the new name, so the old content goes first;
    until the new one has its name whoever reads finds it under the one that it has meanwhile. One request at a time:
    that is all that some of them understand.
    """

    ahead = 1

    def __init__(self, url: str, files: Any, root: str, connected: Callable[[], Any]) -> None:
        """connected: the same files, over a connection of their own."""
        super().__init__(url, files, root)
        self._connected = connected
        self._turn = threading.Lock()

    def read(self, path: str, begin: int, end: int) -> bytes:
        read = super().read
        return self._found(path, lambda at: read(at, begin, end))

    def read_all(self, path: str) -> bytes:
        return self._found(path, super().read_all)

    def size(self, path: str) -> int:
        return self._found(path, super().size)

    def write(self, path: str, data: bytes | memoryview) -> None:
        part, new = path + _PART, path + _NEW
        self._make_folder(path)
        super().write(part, data)
        if self._is_there(path):
            self._remove(new)
            self._move(part, new)
            self._remove(path)
            self._move(new, path)
        else:  # who was killed above left what counts under the other name: until this is there
            self._move(part, path)
            self._remove(new)

    def delete(self, path: str) -> None:
        for name in (path, path + _NEW, path + _PART):
            self._remove(name)

    def names(self, path: str) -> list[str]:
        return sorted({name.removesuffix(_NEW) for name in super().names(path) if not name.endswith(_PART)})

    def _found(self, path: str, look: Callable[[str], Found]) -> Found:
        for name in (path, path + _NEW) * _TRIES:  # what is written again and again may outrun who looks
            with suppress(FileNotFoundError):
                return look(name)
        return look(path)  # it got its name just now

    def _is_there(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            return super().size(path) >= 0
        return False

    def _remove(self, path: str) -> None:
        if self._is_there(path):  # ftp does not say why it cannot delete
            super().delete(path)

    def _try(self, path: str, verb: Callable[[], Any]) -> Any:
        with self._turn:
            try:
                return super()._try(path, verb)
            except ArchiveUnavailable:  # as where the server closed the connection, which was idle: it stays closed
                self._files = self._connected()
                return super()._try(path, verb)

    def _move(self, path: str, to: str) -> None:
        try:
            self._try(to, lambda: self._files.mv(self._at(path), self._at(to)))
        except FileNotFoundError as error:
            raise ArchiveUnavailable(f"{self.url}/{path}: it is gone; does another process archive there?") from error

    def _make_folder(self, path: str) -> None:
        folder = self._at(path).rpartition("/")[0]
        self._try(path, lambda: self._files.makedirs(folder, exist_ok=True))


def _renames(files: Any) -> bool:
    """Whether a file system renames: one that copies instead is an object store as a rule, whose puts are atomic."""
    from fsspec import AbstractFileSystem

    while isinstance(inner := getattr(files, "fs", None), AbstractFileSystem):
        files = inner
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    return not protocols & _ATOMIC and type(files).mv is not AbstractFileSystem.mv


def _file_system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec  # some 40 ms, for those only who need it

    scheme = url.partition("://")[0].lower()
    shown = without_secrets(url)
    listings = {} if scheme in _WITHOUT_LISTINGS else {"use_listings_cache": False}

    def made() -> tuple[Any, str]:
        try:
            files, root = fsspec.url_to_fs(url, **{**listings, **options})  # some connect at once
            return files, root
        except ImportError as error:
            extra = f"pip install 'pyspark-mq[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else f"install it: {error}"
            raise ArchiveUnavailable(f"{shown}: what reads {scheme}:// is not installed; {extra}") from error
        except (ValueError, FileNotFoundError) as error:
            raise ArchiveUnavailable(f"{shown}: no file system that fsspec knows ({type(error).__name__})") from error

    files, root = _tried(shown, _SECRET.findall(url), made)
    if "CachingFileSystem" in {kind.__name__ for kind in type(files).__mro__}:
        raise ArchiveUnavailable(f"{shown}: what keeps copies may give an old one; name the file system behind it")
    return files, root.rstrip("/")


def _tried(where: str, secrets: Sequence[str], verb: Callable[[], Found]) -> Found:
    """What `verb` gives; what takes too long is tried again. Raises `FileNotFoundError`, `ArchiveUnavailable`."""
    left = _TRIES
    with _explained(where):
        while True:
            left -= 1
            try:
                return verb()
            except OSError as error:
                if not left or not _is_late(error):
                    raise
            except ArchiveUnavailable:
                raise
            except Exception as error:  # whatever the library behind a file system raises
                said = f"{where}: {type(error).__name__}: {error}"
                if "Credentials" in type(error).__name__:  # as botocore and Google name what they lack
                    said += f"; {_GIVE_CREDENTIALS}"
                if any(secret in said for secret in secrets):
                    raise ArchiveUnavailable(f"{where}: {type(error).__name__}, of an URL with a secret") from None
                raise ArchiveUnavailable(said) from error


@contextmanager
def _explained(where: object) -> Iterator[None]:
    """Let what is missing pass as `FileNotFoundError`; all else that the system says becomes `ArchiveUnavailable`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise ArchiveUnavailable(f"{where}: no permission; {_GIVE_CREDENTIALS}") from error
    except OSError as error:
        if _is_late(error):
            raise ArchiveUnavailable(f"{where}: no answer in time, {_TRIES} times; try again") from error
        raise ArchiveUnavailable(f"{where}: {error.strerror or type(error).__name__}") from error


def _is_late(error: OSError) -> bool:
    """Whether nobody answered in time; those of botocore are known by their names."""
    return isinstance(error, TimeoutError | ConnectionError) or "Timeout" in type(error).__name__


def joined(parts: Sequence[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)
