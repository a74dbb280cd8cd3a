"""Retention takes nothing that waits to be delivered, whether it is due or not, and whoever delivers."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.api.writer import Writer
from store.files.topics import Topics
from store.format.delayed import WAITING_TOPICS
from store.format.layout import LOCK_FILE, SCHEDULE_TOPIC, segment_name
from store.publish.locks import DELIVERY_BYTE, Turn
from tests.store.format.test_delayed import all_of
from tests.waiting import until

CONFIG = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    fileReservedTime=0,
    diskMaxUsedSpaceRatio=100,  # however full the disk of these tests is
    diskSpaceCleanForciblyRatio=100,
)


def in_a_moment(topic: str) -> Message:
    return Message(topic, b"later", deliver_at=int(time.time() * 1000) + 1000)


def by_level(topic: str) -> Message:
    return Message(topic, b"later", delay_level=1)


def test_what_waits_is_kept_until_it_is_delivered(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        waits = [store.put(delayed("t")).physical_offset for delayed in (in_a_moment, by_level)]
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
    with MessageStore.open(tmp_path, read_only=True) as reader:
        would_go = reader.clean(forced=True, dry_run=True).log
    turn = Turn(tmp_path / LOCK_FILE, DELIVERY_BYTE)
    assert turn.take()  # as another process, that does not get around to it
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
        # Also while the files do not say yet that it was delivered.
        assert store.clean(asked=True).min_offset > waits[1]


def test_what_is_put_while_retention_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked whether that waits."""
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        turn = Turn(tmp_path / LOCK_FILE, DELIVERY_BYTE)
        assert turn.take()  # as another process, that does not get around to it
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


def test_without_a_record_nothing_waits(tmp_path: Path) -> None:
    """Those that somebody else took cannot be delivered, and keep nothing."""
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([delayed for _ in range(15) for delayed in (in_a_moment("t"), by_level("t"))])
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        assert all(map(Topics(tmp_path).has_queues, WAITING_TOPICS))
    logs = sorted((tmp_path / "commitlog").iterdir())
    for segment in logs[:3]:
        os.unlink(segment)
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert len(reader.clean(asked=True, dry_run=True).log) == len(logs) - 4


def test_a_damaged_entry_takes_no_other_that_waits(tmp_path: Path) -> None:
    """Its message is not found by it, but those of its level behind it are."""
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"later", delay_level=18) for _ in range(30)])
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        end = store.confirm_offset
    with (tmp_path / "consumequeue" / SCHEDULE_TOPIC / "17" / segment_name(0)).open("r+b") as file:
        file.write((end - 2000).to_bytes(8, "big"))
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        assert store.clean(forced=True).log == []
