"""`HalfMessages`: the open half messages of a store.

An op message ends half messages: its body lists their queue offsets. A broker also commits an offset in each of the two
queues. All half messages before the committed offset are ended, and op messages before it are no longer needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from store.api.message_store import MessageStore
from store.append.locks import among_groups
from store.broker.group_files import advance
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.layout import (
    HALF_TOPIC,
    OP_SEPARATOR,
    OP_TOPIC,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_ID,
    TRANSACTIONS_GROUP,
)
from store.format.stored_message import StoredMessage
from store.model.errors import CorruptRecord, OffsetLost, StoreError, UnknownTopic, UnreadableBody
from store.model.log_protocol import Queue

_OFFSET = re.compile(rb"[0-9]{1,18}")


def op_body(offsets: Iterable[int]) -> str:
    """Return an op message's body, as RocketMQ's TransactionalMessageBridge writes it."""
    return "".join(f"{offset}{OP_SEPARATOR}" for offset in offsets)


def offsets_ended(body: bytes) -> list[int]:
    """Return the queue offsets in an op message's body. Other text is skipped, because clients can send op messages."""
    return [int(each) for each in body.split(OP_SEPARATOR.encode()) if _OFFSET.fullmatch(each)]


QUEUE = 0  # the only queue of both topics
_AT_ONCE = 32
_logger = logging.getLogger("store")


class Half(NamedTuple):
    """An appended half message. physical_offset: commit log offset (bytes)."""

    transaction_id: str
    queue_offset: int
    physical_offset: int


class HalfMessages:
    """Knows which half messages of a store are open. Not thread-safe."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        for topic in (HALF_TOPIC, OP_TOPIC):
            created(store, topic)
        # Read first, so that op messages before it end only half messages before `_begin`.
        self._ops_seen = self._done(OP_TOPIC)
        self._begin = self._done(HALF_TOPIC)  # queue offset; all half messages before it are ended
        self._ended: set[int] = set()  # queue offsets of half messages, from `_begin` on
        self._last_half: dict[int, int] = {}  # by queue offset of an op message: the last half message that it ends
        self._logged: set[int] = set()  # queue offsets of unreadable half messages

    def look(self) -> None:
        """Read the op messages that arrived since the last call."""
        for at, op in self._messages(OP_TOPIC, self._ops_seen):
            if isinstance(op, StoreError):
                raise op  # its half messages are unknown
            ends = offsets_ended(op.body)
            self._ended.update(offset for offset in ends if offset >= self._begin)
            self._last_half[at] = max(ends, default=-1)
            self._ops_seen = at + 1

    def is_open(self, offset: int) -> bool:
        return self._begin <= offset and offset not in self._ended

    def open(self) -> Iterator[tuple[Half, StoredMessage]]:
        """Yield the open half messages, as they would be committed. Unreadable ones are logged and skipped."""
        for offset, found in self._open_half_messages():
            message = found if isinstance(found, StoreError) else _verified(found)
            if not isinstance(message, StoreError):
                half = Half(message.msg_id, offset, message.physical_offset)
                topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
                yield half, message._replace(topic=topic, queue_id=number_in(message, PROPERTY_REAL_QUEUE))
            elif offset not in self._logged:
                self._logged.add(offset)
                _logger.error("%s: a transaction stays open and cannot be checked: %s", self._store.path, message)

    def save(self) -> None:
        """Commit offsets up to the first open half message, as a broker does."""
        self.look()
        begin = next((offset for offset, _ in self._open_half_messages()), self._store.max_offset(HALF_TOPIC, QUEUE))
        done = [op for op, last in self._last_half.items() if last >= begin]
        ops = min(done, default=self._ops_seen)
        if (begin, ops) != (self._done(HALF_TOPIC), self._done(OP_TOPIC)):
            self._store.flush()  # a crash must not lose op messages before these offsets
            # Together and only forward: else a half message could count as open after its op message is skipped.
            path, offsets = self._store.path, {Queue(HALF_TOPIC, QUEUE): begin, Queue(OP_TOPIC, QUEUE): ops}
            with among_groups(path, self._store.config.lockTimeoutMillis / 1000):
                advance(ConsumerOffsets(path), TRANSACTIONS_GROUP, offsets)
        self._go_on(begin, ops)

    def forget(self) -> None:
        self.look()
        # The file with the committed offsets may be lost or stale, so never step back.
        self._go_on(max(self._begin, self._done(HALF_TOPIC)), self._done(OP_TOPIC))

    def _open_half_messages(self) -> Iterator[tuple[int, StoredMessage | StoreError]]:
        self.look()
        return (each for each in self._messages(HALF_TOPIC, self._begin) if each[0] not in self._ended)

    def _messages(self, topic: str, offset: int) -> Iterator[tuple[int, StoredMessage | StoreError]]:
        count = _AT_ONCE
        while True:
            try:
                got = self._store.get_message(TRANSACTIONS_GROUP, topic, QUEUE, offset, count)
            except (CorruptRecord, UnreadableBody, OffsetLost) as error:
                if count == 1:
                    yield offset, error
                    offset, count = offset + 1, _AT_ONCE
                else:
                    count = 1  # read one by one to find the damaged message
                continue
            yield from ((message.queue_offset, message) for message in got.messages)
            if got.next_begin_offset <= offset:
                return
            offset, count = got.next_begin_offset, _AT_ONCE

    def _go_on(self, begin: int, ops: int) -> None:
        self._begin = begin
        self._ended = {offset for offset in self._ended if offset >= begin}
        self._last_half = {op: last for op, last in self._last_half.items() if op >= ops}

    def _done(self, topic: str) -> int:
        committed = self._store.consumer_offset(TRANSACTIONS_GROUP, topic, QUEUE)
        return max(committed or 0, self._store.min_offset(topic, QUEUE))


def _verified(message: StoredMessage) -> StoredMessage | StoreError:
    said = message.properties
    # Check the properties, because most messages have no checksum of them.
    if PROPERTY_PRODUCER_GROUP in said and said.get(PROPERTY_TRANSACTION_ID, message.msg_id) == message.msg_id:
        return message
    return CorruptRecord(
        f"{HALF_TOPIC}, queue offset {message.queue_offset}: the properties of this transaction's message are damaged, "
        f"because they name no producer group, or another transaction: {said}; restore the segment from a copy, or "
        "send the message again"
    )


def number_in(message: StoredMessage, name: str) -> int:
    """Return the number in a property, 0 if there is no valid one."""
    said = message.properties.get(name, "")
    return int(said) if re.fullmatch("[0-9]{1,9}", said) else 0


def created(store: MessageStore, topic: str) -> str:
    """Return the topic, created with one queue if missing."""
    try:
        store.max_offset(topic, QUEUE)
    except UnknownTopic:
        store.create_topic(topic, 1)
    return topic
