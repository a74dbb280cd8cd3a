from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from store import Consumer, Message, MessageStore, ReceivedMessage, ReconsumeLater, StoredMessage
from store.api.message_store import StoreConfig
from store.archive.served_records import is_name, names
from store.cluster.address import ClusterAddress
from store.directory.directory_log import TieredDirectoryAddress
from store.format.stored_message import decode_record, offset_msg_id
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Boundary, Bounds, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.client import Client
from store.remoting.headers import (
    CommitOffset,
    ConsumeStats,
    GroupQueue,
    Header,
    Offset,
    Pulled,
    PullMessage,
    QueryMessage,
    ResetOffset,
    SearchOffset,
    SendBack,
    Timestamp,
    Topic,
    TopicQueue,
    ViewMessage,
)
from tests.gated import Gated, new_url
from tests.store.client.consumers import Seen, config
from tests.store.remoting.broker import SUBSCRIPTION, Broker
from tests.store.remoting.test_heart_beats import heartbeat
from tests.waiting import until

ORDERS = Queue("orders", 0)
COUNT = 300
COMMIT = 1
MOST = (1 << 31) - 1


def put(store: MessageStore, first: int, count: int, topic: str = "orders") -> None:
    for number in range(first, first + count):
        size, tags = 100 + number * 37 % 900, "AB"[number % 2]
        body = b"%d".ljust(size, b".") % number
        properties = {"n": str(number)} | ({"UNIQ_KEY": f"id-{number}"} if number % 3 else {})
        store.put(Message(topic, body, tags=tags, keys=(f"k{number}",), queue_id=0, properties=properties))


@pytest.fixture(params=["directory", "remote"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url() if request.param == "remote" else str(tmp_path / "archive")


@pytest.fixture
def store(tmp_path: Path, url: str) -> Iterator[MessageStore]:
    """The first messages are only in the archive, the last ones only in the store."""
    config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
    with MessageStore.open(tmp_path / "mq", config=config) as it:
        for topic in ("orders", "others"):
            it.create_topic(topic, 2)
        put(it, 0, 200)
        put(it, 0, 3, "others")
        it.archive(url)
        put(it, 200, 100)
        put(it, 3, 3, "others")
        assert it.clean(forced=True).log
        assert 100 < it.min_offset("orders", 0) < 200
        yield it


def pull(broker: Broker, offset: int, count: int = 32, expression: str = "*", kind: str = "TAG") -> PullMessage:
    return PullMessage("group", "orders", 0, offset, count, SUBSCRIPTION, 0, 0, 0, expression, kind)


def records(data: bytes) -> list[StoredMessage]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(decode_record(data[at : at + size], at))
        at += size
    return found


def pulled(
    broker: Broker, offset: int, count: int = 32, expression: str = "*", kind: str = "TAG"
) -> tuple[list[StoredMessage], int]:
    """Return the records from an offset on, and the next offset."""
    answer = broker.ask(RequestCode.PULL_MESSAGE, pull(broker, offset, count, expression, kind))
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
    return records(bytes(answer.body)), Pulled.of(answer.fields).next_begin_offset


def archived(broker: Broker, offset: int) -> StoredMessage:
    return pulled(broker, offset, 1)[0][0]


def all_of(broker: Broker, **how: str) -> list[StoredMessage]:
    found, offset = [], 0
    while offset < COUNT:
        some, offset = pulled(broker, offset, **how)
        found += some
    return found


def number(message: StoredMessage | ReceivedMessage) -> int:
    return int(message.properties["n"])


def test_cluster_reader_gets_archived_messages(broker: Broker, store: MessageStore) -> None:
    spec = ReadSpec(("queueOffset", "body", "storeTimestamp", "msgId"), EVERYTHING)
    with TieredDirectoryAddress(str(store.path)).open() as local, ClusterAddress((broker.address,)).open() as remote:
        queue = Queue("orders", 0, broker="broker-a")
        assert remote.bounds([queue]) == {queue: Bounds(0, COUNT)}
        ours, theirs = (
            pa.Table.from_batches(log.scan(QueueRange(each, 0, COUNT), spec))
            for log, each in ((local, ORDERS), (remote, queue))
        )
        own = spec.columns[:3]
        assert ours.select(own).combine_chunks() == theirs.select(own).combine_chunks()
        ids = theirs["msgId"].to_pylist()
        assert len(set(ids)) == COUNT
        assert [each for each in ids if each.startswith("id-")] == [f"id-{n}" for n in range(COUNT) if n % 3]


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"expression": "B || C"}, lambda n: n % 2 == 1),
        ({"expression": "n BETWEEN 90 AND 210 AND TAGS = 'A'", "kind": "SQL92"}, lambda n: n in range(90, 211, 2)),
        ({"expression": "n = 5", "kind": "SQL92"}, lambda n: n == 5),
    ],
)  # fmt: skip
def test_filters_select_archived_messages(broker: Broker, how: dict[str, str], wanted: object) -> None:
    assert [number(each) for each in all_of(broker, **how)] == list(filter(wanted, range(COUNT)))


