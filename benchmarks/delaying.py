"""How late are delayed messages while many others wait, and how much memory do these take?"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.bench import show
from store import MessageStore

TOPIC, QUEUES = "later", 4
_LATER_MS = 3_600_000  # of the messages that only wait
_PIECE = 50_000


def main(cases: Sequence[tuple[int, int, float]]) -> None:
    """cases: (messages that wait throughout, messages that become due, seconds over which these are spread)."""
    for case in cases:
        _measure(*case)


def _measure(pending: int, measured: int, seconds: float) -> None:
    rows = []
    with TemporaryDirectory() as folder, MessageStore.open(Path(folder) / "mq") as store:
        store.create_topic(TOPIC, QUEUES)
        before = _resident()
        begin, processor = time.monotonic(), time.process_time()
        for first in range(0, pending, _PIECE):
            count = min(_PIECE, pending - first)
            now = int(time.time() * 1000)
            at = now + _LATER_MS + np.random.default_rng(first).integers(0, _LATER_MS, count)
            store.append_table(TOPIC, pa.table({"body": [b"x" * 100] * count, "deliverAt": at}))
        put = f"{pending / (time.monotonic() - begin):,.0f}"
        taken = f"{(time.process_time() - processor) / pending * 1e6:.1f}"
        for way in ("deliver_at", "delay_level=1"):
            late = _late(store, measured, seconds, way)
            memory = f"{(_resident() - before) / 1e6:,.0f}"
            p50, p99, most = np.percentile(late, [50, 99, 100])
            numbers = [f"{number:.0f}" for number in (p50, p99, most)]
            rows.append([f"{pending:,}", way, f"{measured / seconds:,.0f}", *numbers, memory])
    show(
        f"Delayed messages of 100 B; {pending:,} wait for hours (put at {put}/s, {taken} µs of processor time each)",
        ["waiting", "by", "due/s", "p50 late, ms", "p99", "most", "memory, MB"],
        rows,
    )


def _late(store: MessageStore, count: int, seconds: float, way: str) -> npt.NDArray[np.float64]:
    """Return ms. The messages are due over `seconds`."""
    ends = [store.max_offset(TOPIC, queue) for queue in range(QUEUES)]
    begin = int(time.time() * 1000) + 2000
    if way == "deliver_at":
        at = begin + (np.arange(count) * (seconds * 1000) / count).astype(np.int64)
        store.append_table(TOPIC, pa.table({"body": at.astype(str), "deliverAt": at}))
    else:
        pieces = max(1, int(seconds * 20))
        for number in range(pieces):
            some = count // pieces + (number < count % pieces)
            due = np.full(some, int(time.time() * 1000) + 1000)
            store.append_table(TOPIC, pa.table({"body": due.astype(str), "delayLevel": np.ones(some, np.int32)}))
            time.sleep(seconds / pieces)
    while sum(store.max_offset(TOPIC, queue) - end for queue, end in enumerate(ends)) < count:
        time.sleep(0.05)
    late = []
    for queue, end in enumerate(ends):
        for batch in store.scan(TOPIC, queue, end, store.max_offset(TOPIC, queue), columns=("body", "storeTimestamp")):
            stored = batch["storeTimestamp"].cast(pa.int64()).to_numpy() // 1000
            late.append(stored - np.array([int(body) for body in batch["body"].to_pylist()]))
    return np.concatenate(late).astype(np.float64)


def _resident() -> int:
    """Return the anonymous memory in bytes."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0
