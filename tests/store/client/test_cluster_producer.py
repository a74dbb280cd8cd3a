from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from store import Message, MessageRefused, Producer, UnknownTopic, UnsupportedStore
from tests.pair import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path, queues=2)


def stored(pair: Pair) -> dict[str, bytes]:
    tables = [store.to_arrow("t", ["msgId", "body"]).read_all() for store in pair.stores.values()]
    return {row["msgId"]: row["body"] for table in tables for row in table.to_pylist()}


def test_messages_of_all_kinds_arrive(pair: Pair) -> None:
    with Producer(f"rocketmq://{pair.names}") as producer:
        futures = [producer.send("t", b"%d" % n, keys=f"k{n}", sharding_key=f"s{n % 5}") for n in range(200)]
        futures.append(producer.send("t", "text", tags="paid", properties={"a": "b"}, born_timestamp=1_700_000_000_000))
        futures.append(producer.send(Message("t", b"named", properties={"UNIQ_KEY": "mine"})))
        producer.flush()
        found = stored(pair)
        assert sorted(found.values()) == sorted([*(b"%d" % n for n in range(200)), b"text", b"named"])
        assert found.keys() == {future.result().msg_id for future in futures}
        assert futures[-1].result().msg_id == "mine"


def test_refused_message_fails_alone(pair: Pair) -> None:
    with Producer(f"rocketmq://{pair.names}", linger=0.05) as producer:
        good, bad = producer.send("t", b"1"), producer.send("t", b"2", tags="a|b")
        assert good.result().queue_offset == 0
        with pytest.raises(MessageRefused):
            bad.result()
        with pytest.raises(UnknownTopic):
            producer.send("nowhere", b"")


def test_producer_waits_for_broker(pair: Pair) -> None:
    for name in "ab":
        pair.serving[name].close()
    for name in "ab":
        pair.start(name)
    with Producer(f"rocketmq://{pair.names}") as producer:
        producer.send("t", b"1").result()
        for name in "ab":
            pair.serving[name].close()
        later = producer.send("t", b"2")
        for name in "ab":
            pair.start(name)
        later.result()
    assert sorted(stored(pair).values()) == [b"1", b"2"]


def test_names_and_requests_need_a_directory(pair: Pair) -> None:
    with pytest.raises(UnsupportedStore, match="Remove the name"):
        Producer(f"rocketmq://{pair.names}", "importer")
    with Producer(f"rocketmq://{pair.names}") as producer, pytest.raises(UnsupportedStore, match="a directory only"):
        producer.request(Message("t", b""))
