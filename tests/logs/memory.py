"""A log in the memory of one process, which others reach through a socket: the least that a kind of log can be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from typing import Any
from uuid import uuid4

import pyarrow as pa

from store import COLUMNS, Message, OffsetLost, OffsetNotYet, UnknownTopic
from store.any_log import Boundary, Bounds, Fingerprints, MessageFilter, Positions, Queue, QueueRange, ReadSpec

SCHEMA = pa.schema(list(COLUMNS.items()))
SECRET = b"memory"


class Memory:
    """Rows of `SCHEMA` by queue, None for one that was deleted."""

    def __init__(self) -> None:
        self._rows: dict[Queue, list[dict[str, Any] | None]] = {}
        self._changed = threading.Condition()
        self._count = 0

    def create_topic(self, topic: str, queues: int) -> None:
        with self._changed:
            for queue_id in range(queues):
                self._rows.setdefault(Queue(topic, queue_id), [])
            self._changed.notify_all()

    def append(self, messages: list[Message]) -> None:
        with self._changed:
            for message in messages:
                rows = self._rows[Queue(message.topic, message.queue_id)]
                rows.append(row(message, len(rows), self._count))
                self._count += 1
            self._changed.notify_all()

    def delete(self, queue: Queue, end: int) -> None:
        self._rows[queue][:end] = [None] * end

    def bounds(self) -> dict[Queue, Bounds]:
        return {queue: Bounds(sum(r is None for r in rows), len(rows)) for queue, rows in self._rows.items()}

    def rows(self, wanted: QueueRange) -> list[dict[str, Any] | None]:
        return self._rows[wanted.queue][wanted.start : wanted.end]

    def wait(self, seen: Positions, timeout: float) -> None:
        with self._changed:
            known = len(self._rows)
            self._changed.wait_for(
                lambda: len(self._rows) != known or any(len(self._rows.get(q, ())) != end for q, end in seen.items()),
                timeout,
            )


def row(message: Message, queue_offset: int, count: int) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    zeros = dict.fromkeys(("reconsumeTimes", "flag", "sysFlag", "bodyCRC", "preparedTransactionOffset"), 0)
    return {
        **zeros,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": queue_offset,
        "msgId": uuid4().hex,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "body": message.body,
        "bornTimestamp": now * 1000,
        "storeTimestamp": now * 1000,
        "properties": list(message.all_properties().items()),
        "physicalOffset": count,
        "bornHost": "127.0.0.1:0",
        "storeHost": "127.0.0.1:0",
    }


class Server(BaseManager):
    """Shares a `Memory`."""


class Client(BaseManager):
    """Reaches one."""


Client.register("memory")


def serve(memory: Memory) -> MemoryAddress:
    """Serve `memory` until this process ends."""
    Server.register("memory", callable=lambda: memory, exposed=("bounds", "rows", "wait"))
    server = Server(authkey=SECRET).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return MemoryAddress(server.address)


@dataclass(frozen=True)
class MemoryAddress:
    socket: str
    directory = None

    def open(self) -> MemoryLog:
        client = Client(self.socket, SECRET)
        client.connect()
        return MemoryLog(client.memory())


class MemoryLog:
    """It cannot tell sizes, nor which message stands where, and knows no groups."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def topics(self) -> Mapping[str, tuple[Queue, ...]]:
        topics: dict[str, tuple[Queue, ...]] = {}
        for queue in sorted(self._memory.bounds()):
            topics[queue.topic] = (*topics.get(queue.topic, ()), queue)
        return topics

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        bounds = self._memory.bounds()
        return {queue: bounds[queue] for queue in queues if queue in bounds}

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        return {
            queue: self._by_time(queue, has, timestamp * 1000, boundary) for queue, has in self.bounds(queues).items()
        }

    def stored_between(self, ranges: Iterable[QueueRange], begin: int, end: int) -> list[QueueRange]:
        return list(ranges)

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        return list(ranges)

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        return {}

    def sizes(self, wanted: QueueRange) -> None:
        return None

    def fingerprints(self, positions: Positions) -> Fingerprints:
        return {}

    def strangers(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        return []

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        has = self.bounds([wanted.queue]).get(wanted.queue)
        if has is None:
            raise UnknownTopic(f"memory: there is no {wanted.queue}")
        if wanted.start < has.min_offset and wanted.length:
            raise OffsetLost(f"memory: {wanted} begins before {has.min_offset}")
        if wanted.end > has.max_offset:
            raise OffsetNotYet(f"memory: {wanted} ends behind {has.max_offset}")
        for start in range(wanted.start, wanted.end, spec.max_rows):
            piece = wanted._replace(start=start, end=min(start + spec.max_rows, wanted.end))
            batch = pa.RecordBatch.from_pylist(self._memory.rows(piece), schema=SCHEMA)
            seen = batch.select(list(spec.message_filter.columns))
            matches = spec.message_filter.match_batch(seen) if seen.num_columns else [True] * len(batch)
            if kept := batch.filter(pa.array(matches)):
                yield kept.select(list(spec.columns))

    def wait(self, seen: Positions, timeout: float) -> None:
        self._memory.wait(seen, timeout)

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> MemoryHeld:
        return MemoryHeld(self, begin, deadline, idle)

    def close(self) -> None:
        pass

    def __enter__(self) -> MemoryLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _by_time(self, queue: Queue, has: Bounds, microseconds: int, boundary: Boundary) -> int:
        rows = self._memory.rows(QueueRange(*queue, *has))
        times = [there["storeTimestamp"] for there in rows if there is not None]
        if boundary is Boundary.LOWER:
            return has.min_offset + sum(time < microseconds for time in times)
        return has.min_offset + max(0, sum(time <= microseconds for time in times) - 1)


class MemoryHeld:
    """All that arrives may match."""

    def __init__(self, log: MemoryLog, begin: Positions, deadline: float, idle: float) -> None:
        self._log = log
        self._held = dict(begin)
        self._deadline = deadline
        self._idle = idle
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def again(self, queue: Queue, position: int) -> None:
        if time.monotonic() < self._deadline:
            self._held[queue] = position

    def __iter__(self) -> MemoryHeld:
        return self

    def __next__(self) -> QueueRange | None:
        quiet = time.monotonic() + self._idle
        while self._held:
            for queue, has in self._log.bounds(self._held).items():
                if has.max_offset > self._held[queue]:
                    return QueueRange(*queue, self._held.pop(queue), has.max_offset)
            now = time.monotonic()
            if now >= self._deadline:
                break
            if self._woken.is_set():
                self._woken.clear()
                return None
            if now >= quiet:
                return None
            self._log.wait(self._held, min(quiet, self._deadline, now + 0.05) - now)  # or `wake` would wait
        raise StopIteration

    def __enter__(self) -> MemoryHeld:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.clear()
