"""Taking out of an archive what is there of a topic that was deleted: the metadata names it no longer, then it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from store.archive.catalog import ArchivedQueue, Catalog
from store.archive.layout import COMMIT_LOG, CONSUME_QUEUE, queue_path, segment_path
from store.archive.place import ArchivePlace
from store.archive.standing import Standing
from store.model.errors import UnknownTopic
from store.model.log_protocol import Queue


def forget(place: ArchivePlace, catalog: Catalog, standing: Standing, topics: Mapping[str, Sequence[Queue]]) -> int:
    """Take out what is not the beginning of what the store has, and tell how many messages that were.

    standing: of the queues that the topics have in the store; a topic without any is taken out as a whole. Call under
    the store's lock, see `of_store`. Who is killed meanwhile is called again. Raises `UnknownTopic`,
    `ObjectsUnavailable`.
    """
    unknown = [topic for topic, queues in topics.items() if not queues and topic not in catalog.topics]
    if unknown:
        known = ", ".join(catalog.of_topics()) or "none"
        raise UnknownTopic(f"{place.url}: no topic {', '.join(unknown)} to forget (there are: {known})")
    there = [queue for queue in catalog.queues if queue.topic in topics]
    left = [queue for queue in there if topics[queue.topic] and not standing.is_cut_off(queue)]
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
    """Objects of a queue that the metadata does not name."""
    archived, path = catalog.queues.get(queue, ArchivedQueue()), queue_path(catalog.broker, queue)
    for kind, segments in ((COMMIT_LOG, archived.log), (CONSUME_QUEUE, archived.entries)):
        named = {segment_path(path, kind, each.base) for each in segments if each.size}
        for name in place.objects.names(f"{place.folder}/{path}/{kind}"):
            if f"{path}/{kind}/{name}" not in named:
                yield f"{path}/{kind}/{name}"
