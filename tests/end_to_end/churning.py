"""Processes that put a store under load.

python -m tests.end_to_end.churning write STORE NAME SECONDS: opens the store, appends, closes it, and runs retention,
until it has put into a recreated topic. STORE.acks/NAME gets a line `topic life queue offset body` for each
acknowledged message.

python -m tests.end_to_end.churning rule STORE NAME SECONDS: deletes, recreates and creates topics, and adds queues.
STORE.gate locks the writers out during a deletion. STORE.lives has the number of times that each topic was created.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from store import Message, MessageStore, StoreConfig
from store.api.message_store import delete_topic

CONFIG = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
STEADY, CHURNING = "steady", ("churning-0", "churning-1", "churning-2")


def make(path: Path) -> None:
    """Create a store with a few messages: a new query raises an error if its topic is missing."""
    _lives(path).write_text(json.dumps({STEADY: 1, CHURNING[0]: 1}))
    _gate(path).touch()
    acknowledged(path).mkdir()
    with MessageStore.open(path, config=CONFIG) as store, (acknowledged(path) / "make").open("w") as said:
        for topic in (STEADY, CHURNING[0]):
            store.create_topic(topic, 2)
            for queue, offset, body in put(store, topic, [f"{topic}-1", f"{topic}-2"], by_table=False):
                said.write(f"{topic} 1 {queue} {offset} {body}\n")


def acknowledged(path: Path) -> Path:
    return path.with_name(f"{path.name}.acks")


def write(path: Path, name: str, seconds: float) -> None:
    chance, end, numbers = random.Random(name), time.monotonic() + seconds, itertools.count()
    newest = 0  # number of the newest recreated topic with messages of this process
    with (acknowledged(path) / name).open("w") as said:
        while time.monotonic() < end or newest < 2:
            with gate(path, fcntl.LOCK_SH), MessageStore.open(path) as store:
                lives = json.loads(_lives(path).read_text())
                for _ in range(chance.randrange(1, 8)):
                    topic = chance.choice(sorted(store.topics()))
                    count = chance.choice([1, 2, 30, 120])
                    bodies = [f"{name}-{next(numbers)}-{'x' * chance.randrange(200)}" for _ in range(count)]
                    for queue, offset, body in put(store, topic, bodies, by_table=chance.random() < 0.5):
                        said.write(f"{topic} {lives[topic]} {queue} {offset} {body}\n")
                    newest = max(newest, lives[topic])
                if chance.random() < 0.05:
                    store.clean(forced=True)
            time.sleep(chance.random() * 0.05)


def put(store: MessageStore, topic: str, bodies: list[str], *, by_table: bool) -> Iterator[tuple[int, int, str]]:
    if by_table:
        result = store.append_table(topic, pa.table({"body": bodies}))
        yield from zip(result.queue_ids.tolist(), result.queue_offsets.tolist(), bodies, strict=True)
    else:
        put = store.put_many([Message(topic, body.encode(), tags="x") for body in bodies])
        yield from ((each.queue_id, each.queue_offset, body) for each, body in zip(put, bodies, strict=True))


def rule(path: Path, name: str, seconds: float) -> None:
    chance, end = random.Random(name), time.monotonic() + seconds
    while time.monotonic() < end or max(json.loads(_lives(path).read_text()).values()) < 2:
        topic = chance.choice(CHURNING)
        with gate(path, fcntl.LOCK_EX):
            with MessageStore.open(path, read_only=True) as store:
                queues = store.topics().get(topic, 0)
            what = chance.choice(["delete", "recreate", "recreate", "grow"]) if queues else "create"
            if what in ("delete", "recreate"):
                delete_topic(path, topic)
            if what != "delete":
                with MessageStore.open(path) as store:
                    store.create_topic(topic, queues + 1 if what == "grow" else chance.randrange(1, 4))
                lives = json.loads(_lives(path).read_text())
                lives[topic] = lives.get(topic, 0) + (what != "grow")
                _lives(path).write_text(json.dumps(lives))
        time.sleep(chance.random() * 0.5)


@contextmanager
def gate(path: Path, how: int) -> Iterator[None]:
    with _gate(path).open() as file:
        with path.with_name(f"{path.name}.turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(file, how)
        yield


def _gate(path: Path) -> Path:
    return path.with_name(f"{path.name}.gate")


def _lives(path: Path) -> Path:
    return path.with_name(f"{path.name}.lives")


if __name__ == "__main__":
    {"write": write, "rule": rule}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