def test_archived_pull_ends_where_the_store_begins(broker: Broker, store: MessageStore) -> None:
    first = store.min_offset("orders", 0)
    found, begin = pulled(broker, 0, MOST)
    assert [number(each) for each in found] == list(range(first))
    assert begin == first


@pytest.mark.parametrize(("max_bytes", "least", "most"), [(2000, 2, 9), (1, 1, 1)])
def test_archived_pull_has_the_stores_limits(
    broker: Broker, store: MessageStore, max_bytes: int, least: int, most: int
) -> None:
    store.config = replace(store.config, maxTransferBytesOnMessageInMemory=max_bytes)
    for offset in (0, 50):
        found, begin = pulled(broker, offset, MOST)
        assert least <= len(found) <= most
        assert begin == offset + len(found)


def test_offset_before_the_archive_is_too_small(broker: Broker, store: MessageStore) -> None:
    answer = broker.ask(RequestCode.PULL_MESSAGE, pull(broker, -1))
    assert (answer.code, Pulled.of(answer.fields).next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    first = store.min_offset("orders", 0)
    (store.path / "config" / "store.conf").unlink()
    answer = broker.ask(RequestCode.PULL_MESSAGE, pull(broker, 0))
    assert (answer.code, Pulled.of(answer.fields).next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, first)


def test_messages_archived_and_deleted_are_not_skipped(broker: Broker, store: MessageStore) -> None:
    for _ in range(3):
        end = store.max_offset("orders", 0)
        assert number(archived(broker, 0)) == 0
        put(store, end, 200)
        store.archive()
        assert store.clean(forced=True).log
        assert store.min_offset("orders", 0) > end
        assert number(archived(broker, end)) == end


def test_archived_pull_commits_the_groups_offset(broker: Broker) -> None:
    header = structs.replace(pull(broker, 20), sys_flag=SUBSCRIPTION | COMMIT, commit_offset=17)
    assert broker.ask(RequestCode.PULL_MESSAGE, header).code == ResponseCode.SUCCESS
    committed = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", "orders", 0))
    assert Offset.of(committed.fields).offset == 17


def test_messages_deleted_during_a_held_pull_are_not_skipped(broker: Broker, store: MessageStore) -> None:
    """The pull waits for a tag that no message has before the messages are deleted."""
    end = store.max_offset("orders", 0)
    held = broker.pull(end, seconds=1.5, tags="C")
    until(lambda: broker.serving.held == 1)
    put(store, end, 200)
    store.archive()
    assert store.clean(forced=True).log
    assert store.min_offset("orders", 0) > end
    assert broker.serving.held == 1
    answer = held.result()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, answer.remark
    assert Pulled.of(answer.fields).next_begin_offset == store.min_offset("orders", 0)


def ask(broker: Broker, code: int, header: Header) -> dict[str, str]:
    answer = broker.ask(code, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return dict(answer.fields)


def test_bounds_and_search_by_time_include_the_archive(broker: Broker, store: MessageStore) -> None:
    times = [each.store_timestamp for each in all_of(broker)]
    with TieredDirectoryAddress(str(store.path)).open() as log:
        for at in (0, times[0], times[70], times[-1], times[-1] + 1):
            for boundary in Boundary:
                header = SearchOffset("orders", 0, at, boundary.value.upper())
                found = Offset.of(ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)).offset
                assert {ORDERS: found} == log.offsets_by_time([ORDERS], at, boundary)
    assert Offset.of(ask(broker, RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 0))).offset == 0
    earliest = Timestamp.of(ask(broker, RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueue("orders", 0)))
    assert earliest.timestamp == times[0]
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 0, 40))
    body = bytes(broker.ask(RequestCode.GET_CONSUME_STATS, ConsumeStats("group")).body)
    assert b'"lastTimestamp":%d' % times[39] in body
    assert b'"minOffset":0' in bytes(broker.ask(RequestCode.GET_TOPIC_STATS_INFO, Topic("orders")).body)
    reset = broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("group", "orders", times[20], True))
    assert reset.code == ResponseCode.SUCCESS, reset.remark
    assert store.consumer_offset("group", "orders", 0) == times.index(times[20])


