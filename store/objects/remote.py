"""`Objects` on remote file systems, through fsspec."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import fsspec
from fsspec import AbstractFileSystem
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from store.model.errors import ObjectsUnavailable
from store.objects.any_objects import is_timeout, translated
from store.objects.urls import CREATES_ONCE, scheme_of, secrets_of, without_secrets

_MEMORY = "memory"
_ATOMIC = {"s3", "gs", "gcs", "abfs", "az", _MEMORY}  # protocols with atomic puts
_NO_LISTINGS_CACHE = {"sftp", "ssh"}  # they would pass the option on to ssh
_MODIFIED = ("LastModified", "mtime", "last_modified", "created")  # file systems differ
_PART, _NEW = ".part", ".new"
_LOOKS = 3
_retrying = Retrying(
    retry=retry_if_exception(is_timeout),
    stop=stop_after_attempt(3),
    wait=wait_random_exponential(0.1, max=1),
    reraise=True,
)
_memory_turn = threading.Lock()  # fsspec's memory file system checks and creates in two steps

Result = TypeVar("Result")


def remote_at(url: str, options: Mapping[str, Any]) -> Remote:
    """Raises `ObjectsUnavailable`."""
    files, root = _connected(url, options)
    if not _renames(files):
        return Remote(url, files, root)
    return Renaming(url, files, root, lambda: _connected(url, {**options, "skip_instance_cache": True})[0])


class Remote:
    """`Objects` on a file system whose puts are atomic."""

    ahead = 6

    def __init__(self, url: str, files: Any, root: str) -> None:
        """files: fsspec's file system. root: the path in it."""
        self.url = without_secrets(url).rstrip("/")
        self._files = files
        self._root = root
        self._secrets = secrets_of(url)

    def read(self, path: str, begin: int, end: int) -> bytes:
        try:
            return bytes(self._try(path, lambda at: self._files.cat_file(at, start=begin, end=end)))
        except ObjectsUnavailable as error:
            is_refused = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL
            if is_refused and self.size(path) <= begin:  # S3 rejects a range that begins after the end
                return b""
            raise

    def read_all(self, path: str) -> bytes:
        return bytes(self._try(path, lambda at: self._files.cat_file(at)))

    def size(self, path: str) -> int:
        return int(self._try(path, lambda at: self._files.info(at))["size"])

    def mark(self, path: str) -> Hashable:
        with suppress(FileNotFoundError):
            info = self._try(path, lambda at: self._files.info(at))
            return str(info.get("ETag") or info.get("etag") or "") or None
        return None

    def names(self, path: str) -> dict[str, float | None]:
        def listed(at: str) -> list[dict[str, Any]]:
            self._files.invalidate_cache(at)
            found: list[dict[str, Any]] = self._files.ls(at, detail=True)
            return found

        found = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in self._try(path, listed):
                name = entry["name"].rstrip("/").rpartition("/")[2]
                found[name] = None if entry["type"] == "directory" else _modified(entry)
        found.pop("", None)
        return dict(sorted(found.items()))

    def write(self, path: str, data: bytes | memoryview) -> None:
        self._put(path, lambda at: self._files.pipe_file(at, bytes(data)))

    def create(self, path: str, data: bytes) -> bool:
        protocols = _protocols(self._files)
        if not protocols & {*CREATES_ONCE, _MEMORY}:
            schemes = ", ".join(f"{each}://" for each in CREATES_ONCE)
            raise ObjectsUnavailable(
                f'{self.url}: this file system cannot create a file atomically ("create unless it exists"), which is '
                f"needed here. Use a directory, or a URL that begins with one of {schemes}"
            )
        try:
            with _memory_turn if _MEMORY in protocols else nullcontext():
                self._put(path, lambda at: self._files.pipe_file(at, data, mode="create"))
        # The object exists (servers raise different errors), or this call created it and the answer was lost.
        except ObjectsUnavailable:
            if not self._exists(path):
                raise
            return False
        return True

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._try(path, lambda at: self._files.rm_file(at))

    def delete_all(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._try(path, lambda at: self._files.rm(at, recursive=True))

    @contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="mq-") as folder:
            local = Path(folder, "object")
            local.touch()
            yield local
            self._put(path, lambda at: self._files.put_file(str(local), at))

    @contextmanager
    def reading(self, path: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="mq-") as folder:
            local = Path(folder, "object")
            self._try(path, lambda at: self._files.get_file(at, str(local)))
            yield local

    def _exists(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            return self.size(path) >= 0
        return False

    def _put(self, path: str, verb: Callable[[str], object]) -> None:
        try:
            self._try(path, verb)
        except FileNotFoundError as error:
            raise ObjectsUnavailable(f"{self.url}: the bucket does not exist. Create it, or correct the URL") from error

    def _try(self, path: str, verb: Callable[[str], Result]) -> Result:
        with translated(f"{self.url}/{path}".rstrip("/"), self._secrets):
            return _retrying(verb, f"{self._root}/{path}" if path else self._root)


class Renaming(Remote):
    """`Objects` on file systems without atomic puts, such as sftp, ftp, smb and hdfs.

    Readers see a file while it is written, and a killed writer leaves it incomplete. So a write takes these steps:
    write `NAME.part`, rename it to `NAME.new`, delete `NAME` (some file systems cannot rename to an existing name),
    rename `NAME.new` to `NAME`. Without `NAME`, readers read `NAME.new`.

    Requests are sent one at a time, because some connections do not support more.
    """

    ahead = 1

    def __init__(self, url: str, files: Any, root: str, connected: Callable[[], Any]) -> None:
        super().__init__(url, files, root)
        self._connected = connected
        self._turn = threading.Lock()

    def read(self, path: str, begin: int, end: int) -> bytes:
        read = super().read
        return self._found(path, lambda name: read(name, begin, end))

    def read_all(self, path: str) -> bytes:
        return self._found(path, super().read_all)

    def size(self, path: str) -> int:
        return self._found(path, super().size)

    def names(self, path: str) -> dict[str, float | None]:
        listed = super().names(path).items()
        return {name.removesuffix(_NEW): time for name, time in listed if not name.endswith(_PART)}

    def write(self, path: str, data: bytes | memoryview) -> None:
        part, new = path + _PART, path + _NEW
        self._make_folder_of(path)
        super().write(part, data)
        if self._exists(path):
            self._remove(new)
            self._move(part, new)
            self._remove(path)
            self._move(new, path)
        else:  # a killed writer may have left the only content in NAME.new, so delete that last
            self._move(part, path)
            self._remove(new)

    def delete(self, path: str) -> None:
        for name in (path, path + _NEW, path + _PART):
            self._remove(name)

    def _found(self, path: str, look: Callable[[str], Result]) -> Result:
        for name in (path, path + _NEW) * _LOOKS:  # a writer may rename the file between two reads
            with suppress(FileNotFoundError):
                return look(name)
        return look(path)

    def _exists(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            return super().size(path) >= 0
        return False

    def _remove(self, path: str) -> None:
        if self._exists(path):  # ftp does not tell a missing file from other errors
            super().delete(path)

    def _try(self, path: str, verb: Callable[[str], Result]) -> Result:
        with self._turn:
            try:
                return super()._try(path, verb)
            except ObjectsUnavailable:  # maybe the server closed the connection
                self._files = self._connected()
                return super()._try(path, verb)

    def _move(self, path: str, to: str) -> None:
        try:
            self._try(path, lambda at: self._files.mv(at, f"{self._root}/{to}"))
        except FileNotFoundError as error:
            raise ObjectsUnavailable(
                f"{self.url}/{path}: this object is missing. Check that no other process writes here"
            ) from error

    def _make_folder_of(self, path: str) -> None:
        self._try(path.rpartition("/")[0], lambda at: self._files.makedirs(at, exist_ok=True))


def _connected(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    scheme, shown = scheme_of(url), without_secrets(url)
    listings = {} if scheme in _NO_LISTINGS_CACHE else {"use_listings_cache": False}
    with translated(shown, secrets_of(url)):
        try:
            files, root = _retrying(fsspec.url_to_fs, url, **{**listings, **options})  # some connect here, so retry
        except ImportError as error:
            package = CREATES_ONCE.get(scheme)
            extra = "'pyspark-mq[s3]'" if package == "s3fs" else package
            how = str(error) if extra is None else f"Install it: pip install {extra}"
            raise ObjectsUnavailable(f"{shown}: the package for {scheme}:// is not installed. {how}") from error
        except (ValueError, FileNotFoundError) as error:
            raise ObjectsUnavailable(
                f"{shown}: fsspec cannot open this URL ({type(error).__name__}). Check the URL and the storage options"
            ) from error
    if "CachingFileSystem" in {kind.__name__ for kind in type(files).__mro__}:
        raise ObjectsUnavailable(
            f"{shown}: a cache may return an old copy of an object. Remove the cache from the URL, as in s3://bucket/mq"
        )
    return files, root.rstrip("/")


def _renames(files: Any) -> bool:
    # a file system without its own rename is usually an object store with atomic puts
    return not _protocols(files) & _ATOMIC and type(_innermost(files)).mv is not AbstractFileSystem.mv


def _protocols(files: Any) -> set[str]:
    protocol: str | Sequence[str] = _innermost(files).protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _innermost(files: Any) -> Any:
    while isinstance(inner := getattr(files, "fs", None), AbstractFileSystem):
        files = inner
    return files


def _modified(entry: Mapping[str, Any]) -> float:
    """Return a time in s since 1970; infinity if unknown, so that the object never counts as old."""
    time = next((entry[name] for name in _MODIFIED if entry.get(name) is not None), float("inf"))
    return time.timestamp() if isinstance(time, datetime) else float(time)
