"""Deleting the oldest of an archive: what the metadata no longer names goes next."""

from __future__ import annotations

from dataclasses import replace

from store.archive.catalog import Segment
from store.archive.layout import COMMIT_LOG, CONSUME_QUEUE, queue_path, segment_path
from store.archive.place import Place


def expire(place: Place, before: int) -> int:
    """Delete the segments whose messages were all stored before a time (ms since 1970), and tell how many.

    The last one of a queue stays. Call under the store's lock, see `of_store`. Who is killed meanwhile leaves objects
    that nothing names. Raises `ArchiveUnavailable`, `CorruptStore`.
    """
    catalog = place.load()
    if catalog is None:
        return 0
    gone = []
    for queue, archived in list(catalog.queues.items()):
        pairs = list(zip(archived.log, archived.entries, strict=False))
        count = 0
        while count < len(pairs) - 1 and all(_is_old(each, before) for each in pairs[count]):
            count += 1
        if count and len(archived.log) == len(archived.entries):
            kept = replace(archived, log=archived.log[count:], entries=archived.entries[count:])
            catalog = catalog.having(queue, kept)
            name = queue_path(catalog.broker, *queue)
            for log, entries in pairs[:count]:
                gone += [segment_path(name, COMMIT_LOG, log.base), segment_path(name, CONSUME_QUEUE, entries.base)]
    if gone:
        place.save(catalog)
    for path in gone:
        place.objects.delete(f"{place.folder}/{path}")
    return len(gone)


def _is_old(segment: Segment, before: int) -> bool:
    return segment.sealed and segment.end < before
