"""Progress files newer than the log, as after restoring a backup: messages delivered in the old log still wait here."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore, StoreConfig
from store.api.writer import Writer
from store.append.locks import DELIVERY_BYTE, ByteLock
from store.disk.topic_table import has_queues
from store.format.delayed import WAITING_TOPICS
from store.format.layout import (
    DELAY_OFFSETS_FILE,
    LOCK_FILE,
    SCHEDULE_TOPIC,
    TIMER_CHECK,
    TIMER_CHECK_FILE,
    TIMER_CHECK_FILE_BYTES,
    TIMER_TOPIC,
    segment_name,
)
from tests.store.format.test_delayed import all_of
from tests.waiting import until


def put(store: MessageStore, name: bytes) -> None:
    soon = int(time.time() * 1000) + 1000
    store.put_many(
        [Message("t", name + b" by level", delay_level=1), Message("t", name + b" by time", deliver_at=soon)]
    )


def delivered(store: MessageStore) -> list[bytes]:
    return sorted(each.body for each in all_of(store, "t"))


def names(*each: bytes) -> list[bytes]:
    return sorted(name + how for name in each for how in (b" by level", b" by time"))


def test_restored_store_delivers_each_waiting_message_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live, back = tmp_path / "live", tmp_path / "back"
    with MessageStore.open(live, config=StoreConfig(mappedFileSizeCommitLog=1 << 16)) as store:
        store.create_topic("t", 1)
        put(store, b"before")
        until(lambda: delivered(store) == names(b"before"))
        put(store, b"waits")
    shutil.copytree(live, back)
    with MessageStore.open(live) as store:
        put(store, b"behind")
        until(lambda: delivered(store) == names(b"before", b"waits", b"behind"))
    shutil.copytree(live / "config", back / "config", dirs_exist_ok=True)
    with MessageStore.open(back) as store:
        put(store, b"new")
    assert f"{DELAY_OFFSETS_FILE} has more delivered messages than the log" in caplog.text
    with MessageStore.open(back) as store:
        until(lambda: delivered(store) == names(b"before", b"waits", b"new"))
    said = json.loads((back / DELAY_OFFSETS_FILE).read_text())
    assert said["offsetTable"] == {"1": 3}
    assert said["delivered"]["timers"] == 3
    with MessageStore.open(back) as store:
        time.sleep(0.2)
        assert delivered(store) == names(b"before", b"waits", b"new")


def test_progress_is_rebuilt_from_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        put(store, b"before")
        until(lambda: delivered(store) == names(b"before"))
        put(store, b"waits")
    for file in [*(tmp_path / "config").glob("delayOffset*"), tmp_path / TIMER_CHECK_FILE]:
        file.unlink()
    with MessageStore.open(tmp_path) as store:
        until(lambda: len(delivered(store)) >= 4)
        assert delivered(store) == names(b"before", b"waits")
    assert f"{DELAY_OFFSETS_FILE} is lost" in caplog.text


@pytest.mark.parametrize("is_saved", [False, True])
def test_progress_is_rebuilt_by_the_next_deliverer(tmp_path: Path, is_saved: bool) -> None:
    """Whether the first process was killed or not."""
    later = int(time.time() * 1000) + 10_000
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"at once"))
        put(store, b"before")
        assert store._writer is not None
        deliverer = store._writer._deliverer
        deliverer.stop()
        for name in (b"first", b"second", b"third"):
            delivery = deliverer._delivery()
            delivery.begin()
            put(store, name)
            delivery.look()
            delivery.step(later)
            if is_saved:
                delivery.save(later)
                store.flush()
                delivery.save(later)
                assert (tmp_path / DELAY_OFFSETS_FILE).exists()
            for file in (tmp_path / "config").glob("delayOffset*"):
                file.unlink()
        assert delivered(store) == [b"at once", *names(b"before", b"first", b"second", b"third")]


def test_progress_of_a_broker_is_believed(tmp_path: Path) -> None:
    """Its files do not name their log, so they are believed as far as the log has messages."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
    (tmp_path / DELAY_OFFSETS_FILE).write_text(json.dumps({"offsetTable": {"1": 7}}))
    check = np.zeros(1, TIMER_CHECK)
    check["read_time"], check["queue_offset"] = int(time.time() * 1000) + 3_600_000, 7
    (tmp_path / TIMER_CHECK_FILE).write_bytes(check.tobytes().ljust(TIMER_CHECK_FILE_BYTES, b"\0"))
    with MessageStore.open(tmp_path) as store:
        put(store, b"new")
        assert (store.max_offset(SCHEDULE_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)) == (1, 1)
    with MessageStore.open(tmp_path) as store:
        until(lambda: delivered(store) == names(b"new"))


