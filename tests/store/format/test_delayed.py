from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import InvalidColumns, Message, MessageRefused, MessageStore, StoredMessage
from store.format.delayed import LEVELS, MessageDelays, timer_slots
from store.format.layout import SCHEDULE_DELAYS_MS, SCHEDULE_TOPIC, TIMER_MAX_DELAY_MS, TIMER_TOPIC
from store.upkeep.verify import verify

NOW = 1_800_000_000_000


def all_of(store: MessageStore, topic: str) -> list[StoredMessage]:
    found = []
    for queue_id in range(store.topics().get(topic, 0)):
        offset, end = store.offsets(topic, queue_id)
        while offset < end:
            got = store.get_message("g", topic, queue_id, offset)
            found += got.messages
            offset = got.next_begin_offset
    return found


@pytest.mark.parametrize("count", [1, 100])
def test_delayed_messages_of_a_list_wait(tmp_path: Path, count: int) -> None:
    rows = [
        Message("orders", b"%d" % n, "A", f"k{n}", {"region": "eu"}, n % 4, flag=n, delay_level=n % (LEVELS + 1) or 0)
        for n in range(18, 18 + count)
    ]
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 4)
        results = store.put_many(rows)
        waiting = {each.physical_offset: each for each in all_of(store, SCHEDULE_TOPIC)}
        there = {each.physical_offset: each for each in all_of(store, "orders")}
        for row, result in zip(rows, results, strict=True):
            found = (waiting if row.delay_level else there)[result.physical_offset]
            assert (found.body, found.flag, found.tags, found.keys) == (row.body, row.flag, row.tags, (row.keys,))
            assert (found.queue_id, found.queue_offset) == (result.queue_id, result.queue_offset)
            if row.delay_level:
                own = {"DELAY": str(row.delay_level), "REAL_TOPIC": "orders", "REAL_QID": str(row.queue_id)}
                assert found.properties == {"TAGS": "A", "KEYS": row.keys, "region": "eu", **own}
                assert found.queue_id == row.delay_level - 1
                (due,) = store.tags_codes(SCHEDULE_TOPIC, found.queue_id, found.queue_offset, found.queue_offset + 1)
                assert due == found.store_timestamp + SCHEDULE_DELAYS_MS[row.delay_level - 1]
        assert store.topics()[SCHEDULE_TOPIC] == LEVELS
    assert verify(tmp_path).findings == []


def test_undelayed_messages_keep_their_own_properties(tmp_path: Path) -> None:
    own = {"REAL_TOPIC": "x", "REAL_QID": "7", "TIMER_OUT_MS": "1", "mine": "y"}
    later = int(time.time() * 1000) + 100_000
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        waiting = [Message("t", b"", delay_level=1), Message("t", b"", deliver_at=later)]
        store.put_many([Message("t", b"", properties=own), *waiting, Message("t", b"")])
        assert [message.properties for message in all_of(store, "t")] == [own, {}]
        assert [message.properties["REAL_TOPIC"] for message in all_of(store, SCHEDULE_TOPIC)] == ["t"]


def test_delayed_rows_of_a_table_wait(tmp_path: Path) -> None:
    table = pa.table(
        {"body": ["a", "b", "c", "d"], "delayLevel": pa.array([3, None, 0, 3], pa.int32()), "tags": ["T"] * 4}
    )
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        placed = store.append_table("orders", table)
        assert [each.body for each in all_of(store, SCHEDULE_TOPIC)] == [b"a", b"d"]
        assert [each.body for each in all_of(store, "orders")] == [b"b", b"c"]
        assert placed.queue_ids.tolist() == [2, 0, 0, 2]
        assert placed.queue_offsets.tolist() == [0, 0, 1, 1]
        with pytest.raises(InvalidColumns, match="'delayLevel' is string"):
            store.append_table("orders", pa.table({"body": ["a"], "delayLevel": ["3"]}))
    assert verify(tmp_path).findings == []


def test_levels_are_limited_as_in_rocketmq(tmp_path: Path) -> None:
    """Levels above 18 become 18 (a client's 16th send-back asks for 19), those below 0 mean none, and a level overrides
    a time."""
    far = NOW * 1000
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", b"a", delay_level=19), Message("orders", b"b", delay_level=-1)])
        store.put(Message("orders", b"c", delay_level=4, deliver_at=far))
        table = {"body": ["d", "e", "f"], "delayLevel": [1 << 40, -7, 4], "deliverAt": [0, 0, far]}
        store.append_table("orders", pa.table(table))
        assert [(each.queue_id + 1, each.body) for each in all_of(store, SCHEDULE_TOPIC)] == [
            (4, b"c"), (4, b"f"), (18, b"a"), (18, b"d"),
        ]  # fmt: skip
        assert [each.body for each in all_of(store, "orders")] == [b"b", b"e"]
        assert TIMER_TOPIC not in store.topics() or not all_of(store, TIMER_TOPIC)


def test_rebuilt_queues_have_the_same_delivery_times(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", b"", delay_level=level) for level in range(5, LEVELS + 1)])
        before = [store.tags_codes(SCHEDULE_TOPIC, level - 1, 0, 1)[0] for level in range(5, LEVELS + 1)]
    shutil.rmtree(tmp_path / "consumequeue")
    with MessageStore.open(tmp_path) as store:
        assert before == [store.tags_codes(SCHEDULE_TOPIC, level - 1, 0, 1)[0] for level in range(5, LEVELS + 1)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"delay_level": "3"}, "must be a whole number"),
        ({"delay_level": 1 << 70}, "the number does not fit 64 bits"),
        ({"deliver_at": 1.5}, "must be a whole number"),
        ({"deliver_at": NOW * 1000}, "ms since 1970 is more than 3 days from now"),
    ],
)
def test_wrong_delays_are_refused(tmp_path: Path, fields: dict[str, object], why: str) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        with pytest.raises(MessageRefused, match=why):
            store.put(replace(Message("orders", b""), **fields))
        assert store.confirm_offset == 0


def test_due_message_does_not_wait(tmp_path: Path) -> None:
    assert MessageDelays.of(np.zeros(2, np.int64), np.array([NOW, 1]), NOW) is None
    assert MessageDelays.of(np.zeros(1, np.int64), np.array([NOW + TIMER_MAX_DELAY_MS]), NOW) is not None
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"late", deliver_at=1))
        assert [each.properties for each in all_of(store, "orders")] == [{}]
        assert TIMER_TOPIC not in store.topics()


@given(st.integers(1, 1 << 45))
def test_slots_equal_rocketmqs(at: int) -> None:
    """As HookUtils.transformTimerMessage: the last second that is over when the message is due."""
    expected = at - 1000 if at % 1000 == 0 else at // 1000 * 1000
    assert timer_slots(np.array([at])).tolist() == [expected]
