"""Checks that an archive belongs to this store, and finds the offset at which archiving of each queue continues.

The last archived message of each queue is compared with the store's by fingerprint. If one is missing or they differ,
the records are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.archive.catalog import Catalog
from store.archive.flat import FlatQueue
from store.archive.place import ArchivePlace
from store.format.layout import CQ_PRE_BLANK_SIZE, PROPERTY_CRC_BYTES, RECORD_HEADER
from store.format.record_view import RecordView
from store.model.errors import (
    ArchiveOfAnother,
    CorruptStore,
    OffsetLost,
    QueuesPassedOver,
    StoreError,
    UnknownQueue,
    UnknownTopic,
)
from store.model.log_protocol import Fingerprint, Queue
from store.read.fingerprint import fingerprint
from store.read.published import PublishedQueues


class StoreComparison:
    def __init__(self, published: PublishedQueues) -> None:
        self._log = published.log
        self._published = published

    def last(self, it: FlatQueue) -> Fingerprint | None:
        """Return the last archived message's fingerprint. Checks that the store's message, if not deleted, is the same.

        Raises `ArchiveOfAnother`, `UnknownTopic`, and `OffsetLost` if messages between the archive's end and the
        store's first message are missing.
        """
        queue, end, was = it.queue, it.archived.max_offset, it.archived.last
        while True:
            minimum, maximum = self._published.offsets(queue.topic, queue.queue_id)
            if end > maximum:
                raise ArchiveOfAnother(f"the archive ends at offset {end}, after the store's end {maximum}")
            if end < minimum:
                raise OffsetLost(
                    f"the archive ends at offset {end}, but the store begins at {minimum}: the messages between were "
                    "deleted before they were archived"
                )
            if end == minimum:
                if not self._may_follow(it):
                    raise ArchiveOfAnother(
                        f"the archive's message at offset {end - 1} is not the one that the store deleted"
                    )
                return was
            try:
                found = fingerprint(self._log, self._published.of(queue.topic, queue.queue_id), end - 1)
                if found != was and not self._is_same(it, end - 1):
                    raise ArchiveOfAnother(f"the archive has another message at offset {end - 1} than the store")
            except OffsetLost:
                if self._published.offsets(queue.topic, queue.queue_id)[0] == minimum:  # not deleted by retention
                    raise
            else:
                return found

    def reaches(self, it: FlatQueue) -> bool:
        """Return whether the archive has the messages directly before the store's first one.

        Messages of a deleted topic with the same name do not count. Raises `ArchiveOfAnother`.
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
                    f"{it.queue}: the archive has another message at offset {minimum} than the store. Name the "
                    "archive of this store (option archive). If a RocketMQ broker restarted the topic, delete it "
                    f"from the archive: pyspark-mq archive STORE --forget {it.queue.topic}"
                )
            return True

    def begin(self, queue: Queue) -> int:
        """Return the first offset since the topic was created; lower ones belong to a deleted topic of that name.

        Raises `UnknownTopic`, `UnknownQueue`.
        """
        return self._published.of(queue.topic, queue.queue_id).begin

    def has_in_log(self, it: FlatQueue, last: Fingerprint | None) -> bool:
        """Return whether the store's log has the last archived message, even of a deleted topic.

        last: the message's fingerprint; None for the one in the metadata.
        """
        if (last := last or it.archived.last) is None:
            return False
        try:
            archived = self._archived(it, it.archived.max_offset - 1)
            here = self._log.segments.read(last.physical_offset, len(archived))
        except (OffsetLost, CorruptStore):
            return False
        return _without_place(here) == _without_place(archived)

    def may_be_expired(self, it: FlatQueue) -> bool:
        return it.archived.last is None or it.archived.last.physical_offset < self._log.min_offset()

    def _may_follow(self, it: FlatQueue) -> bool:
        """Return whether the store's queue can continue the archive, which ends at the store's first offset.

        If the queue's files still have the entry before that offset, it must refer to the last archived message.
        """
        if (last := it.archived.last) is None:
            return True
        with suppress(OffsetLost):
            of_store, end = self._published.of(it.queue.topic, it.queue.queue_id), it.archived.max_offset
            physical, size, _ = of_store.entries(end - 1, end, current=True)[0].item()
            return size in (0, CQ_PRE_BLANK_SIZE) or physical == last.physical_offset
        return True

    def _is_same(self, it: FlatQueue, offset: int) -> bool:
        physical, size, _ = self._published.of(it.queue.topic, it.queue.queue_id).entries(offset, offset + 1)[0].item()
        here = self._log.segments.read(physical, size)
        return _without_place(here) == _without_place(self._archived(it, offset))

    def _archived(self, it: FlatQueue, offset: int) -> bytes:
        physical, size, _ = it.entries.entries(offset, offset + 1)[0].item()
        return it.log.read(physical, size)


