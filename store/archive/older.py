"""What a store has no longer, from the archive that it remembers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from store.any_log import Bounds, MessageFilter, Queue, QueueRange, ReadSpec
from store.archive.kin import Kin
from store.archive.log import ArchiveLog
from store.archive.of_store import StoreArchive
from store.errors import CorruptRecord, MessageTooLarge
from store.files.config import StoreConfig
from store.format.layout import CQ_ENTRY
from store.format.stored_message import StoredMessage
from store.read.getting import GetResult, GetStatus


class Older:
    """An archive, for a store that asks it. Every verb raises `ArchiveError`."""

    def __init__(self, archive: ArchiveLog, config: StoreConfig, kin: Kin) -> None:
        self._archive = archive
        self._config = config
        self._kin = kin

    @staticmethod
    def of(root: Path, config: StoreConfig, kin: Kin) -> Older | None:
        """None for a store that archives nowhere. Raises `ObjectsUnavailable`."""
        archive = StoreArchive.remembered(root, config)
        return Older(ArchiveLog(archive.place()), config, kin) if archive.url else None

    def has(self, queue: Queue) -> bool:
        """Whether it has what the store had of a queue before what it has. Raises as `Kin.reaches`."""
        return self._archive.reaches(queue, self._kin)

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """As `Log.scan`."""
        return self._archive.scan(wanted, spec)

    def get_message(
        self, queue: Queue, offset: int, ours: Bounds, max_messages: int, message_filter: MessageFilter
    ) -> GetResult:
        """As `MessageStore.get_message`, from an offset before `ours`, what the store has; none of that is in it."""
        config, first = self._config, ours.min_offset
        if self.has(queue):
            first = min(first, self._archive.bounds([queue])[queue].min_offset)
        if offset < first:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, first, first, ours.max_offset)
        most = min(max_messages, config.maxTransferCountOnMessageInMemory)
        examined = max(config.maxFilterMessageSize // CQ_ENTRY.itemsize, max_messages)
        found: list[StoredMessage] = []
        taken, next_begin = 0, offset
        wanted = QueueRange(queue, offset, min(ours.min_offset, offset + examined))
        try:
            for message in self._archive.messages(wanted):
                taken += len(message.body)
                if found and (len(found) >= most or taken > config.maxTransferBytesOnMessageInMemory):
                    break
                next_begin += 1
                if message_filter.match(message.tags, message.properties):
                    found.append(message)
        except (CorruptRecord, MessageTooLarge):
            if next_begin == offset:  # or else the next call says it
                raise
        status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_begin, first, ours.max_offset, found)

    def with_key(
        self,
        topic: str,
        key: str,
        most: int,
        times: tuple[int, int],
        ours: Mapping[Queue, Bounds],
        found: Sequence[StoredMessage],
    ) -> list[StoredMessage]:
        """As `MessageStore.query`, from before what the store has in each queue of the topic.

        times: [begin, end] in ms. found: what the store found, some of which it may have lost since.
        """
        before = dict.fromkeys(self._archive.topics().get(topic, ()), 0)
        before |= {queue: ours[queue].min_offset for queue in before.keys() & ours.keys() if self.has(queue)}
        if not any(before.values()):
            return []
        have = {(message.queue_id, message.queue_offset) for message in found}
        older = self._archive.query(topic, key, most + len(have), *times, before)
        return [each for each in older if (each.queue_id, each.queue_offset) not in have][-most:]
