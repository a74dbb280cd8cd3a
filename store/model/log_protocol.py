"""The types that readers, writers and consumers of a log use: a directory, a cluster or an archive.

If a log cannot do something, its answers say so; see each method.
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
BATCH_BYTES = 12 << 20  # Spark takes slim rows of 1,000 B in 6 % less time than with 8, in half the system time


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of one topic. broker: in a cluster, where each broker numbers its own queues; "" in a directory.

    Queues sort as RocketMQ sorts them: by topic, broker and number.
    """

    topic: str
    broker: str = field(default="", kw_only=True)
    queue_id: int

    @property
    def name(self) -> str:
        """The name of the queue in its topic: "0", or "broker-a:0" in a cluster."""
        return f"{self.broker}:{self.queue_id}" if self.broker else str(self.queue_id)

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


Positions = dict[Queue, int]  # a queue offset for each queue


class QueueRange(NamedTuple):
    """Messages [start, end) of one queue, queue offsets: `end` is one past the last."""

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
        """Return how many messages a group has not read whose next offset is `offset`; None: it has read none."""
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
    """What the brokers that answer have: the bounds of their queues. missing: the other brokers, by name."""

    bounds: dict[Queue, Bounds]
    missing: dict[str, MissingBroker]


class Fingerprint(NamedTuple):
    """Identifies the message at a queue offset.

    physical_offset: commit log offset (bytes) of its record. store_timestamp: ms since 1970.
    """

    physical_offset: int
    store_timestamp: int


Fingerprints = dict[Queue, Fingerprint]  # of the message before a position


class Boundary(Enum):
    """The message that a time means: LOWER the first stored at it or later, UPPER the last stored at it or before."""

    LOWER = "lower"
    UPPER = "upper"


@runtime_checkable
class MessageFilter(Protocol):
    """Which messages to read. Frozen, hashable and picklable."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `match_batch` reads, never bodies; none if all messages match."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The tags codes (Java hashes) that matching messages can have; None if that is not known."""

    def match_codes(self, tags_codes: Int64s) -> Bools:
        """Return where a queue entry with that tags code may match, in the shape of `tags_codes`."""

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return where the message of a row matches, never null. batch: `columns`, and no others."""

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Return whether one message matches."""


@dataclass(frozen=True)
class ReadSpec:
    """How a range is read.

    columns: names of `store.COLUMNS`, in the order of the batches. check_crc: compare bodies with their checksums.
    max_rows, max_bytes: limits of one batch, which has one row at least; bytes of records, and of decompressed bodies.
    max_body_bytes: limit of one decompressed body, None for the log's own limit.
    unreadable: what to do with a body that does not decompress, or becomes too large: "error" raises `UnreadableBody`
    after the messages before it; "null" makes it null, "raw" gives it as it is stored, with the compression bit of
    `sysFlag`. Column `bodyError` has the reason then.
    """

    columns: tuple[str, ...]
    message_filter: MessageFilter
    check_crc: bool = True
    max_rows: int = BATCH_ROWS
    max_bytes: int = BATCH_BYTES
    max_body_bytes: int | None = None
    unreadable: Unreadable = "error"