def _without_place(record: bytes) -> bytes:
    """Return a record without the fields that depend on its log offset."""
    view = RecordView(np.frombuffer(record, np.uint8), np.zeros(1, np.int64), np.array([len(record)]))
    data = bytearray(record)
    for name in ("physical_offset", "prepared_transaction_offset"):
        at, width = int(view.field_positions(name)[0]), RECORD_HEADER[name].itemsize
        data[at : at + width] = bytes(width)
    return bytes(data[:-PROPERTY_CRC_BYTES])


class ArchiveState(NamedTuple):
    """How far each queue is archived.

    begins: the queue offset at which archiving continues.
    last: fingerprint of the message before that offset, None if unknown.
    passed: the errors of queues that cannot be archived. If one queue belongs to another store or its topic was
    recreated, all queues of the topic are listed.
    """

    begins: dict[Queue, int]
    last: dict[Queue, Fingerprint | None]
    passed: dict[Queue, StoreError]

    @staticmethod
    def of(comparison: StoreComparison, place: ArchivePlace, catalog: Catalog, queues: Sequence[Queue]) -> ArchiveState:
        """Compare the catalog with the store. queues: all queues of each topic. Raises `ObjectsUnavailable`."""
        last: dict[Queue, Fingerprint | None] = {}
        passed: dict[Queue, StoreError] = {}
        others: dict[str, StoreError] = {}
        topics = {queue.topic for queue in queues}
        there = [it for it in _archived(place, catalog) if it.queue.topic in topics]
        for it in there:
            try:
                last[it.queue] = comparison.last(it)
            except UnknownQueue:
                reason = (
                    f"the archive has {it.queue}, but the store does not: the topic was probably deleted and created "
                    "with fewer queues"
                )
                others.setdefault(it.queue.topic, ArchiveOfAnother(reason))
            except ArchiveOfAnother as error:
                others.setdefault(it.queue.topic, error)
            except (OffsetLost, CorruptStore) as error:
                passed[it.queue] = error
            except UnknownTopic:  # deleted concurrently
                continue
        named = {*queues, *(it.queue for it in there)}
        passed |= {queue: others[queue.topic] for queue in sorted(named) if queue.topic in others}
        begins = {it.queue: it.archived.max_offset for it in there if it.queue not in passed}
        return ArchiveState(begins, last, passed)

    def is_cut_off(self, queue: Queue) -> bool:
        """Return whether archiving can never continue. Damage does not count, because it may be repaired."""
        others = {other.topic for other, reason in self.passed.items() if isinstance(reason, ArchiveOfAnother)}
        return queue.topic in others or isinstance(self.passed.get(queue), OffsetLost)

    def is_doubtful(self, *, is_remembered: bool) -> bool:
        """Return whether the archive may be another store's: some queue has an error, or no queue continues.

        is_remembered: the store's settings name this archive. Then lost or damaged messages alone raise no doubt.
        """
        has_others = any(isinstance(reason, ArchiveOfAnother) for reason in self.passed.values())
        return has_others or not (self.begins or self.passed) or (bool(self.passed) and not is_remembered)

    def is_of_store(
        self, comparison: StoreComparison, place: ArchivePlace, catalog: Catalog, *, is_remembered: bool = False
    ) -> bool:
        """Return whether the archive is empty, or the store's log has the last archived message of at least one queue.

        is_remembered: the store's settings name this archive. Then also return True if no queue has an error and
        retention may have deleted all those messages. Raises `ObjectsUnavailable`.
        """
        there = list(_archived(place, catalog))
        if not there or any(comparison.has_in_log(it, self.last.get(it.queue)) for it in there):
            return True
        return is_remembered and not self.passed and all(map(comparison.may_be_expired, there))


def _archived(place: ArchivePlace, catalog: Catalog) -> Iterator[FlatQueue]:
    for queue, archived in catalog.queues.items():
        if archived.entries and (it := place.queue(catalog, queue)):
            yield it


def told(reasons: Mapping[Queue, StoreError]) -> str:
    queues: dict[str, list[str]] = {}
    for queue, reason in reasons.items():
        queues.setdefault(str(reason), []).append(str(queue))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in queues.items())


def passed_over(root: Path, url: str, reasons: Mapping[Queue, StoreError]) -> QueuesPassedOver:
    return QueuesPassedOver(
        f"{root}: these queues were not archived to {url}, all others were: {told(reasons)}. {_FORGET}", reasons
    )


def of_another(url: str, catalog: Catalog, reasons: Mapping[Queue, StoreError]) -> ArchiveOfAnother:
    why = told(reasons) or f"the archive has other topics ({', '.join(catalog.of_topics())})"
    return ArchiveOfAnother(
        f"{url}: this may be the archive of another store, so nothing was archived: {why}. Archive to another URL, "
        f"or under another brokerName{f'. {_FORGET}' if reasons else ''}"
    )


_FORGET = (
    "A topic cannot continue in the archive if messages were deleted before they were archived, if a RocketMQ broker "
    "restarted the topic, if it was recreated with fewer queues, or if the store was restored from an older backup. "
    "Delete such a topic from the archive and archive it again: pyspark-mq archive STORE --forget TOPIC. To keep its "
    "archived messages, run pyspark-mq restore first"
)
