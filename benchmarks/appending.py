"""How fast are `put`, `put_many` and `append_table`, against plain writes of the same record bytes?"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks.bench import QUEUES, TOPIC, messages, show, side_by_side
from store import Message, MessageStore
from store.format.layout import COMMIT_LOG_DIR

_MESSAGES = 50_000
_PUT_MANY = 1_000
_PUTS = 5_000
_PLAIN_FILES = 5
_PLAIN_BYTES = 16 << 20
_BLOCK = bytes(_PLAIN_BYTES)
_STORED_BYTES = 4  # at most, for each byte of a table


def main(count: int, runs: int) -> None:
    rows = []
    for body_bytes in (100, 1000):
        (table,) = messages(count, body_bytes, at_once=count)
        as_messages = _messages(table.slice(0, _MESSAGES))
        plain, bulk, many, put = side_by_side(
            runs,
            partial(_plain, table),
            partial(_rate, partial(_append_table, table), _STORED_BYTES * table.nbytes),
            partial(_rate, partial(_put_many, as_messages), _STORED_BYTES * body_bytes * len(as_messages)),
            partial(_rate, partial(_put, as_messages[:_PUTS]), 0),
        )
        for name, rate in (("plain write", plain), ("append_table", bulk), ("put_many", many), ("put", put)):
            rows.append([f"{body_bytes} B", name, f"{rate:,.0f} /s", f"{rate / plain:.3f}", f"{rate / put:.1f}"])
    head = ["body", "verb", "messages", "of plain write", "times put"]
    show(f"Appending, medians of {runs} runs", head, rows)


def _rate(append: Callable[[MessageStore], int], expected_bytes: int) -> float:
    """The store's files exist already, as the plain write's file does."""
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic(TOPIC, QUEUES)
        store.put_many([Message(TOPIC, b"first", keys=("first",), queue_id=queue) for queue in range(QUEUES)])
        _settle(Path(folder), expected_bytes)
        begin = time.perf_counter()
        count = append(store)
        return count / (time.perf_counter() - begin)


def _plain(table: pa.Table) -> float:
    """Return messages per second for large plain writes of the store's bytes to a preallocated file.

    Takes the median over several files, because a single short write varies. Nothing is synced within the time. So this
    is the page cache's maximum for one thread.
    """
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        pieces = _log_bytes(Path(folder) / "store", table)
        return statistics.median(len(table) / _write_plainly(Path(folder), pieces) for _ in range(_PLAIN_FILES))


def _log_bytes(path: Path, table: pa.Table) -> list[bytes]:
    with MessageStore.open(path) as store:
        store.create_topic(TOPIC, QUEUES)
        store.append_table(TOPIC, table)
        end = store.confirm_offset
    (segment,) = (path / COMMIT_LOG_DIR).iterdir()
    with segment.open("rb") as log:
        return [log.read(min(_PLAIN_BYTES, end - start)) for start in range(0, end, _PLAIN_BYTES)]


def _write_plainly(folder: Path, pieces: list[bytes]) -> float:
    path, size = folder / "plain", sum(map(len, pieces))
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size)
        _settle(folder, size)
        begin, at = time.perf_counter(), 0
        for piece in pieces:
            at += os.pwrite(fd, piece, at)
        return time.perf_counter() - begin
    finally:
        os.close(fd)
        path.unlink()


def _settle(folder: Path, size: int) -> None:
    """Write back earlier dirty pages, and make `size` bytes of free memory resident.

    A virtual machine returns free memory to its host, and the next access to it costs ten times the write itself. So
    before each measurement a file of that size is written and deleted.
    """
    os.sync()
    path = folder / "settle"
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size // len(_BLOCK))):
            file.write(_BLOCK)
    path.unlink()


def _messages(table: pa.Table) -> list[Message]:
    return [Message(TOPIC, row["body"], tags=row["tags"], keys=(row["keys"],)) for row in table.to_pylist()]


def _append_table(table: pa.Table, store: MessageStore) -> int:
    return len(store.append_table(TOPIC, table))


def _put_many(all_messages: list[Message], store: MessageStore) -> int:
    return sum(
        len(store.put_many(all_messages[first : first + _PUT_MANY])) for first in range(0, len(all_messages), _PUT_MANY)
    )


def _put(all_messages: list[Message], store: MessageStore) -> int:
    return sum(bool(store.put(message)) for message in all_messages)
