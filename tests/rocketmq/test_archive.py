"""Archives: RocketMQ's tiered store (PosixFileSegment) reads what we wrote, and we read what it wrote."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from store import Message, MessageStore, StoreConfig
from store.any_log import Queue, QueueRange, ReadSpec
from store.archive.layout import DEFAULT_CLUSTER, cluster_folder
from store.archive.log import ArchiveAddress
from store.read.filters import EVERYTHING
from tests.logs.archives import archived
from tests.rocketmq.golden import records_of
from tests.rocketmq.harness import RocketMQ

pytestmark = pytest.mark.rocketmq

COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bornTimestamp", "bodyCRC", "body")


def put(store: MessageStore, count: int) -> None:
    """Of all lengths, with tags and properties, in three queues of two topics."""
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
            for batch in log.scan(QueueRange(*queue, *bounds), ReadSpec(COLUMNS, EVERYTHING)):
                for row in batch.to_pylist():
                    times = {name: int(row[name].timestamp() * 1000 + 0.5) for name in row if name.endswith("stamp")}
                    found.append(tuple({**row, **times}.values()))
    return sorted(found)


def test_it_reads_what_we_archived(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    url = tmp_path / "archive"
    with archived(tmp_path, str(url)) as it:
        it.create_topic("orders", 2)
        it.create_topic("invoices", 1)
        for count in (100, 3, 1):  # the last segments are written anew, and longer
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


def test_we_read_what_it_archived(tmp_path: Path, rocketmq5: RocketMQ) -> None:
    url = tmp_path / "archive"
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(enabledAppendPropCRC=False)) as store:
        store.create_topic("orders", 2)
        store.create_topic("invoices", 1)
        put(store, 60)
    rocketmq5.tiered("write", url, url, list(records_of(tmp_path / "mq")))
    lines = rocketmq5.tiered("read", url, url)
    assert len(theirs(lines)) == 120
    assert ours(ArchiveAddress(str(url))) == theirs(lines)
