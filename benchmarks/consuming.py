"""How fast does a `Consumer` pass messages to a listener, against `scan` and `get_message`?

Also measures the latency after `put`, and a takeover from a closed or killed consumer.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks.bench import QUEUES, TOPIC, filled, show, side_by_side
from benchmarks.kafka_broker import broker, produced, unavailable
from benchmarks.latency import percentiles, start_writer, store_with
from store import COLUMNS, ConsumeFromWhere, Consumer, ConsumerConfig, MessageStore, ReceivedMessage, StoreConfig

CONFIG = ConsumerConfig(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, consume_message_batch_max_size=32
)
_AT_ONCE = 1000


def main(count: int, runs: int) -> None:
    rates(count, runs)
    latency(1.0 if count < 100_000 else 10.0)
    takeovers(1 if count < 100_000 else 10)


def rates(count: int, runs: int) -> None:
    """By wall-clock time, because a consumer's threads read ahead during calls."""
    rows = []
    config = StoreConfig(maxTransferCountOnMessageInMemory=_AT_ONCE, maxTransferBytesOnMessageInMemory=1 << 30)
    why_not = unavailable()
    with nullcontext() if why_not else broker() as servers:
        for body_bytes in (100, 1000):
            with filled(count, body_bytes) as path, MessageStore.open(path, read_only=True, config=config) as store:
                ways: dict[str, Callable[[], float]] = {
                    "scan, all columns of a message": partial(_scan, store),
                    f"get_message, {_AT_ONCE:,} a call": partial(_get, store),
                    "Consumer, concurrently": partial(_consume, path, count, orderly=False),
                    "Consumer, orderly": partial(_consume, path, count, orderly=True),
                }
                if servers:
                    ways["confluent-kafka"] = partial(_kafka, servers, produced(servers, count, body_bytes), count)
                measured = dict(zip(ways, side_by_side(runs, *ways.values()), strict=True))
            for way, rate in measured.items():
                of_kafka = f"{rate / measured['confluent-kafka']:.2f}" if servers else ""
                of_scan = f"{rate / measured['scan, all columns of a message']:.2f}"
                rows.append([f"{body_bytes} B", way, f"{rate:,.0f} /s", of_kafka, of_scan])
    title = f"Consuming, medians of {runs} runs" + (f"; without Kafka, which {why_not}" if why_not else "")
    show(title, ["body", "", "messages", "of confluent-kafka", "of scan"], rows)


def _scan(store: MessageStore) -> float:
    begin, found = time.perf_counter(), 0
    for queue_id in range(QUEUES):
        wanted = TOPIC, queue_id, *store.offsets(TOPIC, queue_id)
        found += sum(batch.num_rows for batch in store.scan(*wanted, columns=tuple(COLUMNS)))
    return found / (time.perf_counter() - begin)


def _get(store: MessageStore) -> float:
    begin, found = time.perf_counter(), 0
    for queue_id in range(QUEUES):
        offset = 0
        while messages := (got := store.get_message("bench", TOPIC, queue_id, offset, _AT_ONCE)).messages:
            found, offset = found + len(messages), got.next_begin_offset
    return found / (time.perf_counter() - begin)


def _consume(path: Path, count: int, *, orderly: bool) -> float:
    """From the first call to the last, with a new group."""
    calls: list[float] = []
    seen, all_seen, threads = 0, threading.Event(), threading.Lock()

    def listener(found: Sequence[ReceivedMessage]) -> None:
        nonlocal seen
        if not calls:
            calls.append(time.perf_counter())
        looked_at = sum(1 for message in found if message.body)
        with threads:
            seen += looked_at
            if seen == count:
                all_seen.set()

    with Consumer(path, f"bench-{time.monotonic_ns()}", TOPIC, listener, orderly=orderly, config=CONFIG):
        all_seen.wait()
        return count / (time.perf_counter() - calls[0])


def _kafka(servers: str, topic: str, count: int) -> float:
    """From the first message to the last, with a new group."""
    kafka = import_module("confluent_kafka")
    group = {"group.id": f"bench-{time.monotonic_ns()}", "auto.offset.reset": "earliest"}
    consumer = kafka.Consumer({"bootstrap.servers": servers, **group})
    consumer.subscribe([topic])
    seen, begin = 0, 0.0
    while seen < count:
        found = consumer.consume(_AT_ONCE, 0.1)
        begin = begin or (time.perf_counter() if found else 0.0)
        seen += sum(1 for message in found if message.value())
    rate = count / (time.perf_counter() - begin)
    consumer.close()
    return rate


def latency(seconds: float) -> None:
    """Another process puts messages at 1,000/s."""
    late: list[float] = []

    def listener(found: Sequence[ReceivedMessage]) -> None:
        now = time.time_ns() // 1000
        late.extend((now - int(message.body)) / 1000 for message in found)

    rows = []
    with store_with(QUEUES) as path:
        for way, orderly in (("concurrently", False), ("orderly", True)):
            late.clear()
            with Consumer(path, way, TOPIC, listener, orderly=orderly) as consumer:
                while len(consumer.assigned) < QUEUES:
                    time.sleep(0.01)
                start_writer(path, 1000, seconds).wait()
                time.sleep(0.5)
            rows.append([way, *percentiles(np.array(late))])
    show("put to a listener in another process, 1,000/s, ms", ["", "p50", "p90", "p99"], rows)


def takeovers(times: int) -> None:
    rows = []
    with store_with(QUEUES) as path, Consumer(path, "bench", TOPIC, lambda _: None, orderly=True) as consumer:
        for how in ("close", "kill"):
            taken = []
            for _ in range(times):
                _wait(lambda: len(consumer.assigned) == QUEUES)
                other = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.consuming", str(path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                assert other.stdin is not None
                assert other.stdout is not None
                other.stdout.readline()
                _wait(lambda: len(consumer.assigned) == QUEUES // 2)
                begin = time.monotonic()
                if how == "kill":
                    other.kill()
                other.stdin.close()
                _wait(lambda: len(consumer.assigned) == QUEUES)
                taken.append((time.monotonic() - begin) * 1000)
                other.wait()
            rows.append([how, f"{np.median(taken):,.0f}", f"{max(taken):,.0f}"])
    show("until another member has the queues of one that ended, ms", ["", "median", "longest"], rows)


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def _other(path: str) -> None:
    """Run a consumer until stdin is closed."""
    with Consumer(path, "bench", TOPIC, lambda _: None, orderly=True) as consumer:
        while len(consumer.assigned) < QUEUES // 2:
            time.sleep(0.01)
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _other(sys.argv[1])
