"""What is put, on its way to the log: queues are chosen, records encoded; and what a put answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.files.config import StoreConfig
from store.files.topics import Topics
from store.format.arrays import constant, lengths
from store.format.delayed import Waits, waiting
from store.format.encoding import encode_columns, encode_list
from store.format.entering import RESERVED, check_topic
from store.format.hashes import java_hash, java_hash_code
from store.format.layout import END_FILE_MIN_BLANK_BYTES, MAX_TOPIC_BYTES, PROPERTY_CRC_BYTES, PROPERTY_UNIQ_KEY
from store.format.message import Message, check_mapping, illegal, whole_number
from store.format.message_columns import ANY_QUEUE, WAITING_COLUMNS, MessageColumns, as_table, split
from store.format.record_copies import Places, RecordCopies
from store.format.records import EncodedRecord, EncodedRecords, Encoding, as_columns
from store.format.stored_message import offset_msg_ids
from store.model.errors import PutStatus
from store.publish.placing import Where

ROWS_A_TURN = 16  # more are read no faster
# By so much a record may grow that is put again in its own topic: the name is longer, and it may get a checksum.
_GROWS_BYTES = MAX_TOPIC_BYTES + PROPERTY_CRC_BYTES


class PutResult(NamedTuple):
    """RocketMQ's SendResult of one message."""

    status: PutStatus
    queue_id: int
    queue_offset: int
    physical_offset: int
    msg_id: str


def encoding_of(config: StoreConfig) -> Encoding:
    """How a store with these settings makes records."""
    return Encoding(
        store_host=config.store_host,
        max_message_size=config.maxMessageSize,
        with_keys=config.messageIndexEnable,
        with_tags=config.tagIndexEnable,
        with_crc=config.enabledAppendPropCRC,
    )


