"""Offsets that clients commit: the last commit counts, unless the files changed in between."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import InvalidGroup, Message, MessageStore, OffsetOutOfRange
from store.directory.directory_group import DirectoryGroup
from store.format.layout import CONSUMER_OFFSETS_FILE, TRANSACTIONS_GROUP
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Queue
from store.remoting.headers import (
    CommitOffset,
    GroupQueue,
    Header,
    Offset,
    PullMessage,
    SearchOffset,
    Timestamp,
    TopicQueue,
)
from store.remoting.served_offsets import ServedOffsets
from tests.store.remoting.broker import Broker

QUEUE = Queue("orders", 1)


@pytest.fixture
def offsets(store: MessageStore) -> ServedOffsets:
    return ServedOffsets(store)


def test_offsets_are_in_memory_until_persisted(store: MessageStore, offsets: ServedOffsets) -> None:
    assert offsets.committed("g", QUEUE) is None
    offsets.commit("g", QUEUE, 7)
    assert (offsets.committed("g", QUEUE), store.consumer_offset("g", "orders", 1)) == (7, None)
    offsets.persist()
    assert (offsets.committed("g", QUEUE), store.consumer_offset("g", "orders", 1)) == (7, 7)
    offsets.commit("g", QUEUE, 5)  # a client commits a smaller offset to reset
    offsets.persist()
    assert (offsets.committed("g", QUEUE), store.consumer_offset("g", "orders", 1)) == (5, 5)


def test_system_errors_are_logged_and_retried(
    store: MessageStore, offsets: ServedOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    offsets.commit("g", QUEUE, 7)
    offsets.persist()
    in_the_way = Path(store.path, f"{CONSUMER_OFFSETS_FILE}.bak")
    in_the_way.unlink()
    in_the_way.mkdir()
    offsets.commit("g", QUEUE, 8)
    offsets.persist()
    assert "the offsets of groups in 1 queues cannot be written" in caplog.text
    in_the_way.rmdir()
    offsets.persist()
    assert store.consumer_offset("g", "orders", 1) == 8


@pytest.mark.parametrize(("group", "offset"), [("g", -5), ("a@b", 5), (TRANSACTIONS_GROUP, 5)])
def test_wrong_commit_is_refused_and_does_not_block_others(
    store: MessageStore, offsets: ServedOffsets, group: str, offset: int
) -> None:
    offsets.commit("g", QUEUE, 7)
    with pytest.raises((OffsetOutOfRange, InvalidGroup)):
        offsets.commit(group, Queue("orders", 0), offset)
    offsets.persist()
    assert store.consumer_offset("g", "orders", 1) == 7


def test_persisted_offsets_are_read(store: MessageStore, offsets: ServedOffsets) -> None:
    store.commit_offsets("g", "orders", {1: 3})
    assert offsets.committed("g", QUEUE) == 3
    offsets.commit("g", QUEUE, 4)
    assert offsets.committed("g", QUEUE) == 4
    assert offsets.committed("other", QUEUE) is None


def test_foreign_commit_counts_once_all_is_written(store: MessageStore, offsets: ServedOffsets) -> None:
    offsets.commit("g", QUEUE, 7)
    offsets.persist()
    store.commit_offsets("g", "orders", {1: 2})
    assert offsets.committed("g", QUEUE) == 2
    offsets.commit("g", QUEUE, 3)
    assert offsets.committed("g", QUEUE) == 3
    DirectoryGroup(store.path, "g").delete(with_offsets=True)
    offsets.persist()
    assert (offsets.committed("g", QUEUE), store.consumer_offset("g", "orders", 1)) == (3, 3)


def test_reset_overrides_an_earlier_commit(store: MessageStore, offsets: ServedOffsets) -> None:
    offsets.commit("g", QUEUE, 7)
    with ThreadPoolExecutor(1) as thread:
        with offsets.replacing("g", [QUEUE]):
            persisting = thread.submit(offsets.persist)
            store.commit_offsets("g", "orders", {1: 2})
        persisting.result()
    assert (offsets.committed("g", QUEUE), store.consumer_offset("g", "orders", 1)) == (2, 2)


def test_last_commit_counts_while_offsets_are_persisted(offsets: ServedOffsets) -> None:
    offsets.commit("g", QUEUE, 0)
    offsets.persist()
    is_over = threading.Event()

    def persist() -> None:
        while not is_over.is_set():
            offsets.persist()

    with ThreadPoolExecutor(1) as thread:
        persisting = thread.submit(persist)
        try:
            for offset in range(1, 2000):
                offsets.commit("g", QUEUE, offset)
                assert offsets.committed("g", QUEUE) == offset
        finally:
            is_over.set()
        persisting.result()
    offsets.persist()
    assert offsets.committed("g", QUEUE) == 1999


def test_concurrent_persists_keep_the_last_commit(
    store: MessageStore, offsets: ServedOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are persisted every 5 s and when the last client leaves, so two threads may do it concurrently."""
    flush, leaving = store.flush, threading.Thread(target=offsets.persist)

    def flush_late() -> None:
        monkeypatch.undo()
        offsets.commit("g", QUEUE, 9)
        leaving.start()
        leaving.join(0.2)
        flush()

    offsets.commit("g", QUEUE, 7)
    monkeypatch.setattr(store, "flush", flush_late)
    offsets.persist()
    leaving.join()
    assert store.consumer_offset("g", "orders", 1) == 9


