"""Levels that are not as this store would have them: a broker's further ones, and times of a clock that was wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore
from store.delays.oldest import oldest_waiting
from store.errors import OffsetLost
from store.format.delayed import Waits, waiting
from store.format.layout import DELAY_OFFSETS_FILE, SCHEDULE_TOPIC
from store.format.message_lists import encode_list
from store.format.record import as_columns
from store.format.records import Records
from store.publish.putting import encoding_of
from tests.store.delays.dying_deliverers import TOPIC
from tests.store.delays.test_deliverer import opened
from tests.store.format.test_delayed import all_of
from tests.waiting import until


def at_level(store: MessageStore, level: int) -> Records:
    """As a broker with a `messageDelayLevel` of its own puts it; due in a second."""
    messages, encoding = [Message("orders", b"%d" % level)], encoding_of(store.config)
    encoded = as_columns(encode_list(messages, [0], encoding, 0))
    records = waiting(encoded, Waits(np.array([1]), np.array([0])), encoding)
    records.destinations[:] = [(topic, level - 1) for topic, _ in records.destinations]
    records.headers["queue_id"] = level - 1
    return records


def test_levels_that_only_a_broker_has(tmp_path: Path) -> None:
    """They are delivered, kept till then, and delivered once: the broker finds how far they are."""
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


@pytest.mark.parametrize("delivered", [20, 120])
def test_a_file_that_is_lost_while_it_is_open(tmp_path: Path, delivered: int) -> None:
    """The file of the first that waits, or the one behind that: an error, not a thread that ends, or never rests."""
    with opened(tmp_path) as store:
        store.put_many([Message(TOPIC, b"%d" % n, delay_level=1) for n in range(250)])
    with opened(tmp_path) as store:
        assert store._writer is not None
        deliverer = store._writer._deliverer
        deliverer.stop()
        delivery = deliverer._delivery()
        delivery._levels.go_on({1: delivered})
        _, lost, _ = sorted((tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir())
        lost.unlink()
        with pytest.raises(OffsetLost, match=lost.name):
            delivery.step(int(time.time() * 1000) + 5000)


@pytest.mark.filterwarnings("ignore:the newest message was stored")
def test_what_was_put_while_the_clock_was_ahead_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the clock is right again, also where the store was open meanwhile; the others in their time."""
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
