"""The types of a log for readers, writers and consumers.

If a log does not support an operation, its result shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Unreadable = Literal["error", "null", "raw"]

NameFilter = Callable[[str], bool]

BATCH_ROWS = 1 << 14
BATCH_BYTES = 12 << 20  # Spark reads rows of 1,000 bytes 6 % faster than with 8 MiB


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of one topic. broker: its broker in a cluster, "" in a directory.

    Queues sort as in RocketMQ: by topic, broker and number.
    """

    topic: str
    broker: str = field(default="", kw_only=True)
    queue_id: int

    @property
    def name(self) -> str:
        """The name in its topic: "0", or "broker-a:0" in a cluster."""
        return f"{self.broker}:{self.queue_id}" if self.broker else str(self.queue_id)

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


Positions = dict[Queue, int]  # queue offsets


class QueueRange(NamedTuple):
    """Messages [start, end) of one queue, as queue offsets."""

    queue: Queue
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} [{self.start}, {self.end})"


class Bounds(NamedTuple):
    """Messages [min_offset, max_offset) of a queue."""

    min_offset: int
    max_offset: int

    def unread(self, offset: int | None) -> int:
        """Return the lag of a group. offset: committed, None if it has none."""
        return max(0, self.max_offset - max(offset or 0, self.min_offset))


class MissingBroker(NamedTuple):
    """A broker that does not answer. since: seconds since 1970. why: the first error."""

    name: str
    since: float
    why: str

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).astimezone().isoformat(" ", "seconds")
        return f"broker {self.name} has been missing since {since} ({self.why})"


class LogLook(NamedTuple):
    """The bounds of queues, as far as brokers answer.

    bounds: of queues on brokers that answered. missing: the other brokers, by name.
    """

    bounds: dict[Queue, Bounds]
    missing: dict[str, MissingBroker]


class Fingerprint(NamedTuple):
    """Identifies a message. physical_offset: commit log offset of its record, bytes. store_timestamp: ms."""

    physical_offset: int
    store_timestamp: int


Fingerprints = dict[Queue, Fingerprint]  # of the message before a position


class Boundary(Enum):
    """How a time selects a message. LOWER: the first stored at or after it. UPPER: the last stored at or before it."""

    LOWER = "lower"
    UPPER = "upper"


