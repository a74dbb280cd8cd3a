"""How long things take, and how much waits, as each writer, producer, consumer and server tells all processes of the
host.

    clients/{process}#{number}      one `FIGURE` after the other

A counter in memory costs next to nothing; the file is made when there is something to tell, and written now and then,
by one write that nobody waits for. Who is open holds a lock on its file: what others left behind does not count, and
goes when the next one comes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import threading
import time
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

import numpy as np
import numpy.typing as npt

from store.errors import CorruptStore, StoreError, StoreUnavailable
from store.files.atomic import make_folder, open_file, write_at
from store.files.opened import Opened, opening
from store.format.layout import CLIENTS_DIR, FIGURE, field_offset
from store.publish.locks import is_held, set_lock

# Upper bounds of buckets, ms, most as RocketMQ's client has them; one more bucket is for what takes longer.
PUT, PUT_FAILED = "put", "put failed"  # an append: from the messages' being ready to their being seen
SENT, SEND_FAILED = "sent", "send failed"  # from `send` to being seen, of the first message of what went together
DELIVERED = "delivered"  # from being stored to being in a consumer's memory
PROCESSED, PROCESS_FAILED = "processed", "process failed"  # a call of a listener
HELD = "held"  # requests of a consumer, or of a server's clients, that wait for messages, now
MEMBERS = "members"  # clients of a server that consume in a group, now
# Connections that a server closed, by why: one too many; what came is no frame, or too large a one; a frame that was
# begun and not ended, or answers that nobody reads.
REFUSED = CROWDED, BAD_FRAME, STUCK = "too many connections", "bad frame", "stuck"
_SHORTEST = (0.05, 0.2, 1, 5, 20, 100, 1_000)
_SHORT, _LONG = (1, 5, 10, 20, 50, 200, 500), (1, 5, 10, 100, 1_000, 10_000, 60_000)
BUCKETS: Mapping[str, tuple[float, ...]] = {
    PUT: _SHORTEST,
    PUT_FAILED: _SHORTEST,
    SENT: _SHORT,
    SEND_FAILED: _SHORT,
    DELIVERED: _SHORT,
    PROCESSED: _LONG,
    PROCESS_FAILED: _LONG,
}

Floats = npt.NDArray[np.float64]
Labels = tuple[str, str, str]  # name, topic, group
_COUNTS: int = FIGURE["counts"].shape[0]
_NUMBERS = struct.Struct(f">d{_COUNTS}q")  # the end of a `FIGURE`, from `sum` on
_NUMBERS_AT = FIGURE.itemsize - _NUMBERS.size
_NOTHING, _NOBODY = bytes(_NUMBERS.size), bytes(FIGURE.itemsize)
_LOCK_BYTE = 0
_MAX_BYTES = 256 << 20  # of one file: 400,000 figures
_YOUNG_SECONDS = 60.0  # a file may be new, and its lock not taken yet
_logger = logging.getLogger("store")
assert field_offset(FIGURE, "sum") == _NUMBERS_AT
assert all(len(bounds) == _COUNTS - 1 for bounds in BUCKETS.values())


class Figure:
    """One of them, see `Figures.of`. Any thread may count: without a lock, which a signal could leave held. What two
    threads count at the same instant may be counted once.
    """

    def __init__(self, name: str, topic: str, group: str) -> None:
        self.labels = name, topic, group
        self._bounds = BUCKETS.get(name, ())
        self._counts = [0] * _COUNTS
        self._sum = 0.0

    def add(self, milliseconds: float) -> None:
        """One was measured."""
        self._counts[bisect_left(self._bounds, milliseconds)] += 1
        self._sum += milliseconds

    def add_all(self, milliseconds: Floats) -> None:
        """Many were. Shape (n,), n >= 1."""
        first, last = (bisect_left(self._bounds, each) for each in (milliseconds.min(), milliseconds.max()))
        found = np.searchsorted(self._bounds, milliseconds) if first < last else np.array([first])
        buckets = np.bincount(found, minlength=_COUNTS) * (len(milliseconds) // len(found))
        for bucket, more in enumerate(buckets.tolist()):
            self._counts[bucket] += more
        self._sum += float(milliseconds.sum())

    def set(self, count: int) -> None:
        """So many there are now."""
        self._counts[0] = count

    def change(self, by: int) -> int:
        """So many more there are now; how many that are."""
        self._counts[0] += by
        return self._counts[0]

    def numbers(self) -> bytes:
        """As a `FIGURE` ends."""
        return _NUMBERS.pack(self._sum, *self._counts)


class Figures(Opened):
    """Those of one writer, producer, consumer or server. root: the store's; None for one elsewhere: it tells nobody."""

    _fd = -1

    def __init__(self, root: Path | None, what: str) -> None:
        """what: whose, for errors."""
        super().__init__(f"figures of {what}", what)
        self._root = root
        self._turn = threading.RLock()  # a signal's handler may close whose they are
        self._figures: dict[Labels, Figure] = {}
        self._places: dict[Labels, int] = {}  # in the file
        self._free: list[int] = []  # places of those that were given back
        self._written: list[bytes] = []
        self._refusal = ""  # that was told
        self._client = ""

    @property
    def client(self) -> str:
        """As `Told` names whose they are; "" of one who has told nothing yet."""
        return self._client

    def of(self, name: str, topic: str = "", group: str = "") -> Figure:
        """The one of these labels. name: of BUCKETS, HELD, MEMBERS, or of REFUSED."""
        labels = name, topic, group
        return self._figures.get(labels) or self._figures.setdefault(labels, Figure(*labels))

    def give_back(self, figure: Figure) -> None:
        """There is nothing to count any more, and others get its place: whoever counts with it asks `of` anew."""
        self._figures.pop(figure.labels, None)

    def write(self) -> bool:
        """Tell what has changed since the last time; whether all is told. What the system refuses is tried again with
        the next call, in another file.
        """
        if self._root is None or self._is_over or not (self._figures or self._places):
            return False  # before the turn: a child's may be taken for ever
        with self._turn:
            try:
                if self._is_over or not self._root.is_dir():
                    return False
                if self._fd < 0:
                    self._open(self._root / CLIENTS_DIR)
                self._write(dict(self._figures))  # others count meanwhile
            except OSError as error:
                if self._refusal != (refusal := repr(error)):  # once, not at every turn
                    _logger.warning("%s: are not told: %s", self._what, error)
                self._refusal = refusal
                self._drop()
                return False
            self._refusal = ""
            return True

    def _open(self, folder: Path) -> None:
        make_folder(folder)
        _tidy(folder)
        path = folder / f"{os.getpid()}#{time.monotonic_ns()}"
        self._written, self._places, self._free, self._client = [], {}, [], path.name
        with opening:
            self._fd = open_file(path, os.O_EXCL)
            self._closes = finalize(self, _close, self._fd, path)
        set_lock(self._fd, fcntl.F_WRLCK, _LOCK_BYTE)

    def _write(self, figures: Mapping[Labels, Figure]) -> None:
        for labels in self._places.keys() - figures.keys():
            place = self._places[labels]
            write_at(self._fd, _NOBODY, place * FIGURE.itemsize)
            del self._places[labels]  # after that: whoever is interrupted has nobody counted who is gone
            self._free.append(place)
        for labels, figure in figures.items():
            if labels not in self._places:
                self._places[labels] = self._new_place(labels)
            self._write_numbers(self._places[labels], figure.numbers())

    def _new_place(self, labels: Labels) -> int:
        place = self._free.pop() if self._free else len(self._written)
        row = np.array([(*(label.encode(errors="replace") for label in labels), 0, 0)], FIGURE)
        write_at(self._fd, row.tobytes(), place * FIGURE.itemsize)
        self._written[place : place + 1] = [_NOTHING]
        return place

    def _write_numbers(self, place: int, numbers: bytes) -> None:
        if self._written[place] != numbers:
            write_at(self._fd, numbers, place * FIGURE.itemsize + _NUMBERS_AT)
            self._written[place] = numbers

    def close(self) -> None:
        """They count no longer. The second time, and in a forked process, this does nothing."""
        if not self._is_over:
            with self._turn:
                self._is_over = True
                self._drop()

    def _drop(self) -> None:
        if self._fd >= 0:
            self._closes()
        self._fd = -1

    def _let_go(self) -> None:
        if self._fd >= 0 and self._closes.detach() is not None:  # or it was closed
            os.close(self._fd)


