"""Which consumer groups have members at a server: a lock for each, on one byte of the file `clients/served`.

The server holds the lock while clients of the group are connected to it. The byte's number is a hash of the group's
name. The kernel releases the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from store.files.atomic import make_folder, open_file
from store.files.opened import Descriptor
from store.format.layout import CLIENTS_DIR, SERVED_FILE
from store.model.system_errors import system_errors
from store.publish.lock_holders import holders
from store.publish.locks import is_held, set_lock


class ServerGroups:
    """The groups that one server has members of. One thread at a time may use it."""

    def __init__(self, root: Path) -> None:
        """Raises `StoreUnavailable`."""
        self._path = _path(root)
        with system_errors(self._path):
            make_folder(self._path.parent)
            self._file = Descriptor(self._path, open_file)

    def enter(self, group: str) -> bool:
        """Lock a group; return whether this server has it now, rather than another one. Raises `StoreUnavailable`."""
        with system_errors(self._path):
            return set_lock(self._file.fd, fcntl.F_WRLCK, _byte(group))

    def leave(self, group: str) -> None:
        """Release a group."""
        set_lock(self._file.fd, fcntl.F_UNLCK, _byte(group))

    def close(self) -> None:
        """Release all groups."""
        self._file.close()


def is_served(root: Path, group: str) -> bool:
    """Return whether a server, of this process or another one, has members of a group. Raises `StoreUnavailable`."""
    path = _path(root)
    with system_errors(path), suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return is_held(fd, _byte(group))
        finally:
            os.close(fd)
    return False


def server_of(root: Path, group: str) -> str:
    """Return the process of the server that has members of a group, for errors."""
    return " and ".join(map(str, holders(_path(root), _byte(group)))) or "a process that this user may not look into"


def _path(root: Path) -> Path:
    return root / CLIENTS_DIR / SERVED_FILE


def _byte(group: str) -> int:
    return int.from_bytes(blake2b(group.encode(errors="replace"), digest_size=8).digest(), "big") >> 2
