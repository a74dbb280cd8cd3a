from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from store import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    GroupConflict,
    InvalidArgument,
    Message,
    MessageModel,
    MessageStore,
    OffsetLost,
    ReceivedMessage,
    StoreError,
    StoreReplaced,
    Subscription,
    UnknownTopic,
)
from store.api.message_store import delete_topic
from store.broker import hold
from store.client import rebalancer
from store.directory.directory_group import DirectoryGroup
from store.disk.consumer_offsets import ConsumerOffsets
from tests.store.client.consumers import FIRST, QUEUES, TOPIC, Seen, committed, config, opened, put
from tests.takeover import broker
from tests.waiting import PATIENCE, until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("most", [1, 7])
def test_listener_gets_each_message_once(store: MessageStore, orderly: bool, most: int) -> None:
    put(store, range(100))
    seen = Seen()
    with Consumer(store.path, "g", "t", seen, orderly=orderly, config=config(consume_message_batch_max_size=most)):
        until(lambda: len(seen.numbers) >= 100)
        put(store, range(100, 150))
        until(lambda: len(seen.numbers) >= 150)
    assert sorted(seen.numbers) == [*range(150)]
    assert max(seen.calls) == most
    assert committed(store) == {queue: store.max_offset(queue.topic, queue.queue_id) for queue in TOPIC}
    with Consumer(store.path, "g", "t", again := Seen(), orderly=orderly):
        put(store, [150])
        until(lambda: again.numbers != [])
    assert again.numbers == [150]


def test_orderly_consumer_keeps_the_order_of_each_queue(store: MessageStore) -> None:
    put(store, range(200))
    seen = Seen()
    with Consumer(store.path, "g", "t", seen, orderly=True, config=config(consume_message_batch_max_size=3)):
        until(lambda: len(seen.numbers) >= 200)
    for queue_id in range(QUEUES):
        assert seen.of_queue(queue_id) == [*range(queue_id, 200, QUEUES)]


def test_concurrent_calls_do_not_wait_for_each_other(store: MessageStore) -> None:
    second = threading.Event()
    seen = Seen(lambda message: second.set() if message.body == b"4" else second.wait(60) and None)
    put(store, [0, 4])
    with Consumer(store.path, "g", "t", seen, config=config()):
        until(second.is_set)
    assert committed(store)[TOPIC[0]] == 2


def test_committed_offset_is_the_lowest_unfinished_message(store: MessageStore) -> None:
    put(store, range(0, 40, QUEUES))
    hold, seen = threading.Event(), Seen(lambda message: hold.wait(60) and None if message.body == b"12" else None)
    quick = config(await_termination_when_shutdown=0.0)
    consumer = Consumer(store.path, "g", "t", seen, config=quick)
    until(lambda: len(seen.numbers) == 10)
    consumer.close()
    hold.set()
    assert committed(store)[TOPIC[0]] == 3
    with Consumer(store.path, "g", "t", again := Seen(), config=config()):
        until(lambda: len(again.numbers) == 7)
    assert sorted(again.numbers) == [*range(12, 40, QUEUES)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("odd", [*range(1, 40, 2)]),
        (Subscription("TAGS = 'even'", "SQL92"), [*range(0, 40, 2)]),
        ("nothing", []),
    ],
)
def test_filters_select_messages(store: MessageStore, expression: str | Subscription, expected: list[int]) -> None:
    put(store, range(40))
    with Consumer(store.path, "g", {"t": expression}, seen := Seen(), config=config()) as consumer:
        until(lambda: len(seen.numbers) >= len(expected))
        put(store, range(40, 48))
        until(lambda: len(seen.numbers) >= len(expected) * 1.2)
        until(lambda: consumer.assigned == TOPIC)
    assert sorted(seen.numbers)[: len(expected)] == expected


def test_messages_without_a_match_are_acknowledged(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "CHECK_SECONDS", 0.1)
    put(store, range(40))
    with Consumer(store.path, "g", {"t": "nothing"}, Seen(), config=config()) as consumer:
        until(lambda: consumer._member.committed(TOPIC) == dict.fromkeys(TOPIC, 10))


@pytest.mark.parametrize(("where", "expected"), [(FIRST, 8), (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 4)])
def test_new_group_begins_as_configured(store: MessageStore, where: ConsumeFromWhere, expected: int) -> None:
    put(store, range(4))
    with Consumer(store.path, "g", "t", seen := Seen(), config=config(consume_from_where=where)) as consumer:
        until(lambda: consumer.assigned == TOPIC)
        put(store, range(4, 8))
        until(lambda: len(seen.numbers) >= expected)
    assert sorted(seen.numbers) == [*range(8 - expected, 8)]


