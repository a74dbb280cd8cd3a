"""Metrics for monitoring: histograms of latencies, and gauges.

    clients/{process}-{its start}-{number}.json     a list of `Figure`s

Each store that is open for writing, each consumer, and each Spark query of a group rewrites its file about once a
second. Readers ignore the files of ended processes; the next writer removes them.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from store.disk.atomic import make_folder, read_file, replace_file
from store.format.layout import CLIENTS_DIR
from store.model.errors import CorruptStore

PUT, PUT_FAILED = "put", "put failed"  # until its messages are published
SENT, SEND_FAILED = "sent", "send failed"  # a batch, from `send` of its first message until it is published
DELIVERED = "delivered"  # from the store time until a consumer received the message
PROCESSED, PROCESS_FAILED = "processed", "process failed"  # a listener's call
DELIVERS = "delivers"  # 1 while this process delivers delayed messages
READS = "reads"  # 1 while this process plans a Spark query of a group that reads a topic
HELD = "held"  # requests that now wait for messages
# Connections that a server closed. STUCK: the client did not finish a frame or did not read replies.
REFUSED = CROWDED, BAD_FRAME, STUCK = "too many connections", "bad frame", "stuck"
_SHORTEST = (0.05, 0.2, 1, 5, 20, 100, 1_000)
_SHORT, _LONG = (1, 5, 10, 20, 50, 200, 500), (1, 5, 10, 100, 1_000, 10_000, 60_000)
# Upper bounds of buckets, ms, mostly as in RocketMQ's client; one more bucket has all longer times.
BUCKETS: Mapping[str, tuple[float, ...]] = {
    PUT: _SHORTEST,
    PUT_FAILED: _SHORTEST,
    SENT: _SHORT,
    SEND_FAILED: _SHORT,
    DELIVERED: _SHORT,
    PROCESSED: _LONG,
    PROCESS_FAILED: _LONG,
}
_COUNTS = 8

Floats = npt.NDArray[np.float64]
_MAX_BYTES = 64 << 20
_NAME = re.compile(r"(\d+)-(\w+)-\d+\.json")
_PROC = Path("/proc")
_numbers = count()
_logger = logging.getLogger("store")


class Figure(msgspec.Struct):
    """One metric. Any thread may update it, without a lock: concurrent updates may lose one.

    total: sum of all measurements, ms. counts: of a histogram, by bucket; of a gauge, its value in `counts[0]`.
    """

    name: str
    topic: str
    group: str
    total: float = 0.0
    counts: Annotated[list[int], msgspec.Meta(min_length=_COUNTS, max_length=_COUNTS)] = msgspec.field(
        default_factory=lambda: [0] * _COUNTS
    )

    def add(self, milliseconds: float) -> None:
        self.counts[bisect_left(BUCKETS[self.name], milliseconds)] += 1
        self.total += milliseconds

    def add_all(self, milliseconds: Floats) -> None:
        """Add measurements to a histogram. milliseconds: shape (n,), n >= 1."""
        found = np.searchsorted(BUCKETS[self.name], milliseconds)
        for bucket, more in enumerate(np.bincount(found, minlength=_COUNTS).tolist()):
            self.counts[bucket] += more
        self.total += float(milliseconds.sum())

    def set(self, number: int) -> None:
        self.counts[0] = number

    def change(self, by: int) -> int:
        self.counts[0] += by
        return self.counts[0]


class Figures:
    """The metrics of one process. root: None to write no file."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._process = os.getpid()
        self._path: Path | None = None
        self._turn = threading.Lock()
        self._figures: dict[tuple[str, str, str], Figure] = {}
        self._written = b"[]"
        self._is_over = self._has_failed = False

    def of(self, name: str, topic: str = "", group: str = "") -> Figure:
        """Return a metric, created if it is new."""
        labels = name, topic, group
        return self._figures.get(labels) or self._figures.setdefault(labels, Figure(*labels))

    def drop(self, figure: Figure) -> None:
        self._figures.pop((figure.name, figure.topic, figure.group), None)

    def write(self) -> None:
        """Write the file if a metric changed. Of repeated OS errors, only the first is logged."""
        if self._root is None or os.getpid() != self._process:
            return
        with self._turn:
            content = msgspec.json.encode(list(self._figures.values()))
            if self._is_over or content == self._written or not self._root.is_dir():
                return
            try:
                self._path = self._path or _new_path(self._root / CLIENTS_DIR)
                replace_file(self._path, content)
                self._written, self._has_failed = content, False
            except OSError as error:
                if not self._has_failed:
                    _logger.warning("%s: the statistics of this process cannot be written: %s", self._root, error)
                self._has_failed = True

    def close(self) -> None:
        if not self._is_over and os.getpid() == self._process:
            self._is_over = True
            with self._turn, suppress(OSError):
                if self._path is not None:
                    self._path.unlink()


def figures_in(root: Path) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of running processes, each with its file's stem."""
    folder = root / CLIENTS_DIR
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is None or not _runs(name):
            continue
        try:
            figures = msgspec.json.decode(read_file(path, _MAX_BYTES), type=list[Figure])
        except FileNotFoundError:  # just closed
            continue
        except (OSError, CorruptStore, msgspec.MsgspecError) as error:
            warnings.warn(f"{path}: the statistics of this process are ignored: {error}", RuntimeWarning, stacklevel=2)
            continue
        for figure in figures:
            yield path.stem, figure


def _new_path(folder: Path) -> Path:
    make_folder(folder)
    for path in folder.iterdir():
        name = _NAME.match(path.name)
        if name is not None and not _runs(name):
            with suppress(OSError):
                path.unlink()
    return folder / f"{os.getpid()}-{_start_of(os.getpid())}-{next(_numbers)}.json"


def _runs(name: re.Match[str]) -> bool:
    return name[2] == _start_of(int(name[1]))


def _start_of(process: int) -> str | None:
    """Return when a process started, in clock ticks since boot, None if it has ended."""
    try:
        return _PROC.joinpath(str(process), "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
