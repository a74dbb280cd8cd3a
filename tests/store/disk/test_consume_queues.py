from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues
from store.format.layout import CQ_ENTRY
from store.model.errors import CorruptSegment
from tests.descriptors import allowed

SIZE = 10 * CQ_ENTRY.itemsize
ENTRIES = np.array([(n * 100, 100, 0) for n in range(3)], CQ_ENTRY)


def queues_of(root: Path) -> ConsumeQueues:
    return ConsumeQueues(root, SIZE, writable=True)


def descriptors(root: Path) -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(f"{root}/") for link in links if os.path.islink(link))


def test_queues_are_cached_by_name(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    assert queues.of("t", 0) is queues.of("t", 0)
    assert queues.of("t", 0) is not queues.of("t", 1)
    assert queues.existing() == []
    queues.of("t", 1).write(0, ENTRIES)
    queues.of("a", 0).write(0, ENTRIES)
    assert queues.existing() == [("a", 0), ("t", 1)]
    assert queues_of(tmp_path).of("t", 1).max_offset(300) == 3


def test_few_files_of_many_queues_are_open(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    for number in range(300):
        queues.of("t", number).write(0, ENTRIES[:1])
    for limit, most in ((256, 64), (1024, 256), (4096, 300)):
        with allowed(limit):
            queues = queues_of(tmp_path)
        assert descriptors(tmp_path) == 0
        assert [queues.of("t", number).max_offset(200) for number in (*range(300), 0)] == [1] * 301
        assert descriptors(tmp_path) == most
    gc.disable()  # reference counts close the files, without the cycle collector
    try:
        del queues
        assert descriptors(tmp_path) == 0
    finally:
        gc.enable()


def test_queue_shorter_than_expected_is_an_error(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    queues.of("t", 0).write(0, ENTRIES)
    queues.of("u", 0).write(0, ENTRIES)
    queues = queues_of(tmp_path)
    queues.expect({("t", 0): 3, ("u", 0): 4})
    assert queues.of("t", 0).max_offset(300) == 3
    with pytest.raises(CorruptSegment, match="entry 3 existed before and is missing"):
        queues.of("u", 0).max_offset(300)


def test_each_queue_checks_its_own_entries(tmp_path: Path) -> None:
    queues_of(tmp_path).of("t", 1).write(0, ENTRIES)
    asked = []

    def is_message(*what: object) -> bool:
        asked.append(what)
        return what[2] != 2

    queue: ConsumeQueue = ConsumeQueues(tmp_path, None, writable=False, is_message=is_message).of("t", 1)
    assert queue.max_offset(300) == 2
    assert ("t", 1, 1, 100, 100) in asked
