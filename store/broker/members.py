"""The members of a consumer group, each with a locked file, and the groups that a server has locked.

    consumers/{group}/{member id}.member    JSON behind its CRC32, see `MemberEntry`
    consumers/{group}/done/{member id}      its next offset in each queue of `MemberEntry.slots`, as `DONE_OFFSET`

When a process ends, the kernel releases the lock and notifies watchers of the folder. So the group notices a killed
member at once, and commits its offsets. As with RocketMQ's broker, a member that hangs counts as lost after two
minutes without a heartbeat.

A server locks each group of its clients, so that no other process takes the group's queues. The lock is one byte of
`clients/served`, at a hash of the group's name.
"""

from __future__ import annotations

import copy
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from store.append.locks import holders, is_held, set_lock
from store.append.published_end import current_boot_id
from store.broker.entries import MemberEntry, check_fit
from store.disk.atomic import make_folder, open_file, write_at
from store.disk.client_progress import (
    DONE_DIR,
    MAX_BYTES,
    MEMBER_SUFFIX,
    done_path,
    entry_of,
    note_at,
    noted,
    sealed,
    unsealed,
)
from store.disk.opened import Descriptor, Opened, PinnedPath
from store.format.layout import CLIENTS_DIR, CONSUMERS_DIR, SERVED_FILE
from store.model.errors import CorruptStore, system_errors
from store.model.log_protocol import Positions, Queue

_LOOK_SECONDS = 0.5  # a watch may wake before the kernel has released the locks of a killed process, so look again
_LOCK_BYTE = 0
_TRIES = 100  # to read an entry during a write


class Roster:
    """The members of one group.

    A result may be stale when it is returned. Call `remove_dead` and `enter` while holding the groups' lock.

    rest_seconds: how long a `Watch` of `path` may wait before it checks the folder again.
    """

    rest_seconds = _LOOK_SECONDS

    def __init__(self, root: Path, group: str) -> None:
        self.path = root / CONSUMERS_DIR / group

    def present(self) -> list[MemberEntry]:
        """Return the living members, sorted by id. Raises `CorruptStore` for a file that no member wrote."""
        found = (_entry(path) for path in self._files())
        return [entry for entry in found if entry is not None]

    def remove_dead(self, inherit: Callable[[MemberEntry, Positions], None]) -> None:
        """Remove dead members. inherit: called with each one's entry and offsets."""
        for path in self._files():
            if not _is_alive(path):
                entry = _last_entry(path)
                if entry is not None and entry.boot == _boot():  # files from before a crash may be damaged
                    inherit(entry, _done(path, entry))
                _remove(path)

    def enter(self, entry: MemberEntry) -> MemberFiles:
        """Add a member. Raises `GroupConflict` if it does not fit the others."""
        make_folder(self.path / DONE_DIR)
        for other in self.present():
            check_fit(self.path.name, entry, other, _processes(self._file(other)))
        return MemberFiles(self._file(entry), entry)

    def _file(self, entry: MemberEntry) -> Path:
        return self.path / f"{entry.id}{MEMBER_SUFFIX}"

    def _files(self) -> list[Path]:
        return sorted(self.path.glob(f"*{MEMBER_SUFFIX}"))


