"""How fast are `put`, `put_many` and `append_table`, against plainly writing the same record bytes?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks.bench import QUEUES, TOPIC, messages, show, side_by_side
from store import Message, MessageStore
from store.layout import COMMIT_LOG_DIR

_PUTS = 5_000
_PUT_MANY = 1_000


def main(count: int, runs: int) -> None:
    """Prints the table; `count` messages of each body size by `append_table`, fewer by the loops."""
    rows = []
    for body_bytes in (100, 1000):
        tables = list(messages(min(count, 500_000), body_bytes))
        as_messages = _messages(tables[0].slice(0, _PUTS))
        plain, table, many, put = side_by_side(
            runs,
            lambda: _plain(tables),  # noqa: B023
            lambda: _rate(lambda store: sum(len(store.append_table(TOPIC, table)) for table in tables)),  # noqa: B023
            lambda: _rate(lambda store: _put_many(store, as_messages)),  # noqa: B023
            lambda: _rate(lambda store: sum(bool(store.put(message)) for message in as_messages)),  # noqa: B023
        )
        for name, rate in (("plain write", plain), ("append_table", table), ("put_many", many), ("put", put)):
            rows.append([f"{body_bytes} B", name, f"{rate:,.0f} /s", f"{rate / plain:.3f}", f"{rate / put:.1f}"])
    head = ["body", "verb", "messages", "of plain write", "times put"]
    show(f"Appending, medians of {runs} runs", head, rows)


def _rate(append: Callable[[MessageStore], int]) -> float:
    """Messages a second into a fresh store."""
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic(TOPIC, QUEUES)
        begin = time.perf_counter()
        count = append(store)
        return count / (time.perf_counter() - begin)


def _plain(tables: list[pa.Table]) -> float:
    """Messages a second when the very bytes that the store writes go to a preallocated file in one write a table."""
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path) as store:
            store.create_topic(TOPIC, QUEUES)
            ends = [(store.append_table(TOPIC, table), store.confirm_offset)[1] for table in tables]
        (segment,) = (path / COMMIT_LOG_DIR).iterdir()
        with segment.open("rb") as log:
            pieces = [log.read(end - start) for start, end in pairwise([0, *ends])]
        fd = os.open(Path(folder) / "plain", os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, sum(map(len, pieces)))
            begin_time, at = time.perf_counter(), 0
            for piece in pieces:
                at += os.pwrite(fd, piece, at)
            return sum(map(len, tables)) / (time.perf_counter() - begin_time)
        finally:
            os.close(fd)


def _messages(table: pa.Table) -> list[Message]:
    return [Message(TOPIC, row["body"], tags=row["tags"], keys=(row["keys"],)) for row in table.to_pylist()]


def _put_many(store: MessageStore, all_messages: list[Message]) -> int:
    return sum(
        len(store.put_many(all_messages[first : first + _PUT_MANY])) for first in range(0, len(all_messages), _PUT_MANY)
    )
