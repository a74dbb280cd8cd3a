"""What a reader, a writer and a consumer need of a log, whichever kind it is: a directory, a cluster, an archive.

Everything in `pyspark_mq` works on these; `store.directory.directory_log` is the first kind. No caller asks for the
kind of a log: its answers say what it cannot do (see each verb).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Oversized = Literal["error", "null"]

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
    """What a queue has: messages [min_offset, max_offset), queue offsets."""

    min_offset: int
    max_offset: int


class Fingerprint(NamedTuple):
    """Which message stands at a queue offset. physical_offset: commit log offset (bytes) of its record;
    store_timestamp: ms since 1970."""

    physical_offset: int
    store_timestamp: int


Fingerprints = dict[Queue, Fingerprint]  # of the message before a position


class Boundary(Enum):
    """Which message a time means: LOWER the first stored at it or after, UPPER the last stored at it or before."""

    LOWER = "lower"
    UPPER = "upper"


@runtime_checkable
class MessageFilter(Protocol):
    """Which messages to read. Frozen, hashable and picklable."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `match_batch` looks at, bodies not among them; none where all messages match."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The only tags codes (Java hashes) that messages which match can have; None where that is not known."""

    def match_codes(self, tags_codes: Int64s) -> Bools:
        """True, shape of `tags_codes`, where a queue entry with that code may match."""

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """True, one a row and never null, where the message matches. batch: `columns`, and no others."""

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Whether one message matches."""


@dataclass(frozen=True)
class ReadSpec:
    """How a range is read.

    columns: names of `store.COLUMNS`, as they shall stand in the batches. check_crc: compare bodies with their
    checksums. max_rows, max_bytes: of one batch, bytes of records, and of bodies as they become where producers
    compressed them (one row at least). max_body_bytes: how large one body may become, None for the log's own limit; a
    larger one is a `MessageTooLarge`, or with oversized="null" null in its row.
    """

    columns: tuple[str, ...]
    message_filter: MessageFilter
    check_crc: bool = True
    max_rows: int = BATCH_ROWS
    max_bytes: int = BATCH_BYTES
    max_body_bytes: int | None = None
    oversized: Oversized = "error"


class Held(Protocol):
    """Queues that are waited for, until a deadline: an iterator, and a context manager. One thread uses it.

    It gives the messages behind a position of which one may match, as a range, or None where nothing came for a while,
    or another thread asked for it. An empty range elsewhere than at the position says that its reader is to go on
    there.
    A range's queue is held no longer, until `again` says from where on. From the deadline on none is held again, and
    the iterator ends; but every queue that has messages behind its begin comes once, however late it is.
    """

    def again(self, queue: Queue, position: int) -> None:
        """Hold a queue once more, or one that was not held before, from `position` on, and from nowhere else."""

    def wake(self) -> None:
        """Give None, at once, or first of all when asked next. Any thread may call it."""

    def __iter__(self) -> Iterator[QueueRange | None]: ...

    def __next__(self) -> QueueRange | None:
        """Of a queue that is gone an empty range, whose reader is told; or it raises `UnknownTopic`: all of it is gone.

        Raises `StoreNotOpen` where the log was closed meanwhile."""

    def __enter__(self) -> Held: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Log(Protocol):
    """A log, open to be read, in one process. A context manager: leaving it closes it. Threads may share it."""

    @property
    def is_ordered(self) -> bool:
        """Whether `physicalOffset` tells in which order messages of different queues were appended."""

    def topics(self) -> Mapping[str, tuple[Queue, ...]]:
        """Topic to its queues, in order, as it stands now."""

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Of each of `queues` that is there, in their order, as it stands now. All up to `max_offset` is published."""

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        """The offset that a time (ms since 1970) means, of each of `queues` that is there.

        LOWER: its `max_offset` where all is older. UPPER: its `min_offset` where all is newer.
        """

    def stored_between(self, ranges: Iterable[QueueRange], begin: int, end: int) -> list[QueueRange]:
        """The pieces of published `ranges` that can hold messages stored in [begin, end] (ms since 1970), in order.

        Never too few; all of them where this log cannot tell.
        """

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """The pieces that can hold messages with one of `keys` among their keys, or as `msgId`; likewise.

        Without reading the messages; all of them where this log has no index that tells.
        """

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        """The offset that a consumer group has to read next, of those of `queues` where it has committed one."""

    def groups(self) -> Mapping[str, Positions]:
        """Consumer groups, each with all that it has committed; none where this log knows of none."""

    def commit(self, group: str, positions: Positions) -> None:
        """Set what a consumer group has to read next. Raises `InvalidGroup`, `UnknownTopic`, `StoreUnavailable`."""

    def sizes(self, wanted: QueueRange) -> Int64s | None:
        """Record sizes (bytes), shape (wanted.length,), 0 for what is deleted; None where this log cannot tell."""

    def fingerprints(self, positions: Positions) -> Fingerprints:
        """Which message stands before each position.

        None where it is deleted or damaged, the queue begins there, ends before or is gone, or this log cannot tell.
        """

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        """The queues of both in which another message stands before the position than `last` says.

        As far as this log can tell; a deleted message may have been any. Also queues that end before the position, if
        this log has seen more than that message. Not those that are not there.
        """

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """The messages of a published range that match, in order, with exactly `spec.columns`.

        Raises `OffsetLost`, `OffsetNotYet`, `UnknownTopic`, `CorruptRecord`, `MessageTooLarge`.
        """

    def wait(self, seen: Positions, timeout: float) -> None:
        """Sleep until one of the queues has another `max_offset` than `seen` says, at most `timeout` seconds.

        It may come back early, and does when it learns of something in other queues.
        """

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> Held:
        """Wait for messages behind each position until `deadline` (`time.monotonic()` seconds).

        idle: after how many seconds without a message `Held` gives None.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Log: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LogAppend(Protocol):
    """Messages of any topics on their way into a log, for one publication: seen all at once or not at all.

    Over with `publish`, also if that raises, and with `abandon`.
    """

    def add(self, topic: str, table: Any) -> None:
        """Add a table of messages, or a stream of batches, behind what was added before: columns as
        `MessageStore.append_table` takes them. It is read when it is published.

        Raises `UnknownTopic`, and `InvalidColumns` for names and types of columns.
        """

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> Any:
        """Append all that was added; readers see it when this returns. An `AppendResult`.

        flush: it is on the device then, after a crash all of it or nothing. unless: called when nobody else can append
        any more; where it is true nothing is appended, and the answer is None. Raises as `put`; nothing is seen then.
        """

    def abandon(self) -> None:
        """Forget what was added. Nothing of it is ever seen."""


class LogWriter(Log, Protocol):
    """A log, open to be written, and to be read."""

    def create_topic(self, topic: str, queues: int) -> int:
        """Create a topic, or add queues to one; returns its number of queues. Raises `InvalidTopic`, `StoreFull`."""

    def begin(self) -> LogAppend:
        """An append of tables, to any topics."""

    def flush(self) -> None:
        """What was published is on the device when this returns."""

    def __enter__(self) -> LogWriter: ...


@runtime_checkable
class LogAddress(Protocol):
    """Where a log is: frozen, hashable and picklable, for other processes open it too. Errors name it by its `str`."""

    @property
    def directory(self) -> str | None:
        """A directory that whoever reads this log can see, for what is to lie beside it; None without one."""

    def open(self) -> Log:
        """Raises `StoreError`."""

    def open_writer(self) -> LogWriter:
        """Raises `StoreError`; `ReadOnlyStore` for a kind of log that can only be read."""