class Held(Protocol):
    """Queues that are held until a deadline: an iterator over ranges, and a context manager, for one thread.

    A range has the messages behind a position, one of which may match. An empty range at another offset tells its
    reader to go on there. None means that no message came for a while, or that another thread called `wake`.
    A queue is no longer held once it gave a range; `again` holds it from a position on. After the deadline no queue is
    held again and the iterator ends. But each queue with messages behind its begin gives a range once, however late,
    unless its broker is missing.
    """

    def again(self, queue: Queue, position: int) -> None:
        """Hold a queue, or one that was not held before, from `position` on instead of any other."""

    def wake(self) -> None:
        """Let the iterator give None at once, or at its next step. Any thread may call this."""

    def __iter__(self) -> Iterator[QueueRange | None]: ...

    def __next__(self) -> QueueRange | None:
        """Return an empty range for a queue that was deleted, whose reader then raises an error.

        Raises `UnknownTopic` if the whole topic was deleted, and `StoreNotOpen` if the log was closed concurrently.
        """

    def __enter__(self) -> Held: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Log(Protocol):
    """A log, open to be read, in one process. A context manager: leaving it closes it. Threads may share it."""

    @property
    def is_ordered(self) -> bool:
        """Whether `physicalOffset` tells in which order messages of different queues were appended."""

    def topics(self, wanted: NameFilter | None = None, oldest: float = 0.0) -> Mapping[str, tuple[Queue, ...]]:
        """Return the topics and their queues, in order, as they were at most `oldest` seconds ago.

        wanted: which topics to list, by name.
        """

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Return the present bounds of those of `queues` that exist, in order. All up to `max_offset` is published.

        Waits for brokers that do not answer, and raises `BrokerMissing` in the end.
        """

    def look(self, queues: Iterable[Queue]) -> LogLook:
        """Return the bounds of the queues of those brokers that answer, without waiting for the others."""

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        """Return the offset that a time (ms since 1970) means in each of `queues` that exists.

        LOWER: the queue's `max_offset` if all messages are older. UPPER: its `min_offset` if all are newer.
        """

    def stored_between(self, ranges: Iterable[QueueRange], begin: int, end: int) -> list[QueueRange]:
        """Return the pieces of published `ranges` that can have messages stored in [begin, end] (ms since 1970).

        Returns all of `ranges` if this log cannot tell.
        """

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """Return the pieces that can have messages with one of `keys` among their keys, or as `msgId`, in order.

        Reads no messages. Returns all of `ranges` if this log has no index that tells.
        """

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        """Return the next offset of a consumer group in those of `queues` in which it has committed one."""

    def groups(self) -> Mapping[str, Positions]:
        """Return the consumer groups, each with all offsets that it has committed."""

    def commit(self, group: str, positions: Positions) -> None:
        """Set the next offsets of a consumer group. Raises `InvalidGroup`, `UnknownTopic`, `StoreUnavailable`."""

    def sizes(self, wanted: QueueRange) -> Int64s | None:
        """Return record sizes (bytes), shape (wanted.length,), 0 for deleted messages; None if this log cannot tell."""

    def fingerprints(self, positions: Positions) -> Fingerprints:
        """Identify the message before each position.

        Leaves a queue out if that message is deleted or damaged, if the queue begins there, ends before the position or
        was deleted, or if this log cannot tell.
        """

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        """Return the queues of both in which the message before the position is not the one of `last`.

        Includes queues that end before the position, if this log has seen more of them. Leaves out missing queues,
        those in which that message is deleted, and those of which this log cannot tell.
        """

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the matching messages of a published range, in order, with exactly `spec.columns`.

        Raises `OffsetLost`, `OffsetNotYet`, `UnknownTopic`, `CorruptRecord`, `UnreadableBody`.
        """

    def wait(self, seen: Positions, timeout: float) -> None:
        """Sleep until one of the queues has another `max_offset` than in `seen`, at most `timeout` seconds.

        May return early, such as for a message in another queue.
        """

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> Held:
        """Hold queues until `deadline` (`time.monotonic()` seconds) for messages behind each position.

        idle: seconds without a message after which `Held` gives None.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Log: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LogAppend(Protocol):
    """Messages of any topics that are appended under one publication: readers see all of them or none.

    `publish` and `abandon` end it, also if they raise.
    """

    def add(self, topic: str, table: Any) -> None:
        """Add a table of messages, or a stream of batches, behind the tables added before.

        The columns are those of `MessageStore.append_table`. The table is read by `publish`.

        Raises `UnknownTopic`, and `InvalidColumns` for names and types of columns.
        """

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> Any:
        """Append all that was added, and return an `AppendResult`; readers see it when this returns.

        flush: all of it is on the device when this returns; after a crash the log has all of it or nothing. unless:
        called while no other writer can append; if it returns true, nothing is appended and this returns None. Raises
        as `put`; readers see nothing then.
        """

    def abandon(self) -> None:
        """Drop all that was added; readers never see it."""


class LogWriter(Log, Protocol):
    """A log, open to be written, and to be read."""

    def create_topic(self, topic: str, queues: int) -> int:
        """Create a topic, or add queues to one; returns its number of queues. Raises `InvalidTopic`, `StoreFull`."""

    def begin(self) -> LogAppend:
        """Return an append of tables, to any topics."""

    def flush(self) -> None:
        """Bring all published messages to the device."""

    def __enter__(self) -> LogWriter: ...


@runtime_checkable
class LogAddress(Protocol):
    """Where a log is: frozen, hashable and picklable, so that other processes open it. Errors name it by its `str`."""

    @property
    def directory(self) -> str | None:
        """A directory that all readers of this log can see, for files beside the log; None without one."""

    def open(self) -> Log:
        """Open the log to read. Raises `StoreError`."""

    def open_writer(self) -> LogWriter:
        """Open the log to write. Raises `StoreError`, such as `ReadOnlyStore` for a log that can only be read."""
