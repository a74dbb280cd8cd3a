"""What a server tells its clients as the commit log offset of an archived message, so that it is found again by that.

An archived record has the offset that it has in its queue's own log, which many have. Clients name a message by its
offset alone, where they send it back, and in ids: so they are told one that no log of a store ever reaches, and that
says which message it is.

    bit 62 | number of the topic in the archive | queue | queue offset
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from store.model.log_protocol import Int64s

_BITS: Final = 63
_TOPIC_BITS: Final = 12
_QUEUE_BITS: Final = 10
_OFFSET_BITS: Final = 40
_ARCHIVED: Final = 1 << (_BITS - 1)
NAMELESS: Final = (1 << _BITS) - 1  # of a message whose numbers are too large

assert 1 + _TOPIC_BITS + _QUEUE_BITS + _OFFSET_BITS == _BITS


class NamedMessage(NamedTuple):
    """topic_number: in the archive, see `Catalog.topics`."""

    topic_number: int
    queue_id: int
    queue_offset: int


def names(topic_number: int, queue_id: int, queue_offsets: Int64s) -> Int64s:
    """One for each message of a queue, shape of `queue_offsets`."""
    if topic_number >= (1 << _TOPIC_BITS) - 1 or queue_id >= 1 << _QUEUE_BITS:
        return np.full(queue_offsets.shape, NAMELESS, np.int64)
    of_queue = _ARCHIVED | topic_number << (_QUEUE_BITS + _OFFSET_BITS) | queue_id << _OFFSET_BITS
    return np.where(queue_offsets >> _OFFSET_BITS, NAMELESS, of_queue | queue_offsets)


def is_name(physical_offset: int) -> bool:
    """Whether an offset is of an archived message, and not of a store's log."""
    return physical_offset >= _ARCHIVED


def named(physical_offset: int) -> NamedMessage | None:
    """Which message is meant; None where nothing says it."""
    if not is_name(physical_offset) or physical_offset >= NAMELESS:
        return None
    rest, queue_offset = divmod(physical_offset - _ARCHIVED, 1 << _OFFSET_BITS)
    return NamedMessage(*divmod(rest, 1 << _QUEUE_BITS), queue_offset)
