"""Atomic writes of small files: after a crash, a file has its old or its new content.

A write syncs a temporary file, renames it, and syncs the directory. A killed process leaves a temporary file, which no
reader opens.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from store.model.errors import CorruptStore, raise_translated, system_errors

_FILE_RIGHTS = 0o664
_FOLDER_RIGHTS = stat.S_ISGID | 0o775


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a small file.

    Raises `FileMissing`, and `CorruptStore` for more than `max_bytes`, or for a pipe or device, which could block.
    """
    with system_errors(path), open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CorruptStore(f"{path}: this is a pipe or a device, not a file. Move it out of the store")
        if status.st_size > max_bytes:
            raise CorruptStore(
                f"{path}: {status.st_size:,} bytes, more than the allowed {max_bytes:,}. Restore the file from a copy, "
                "or correct it"
            )
        return file.read(status.st_size)  # with a size, read() allocates no more


def status_of(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise_translated(path, error)
        raise


def write_file(path: Path, data: bytes | memoryview, *, backup: Path | None = None) -> None:
    """Create or replace `path`, durably.

    backup: path to which the old file is renamed, unless a crash left it empty.
    """
    with system_errors(path), _synced_temporary(path, data) as temporary:
        if backup is not None and path.exists() and path.stat().st_size:
            path.replace(backup)
        temporary.replace(path)


def replace_file(path: Path, data: bytes) -> None:
    """Create or replace a file as `write_file`, but without a sync."""
    temporary = path.with_name(f"{path.name}.tmp")
    with system_errors(path):
        with open(_open(temporary, os.O_RDWR | os.O_TRUNC), "wb") as file:
            file.write(data)
        temporary.replace(path)


def create_file(path: Path, data: bytes) -> bool:
    """Create `path` durably, unless it exists. Return whether this call created it."""
    with system_errors(path), _synced_temporary(path, data) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, this never replaces
        except FileExistsError:
            return False
        return True


def open_file(path: Path, flags: int = 0) -> int:
    """Open a file for reading and writing. A missing file is created empty, with the rights of `_adopt_permissions`."""
    with system_errors(path):
        return _open(path, flags | os.O_RDWR)


def _open(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_RIGHTS & path.parent.stat().st_mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags)
    try:
        _adopt_permissions(fd, path.parent, _FILE_RIGHTS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def make_folder(path: Path) -> None:
    with system_errors(path):
        if path.is_dir():
            return
        make_folder(path.parent)
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
            return  # by another process
        fd = os.open(path, os.O_RDONLY)
        try:
            _adopt_permissions(fd, path.parent, _FOLDER_RIGHTS)
        finally:
            os.close(fd)


def make_root(path: Path) -> None:
    """Create a store's root and its missing parents, durably, with default owner and mode."""
    with system_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent, if_readable=True)


def _adopt_permissions(fd: int, directory: Path, rights: int) -> None:
    """Give a new file or folder the group of its directory, and the directory's mode limited to `rights`.

    So all users in that group can write the store, whatever their umask, and other users have no more access than to
    the directory. Root also sets the directory's owner, who could not write otherwise. If the process is not in the
    directory's group, the file's own group gets the permissions of others.
    """
    around, made = directory.stat(), os.fstat(fd)
    mode = around.st_mode & rights
    owner = around.st_uid if os.geteuid() == 0 else made.st_uid
    if (made.st_uid, made.st_gid) != (owner, around.st_gid):
        try:
            os.fchown(fd, owner, around.st_gid)
        except PermissionError:
            mode = mode & ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def make_directory(path: Path) -> None:
    make_folder(path)
    sync_directory(path.parent)


def write_at(fd: int, data: bytes | memoryview, position: int) -> None:
    """Write all bytes at a position. One `pwrite` may write only a part of them."""
    done = os.pwrite(fd, data, position)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], position + done)


def sync_directory(directory: Path, *, if_readable: bool = False) -> None:
    """Sync a directory. if_readable: do nothing if this user may not read it, such as a parent of the store."""
    if if_readable and not os.access(directory, os.R_OK):
        return
    with system_errors(directory):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _synced_temporary(path: Path, data: bytes | memoryview) -> Iterator[Path]:
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        with open(_open(temporary, os.O_RDWR | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except OSError as error:
        error.filename = str(path)  # missing, or of the temporary file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
