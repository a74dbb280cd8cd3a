from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore
from store.append.locks import DELIVERY_BYTE, ByteLock
from store.append.putting import encoding_of
from store.delays.delivery_progress import oldest_waiting
from store.disk.queue_files import MAKE_ANEW
from store.format.delayed import MessageDelays, waiting
from store.format.encoding import encode_list
from store.format.layout import DELAY_OFFSETS_FILE, LOCK_FILE, SCHEDULE_TOPIC, TIMER_TOPIC
from store.format.records import EncodedRecords, as_columns
from store.model.errors import CorruptSegment
from store.upkeep.verify import verify
from tests.store.delays.test_deliverer import bodies
from tests.store.disk.damages import SMALL
from tests.store.format.test_delayed import all_of
from tests.waiting import until


def at_level(store: MessageStore, level: int) -> EncodedRecords:
    """Put as a broker with its own `messageDelayLevel` does; due in a second."""
    messages, encoding = [Message("orders", b"%d" % level)], encoding_of(store.config)
    encoded = as_columns(encode_list(messages, [0], encoding, 0))
    records = waiting(encoded, MessageDelays(np.array([1]), np.array([0])), encoding)
    records.destinations[:] = [(topic, level - 1) for topic, _ in records.destinations]
    records.headers["queue_id"] = level - 1
    return records


def test_extra_levels_of_a_broker_are_delivered_once(tmp_path: Path) -> None:
    """They are kept until due, and the broker finds their progress."""
    path = tmp_path / DELAY_OFFSETS_FILE
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        store._writing().append([at_level(store, 20)])
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert oldest_waiting(tmp_path, store._log, store._queues, store.confirm_offset) == 0
    path.write_text(json.dumps({"offsetTable": {"20": 0}}))
    for count in (2, 3):
        with MessageStore.open(tmp_path) as store:
            store.put(Message("orders", b"1", delay_level=1))
            until(lambda: store.max_offset("orders", 0) >= count)  # noqa: B023
        assert json.loads(path.read_text())["offsetTable"]["20"] == 1
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert [each.body for each in all_of(store, "orders")] == [b"20", b"1", b"1"]


def test_blank_entries_before_the_first_message_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The queue was rebuilt after retention deleted its start, and the files record no delivery."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"%d" % n, delay_level=1) for n in range(25)])
        until(lambda: store.max_offset("t", 0) == 25)
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])
        assert store.clean(forced=True).log
    shutil.rmtree(tmp_path / "consumequeue" / SCHEDULE_TOPIC)
    (tmp_path / DELAY_OFFSETS_FILE).write_text('{"offsetTable": {"1": 0}}')
    with MessageStore.open(tmp_path) as store:
        assert store.put(Message("t", b"last", delay_level=1)).queue_offset == 25
        until(lambda: store.max_offset("t", 0) == 46)
        assert bodies(store, "t")[b"last"] == 1
    assert "lost" not in caplog.text


@pytest.mark.parametrize("how", ["delay_level", "deliver_at"])
@pytest.mark.parametrize("removed", [0, 1], ids=["first", "in the middle"])
@pytest.mark.parametrize("is_known", [False, True], ids=["of another's", "of its own"])
def test_lost_queue_file_stops_delivery_until_reopening(
    tmp_path: Path, how: str, removed: int, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path, topic = tmp_path / "mq", {"delay_level": SCHEDULE_TOPIC, "deliver_at": TIMER_TOPIC}[how]
    folder = path / "consumequeue" / topic / "0"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        turn = ByteLock(path / LOCK_FILE, DELIVERY_BYTE)
        assert turn.take()  # as a process that is killed before they are due
        with store if is_known else MessageStore.open(path) as other:
            when = {"delay_level": 1, "deliver_at": int(time.time() * 1000) + 1000}
            other.put_many([Message("t", b"%d" % n, **{how: when[how]}) for n in range(25)])
            sorted(folder.iterdir())[removed].unlink()
            store.put_many([Message("t", bytes(1000)) for _ in range(20)])
            turn.close()
            until(lambda: "this process delivers delayed messages no longer" in caplog.text)
            with pytest.raises(CorruptSegment, match=f"{topic}.*{re.escape(MAKE_ANEW)}"):
                store.clean(forced=True)
    if removed:
        folder.rename(tmp_path / "elsewhere")
    with MessageStore.open(path) as store:
        until(lambda: store.max_offset("t", 0) == 45)
        assert bodies(store, "t") == Counter({bytes(1000): 20} | {b"%d" % n: 1 for n in range(25)})
        assert store.clean(forced=True).log
    assert verify(path).findings == []


@pytest.mark.filterwarnings("ignore:The store time of the newest")
def test_message_put_by_a_fast_clock_blocks_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is delivered when the clock is right again, even if the store stayed open; the others are on time."""
    clock, ahead = time.time, 86_400.0
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", b"ahead", delay_level=2) for _ in range(3)])
        until((tmp_path / DELAY_OFFSETS_FILE).exists)
        ahead = 0.0
        store.put_many([Message("orders", b"later", delay_level=2), Message("orders", b"right", delay_level=1)])
        until(lambda: store.max_offset("orders", 0) == 4)
        assert [each.body for each in all_of(store, "orders")] == [b"ahead"] * 3 + [b"right"]
