from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store import Message, MessageRefused, MessageStore, StoreBusy, StoreConfig
from store.api.message_store import delete_topic
from store.append.appender import Appender
from store.append.putting import encoding_of
from store.format.delayed import MessageDelays, waiting
from store.format.encoding import encode_list
from store.format.layout import DELAY_OFFSETS_FILE
from store.format.records import EncodedRecords, as_columns
from store.upkeep.retention import CleanDecision, CleanReason, Retention
from tests.children import in_a_child
from tests.store.delays.dying_deliverers import QUEUES, TOPIC
from tests.store.delays.test_deliverer import SMALL, bodies, opened, threads
from tests.store.format.test_delayed import all_of
from tests.waiting import until


def test_messages_of_a_deleted_topic_are_logged_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        store.create_topic("gone", 1)
        store.put_many([Message("gone", b"1", delay_level=1), Message(TOPIC, b"2", delay_level=1)])
    delete_topic(tmp_path, "gone")
    with caplog.at_level(logging.ERROR, "store"), opened(tmp_path) as store:
        until(lambda: len(all_of(store, TOPIC)) == 1)
        assert "gone" not in store.topics()
    assert "1 delayed messages are lost, because their topics were deleted: gone" in caplog.text


def test_recreated_topic_gets_waiting_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in RocketMQ. The topic may even be recreated when the messages are ready to be appended."""
    append, is_over = Appender.append, threading.Event()

    def append_late(appender: Appender, *pieces: Any, **how: Any) -> Any:
        if threading.current_thread().name == "mq-deliver" and not is_over.is_set():
            delete_topic(tmp_path, TOPIC)
            store.create_topic(TOPIC, QUEUES)
            is_over.set()
        return append(appender, *pieces, **how)

    with opened(tmp_path) as store:
        monkeypatch.setattr(Appender, "append", append_late)
        store.put_many([Message(TOPIC, b"old", delay_level=1)])
        assert is_over.wait(30)
        store.put(Message(TOPIC, b"new", delay_level=1))
        until(lambda: bodies(store) == {b"old": 1, b"new": 1})


@pytest.mark.parametrize("how", ["level", "time"])
def test_message_of_a_missing_queue_goes_to_another_one(tmp_path: Path, how: str) -> None:
    soon = int(time.time() * 1000) + 1000
    with opened(tmp_path) as store:
        append, waits = store.begin(), {"delay_level": 1} if how == "level" else {"deliver_at": soon}
        append.add_messages([Message(TOPIC, b"1", queue_id=QUEUES - 1, **waits)])
        delete_topic(tmp_path, TOPIC)
        store.create_topic(TOPIC, 1)
        append.publish()
        store.put(Message(TOPIC, b"2", delay_level=1))
        until(lambda: store.max_offset(TOPIC, 0) == 2)
        assert bodies(store) == {b"1": 1, b"2": 1}


def test_undeliverable_message_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its record is too long only in its real topic, whose name is longer than the delay topic's. If an append fails
    once, the other messages are still delivered once."""
    calls, append = itertools.count(), Appender.append

    def append_but_once(appender: Appender, *pieces: Any, **how: Any) -> Any:
        if threading.current_thread().name == "mq-deliver" and next(calls) == 2:
            raise StoreBusy("once")
        return append(appender, *pieces, **how)

    def waits(body: bytes) -> EncodedRecords:
        records = encode_list([Message("t" * 127, body)], [0], encoding_of(SMALL), int(time.time() * 1000))
        return waiting(as_columns(records), MessageDelays(np.array([1]), np.array([0])), encoding_of(SMALL))

    monkeypatch.setattr(Appender, "append", append_but_once)
    with caplog.at_level(logging.ERROR, "store"), opened(tmp_path) as store:
        store.create_topic("t" * 127, 1)
        others = store._records.of_messages([Message(TOPIC, b"%d" % n, delay_level=1) for n in range(10)])
        largest = store._log.max_record_bytes - int(waits(b"").sizes[0])
        store._writing().append([others, waits(b"x" * largest)])
        until(lambda: len(bodies(store)) == 10)
        assert set(bodies(store).values()) == {1}
        assert all_of(store, "t" * 127) == []
    assert (
        "1 delayed messages are lost, because they do not fit a commit log segment with the names of their topics"
        in caplog.text
    )


