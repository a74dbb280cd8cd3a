"""Messages on their way to brokers: each queue's in order, as batches where they can be, many queues at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from store.cluster.brokers import Brokers
from store.cluster.refusals import explained, may_pass
from store.format.arrays import flat
from store.format.encoding import encoded_properties
from store.format.layout import PROPERTY_DELAY, PROPERTY_DELIVER_AT
from store.format.message_columns import MessageColumns
from store.format.properties import encode_properties
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RemotingError, RequestRefused, UnknownTopic, Unreachable
from store.model.log_protocol import Int64s, Queue
from store.publish.results import AppendResult
from store.remoting.bodies import batch_entries
from store.remoting.headers import SendMessageV2, Sent
from store.remoting.routes import DEFAULT_TOPIC

PRODUCER_GROUP = "pyspark-mq"
_BATCH_BYTES = 1 << 20  # RocketMQ's advice; brokers take 4 MiB
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 0.05, 1.0
_ID_DIGITS = 16  # of an offsetMsgId, the last ones: the log offset


class _Send(NamedTuple):
    """One request. rows: the messages that it sends."""

    rows: Int64s
    code: RequestCode
    header: SendMessageV2
    body: bytes


def send(brokers: Brokers, topic: str, messages: MessageColumns, queues: list[Queue], which: Int64s) -> AppendResult:
    """Send messages, each to `queues[which]`; where they went, once the brokers have them all.

    What fails is sent again, to the same queue: a broker that took it, and could not say so, has it twice then. Raises
    `Unreachable`, `RequestRefused`, `MessageRefused`; some messages may be there then, and stay.
    """
    now = int(time.time() * 1000)
    singly = not (messages.born_timestamps is None and messages.delay_levels is None and messages.deliver_at is None)
    make = _single if singly else _batched
    left = {
        queues[number]: deque(make(topic, int(queues[number].queue_id), messages, np.flatnonzero(which == number), now))
        for number in np.unique(which).tolist()
    }
    placed = AppendResult(np.zeros(len(messages), np.int32), *(np.zeros(len(messages), np.int64) for _ in range(2)))
    deadline, pause = time.monotonic() + brokers.address.patience, _FIRST_PAUSE_SECONDS
    while left := {queue: sends for queue, sends in left.items() if sends}:
        failed = _send_first_of_each(brokers, left, placed)
        if failed is None:
            deadline, pause = time.monotonic() + brokers.address.patience, _FIRST_PAUSE_SECONDS
        else:
            brokers.wait(failed, deadline, pause)
            brokers.routes.refresh([topic])
            pause = _PAUSE_SECONDS
    return placed


def _send_first_of_each(
    brokers: Brokers, left: dict[Queue, deque[_Send]], placed: AppendResult
) -> RemotingError | None:
    """Send the first request of each queue, and drop it where it was taken. One of the errors that may pass."""
    failed: RemotingError | None = None
    under_way = []
    for queue, sends in left.items():
        route = brokers.routes.route(queue.topic)
        broker = None if route is None else route.write.get(queue)
        if broker is None or not broker.writable:
            failed = Unreachable(f"{brokers.address}: no master has {queue} now, to write to; is its broker down?")
            continue
        first = sends[0]
        under_way.append((queue, broker, brokers.send(broker, first.code, first.header, first.body)))
    for queue, broker, answer in under_way:
        try:
            command = answer.result()
            if command.code == ResponseCode.TOPIC_NOT_EXIST:
                raise UnknownTopic(f"broker {broker.name}: there is no topic {queue.topic} any more")
            if command.code != ResponseCode.SUCCESS:
                who = f"broker {broker.name} at {broker.writable[0]}"
                raise explained(command, who, left[queue][0].code, queue)
        except RemotingError as error:
            if not (may_pass(error) or (isinstance(error, RequestRefused) and error.code in _NOT_ON_ALL_DEVICES)):
                raise
            failed = error
        else:
            _note(placed, left[queue].popleft().rows, Sent.of(command.fields))
    return failed


_NOT_ON_ALL_DEVICES = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)


def _note(placed: AppendResult, rows: Int64s, sent: Sent) -> None:
    placed.queue_ids[rows] = sent.queue_id
    placed.queue_offsets[rows] = sent.queue_offset + np.arange(len(rows))
    ids = sent.msg_id.split(",")
    if len(ids) == len(rows):
        placed.physical_offsets[rows] = [int(each[-_ID_DIGITS:], 16) for each in ids]


def _batched(topic: str, queue_id: int, messages: MessageColumns, rows: Int64s, now: int) -> Iterator[_Send]:
    """Requests for `rows`, each of about _BATCH_BYTES."""
    flags = np.zeros(len(messages), np.int64) if messages.flags is None else messages.flags
    indices = rows.tolist()
    bodies, properties = messages.body.take(indices), encoded_properties(messages).take(indices)
    entries = batch_entries(bodies, properties, flags[rows])
    data, bounds = flat(entries)
    header = _header(topic, queue_id, now, batch=True)
    first = 0
    while first < len(rows):
        fitting = int(np.searchsorted(bounds, bounds[first] + _BATCH_BYTES, side="right")) - 1
        last = min(max(first + 1, fitting), len(rows))
        body = data[bounds[first] : bounds[last]].tobytes()
        yield _Send(rows[first:last], RequestCode.SEND_BATCH_MESSAGE, header, body)
        first = last


def _single(topic: str, queue_id: int, messages: MessageColumns, rows: Int64s, now: int) -> Iterator[_Send]:
    """A request for each: those of a batch are made together, and come at once."""
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
