"""A log in the memory of one process, which others reach through a socket: the least that a kind of log can be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from store import COLUMNS, AppendResult, Message, OffsetLost, OffsetNotYet, StoreClosed, UnknownTopic
from store.any_log import Boundary, Bounds, Fingerprints, MessageFilter, Positions, Queue, QueueRange, ReadSpec
from store.format.columns import check_columns
from store.format.message_columns import as_table

SCHEMA = pa.schema(list(COLUMNS.items()))
SECRET = b"memory"
EXPOSED = ("bounds", "rows", "wait", "create_topic", "append", "take_turn", "end_turn")


class Memory:
    """Rows of `SCHEMA` by queue, None for one that was deleted."""

    def __init__(self) -> None:
        self._rows: dict[Queue, list[dict[str, Any] | None]] = {}
        self._changed = threading.Condition()
        self._turn = threading.Lock()  # of one append; it may be taken in one call and given back in another
        self._count = 0

    def create_topic(self, topic: str, queues: int) -> int:
        with self._changed:
            for queue_id in range(queues):
                self._rows.setdefault(Queue(topic, queue_id), [])
            self._changed.notify_all()
            return sum(queue.topic == topic for queue in self._rows)

    def append(self, messages: list[Message]) -> list[tuple[int, int, int]]:
        """Queue id, queue offset and number of each."""
        placed = []
        with self._changed:
            for message in messages:
                queues = [queue.queue_id for queue in self._rows if queue.topic == message.topic]
                queue_id = message.queue_id if message.queue_id is not None else self._count % len(queues)
                rows = self._rows[Queue(message.topic, queue_id)]
                placed.append((queue_id, len(rows), self._count))
                rows.append(row(message, *placed[-1]))
                self._count += 1
            self._changed.notify_all()
        return placed

    def take_turn(self) -> None:
        self._turn.acquire()

    def end_turn(self) -> None:
        self._turn.release()

    def delete(self, queue: Queue, end: int) -> None:
        self._rows[queue][:end] = [None] * end

    def bounds(self) -> dict[Queue, Bounds]:
        with self._changed:
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


def row(message: Message, queue_id: int, queue_offset: int, count: int) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    zeros = dict.fromkeys(("reconsumeTimes", "flag", "sysFlag", "bodyCRC", "preparedTransactionOffset"), 0)
    return {
        **zeros,
        "topic": message.topic,
        "queueId": queue_id,
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
    Server.register("memory", callable=lambda: memory, exposed=EXPOSED)
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

    def open_writer(self) -> MemoryWriter:
        return MemoryWriter(self.open()._memory)


class MemoryLog:
    """It cannot tell sizes, nor which message stands where, and knows no groups."""

    is_ordered = True

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def topics(self) -> Mapping[str, tuple[Queue, ...]]:
        topics: dict[str, tuple[Queue, ...]] = {}
        for queue in sorted(self._memory.bounds()):
            topics[queue.topic] = (*topics.get(queue.topic, ()), queue)
        return topics

    def of_one_life(self, topic: str) -> AbstractContextManager[None]:
        return nullcontext()

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

    def groups(self) -> Mapping[str, Positions]:
        return {}

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        return {}

    def sizes(self, wanted: QueueRange) -> None:
        return None

    def fingerprints(self, positions: Positions) -> Fingerprints:
        return {}

    def strangers(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        return []

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        check_columns(spec.columns)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _by_time(self, queue: Queue, has: Bounds, microseconds: int, boundary: Boundary) -> int:
        rows = self._memory.rows(QueueRange(queue, *has))
        times = [there["storeTimestamp"] for there in rows if there is not None]
        if boundary is Boundary.LOWER:
            return has.min_offset + sum(time < microseconds for time in times)
        return has.min_offset + max(0, sum(time <= microseconds for time in times) - 1)


class MemoryWriter(MemoryLog):
    def create_topic(self, topic: str, queues: int) -> int:
        return self._memory.create_topic(topic, queues)

    def begin(self) -> MemoryAppend:
        return MemoryAppend(self, self._memory)

    def flush(self) -> None:
        pass


class MemoryAppend:
    def __init__(self, log: MemoryLog, memory: Memory) -> None:
        self._log = log
        self._memory = memory
        self._messages: list[Message] | None = []

    def add(self, topic: str, table: Any) -> None:
        if topic not in self._log.topics():
            raise UnknownTopic(f"memory: there is no {topic}")
        self._open().extend(message(topic, row) for row in pa.table(as_table(table)).to_pylist())

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> AppendResult | None:
        messages = self._open()
        self._messages = None
        self._memory.take_turn()
        try:
            if unless is not None and unless():
                return None
            placed = np.array(self._memory.append(messages), np.int64).reshape(-1, 3)
            return AppendResult(placed[:, 0].astype(np.int32), placed[:, 1], placed[:, 2])
        finally:
            self._memory.end_turn()

    def abandon(self) -> None:
        self._messages = None

    def _open(self) -> list[Message]:
        if self._messages is None:
            raise StoreClosed("memory: this append is over")
        return self._messages


def message(topic: str, row: dict[str, Any]) -> Message:
    body, keys = row["body"], row.get("keys") or ()
    return Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        row.get("tags"),
        keys.split() if isinstance(keys, str) else keys,
        dict(row.get("properties") or ()),
        row.get("queueId"),
    )


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
                    return QueueRange(queue, self._held.pop(queue), has.max_offset)
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
