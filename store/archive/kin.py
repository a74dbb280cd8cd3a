"""Whether what is archived of a queue is the beginning of what the store has under that name: not of another store.

The metadata says of each queue where the last archived message stands in the store's log (`ArchivedQueue.last`). What
an archive has that does not say so is compared.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from store.archive.flat import FlatQueue
from store.format.layout import CQ_PRE_BLANK_SIZE, PROPERTY_CRC_BYTES, RECORD_HEADER
from store.format.record_view import RecordView
from store.log.commit_log import CommitLog
from store.model.errors import ArchiveOfAnother, CorruptStore, OffsetLost
from store.model.log_protocol import Fingerprint, Queue
from store.read.fingerprint import fingerprint
from store.read.published import PublishedQueues


class Kin:
    """Of one store's queues."""

    def __init__(self, log: CommitLog, published: PublishedQueues) -> None:
        self._log = log
        self._published = published

    def last(self, it: FlatQueue) -> Fingerprint | None:
        """The last archived message as the store has it; as it is remembered where that has it no longer, if it is.

        Raises `ArchiveOfAnother`, and `OffsetLost` where the store begins behind the archive's end; `UnknownTopic`.
        """
        queue, end, was = it.queue, it.archived.max_offset, it.archived.last
        while True:
            minimum, maximum = self._published.offsets(queue.topic, queue.queue_id)
            if end > maximum:
                raise ArchiveOfAnother(f"archived up to offset {end}, the store ends at {maximum}")
            if end < minimum:
                raise OffsetLost(
                    f"archived up to offset {end}, but the store has messages from {minimum} on only: those in between "
                    "were deleted before"
                )
            if end == minimum:
                if not self._may_follow(it):
                    raise ArchiveOfAnother(f"another message is archived at offset {end - 1} than the store had")
                return was
            try:
                found = fingerprint(self._log, self._published.of(queue.topic, queue.queue_id), end - 1)
                if found != was and not self._is_same(it, end - 1):
                    raise ArchiveOfAnother(f"another message is archived at offset {end - 1} than the store has")
            except OffsetLost:
                if self._published.offsets(queue.topic, queue.queue_id)[0] == minimum:  # not by retention
                    raise
            else:
                return found

    def reaches(self, it: FlatQueue) -> bool:
        """Whether the archive has what the store had of a queue before what it has, without a hole between.

        Messages of a deleted topic do not count. Raises `ArchiveOfAnother`.
        """
        end = it.archived.max_offset
        while True:
            minimum, maximum = self._published.offsets(it.queue.topic, it.queue.queue_id)
            if minimum <= self.begin(it.queue) or not it.min_offset() < minimum <= end:
                return False
            try:
                if minimum == end:
                    is_same = self._may_follow(it)
                else:
                    of_store = self._published.of(it.queue.topic, it.queue.queue_id)
                    is_last = end <= maximum and fingerprint(self._log, of_store, end - 1) == it.archived.last
                    is_same = is_last or self._is_same(it, minimum)
            except OffsetLost:
                if self._published.offsets(it.queue.topic, it.queue.queue_id)[0] == minimum:
                    raise
                continue
            if not is_same:
                raise ArchiveOfAnother(
                    f"{it.queue}: another message is archived at offset {minimum} than the store has; name the archive "
                    "of this store (option archive); if a RocketMQ broker restarted the topic, 'pyspark-mq archive "
                    f"STORE --forget {it.queue.topic}'"
                )
            return True

    def begin(self, queue: Queue) -> int:
        """Queue offset before which messages are of a deleted topic. Raises `UnknownTopic`, `UnknownQueue`."""
        return self._published.of(queue.topic, queue.queue_id).begin

    def has_in_log(self, it: FlatQueue, last: Fingerprint | None) -> bool:
        """Whether the log has the last archived message: that of a topic is there still when the topic is deleted.

        last: where it is; for None as the archive remembers it.
        """
        if (last := last or it.archived.last) is None:
            return False
        try:
            archived = self._archived(it, it.archived.max_offset - 1)
            here = self._log.segments.read(last.physical_offset, len(archived))
        except (OffsetLost, CorruptStore):
            return False
        return _without_place(here) == _without_place(archived)

    def may_be_gone(self, it: FlatQueue) -> bool:
        """Whether the log begins behind where the last archived message was in it, or nothing tells."""
        return it.archived.last is None or it.archived.last.physical_offset < self._log.min_offset()

    def _may_follow(self, it: FlatQueue) -> bool:
        """Of an archive that ends where the store begins: whether the queue's entry before that, if it has it still, is
        the one that was archived."""
        if (last := it.archived.last) is None:
            return True
        with suppress(OffsetLost):
            of_store, end = self._published.of(it.queue.topic, it.queue.queue_id), it.archived.max_offset
            physical, size, _ = of_store.entries(end - 1, end, current=True)[0].item()
            return size in (0, CQ_PRE_BLANK_SIZE) or physical == last.physical_offset
        return True

    def _is_same(self, it: FlatQueue, offset: int) -> bool:
        """Whether both have the same message at an offset that both have."""
        physical, size, _ = self._published.of(it.queue.topic, it.queue.queue_id).entries(offset, offset + 1)[0].item()
        here = self._log.segments.read(physical, size)
        return _without_place(here) == _without_place(self._archived(it, offset))

    def _archived(self, it: FlatQueue, offset: int) -> bytes:
        physical, size, _ = it.entries.entries(offset, offset + 1)[0].item()
        return it.log.read(physical, size)


def _without_place(record: bytes) -> bytes:
    """A record without what depends on where it stands, or stood before it was delivered."""
    view = RecordView(np.frombuffer(record, np.uint8), np.zeros(1, np.int64), np.array([len(record)]))
    data = bytearray(record)
    for name in ("physical_offset", "prepared_transaction_offset"):
        at, width = int(view.field_positions(name)[0]), RECORD_HEADER[name].itemsize
        data[at : at + width] = bytes(width)
    return bytes(data[:-PROPERTY_CRC_BYTES])
