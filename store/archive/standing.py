"""From where on each queue is archived next, and which cannot be: what is archived is not what the store has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from store.archive.catalog import Catalog
from store.archive.flat import FlatQueue
from store.archive.kin import Kin
from store.archive.place import ArchivePlace
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


class Standing(NamedTuple):
    """begins: where what is archived of a queue ends, and it goes on. last: the message before it, where it is
    known. passed: why the others cannot be archived; of a topic that is another one none of its queues can.
    """

    begins: dict[Queue, int]
    last: dict[Queue, Fingerprint | None]
    passed: dict[Queue, StoreError]

    @staticmethod
    def of(kin: Kin, place: ArchivePlace, catalog: Catalog, queues: Sequence[Queue]) -> Standing:
        """queues: all those of a topic, or none. Raises `ObjectsUnavailable`."""
        last: dict[Queue, Fingerprint | None] = {}
        passed: dict[Queue, StoreError] = {}
        others: dict[str, StoreError] = {}
        topics = {queue.topic for queue in queues}
        there = [it for it in _archived(place, catalog) if it.queue.topic in topics]
        for it in there:
            try:
                last[it.queue] = kin.last(it)
            except UnknownQueue:
                reason = f"{it.queue} is archived, but the topic has no such queue"
                others.setdefault(it.queue.topic, ArchiveOfAnother(reason))
            except ArchiveOfAnother as error:
                others.setdefault(it.queue.topic, error)
            except (OffsetLost, CorruptStore) as error:
                passed[it.queue] = error
            except UnknownTopic:  # deleted meanwhile
                continue
        named = {*queues, *(it.queue for it in there)}
        passed |= {queue: others[queue.topic] for queue in sorted(named) if queue.topic in others}
        begins = {it.queue: it.archived.max_offset for it in there if it.queue not in passed}
        return Standing(begins, last, passed)

    def is_cut_off(self, queue: Queue) -> bool:
        """Whether nothing can go on behind what is archived of a queue; what is damaged may be mended."""
        others = {other.topic for other, reason in self.passed.items() if isinstance(reason, ArchiveOfAnother)}
        return queue.topic in others or isinstance(self.passed.get(queue), OffsetLost)

    def is_doubtful(self, *, is_remembered: bool) -> bool:
        """Whether the archive may be of another store: something cannot be archived, or goes on behind nothing there.

        is_remembered: by the store's settings. Such a store may have lost what it had, and then has no other messages.
        """
        has_others = any(isinstance(reason, ArchiveOfAnother) for reason in self.passed.values())
        return has_others or not (self.begins or self.passed) or (bool(self.passed) and not is_remembered)

    def shows_ours(self, kin: Kin, place: ArchivePlace, catalog: Catalog, *, is_remembered: bool = False) -> bool:
        """Whether anything shows that the archive is of this store, or nothing is archived yet; or if `is_remembered`,
        and all its topics are others, whether retention took what would show it: they may be deleted.

        Raises `ObjectsUnavailable`.
        """
        there = list(_archived(place, catalog))
        if not there or any(kin.has_in_log(it, self.last.get(it.queue)) for it in there):
            return True
        return is_remembered and not self.passed and all(map(kin.may_be_gone, there))


def _archived(place: ArchivePlace, catalog: Catalog) -> Iterator[FlatQueue]:
    for queue, archived in catalog.queues.items():
        if archived.entries and (it := place.queue(catalog, queue)):
            yield it


def told(reasons: Mapping[Queue, StoreError]) -> str:
    """Which queues there are of each reason."""
    queues: dict[str, list[str]] = {}
    for queue, reason in reasons.items():
        queues.setdefault(str(reason), []).append(str(queue))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in queues.items())


def passed_over(root: Path, url: str, reasons: Mapping[Queue, StoreError]) -> QueuesPassedOver:
    return QueuesPassedOver(f"{root}: {url} has all now but {told(reasons)}. {_REMEDY}", reasons)


def of_another(url: str, catalog: Catalog, reasons: Mapping[Queue, StoreError]) -> ArchiveOfAnother:
    why = told(reasons) or f"it has other topics ({', '.join(catalog.of_topics())})"
    return ArchiveOfAnother(
        f"{url}: nothing shows that this is the archive of this store, so nothing is archived: {why}. "
        f"Archive to another URL, or under another brokerName{f'. {_REMEDY}' if reasons else ''}"
    )


_REMEDY = (
    "If what is archived of a topic has a hole behind it, or a RocketMQ broker restarted it: 'pyspark-mq archive STORE "
    "--forget TOPIC' takes that out of the archive, and archives what the store has ('pyspark-mq restore' makes a copy "
    "of it before)"
)