class MemberFiles(Opened):
    """The locked files of a member, until `leave` or `drop`."""

    _refusal: OSError | None = None  # the error for which it left

    def __init__(self, path: Path, entry: MemberEntry) -> None:
        super().__init__(f"member {entry.id} of group {path.parent.name} in {path.parents[2]}", "join")
        self.entry = replace(entry, boot=_boot())
        self._path = path
        self._size = 0
        self._threads = threading.RLock()  # protects the descriptors, which the kernel may reuse
        self._file = Descriptor(path, lambda path: open_file(path, os.O_EXCL))
        self._done_path = done_path(path)
        self._done_file = Descriptor(self._done_path, lambda path: open_file(path, os.O_TRUNC))
        self._place = PinnedPath(path, os.fstat(self._file.fd))
        set_lock(self._file.fd, fcntl.F_WRLCK, _LOCK_BYTE)
        self.claim({})

    def claim(self, claims: dict[Queue, float], resets: int | None = None, asks: Iterable[Queue] | None = None) -> None:
        """Write the member's entry, which is also a heartbeat. The caller must hold the groups' lock.

        claims: see `MemberEntry`. resets, asks: None keeps the value.

        Raises `StoreReplaced` if the file is missing. If writing fails, the member leaves, and later calls raise that
        error.
        """
        self.must_be_in_place()
        old, had = self.entry, set(self.entry.slots)
        entry = replace(
            old,
            heard=time.monotonic(),
            claims=claims,
            resets=old.resets if resets is None else resets,
            asks=old.asks if asks is None else tuple(asks),
            slots=old.slots + tuple(queue for queue in claims if queue not in had),
        )
        text = sealed(entry.to_json())
        try:
            with self._threads:
                self.must_be_open()
                with system_errors(self._path):
                    write_at(self._file.fd, text.ljust(self._size), 0)  # padded to overwrite a longer old text
        except BaseException as error:
            self._refusal = error if isinstance(error, OSError) else None
            self.drop()
            raise
        self._size = max(self._size, len(text))
        self.entry = entry
        self._slots = {queue: slot for slot, queue in enumerate(entry.slots)}

    @property
    def is_taken(self) -> bool:
        return not self._is_over

    def must_be_open(self) -> None:
        """Raise `StoreClosed`, `StoreForked`, or the error for which the member left."""
        if self._refusal is not None and not self.is_forked:
            raise copy.copy(self._refusal)  # raising adds to an error's traceback
        super().must_be_open()

    def must_be_in_place(self) -> None:
        """Raise `StoreReplaced` if the file is missing or the directory was replaced."""
        self.must_be_open()
        self._place.check()

    def note(self, queue: Queue, offset: int) -> None:
        """Write an offset for the member that takes over if this one dies. 0 means no offset."""
        self.must_be_open()  # before the lock, which a child process may never get
        slot = self._slots.get(queue)
        if slot is not None:
            with self._threads:
                self.must_be_open()
                note_at(self._done_path, self._done_file.fd, slot, offset)

    def leave(self) -> None:
        """Remove the member with its offsets.

        The caller must hold the groups' lock, and call `must_be_in_place` first.
        """
        _remove(self._path)
        self.drop()

    def drop(self) -> None:
        """Leave as if killed, so that other members take over the offsets."""
        if not self._is_over:
            self._is_over = True
            with self._threads:
                self._file.close()
                self._done_file.close()


def _is_alive(path: Path) -> bool:
    with system_errors(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name would block
        except FileNotFoundError:
            return False
        try:
            return is_held(fd, _LOCK_BYTE)
        finally:
            os.close(fd)


def _remove(path: Path) -> None:
    # The member file is the last, so that the next `remove_dead` finds it if this process is killed in between.
    for each in (done_path(path), path):
        with system_errors(each):
            each.unlink(missing_ok=True)


def _last_entry(path: Path) -> MemberEntry | None:
    with suppress(ValueError):  # the member was killed while it wrote the file, or no member wrote it
        return MemberEntry.of_json(entry_of(path))
    return None


def _entry(path: Path) -> MemberEntry | None:
    """Return a living member's entry, None if the member left or died, or has not written its file yet."""
    with system_errors(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            for attempt in range(_TRIES):
                if not is_held(fd, _LOCK_BYTE):
                    return None
                text = os.pread(fd, min(os.fstat(fd).st_size, MAX_BYTES), 0)
                try:
                    return MemberEntry.of_json(unsealed(text)) if text else None
                except ValueError:
                    time.sleep(attempt / 1e5)  # the member is writing
        finally:
            os.close(fd)
    processes = _processes(path)
    raise CorruptStore(
        f"{path}: this file is not the file of a member of a group. Stop the member ({processes}), then delete the file"
    )


def _done(path: Path, entry: MemberEntry) -> Positions:
    return {
        queue: done for queue, done in zip(entry.slots, noted(path), strict=False) if done and queue in entry.claims
    }


def _processes(path: Path) -> str:
    return " and ".join(map(str, holders(path, _LOCK_BYTE))) or "a process that this user may not look into"


def _boot() -> str:
    return current_boot_id().decode()


class ServerGroups:
    """The groups that one server has locked. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self._path = _path(root)
        with system_errors(self._path):
            make_folder(self._path.parent)
            self._file = Descriptor(self._path, open_file)

    def enter(self, group: str) -> bool:
        """Lock a group. Return False if another server has locked it."""
        with system_errors(self._path):
            return set_lock(self._file.fd, fcntl.F_WRLCK, _byte(group))

    def leave(self, group: str) -> None:
        set_lock(self._file.fd, fcntl.F_UNLCK, _byte(group))

    def close(self) -> None:
        self._file.close()


def is_served(root: Path, group: str) -> bool:
    path = _path(root)
    with system_errors(path), suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return is_held(fd, _byte(group))
        finally:
            os.close(fd)
    return False


def server_of(root: Path, group: str) -> str:
    """Describe the server that has locked a group, for errors."""
    return " and ".join(map(str, holders(_path(root), _byte(group)))) or "a process that this user may not look into"


def _path(root: Path) -> Path:
    return root / CLIENTS_DIR / SERVED_FILE


def _byte(group: str) -> int:
    return int.from_bytes(blake2b(group.encode(errors="replace"), digest_size=8).digest(), "big") >> 2
