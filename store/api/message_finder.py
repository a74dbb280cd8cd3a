"""The methods of a store that find messages, and tables of topics and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from store.api.store_reader import StoreReader
from store.api.store_tables import groups_table, store_html, topics_table
from store.disk.index import END_OF_TIME
from store.format.columns import COLUMNS, DEFAULT_COLUMNS, check_columns
from store.format.record_copies import RecordCopies
from store.format.stored_message import StoredMessage, inflated, inflated_or_raw
from store.model.errors import InvalidArgument, OffsetLost, StoreError
from store.model.html_table import html_text
from store.model.integers import integer, iso_time, text
from store.model.log_protocol import Int64s, MessageFilter, Queue, QueueRange, Unreadable
from store.read.narrowing import Narrowing
from store.read.query import KeyQuery, copies_at, message_at, messages_with_key, offset_of_id, record_at, sizes_at

TopicPart = Iterable[int] | Mapping[int, tuple[int, int]] | None


class MessageFinder(StoreReader):
    def query(
        self, topic: str, key: str, max_messages: int = 64, begin: int = 0, end: int = END_OF_TIME
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic that have a key, stored in [begin, end] (ms); oldest first.

        key: one of `Message.keys`, or a client's message id. Messages appended with messageIndexEnable=false are not
        found. Older messages come from the archive, if there is one. An unreadable body is left as it is stored, with
        the reason in property `BODY_ERROR`.

        Raises `UnknownTopic`, `CorruptRecord`, `ConfigError` if the index has other sizes than configured,
        `ArchiveError`, `ObjectsUnavailable`.
        """
        self.must_be_open()
        limits = integer("max_messages", max_messages, 1), integer("begin", begin), integer("end", end)
        wanted = KeyQuery(topic, text("key", key), *limits)
        confirm, times_from = self.confirm_offset, self._published_end.times_from
        found = messages_with_key(self._log, self._index, confirm, wanted, self._published.has, times_from)
        first = self._log.min_offset()  # files that are still open may have deleted messages before it
        most = self.config.maxDecompressedMessageSize
        there = [inflated_or_raw(message, most) for message in found if message.physical_offset >= first]
        ours = self.bounds(Queue(topic, queue_id) for queue_id in range(self._topics.known(topic)))
        left = wanted.max_messages - len(there)
        if left and any(each.min_offset for each in ours.values()) and (log := self._tiered()):
            there = log.query(replace(wanted, max_messages=left), there) + there
        return there

    def message_by_id(self, offset_msg_id: str) -> StoredMessage:
        """Return the message with this offsetMsgId. For a client's id, use `query`.

        As in RocketMQ, the message may be from before its topic was recreated. Raises `InvalidMessageId`, `OffsetLost`,
        `OffsetNotYet`, `CorruptRecord`, `UnreadableBody`.
        """
        self.must_be_open()
        message = message_at(self._log, offset_of_id(offset_msg_id), self.confirm_offset)
        self._published.has(message)
        return self._inflated(message)

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record that begins at a log offset. Raises `OffsetLost`, `OffsetNotYet`, `CorruptRecord`."""
        self.must_be_open()
        return record_at(self._log, integer("physical_offset", physical_offset), self.confirm_offset)[1]

    def first_message(self) -> StoredMessage | None:
        """Return the first message of the log, with its body as it is stored; None if the log is empty.

        Raises `CorruptRecord`, and `OffsetLost` if retention deletes it concurrently.
        """
        self.must_be_open()
        first, end = self._log.min_offset(), self.confirm_offset
        return message_at(self._log, first, end) if first < end else None

    def copies(self, physical_offsets: Int64s) -> RecordCopies:
        """Return copies of the messages at distinct log offsets, for an `Append`.

        Raises `CorruptRecord`, `OffsetLost`, `OffsetNotYet`.
        """
        self.must_be_open()
        return copies_at(self._log, physical_offsets, sizes_at(self._log, physical_offsets, self.confirm_offset))

    def _inflated(self, message: StoredMessage) -> StoredMessage:
        where = f"topic {message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
        return inflated(message, where, self.config.maxDecompressedMessageSize)

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """Return the parts of published `ranges` that can contain messages with one of `keys` as key or `msgId`.

        All such messages are in the parts; others may be, too. Raises `UnknownTopic`, `UnknownQueue`.
        """
        self.must_be_open()
        return self._narrowing().with_keys(ranges, [text("key", key) for key in keys])

    def to_arrow(
        self,
        topic: str,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        *,
        queues: TopicPart = None,
        begin: int | None = None,
        end: int | None = None,
        tags: str | MessageFilter | None = None,
        unreadable: Unreadable = "error",
    ) -> pa.RecordBatchReader:
        """Return the current messages of a topic, queue after queue, as a stream of batches.

        queues: queue ids, or a mapping of these to ranges [start, end) of offsets; default: all.
        begin, end: only messages stored in [begin, end), ms since 1970.
        tags, unreadable: see `scan`.

        Raises as `scan`, and `InvalidArgument` for a range that ends before it begins.
        """
        self.must_be_open()
        ranges = self._ranges(topic, queues, begin, end)
        check_columns(columns)
        schema = pa.schema([(name, COLUMNS[name]) for name in columns])
        scans = [self.scan(topic, queue, *part, columns, tags, unreadable=unreadable) for queue, part in ranges.items()]
        return pa.RecordBatchReader.from_batches(schema, chain.from_iterable(scans))

    def topics_table(self) -> pa.Table:
        """Return a table of the current topics.

        Columns: topic (string), queues (int32), messages (int64), bytes of their records (int64), and newest, the last
        store time (timestamp[us, UTC], null without one).

        Reads the queue entry of each message, 20 bytes. Raises `CorruptSegment`, `CorruptRecord`, `OffsetLost`.
        """
        self.must_be_open()
        return topics_table(self)

    def groups_table(self) -> pa.Table:
        """Return a table of the current consumer groups, with a row for each queue that a group reads.

        Columns: group, topic (string), queueId (int32), offset that the group reads next (int64, null if it never
        committed one), maxOffset of the queue, and lag in messages (int64). A group without offsets has one row, with
        nulls. Raises `CorruptStore`.
        """
        self.must_be_open()
        return groups_table(self, self._groups.all_positions())

    def _repr_html_(self) -> str:
        try:
            return store_html(self, self._groups.all_positions())
        except StoreError as error:
            return html_text(str(error))

    def _ranges(self, topic: str, part: TopicPart, begin: int | None, end: int | None) -> dict[int, tuple[int, int]]:
        if isinstance(part, Mapping):
            found = {queue: (start, stop) for queue, (start, stop) in part.items()}
        else:
            # queue 0 of an unknown topic raises `UnknownTopic` below
            queues = range(self.topics().get(topic, 1)) if part is None else part
            found = {queue: self.offsets(topic, queue) for queue in queues}
            of_one_moment = self.bounds(Queue(topic, queue) for queue in found)
            found |= {queue.queue_id: bounds for queue, bounds in of_one_moment.items()}
        for queue, (start, stop) in found.items():
            if start > stop:
                raise InvalidArgument(
                    f"topic {topic!r}, queue {queue}: the range [{start}, {stop}) ends before it begins. Give an "
                    "end at or after the begin"
                )
            first = start if begin is None else min(max(start, self._stored_from(topic, queue, start, begin)), stop)
            last = stop if end is None else max(min(stop, self._stored_from(topic, queue, start, end)), first)
            found[queue] = first, last
        return found

    def _stored_from(self, topic: str, queue: int, start: int, timestamp: int) -> int:
        """Return the first offset at or after a time, at least `start`. Raises `OffsetLost` if that may be a deleted
        message.
        """
        found = self.offset_by_time(topic, queue, timestamp)
        if start < found <= self.offsets(topic, queue)[0]:
            raise OffsetLost(
                f"topic {topic!r}, queue {queue}: messages before offset {found} were deleted, so the first message "
                f"stored at {iso_time(timestamp)} or after is unknown. Begin at offset {found}, or give no time"
            )
        return found

    def _narrowing(self) -> Narrowing:
        return Narrowing(self._log, self._index, self._published, self._published_end)
