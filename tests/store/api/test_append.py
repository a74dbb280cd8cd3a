from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from store import (
    InvalidColumns,
    Message,
    MessageRefused,
    MessageStore,
    ReadOnlyStore,
    StoreBusy,
    StoreClosed,
    StoreConfig,
    StoreForked,
    UnknownTopic,
)
from store.format.topic_names import COMMITS_TOPIC, is_internal_topic
from tests.children import ended
from tests.end_to_end.test_kill import bodies, check_log

SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=50, maxIndexNum=60, maxMessageSize=4096
)
BODY = pa.schema([("body", pa.binary())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store with topics "t" and "u" of two queues each, and a message in each queue of "t"."""
    with MessageStore.open(tmp_path, config=SMALL) as it:
        for topic in ("t", "u"):
            it.create_topic(topic, 2)
        it.create_topic(COMMITS_TOPIC, 1)
        it.put_many([Message("t", b"before", queue_id=queue) for queue in (0, 1)])
        yield it


@pytest.fixture
def reader(store: MessageStore) -> Iterator[MessageStore]:
    with MessageStore.open(store.path, read_only=True) as it:
        yield it


def table(*sent: bytes, **columns: object) -> pa.Table:
    return pa.table({"body": pa.array(sent, pa.binary()), **columns})


def stream(batches: Callable[[], Iterator[pa.Table]]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(BODY, (batch for each in batches() for batch in each.to_batches()))


def everything(store: MessageStore) -> dict[str, dict[tuple[int, int], bytes]]:
    return {topic: bodies(store, topic) for topic in store.topics()}


@pytest.mark.parametrize("flush", [False, True])
def test_append_of_several_tables_and_messages(store: MessageStore, reader: MessageStore, flush: bool) -> None:
    append = store.begin()
    append.add("t", table(*(b"%d" % n for n in range(40)), queueId=[n % 2 for n in range(40)]))
    append.add_messages([Message("u", b"u", queue_id=1, keys="k"), Message("t", b"last", queue_id=0)])
    append.add_messages([])
    append.add("u", stream(lambda: iter([table(), table(b"x"), table(b"y")])))
    append.add(COMMITS_TOPIC, table(b"committed", keys=["query-7"]))
    before = reader.confirm_offset
    result = append.publish(flush=flush)
    assert everything(reader) == everything(store)
    assert bodies(reader, "t") == {
        (0, 0): b"before",
        (1, 0): b"before",
        **{(n % 2, 1 + n // 2): b"%d" % n for n in range(40)},
        (0, 21): b"last",
    }
    assert bodies(reader, "u") == {(1, 0): b"u", (0, 0): b"x", (1, 1): b"y"}
    assert [message.body for message in reader.query(COMMITS_TOPIC, "query-7")] == [b"committed"]
    assert len(result) == 45
    assert result.physical_offsets[0] == before
    assert (result.physical_offsets[1:] > result.physical_offsets[:-1]).all(), "in the order of adding"
    assert result.queue_ids[-5:].tolist() == [1, 0, 0, 1, 0]
    assert result.queue_offsets[-5:].tolist() == [0, 21, 0, 1, 0]
    check_log(store.path, 47)


@pytest.mark.parametrize("flush", [False, True])
def test_nothing_is_visible_before_publication(store: MessageStore, reader: MessageStore, flush: bool) -> None:
    before, seen = everything(reader), []

    def pieces(first: int) -> Iterator[pa.Table]:
        seen.append(everything(reader))
        yield table(*(b"%d" % n * 100 for n in range(first, first + 4)))

    append = store.begin()
    for first in range(0, 200, 4):
        append.add("t", stream(lambda first=first: pieces(first)))  # type: ignore[misc]
    append.add("u", table(bytes(3900)))
    assert seen == []
    append.publish(flush=flush)
    assert seen == [before] * 50
    assert len(bodies(reader)) == 202
    assert reader.max_offset("u", 0) == 1
    assert len(list((store.path / "commitlog").iterdir())) > 12
    store.put(Message("t", b"next"))
    check_log(store.path, 204)


def test_record_larger_than_a_segment_is_refused(store: MessageStore, reader: MessageStore) -> None:
    before, append = everything(reader), store.begin()
    for length in (1, 3000, 4000):
        append.add("t", table(bytes(length)))
    with pytest.raises(MessageRefused, match="and a commit log segment has 4096"):
        append.publish()
    assert everything(reader) == before


class Stop(BaseException):
    pass


def nothing() -> Iterator[pa.Table]:
    raise Stop
    yield


FAILURES: dict[str, tuple[type[BaseException], Callable[[], object]]] = {
    "a null in the body": (InvalidColumns, lambda: pa.table({"body": pa.array([b"x", None], pa.binary())})),
    "a body that is too large": (MessageRefused, lambda: table(bytes(4097))),
    "an exception in between": (Stop, lambda: stream(nothing)),
}


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_append_that_fails_late_leaves_nothing(
    store: MessageStore, reader: MessageStore, failure: str, flush: bool
) -> None:
    before, append = everything(reader), store.begin()
    error, bad = FAILURES[failure]
    for n in range(10):
        append.add("u", table(*[b"%d" % n * 50] * 10, keys=["k"] * 10))
    append.add("t", bad())
    append.add("t", table(b"after"))
    with pytest.raises(error):
        append.publish(flush=flush)
    assert everything(reader) == everything(store) == before
    with pytest.raises(
        StoreClosed, match=rf"{store.path}: this append was already published or abandoned. .*begin\(\)"
    ):
        append.publish()
    assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 1
    assert store.put(Message("u", b"next", queue_id=1)).queue_offset == 0
    assert reader.query("u", "k") == []
    store.close()
    check_log(store.path, 4)


def test_last_writer_deletes_segments_of_a_failed_append(store: MessageStore, reader: MessageStore) -> None:
    """RocketMQ 4.9 starts recovery three segments before the last, so empty segments at the end would hide the real
    end."""

    def append(to: MessageStore, *, last: object) -> None:
        append = to.begin()
        for n in range(20):
            append.add("t", table(bytes([n]) * 1500))
        append.add("t", last)
        append.publish()

    def stop() -> Iterator[pa.Table]:
        assert reader.wait(0, 0) == reader.confirm_offset  # the reader looks at the unpublished append
        raise Stop
        yield

    def segments() -> list[str]:
        return sorted(path.name for path in (store.path / "commitlog").iterdir())

    with pytest.raises(Stop):
        append(store, last=stream(stop))
    assert len(segments()) > 8
    store.close()
    assert segments() == [f"{0:020d}"]
    check_log(store.path, 2)
    with MessageStore.open(store.path) as again:
        append(again, last=table(b"last"))
        assert bodies(reader, "t") == bodies(again, "t")
        assert sorted(body[:1] for body in bodies(reader, "t").values()) == sorted(
            [b"b", b"b", b"l", *(bytes([n]) for n in range(20))]
        )


def test_wrong_tables_are_refused_by_add(store: MessageStore) -> None:
    append = store.begin()
    with pytest.raises(UnknownTopic):
        append.add("v", table(b""))
    for columns in ({"body": [1]}, {"bodies": [b""]}, {"body": [b""], "queueId": ["0"]}, {"body": [b""], "keys": [5]}):
        for kind in (pa.table, lambda columns: pa.table(columns).to_reader()):
            with pytest.raises(InvalidColumns):
                append.add("t", kind(columns))
    with pytest.raises(MessageRefused):
        append.add_messages([Message("t", b"good"), Message("t", bytes(5000))])
    assert len(append.publish()) == 0


def test_condition_prevents_a_second_append(store: MessageStore, reader: MessageStore) -> None:
    def batch(number: int) -> None:
        append, key = store.begin(), f"query-{number}"
        append.add("t", table(*[f"{number}".encode()] * 3))
        append.add_messages([Message(COMMITS_TOPIC, b"", keys=(key,))])
        results.append(append.publish(unless=lambda: bool(store.query(COMMITS_TOPIC, key))))

    results: list[object] = []
    threads = [threading.Thread(target=batch, args=(n % 5,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    assert results.count(None) == 35
    assert sorted(bodies(reader).values()) == sorted([b"before"] * 2 + [b"%d" % n for n in range(5) for _ in range(3)])
    assert reader.max_offset(COMMITS_TOPIC, 0) == 5
    check_log(store.path, 22)


def test_condition_does_not_see_a_dead_append(store: MessageStore) -> None:
    def die() -> Iterator[pa.Table]:
        yield table(b"x")
        raise Stop

    dead = store.begin()
    dead.add_messages([Message(COMMITS_TOPIC, b"", keys=("key",))])
    dead.add("t", table(b"x"))
    dead.add("t", stream(die))
    with pytest.raises(Stop):
        dead.publish()
    append = store.begin()
    append.add("t", table(b"y"))
    assert append.publish(unless=lambda: bool(store.query(COMMITS_TOPIC, "key"))) is not None


def test_exception_of_a_condition_is_raised(store: MessageStore, reader: MessageStore) -> None:
    before, append = everything(reader), store.begin()
    append.add("t", table(b"x"))
    with pytest.raises(ZeroDivisionError):
        append.publish(unless=lambda: bool(1 // 0))
    assert everything(reader) == before
    assert store.put(Message("t", b"x", queue_id=0)).queue_offset == 1


def test_abandoned_append_is_invisible(store: MessageStore, reader: MessageStore) -> None:
    before, append = everything(reader), store.begin()
    append.add("t", table(b"x"))
    append.abandon()
    append.abandon()
    for verb in (append.publish, lambda: append.add("t", table(b"x")), lambda: append.add_messages([])):
        with pytest.raises(StoreClosed, match="published or abandoned"):
            verb()
    assert everything(reader) == before


def test_append_needs_an_open_writer(store: MessageStore, reader: MessageStore) -> None:
    with pytest.raises(ReadOnlyStore):
        reader.begin()
    append = store.begin()
    append.add("t", table(b"x"))
    child = os.fork()
    if child == 0:
        refused = 0
        for verb in (append.publish, lambda: append.add("t", table(b"x"))):
            try:
                verb()
            except StoreForked:
                refused += 1
        os._exit(refused)
    assert ended(child) == 2
    store.close()
    for verb in (append.publish, lambda: append.add("t", table(b"x"))):
        with pytest.raises(StoreClosed, match="was closed"):
            verb()


def test_commits_topic_is_internal() -> None:
    assert is_internal_topic(COMMITS_TOPIC)


def test_stream_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        most, block = 0, bytes(1 << 20)

        def batches() -> Iterator[pa.Table]:
            nonlocal most
            for _ in range(256):
                most = max(most, pa.total_allocated_bytes())
                yield table(block)

        append, before = store.begin(), pa.total_allocated_bytes()
        append.add("t", stream(batches))
        append.publish()
        assert store.max_offset("t", 0) == 256
        assert most - before < 160 << 20


def test_stream_that_was_read_in_part_is_refused(tmp_path: Path) -> None:
    table = pa.table({"body": [b"x"] * 100_000}, BODY)
    config = StoreConfig(lockTimeoutMillis=0)
    with MessageStore.open(tmp_path, config=config) as store, MessageStore.open(tmp_path) as other:
        store.create_topic("t", 1)
        assert other._writer is not None
        begun = table.to_reader(max_chunksize=10_000)
        with other._writer.held(), pytest.raises(StoreBusy):
            store.append_table("t", begun)
        done = table.to_reader()
        assert len(store.append_table("t", done)) == 100_000
        for stream_again in (begun, done):
            with pytest.raises(InvalidColumns, match="was already read"):
                store.append_table("t", stream_again)
            append_again = store.begin()
            append_again.add("t", stream_again)
            with pytest.raises(InvalidColumns, match="Give a new stream"):
                append_again.publish()
        assert store.max_offset("t", 0) == 100_000
