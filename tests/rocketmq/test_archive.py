"""RocketMQ's tiered store (PosixFileSegment) reads our archives, and we read its archives."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from store import Message, MessageStore, StoreConfig
from store.archive.archive_log import ArchiveAddress
from store.archive.catalog import DEFAULT_CLUSTER, cluster_folder
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.read.query import KeyQuery
from tests.logs.archives import archived
from tests.restarted import delete_as_broker
from tests.rocketmq.golden import records_of
from tests.rocketmq.harness import RocketMQ

pytestmark = pytest.mark.rocketmq

COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bornTimestamp", "bodyCRC", "body")


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        body = bytes([number % 256]) * (number * 37 % 900)
        store.put(Message("orders", body, queue_id=number % 2, tags="AB"[number % 2], properties={"n": str(number)}))
        store.put(Message("invoices", body, keys=(f"k{number}",)))


def theirs(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    messages = [line for line in lines if line["kind"] == "message"]
    assert all(line["entryOffset"] == line["physicalOffset"] for line in messages)
    names = [name for name in COLUMNS if name != "body"]
    return sorted((*(line[name] for name in names), base64.b64decode(line["body"])) for line in messages)


def ours(address: ArchiveAddress) -> list[tuple[Any, ...]]:
    found = []
    with address.open() as log:
        for queue, bounds in log.bounds([queue for queues in log.topics().values() for queue in queues]).items():
            for batch in log.scan(QueueRange(queue, *bounds), ReadSpec(COLUMNS, EVERYTHING)):
                for row in batch.to_pylist():
                    times = {name: int(row[name].timestamp() * 1000 + 0.5) for name in row if name.endswith("stamp")}
                    found.append(tuple({**row, **times}.values()))
    return sorted(found)


def test_rocketmq_reads_our_archive(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    url = tmp_path / "archive"
    with archived(tmp_path, str(url)) as it:
        it.create_topic("orders", 2)
        it.create_topic("invoices", 1)
        for count in (100, 3, 1):
            put(it.store, count)
            it.archive()
        ends = it.address.open().bounds([Queue("orders", 1)])
    root = url / cluster_folder(DEFAULT_CLUSTER) / "mq"
    lines = rocketmq5.tiered("read", url, root, broker="mq", log_bytes=1 << 30, queue_bytes=100 << 20)
    queues = {Queue(line["topic"], line["queueId"]): (line["min"], line["max"]) for line in lines if "min" in line}
    assert queues[Queue("orders", 1)] == ends[Queue("orders", 1)]
    assert len(queues) == 3
    assert len(theirs(lines)) == 208
    assert ours(it.address) == theirs(lines)
    times = [line for line in lines if line["kind"] == "message"]
    assert all(line["byTime"] <= line["queueOffset"] for line in times)


def test_we_read_rocketmqs_archive(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    url = tmp_path / "archive"
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(enabledAppendPropCRC=False)) as store:
        store.create_topic("orders", 2)
        store.create_topic("invoices", 1)
        put(store, 60)
    rocketmq5.tiered("write", url, url, list(records_of(tmp_path / "mq")))
    lines = rocketmq5.tiered("read", url, url)
    assert len(theirs(lines)) == 120
    assert ours(ArchiveAddress(str(url))) == theirs(lines)


def found(lines: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(line["topic"], line["key"], line["queueId"], line["queueOffset"]) for line in lines}


def found_by_us(address: ArchiveAddress, questions: list[dict[str, str]]) -> set[tuple[Any, ...]]:
    with address.open() as log:
        return {
            (each["topic"], each["key"], message.queue_id, message.queue_offset)
            for each in questions
            for message in log.query(KeyQuery(each["topic"], each["key"], 1000))
        }


def put_with_keys(store: MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        keys = (f"k{number % 7}", f"k{number}", "all")[: 1 + number % 3]
        own = {"UNIQ_KEY": f"id{number}"} if number % 2 else {}
        store.put(Message("orders", b"%d" % number, queue_id=number % 2, keys=keys, properties=own))
        store.put(Message("invoices", b"%d" % number, keys=keys))


QUESTIONS = [
    {"topic": topic, "key": key}
    for topic in ("orders", "invoices")
    for key in ("all", "none", *(f"k{n}" for n in range(40)), *(f"id{n}" for n in range(40)))
]


def test_rocketmq_finds_keys_in_our_archive(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    url = tmp_path / "archive"
    with archived(tmp_path, str(url)) as it:
        it.create_topic("orders", 2)
        it.create_topic("invoices", 1)
        for first, count in ((0, 25), (25, 10), (35, 5)):
            put_with_keys(it.store, count, first)
            it.archive()
    root = url / cluster_folder(DEFAULT_CLUSTER) / "mq"
    lines = rocketmq5.tiered("query", url, root, QUESTIONS, broker="mq", log_bytes=1 << 30, queue_bytes=100 << 20)
    assert found(lines) == found_by_us(it.address, QUESTIONS)
    assert len(lines) > 100


def test_rocketmq_reads_our_archive_of_a_restarted_topic(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    """It no longer finds the forgotten messages of the first topic, by queue or by key."""
    url = tmp_path / "archive"
    with archived(tmp_path, str(url)) as it:
        it.create_topic("orders", 2)
        it.create_topic("invoices", 1)
        it.create_topic("empty", 1)
        put_with_keys(it.store, 40)
        it.store.put(Message("empty", b"of the first", keys=("k1",)))
        it.archive()
        for topic, queues in (("orders", 2), ("empty", 1)):
            delete_as_broker(it.store.path, topic)
            it.store.create_topic(topic, queues)
        put_with_keys(it.store, 10, 100)
        assert it.store.archive(str(url), forget=["orders", "empty"]).forgotten == 41
    root = url / cluster_folder(DEFAULT_CLUSTER) / "mq"
    lines = rocketmq5.tiered("read", url, root, broker="mq", log_bytes=1 << 30, queue_bytes=100 << 20)
    assert {line["topic"]: line["max"] for line in lines if "min" in line} == {"orders": 5, "invoices": 50, "empty": 0}
    assert ours(it.address) == theirs(lines)
    questions = [*QUESTIONS, *({"topic": "orders", "key": f"k{n}"} for n in range(100, 110))]
    lines = rocketmq5.tiered("query", url, root, questions, broker="mq", log_bytes=1 << 30, queue_bytes=100 << 20)
    assert found(lines) == found_by_us(it.address, questions)
    assert len(lines) > 40


def test_we_find_keys_in_rocketmqs_archive(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    url = tmp_path / "archive"
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(enabledAppendPropCRC=False)) as store:
        store.create_topic("orders", 2)
        store.create_topic("invoices", 1)
        put_with_keys(store, 40)
    rocketmq5.tiered("write", url, url, list(records_of(tmp_path / "mq")), slots=50)
    lines = rocketmq5.tiered("query", url, url, QUESTIONS, slots=50)
    assert found_by_us(ArchiveAddress(str(url)), QUESTIONS) == found(lines)
    assert len(lines) > 100
