"""Transactional messages, as RocketMQ's broker keeps them (TransactionalMessageServiceImpl).

A *half message* waits in a topic of the broker's own until its producer commits it or rolls it back. Either is told by
an *op message*, which names half messages by their queue offsets; a commit puts the message into its real topic in the
same append, so it is there once. Of those that nobody ended for a while somebody of the producer's group is asked.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from store import Append, AppendResult, Message, MessageStore, StoredMessage
from store.any_log import Queue
from store.broker.group_offsets import advance
from store.errors import (
    CorruptRecord,
    MessageRefused,
    MessageTooLarge,
    OffsetLost,
    PutStatus,
    StoreError,
    TransactionEnded,
    UnknownTopic,
)
from store.files.consumer_offsets import ConsumerOffsets, check_group_name
from store.files.topics import Topics
from store.format.arrays import texts
from store.format.copies import Places
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
    TRANSACTIONS_GROUP,
    UNDECIDED_TOPIC,
)
from store.format.op_message import offsets_ended, op_body
from store.integers import LONG_MAX, seconds
from store.publish.locks import among_groups
from store.publish.putting import encoding_of
from store.system_errors import explained_verbs

IMMUNITY_SECONDS = 6.0  # transactionTimeOut
MAX_CHECKS = 15  # transactionCheckMax
_MOST = 1000  # that one step asks for
_MOST_BYTES = 16 << 20  # likewise, of bodies: there are several copies of them
_AT_ONCE = 32  # messages that are read
_QUEUE = 0
_logger = logging.getLogger("store")


class Half(NamedTuple):
    """A half message: its transaction's id, and where it is (queue offset, commit log offset)."""

    transaction_id: str
    queue_offset: int
    physical_offset: int


class Wanted(NamedTuple):
    """A topic that has to be the one that it was when a half message was put."""

    topic: str
    half: Half


