"""Transactional messages, as RocketMQ's broker keeps them (TransactionalMessageServiceImpl).

A *half message* waits in an internal topic until its producer commits it or rolls it back. Both write an *op message*,
which names half messages by their queue offsets. A commit puts the message into its real topic in the same append, so
it is delivered once. If a half message stays open, a producer of its group is asked about it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from store.api.message_store import MessageStore
from store.append.placing import AppendResult
from store.append.putting import encoding_of, sendable
from store.broker.half_messages import QUEUE, Half, HalfMessages, created, number_in, op_body
from store.disk.consumer_offsets import check_group_name
from store.disk.opened import is_owned
from store.disk.topics import Topics
from store.format.arrays import texts
from store.format.delayed import real_places
from store.format.layout import (
    HALF_TOPIC,
    MAX_QUEUES,
    OP_TAG,
    OP_TOPIC,
    PROPERTY_CHECK_IMMUNITY,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQ_KEY,
    SYS_TRANSACTION_COMMIT,
    UNDECIDED_TOPIC,
)
from store.format.message import Message
from store.format.record_copies import CopyDestinations
from store.format.stored_message import StoredMessage, decode_record
from store.model.errors import (
    CorruptRecord,
    MessageRefused,
    OffsetLost,
    PutStatus,
    StoreError,
    TransactionEnded,
    UnknownTopic,
)
from store.model.integers import seconds

IMMUNITY_SECONDS = 6.0  # transactionTimeOut
MAX_CHECKS = 15  # transactionCheckMax
_MOST = 1000  # half messages in one step
_MOST_BYTES = 16 << 20  # of bodies in one step, because there are several copies of them
_logger = logging.getLogger("store")
_KnownBy = tuple[str, str | None, int, int]
Result = TypeVar("Result")


class Outcome(Enum):
    """The outcome of a transaction, RocketMQ's LocalTransactionState."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    UNKNOWN = "unknown"