class Told(NamedTuple):
    """A figure as somebody tells it. client: who; total: ms; counts: by bucket, shape (8,)."""

    client: str
    name: str
    topic: str
    group: str
    total: float
    counts: tuple[int, ...]


def told(root: Path) -> Iterator[Told]:
    """All figures of those who are open now, sorted by client. Warns of a file that cannot be read, or that none of
    them made.
    """
    folder = root / CLIENTS_DIR
    try:
        paths = _files(folder)
    except OSError as error:
        _warn(folder, error)
        return
    for path in paths:
        try:
            yield from _told_in(path)
        except (OSError, StoreError) as error:
            _warn(path, error)


def _told_in(path: Path) -> list[Told]:
    """Raises `OSError`, `CorruptStore`."""
    text, found = _read(path), []
    for row in np.frombuffer(text[: len(text) // FIGURE.itemsize * FIGURE.itemsize], FIGURE):
        name, topic, group = (bytes(row[each]).decode(errors="replace") for each in ("name", "topic", "group"))
        if name:  # or nobody has that place now
            found.append(Told(path.name, name, topic, group, float(row["sum"]), tuple(row["counts"].tolist())))
    return found


def served_members(root: Path, group: str, but: str = "") -> int:
    """How many clients of servers consume in a group now. but: the `client` of whom to leave out. Raises
    `StoreUnavailable` where nobody can tell.
    """
    where, count = root / CLIENTS_DIR, 0
    try:
        for where in _files(root / CLIENTS_DIR):
            if where.name != but:
                count += sum(each.counts[0] for each in _told_in(where) if (each.name, each.group) == (MEMBERS, group))
    except (OSError, StoreError) as error:
        raise StoreUnavailable(
            f"{where}: whether clients of a server consume in group {group} cannot be told: {error}; see whose it is"
        ) from error
    return count


def _warn(path: Path, error: Exception) -> None:
    warnings.warn(f"{path}: what clients tell there is left out: {error}", RuntimeWarning, stacklevel=3)


def _files(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if "#" in name]
    except FileNotFoundError:
        return []


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Its descriptor. Raises `CorruptStore` for what is no file, which would be waited for, or read, without end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CorruptStore("no file; move it out of the store")
        yield fd
    finally:
        os.close(fd)


def _read(path: Path) -> bytes:
    """Nothing of one who is gone."""
    with suppress(FileNotFoundError), _opened(path) as fd:
        if is_held(fd, _LOCK_BYTE):
            if (size := os.fstat(fd).st_size) > _MAX_BYTES:
                raise CorruptStore(f"{size:,} bytes, more than any of them writes")
            return os.pread(fd, size, 0)
    return b""


def _tidy(folder: Path) -> None:
    """Remove what those left behind who were killed. What cannot be looked at stays: `told` tells of it."""
    with suppress(OSError):
        for path in _files(folder):
            with suppress(OSError, StoreError), _opened(path) as fd:
                if time.time() - os.fstat(fd).st_mtime > _YOUNG_SECONDS and not is_held(fd, _LOCK_BYTE):
                    path.unlink()


def _close(fd: int, path: Path) -> None:
    with suppress(OSError):  # nobody takes it for one who is open: its lock goes
        path.unlink(missing_ok=True)
    os.close(fd)
