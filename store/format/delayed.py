"""Delayed messages, which wait in one of RocketMQ's own topics until they are due.

Messages with a delay level wait in SCHEDULE_TOPIC, queue `level - 1`, those with a time in TIMER_TOPIC. Their real
topic is in properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, constant, numbers, pc, texts
from store.format.layout import (
    PROPERTY_DELAY,
    PROPERTY_DELIVER_AT,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_OUT,
    SCHEDULE_DELAYS_MS,
    SCHEDULE_TOPIC,
    TIMER_MAX_DELAY_MS,
    TIMER_PRECISION_MS,
    TIMER_TOPIC,
)
from store.format.message import Message, illegal, whole_number
from store.format.record_copies import CopyDestinations, RecordCopies
from store.format.record_view import RecordView
from store.format.records import EncodedRecords, Encoding

Ints = npt.NDArray[np.int64]

LEVELS = len(SCHEDULE_DELAYS_MS)
WAITING_TOPICS = {SCHEDULE_TOPIC: LEVELS, TIMER_TOPIC: 1}  # number of queues
_DELAYS = np.array([0, *SCHEDULE_DELAYS_MS], np.int64)
_NEVER = 0


class MessageDelays(NamedTuple):
    """The delays of n messages, shape (n,) each; 0 for none. deliver_at: ms since 1970."""

    levels: Ints
    deliver_at: Ints

    @staticmethod
    def of_messages(messages: Sequence[Message], now: int) -> MessageDelays | None:
        """Return the delays of messages as `of`, None if none is delayed. now: ms."""
        if not any(message.delay_level or message.deliver_at is not None for message in messages):
            return None
        levels = [whole_number("delay_level", message.delay_level) for message in messages]
        times = [0 if each.deliver_at is None else whole_number("deliver_at", each.deliver_at) for each in messages]
        try:
            return MessageDelays.of(np.array(levels, np.int64), np.array(times, np.int64), now)
        except OverflowError:
            raise illegal(
                "delay_level or deliver_at: the number does not fit 64 bits. deliver_at is in ms since 1970"
            ) from None

    @staticmethod
    def of(levels: Ints, deliver_at: Ints, now: int) -> MessageDelays | None:
        """Return the delays, None if no message is delayed. A time before `now` (ms) is no delay.

        Levels as in RocketMQ, see `Message`. Raises `MessageRefused` for a time further away than brokers allow.
        """
        levels = np.clip(levels, 0, LEVELS)
        deliver_at = np.where(levels > 0, _NEVER, deliver_at)
        for time in deliver_at[deliver_at > now + TIMER_MAX_DELAY_MS][:1].tolist():
            days = TIMER_MAX_DELAY_MS / 86_400_000
            raise illegal(f"deliver_at: {time} ms since 1970 is more than {days:g} days from now, RocketMQ's limit")
        waits = MessageDelays(levels, np.where(deliver_at > now, deliver_at, _NEVER))
        return waits if (waits.levels > 0).any() or (waits.deliver_at > 0).any() else None


def waiting(records: EncodedRecords, waits: MessageDelays, encoding: Encoding) -> EncodedRecords:
    """Address delayed records to the topics in which they wait."""
    starts = np.cumsum(records.sizes) - records.sizes
    view = RecordView(np.frombuffer(records.encoded(0, len(records)), np.uint8), starts, records.sizes)
    view.measure_topics()
    topics = texts([topic for topic, _ in records.destinations]).take(arrow(records.queues))
    queue_ids = np.array([queue_id for _, queue_id in records.destinations], np.int64)[records.queues]
    copies, places = RecordCopies.of(view), waiting_places(CopyDestinations(topics, queue_ids), waits)
    kept = {  # a message that is not delayed keeps its own property of this name
        name: pc.if_else(pc.equal(values, constant("")), copies.value(name), values)
        for name, values in places.properties.items()
    }
    (made,) = copies.records(places._replace(properties=kept), encoding)
    return made


def waiting_places(places: CopyDestinations, waits: MessageDelays) -> CopyDestinations:
    """Return where delayed messages wait. places: where they will be delivered."""
    levels, at, count = waits.levels, waits.deliver_at, len(places.queue_ids)
    by_level, by_time, anyhow = arrow(levels > 0), arrow(at > 0), arrow((levels > 0) | (at > 0))
    topics = pa.repeat(constant(places.topics), count) if isinstance(places.topics, str) else places.topics
    own = {
        PROPERTY_DELAY: _where(by_level, _decimal(levels)),
        PROPERTY_DELIVER_AT: _where(by_time, _decimal(at)),
        PROPERTY_TIMER_OUT: _where(by_time, _decimal(timer_slots(at))),
        PROPERTY_REAL_TOPIC: _where(anyhow, topics),
        PROPERTY_REAL_QUEUE: _where(anyhow, _decimal(places.queue_ids)),
    }
    return places._replace(
        topics=pc.if_else(by_level, constant(SCHEDULE_TOPIC), pc.if_else(by_time, constant(TIMER_TOPIC), topics)),
        queue_ids=np.where(levels > 0, levels - 1, np.where(at > 0, 0, places.queue_ids)),
        properties={**places.properties, **{name: values for name, values in own.items() if values is not None}},
        delays=_DELAYS[levels],
    )


def timer_slots(deliver_at: Ints) -> Ints:
    """Return the slots (ms) of RocketMQ's timer wheel, which delivers a slot's messages when its time is over.

    deliver_at: ms.
    """
    slots: Ints = (deliver_at - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    return slots


def real_places(copies: RecordCopies) -> tuple[pa.StringArray, Ints, npt.NDArray[np.bool_]]:
    """Return real topics and queue ids, and a mask of the messages that have both."""
    topics, queues = copies.value(PROPERTY_REAL_TOPIC), copies.value(PROPERTY_REAL_QUEUE)
    said = numbers(pc.and_(topics.is_valid(), pc.match_substring_regex(queues.fill_null(constant("")), "^[0-9]{1,9}$")))
    queue_ids = pc.if_else(arrow(said), queues, constant("0")).cast(pa.int64())
    return topics.fill_null(constant("")), numbers(queue_ids), said


def _where(mask: pa.BooleanArray, values: pa.StringArray) -> pa.StringArray | None:
    return pc.if_else(mask, values, constant("")) if pc.any(mask).as_py() else None


def _decimal(values: Ints) -> pa.StringArray:
    return arrow(values.astype(np.int64)).cast(pa.string())