class Outcome(Enum):
    """What a producer's group says of a half message (LocalTransactionState)."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    UNKNOWN = "unknown"


@explained_verbs
class Transactions:
    """The transactions of one producer group in a store that is open for writing. Threads may share it.

    Any number of them, in any processes: whoever ends a half message first has ended it.
    """

    def __init__(self, store: MessageStore, group: str) -> None:
        """Raises `InvalidGroup`, `ReadOnlyStore`."""
        check_group_name(group)
        self.path = store.path
        self._store = store
        self._group = group
        self._topics = Topics(Path(store.path))
        self._turn = threading.RLock()  # of what is known of half messages
        for topic in (HALF_TOPIC, OP_TOPIC):
            _make(store, topic)
        self._ops_seen = self._done(OP_TOPIC)  # first, for others go on meanwhile: what these end is before `_begin`
        self._begin = self._done(HALF_TOPIC)  # half messages before it are ended
        self._ended: set[int] = set()  # queue offsets of half messages, from `_begin` on
        self._last_half: dict[int, int] = {}  # of op messages that were seen: the last half message that they end
        self._told: set[int] = set()  # queue offsets of half messages that cannot be read

    # --- the producer's verbs ----------------------------------------------------------------------------

    def prepare(self, messages: Sequence[Message], fields: Mapping[str, npt.ArrayLike] | None = None) -> list[Half]:
        """Append half messages, all at once: nobody sees them before they are committed. fields: what their records
        say of a producer elsewhere, see `Append.add_messages`.

        Raises as `MessageStore.put_many`; and `MessageRefused` for delayed ones, which RocketMQ does not have.
        """
        if any(message.delay_level or message.deliver_at is not None for message in messages):
            raise MessageRefused(PutStatus.MESSAGE_ILLEGAL, "a delayed message in a transaction; leave out the delay")
        append = self._store.begin()
        ids = [message.properties.get(PROPERTY_UNIQ_KEY) or uuid4().hex.upper() for message in messages]
        named = zip(messages, append.choose(messages), ids, strict=True)
        halves = [self._half(message, queue_id, own) for message, queue_id, own in named]
        if not halves:
            return []
        append.add_own(halves, fields)
        placed = append.publish()
        return list(map(Half, ids, placed.queue_offsets.tolist(), placed.physical_offsets.tolist()))

    def commit(self, halves: Sequence[Half]) -> AppendResult:
        """Put the messages into their topics, all at once; where they went.

        Raises `TransactionEnded` where one of them was committed or rolled back before, and nothing is; `UnknownTopic`
        where a topic was deleted meanwhile; `OffsetLost` where retention took a half message.
        """
        append = self._store.begin()
        wanted = self._add_committed(append, halves)
        with self._turn:
            placed = self._end(append, halves, wanted)
        count = len(halves)  # behind them is the op message
        return AppendResult(placed.queue_ids[:count], placed.queue_offsets[:count], placed.physical_offsets[:count])

    def roll_back(self, halves: Sequence[Half]) -> None:
        """Let nobody ever see the messages. Raises `TransactionEnded`, as `commit`."""
        with self._turn:
            self._end(self._store.begin(), halves)

    # --- those left open ---------------------------------------------------------------------------------

    def open(self, immunity: float = IMMUNITY_SECONDS) -> list[tuple[Half, StoredMessage]]:
        """The group's half messages that nobody ended for `immunity` seconds since they were born, oldest first, 1,000
        or 16 MiB at most, and one at least; each with its message, as it would be committed.
        """
        now, immunity = time.time(), seconds("immunity", immunity)
        with self._turn:
            return list(_first(each for each in self._halves() if self._is_due(each[1], now, immunity)))

    def check(
        self,
        decide: Callable[[StoredMessage], Outcome],
        immunity: float = IMMUNITY_SECONDS,
        max_checks: int = MAX_CHECKS,
    ) -> int:
        """Ask `decide` what became of those left `open`, and end them; how many it was asked. One step: call it every
        now and then, RocketMQ does every 30 s.

        Who is UNKNOWN is asked again later, at most `max_checks` times, then the message goes to UNDECIDED_TOPIC. Each
        outcome counts from when this returns; whoever ended one of them meanwhile was first.
        """
        asked = self.open(immunity)
        outcomes = [(half, message, decide(message)) for half, message in asked]
        with self._turn:
            self._end_all(outcomes, max_checks)
            self._save()
        return len(asked)

    def forget(self) -> None:
        """Know no more of what was ended than others have not noted: for who commits much, and lets others `check`."""
        with self._turn:
            self._look()
            self._go_on(self._done(HALF_TOPIC), self._done(OP_TOPIC))

    # --- steps -------------------------------------------------------------------------------------------

    def _is_due(self, message: StoredMessage, now: float, immunity: float) -> bool:
        """Whether it is to be asked for: the group's own, and not young any more. One from far ahead is not: the clock
        was set back, and nobody can tell how old it is.
        """
        asked = message.properties.get(PROPERTY_CHECK_IMMUNITY, "")
        least = float(asked) if asked.isdecimal() else immunity
        is_own = message.properties.get(PROPERTY_PRODUCER_GROUP) == self._group
        born = min(message.born_timestamp, message.store_timestamp)  # a producer elsewhere may be ahead
        return is_own and abs(now - born / 1000) > least

    def _end_all(self, outcomes: list[tuple[Half, StoredMessage, Outcome]], max_checks: int) -> None:
        """Those that nobody else has ended meanwhile. One that cannot be does not keep the others."""
        while outcomes:
            try:
                append = self._store.begin()
                wanted = self._add_committed(append, [half for half, _, said in outcomes if said is Outcome.COMMIT])
                for half, message, outcome in outcomes:
                    if outcome is Outcome.UNKNOWN:
                        wanted += self._add_again(append, half, message, max_checks)
                self._end(append, [half for half, _, _ in outcomes], wanted)
                break
            except TransactionEnded:
                outcomes = [each for each in outcomes if self._is_open(each[0].queue_offset)]
            except (UnknownTopic, MessageRefused, OffsetLost, CorruptRecord) as error:
                middle = len(outcomes) // 2
                if middle == 0:
                    self._leave_open(*outcomes[0], max_checks, error)
                    break
                self._end_all(outcomes[:middle], max_checks)
                outcomes = outcomes[middle:]

    def _leave_open(
        self, half: Half, message: StoredMessage, outcome: Outcome, max_checks: int, error: StoreError
    ) -> None:
        """What cannot be ended so is asked for again, as one of which nobody knows."""
        _logger.error("%s: transaction %s stays open: %s", self._store.path, half.transaction_id, error)
        if outcome is Outcome.COMMIT:
            self._end_all([(half, message, Outcome.UNKNOWN)], max_checks)

    def _half(self, message: Message, queue_id: int, transaction_id: str) -> Message:
        own = {
            PROPERTY_UNIQ_KEY: transaction_id,
            PROPERTY_TRANSACTION_ID: transaction_id,
            PROPERTY_TRANSACTION: "true",
            PROPERTY_PRODUCER_GROUP: self._group,
            PROPERTY_REAL_TOPIC: message.topic,
            PROPERTY_REAL_QUEUE: str(queue_id),
        }
        return replace(message, topic=HALF_TOPIC, queue_id=_QUEUE, properties={**message.properties, **own})

    def _add_committed(self, append: Append, halves: Sequence[Half]) -> list[Wanted]:
        """Raises `MessageRefused` for one that names no queue."""
        if not halves:
            return []
        offsets = np.array([half.physical_offset for half in halves], np.int64)
        copies = self._store.copies(offsets)
        topics, queue_ids, said = real_places(copies)
        said &= queue_ids < MAX_QUEUES
        if not said.all():
            wrong = halves[int(np.argmin(said))].transaction_id
            raise MessageRefused(PutStatus.MESSAGE_ILLEGAL, f"the half message of transaction {wrong} names no queue")
        flags = copies.field("sys_flag") | SYS_TRANSACTION_COMMIT
        fields = {"sys_flag": flags, "prepared_transaction_offset": offsets}
        append.add_copies(copies, Places(topics, queue_ids, fields=fields))
        return list(map(Wanted, topics.to_pylist(), halves))

    def _are_there(self, wanted: Iterable[Wanted]) -> bool:
        """True, or raises `UnknownTopic`. Call it under the append lock: till then one may go and come again."""
        born: dict[str, int] = {}
        for topic, half in wanted:
            if half.physical_offset < born.setdefault(topic, self._born(topic)):
                raise UnknownTopic(
                    f"{self._store.path}: no topic {topic!r} any more, as it was when transaction "
                    f"{half.transaction_id} began; roll it back"
                )
        return True

    def _born(self, topic: str) -> int:
        """Half messages from this log offset on belong to the topic that is there now."""
        born = self._topics.born(topic)
        return LONG_MAX if born is None else born

    def _add_again(self, append: Append, half: Half, message: StoredMessage, max_checks: int) -> list[Wanted]:
        """Let it wait on, as a new half message; or no more, as where its topic is gone: it can never be committed."""
        times = _number(message, PROPERTY_CHECK_TIMES)
        waits = times < max_checks - 1 and half.physical_offset >= self._born(message.topic)
        topic = HALF_TOPIC if waits else _make(self._store, UNDECIDED_TOPIC)
        copies = self._store.copies(np.array([half.physical_offset], np.int64))
        counted = {PROPERTY_CHECK_TIMES: texts([str(times + 1)])}
        append.add_copies(copies, Places(topic, np.array([_QUEUE]), counted))
        return [Wanted(message.topic, half)] if waits else []  # or it were of the next topic of that name

    def _end(self, append: Append, halves: Sequence[Half], wanted: Sequence[Wanted] = ()) -> AppendResult:
        """Publish, with an op message for the halves; unless one of them is ended already, or what is wanted is not
        there. Raises `TransactionEnded`, `UnknownTopic`.
        """
        offsets = [half.queue_offset for half in halves]
        if offsets:
            own = {PROPERTY_UNIQ_KEY: uuid4().hex.upper()}
            append.add_own([Message(OP_TOPIC, op_body(offsets), OP_TAG, properties=own, queue_id=_QUEUE)])
        placed = append.publish(unless=lambda: not (self._are_open(offsets) and self._are_there(wanted)))
        if placed is None:
            over = ", ".join(half.transaction_id for half in halves if not self._is_open(half.queue_offset))
            raise TransactionEnded(f"{self._store.path}: committed or rolled back before: {over}")
        return placed

    def _are_open(self, offsets: list[int]) -> bool:
        self._look()
        return all(map(self._is_open, offsets))

    def _is_open(self, offset: int) -> bool:
        """As far as is known."""
        return self._begin <= offset and offset not in self._ended

    def _look(self) -> None:
        """Learn from the op messages that were put since."""
        for at, op in self._messages(OP_TOPIC, self._ops_seen):
            if isinstance(op, StoreError):
                raise op  # nobody knows what it ended
            ends = offsets_ended(op.body)
            self._ended.update(offset for offset in ends if offset >= self._begin)
            self._last_half[at] = max(ends, default=-1)
            self._ops_seen = at + 1

    def _halves(self) -> Iterator[tuple[Half, StoredMessage]]:
        """Those that are open, with their messages as they would be committed. One that cannot be read does not keep
        the others; the log tells once.
        """
        for offset, message in self._left_open():
            if not isinstance(message, StoreError):
                half = Half(message.msg_id, offset, message.physical_offset)
                topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
                yield half, message._replace(topic=topic, queue_id=_number(message, PROPERTY_REAL_QUEUE))
            elif offset not in self._told:
                self._told.add(offset)
                _logger.error("%s: a transaction is open, and nobody is asked about it: %s", self.path, message)

    def _left_open(self) -> Iterator[tuple[int, StoredMessage | StoreError]]:
        """As `_messages`, of half messages."""
        self._look()
        return (each for each in self._messages(HALF_TOPIC, self._begin) if each[0] not in self._ended)

    def _messages(self, topic: str, offset: int) -> Iterator[tuple[int, StoredMessage | StoreError]]:
        """Queue offsets from this one on, each with its message, or why that cannot be read."""
        count = _AT_ONCE
        while True:
            try:
                got = self._store.get_message(TRANSACTIONS_GROUP, topic, _QUEUE, offset, count)
            except (CorruptRecord, MessageTooLarge, OffsetLost) as error:
                if count == 1:
                    yield offset, error
                    offset, count = offset + 1, _AT_ONCE
                else:
                    count = 1  # for it may be any of them
                continue
            yield from ((message.queue_offset, message) for message in got.messages)
            if got.next_begin_offset <= offset:
                return
            offset, count = got.next_begin_offset, _AT_ONCE

    def _save(self) -> None:
        """Commit how far both queues are done, as a broker does: up to the first half message that is open."""
        self._look()
        begin = next((offset for offset, _ in self._left_open()), self._store.max_offset(HALF_TOPIC, _QUEUE))
        done = [op for op, last in self._last_half.items() if last >= begin]
        ops = min(done, default=self._ops_seen)
        if (begin, ops) != (self._done(HALF_TOPIC), self._done(OP_TOPIC)):
            self._store.flush()  # or a crash would take what ended half messages that are said to be done
            # Both at once, and none goes back: op messages that are done say nothing of half messages that are not.
            path, offsets = self._store.path, {Queue(HALF_TOPIC, _QUEUE): begin, Queue(OP_TOPIC, _QUEUE): ops}
            save = partial(advance, ConsumerOffsets(path), TRANSACTIONS_GROUP, offsets)
            among_groups(path, self._store.config.lockTimeoutMillis / 1000, save)
        self._go_on(begin, ops)

    def _go_on(self, begin: int, ops: int) -> None:
        """Forget half messages before `begin`, which are ended, and op messages before `ops`."""
        self._begin = begin
        self._ended = {offset for offset in self._ended if offset >= begin}
        self._last_half = {op: last for op, last in self._last_half.items() if op >= ops}

    def _done(self, topic: str) -> int:
        committed = self._store.consumer_offset(TRANSACTIONS_GROUP, topic, _QUEUE)
        return max(committed or 0, self._store.min_offset(topic, _QUEUE))


def as_committed(store: MessageStore, half: Half, message: StoredMessage) -> bytes:
    """The record of a half message, with the topic and queue that it would go to: what its producer is shown.

    message: as `Transactions.open` gives it. Raises `OffsetLost` where retention took it.
    """
    copies = store.copies(np.array([half.physical_offset], np.int64))
    places = Places(message.topic, np.array([message.queue_id], np.int64))
    (records,) = copies.records(places, encoding_of(store.config))
    records.stamp(np.array([half.queue_offset]), np.array([half.physical_offset]), message.store_timestamp)
    rest = (part if isinstance(part, bytes) else part[0].as_py() for part in records.rests)
    return b"".join((records.headers.tobytes(), *rest))


def _first(halves: Iterable[tuple[Half, StoredMessage]]) -> Iterator[tuple[Half, StoredMessage]]:
    """As many as one step asks for."""
    size = 0
    for count, each in enumerate(islice(halves, _MOST)):
        size += len(each[1].body)
        if count and size > _MOST_BYTES:
            return
        yield each


def _number(message: StoredMessage, name: str) -> int:
    """What a property says, 0 where that is no number."""
    said = message.properties.get(name, "")
    return int(said) if re.fullmatch("[0-9]{1,9}", said) else 0


def _make(store: MessageStore, topic: str) -> str:
    try:
        store.max_offset(topic, _QUEUE)
    except UnknownTopic:
        store.create_topic(topic, 1)
    return topic