def test_single_archived_messages_are_found(broker: Broker, store: MessageStore) -> None:
    for n in (5, 6, COUNT - 1):
        header = QueryMessage("orders", f"k{n}", 32, 0, 1 << 60)
        (found,) = records(bytes(broker.ask(RequestCode.QUERY_MESSAGE, header).body))
        assert (number(found), found.queue_offset) == (n, n)
        view = broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(found.physical_offset, "orders"))
        assert records(bytes(view.body)) == [found]
        assert is_name(found.physical_offset) == (n < COUNT - 1)
    wrong = broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(found.physical_offset, "others"))
    assert (wrong.code, "of topic orders, and not of others" in str(wrong.remark)) == (
        ResponseCode.QUERY_NOT_FOUND,
        True,
    )
    for nothing in (archived(broker, 0).physical_offset + (1 << 39), (1 << 63) - 1, 1 << 62 | 999 << 50):
        assert broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(nothing)).code == ResponseCode.QUERY_NOT_FOUND


def test_archived_message_is_sent_back(broker: Broker, store: MessageStore) -> None:
    for n in (0, 1, 50):
        message = archived(broker, n)
        back = SendBack(message.physical_offset, "group", -1, message.msg_id, "orders")
        answer = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    dead = store.get_message("g", "%DLQ%group", 0, 0).messages
    assert [number(each) for each in dead] == [0, 1, 50]
    assert [each.reconsume_times for each in dead] == [1, 1, 1]
    assert dead[0].properties["ORIGIN_MESSAGE_ID"] == archived(broker, 0).msg_id
    assert dead[1].msg_id == "id-1"
    assert {each.properties["RETRY_TOPIC"] for each in dead} == {"orders"}
    other = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, structs.replace(back, origin_msg_id="id-49"))
    assert (other.code, "id-50, and not id-49" in str(other.remark)) == (ResponseCode.QUERY_NOT_FOUND, True)
    own = store.get_message("g", "orders", 0, COUNT - 2).messages[0]
    here = SendBack(own.physical_offset, "group", -1, offset_msg_id(b"\1\2\3\4", 1, own.physical_offset), "orders")
    for header, code in (
        (here, ResponseCode.SUCCESS),
        (structs.replace(here, origin_msg_id="id-9"), ResponseCode.QUERY_NOT_FOUND),
    ):
        assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).code == code


def test_id_of_another_archive_is_refused(broker: Broker, store: MessageStore, tmp_path: Path) -> None:
    """Topics have other numbers in another archive: the message would be lost and another one delivered again."""
    message = archived(broker, 3)
    assert "UNIQ_KEY" not in message.properties
    put(store, 6, 200, "others")
    other = str(tmp_path / "other")
    conf = store.path / "config" / "store.conf"
    conf.write_text("".join(line for line in conf.read_text().splitlines(True) if not line.startswith("archive=")))
    store.archive(other, topics=["others"])
    assert store.clean(forced=True).log
    back = SendBack(message.physical_offset, "group", -1, message.msg_id, "orders")
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.QUERY_NOT_FOUND
    assert "%DLQ%group" not in store.topics()