@runtime_checkable
class MessageFilter(Protocol):
    """Selects messages. Frozen, hashable and picklable."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `match_batch` reads, never bodies. Empty if all messages match."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Tags codes (Java hashes) that matching messages can have, None for any."""

    def match_codes(self, tags_codes: Int64s) -> Bools:
        """Return whether an entry with each tags code may match, in the shape of `tags_codes`."""

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return whether each row matches, never null. batch: exactly the columns `columns`."""

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool: ...


@dataclass(frozen=True)
class ReadSpec:
    """The options of a read, see `store.MessageStore.scan`.

    max_body_bytes: None for the log's own limit.
    unreadable: with "raw", `sysFlag` keeps its compression bit.
    """

    columns: tuple[str, ...]
    message_filter: MessageFilter
    check_crc: bool = True
    max_rows: int = BATCH_ROWS
    max_bytes: int = BATCH_BYTES
    max_body_bytes: int | None = None
    unreadable: Unreadable = "error"


class Held(Protocol):
    """Queues that are held until a deadline: an iterator over ranges, for one thread.

    A range has the messages after a position, at least one of which may match. An empty range at another offset tells
    the reader to continue there. None means that no message arrived for a while, or that another thread called `wake`.

    A queue that gave a range is not held until `again` is called for it.

    Before the iterator ends, each queue with messages after its begin gives one range, even after the deadline, unless
    its broker is missing.
    """

    def again(self, queue: Queue, position: int) -> None:
        """Hold a queue from `position` on. It may be one that was not held before."""

    def wake(self) -> None:
        """Make the iterator give None at its current or next step. Thread-safe."""

    def __iter__(self) -> Iterator[QueueRange | None]: ...

    def __next__(self) -> QueueRange | None:
        """Return the next range. For a deleted queue it is empty, and its reader then raises an error.

        Raises `UnknownTopic` if the topic was deleted, and `StoreNotOpen` if the log was closed concurrently.
        """

    def __enter__(self) -> Held: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Log(Protocol):
    """A log that is open in this process. Thread-safe."""

    @property
    def is_ordered(self) -> bool:
        """Whether `physicalOffset` orders messages of different queues by their appends."""

    def topics(self, wanted: NameFilter | None = None, oldest: float = 0.0) -> Mapping[str, tuple[Queue, ...]]:
        """Return topics and their queues, in order, as they were at most `oldest` seconds ago."""

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds of the `queues` that exist, in order. `max_offset` is the published end.

        Waits for brokers that do not answer, and raises `BrokerMissing` after a timeout.
        """

    def look(self, queues: Iterable[Queue]) -> LogLook:
        """Return the bounds on brokers that answer, without waiting for others.

        `missing` has all expected brokers that no name server lists, even those of other queues. Their queues are not
        among `topics`.
        """

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        """Return the offset that a time (ms since 1970) selects in each queue that exists.

        LOWER: `max_offset` if all messages are older. UPPER: `min_offset` if all are newer.
        """

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """Return the pieces of the ranges, in order, that can have messages with one of `keys` as key or `msgId`.

        Reads no messages. Returns `ranges` unchanged if this log has no usable index.
        """

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        """Return a group's committed offsets. Queues without one are absent."""

    def groups(self) -> Mapping[str, Positions]:
        """Return the committed offsets of all consumer groups."""

    def commit(self, group: str, positions: Positions) -> None:
        """Commit a group's offsets. Raises `InvalidGroup`, `UnknownTopic`, `StoreUnavailable`."""

    def sizes(self, wanted: QueueRange) -> Int64s | None:
        """Return record sizes (bytes), 0 for deleted messages; None if unknown."""

    def fingerprints(self, positions: Positions) -> Fingerprints:
        """Identify the message before each position.

        A queue is absent if that message is deleted or damaged, if the queue begins at the position, ends before it or
        was deleted, or if this log has no fingerprints.
        """

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        """Return the queues in which the message before the position does not have the fingerprint in `last`.

        Only queues in both mappings are checked. A queue that ends before the position is returned if this log knows
        that it was longer. Missing or unknown queues, and queues in which that message is deleted, are not returned.
        """

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the matching messages of a published range, in order, with exactly `spec.columns`.

        Raises `OffsetLost`, `OffsetNotYet`, `UnknownTopic`, `CorruptRecord`, `UnreadableBody`.
        """

    def wait(self, seen: Positions, timeout: float) -> None:
        """Wait until a queue's `max_offset` differs from `seen`, at most `timeout` seconds. May return early."""

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> Held:
        """Hold queues until `deadline` (`time.monotonic()` seconds) for messages at or after each position.

        idle: seconds without a message after which `Held` gives None.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Log: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LogAppend(Protocol):
    """One atomic append of messages to any topics: readers see all of them or none.

    It ends with `publish` or `abandon`, even if these raise.
    """

    def add(self, topic: str, table: Any) -> None:
        """Add a table, or a stream of batches, which `publish` reads; see `MessageStore.append_table`.

        Raises `UnknownTopic`, `InvalidColumns`.
        """

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> Any:
        """Append and publish the added messages, as `store.Append.publish`. If it raises, nothing is published."""

    def abandon(self) -> None:
        """Drop the added messages."""


class LogWriter(Log, Protocol):
    def create_topic(self, topic: str, queues: int) -> int:
        """Create a topic, or add queues. Return its number of queues. Raises `InvalidTopic`, `StoreFull`."""

    def begin(self) -> LogAppend:
        """Begin an atomic append."""

    def flush(self) -> None:
        """Sync all published messages."""

    def __enter__(self) -> LogWriter: ...


@runtime_checkable
class LogAddress(Protocol):
    """The place of a log, from which any process can open it. Frozen, hashable, picklable; errors show its `str`."""

    @property
    def directory(self) -> str | None:
        """A directory for files beside the log that all its readers can access, or None."""

    def open(self) -> Log:
        """Open the log for reading. Raises `StoreError`."""

    def open_writer(self) -> LogWriter:
        """Open the log for writing. Raises `StoreError`, such as `ReadOnlyStore` for a log that can only be read."""
