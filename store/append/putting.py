"""Choose the queues of messages and encode them as records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.append.placing import Where
from store.disk.config import StoreConfig
from store.disk.topics import Topics
from store.format.arrays import constant, lengths
from store.format.delayed import MessageDelays, waiting
from store.format.encoding import encode_columns, encode_list
from store.format.entering import RESERVED, check_topic
from store.format.hashes import java_hash, java_hash_code
from store.format.layout import END_FILE_MIN_BLANK_BYTES, MAX_TOPIC_BYTES, PROPERTY_CRC_BYTES, PROPERTY_UNIQ_KEY
from store.format.message import Message, check_mapping, illegal, whole_number
from store.format.message_columns import ANY_QUEUE, WAITING_COLUMNS, MessageColumns, as_table, split
from store.format.record_copies import CopyDestinations, RecordCopies
from store.format.records import EncodedRecord, EncodedRecords, Encoding, as_columns
from store.format.stored_message import offset_msg_ids
from store.model.errors import PutStatus

ROWS_A_TURN = 16  # larger groups do not make reads faster
# A delayed record may get a longer name and a checksum in its own topic.
_GROWS_BYTES = MAX_TOPIC_BYTES + PROPERTY_CRC_BYTES


class PutResult(NamedTuple):
    """RocketMQ's SendResult."""

    status: PutStatus
    queue_id: int
    queue_offset: int
    physical_offset: int
    msg_id: str


def encoding_of(config: StoreConfig) -> Encoding:
    return Encoding(
        store_host=config.store_host,
        max_message_size=config.maxMessageSize,
        with_keys=config.messageIndexEnable,
        with_tags=config.tagIndexEnable,
        with_crc=config.enabledAppendPropCRC,
    )


class RecordMaker:
    def __init__(
        self,
        topics: Topics,
        config: StoreConfig,
        ever_put: Callable[[str], int],
        delaying: Callable[[], None] = lambda: None,
    ) -> None:
        """ever_put: returns the number of messages that a topic ever had.
        delaying: called before a put of delayed messages, outside the append lock.
        """
        self._queues = QueueChoice(topics, ever_put)
        self._delaying = delaying
        self._encoding = encoding_of(config)
        self._max_record_bytes = config.mappedFileSizeCommitLog - END_FILE_MIN_BLANK_BYTES

    def of_messages(self, messages: Sequence[Message]) -> EncodedRecords | list[EncodedRecord]:
        """Encode messages of any topics; many as columns. Raises as `choose`."""
        now = _now()
        records = encode_list(messages, self.choose(messages), self._encoding, now)
        waits = MessageDelays.of_messages(messages, now)
        if waits is None:
            return records
        self._delaying()
        return self._delayed(as_columns(records), waits)

    def choose(self, messages: Sequence[Message]) -> list[int]:
        """Return the queue id for each message.

        Raises `UnknownTopic`, `UnknownQueue`, `InvalidTopic`, `MessageRefused`.
        """
        return self._queues.of_messages(messages)

    def of_own(self, messages: Sequence[Message]) -> EncodedRecords | list[EncodedRecord]:
        """Encode messages that a broker puts itself, to any topic and with any properties. Each must have a queue id.

        Raises `MessageRefused` if a record may not fit into a segment when it moves to its real topic.
        """
        queue_ids = [message.queue_id or 0 for message in messages]
        records = encode_list(messages, queue_ids, self._encoding, _now())
        sizes = records.sizes if isinstance(records, EncodedRecords) else [record.size for record in records]
        self._must_fit_later(np.asarray(sizes))
        return records

    def of_table(self, topic: str, table: object) -> Iterator[EncodedRecords]:
        """Encode messages of one topic lazily, in pieces of about 16 MiB.

        The call raises `UnknownTopic`, `InvalidTopic`, and `InvalidColumns` for names and types of columns. The
        iterator raises `InvalidColumns` and `MessageRefused` for content.
        """
        self._queues.count(_text("topic", topic))
        source = as_table(table)
        if not WAITING_COLUMNS.isdisjoint(source.schema.names):
            self._delaying()  # not in the iterator, which the caller may run under the lock
        return (self._of_piece(topic, piece) for piece in split(source))

    def of_copies(self, copies: RecordCopies, places: CopyDestinations) -> Iterator[EncodedRecords]:
        """Encode records that the store puts itself, to any topic and with any properties."""
        if places.delays is not None:
            self._delaying()
        return copies.records(places, self._encoding)

    def results(self, messages: Sequence[Message], went: Sequence[Where]) -> list[PutResult]:
        # As for readers: the producer's own id, or else the offsetMsgId.
        ids = offset_msg_ids(*self._encoding.store_host, [each.physical_offset for each in went])
        for row, message in enumerate(messages):
            if message.properties:
                ids[row] = message.properties.get(PROPERTY_UNIQ_KEY) or ids[row]
        return [PutResult(PutStatus.PUT_OK, *each, msg_id) for each, msg_id in zip(went, ids, strict=True)]

    def _of_piece(self, topic: str, piece: pa.Table) -> EncodedRecords:
        messages = MessageColumns.of(piece)
        now = _now()
        records = encode_columns(topic, messages, self._queues.of_columns(topic, messages), self._encoding, now)
        levels, times = messages.delay_levels, messages.deliver_at
        if levels is None and times is None:
            return records
        none = np.zeros(len(messages), np.int64)
        waits = MessageDelays.of(none if levels is None else levels, none if times is None else times, now)
        return records if waits is None else self._delayed(records, waits)

    def _delayed(self, records: EncodedRecords, waits: MessageDelays) -> EncodedRecords:
        found = waiting(records, waits, self._encoding)
        self._must_fit_later(found.sizes[(waits.levels > 0) | (waits.deliver_at > 0)])
        return found

    def _must_fit_later(self, sizes: npt.NDArray[np.int64]) -> None:
        largest, limit = int(sizes.max(initial=0)), self._max_record_bytes - _GROWS_BYTES
        if largest > limit:
            raise illegal(
                f"a record has {largest} bytes, more than the {limit} allowed for a delayed or half message, which "
                "grows when it moves to its own topic. Create the store with a larger mappedFileSizeCommitLog"
            )


