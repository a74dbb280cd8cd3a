"""`ClusterWriter`: sends messages to the brokers of a cluster, in the order of each queue."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count, cycle
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from store.append.placing import AppendResult
from store.cluster.address import ClusterAddress
from store.cluster.broker_refusals import explained, is_temporary
from store.cluster.brokers import Ask, Brokers
from store.cluster.cluster_log import ClusterLog
from store.format.arrays import constant, flat, lengths
from store.format.encoding import encoded_properties
from store.format.entering import check_topic
from store.format.hashes import java_hash
from store.format.layout import PROPERTY_DELAY, PROPERTY_DELIVER_AT
from store.format.message_columns import ANY_QUEUE, MessageColumns, as_table, split
from store.format.properties import encode_properties
from store.format.topic_names import check_topic_name
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import (
    InvalidColumns,
    RemotingError,
    RequestRefused,
    StoreClosed,
    StoreUnavailable,
    UnknownQueue,
    UnknownTopic,
    Unreachable,
    UnsupportedStore,
)
from store.model.log_protocol import Bools, Int64s, Queue
from store.remoting.bodies import batch_entries
from store.remoting.headers import Offset, SendAnswer, SendMessageV2
from store.remoting.served_routes import DEFAULT_TOPIC, READ_WRITE

_logger = logging.getLogger("store")
PRODUCER_GROUP = "pyspark-mq"
_BATCH_BYTES = 1 << 20  # as RocketMQ advises; brokers accept 4 MiB
_BATCH_MESSAGES = 8192  # brokers count a record's 91 bytes, too, and answer with each message's id
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 0.05, 1.0
_ID_DIGITS = 16  # at the end of an offsetMsgId: the log offset


class _Send(NamedTuple):
    """A request that sends messages to one queue. rows: their indices. is_free: whether they may go to any queue."""

    rows: Int64s
    code: RequestCode
    header: SendMessageV2
    body: bytes
    is_free: bool = False


class Sending:
    """Sends messages of one topic.

    placed: where each message is stored. ends: by queue, the offset after its last sent message.
    """

    def __init__(self, brokers: Brokers, topic: str, messages: MessageColumns) -> None:
        self._brokers = brokers
        self._topic = topic
        self._messages = messages
        self._left: dict[Queue, deque[_Send]] = {}
        count = len(messages)
        self.placed = AppendResult(np.zeros(count, np.int32), *(np.zeros(count, np.int64) for _ in range(2)))
        self.ends: dict[Queue, int] = {}

    def send(self, queues: list[Queue], which: Int64s, is_free: Bools) -> None:
        """Send message i to `queues[which[i]]`, and wait for the answers. is_free: messages that may go to any queue.

        A failed request is repeated for `ClusterAddress.broker_timeout` seconds. Free messages, and with `fails_over`
        all messages, then go to a queue of another broker, others to the same queue. If a broker stored a message
        without answering, the message is stored twice.

        Raises `Unreachable`, `RequestRefused`, `MessageRefused`. Some messages may then be stored.
        """
        now, messages = int(time.time() * 1000), self._messages
        in_batches = messages.born_timestamps is None and messages.delay_levels is None and messages.deliver_at is None
        make = _batched if in_batches else _single
        for number in np.unique(which).tolist():
            queue, sends = queues[number], self._left.setdefault(queues[number], deque())
            for free in (False, True):
                rows = np.flatnonzero((which == number) & (is_free == free))
                if len(rows):
                    made = make(self._topic, queue.queue_id, messages, rows, now)
                    sends.extend(each._replace(is_free=free) for each in made)
        address = self._brokers.address
        deadline, pause = time.monotonic() + address.broker_timeout, _FIRST_PAUSE_SECONDS
        while any(self._left.values()):
            failed = self._send_first_of_each()
            if not failed:
                deadline, pause = time.monotonic() + address.broker_timeout, _FIRST_PAUSE_SECONDS
                continue
            self._brokers.wait(next(iter(failed.values())), deadline, pause)
            self._brokers.routes.refresh([self._topic])
            if pause == _PAUSE_SECONDS:
                self._fail_over(failed.keys())
            else:
                _logger.warning("%s: sent again: %s", address, "; ".join(dict.fromkeys(map(str, failed.values()))))
            pause = _PAUSE_SECONDS

    def _send_first_of_each(self) -> dict[Queue, RemotingError]:
        """Return the temporary errors of the queues whose request failed."""
        failed: dict[Queue, RemotingError] = {}
        under_way = []
        route = self._brokers.routes.route(self._topic)
        for queue in (queue for queue, sends in self._left.items() if sends):
            broker = None if route is None else route.write.get(queue)
            if broker is None or not broker.writable:
                failed[queue] = Unreachable(
                    f"{self._brokers.address}: no master broker of {queue} is known, so the queue cannot be written. "
                    "Check whether the broker is down"
                )
                continue
            first = self._left[queue][0]
            under_way.append((queue, broker, self._brokers.send(broker, first.code, first.header, first.body)))
        for queue, broker, answer in under_way:
            try:
                command = answer.result()
                if command.code == ResponseCode.TOPIC_NOT_EXIST:
                    raise UnknownTopic(f"broker {broker.name}: topic {queue.topic} was deleted")
                if command.code != ResponseCode.SUCCESS:
                    who = f"broker {broker.name} at {broker.writable[0]}"
                    raise explained(command, who, self._left[queue][0].code, queue)
            except RemotingError as error:
                if not (
                    is_temporary(error) or (isinstance(error, RequestRefused) and error.code in _NOT_ON_ALL_DEVICES)
                ):
                    raise
                failed[queue] = error
            else:
                self._note(queue, self._left[queue].popleft().rows, SendAnswer.of(command.fields))
        return failed

    def _note(self, queue: Queue, rows: Int64s, sent: SendAnswer) -> None:
        self.placed.queue_ids[rows] = sent.queue_id
        self.placed.queue_offsets[rows] = sent.queue_offset + np.arange(len(rows))
        self.ends[queue] = max(self.ends.get(queue, 0), sent.queue_offset + len(rows))
        ids = sent.msg_id.split(",")
        if len(ids) == len(rows):
            self.placed.physical_offsets[rows] = [int(each[-_ID_DIGITS:], 16) for each in ids]

    def _fail_over(self, failed: Collection[Queue]) -> None:
        route = self._brokers.routes.route(self._topic)
        away = {queue.broker for queue in failed}
        others = [] if route is None else [queue for queue in route.with_master() if queue.broker not in away]
        for queue, other in zip(failed, cycle(others), strict=False):
            kept, moved = deque[_Send](), self._left.setdefault(other, deque())
            for each in self._left.pop(queue):
                if each.is_free or self._brokers.address.fails_over:
                    moved.append(each._replace(header=replace(each.header, queue_id=other.queue_id)))
                else:
                    kept.append(each)
            self._left[queue] = kept


_NOT_ON_ALL_DEVICES = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)


def _batched(topic: str, queue_id: int, messages: MessageColumns, rows: Int64s, now: int) -> Iterator[_Send]:
    flags = np.zeros(len(messages), np.int64) if messages.flags is None else messages.flags
    indices = rows.tolist()
    bodies, properties = messages.body.take(indices), encoded_properties(messages).take(indices)
    entries = batch_entries(bodies, properties, flags[rows])
    data, bounds = flat(entries)
    header = _header(topic, queue_id, now, batch=True)
    first = 0
    while first < len(rows):
        fitting = int(np.searchsorted(bounds, bounds[first] + _BATCH_BYTES, side="right")) - 1
        last = min(max(first + 1, fitting), len(rows), first + _BATCH_MESSAGES)
        body = data[bounds[first] : bounds[last]].tobytes()
        yield _Send(rows[first:last], RequestCode.SEND_BATCH_MESSAGE, header, body)
        first = last


def _single(topic: str, queue_id: int, messages: MessageColumns, rows: Int64s, now: int) -> Iterator[_Send]:
    """Yield a request for each message, because a batch has one birth time and one delay for all messages."""
    encoded = encoded_properties(messages)
    for row in rows.tolist():
        waits = {
            name: str(value)
            for name, values in ((PROPERTY_DELAY, messages.delay_levels), (PROPERTY_DELIVER_AT, messages.deliver_at))
            if values is not None and (value := int(values[row]))
        }
        properties = (encoded[row].as_py() + encode_properties(waits)).decode()
        born_ms = now if messages.born_timestamps is None else int(messages.born_timestamps[row])
        flag = 0 if messages.flags is None else int(messages.flags[row])
        header = _header(topic, queue_id, born_ms, flag=flag, properties=properties)
        yield _Send(np.array([row]), RequestCode.SEND_MESSAGE_V2, header, messages.body[row].as_py())


def _header(
    topic: str, queue_id: int, born_ms: int, *, flag: int = 0, properties: str = "", batch: bool = False
) -> SendMessageV2:
    return SendMessageV2(
        PRODUCER_GROUP, topic, DEFAULT_TOPIC, 0, queue_id, 0, born_ms, flag, properties, reconsume_times=0, batch=batch
    )


_FIRST_LOOK_SECONDS, _LOOK_AGAIN_SECONDS = 0.001, 0.05


class ClusterWriter(ClusterLog):
    """A `LogWriter` with weaker promises than a store's.

    Readers see messages one by one, and a broker's flushDiskType decides whether a message is fsynced when `publish`
    returns.
    """

    def __init__(self, address: ClusterAddress) -> None:
        super().__init__(address)
        self._turns = count(random.randrange(1 << 16))

    def create_topic(self, topic: str, queues: int) -> int:
        """Create a topic, and return its number of queues.

        Raises `UnsupportedStore` if no name server lists the queues within `ClusterAddress.patience` seconds.
        """
        check_topic_name(topic)
        self._brokers.create_topic(topic, queues, DEFAULT_TOPIC, READ_WRITE)
        deadline = time.monotonic() + self._address.patience
        while (found := self._brokers.routes.route(topic, oldest=0.0)) is None or len(found.read) < queues:
            if time.monotonic() >= deadline:
                raise UnsupportedStore(
                    f"{self._address}: topic {topic!r} was created, but no name server lists it yet. Try again in a "
                    "minute"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)
        return len(found.read)

    def begin(self) -> ClusterAppend:
        return ClusterAppend(self._brokers, self._turns)

    def flush(self) -> None:
        pass


class ClusterAppend:
    """An `Append` that is not atomic: if it fails, some of its messages may be stored, and stay."""

    def __init__(self, brokers: Brokers, turns: count[int]) -> None:
        self._brokers = brokers
        self._turns = turns
        self._parts: list[tuple[str, pa.Table | pa.RecordBatchReader]] | None = []

    def add(self, topic: str, table: Any) -> None:
        parts = self._open_parts()
        check_topic(topic)
        self._queues(topic)
        parts.append((topic, as_table(table)))

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> AppendResult:
        """Send the messages. Raises `UnsupportedStore` if `unless` is given."""
        parts, self._parts = self._open_parts(), None
        if unless is not None:
            raise UnsupportedStore(
                f"{self._brokers.address}: conditional appends do not work on a cluster, because other "
                "producers may send concurrently. Call publish without the argument unless"
            )
        results, ends = [], dict[Queue, int]()
        for topic, table in parts:
            for piece in split(table):
                messages = MessageColumns.of(piece)
                queues = self._queues(topic)
                if messages.sharding_keys is not None:
                    queues = list(self._brokers.routes.configured(topic))
                sending = Sending(self._brokers, topic, messages)
                sending.send(queues, *self._choose(topic, messages, queues))
                results.append(sending.placed)
                if messages.delay_levels is None and messages.deliver_at is None:
                    ends |= sending.ends
        self._wait_until_visible(ends)
        return AppendResult.concatenate(results)

    def _wait_until_visible(self, ends: Mapping[Queue, int]) -> None:
        """Wait until readers see the messages, because a broker writes its queues shortly after its log.

        Does not wait if the account or the queue is write-only.
        """
        timeout = self._brokers.address.broker_timeout
        deadline, pause = time.monotonic() + timeout, _FIRST_LOOK_SECONDS
        left = dict(ends)
        while left:
            asks = {queue: Ask.of_end(queue) for queue in left}
            try:
                answers = self._brokers.ask(asks, timeout)
            except RequestRefused as error:
                if error.code != ResponseCode.NO_PERMISSION:
                    raise
                return
            seen = {queue: Offset.of(answer.fields).offset for queue, answer in answers.items()}
            seen |= {queue: left[queue] for queue in left.keys() - seen.keys() if queue in self._queues(queue.topic)}
            left = {queue: end for queue, end in left.items() if seen.get(queue, 0) < end}
            if left and time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{self._brokers.address}: messages of {', '.join(map(str, left))} were sent, but are not "
                    "visible to readers yet. See the brokers' logs"
                )
            if left:
                time.sleep(pause)
                pause = min(2 * pause, _LOOK_AGAIN_SECONDS)

    def abandon(self) -> None:
        self._parts = None

    def _queues(self, topic: str) -> list[Queue]:
        route = self._brokers.routes.route(topic) or self._brokers.routes.route(topic, oldest=0.0)
        if route is None or not route.write:
            raise UnknownTopic(
                f"{self._brokers.address}: topic {topic!r} does not exist or cannot be written. Create it. If it "
                "exists, check its perm, and whether its master brokers run"
            )
        return list(route.write)

    def _choose(self, topic: str, messages: MessageColumns, queues: list[Queue]) -> tuple[Int64s, Bools]:
        """Return the index of each message's queue, and the mask of messages that may go to any queue."""
        here = self._available(topic, queues)
        turn, is_free = next(self._turns), np.ones(len(messages), np.bool_)
        chosen: Int64s = here[(turn + np.arange(len(messages)) * len(here) // max(1, len(messages))) % len(here)]
        if messages.sharding_keys is not None:
            without = lengths(messages.sharding_keys.fill_null(constant(""))) == 0
            sharded = np.abs(java_hash(messages.sharding_keys).astype(np.int64)) % len(queues)
            chosen, is_free = np.where(without, chosen, sharded), without
        if messages.queue_ids is not None:
            is_free = is_free & (messages.queue_ids == ANY_QUEUE)
            for number in np.unique(messages.queue_ids[messages.queue_ids != ANY_QUEUE]).tolist():
                chosen = np.where(messages.queue_ids == number, self._named(topic, number, queues), chosen)
        return chosen, is_free

    def _available(self, topic: str, queues: list[Queue]) -> Int64s:
        """Return the indices of the queues whose broker has a master; of all writable queues if none has."""
        there = self._queues(topic)
        route = self._brokers.routes.route(topic)
        up = [] if route is None else route.with_master()
        return np.flatnonzero([queue in (up or there) for queue in queues])

    def _named(self, topic: str, number: int, queues: list[Queue]) -> int:
        found = [index for index, queue in enumerate(queues) if queue.queue_id == number]
        if len(found) > 1:
            names = ", ".join(str(queues[index]) for index in found)
            raise InvalidColumns(
                f"queueId {number} is ambiguous, because several brokers have it: {names}. Remove the column "
                "queueId, or use the column shardingKey"
            )
        if not found:
            raise UnknownQueue(f"{self._brokers.address}: topic {topic!r} has no queue {number} that can be written")
        return found[0]

    def _open_parts(self) -> list[tuple[str, pa.Table | pa.RecordBatchReader]]:
        if self._parts is None:
            raise StoreClosed(
                f"{self._brokers.address}: this append was already published or abandoned. Begin a new one"
            )
        return self._parts
