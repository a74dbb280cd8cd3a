"""`ReceivedMessage`: a view of one row of columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa

from store.disk.figures import Floats
from store.format.arrays import numbers, pc
from store.format.layout import (
    KEY_SEPARATOR,
    PROPERTY_BODY_ERROR,
    PROPERTY_KEYS,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RETRY_TOPIC_PREFIX,
)
from store.format.properties import dicts
from store.format.stored_message import StoredMessage, host_of, offset_msg_id
from store.model.log_protocol import Int64s, Queue

# Without tags, keys and ids: for a single message, taking them from the properties is faster than pulling their
# columns.
COLUMNS = (
    "queueOffset",
    "body",
    "properties",
    "topic",
    "physicalOffset",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "flag",
    "sysFlag",
    "bodyCRC",
    "preparedTransactionOffset",
    "bodyError",
)

_ATTRIBUTES = {name: re.sub("[A-Z]+", lambda found: f"_{found[0].lower()}", name) for name in COLUMNS}
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # of the years 1 to 9999

_UNPRINTABLE = re.compile(r"[\x00-\x1f]+")  # includes the separators of properties

_Value = TypeVar("_Value", covariant=True)


class Columns:
    """n >= 1 messages of one queue."""

    body_error: str | None = None  # of a single message with an unreadable body, see `pieces`

    def __init__(self, queue: Queue, batch: pa.RecordBatch, tries: int = 0) -> None:
        """batch: has COLUMNS. tries: how often processing has failed since the pull."""
        self._queue = queue
        self._batch = batch
        self.tries = tries
        self.queue_offset: list[int] = batch["queueOffset"].to_pylist()

    def __len__(self) -> int:
        return len(self.queue_offset)

    def pieces(self) -> list[Columns]:
        """Split the messages, so that each unreadable message is alone in its part."""
        errors = self._batch["bodyError"]
        if errors.null_count == len(self):
            return [self]
        rows = np.flatnonzero(numbers(errors.is_valid()))
        cuts = sorted({0, *rows.tolist(), *(rows + 1).tolist(), len(self)})
        pieces = [Columns(self._queue, self._batch.slice(begin, end - begin)) for begin, end in pairwise(cuts)]
        for piece, begin in zip(pieces, cuts, strict=False):
            piece.body_error = errors[begin].as_py()
        return pieces

    def tried(self) -> Columns:
        """Return a copy whose messages have failed once more."""
        again = Columns(self._queue, self._batch, self.tries + 1)
        again.body_error = self.body_error
        return again

    @property
    def stored_at(self) -> Floats:
        """The store times: float64 ms since 1970, shape (n,). An invalid time gives an arbitrary number."""
        times: Floats = numbers(self._batch["storeTimestamp"].view(pa.int64()).fill_null(0)) / 1000
        return times

    @cached_property
    def body_bounds(self) -> Int64s:
        """Cumulative body sizes in bytes, int64, shape (n + 1,)."""
        bounds = np.zeros(len(self) + 1, np.int64)
        np.cumsum(numbers(pc.binary_length(self._batch["body"])), out=bounds[1:])
        return bounds

    @cached_property
    def body(self) -> list[bytes]:
        return self._list("body")

    @cached_property
    def topic(self) -> list[str]:
        topics: list[str] = self._list("topic")
        if not self._queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return topics
        first = self._property(PROPERTY_RETRY_TOPIC)
        return [before or topic for before, topic in zip(first, topics, strict=True)]

    @cached_property
    def queue_id(self) -> Sequence[int]:
        return [self._queue.queue_id] * len(self)

    @property
    def broker_name(self) -> Sequence[str]:
        return [self._queue.broker] * len(self)

    @cached_property
    def physical_offset(self) -> list[int]:
        return self._list("physicalOffset")

    @cached_property
    def msg_id(self) -> list[str]:
        ids = self._property(PROPERTY_UNIQ_KEY)
        if None not in ids:
            return ids  # type: ignore[return-value]
        hosts = zip(ids, self.store_host, self.physical_offset, strict=True)
        return [own or _offset_id(host, offset) for own, host, offset in hosts]

    @cached_property
    def tags(self) -> list[str | None]:
        return self._property(PROPERTY_TAGS)

    @cached_property
    def keys(self) -> list[tuple[str, ...]]:
        return [tuple(filter(None, (keys or "").split(KEY_SEPARATOR))) for keys in self._property(PROPERTY_KEYS)]

    @cached_property
    def properties(self) -> list[dict[str, str]]:
        return dicts(self._batch["properties"])

    @cached_property
    def born_timestamp(self) -> list[int | None]:
        return self._milliseconds("bornTimestamp")

    @cached_property
    def store_timestamp(self) -> list[int | None]:
        return self._milliseconds("storeTimestamp")

    @cached_property
    def born_host(self) -> list[str]:
        return self._list("bornHost")

    @cached_property
    def store_host(self) -> list[str]:
        return self._list("storeHost")

    @cached_property
    def reconsume_times(self) -> list[int]:
        return [times + self.tries for times in self._list("reconsumeTimes")]

    @cached_property
    def flag(self) -> list[int]:
        return self._list("flag")

    @cached_property
    def sys_flag(self) -> list[int]:
        return self._list("sysFlag")

    @cached_property
    def body_crc(self) -> list[int]:
        return self._list("bodyCRC")

    @cached_property
    def prepared_transaction_offset(self) -> list[int]:
        return self._list("preparedTransactionOffset")

    def _list(self, name: str) -> list[Any]:
        values: list[Any] = self._batch[name].to_pylist()
        return values

    def _property(self, name: str) -> list[str | None]:
        values: list[str | None] = pc.map_lookup(self._batch["properties"], name, "last").to_pylist()
        return values

    def _milliseconds(self, name: str) -> list[int | None]:
        return [None if at is None else at // 1000 for at in self._batch[name].view(pa.int64()).to_pylist()]


class FewColumns(Columns):
    """Columns over a few messages that were read one by one, because building a record batch would take longer."""

    def __init__(self, queue: Queue, messages: Sequence[StoredMessage], tries: int = 0) -> None:
        self._queue = queue
        self._messages = messages
        self.tries = tries
        self.queue_offset = [message.queue_offset for message in messages]

    def pieces(self) -> list[Columns]:
        return [self]

    def tried(self) -> FewColumns:
        return FewColumns(self._queue, self._messages, self.tries + 1)

    @property
    def stored_at(self) -> Floats:
        return np.array([message.store_timestamp for message in self._messages], np.float64)

    @cached_property
    def body_bounds(self) -> Int64s:
        return np.cumsum([0, *(len(message.body) for message in self._messages)])

    @cached_property
    def msg_id(self) -> list[str]:
        return [message.msg_id for message in self._messages]

    @cached_property
    def properties(self) -> list[dict[str, str]]:
        return [message.properties for message in self._messages]

    def _list(self, name: str) -> list[Any]:
        return list(map(attrgetter(_ATTRIBUTES[name]), self._messages))

    def _property(self, name: str) -> list[str | None]:
        return [message.properties.get(name) for message in self._messages]

    def _milliseconds(self, name: str) -> list[int | None]:
        return [at if _FIRST_MS <= at <= _LAST_MS else None for at in self._list(name)]


def _offset_id(host: str, physical_offset: int) -> str:
    return offset_msg_id(*host_of(host), physical_offset)


class _Field(Generic[_Value]):
    """An attribute of `ReceivedMessage`: the item for its row in the list of the same name in `Columns`."""

    def __init__(self, meaning: str) -> None:
        self.__doc__ = meaning

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, message: ReceivedMessage, owner: type) -> _Value:
        return getattr(message._columns, self._name)[message._row]  # type: ignore[no-any-return]


class ReceivedMessage:
    """One message, with the attributes of a `StoredMessage`, each converted on access.

    Timestamps outside of the years 1 to 9999 are None.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self._row = row

    topic = _Field[str]("The topic that it was put to, even if it was read from a retry topic.")
    queue_id = _Field[int]("Of the queue that it was consumed from.")
    queue_offset = _Field[int]("In the queue that it was consumed from.")
    physical_offset = _Field[int]("Commit log offset (bytes) of its record.")
    msg_id = _Field[str]("The client's id if the message has one, else the offsetMsgId.")
    properties = _Field[dict[str, str]]("All properties, including tags and keys.")
    born_timestamp = _Field[int | None]("ms since the epoch.")
    store_timestamp = _Field[int | None]("ms since the epoch.")
    born_host = _Field[str]("ip:port.")
    store_host = _Field[str]("ip:port.")
    reconsume_times = _Field[int]("The number of failed tries.")
    flag = _Field[int]("Set by the user.")
    sys_flag = _Field[int]("Set by RocketMQ.")
    body_crc = _Field[int]("As it is stored.")
    prepared_transaction_offset = _Field[int]("Of a transaction's half message.")
    broker_name = _Field[str]('Of the queue that it was consumed from; "" in a directory.')
    tags = _Field[str | None]("The message's tag.")
    keys = _Field[tuple[str, ...]]("The message's keys.")

    @property
    def body(self) -> bytes:
        """The decompressed body."""
        return self._columns.body[self._row]

    def stored(self) -> StoredMessage:
        """Return a copy to keep, compare or pickle.

        The copy of an unreadable body is the stored bytes, and property `BODY_ERROR` has the reason.
        """
        stored = StoredMessage(*(getattr(self, name) for name in _FIELDS))
        error = self._columns.body_error
        if error is None:
            return stored
        return stored._replace(properties={**stored.properties, PROPERTY_BODY_ERROR: _UNPRINTABLE.sub(" ", error)})

    def __reduce__(self) -> Any:
        return StoredMessage, tuple(getattr(self, name) for name in _FIELDS)

    def __repr__(self) -> str:
        return f"<{self.topic}/{self.queue_id}@{self.queue_offset} {self.msg_id}>"


