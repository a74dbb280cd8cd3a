"""How fast are keys added to the index, by size of the append, and how long does a query take?"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks.bench import TOPIC, show
from store.disk.index import Index
from store.format.hashes import key_hash, key_hashes

_SLOTS, _ENTRIES = 5_000_000, 20_000_000  # RocketMQ's defaults
_RECORD_BYTES = 200
_START_MS = 1_700_000_000_000


def main(count: int, queries: int) -> None:
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        index = Index(Path(folder), _SLOTS, _ENTRIES, writable=True)
        rows = []
        for size, share in ((100_000, 1.0), (1_000, 0.1), (1, 0.001)):
            keys = max(size, int(count * share))
            seconds = sum(_file(index, first, size) for first in range(0, keys, size))
            rows.append([f"{size:,}", f"{keys:,}", f"{keys / seconds:,.0f}"])
        show("Filing keys in the index, hashing included", ["keys an append", "keys", "keys/s"], rows)
        times = [_ask(index, int(number)) for number in np.random.default_rng(0).integers(0, count, queries)]
        p50, p99 = np.quantile(times, [0.5, 0.99]) * 1000
        show(f"Asking for one of {count:,} keys", ["p50", "p99"], [[f"{p50:.3f} ms", f"{p99:.3f} ms"]])


def _file(index: Index, first: int, size: int) -> float:
    """Index keys number [first, first + size)."""
    names = np.char.add("o-", np.arange(first, first + size).astype("U"))
    behind = index.end_offset() + _RECORD_BYTES
    offsets = behind + np.arange(size, dtype=np.int64) * _RECORD_BYTES
    timestamps = np.full(size, _START_MS + first, np.int64)
    keys = pa.array(names)
    begin = time.perf_counter()
    if size == 1:
        hashes = np.array([key_hash(TOPIC, str(names[0]))], np.int32)
    else:
        hashes, _ = key_hashes(TOPIC, None, keys)
    index.append(hashes, offsets, timestamps)
    return time.perf_counter() - begin


def _ask(index: Index, number: int) -> float:
    begin = time.perf_counter()
    found = list(index.candidates(TOPIC, f"o-{number}"))
    seconds = time.perf_counter() - begin
    assert found
    return seconds