def test_unchanged_offsets_are_not_written(store: MessageStore, offsets: ServedOffsets) -> None:
    offsets.commit("g", QUEUE, 7)
    offsets.persist()
    file = store.path / "config/consumerOffset.json"
    before = file.stat().st_mtime_ns
    offsets.commit("g", QUEUE, 7)
    offsets.persist()
    assert file.stat().st_mtime_ns == before


def test_all_groups_are_written_at_once(store: MessageStore, offsets: ServedOffsets) -> None:
    groups = [f"g{number}" for number in range(20)]
    for group in groups:
        for queue_id in range(2):
            offsets.commit(group, Queue("orders", queue_id), 7)
    offsets.persist()
    written = json.loads((store.path / CONSUMER_OFFSETS_FILE).read_text())["dataVersion"]["counter"]
    assert written == 1
    assert [store.consumer_offset(group, "orders", 1) for group in groups] == [7] * len(groups)


def test_offsets_of_a_missing_topic_are_dropped(store: MessageStore, offsets: ServedOffsets) -> None:
    offsets.commit("g", Queue("nowhere", 0), 7)
    offsets.commit("g", QUEUE, 8)
    offsets.persist()
    assert offsets.committed("g", Queue("nowhere", 0)) is None
    assert store.consumer_offset("g", "orders", 1) == 8


def offset(broker: Broker, code: int, header: Header) -> int:
    answer = broker.ask(code, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return Offset.of(answer.fields).offset


def test_offsets_of_queues_are_returned(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"", queue_id=1)] * 3)
    first, _, last = store.get_message("g", "orders", 1, 0).messages
    assert offset(broker, RequestCode.GET_MAX_OFFSET, TopicQueue("orders", 1)) == 3
    assert offset(broker, RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 1)) == 0
    for time, lower, upper in ((0, 0, 0), (last.store_timestamp, 0, 2), (last.store_timestamp + 1, 3, 2)):
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert offset(broker, code, SearchOffset("orders", 1, time)) == lower
        assert offset(broker, code, SearchOffset("orders", 1, time, "UPPER")) == upper
    answer = broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueue("orders", 1))
    assert Timestamp.of(answer.fields).timestamp == first.store_timestamp
    answer = broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueue("orders", 0))
    assert Timestamp.of(answer.fields).timestamp == -1


def test_offsets_of_groups_are_returned(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"x", queue_id=1)] * 7)
    asked = GroupQueue("group", "orders", 1)
    assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, asked) == 0
    unknown = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", "orders", 1, False))
    assert unknown.code == ResponseCode.QUERY_NOT_FOUND
    assert broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 1, 7)).code == 0
    assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, asked) == 7
    broker.serving.close()
    assert store.consumer_offset("group", "orders", 1) == 7


def test_commits_count_in_the_order_of_a_client(broker: Broker, store: MessageStore) -> None:
    """After a reset RocketMQ's client commits, then queries its offset."""
    store.put_many([Message("orders", b"x", queue_id=1)] * 7)
    asked, ends = GroupQueue("group", "orders", 1), (7, 0)
    for number in range(200):
        said = CommitOffset("group", "orders", 1, ends[number % 2])
        broker.begin(RequestCode.UPDATE_CONSUMER_OFFSET, said)
        assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, asked) == said.commit_offset, number


@pytest.mark.parametrize("beyond", [1, (1 << 63) - 1])
@pytest.mark.parametrize("by", ["commit", "pull"])
def test_group_cannot_commit_beyond_the_end(broker: Broker, store: MessageStore, beyond: int, by: str) -> None:
    store.put_many([Message("orders", b"x", queue_id=1)] * 7)
    for at in (5, 7 + beyond if beyond == 1 else beyond):
        if by == "commit":
            answer = broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 1, at))
            assert answer.code == (ResponseCode.SUCCESS if at == 5 else ResponseCode.QUERY_NOT_FOUND)
        else:
            pulled = broker.ask(RequestCode.PULL_MESSAGE, PullMessage("group", "orders", 1, 5, 1, 1 | 4, at, 0, 0, "*"))
            assert pulled.code == ResponseCode.SUCCESS
    assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", "orders", 1)) == 5


@pytest.mark.parametrize(
    ("code", "header", "answered"),
    [
        (RequestCode.GET_MAX_OFFSET, TopicQueue("nowhere", 0), ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 7), ResponseCode.INVALID_PARAMETER),
        (RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("a b", "orders", 0, 0), ResponseCode.INVALID_PARAMETER),
        (RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "nowhere", 0, 1), ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("g", "nowhere", 0), ResponseCode.TOPIC_NOT_EXIST),
    ],
)
def test_missing_queues_and_groups_are_refused(broker: Broker, code: int, header: Header, answered: int) -> None:
    assert broker.ask(code, header).code == answered
