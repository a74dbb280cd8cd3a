from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Consumer, ConsumerConfig, Message, MessageStore, ReceivedMessage, StoreFull, delete_topic
from store.client import rebalancer
from store.directory.directory_group import DirectoryGroup
from store.disk.consumer_offsets import ConsumerOffsets
from tests.store.client.consumers import QUEUES, TOPIC, Seen, committed, config, opened, put
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


@pytest.mark.parametrize("orderly", [False, True])
def test_members_share_the_queues_without_repeats(store: MessageStore, orderly: bool) -> None:
    first, second = Seen(), Seen()
    with Consumer(store.path, "g", "t", first, orderly=orderly, config=config()) as one:
        put(store, range(100))
        until(lambda: one.assigned == TOPIC)
        with Consumer(store.path, "g", "t", second, orderly=orderly, config=config()) as two:
            until(lambda: len(one.assigned) == len(two.assigned) == 2)
            assert sorted(one.assigned + two.assigned) == TOPIC
            put(store, range(100, 200))
            until(lambda: len(first.numbers) + len(second.numbers) >= 200)
            assert second.numbers
        until(lambda: one.assigned == TOPIC)
        put(store, range(200, 300))
        until(lambda: len(first.numbers) + len(second.numbers) >= 300)
    assert sorted(first.numbers + second.numbers) == [*range(300)]


def test_orderly_queue_keeps_its_owner_during_a_call(store: MessageStore) -> None:
    put(store, range(8))
    hold, running = threading.Event(), Counter[int]()

    def slow(message: ReceivedMessage) -> None:
        running[message.queue_id] += 1
        assert running[message.queue_id] == 1
        hold.wait(60)
        running[message.queue_id] -= 1

    seen = Seen(slow)
    with Consumer(store.path, "g", "t", seen, orderly=True, config=config()) as one:
        until(lambda: len(seen.numbers) == 4)
        with Consumer(store.path, "g", "t", seen, orderly=True, config=config()) as two:
            until(lambda: len(one.assigned) == 2)
            assert two.assigned == []
            hold.set()
            until(lambda: len(two.assigned) == 2)
            until(lambda: len(seen.numbers) == 8)
    assert sorted(seen.numbers) == [*range(8)]