class Transactions:
    """The transactions of one producer group.

    Thread-safe. Several processes can have an instance for the same group.
    """

    def __init__(self, store: MessageStore, group: str) -> None:
        check_group_name(group)
        self.path = store.path
        self._store = store
        self._group = group
        self._turn = threading.Condition()  # protects `_halves`
        self._halves = HalfMessages(store)

    @property
    def is_inside(self) -> bool:
        """Whether this is a signal handler that interrupted another method."""
        return is_owned(self._turn) or self._store.is_inside

    # --- for the producer --------------------------------------------------------------------------------

    def prepare(self, messages: Sequence[Message], fields: Mapping[str, npt.ArrayLike] | None = None) -> list[Half]:
        """Append half messages atomically. Readers see them after a commit. fields: see `Append.add_messages`.

        Raises as `MessageStore.put_many`, and `MessageRefused` for delayed messages, as RocketMQ.
        """
        if any(message.delay_level or message.deliver_at is not None for message in messages):
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL, "a message in a transaction cannot be delayed. Remove the delay"
            )
        messages = sendable(messages)
        append = self._store.begin()
        ids = [message.properties.get(PROPERTY_UNIQ_KEY) or uuid4().hex.upper() for message in messages]
        named = zip(messages, append.choose(messages), ids, strict=True)
        halves = [_half(self._group, message, queue_id, own) for message, queue_id, own in named]
        if not halves:
            return []
        append.add_broker_messages(halves, fields)
        placed = append.publish()
        return list(map(Half, ids, placed.queue_offsets.tolist(), placed.physical_offsets.tolist()))

    def commit(self, halves: Sequence[Half]) -> AppendResult:
        """Put the messages into their topics atomically, and return their places.

        Raises `TransactionEnded` if one of them was committed, rolled back or given up before, `UnknownTopic` if a
        topic was deleted, and `OffsetLost` if retention deleted a half message.
        """
        return self._end_at_current_places(halves, self._commit)

    def roll_back(self, halves: Sequence[Half]) -> None:
        """Drop the messages. Raises `TransactionEnded` as `commit` does."""
        self._end_at_current_places(halves, self._roll_back)

    def _commit(self, halves: Sequence[Half]) -> AppendResult:
        ending = EndingAppend(self._store, self._halves)
        ending.add_committed(halves)
        with self._turn:
            placed = ending.publish(halves)
        count = len(halves)  # without the op message
        return AppendResult(placed.queue_ids[:count], placed.queue_offsets[:count], placed.physical_offsets[:count])

    def _roll_back(self, halves: Sequence[Half]) -> None:
        ending = EndingAppend(self._store, self._halves)  # before the lock, which a child process may never get
        with self._turn:
            ending.publish(halves)

    def _end_at_current_places(self, halves: Sequence[Half], end: Callable[[Sequence[Half]], Result]) -> Result:
        while True:
            try:
                return end(halves)
            except TransactionEnded:
                found = self._current_places(halves)  # a check may have moved them
                if found == list(halves):
                    raise
                halves = found

    def _current_places(self, halves: Sequence[Half]) -> list[Half]:
        with self._turn:
            asked = [each for each in self._halves.open() if PROPERTY_CHECK_TIMES in each[1].properties]
            now: dict[_KnownBy | None, Half] = {_known_by(message): half for half, message in asked}
            is_open = [self._halves.is_open(half.queue_offset) for half in halves]
        return [
            half if waits else now.get(_was(self._store, half), half)
            for half, waits in zip(halves, is_open, strict=True)
        ]

    # --- open half messages ------------------------------------------------------------------------------

    def open(self, immunity: float = IMMUNITY_SECONDS) -> list[tuple[Half, StoredMessage]]:
        """Return the group's half messages that are older than `immunity` seconds, as they would be committed.

        The oldest come first. At most 1,000 messages or 16 MiB are returned.
        """
        now, immunity = time.time(), seconds("immunity", immunity)
        with self._turn:
            return list(_first(each for each in self._halves.open() if self._is_due(each[1], now, immunity)))

    def check(
        self,
        decide: Callable[[StoredMessage], Outcome],
        immunity: float = IMMUNITY_SECONDS,
        max_checks: int = MAX_CHECKS,
    ) -> int:
        """Call `decide` for each message of `open`, and end it as `decide` returns. Return the number of calls.

        After UNKNOWN, a message is checked again later, up to `max_checks` times. Then it goes to UNDECIDED_TOPIC.
        Outcomes take effect when this returns, unless the half message was ended concurrently.
        """
        asked = self.open(immunity)
        outcomes = [(half, message, decide(message)) for half, message in asked]
        with self._turn:
            self._end_all(outcomes, max_checks)
            self._halves.save()
        return len(asked)

    def forget(self) -> None:
        """Free the memory of ended half messages, in a producer that does not `check`."""
        with self._turn:
            self._halves.forget()

    # --- steps -------------------------------------------------------------------------------------------

    def _is_due(self, message: StoredMessage, now: float, immunity: float) -> bool:
        asked = message.properties.get(PROPERTY_CHECK_IMMUNITY, "")
        least = float(asked) if asked.isdecimal() else immunity
        is_own = message.properties.get(PROPERTY_PRODUCER_GROUP) == self._group
        born_ms = min(message.born_timestamp, message.store_timestamp)  # a remote clock may be ahead
        # A message with a time in the future is due: the clock was set back, so its age is unknown.
        return is_own and abs(now - born_ms / 1000) > least

    def _end_all(self, outcomes: list[tuple[Half, StoredMessage, Outcome]], max_checks: int) -> None:
        while outcomes:
            try:
                ending = EndingAppend(self._store, self._halves)
                ending.add_committed([half for half, _, said in outcomes if said is Outcome.COMMIT])
                for half, message, outcome in outcomes:
                    if outcome is Outcome.UNKNOWN:
                        ending.add_waiting(half, message, max_checks)
                ending.publish([half for half, _, _ in outcomes])
                break
            except TransactionEnded:
                outcomes = [each for each in outcomes if self._halves.is_open(each[0].queue_offset)]
            except (UnknownTopic, MessageRefused, OffsetLost, CorruptRecord) as error:
                middle = len(outcomes) // 2  # split, so that the other half messages are ended
                if middle == 0:
                    self._leave_open(*outcomes[0], max_checks, error)
                    break
                self._end_all(outcomes[:middle], max_checks)
                outcomes = outcomes[middle:]

    def _leave_open(
        self, half: Half, message: StoredMessage, outcome: Outcome, max_checks: int, error: StoreError
    ) -> None:
        _logger.error("%s: transaction %s stays open: %s", self._store.path, half.transaction_id, error)
        if outcome is Outcome.COMMIT:  # count the check, as after UNKNOWN
            self._end_all([(half, message, Outcome.UNKNOWN)], max_checks)