_FIELDS = StoredMessage._fields


class Messages(Sequence[ReceivedMessage]):
    """Rows [start, stop) of `Columns` as a sequence of messages. Each message is created on access."""

    __slots__ = ("_columns", "_start", "_stop")

    def __init__(self, columns: Columns, start: int, stop: int) -> None:
        self._columns = columns
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ReceivedMessage]: ...

    def __getitem__(self, index: int | slice) -> ReceivedMessage | Sequence[ReceivedMessage]:
        rows = range(self._start, self._stop)[index]
        if isinstance(rows, int):
            return ReceivedMessage(self._columns, rows)
        if rows.step == 1:
            return Messages(self._columns, rows.start, rows.start + len(rows))
        return list(map(self._view, rows))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return map(self._view, range(self._start, self._stop))

    def __repr__(self) -> str:
        return f"<{len(self)} messages from {self[0]!r} on>" if len(self) else "<no messages>"

    @property
    def body_error(self) -> str | None:
        """Why the body of a single message cannot be read, None if it can."""
        return self._columns.body_error

    @property
    def tries(self) -> int:
        return self._columns.tries

    @property
    def _view(self) -> partial[ReceivedMessage]:
        return partial(ReceivedMessage, self._columns)

    # --- for `ProcessQueue` -----------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        return self._columns.queue_offset[self._start]

    @property
    def body_bytes(self) -> int:
        bounds = self._columns.body_bounds
        return int(bounds[self._stop] - bounds[self._start])

    def cut(self, count: int) -> tuple[Messages, Messages]:
        middle = self._start + count
        return Messages(self._columns, self._start, middle), Messages(self._columns, middle, self._stop)

    def tried(self) -> Messages:
        return Messages(self._columns.tried(), self._start, self._stop)
