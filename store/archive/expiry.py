"""Deleting the oldest of an archive: what the metadata no longer names goes next."""

from __future__ import annotations

from dataclasses import replace

from store.archive.catalog import Catalog, Segment
from store.archive.layout import COMMIT_LOG, CONSUME_QUEUE, INDEX, index_path, queue_path, segment_path
from store.archive.place import ArchivePlace
from store.format.layout import CQ_ENTRY


def expire(place: ArchivePlace, before: int) -> int:
    """Delete the segments whose messages were all stored before a time (ms since 1970), and tell how many.

    The last one of a queue stays. Call under the store's lock, see `of_store`. Who is killed meanwhile leaves objects
    that nothing names. Raises `ObjectsUnavailable`, `CorruptStore`.
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
    """Without the segments of the index whose messages are all that old, and what they are called.

    Of the messages that it named some may be there still, at the end of their queues: those are in it no longer.
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