def test_failed_archived_messages_are_retried(broker: Broker, store: MessageStore) -> None:
    failing = {*range(0, 20, 2), *range(COUNT - 20, COUNT, 3)}

    def fail(message: ReceivedMessage) -> None:
        if number(message) in failing and message.reconsume_times == 0:
            raise ReconsumeLater(delay_level=1)

    address, seen = ClusterAddress((broker.address,)), Seen(fail)
    with Consumer(address, "late", "orders", seen, config=config()):
        until(lambda: len(seen.messages) == COUNT + len(failing))
    tries = [(number(each), each.reconsume_times) for each in seen.messages]
    assert sorted(tries) == sorted([(n, 0) for n in range(COUNT)] + [(n, 1) for n in failing])


@pytest.mark.parametrize("url", ["remote"], indirect=True)
def test_slow_archive_does_not_block_others(broker: Broker, store: MessageStore) -> None:
    assert len(all_of(broker)) == COUNT
    Gated.gate.clear()
    with Client(timeout=60) as flooding:
        flood, other = [], Broker(broker.serving, flooding)

        def is_stuck() -> bool:
            flood.append(other.pull(len(flood) % 100))
            flood.append(other.begin(RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 0)))
            return Gated.waiting > 0

        until(is_stuck)
        for _ in range(50):
            is_stuck()
        assert broker.send(b"new").code == ResponseCode.SUCCESS
        assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")).code == ResponseCode.SUCCESS
        assert number(pulled(broker, COUNT - 1)[0][0]) == COUNT - 1
        others = broker.ask(RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 1))
        assert others.code == ResponseCode.SUCCESS
        mine = broker.pull(3)
        Gated.gate.set()
        assert [number(each) for each in records(bytes(mine.result().body))][:2] == [3, 4]
        assert all(each.result().code == ResponseCode.SUCCESS for each in flood)


@pytest.mark.parametrize("url", ["remote"], indirect=True)
def test_refused_send_back_has_no_effect(broker: Broker, store: MessageStore) -> None:
    """Its consumer then sends that message as a new one, so it would arrive twice."""
    reads = broker.serving._reads
    back = SendBack(int(names(0, ORDERS.queue_id, np.array([1]))[0]), "group", -1, "id-1", "orders")
    Gated.gate.clear()
    reads._seconds = 0
    asked = broker.begin(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    until(lambda: Gated.waiting > 0)
    assert asked.result().code == ResponseCode.SYSTEM_BUSY
    reads._seconds = 10
    Gated.gate.set()
    until(lambda: reads._workers._idle == len(reads._workers._threads))
    assert "%DLQ%group" not in store.topics()
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS
    assert [number(each) for each in store.get_message("g", "%DLQ%group", 0, 0).messages] == [1]


@pytest.mark.parametrize("url", ["remote"], indirect=True)
def test_adjacent_messages_are_read_together(broker: Broker) -> None:
    before = Gated.reads
    assert len(all_of(broker)) == COUNT
    assert Gated.reads - before < 10


def test_failing_archive_is_an_error(
    broker: Broker, store: MessageStore, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    if url.startswith("gated"):
        Gated.error = PermissionError(13, "denied")
        why = "no permission"
    else:
        shutil.move(url, f"{url}.away")
        why = "the archive's metadata was deleted"
    with caplog.at_level(logging.WARNING, "store.remoting"):
        for code, header in (
            (RequestCode.PULL_MESSAGE, pull(broker, 0)),
            (RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 0)),
            (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(1 << 62)),
        ):
            answer = broker.ask(code, header)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert why in str(answer.remark)
            assert "secret" not in str(answer.remark)
        assert number(pulled(broker, COUNT - 1)[0][0]) == COUNT - 1
        broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 0, 40))
        assert broker.ask(RequestCode.GET_CONSUME_STATS, ConsumeStats("group")).code == ResponseCode.SUCCESS
    assert [why in each.message and "secret" not in each.message for each in caplog.records] == [True]
    if url.startswith("gated"):
        Gated.error = None
    else:
        shutil.move(f"{url}.away", url)
    assert number(archived(broker, 0)) == 0
