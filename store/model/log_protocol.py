"""The types that readers, writers and consumers of a log use, whether it is a directory, a cluster or an archive.

If a log does not support an operation, its result shows that; see each method.
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
    """One queue of one topic. broker: its broker in a cluster; "" in a directory.

    Queues sort as in RocketMQ: by topic, broker and number.
    """

    topic: str
    broker: str = field(default="", kw_only=True)
    queue_id: int

    @property
    def name(self) -> str:
        """The queue's name in its topic: "0", or "broker-a:0" in a cluster."""
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
    """The messages [min_offset, max_offset) of a queue, as queue offsets."""

    min_offset: int
    max_offset: int

    def unread(self, offset: int | None) -> int:
        """Return the lag of a group. offset: its committed offset, None if it has none."""
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
    """Identifies a message. physical_offset: commit log offset (bytes) of its record. store_timestamp: ms."""

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
        """The tags codes (Java hashes) that matching messages can have, None if they can have any."""

    def match_codes(self, tags_codes: Int64s) -> Bools:
        """Return whether an entry with each tags code may match, in the shape of `tags_codes`."""

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return whether each row matches, never null. batch: exactly the columns `columns`."""

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Return whether one message matches."""


@dataclass(frozen=True)
class ReadSpec:
    """The options of a read.

    columns: names of `store.COLUMNS`, in the order of the batches.
    check_crc: compare bodies with their checksums.
    max_rows, max_bytes: limits of one batch, which has at least one row. The bytes are those of records, and of
    decompressed bodies.
    max_body_bytes: limit of one decompressed body, None for the log's own limit.
    unreadable: how to treat a body that does not decompress or exceeds the limit. "error" raises `UnreadableBody` after
    the messages before it; "null" reads it as null; "raw" returns the stored bytes and keeps the compression bit of
    `sysFlag`. With "null" and "raw", column `bodyError` has the reason.
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
    the reader to continue at that offset. None means that no message arrived for a while, or that another thread called
    `wake`.

    A queue that gave a range is not held any more, until `again` is called for it.

    The iterator ends after the deadline. Before it ends, each queue with messages after its begin gives one range, even
    if the deadline is already over, unless its broker is missing.
    """

    def again(self, queue: Queue, position: int) -> None:
        """Hold a queue from `position` on. It may be a queue that was not held before."""

    def wake(self) -> None:
        """Make the iterator give None at its current or next step. Thread-safe."""

    def __iter__(self) -> Iterator[QueueRange | None]: ...

    def __next__(self) -> QueueRange | None:
        """Return the next range. For a deleted queue it is empty, and its reader then raises an error.

        Raises `UnknownTopic` if the whole topic was deleted, and `StoreNotOpen` if the log was closed concurrently.
        """

    def __enter__(self) -> Held: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Log(Protocol):
    """A log that is open for reading in one process. Thread-safe."""

    @property
    def is_ordered(self) -> bool:
        """Whether `physicalOffset` orders messages of different queues by their appends."""

    def topics(self, wanted: NameFilter | None = None, oldest: float = 0.0) -> Mapping[str, tuple[Queue, ...]]:
        """Return the topics and their queues, in order, as they were at most `oldest` seconds ago.

        wanted: selects topics by name.
        """

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Return the current bounds of the `queues` that exist, in order. `max_offset` is the published end.

        Waits for brokers of `queues` that do not answer, and raises `BrokerMissing` after a timeout.
        """

    def look(self, queues: Iterable[Queue]) -> LogLook:
        """Return the bounds of the queues on brokers that answer, without waiting for other brokers.

        `missing` has all expected brokers that no name server lists, even those of other queues. Their queues are not
        among `topics`.
        """

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        """Return the offset that a time (ms since 1970) selects in each of the `queues` that exist.

        LOWER: the queue's `max_offset` if all messages are older. UPPER: its `min_offset` if all are newer.
        """

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """Return the pieces of the ranges that can have messages with one of `keys` among their keys, or as `msgId`, in
        order.

        Reads no messages. Returns `ranges` unchanged if this log has no usable index.
        """

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        """Return a consumer group's committed offsets; queues without one are absent."""

    def groups(self) -> Mapping[str, Positions]:
        """Return the committed offsets of all consumer groups."""

    def commit(self, group: str, positions: Positions) -> None:
        """Commit offsets of a consumer group. Raises `InvalidGroup`, `UnknownTopic`, `StoreUnavailable`."""

    def sizes(self, wanted: QueueRange) -> Int64s | None:
        """Return record sizes (bytes), shape (wanted.length,), with 0 for deleted messages. Return None if they are
        unknown.
        """

    def fingerprints(self, positions: Positions) -> Fingerprints:
        """Identify the message before each position.

        A queue is absent if that message is deleted or damaged, if the queue begins at the position, ends before it or
        was deleted, or if this log has no fingerprints.
        """

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        """Return the queues in which the message before the position does not have the fingerprint in `last`.

        Only queues in both mappings are checked. A queue that ends before the position is returned if this log knows
        that it was longer. Missing queues, queues in which that message is deleted, and queues unknown to this log are
        not returned.
        """

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the matching messages of a published range, in order, with exactly `spec.columns`.

        Raises `OffsetLost`, `OffsetNotYet`, `UnknownTopic`, `CorruptRecord`, `UnreadableBody`.
        """

    def wait(self, seen: Positions, timeout: float) -> None:
        """Wait until the `max_offset` of a queue differs from `seen`, at most `timeout` seconds.

        May return early.
        """

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
        """Add a table of messages, or a stream of batches, which `publish` reads. `MessageStore.append_table` documents
        the columns.

        Raises `UnknownTopic`, and `InvalidColumns` for names and types of columns.
        """

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> Any:
        """Append and publish the added messages. Return an `AppendResult`.

        Raises as `put`; nothing is published then. flush: sync before publishing, so that after a crash the log has all
        of the messages or none. unless: called while no other writer can append; if it returns true, nothing is
        appended, and the result is None.
        """

    def abandon(self) -> None:
        """Drop the added messages."""


class LogWriter(Log, Protocol):
    def create_topic(self, topic: str, queues: int) -> int:
        """Create a topic, or add queues to it. Return its number of queues. Raises `InvalidTopic`, `StoreFull`."""

    def begin(self) -> LogAppend:
        """Begin an atomic append of tables to any topics."""

    def flush(self) -> None:
        """Sync all published messages."""

    def __enter__(self) -> LogWriter: ...


@runtime_checkable
class LogAddress(Protocol):
    """The place of a log, from which any process can open it. Frozen, hashable, picklable; errors show its `str`."""

    @property
    def directory(self) -> str | None:
        """A directory for files beside the log that all its readers can access; None without one."""

    def open(self) -> Log:
        """Raises `StoreError`."""

    def open_writer(self) -> LogWriter:
        """Open the log for writing. Raises `StoreError`, such as `ReadOnlyStore` for a log that can only be read."""
