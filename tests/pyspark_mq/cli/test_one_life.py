"""What a command says of a topic is of one topic, whenever that is deleted, and one of its name made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

import pyspark_mq
from store import Message, MessageStore, StoreConfig
from store.broker.deletion import delete_topic
from tests.interrupts import at_every_place, interrupted_at
from tests.pyspark_mq.cli.process import run

_CODE = str(Path(pyspark_mq.__file__).parent)
_STEP = 5
OLD, NEW = ([f"{life}-{number}" for number in range(many)] for life, many in (("old", 5), ("new", 9)))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["export", "--to", "jsonl", "-o", "-"], slice(None)),
        (["export", "--to", "jsonl", "-o", "-", "--from", "2"], slice(2, None)),
        (["tail", "--until-end", "--json"], slice(None)),
        (["tail", "-n", "2", "--json"], slice(-2, None)),
        (["tail", "--from", "earliest", "--count", "4", "--json"], slice(4)),
    ],
    ids=["export", "export from", "tail", "tail newest", "tail following"],
)
def test_what_is_read(path: Path, arguments: Sequence[str], wanted: slice) -> None:
    told, known = 0, [OLD[wanted], NEW[wanted]]
    names = (f"t{number}" for number in count())
    command, *options = arguments

    def read_at(place: int) -> int:
        nonlocal told
        topic = next(names)
        with MessageStore.open(path, config=StoreConfig(flushIntervalCommitLog=3_600_000)) as store:
            put(store, topic, OLD)

            def make_anew() -> None:
                delete_topic(path, topic)
                put(store, topic, NEW)

            def read() -> None:
                nonlocal told
                done = run(command, path, topic, *options)
                if done.returncode:
                    told += 1
                    assert f"topic '{topic}' was deleted meanwhile" in done.stderr
                else:
                    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] in known

            return interrupted_at(place, read, make_anew, function="offsets_at", also=[_CODE])

    at_every_place(read_at, _STEP)
    assert told


def put(store: MessageStore, topic: str, bodies: Sequence[str]) -> None:
    store.create_topic(topic, 1)
    store.put_many([Message(topic, body.encode()) for body in bodies])


def test_a_reset_of_a_topic_that_is_another_by_now_is_told(path: Path) -> None:
    with MessageStore.open(path) as store:
        put(store, "t", OLD)
        store.commit_offsets("g", "t", {0: 1})

        def make_anew() -> None:
            delete_topic(path, "t")
            put(store, "t", NEW)

        def reset() -> None:
            done = run("groups", "reset", path, "g", "t", "--to", "latest", "--create")
            assert (done.returncode, "topic 't' was deleted meanwhile" in done.stderr) == (1, True)

        assert interrupted_at(1, reset, make_anew, function="offsets_at", also=[_CODE])
