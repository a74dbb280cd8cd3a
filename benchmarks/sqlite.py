"""How much CPU do one put and one get of 32 take, against SQLite, the alternative for embedded programs?"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import TOPIC, show, side_by_side
from store import Message, MessageStore

_BODY = bytes(100)
_AT_ONCE = 32


def main(count: int, runs: int) -> None:
    ways = {
        "put of one": partial(_put, count),
        "SQLite, one autocommit insert": partial(_insert, count),
        f"get_message of {_AT_ONCE}": partial(_get, count),
        f"SQLite, a select of {_AT_ONCE}": partial(_select, count),
    }
    put, insert, get, select = side_by_side(runs, *ways.values())
    ratios = (put / insert, 1.0, get / select, 1.0)
    rows = [
        [way, f"{each * 1e6:.1f} us", f"{ratio:.2f}"]
        for way, each, ratio in zip(ways, (put, insert, get, select), ratios, strict=True)
    ]
    show(f"One call at a time, medians of {runs} runs", ["call", "CPU a call", "of SQLite's"], rows)


def _put(count: int) -> float:
    with _store() as store:
        messages = _messages(count)
        store.put(messages[0])
        begin = time.process_time()
        for message in messages:
            store.put(message)
        return (time.process_time() - begin) / count


def _get(count: int) -> float:
    """Create `StoredMessage` objects with their properties."""
    with _store() as store:
        store.put_many(_messages(count))
        store.get_message("g", TOPIC, 0, 0, _AT_ONCE)
        offsets = range(0, count, _AT_ONCE)
        begin = time.process_time()
        found = sum(len(store.get_message("g", TOPIC, 0, offset, _AT_ONCE).messages) for offset in offsets)
        taken = time.process_time() - begin
        assert found == count
        return taken / len(offsets)


def _insert(count: int) -> float:
    with _database() as db:
        rows = _rows(count)
        begin = time.process_time()
        for row in rows:
            db.execute("INSERT INTO messages (tag, key, body) VALUES (?, ?, ?)", row)
        return (time.process_time() - begin) / count


def _select(count: int) -> float:
    with _database() as db:
        db.executemany("INSERT INTO messages (tag, key, body) VALUES (?, ?, ?)", _rows(count))
        offsets = range(0, count, _AT_ONCE)
        begin = time.process_time()
        found = sum(
            len(db.execute("SELECT * FROM messages WHERE id > ? ORDER BY id LIMIT ?", (offset, _AT_ONCE)).fetchall())
            for offset in offsets
        )
        taken = time.process_time() - begin
        assert found == count
        return taken / len(offsets)


@contextmanager
def _store() -> Iterator[MessageStore]:
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic(TOPIC, 1)
        yield store


def _messages(count: int) -> list[Message]:
    return [Message(TOPIC, _BODY, tags="paid", keys=(f"o-{number}",)) for number in range(count)]


@contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    """WAL and synchronous=NORMAL. As with `put`, inserts survive a kill, maybe not a crash."""
    with (
        TemporaryDirectory(prefix="mq-bench-") as folder,
        closing(sqlite3.connect(Path(folder) / "db", isolation_level=None)) as db,
    ):
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, tag TEXT, key TEXT, body BLOB)")
        db.execute("CREATE INDEX by_key ON messages (key)")
        yield db


def _rows(count: int) -> list[tuple[str, str, bytes]]:
    return [("paid", f"o-{number}", _BODY) for number in range(count)]
