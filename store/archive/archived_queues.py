from __future__ import annotations

from collections.abc import Iterable, Iterator

from store.archive.catalog import Catalog
from store.archive.flat import FlatQueue
from store.archive.key_index import KeyIndex
from store.archive.place import ArchivePlace
from store.model.errors import OffsetLost, OffsetNotYet, UnknownTopic
from store.model.log_protocol import Queue, QueueRange


class ArchivedQueues:
    def __init__(self, place: ArchivePlace, catalog: Catalog) -> None:
        self.url = place.url
        self.catalog = catalog
        self._place = place
        self._known: dict[Queue, FlatQueue] = {}

    def queue(self, queue: Queue) -> FlatQueue | None:
        if (it := self._known.get(queue)) is None and (it := self._place.queue(self.catalog, queue)) is not None:
            self._known[queue] = it
        return it

    def archived(self, queues: Iterable[Queue]) -> Iterator[FlatQueue]:
        for queue in queues:
            if (it := self.queue(queue)) is not None:
                yield it

    def queue_containing(self, wanted: QueueRange) -> FlatQueue:
        """Return the queue of a range.

        Raises `UnknownTopic`, and `OffsetLost` or `OffsetNotYet` unless all of the range is archived.
        """
        it = self.queue(wanted.queue)
        where = self.where(wanted.queue)
        if it is None:
            raise UnknownTopic(f"{where}: this queue is not archived")
        minimum, maximum = it.min_offset(), it.archived.max_offset
        if wanted.start < minimum and wanted.length:
            raise OffsetLost(
                f"{where}: offset {wanted.start} is not archived. Begin at offset {minimum}, the oldest archived one"
            )
        if wanted.end > maximum:
            raise OffsetNotYet(
                f"{where}: asked for messages up to offset {wanted.end}, but the archive ends at {maximum}"
            )
        return it

    def index(self) -> KeyIndex:
        return self._place.index(self.catalog)

    def where(self, queue: Queue) -> str:
        return f"{self.url}: topic {queue.topic!r}, queue {queue.queue_id}"
