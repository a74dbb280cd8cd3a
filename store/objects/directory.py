"""`LocalObjects`: objects in a local or mounted directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from store.files.atomic import create_file, make_folder, open_file, sync_directory, write_file
from store.objects.refusals import translated


class LocalObjects:
    """`Objects` in a directory. The system reads ahead. Files are not mapped: a page that cannot be read, as on a
    network's file system or a bad disk, would kill the process."""

    ahead = 0

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def read(self, path: str, begin: int, end: int) -> bytes:
        with self._translated(path) as file:
            fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # of a pipe, open would wait
            try:
                length = min(end, os.fstat(fd).st_size) - begin
                return os.pread(fd, length, begin) if length > 0 else b""
            finally:
                os.close(fd)

    def read_all(self, path: str) -> bytes:
        with self._translated(path) as file:
            return file.read_bytes()

    def size(self, path: str) -> int:
        with self._translated(path) as file:
            return os.stat(file).st_size

    def mark(self, path: str) -> Hashable:
        with suppress(FileNotFoundError), self._translated(path) as target, target.open("rb") as file:
            status = os.fstat(file.fileno())  # NFS asks its server anew for an open file
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
                with suppress(FileNotFoundError):  # another process has just deleted it
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
            with suppress(OSError):  # something else is in it
                for folder in file.parents[: len(Path(path).parents) - 1]:
                    folder.rmdir()

    def delete_all(self, path: str) -> None:
        with suppress(FileNotFoundError), self._translated(path) as folder:
            shutil.rmtree(folder)

    @contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        with self._translated(path) as file:
            make_folder(file.parent)
            os.close(open_file(file, os.O_TRUNC))
        try:
            yield file
        except BaseException:
            self.delete(path)
            raise

    def reading(self, path: str) -> AbstractContextManager[Path]:
        return nullcontext(self._root / path)

    @contextmanager
    def _translated(self, path: str) -> Iterator[Path]:
        with translated(self._root / path):
            yield self._root / path

    def _make_folder_of(self, path: str) -> None:
        """Make the folder of a path and those above it, and sync their names. The folder above the root is always
        synced: the process that made the root may have died before it did that."""
        above = (self._root / path).parents
        if above[0].is_dir():
            return
        existing = next(number for number, folder in enumerate(above) if folder.is_dir())
        make_folder(above[0])
        for folder in above[: max(existing, len(Path(path).parents)) + 1]:
            sync_directory(folder, if_readable=True)
