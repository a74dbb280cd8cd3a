"""Files that are newer than the log, as from a backup: what is delivered in the log they tell of, waits in this."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import (
    DELAY_OFFSETS_FILE,
    SCHEDULE_TOPIC,
    TIMER_CHECK,
    TIMER_CHECK_FILE,
    TIMER_CHECK_FILE_BYTES,
    TIMER_TOPIC,
)
from tests.store.format.test_delayed import all_of
from tests.waiting import until


def put(store: MessageStore, name: bytes) -> None:
    """Two messages, due in a second."""
    soon = int(time.time() * 1000) + 1000
    store.put_many(
        [Message("t", name + b" by level", delay_level=1), Message("t", name + b" by time", deliver_at=soon)]
    )


def delivered(store: MessageStore) -> list[bytes]:
    return sorted(each.body for each in all_of(store, "t"))


def names(*each: bytes) -> list[bytes]:
    return sorted(name + how for name in each for how in (b" by level", b" by time"))


def test_what_waits_is_delivered_and_what_was_delivered_is_not_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert f"{DELAY_OFFSETS_FILE} says of more than the log has what is delivered" in caplog.text
    with MessageStore.open(back) as store:
        until(lambda: delivered(store) == names(b"before", b"waits", b"new"))
    said = json.loads((back / DELAY_OFFSETS_FILE).read_text())
    assert said["offsetTable"] == {"1": 3}
    assert said["delivered"]["timers"] == 3
    with MessageStore.open(back) as store:
        time.sleep(0.2)
        assert delivered(store) == names(b"before", b"waits", b"new")


def test_files_that_are_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With their backup, and after a clean end: nothing but the log tells what was delivered."""
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
def test_files_that_are_lost_while_one_after_the_other_delivers(tmp_path: Path, is_saved: bool) -> None:
    """Whether the first one was killed or not: the log tells, and the file comes again."""
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


def test_a_brokers_files(tmp_path: Path) -> None:
    """They do not say of which log they tell: as far as that has messages, it is so."""
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


def test_what_a_broker_delivered_before_us_is_not_delivered_again(tmp_path: Path) -> None:
    """Nothing in the log says so; but a level goes in order, and what is behind was delivered here."""
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