def test_queues_keep_their_owner_while_close_waits_for_a_call(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the call takes longer than the lock lease."""
    monkeypatch.setattr(rebalancer, "_RENEW_SECONDS", 0.01)
    monkeypatch.setattr(rebalancer, "_LOOK_SECONDS", 0.01)
    put(store, [0])
    hold = threading.Event()
    with Consumer(store.path, "g", "t", seen := Seen(lambda message: hold.wait(60) and None), config=config()) as one:
        until(lambda: seen.numbers == [0])
        close = threading.Thread(target=one.close)
        close.start()
        until(lambda: one._queues.is_closed)
        for _ in range(3):
            since = time.monotonic()
            until(lambda: min(one._member._member_files.entry.claims.values()) > since)  # type: ignore[attr-defined] # noqa: B023
        hold.set()
        close.join()


def test_added_queue_is_consumed(store: MessageStore) -> None:
    with Consumer(store.path, "g", "t", seen := Seen(), config=config()) as consumer:
        until(lambda: consumer.assigned == TOPIC)
        store.create_topic("t", QUEUES + 1)
        store.put(Message("t", b"99", queue_id=QUEUES))
        until(lambda: seen.numbers == [99])


def test_members_continue_while_the_disk_is_full(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Path] = []

    def refuse(path: Path, *_: object, **__: object) -> None:
        refused.append(path)
        raise StoreFull(f"{path}: no space left on the device")

    monkeypatch.setattr(rebalancer, "_PERSIST_SECONDS", 0.0)
    monkeypatch.setattr(rebalancer, "_LOOK_SECONDS", 0.01)
    with Consumer(store.path, "g", "t", seen := Seen(), config=config()) as consumer:
        until(lambda: consumer.assigned == TOPIC)
        with monkeypatch.context() as patched:
            patched.setattr("store.disk.admin_files.write_file", refuse)
            for first in (0, 40):
                put(store, range(first, first + 40))
                count = len(refused)
                until(lambda first=first, count=count: len(seen.numbers) == first + 40 and len(refused) > count + 1)
            assert committed(store) == dict.fromkeys(TOPIC, 0)
        until(lambda: committed(store) == dict.fromkeys(TOPIC, 20))


@pytest.mark.parametrize("orderly", [False, True])
def test_reset_reaches_an_active_group(store: MessageStore, orderly: bool) -> None:
    put(store, range(40))
    with Consumer(store.path, "g", "t", seen := Seen(), orderly=orderly, config=config()):
        until(lambda: len(seen.numbers) == 40)
        DirectoryGroup(store.path, "g").reset({TOPIC[1]: 7})
        until(lambda: len(seen.numbers) == 43)
    assert sorted(seen.numbers[40:]) == [29, 33, 37]
    assert committed(store) == dict.fromkeys(TOPIC, 10)


def test_reset_beyond_the_end_reaches_an_active_group(store: MessageStore) -> None:
    put(store, range(40))
    with Consumer(store.path, "g", "t", seen := Seen(), config=config()) as consumer:
        until(lambda: len(seen.numbers) == 40)
        DirectoryGroup(store.path, "g").reset({TOPIC[1]: 1000})
        until(lambda: consumer._member._member_files.entry.resets == 2 and consumer.assigned == TOPIC)  # type: ignore[attr-defined]
        put(store, range(40, 44))
        until(lambda: len(seen.numbers) == 44)
    assert committed(store) == dict.fromkeys(TOPIC, 11)


def test_last_reset_counts_although_an_old_call_still_runs(
    store: MessageStore,
) -> None:
    put(store, range(40))
    began, hold = threading.Event(), threading.Event()

    def slow(message: ReceivedMessage) -> None:
        if message.queue_id == 1:
            began.set()
            hold.wait(60)

    group = DirectoryGroup(store.path, "g")
    with Consumer(store.path, "g", "t", seen := Seen(slow), orderly=True, config=config()) as consumer:
        assert began.wait(60)
        group.reset({TOPIC[1]: 7})
        until(lambda: TOPIC[1] not in consumer.assigned)
        group.reset({TOPIC[1]: 3})
        until(lambda: consumer._member._member_files.entry.resets == 2)  # type: ignore[attr-defined]
        hold.set()
        expected = [n for n in range(13, 40) if n % QUEUES == 1]
        until(lambda: len(seen.of_queue(1)) > len(expected))
        assert seen.of_queue(1) == [1, *expected]
        until(lambda: consumer.assigned == TOPIC)
    assert committed(store)[TOPIC[1]] == 10


@pytest.mark.parametrize("offsets", ["stay", "go", "are said late"])
def test_members_read_a_recreated_topic_from_its_first_message(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    """Its messages arrived while the group was running. This also holds if the offsets are deleted with the topic, as
    RocketMQ's broker does, and if a late commit for the old topic is applied to the new one."""
    monkeypatch.setattr(rebalancer, "_LOOK_SECONDS", 0.1)
    put(store, range(8))
    with Consumer(store.path, "g", "t", seen := Seen(), config=ConsumerConfig()) as consumer:
        until(lambda: consumer.assigned == TOPIC)
        delete_topic(store.path, "t")
        until(lambda: consumer.assigned == [])
        if offsets == "go":
            ConsumerOffsets(Path(store.path)).delete("g", with_offsets=True)
        store.create_topic("t", QUEUES + 1)
        if offsets == "are said late":
            store.commit_offsets("g", "t", dict.fromkeys(range(QUEUES), 2))
        put(store, range(100, 108))
        store.put(Message("t", b"108", queue_id=QUEUES))
        until(lambda: len(seen.numbers) == 9)
    assert sorted(seen.numbers) == [*range(100, 109)]
