from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.store.format.test_delayed import all_of
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

TOPIC = "later"
SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000, **INDEX}
EACH = 5


def delivered(path: Path) -> Counter[str]:
    with MessageStore.open(path, read_only=True) as store:
        return Counter(each.body.decode().rpartition(" ")[0] for each in all_of(store, TOPIC) if b" " in each.body)


def put(store: MessageStore, what: str, **wait: int) -> None:
    store.put_many([Message(TOPIC, f"{what} {n}".encode(), "A", **wait) for n in range(EACH)])


def in_ms(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


def test_delayed_messages_are_delivered_once_by_each_owner(rocketmq: RocketMQ, tmp_path: Path) -> None:
    path, has_timers = tmp_path / "mq", rocketmq.line >= "5"
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        store.create_topic(TOPIC, 2)
        put(store, "level, ours", delay_level=1)
        put(store, "level, the broker's", delay_level=3)
        put(store, "level, late", delay_level=18)
        if has_timers:
            put(store, "time, late", deliver_at=in_ms(3600))
            put(store, "time, the broker's", deliver_at=in_ms(12))
            put(store, "time, ours", deliver_at=in_ms(1))
        ours = {"level, ours": EACH} | ({"time, ours": EACH} if has_timers else {})
        until(lambda: delivered(path) == ours, every=0.05)
    theirs = {"level, the broker's": EACH} | ({"time, the broker's": EACH} if has_timers else {})
    with rocketmq.broker(path, SIZES, topic=TOPIC, bodyBytes=10) as broker:
        until(lambda: delivered(path) == ours | theirs, every=0.2)
        time.sleep(2.0)
        broker.ask("stop")
        assert next(broker)["kind"] == "stopped"
    assert delivered(path) == ours | theirs
    with MessageStore.open(path) as store:
        put(store, "level, last", delay_level=1)
        until(lambda: delivered(path) == ours | theirs | {"level, last": EACH}, every=0.05)
        waiting = Counter(each.body.decode().rpartition(" ")[0] for each in all_of(store, TIMER_TOPIC))
        assert not has_timers or waiting["time, late"] == EACH
        assert len(all_of(store, SCHEDULE_TOPIC)) == 4 * EACH