def test_new_group_gets_messages_put_after_its_consumer_was_made(store: MessageStore) -> None:
    settings = config(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    for number in range(20):
        with Consumer(store.path, f"g{number}", "t", config=settings):
            assert committed(store, f"g{number}") == dict.fromkeys(TOPIC, 0)


def test_new_group_begins_in_all_queues_at_once(store: MessageStore) -> None:
    """Members may divide the queues before any of them has read."""
    put(store, range(8))
    settings = config(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    other = DirectoryGroup(store.path, "g").join({"t": Subscription()})
    with other, Consumer(store.path, "g", "t", seen := Seen(), config=settings) as consumer:
        until(lambda: len(consumer.assigned) == 2)
        other.leave()
        until(lambda: len(consumer.assigned) == 4)
        put(store, range(8, 12))
        until(lambda: len(seen.numbers) >= 4)
    assert sorted(seen.numbers) == [8, 9, 10, 11]


def test_broadcasting_consumers_all_get_everything(store: MessageStore) -> None:
    put(store, range(20))
    each = config(message_model=MessageModel.BROADCASTING)
    with (
        Consumer(store.path, "g", "t", one := Seen(), instance="one", config=each),
        Consumer(store.path, "g", "t", two := Seen(), instance="two", config=each),
    ):
        until(lambda: len(one.numbers) + len(two.numbers) >= 40)
    assert sorted(one.numbers) == sorted(two.numbers) == [*range(20)]


def test_broadcasting_offset_beyond_the_end_is_corrected_alone(store: MessageStore) -> None:
    put(store, range(20))
    each = config(message_model=MessageModel.BROADCASTING)
    for instance, position in (("ahead", 50), ("behind", 3)):
        positions = dict.fromkeys(TOPIC, position)
        ConsumerOffsets.of_instance(Path(store.path), "g", instance).commit_positions("g", positions)
    with Consumer(store.path, "g", "t", instance="ahead", config=each) as ahead:
        until(lambda: ahead._member.committed(TOPIC) == dict.fromkeys(TOPIC, 5))
    with Consumer(store.path, "g", "t", behind := Seen(), instance="behind", config=each):
        until(lambda: len(behind.numbers) >= 8)
    assert sorted(behind.numbers) == [*range(12, 20)]


def test_members_with_different_subscriptions_conflict(store: MessageStore) -> None:
    with Consumer(store.path, "g", {"t": "odd"}, config=config()):
        with pytest.raises(GroupConflict, match="even"):
            Consumer(store.path, "g", {"t": "even"})
        with pytest.raises(GroupConflict, match="orderly"):
            Consumer(store.path, "g", {"t": "odd"}, orderly=True)


async def coroutine(messages: Sequence[ReceivedMessage]) -> None:
    pass


@pytest.mark.parametrize(
    ("topics", "more", "error"),
    [
        ("nowhere", {}, UnknownTopic),
        ({}, {}, InvalidArgument),
        (7, {}, InvalidArgument),
        ("t", {"listener": 7}, InvalidArgument),
        ("t", {"config": {"consume_thread_max": 5}}, InvalidArgument),
        ("t", {"listener": coroutine}, InvalidArgument),
    ],
)
def test_wrong_arguments_are_refused(store: MessageStore, topics: Any, more: Any, error: type[StoreError]) -> None:
    with pytest.raises(error):
        Consumer(store.path, "g", topics, **more)
    with pytest.raises(StoreError):
        DirectoryGroup(store.path, "g").reset({})


@pytest.mark.parametrize(
    "settings",
    [
        {"consume_thread_max": 0},
        {"pull_threshold_for_queue": "7"},
        {"consume_timeout": -1.0},
        {"message_model": "both"},
    ],
)
def test_wrong_configuration_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(settings))):
        ConsumerConfig(**settings)


def test_corrupt_record_ends_the_consumer(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, range(8))
    (segment,) = sorted((Path(store.path) / "commitlog").iterdir())[:1]
    at = segment.read_bytes().index(b"t\x00") - 1
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    consumer = Consumer(store.path, "g", "t", Seen(), config=config())
    with pytest.raises(StoreError, match="pyspark-mq verify"):
        consumer.wait(60)
    with pytest.raises(StoreError, match="pyspark-mq verify"):
        consumer.close()


