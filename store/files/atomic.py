"""Small files that are whole whenever they are there: after a crash of process or machine, the old content or the new.

The content goes to the device under another name, beside the file, and takes the file's name then; the directory goes
to the device last. A process that is killed meanwhile leaves the other name behind; nothing reads it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from store.model.errors import CorruptStore, system_errors

# What the owner, the group and others may at most do: others never write.
_FILE_RIGHTS = 0o664
_FOLDER_RIGHTS = stat.S_ISGID | 0o775


def read_file(path: Path, max_bytes: int) -> bytes:
    """What a small file holds.

    Raises `FileMissing`, and `CorruptStore` for one of more than `max_bytes`, or for a pipe or a device, which might be
    waited for, or read, without end.
    """
    with system_errors(path), open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CorruptStore(f"{path}: a pipe or a device, where a file belongs; move it out of the store")
        if status.st_size > max_bytes:
            raise CorruptStore(f"{path}: {status.st_size:,} bytes, more than {max_bytes:,}; restore it from a copy")
        return file.read(status.st_size)  # which is asked for at once: address space may be limited


def status_of(path: str | Path) -> os.stat_result | None:
    """The status of a file or folder; None without one."""
    try:
        with system_errors(path):
            return os.stat(path)
    except FileNotFoundError:
        return None


def write_file(path: Path, data: bytes | memoryview, *, backup: Path | None = None) -> None:
    """Make `path` or replace it; on the device when this returns. backup: the name that the old content then has; an
    empty file, as a crash leaves it, takes it from no other."""
    with system_errors(path), _complete(path, data) as temporary:
        if backup is not None and path.exists() and path.stat().st_size:
            path.replace(backup)
        temporary.replace(path)


def replace_file(path: Path, data: bytes) -> None:
    """Make `path` or replace it, whole for readers, without waiting for the device: for what a crash may lose."""
    temporary = path.with_name(f"{path.name}.tmp")
    with system_errors(path):
        with open(_open(temporary, os.O_RDWR | os.O_TRUNC), "wb") as file:
            file.write(data)
        temporary.replace(path)


def create_file(path: Path, data: bytes) -> bool:
    """Make `path` unless it is there, in which case it stays as it is; whether this made it. On the device then."""
    with system_errors(path), _complete(path, data) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, this never replaces
        except FileExistsError:
            return False
        return True


def open_file(path: Path, flags: int = 0) -> int:
    """A descriptor to read and write `path` with, made empty if it is not there, with the rights that its directory
    gives (see `_follow`). flags: `os.O_EXCL` to make it anew in any case, `os.O_TRUNC`.
    """
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
        _follow(fd, path.parent, _FILE_RIGHTS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, also a pipe that no process writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def make_folder(path: Path) -> None:
    """Make a folder of a store, and those above it that are missing, with the rights that the one above them gives."""
    with system_errors(path):
        if path.is_dir():
            return
        make_folder(path.parent)
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
            return  # another process has just made it
        fd = os.open(path, os.O_RDONLY)
        try:
            _follow(fd, path.parent, _FOLDER_RIGHTS)
        finally:
            os.close(fd)


def make_root(path: Path) -> None:
    """Make a folder, and those above it that are missing, with the rights that the system gives; their names are on the
    device when this returns."""
    with system_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent, if_readable=True)


def _follow(fd: int, directory: Path, rights: int) -> None:
    """Give what was just made the group of its directory, and those of `rights` that the directory gives.

    So whoever may write there, for being in its group, may write all of a store that lies there, whatever the umask of
    the one who made it; and who may not look into it cannot read anything. What root makes gets the directory's owner,
    too, or that one could no longer write to a store that root has cleaned. A group that the maker is not in gets
    nothing: then his own has no more rights than others have.
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
    """`make_folder`, whose name is on the device when this returns."""
    make_folder(path)
    sync_directory(path.parent)


def write_at(fd: int, data: bytes | memoryview, position: int) -> None:
    """Write all of `data` there: the system may take a part of it at a time."""
    done = os.pwrite(fd, data, position)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], position + done)


def sync_directory(directory: Path, *, if_readable: bool = False) -> None:
    """Bring the names in a directory to the device.

    if_readable: do nothing without the right to read it, which is not needed to pass through it.
    """
    if if_readable and not os.access(directory, os.R_OK):
        return
    with system_errors(directory):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _complete(path: Path, data: bytes | memoryview) -> Iterator[Path]:
    """`data` on the device under another name, which is gone afterwards; then the names of the directory."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        with open(_open(temporary, os.O_RDWR | os.O_EXCL), "wb") as file:
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
