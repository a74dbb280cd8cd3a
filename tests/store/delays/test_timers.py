from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import CQ_ENTRY, TIMER_TOPIC, segment_name
from tests.store.format.test_delayed import all_of
from tests.waiting import until

CONFIG = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)


@pytest.mark.filterwarnings("ignore:.*the file of bytes")
def test_lost_segment_does_not_block_other_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        due = int(time.time() * 1000) + 1000
        store.put_many([Message("t", b"%d" % number + bytes(300), deliver_at=due) for number in range(40)])
        queue = store._queues.of(TIMER_TOPIC, 0)
        starts = queue.entries(0, 40)["physical_offset"].astype(np.int64) // 4096 * 4096
    (tmp_path / "commitlog" / segment_name(4096)).unlink()
    left = [number for number in range(40) if starts[number] != 4096]
    assert left[0] == 0 < len(left) < 40
    with caplog.at_level(logging.ERROR, "store"), MessageStore.open(tmp_path) as store:
        until(lambda: store.max_offset("t", 0) == len(left))
        found = [each.body.rstrip(b"\0") for each in all_of(store, "t")]
    assert sorted(found, key=int) == [b"%d" % number for number in left]
    assert f"{40 - len(left)} delayed messages are lost in this way; the first is named above" in caplog.text


def test_damaged_entry_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        due = int(time.time() * 1000) + 1000
        store.put_many([Message("t", b"%d" % number, deliver_at=due) for number in range(3)])
    (entries,) = (tmp_path / "consumequeue" / TIMER_TOPIC / "0").iterdir()
    content = bytearray(entries.read_bytes())
    content[CQ_ENTRY.itemsize] = 0x80
    entries.write_bytes(content)
    with caplog.at_level(logging.ERROR, "store"), MessageStore.open(tmp_path) as store:
        until(lambda: store.max_offset("t", 0) == 2)
        assert [each.body for each in all_of(store, "t")] == [b"0", b"2"]
    assert "1 delayed messages are lost: entries of their queue are damaged" in caplog.text


def test_entry_at_the_end_of_a_segment_blocks_no_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 1)
        due = int(time.time() * 1000) + 1000
        store.put_many([Message("t", b"%d" % number, deliver_at=due) for number in range(3)])
    (file,) = (tmp_path / "consumequeue" / TIMER_TOPIC / "0").iterdir()
    entries = np.frombuffer(file.read_bytes(), CQ_ENTRY).copy()
    entries["physical_offset"][0] = CONFIG.mappedFileSizeCommitLog - 20
    file.write_bytes(entries.tobytes())
    with caplog.at_level(logging.ERROR, "store"), MessageStore.open(tmp_path) as store:
        until(lambda: store.max_offset("t", 0) == 2)
        assert [each.body for each in all_of(store, "t")] == [b"1", b"2"]
    assert "a delayed message is lost" in caplog.text
