"""Objects that fsspec reaches. It takes credentials from the environment, its configuration, or the machine's role."""

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

from store.errors import ObjectsUnavailable
from store.objects.refusals import is_timeout, translated
from store.objects.urls import CREATES_ONCE, scheme_of, secrets_of, without_secrets

_MEMORY = "memory"
_ATOMIC = {"s3", "gs", "gcs", "abfs", "az", _MEMORY}  # their puts are atomic, whether or not they rename
_MODIFIED = ("LastModified", "mtime", "last_modified", "created")  # as file systems name it
_retrying = Retrying(
    retry=retry_if_exception(is_timeout),
    stop=stop_after_attempt(3),
    wait=wait_random_exponential(0.1, max=1),
    reraise=True,
)
_memory_turn = threading.Lock()  # fsspec's memory looks first, and writes then

Result = TypeVar("Result")


def remote_at(url: str, options: Mapping[str, Any]) -> Remote:
    """Return the objects below a URL. Raises `ObjectsUnavailable`."""
    shown, scheme = without_secrets(url), scheme_of(url.rpartition("::")[2])
    with translated(shown, secrets_of(url)):
        try:
            kind = fsspec.get_filesystem_class(scheme)
            if kind.mv is not AbstractFileSystem.mv and not _protocols(kind) & _ATOMIC:
                raise ObjectsUnavailable(
                    f"{shown}: {scheme}:// shows files while they are written; use an object store, or mount the file "
                    "system and name the directory"
                )
            files, root = _retrying(fsspec.url_to_fs, url, **{"use_listings_cache": False, **options})
        except ImportError as error:
            package = CREATES_ONCE.get(scheme)
            extra = "'pyspark-mq[s3]'" if package == "s3fs" else package
            how = f"install it: {error}" if extra is None else f"pip install {extra}"
            raise ObjectsUnavailable(f"{shown}: what reads {scheme}:// is not installed; {how}") from error
        except (ValueError, FileNotFoundError) as error:
            raise ObjectsUnavailable(f"{shown}: no file system that fsspec knows ({type(error).__name__})") from error
    if "CachingFileSystem" in {kind.__name__ for kind in type(files).__mro__}:
        raise ObjectsUnavailable(f"{shown}: a cache may give an old copy; name the file system behind it")
    return Remote(url, files, root.rstrip("/"))


class Remote:
    """`Objects` where a put replaces an object at once."""

    ahead = 6

    def __init__(self, url: str, files: Any, root: str) -> None:
        """files: fsspec's file system. root: the path of the objects there."""
        self.url = without_secrets(url).rstrip("/")
        self._files = files
        self._root = root
        self._secrets = secrets_of(url)

    def read(self, path: str, begin: int, end: int) -> bytes:
        try:
            return bytes(self._try(path, lambda at: self._files.cat_file(at, start=begin, end=end)))
        except ObjectsUnavailable as error:
            is_refused = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL
            if is_refused and self.size(path) <= begin:  # S3 has no range that begins behind the end
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
            known = ", ".join(f"{each}://" for each in CREATES_ONCE)
            raise ObjectsUnavailable(f"{self.url}: it cannot make a file only if it is missing; use one of {known}")
        try:
            with _memory_turn if _MEMORY in protocols else nullcontext():
                self._put(path, lambda at: self._files.pipe_file(at, data, mode="create"))
        except ObjectsUnavailable:  # servers differ in how they refuse, and the answer of a success may be lost
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
            raise ObjectsUnavailable(f"{self.url}: it does not exist; create the bucket") from error

    def _try(self, path: str, verb: Callable[[str], Result]) -> Result:
        """Return what `verb` gives for the path on the file system, which is asked again if no answer comes in time."""
        with translated(f"{self.url}/{path}".rstrip("/"), self._secrets):
            return _retrying(verb, f"{self._root}/{path}" if path else self._root)


def _protocols(kind: Any) -> set[str]:
    protocol: str | Sequence[str] = kind.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _modified(entry: Mapping[str, Any]) -> float:
    """When an object was written; far in the future if that is not told, so that it is never old."""
    time = next((entry[name] for name in _MODIFIED if entry.get(name) is not None), float("inf"))
    return time.timestamp() if isinstance(time, datetime) else float(time)