class QueueChoice:
    """Chooses the queue of each message: by its queue id or sharding key, otherwise round robin within its topic.

    Round robin begins at the number of messages that the topic ever had. Otherwise processes that put one message each
    would all use the first queue. Rows of a table go to a queue in groups of ROWS_A_TURN, so that records of one queue
    are adjacent in the log.
    """

    def __init__(self, topics: Topics, ever_put: Callable[[str], int]) -> None:
        self._topics = topics
        self._turns = _Turns(ever_put)

    def of_messages(self, messages: Sequence[Message]) -> list[int]:
        queues = {topic: self.count(topic) for topic in {_text("topic", message.topic) for message in messages}}
        return [
            next(self._turns[message.topic]) % queues[message.topic]
            if message.queue_id is None and message.sharding_key in (None, "")
            else self._named(message, queues[message.topic])
            for message in messages
        ]

    def of_columns(self, topic: str, messages: MessageColumns) -> npt.NDArray[np.int64]:
        queues, named = self._topics.known(topic), messages.queue_ids
        if named is None:
            return self._unnamed(topic, messages, queues)
        without = named == ANY_QUEUE
        for queue_id in np.unique(named[~without]).tolist():
            self._topics.check_queue(topic, queue_id)
        return np.where(without, self._unnamed(topic, messages, queues), named) if without.any() else named

    def count(self, topic: str) -> int:
        queues = self._topics.known(topic)
        check_topic(topic)
        return queues

    def _named(self, message: Message, queues: int) -> int:
        if message.queue_id is None:
            return abs(java_hash_code(_text("sharding_key", message.sharding_key))) % queues
        queue_id = whole_number("queue_id", message.queue_id)
        return queue_id if 0 <= queue_id < queues else self._topics.check_queue(message.topic, queue_id)

    def _unnamed(self, topic: str, messages: MessageColumns, queues: int) -> npt.NDArray[np.int64]:
        chosen = self._in_turn(topic, len(messages), queues)
        if messages.sharding_keys is None:
            return chosen
        sharded = np.abs(java_hash(messages.sharding_keys).astype(np.int64)) % queues
        without = lengths(messages.sharding_keys.fill_null(constant(""))) == 0
        return np.where(without, chosen, sharded)

    def _in_turn(self, topic: str, rows: int, queues: int) -> npt.NDArray[np.int64]:
        first = next(self._turns[topic])
        self._turns[topic] = count(first + rows)
        row = np.arange(rows)
        in_long_turns = rows - rows % (queues * ROWS_A_TURN)
        return (first + np.where(row < in_long_turns, row // ROWS_A_TURN, row)) % queues


class _Turns(dict[str, Iterator[int]]):
    def __init__(self, ever_put: Callable[[str], int]) -> None:
        super().__init__()
        self._ever_put = ever_put

    def __missing__(self, topic: str) -> Iterator[int]:
        self[topic] = turns = count(self._ever_put(topic))
        return turns


def sendable(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without reserved properties. Raises `MessageRefused` for objects that are no messages."""
    if not isinstance(messages, Iterable):
        raise illegal(f"put_many takes an iterable of Message, not {type(messages).__name__}")
    return list(map(_sendable, messages))


def _sendable(message: object) -> Message:
    if not isinstance(message, Message):
        raise illegal(f"{message!r:.40} is a {type(message).__name__}. put takes a store.Message")
    if message.properties or type(message.properties) is not dict:
        check_mapping(message.properties)
        if not RESERVED.isdisjoint(message.properties):
            kept = {name: value for name, value in message.properties.items() if name not in RESERVED}
            return replace(message, properties=kept)
    return message


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise illegal(f"{name}={value!r:.40}: must be a text")
    return value


def _now() -> int:
    return int(time.time() * 1000)
