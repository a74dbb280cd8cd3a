"""Delete expired segments and messages of deleted topics from an archive.

The metadata are written before the objects are deleted, so that they never name a missing object. The caller must hold
the lock `of_store.alone`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from store.archive.catalog import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    ArchivedQueue,
    Catalog,
    Segment,
    index_path,
    queue_path,
    segment_path,
)
from store.archive.comparison import ArchiveState
from store.archive.place import ArchivePlace
from store.format.layout import CQ_ENTRY
from store.model.errors import UnknownTopic
from store.model.log_protocol import Queue


def expire(place: ArchivePlace, before: int) -> int:
    """Delete segments in which all messages were stored before a time (ms since 1970). Return the number of objects.

    The last segment of a queue is kept. Raises `ObjectsUnavailable`, `CorruptStore`.
    """
    catalog = place.load()
    if catalog is None:
        return 0
    gone: list[str] = []
    for queue, archived in list(catalog.queues.items()):
        pairs = list(zip(archived.log, archived.entries, strict=False))
        count = 0
        while count < len(pairs) - 1 and all(_is_old(each, before) for each in pairs[count]):
            count += 1
        if count and len(archived.log) == len(archived.entries):
            kept = replace(archived, log=archived.log[count:], entries=archived.entries[count:])
            catalog = catalog.having(queue, kept)
            name = queue_path(catalog.broker, queue)
            for log, entries in pairs[:count]:
                gone += [segment_path(name, COMMIT_LOG, log.base), segment_path(name, CONSUME_QUEUE, entries.base)]
    catalog, files = _without_old_index(catalog, before)
    gone += files
    if gone:
        place.save(catalog)
    place.delete(gone)
    return len(gone)


def _without_old_index(catalog: Catalog, before: int) -> tuple[Catalog, list[str]]:
    """Remove old segments from the index. Return the catalog, and the paths of the removed objects.

    A removed segment may have keys of messages that are kept, so `indexed_from` of their queues is raised.
    """
    old = [each for each in catalog.index if _is_old(each, before)]
    if not old:
        return catalog, []
    until = max(each.end for each in old)
    for queue, archived in list(catalog.queues.items()):
        named = [each.stop // CQ_ENTRY.itemsize for each in archived.entries if each.begin <= until]
        if archived.indexed_from is not None and named:
            kept = replace(archived, indexed_from=max(archived.indexed_from, named[-1]))
            catalog = catalog.having(queue, kept)
    index = tuple(each for each in catalog.index if each not in old)
    name = index_path(catalog.broker)
    return replace(catalog, index=index), [segment_path(name, INDEX, each.base) for each in old]


def _is_old(segment: Segment, before: int) -> bool:
    return segment.sealed and segment.end < before


def forget(
    place: ArchivePlace, catalog: Catalog, archive_state: ArchiveState, topics: Mapping[str, Sequence[Queue]]
) -> int:
    """Delete archived queues that the store's queues do not continue. Return the number of deleted messages.

    topics: maps each topic to its queues in the store. A topic without queues is deleted from the archive.

    If the process is killed, the next call deletes the remaining objects. Raises `UnknownTopic`, `ObjectsUnavailable`.
    """
    unknown = [topic for topic, queues in topics.items() if not queues and topic not in catalog.topics]
    if unknown:
        known = ", ".join(catalog.of_topics()) or "none"
        raise UnknownTopic(f"{place.url}: topic {', '.join(unknown)} is not in the archive. Archived topics: {known}")
    there = [queue for queue in catalog.queues if queue.topic in topics]
    left = [queue for queue in there if topics[queue.topic] and not archive_state.is_cut_off(queue)]
    gone = [queue for queue in there if queue not in left and not catalog.queues[queue].is_forgotten]
    forgotten, now = 0, catalog
    for queue in gone:
        archived = catalog.queues[queue]
        forgotten += archived.max_offset - archived.first_entry
        now = now.without(queue)
    for topic in {queue.topic for queue in gone} - {queue.topic for queue in left}:
        now = now.numbered(topic)
    if gone:
        place.save(now)
    for queue in there:
        place.delete(_unnamed(place, now, queue))
    return forgotten


def _unnamed(place: ArchivePlace, catalog: Catalog, queue: Queue) -> Iterable[str]:
    archived, path = catalog.queues.get(queue, ArchivedQueue()), queue_path(catalog.broker, queue)
    for kind, segments in ((COMMIT_LOG, archived.log), (CONSUME_QUEUE, archived.entries)):
        named = {segment_path(path, kind, each.base) for each in segments if each.size}
        for name in place.objects.names(f"{place.folder}/{path}/{kind}"):
            if f"{path}/{kind}/{name}" not in named:
                yield f"{path}/{kind}/{name}"