@pytest.mark.parametrize("expression", ["*", "even || odd"])
def test_lost_segment_ends_the_consumer(store: MessageStore, expression: str) -> None:
    for first in range(0, 40, QUEUES):
        put(store, range(first, first + QUEUES), properties={"p": "x" * 5000})
    middle = sorted((store.path / "commitlog").iterdir())[1]
    middle.unlink()
    with (
        pytest.raises(OffsetLost, match=f"{middle.name}: this segment is missing"),
        Consumer(store.path, "g", {"t": expression}, Seen(), config=config()) as consumer,
    ):
        consumer.wait(PATIENCE)
    assert set(committed(store).values()) <= {0, 1, 2, 3}


def test_new_owner_of_the_directory_ends_the_consumer(tmp_path: Path) -> None:
    path, seen = tmp_path / "mq", Seen()
    with opened(tmp_path) as store:
        put(store, range(8))
    consumer = Consumer(path, "g", "t", seen, config=config())
    until(lambda: len(seen.numbers) == 8)
    with broker(path) as theirs:
        put(theirs, range(8, 16))
        with pytest.raises(StoreReplaced, match="Close this store and open it again"):
            consumer.wait(PATIENCE)
        with pytest.raises(StoreReplaced):
            consumer.close()
    with Consumer(path, "g", "t", seen, config=config()):
        until(lambda: len(seen.numbers) == 16)
    assert sorted(seen.numbers) == list(range(16))


def test_messages_deleted_before_consumption_are_logged(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, range(4))
    with Consumer(store.path, "g", "t", seen := Seen(), config=config()):
        until(lambda: len(seen.numbers) == 4)
    put(store, range(4, 4004))
    store.clean(forced=True)
    left = sum(
        maximum - minimum for minimum, maximum in (store.offsets(queue.topic, queue.queue_id) for queue in TOPIC)
    )
    assert left < 4000
    with Consumer(store.path, "g", "t", again := Seen(), config=config()):
        until(lambda: len(again.numbers) == left)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([line for line in told if "deleted before they were consumed" in line]) == QUEUES


def test_messages_of_a_repeatedly_recreated_topic_are_consumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic may be missing only between two checks."""
    monkeypatch.setattr(rebalancer, "_LOOK_SECONDS", 0.1)
    got: set[bytes] = set()
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with Consumer(tmp_path, "g", "t", lambda messages: got.update(each.body for each in messages), config=first):
        for life in range(6):
            put = [b"%d-%d" % (life, n) for n in range(1 + 3 * life)]
            with MessageStore.open(tmp_path) as store:
                store.create_topic("t", 2)
                store.put_many([Message("t", body) for body in put])
            until(lambda: got.issuperset(put))  # noqa: B023
            delete_topic(tmp_path, "t")
            time.sleep(0.1 * (life % 3))


def test_member_that_dies_early_takes_nothing_from_a_new_group(store: MessageStore) -> None:
    """It owns the queues and dies; then another consumer is created."""
    put(store, range(4))
    with DirectoryGroup(store.path, "g").join({"t": Subscription()}) as member:
        assert member.lock(TOPIC) == {*TOPIC}
        consumer = Consumer(store.path, "g", "t", seen := Seen())
        put(store, range(4, 8))
    with consumer:
        until(lambda: {*TOPIC} <= {*consumer.assigned})
        put(store, [8])
        until(lambda: len(seen.numbers) >= 5)
    assert sorted(seen.numbers) == [4, 5, 6, 7, 8]


def test_topics_may_be_a_list(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        for topic in ("one", "two"):
            store.create_topic(topic, 1)
            store.put(Message(topic, topic))
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with Consumer(tmp_path, "group", ["one", "two"], config=first) as consumer:
        assert {message.topic for message in itertools.islice(consumer, 2)} == {"one", "two"}


def test_consumer_prints_its_state(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t") as consumer:
        assert repr(consumer) == f"<Consumer('{store.path}', 'g', ...): open, {QUEUES} queues>"
    assert repr(consumer) == f"<Consumer('{store.path}', 'g', ...): closed>"


def test_failed_consumer_prints_its_error(store: MessageStore) -> None:
    consumer = Consumer(store.path, "g", "t")
    consumer._threads._guarded(_fail)
    assert repr(consumer) == f"<Consumer('{store.path}', 'g', ...): open, stopped by OSError>"
    with pytest.raises(OSError, match="broken"):
        consumer.close()


def _fail() -> None:
    raise OSError("broken")
