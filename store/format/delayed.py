"""Messages that are to be delivered later, as a broker keeps them meanwhile: in a topic of its own, with the place
where they belong in their properties.

By level: in SCHEDULE_TOPIC, whose queue `level - 1` holds those that wait equally long. At any time: in TIMER_TOPIC.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format import compute as pc
from store.format.arrays import arrow, constant, numbers
from store.format.copies import Copies, Places
from store.format.layout import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_DELAYS_MS,
    SCHEDULE_TOPIC,
    TIMER_PRECISION_MS,
    TIMER_TOPIC,
)

Ints = npt.NDArray[np.int64]

LEVELS = len(SCHEDULE_DELAYS_MS)
WAITING_TOPICS = {SCHEDULE_TOPIC: LEVELS, TIMER_TOPIC: 1}  # and how many queues a broker gives each
_DELAYS = np.array([0, *SCHEDULE_DELAYS_MS], np.int64)


def in_schedule(places: Places, levels: Ints) -> Places:
    """Where copies wait that go to `places` after the delays of `levels` (1 or more, larger ones count as the last)."""
    levels = np.minimum(levels, LEVELS)
    waiting = {PROPERTY_DELAY: _decimal(levels), **_real(places)}
    return places._replace(
        topics=SCHEDULE_TOPIC,
        queue_ids=levels - 1,
        properties={**places.properties, **waiting},
        delays=_DELAYS[levels],
    )


def timer_slots(deliver_at: Ints) -> Ints:
    """The slots of RocketMQ's timer wheel that messages due at these times (ms) wait in: the wheel delivers a slot when
    it is over.
    """
    slots: Ints = (deliver_at - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    return slots


def real_places(copies: Copies) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Where messages belong that waited, and which of them say so, shape (n,)."""
    topics, queues = copies.value(PROPERTY_REAL_TOPIC), copies.value(PROPERTY_REAL_QUEUE)
    said = numbers(pc.and_(topics.is_valid(), pc.match_substring_regex(queues.fill_null(constant("")), "^[0-9]{1,9}$")))
    queue_ids = pc.if_else(arrow(said), queues, constant("0")).cast(pa.int64())
    return Places(topics.fill_null(constant("")), numbers(queue_ids)), said


def _real(places: Places) -> dict[str, pa.StringArray]:
    topics, count = places.topics, len(places.queue_ids)
    return {
        PROPERTY_REAL_TOPIC: pa.repeat(constant(topics), count) if isinstance(topics, str) else topics,
        PROPERTY_REAL_QUEUE: _decimal(places.queue_ids),
    }


def _decimal(values: Ints) -> pa.StringArray:
    return arrow(values.astype(np.int64)).cast(pa.string())