def test_messages_delivered_by_a_broker_are_not_delivered_again(tmp_path: Path) -> None:
    """The log does not show it, but a level is delivered in order and a later message was delivered here."""
    file = tmp_path / DELAY_OFFSETS_FILE
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"by the broker", delay_level=1))
    file.write_text(json.dumps({"offsetTable": {"1": 1}}))
    with MessageStore.open(tmp_path) as store:
        store.put(Message("t", b"by us", delay_level=1))
        until(lambda: delivered(store) == [b"by us"])
    said = json.loads(file.read_text())
    said["delivered"]["to"] = 1 << 40
    file.write_text(json.dumps(said))
    with MessageStore.open(tmp_path) as store:
        assert json.loads(file.read_text())["offsetTable"] == {"1": 2}
        assert delivered(store) == [b"by us"]


CONFIG = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    fileReservedTime=0,
    diskMaxUsedSpaceRatio=100,
    diskSpaceCleanForciblyRatio=100,
)


def in_a_moment(topic: str) -> Message:
    return Message(topic, b"later", deliver_at=int(time.time() * 1000) + 1000)


def by_level(topic: str) -> Message:
    return Message(topic, b"later", delay_level=1)


def test_retention_keeps_waiting_messages(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        waits = [store.put(delayed("t")).physical_offset for delayed in (in_a_moment, by_level)]
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
    with MessageStore.open(tmp_path, read_only=True) as reader:
        would_go = reader.clean(forced=True, dry_run=True).log
    turn = ByteLock(tmp_path / LOCK_FILE, DELIVERY_BYTE)
    assert turn.take()  # as another process would, which then delivers nothing
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        went = store.clean(asked=True)
        assert went.log == would_go
        assert went.min_offset == waits[0] - waits[0] % 4096 > 0
        again = store.clean(forced=True)
        assert not again.log
        assert again.kept == len(list((tmp_path / "commitlog").iterdir())) - 1
        turn.close()
        until(lambda: store.max_offset("t", 0) == 42)
        assert [each.body for each in all_of(store, "t")[-2:]] == [b"later", b"later"]
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        assert store.clean(asked=True).min_offset > waits[1]


def test_retention_keeps_messages_put_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        turn = ByteLock(tmp_path / LOCK_FILE, DELIVERY_BYTE)
        assert turn.take()
        before = store.put_many([Message("t", bytes(1000)) for _ in range(20)])[-1].physical_offset
        held = Writer.held

        def late(writer: Writer) -> AbstractContextManager[None]:
            monkeypatch.undo()
            store.put_many([by_level("t"), *(Message("t", bytes(1000)) for _ in range(20))])
            return held(writer)

        monkeypatch.setattr(Writer, "held", late)
        assert 0 < store.clean(forced=True).min_offset <= before
        turn.close()
        until(lambda: store.max_offset("t", 0) == 41)


def test_messages_without_a_record_do_not_block_retention(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([delayed for _ in range(15) for delayed in (in_a_moment("t"), by_level("t"))])
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        assert all(has_queues(tmp_path, topic) for topic in WAITING_TOPICS)
    logs = sorted((tmp_path / "commitlog").iterdir())
    for segment in logs[:3]:
        os.unlink(segment)
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert len(reader.clean(asked=True, dry_run=True).log) == len(logs) - 4


def test_damaged_entry_hides_no_other_waiting_message(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"later", delay_level=18) for _ in range(30)])
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        end = store.confirm_offset
    with (tmp_path / "consumequeue" / SCHEDULE_TOPIC / "17" / segment_name(0)).open("r+b") as file:
        file.write((end - 2000).to_bytes(8, "big"))
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        assert store.clean(forced=True).log == []