@pytest.mark.parametrize("as_table", [False, True])
def test_undeliverable_message_is_refused_at_once(tmp_path: Path, as_table: bool) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t" * 127, 1)

        def put(size: int) -> None:
            if as_table:
                store.append_table("t" * 127, pa.table({"body": [b"x" * size], "delayLevel": [1]}))
            else:
                store.put(Message("t" * 127, b"x" * size, delay_level=1))
            sizes.append(size)

        sizes: list[int] = []
        with pytest.raises(MessageRefused, match="which grows when it moves to its own topic"):
            list(map(put, itertools.count(SMALL.mappedFileSizeCommitLog - 500)))
        assert sizes
        until(lambda: store.max_offset("t" * 127, 0) == len(sizes))


def test_damaged_messages_do_not_block_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        placed = store.put_many([Message(TOPIC, b"body %d" % n, delay_level=1) for n in range(3)])
    (segment,) = (tmp_path / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    content[placed[1].physical_offset + 88] ^= 1
    segment.write_bytes(content)
    with caplog.at_level(logging.ERROR, "store"), opened(tmp_path) as store:
        until(lambda: len(all_of(store, TOPIC)) == 2)
        assert bodies(store).keys() == {b"body 0", b"body 2"}
    assert "a delayed message is lost" in caplog.text


def test_damaged_progress_file_stops_delivery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message might otherwise be delivered twice; puts still work. Once the file is corrected, a process that opens
    the store delivers, even if the other process still has the store open."""
    with opened(tmp_path) as store:
        store.put(Message(TOPIC, b"", delay_level=1))
    sound = (tmp_path / DELAY_OFFSETS_FILE).read_text()
    (tmp_path / DELAY_OFFSETS_FILE).write_text('{"offsetTable": {"1": "x"}}')
    with caplog.at_level(logging.ERROR, "store"), opened(tmp_path) as store:
        until(lambda: threads() == [])
        store.put(Message(TOPIC, b"now"))
        assert bodies(store) == {b"now": 1}
        (tmp_path / DELAY_OFFSETS_FILE).write_text(sound)
        with opened(tmp_path):
            until(lambda: bodies(store) == {b"now": 1, b"": 1})
    assert "delayOffset.json: offsetTable['1'] is \"x\"" in caplog.text


def test_messages_deleted_by_a_brokers_retention_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ours deletes no waiting message. Later messages are delivered."""
    config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=200)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic(TOPIC, 1)
        store.put_many([Message(TOPIC, b"old", delay_level=1) for _ in range(15)])
        store.put_many([Message(TOPIC, b"x" * 1000) for _ in range(300)])
        assert not store.clean(forced=True).log
        retention = Retention(tmp_path, config, store._log, store._index, store._queues)
        starts = store._log.segments.starts()[:-1]
        assert retention.clean(CleanDecision(CleanReason.FORCED, starts), 0, 0, store._writing().held).queues
        store.put_many([Message(TOPIC, b"new", delay_level=1) for _ in range(5)])
        until(lambda: bodies(store)[b"new"] == 5)
        assert bodies(store)[b"old"] == 0
    said = "; ".join(record.getMessage() for record in caplog.records)
    assert "messages [0, 10) were deleted before they were delivered" in said
    assert said.count("a delayed message is lost") == 5


def test_deleted_delivered_message_is_not_logged_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Retention deleted the message and its delivered copy before the progress was saved; then the process died."""
    config = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=2000)

    def deliver_and_die() -> object:
        with MessageStore.open(tmp_path, config=config) as store:
            store.create_topic(TOPIC, 1)
            store.put_many([Message(TOPIC, b"old", delay_level=1) for _ in range(5)])
            until(lambda: bodies(store)[b"old"] == 5)
            store.put_many([Message(TOPIC, bytes(1000)) for _ in range(20)])
            assert store.clean(forced=True).log
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    assert in_a_child(deliver_and_die) == ""
    with MessageStore.open(tmp_path) as store:
        store.put(Message(TOPIC, b"new", delay_level=1))
        until(lambda: bodies(store)[b"new"] == 1)
        assert bodies(store)[b"old"] == 0
    assert "lost" not in caplog.text
