"""Give `config/*.json` of this store to a real broker, and read that broker's files."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.disk.admin_files import write_json
from store.disk.consumer_offsets import ConsumerOffsets, delay_offsets
from store.format.layout import DELAY_OFFSETS_FILE, SCHEDULE_DELAYS_MS, SCHEDULE_TOPIC
from store.format.message import encode_messages
from store.format.records import Encoding
from store.format.topic_names import is_internal_topic
from tests.rocketmq.harness import Broker, Json, RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=2000, **INDEX)
COMMITTED = {0: 4, 1: 10, 2: 7}
NAMED_AFTER_THE_BROKER = {"harness", "DefaultCluster"}
DELAYED_TO = 1  # the queue


def fill(path: Path) -> dict[tuple[int, int], bytes]:
    """Return the messages that a group at `COMMITTED` must read, with two of three delayed messages at the end."""
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("orders", queues=3)
        store.create_topic(SCHEDULE_TOPIC, queues=len(SCHEDULE_DELAYS_MS))
        messages = [Message("orders", f"{n}".encode(), queue_id=n % 3, tags="paid", keys=(f"k{n}",)) for n in range(30)]
        placed = store.put_many(messages)
        delayed = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": f"{DELAYED_TO}"}
        later = [Message(SCHEDULE_TOPIC, f"late {n}".encode(), queue_id=0, properties=delayed) for n in range(3)]
        encoding = Encoding(SMALL.store_host, SMALL.maxMessageSize)
        # only a broker puts into this topic, so bypass the check
        store._writing().append([encode_messages(later, [0] * 3, encoding, 0)])
        store.commit_offsets("readers", "orders", COMMITTED)
    ConsumerOffsets(path).settings.create("readers")
    write_json(path / DELAY_OFFSETS_FILE, {"offsetTable": {"1": 1}})
    left = {
        (put.queue_id, put.queue_offset): message.body
        for put, message in zip(placed, messages, strict=True)
        if put.queue_offset >= COMMITTED[put.queue_id]
    }
    return left | {(DELAYED_TO, 10): b"late 1", (DELAYED_TO, 11): b"late 2"}


def described(broker: Broker, topic: str = "orders") -> Json:
    broker.ask("describe", topic=topic, group="readers")
    return next(broker)


def test_broker_and_store_continue_from_each_others_files(rocketmq: RocketMQ, tmp_path: Path) -> None:
    path = tmp_path / "mq"
    expected = fill(path)
    groups = ConsumerOffsets(path)

    def delays_are_persisted() -> bool:
        broker.ask("persist")
        assert next(broker)["kind"] == "persisted"
        return delay_offsets(path)[1] == 3

    with rocketmq.broker(path, INDEX, topic="orders") as broker:
        answer = described(broker)
        named = {topic for topic in answer["systemTopics"] if not is_internal_topic(topic)}
        assert named - {"DefaultCluster_REPLY_TOPIC"} == NAMED_AFTER_THE_BROKER
        assert (answer["topic"]["readQueueNums"], answer["topic"]["perm"]) == (3, 6)
        assert answer["offsets"] == {str(queue): offset for queue, offset in COMMITTED.items()}
        settings = groups.settings.of("readers") or {}
        plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
        known = answer["group"].keys() & plain.keys()
        assert {"groupName", "retryMaxTimes", "consumeEnable"} <= known
        assert all(answer["group"][name] == plain[name] for name in known)

        broker.ask("consume", topic="orders", group="readers", messages=len(expected))
        consumed = list(iter(broker.__next__, {"kind": "done"}))
        assert len(consumed) == len(expected)
        assert {(line["queueId"], line["queueOffset"]): base64.b64decode(line["body"]) for line in consumed} == expected
        ends = {0: 10, 1: 12, 2: 10}
        until(lambda: described(broker)["offsets"] == {str(queue): end for queue, end in ends.items()})
        until(delays_are_persisted)

    with MessageStore.open(path) as store:
        assert {queue: store.consumer_offset("readers", "orders", queue) for queue in ends} == ends
        assert {queue: store.max_offset("orders", queue) for queue in ends} == ends
        assert store.topics()["orders"] == 3
        store.commit_offsets("readers", "orders", {0: 2})
        store.create_topic("orders", queues=4)
    with rocketmq.broker(path, INDEX, topic="orders") as broker:
        answer = described(broker)
        assert answer["topic"]["writeQueueNums"] == 4
        assert answer["offsets"] == {"0": 2, "1": 12, "2": 10, "3": -1}
