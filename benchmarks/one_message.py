"""How much CPU does one message take, put one at a time, against one row inserted into SQLite?"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import TOPIC, show, side_by_side
from store import Message, MessageStore

_BODY = bytes(100)


def main(count: int, runs: int) -> None:
    """Prints the table: CPU time of this process for each of `count` messages of 100 B with a tag and a key."""
    ways = {"put": partial(_put, count), "SQLite, autocommit": partial(_insert, count)}
    taken = side_by_side(runs, *ways.values())
    rows = [[way, f"{each * 1e6:.1f} us", f"{each / taken[-1]:.2f}"] for way, each in zip(ways, taken, strict=True)]
    show(f"One message at a time, medians of {runs} runs", ["by", "CPU a message", "of SQLite's"], rows)


def _put(count: int) -> float:
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic(TOPIC, 1)
        messages = [Message(TOPIC, _BODY, tags="paid", keys=(f"o-{number}",)) for number in range(count)]
        store.put(messages[0])
        begin = time.process_time()
        for message in messages:
            store.put(message)
        return (time.process_time() - begin) / count


def _insert(count: int) -> float:
    """WAL, synchronous=NORMAL: a kill loses nothing that was inserted, a crash of the machine may, as with `put`."""
    with (
        TemporaryDirectory(prefix="mq-bench-") as folder,
        closing(sqlite3.connect(Path(folder) / "db", isolation_level=None)) as db,
    ):
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, tag TEXT, key TEXT, body BLOB)")
        db.execute("CREATE INDEX by_key ON messages (key)")
        rows = [("paid", f"o-{number}", _BODY) for number in range(count)]
        begin = time.process_time()
        for row in rows:
            db.execute("INSERT INTO messages (tag, key, body) VALUES (?, ?, ?)", row)
        return (time.process_time() - begin) / count
