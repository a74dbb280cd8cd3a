"""How fast does `get_message` create messages, against `scan`, which creates columns of the same data?"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.bench import QUEUES, TOPIC, filled, show, side_by_side
from store import MessageStore, StoreConfig

_AT_ONCE = (1, 32, 1000)


def main(count: int, runs: int) -> None:
    config = StoreConfig(maxTransferCountOnMessageInMemory=max(_AT_ONCE), maxTransferBytesOnMessageInMemory=1 << 30)
    rows = []
    for body_bytes in (100, 1000):
        with filled(count, body_bytes) as path, MessageStore.open(path, read_only=True, config=config) as store:
            scan, *gets = side_by_side(runs, partial(_scan, store), *(partial(_get, store, each) for each in _AT_ONCE))
        rows.append([f"{body_bytes} B", "scan, all columns of a message", f"{scan:,.0f} /s", "1.00"])
        for each, rate in zip(_AT_ONCE, gets, strict=True):
            rows.append([f"{body_bytes} B", f"get_message, {each:,} a call", f"{rate:,.0f} /s", f"{rate / scan:.3f}"])
    show(f"Getting, medians of {runs} runs", ["body", "verb", "messages", "of scan"], rows)


def _scan(store: MessageStore) -> float:
    begin, found = time.process_time(), 0
    for queue_id in range(QUEUES):
        found += sum(batch.num_rows for batch in store.scan(TOPIC, queue_id, *store.offsets(TOPIC, queue_id)))
    return found / (time.process_time() - begin)


def _get(store: MessageStore, at_once: int) -> float:
    begin, found = time.process_time(), 0
    for queue_id in range(QUEUES):
        offset = 0
        while messages := (got := store.get_message("bench", TOPIC, queue_id, offset, at_once)).messages:
            found, offset = found + len(messages), got.next_begin_offset
    return found / (time.process_time() - begin)