class EndingAppend:
    """An append that ends half messages: commits some, and moves others to wait again."""

    def __init__(self, store: MessageStore, halves: HalfMessages) -> None:
        """halves: only `publish` uses it, and its caller must hold the lock that protects it."""
        self._store = store
        self._halves = halves
        self._append = store.begin()
        self._topics = Topics(Path(store.path))
        self._needed: list[tuple[str, Half]] = []  # topics that must exist

    def add_committed(self, halves: Sequence[Half]) -> None:
        """Add messages to commit. Raises `MessageRefused` if a half message has no valid queue."""
        if not halves:
            return
        offsets = np.array([half.physical_offset for half in halves], np.int64)
        copies = self._store.copies(offsets)
        topics, queue_ids, named = real_places(copies)
        named &= queue_ids < MAX_QUEUES
        if not named.all():
            wrong = halves[int(np.argmin(named))].transaction_id
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"transaction {wrong} names no valid queue, so it cannot be committed. Roll it back",
            )
        flags = copies.field("sys_flag") | SYS_TRANSACTION_COMMIT
        fields = {"sys_flag": flags, "prepared_transaction_offset": offsets}
        self._append.add_copies(copies, CopyDestinations(topics, queue_ids, fields=fields))
        self._needed += zip(topics.to_pylist(), halves, strict=True)

    def add_waiting(self, half: Half, message: StoredMessage, max_checks: int) -> None:
        """Append a half message again, with one more check counted.

        After `max_checks` it goes to UNDECIDED_TOPIC instead. So does a message whose topic is missing, because it can
        never be committed.
        """
        times = number_in(message, PROPERTY_CHECK_TIMES)
        waits = times < max_checks - 1 and self._topics.queue_count(message.topic) > 0
        topic = HALF_TOPIC if waits else created(self._store, UNDECIDED_TOPIC)
        copies = self._store.copies(np.array([half.physical_offset], np.int64))
        counted = {PROPERTY_CHECK_TIMES: texts([str(times + 1)])}
        self._append.add_copies(copies, CopyDestinations(topic, np.array([QUEUE]), counted))
        if waits:
            self._needed.append((message.topic, half))

    def publish(self, halves: Sequence[Half]) -> AppendResult:
        """Publish the append, with an op message that ends all `halves`. Raises `TransactionEnded`, `UnknownTopic`."""
        offsets = [half.queue_offset for half in halves]
        if len(set(offsets)) < len(offsets):
            ids = ", ".join(half.transaction_id for half in halves)
            raise TransactionEnded(f"{self._store.path}: a transaction is given twice in {ids}. Give each once")
        if offsets:
            own = {PROPERTY_UNIQ_KEY: uuid4().hex.upper()}
            self._append.add_broker_messages(
                [Message(OP_TOPIC, op_body(offsets), OP_TAG, properties=own, queue_id=QUEUE)]
            )
        # Under the append lock, so that no half message is ended and no topic recreated concurrently.
        placed = self._append.publish(unless=lambda: not (self._are_open(offsets) and self._topics_exist()))
        if placed is None:
            over = ", ".join(half.transaction_id for half in halves if not self._halves.is_open(half.queue_offset))
            raise TransactionEnded(
                f"{self._store.path}: these transactions are already committed or rolled back: {over}. Nothing was "
                "changed"
            )
        return placed

    def _are_open(self, offsets: list[int]) -> bool:
        self._halves.look()
        return all(map(self._halves.is_open, offsets))

    def _topics_exist(self) -> bool:
        for topic, half in self._needed:
            if not self._topics.queue_count(topic):
                raise UnknownTopic(
                    f"{self._store.path}: topic {topic!r} was deleted after transaction {half.transaction_id} began. "
                    "Roll the transaction back"
                )
        return True


def _half(group: str, message: Message, queue_id: int, transaction_id: str) -> Message:
    own = {
        PROPERTY_UNIQ_KEY: transaction_id,
        PROPERTY_TRANSACTION_ID: transaction_id,
        PROPERTY_TRANSACTION: "true",
        PROPERTY_PRODUCER_GROUP: group,
        PROPERTY_REAL_TOPIC: message.topic,
        PROPERTY_REAL_QUEUE: str(queue_id),
    }
    return replace(message, topic=HALF_TOPIC, queue_id=QUEUE, properties={**message.properties, **own})


def _was(store: MessageStore, half: Half) -> _KnownBy | None:
    try:
        return _known_by(decode_record(store.record_at(half.physical_offset), half.transaction_id, check_crc=False))
    except (OffsetLost, CorruptRecord):
        return None


def as_committed(store: MessageStore, half: Half, message: StoredMessage) -> bytes:
    """Return the record of a half message as it would be committed."""
    copies = store.copies(np.array([half.physical_offset], np.int64))
    places = CopyDestinations(message.topic, np.array([message.queue_id], np.int64))
    (records,) = copies.records(places, encoding_of(store.config))
    records.stamp(np.array([half.queue_offset]), np.array([half.physical_offset]), message.store_timestamp)
    rest = (part if isinstance(part, bytes) else part[0].as_py() for part in records.rests)
    return b"".join((records.headers.tobytes(), *rest))


def _known_by(message: StoredMessage) -> _KnownBy:
    # A check that moves the message keeps these. The id alone is not enough, because a producer may use it twice.
    return message.msg_id, message.properties.get(PROPERTY_PRODUCER_GROUP), message.born_timestamp, message.body_crc


def _first(halves: Iterable[tuple[Half, StoredMessage]]) -> Iterator[tuple[Half, StoredMessage]]:
    size = 0
    for count, each in enumerate(islice(halves, _MOST)):
        size += len(each[1].body)
        if count and size > _MOST_BYTES:
            return
        yield each
