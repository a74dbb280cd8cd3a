from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Consumer, Message, MessageModel, MessageStore, UnreadableBody
from store.directory.directory_group import DirectoryGroup
from store.format.layout import DLQ_TOPIC_PREFIX, RECORD_HEADER, field_offset, segment_name
from store.remoting.serving import serve
from tests.store.client.consumers import Seen, config
from tests.waiting import PATIENCE, until

DEAD = DLQ_TOPIC_PREFIX + "g"
BOMB = zlib.compress(bytes(65 << 20))
BODIES = [(b"1", 0), (b"plain", 0x1), (b"plain", 0x101), (b"2", 0), (b"plain", 0x201), (b"plain", 0x501), (BOMB, 0x1)]
RAW = [body for body, flag in BODIES if flag]


def put_unreadable(store: MessageStore) -> None:
    """Put messages flagged as compressed whose bodies are not, with readable ones before and between."""
    for body, flag in [*BODIES, (b"3", 0)]:
        at = store.put(Message("t", body, queue_id=0, tags="x")).physical_offset
        size = store.config.mappedFileSizeCommitLog
        with (store.path / "commitlog" / segment_name(at // size * size)).open("r+b") as file:
            file.seek(at % size + field_offset(RECORD_HEADER, "sys_flag"))
            file.write(flag.to_bytes(4, "big"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("t", 1)
        put_unreadable(it)
        yield it


def dead(store: MessageStore) -> list[tuple[bytes, str]]:
    """Return raw bodies and reasons."""
    if DEAD not in store.topics():
        return []
    columns = ("body", "properties", "sysFlag")
    batches = store.scan(DEAD, 0, 0, store.max_offset(DEAD, 0), columns, unreadable="raw")
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(row["sysFlag"] & 1 for row in rows)
    return [(row["body"], dict(row["properties"]).get("BODY_ERROR", "")) for row in rows]


def must_be_dead(store: MessageStore) -> None:
    until(lambda: len(dead(store)) == len(RAW))
    found = dead(store)
    assert sorted(body for body, _ in found) == sorted(RAW)
    assert all(
        "decompress" in reason or "compression type" in reason or "becomes more" in reason for _, reason in found
    )


@pytest.mark.parametrize("orderly", [False, True])
def test_listener_gets_the_readable_messages(
    store: MessageStore, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(store.path, "g", "t", seen := Seen(), orderly=orderly, config=config()) as consumer:
        until(lambda: sorted(seen.numbers) == [1, 2, 3])
        must_be_dead(store)
        until(lambda: set(consumer._member.committed(consumer.assigned).values()) == {len(BODIES) + 1})
    assert caplog.text.count("the body cannot be read: ") == len(RAW)


def test_iterators_get_the_readable_messages(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t", config=config()) as consumer:
        found = [message.body for _, message in zip(range(3), consumer, strict=False)]
    assert found == [b"1", b"2", b"3"]
    must_be_dead(store)

    async def first() -> bytes:
        async for message in consumer:
            return message.body
        return b""

    with Consumer(store.path, "h", "t", config=config()) as consumer:
        assert asyncio.run(first()) == b"1"


def test_broadcasting_consumer_skips_unreadable_messages(store: MessageStore) -> None:
    settings = config(message_model=MessageModel.BROADCASTING)
    with Consumer(store.path, "g", "t", seen := Seen(), config=settings):
        until(lambda: sorted(seen.numbers) == [1, 2, 3])
    assert dead(store) == []


def test_group_skips_unreadable_messages_of_its_dead_letters(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t", Seen(), config=config()):
        must_be_dead(store)
    with Consumer(store.path, "g", DEAD, Seen(), config=config()) as consumer:
        until(lambda: len(RAW) in consumer._member.committed(consumer.assigned).values())
    assert len(dead(store)) == len(RAW)


def test_error_ends_the_consumer_after_the_messages_before_it(store: MessageStore) -> None:
    seen = Seen()
    consumer = Consumer(store.path, "g", "t", seen, config=config(unreadable="error"))
    with pytest.raises(UnreadableBody, match="queue 0, offset 1"), consumer:
        consumer.wait(PATIENCE)
    assert seen.numbers == [1]


def test_archived_message_keeps_its_raw_body(tmp_path: Path, store: MessageStore) -> None:
    """The store no longer has the record that it copies other dead letters from."""
    url = str(tmp_path / "archive")
    store.archive(url)
    with MessageStore.open(tmp_path / "other") as other:
        other.create_topic("t", 1)
        with Consumer(url, DirectoryGroup(other.path, "g"), "t", seen := Seen(), config=config()):
            until(lambda: sorted(seen.numbers) == [1, 2, 3])
            must_be_dead(other)


def test_consumer_of_a_cluster_continues(tmp_path: Path, store: MessageStore) -> None:
    with (
        serve(store, "127.0.0.1:0") as serving,
        Consumer(f"rocketmq://{serving.address}", "g", "t", seen := Seen(), config=config()),
    ):
        until(lambda: sorted(seen.numbers) == [1, 2, 3])
        until(lambda: sorted(body for body, _ in dead(store)) == sorted(RAW))