class Putting:
    """Makes records for one store. Messages that name no queue take turns, each topic by itself.

    The turns go on from the number of messages that the topic ever had, so that processes which put one message
    each do not all put it into the first queue. Rows of a table take turns of ROWS_A_TURN as long as all queues get
    one, then of one row: as even as row by row, and whoever reads a queue finds its records side by side.
    """

    def __init__(
        self,
        topics: Topics,
        config: StoreConfig,
        ever_put: Callable[[str], int],
        delaying: Callable[[], None] = lambda: None,
    ) -> None:
        """delaying: called before messages are put that wait in a broker's topics, outside the append lock."""
        self._topics = topics
        self._delaying = delaying
        self._encoding = encoding_of(config)
        self._max_record_bytes = config.mappedFileSizeCommitLog - END_FILE_MIN_BLANK_BYTES
        self._turns = _Turns(ever_put)

    @staticmethod
    def listed(messages: Iterable[Message]) -> list[Message]:
        """Return messages as a list, without reserved properties. Raises `MessageRefused` for what is no message."""
        if not isinstance(messages, Iterable):
            raise illegal(f"put_many takes an iterable of Message, not {type(messages).__name__}")
        return list(map(_sendable, messages))

    def of_messages(self, messages: Sequence[Message]) -> EncodedRecords | list[EncodedRecord]:
        """Records of messages of any topics: of many as columns.

        Raises `UnknownTopic`, `UnknownQueue`, `InvalidTopic`, `MessageRefused`.
        """
        now = _now()
        records = encode_list(messages, self.choose(messages), self._encoding, now)
        waits = Waits.of_messages(messages, now)
        return records if waits is None else self._waiting(as_columns(records), waits)

    def choose(self, messages: Sequence[Message]) -> list[int]:
        """The queues that messages go to. Raises as `of_messages` for what is refused at the door."""
        queues = {topic: self._queues(topic) for topic in {_text("topic", message.topic) for message in messages}}
        return [
            next(self._turns[message.topic]) % queues[message.topic]
            if message.queue_id is None and message.sharding_key in (None, "")
            else self._named_queue(message, queues[message.topic])
            for message in messages
        ]

    def of_own(self, messages: Sequence[Message]) -> EncodedRecords | list[EncodedRecord]:
        """Records of a broker's own messages, past the door: any topic and properties; each names its queue.

        Raises `MessageRefused` for one that may fit no segment once it is put again in its own topic.
        """
        queue_ids = [message.queue_id or 0 for message in messages]
        records = encode_list(messages, queue_ids, self._encoding, _now())
        sizes = records.sizes if isinstance(records, EncodedRecords) else np.array([record.size for record in records])
        self._must_fit_later(sizes)
        return records

    def of_table(self, topic: str, table: object) -> Iterator[EncodedRecords]:
        """Records of many messages of one topic, in pieces of about 16 MiB, each made when it is asked for.

        Raises at once `UnknownTopic`, `InvalidTopic`, `InvalidColumns` for columns that do not fit; with a piece
        `InvalidColumns` and `MessageRefused` for what stands in it.
        """
        self._queues(_text("topic", topic))
        source = as_table(table)
        if not WAITING_COLUMNS.isdisjoint(source.schema.names):
            self._delaying()  # now: what makes the pieces may have the lock
        return (self._of_piece(topic, piece) for piece in split(source))

    def _of_piece(self, topic: str, piece: pa.Table) -> EncodedRecords:
        messages = MessageColumns.of(piece)
        now = _now()
        records = encode_columns(topic, messages, self._choose_queues(topic, messages), self._encoding, now)
        levels, times = messages.delay_levels, messages.deliver_at
        if levels is None and times is None:
            return records
        nobody = np.zeros(len(messages), np.int64)
        waits = Waits.of(nobody if levels is None else levels, nobody if times is None else times, now)
        return records if waits is None else self._fitting_later(waiting(records, waits, self._encoding), waits)

    def _waiting(self, records: EncodedRecords, waits: Waits) -> EncodedRecords:
        self._delaying()
        return self._fitting_later(waiting(records, waits, self._encoding), waits)

    def _fitting_later(self, records: EncodedRecords, waits: Waits) -> EncodedRecords:
        """What fits a segment where it waits, but may not in its own topic, must not be acknowledged."""
        self._must_fit_later(records.sizes[(waits.levels > 0) | (waits.deliver_at > 0)])
        return records

    def _must_fit_later(self, sizes: npt.NDArray[np.int64]) -> None:
        largest, limit = int(sizes.max(initial=0)), self._max_record_bytes - _GROWS_BYTES
        if largest > limit:
            raise illegal(
                f"a record of {largest} bytes, which is put again in its own topic later: at most {limit}, or it might "
                "fit no commit log segment then; create the store with a larger mappedFileSizeCommitLog"
            )

    def of_copies(self, copies: RecordCopies, places: Places) -> Iterator[EncodedRecords]:
        """Records of stored messages that are put again, past the door: it is the store itself that says where.

        Raises `MessageRefused` for properties that become too large.
        """
        if places.delays is not None:
            self._delaying()
        return copies.records(places, self._encoding)

    def results(self, messages: Sequence[Message], went: Sequence[Where]) -> list[PutResult]:
        """What to answer for messages that were appended."""
        # As readers will see them: a producer's own, else the place in the log.
        ids = offset_msg_ids(*self._encoding.store_host, [each.physical_offset for each in went])
        for row, message in enumerate(messages):
            if message.properties:
                ids[row] = message.properties.get(PROPERTY_UNIQ_KEY) or ids[row]
        return [PutResult(PutStatus.PUT_OK, *each, msg_id) for each, msg_id in zip(went, ids, strict=True)]

    def _queues(self, topic: str) -> int:
        """How many queues a topic has that can be put into."""
        queues = self._topics.known(topic)
        check_topic(topic)
        return queues

    def _named_queue(self, message: Message, queues: int) -> int:
        """The queue that a message names, itself or by its sharding key."""
        if message.queue_id is None:
            return abs(java_hash_code(_text("sharding_key", message.sharding_key))) % queues
        queue_id = whole_number("queue_id", message.queue_id)
        return queue_id if 0 <= queue_id < queues else self._topics.check_queue(message.topic, queue_id)

    def _choose_queues(self, topic: str, messages: MessageColumns) -> npt.NDArray[np.int64]:
        queues, named = self._topics.known(topic), messages.queue_ids
        if named is None:
            return self._any_queues(topic, messages, queues)
        without = named == ANY_QUEUE
        for queue_id in np.unique(named[~without]).tolist():
            self._topics.check_queue(topic, queue_id)
        return np.where(without, self._any_queues(topic, messages, queues), named) if without.any() else named

    def _any_queues(self, topic: str, messages: MessageColumns, queues: int) -> npt.NDArray[np.int64]:
        """Queues of messages that name none: by their sharding keys, or in turn."""
        chosen = self._take_turns(topic, len(messages), queues)
        if messages.sharding_keys is None:
            return chosen
        sharded = np.abs(java_hash(messages.sharding_keys).astype(np.int64)) % queues
        without = lengths(messages.sharding_keys.fill_null(constant(""))) == 0
        return np.where(without, chosen, sharded)

    def _take_turns(self, topic: str, rows: int, queues: int) -> npt.NDArray[np.int64]:
        """The queue of each of `rows` rows, shape (rows,)."""
        first = next(self._turns[topic])
        self._turns[topic] = count(first + rows)
        row = np.arange(rows)
        in_long_turns = rows - rows % (queues * ROWS_A_TURN)
        return (first + np.where(row < in_long_turns, row // ROWS_A_TURN, row)) % queues


class _Turns(dict[str, Iterator[int]]):
    """Topic to the numbers of its next turns."""

    def __init__(self, ever_put: Callable[[str], int]) -> None:
        super().__init__()
        self._ever_put = ever_put

    def __missing__(self, topic: str) -> Iterator[int]:
        self[topic] = turns = count(self._ever_put(topic))
        return turns


def _sendable(message: object) -> Message:
    if not isinstance(message, Message):
        raise illegal(f"{message!r:.40} is a {type(message).__name__}; put takes a store.Message")
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
