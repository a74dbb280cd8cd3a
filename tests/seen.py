"""The content of a directory as RocketMQ's reader and this store read it, in one form to compare.

RocketMQ's lines come from tests/rocketmq (`RocketMQ.read`); tests/golden/NAME.jsonl has them for the golden
directories. A message is a dict of all columns of `store.columns.COLUMNS`; timestamps are ms.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from store import GetStatus, MessageStore, StoredMessage
from store.format.columns import COLUMNS
from store.format.layout import SYS_COMPRESSED

Row = dict[str, Any]


@dataclass
class Queue:
    """A queue: offsets [minimum, maximum) and its messages in order."""

    minimum: int
    maximum: int
    rows: list[Row] = field(default_factory=list)


QueueName = tuple[str, int]
Queues = dict[QueueName, Queue]
Reader = Callable[[MessageStore], Queues]


def by_rocketmq(lines: Iterable[dict[str, Any]]) -> Queues:
    """Return queues from the lines of RocketMQ's reader; empty queues are left out."""
    queues: Queues = {}
    for line in lines:
        assert line["kind"] != "gap", line
        if line["kind"] == "queue":
            queue_id = line["queueId"]
            queue = queues[line["topic"], queue_id] = Queue(line["min"], line["max"])
        elif line["kind"] == "message":
            queue.rows.append({**_expected_row(line), "queueId": queue_id})  # RocketMQ's client overwrites it, too
    return {name: queue for name, queue in queues.items() if queue.maximum}


def golden(path: Path) -> Queues:
    return by_rocketmq(map(json.loads, path.read_text("utf-8").splitlines()))


def assert_same(ours: Queues, theirs: Queues) -> None:
    bounds, expected = ({name: (q.minimum, q.maximum) for name, q in each.items()} for each in (ours, theirs))
    differing = sorted(bounds.items() ^ expected.items())
    assert bounds == expected, f"ours or RocketMQ's: {differing}"
    differences = [
        f"{name} @ {theirs_row['queueOffset']}: {column} is {ours_row[column]!r}, RocketMQ has {theirs_row[column]!r}"
        for name, queue in theirs.items()
        for ours_row, theirs_row in zip(ours[name].rows, queue.rows, strict=True)
        for column in COLUMNS
        if ours_row[column] != theirs_row[column]
    ]
    assert not differences, f"{len(differences)} fields differ:\n" + "\n".join(differences[:10])


def by_scan(store: MessageStore, names: Iterable[QueueName] | None = None) -> Queues:
    """Read every queue, or only `names`, completely with `scan`, all columns."""
    return {
        name: Queue(*store.offsets(*name), rows=_scan(store, *name))
        for name in (queues_of(store) if names is None else names)
        if store.max_offset(*name)
    }


def by_get_message(store: MessageStore, names: Iterable[QueueName] | None = None) -> Queues:
    """Read every queue, or only `names`, completely with repeated `get_message`."""
    queues: Queues = {}
    for topic, queue_id in queues_of(store) if names is None else names:
        queue = Queue(*store.offsets(topic, queue_id))
        offset = queue.minimum
        while offset < queue.maximum:
            result = store.get_message("test", topic, queue_id, offset)
            assert result.status is GetStatus.FOUND
            assert result.next_begin_offset == offset + len(result.messages)
            queue.rows += [_message_row(message) for message in result.messages]
            offset = result.next_begin_offset
        if queue.maximum:
            queues[topic, queue_id] = queue
    return queues


def queues_of(store: MessageStore) -> list[QueueName]:
    """Return all queues as (topic, queue id)."""
    return [(topic, queue_id) for topic, count in store.topics().items() for queue_id in range(count)]


def _scan(store: MessageStore, topic: str, queue_id: int) -> list[Row]:
    batches = store.scan(topic, queue_id, *store.offsets(topic, queue_id), columns=tuple(COLUMNS))
    table = pa.Table.from_batches(batches, pa.schema(list(COLUMNS.items())))
    for name in ("bornTimestamp", "storeTimestamp"):
        at = table.schema.get_field_index(name)
        ms = pc.divide(table[name].cast(pa.int64()), 1000)
        table = table.set_column(at, name, ms)
    return [{**row, "properties": dict(row["properties"])} for row in table.to_pylist()]


def _message_row(message: StoredMessage) -> Row:
    return {
        "bodyError": None,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": _keys(message.properties),
        "body": message.body,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "properties": message.properties,
        "physicalOffset": message.physical_offset,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "brokerName": None,
    }


def _expected_row(line: dict[str, Any]) -> Row:
    same = {name: line[name] for name in COLUMNS if name in line}
    return {
        **same,
        "bodyError": None,
        "body": base64.b64decode(line["body"]),
        "sysFlag": line["sysFlag"] & ~SYS_COMPRESSED,  # after inflating, RocketMQ 5 clears it and 4.9 leaves it
        "properties": {name: value for name, value in line["properties"].items() if name != "__CRC32#"},
        "tags": line["properties"].get("TAGS"),
        "keys": _keys(line["properties"]),
        "bornHost": _host(line["bornHost"]),
        "storeHost": _host(line["storeHost"]),
        "brokerName": None,
    }


def _keys(properties: dict[str, str]) -> str | None:
    keys = properties.get("KEYS")
    return keys and keys.rstrip(" ")


def _host(text: str) -> str:
    ip, port = text.split("|")
    address = ipaddress.ip_address(ip)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
