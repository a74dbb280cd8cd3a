"""`KeySearch`: search an archive by key and by message id. It reads messages that the key index lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa

from store.archive.archived_queues import ArchivedQueues
from store.archive.catalog import Catalog
from store.archive.flat import FlatQueue
from store.archive.key_index import Items
from store.format.arrays import constant, numbers, pc
from store.format.hashes import key_hash
from store.format.layout import ARCHIVE_INDEX_ITEM, LIGHT_PREFIX
from store.format.stored_message import StoredMessage, decode_record
from store.model.errors import InvalidMessageId
from store.model.integers import LONG_MAX
from store.model.log_protocol import Int64s, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.read.narrowing import joined
from store.read.query import KeyQuery, offset_of_id
from store.read.scan import Decoding, scan_queue

_MOST_FOUND = 1000  # with more, reading the whole range is faster
_AT_ONCE = 8
_MS = 1000
_NO_ITEMS = np.empty(0, ARCHIVE_INDEX_ITEM)
_NO_OFFSETS = np.empty(0, np.int64)
_KEYS = ReadSpec(("msgId", "keys"), EVERYTHING)


class KeySearch:
    def __init__(self, queues: ArchivedQueues) -> None:
        self._queues = queues
        self._catalog = queues.catalog
        self._index = queues.index()

    def narrowed(self, ranges: Sequence[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """Return the pieces of ranges that can match, as `Log.with_keys`.

        Raises `OffsetLost` if a segment of the index is missing.
        """
        found: dict[Queue, Int64s] = {}
        for topic in {wanted.queue.topic for wanted in ranges}:
            hashes = [key_hash(topic, key) for key in keys]
            there = np.concatenate([_NO_ITEMS, *(items for items, _ in self._of_topic(topic, hashes))])
            if len(there) > _MOST_FOUND:
                return list(ranges)
            for queue_id in np.unique(there["queue_id"]).tolist():
                of_queue = there["physical_offset"][there["queue_id"] == queue_id]
                found[Queue(topic, queue_id)] = np.unique(of_queue.astype(np.int64))
        ids = list(_offsets_of_ids(keys))
        return [piece for wanted in ranges for piece in self._pieces(wanted, found.get(wanted.queue, _NO_OFFSETS), ids)]

    def _of_topic(self, topic: str, hashes: Sequence[int], begin: int = 0) -> Iterator[tuple[Items, Int64s]]:
        for items, times in self._index.candidates(hashes, begin):
            of_topic = items["topic_id"] == self._catalog.topics.get(topic, -1)
            yield items[of_topic], times[of_topic]

    def _pieces(self, wanted: QueueRange, filed: Int64s, ids: list[int]) -> list[QueueRange]:
        """Return the pieces of a range that may have the messages.

        filed: log offsets of records, from the index. ids: possible log offsets, from message ids.
        """
        it = self._queues.queue(wanted.queue)
        is_light = wanted.queue.topic.startswith(LIGHT_PREFIX)  # its records have the offsets of other queues
        if it is None or it.archived.indexed_from is None or is_light:
            return [wanted]
        # Keep offsets that are not archived: reading them raises the right error.
        known = min(max(wanted.start, it.archived.indexed_from, it.min_offset()), wanted.end)
        behind = max(known, min(wanted.end, it.archived.max_offset))
        filed = filed[filed >= it.begin]  # drop deleted records
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            offsets = list(pool.map(it.offset_of, [*filed.tolist(), *ids]))
        if None in offsets[: len(filed)]:
            return [wanted]  # wrong index: reading the range raises the right error
        there = sorted({each for each in offsets if each is not None and known <= each < behind})
        pieces = (wanted._replace(start=each, end=each + 1) for each in there)
        return joined([wanted._replace(end=known), *pieces, wanted._replace(start=behind)])

    def newest(self, queues: Iterable[Queue], wanted: KeyQuery, before: Mapping[Queue, int]) -> list[StoredMessage]:
        """Return the newest matching messages of one topic's queues, oldest first.

        before: for some queues, the offset at which the search ends. Raises as `narrowed`, and `CorruptRecord`.
        """
        there = {queue: it for queue in queues if (it := self._queues.queue(queue)) is not None}
        found: dict[tuple[str, int, int], StoredMessage] = {}  # by topic, too: a light queue has several
        for message in self._messages(there, wanted):
            is_before = message.queue_offset < before.get(Queue(message.topic, message.queue_id), LONG_MAX)
            if is_before and wanted.matches(message):
                found[message[:3]] = message
                if len(found) == wanted.max_messages:
                    break
        for queue, it in there.items():
            stop = min(_unindexed_until(it, self._catalog), before.get(queue, LONG_MAX))
            for message in _with_key(it, it.min_offset(), stop, wanted):
                found[message[:3]] = message
        ordered = sorted(found.values(), key=lambda each: (each.store_timestamp, each.queue_id, each.queue_offset))
        return ordered[-wanted.max_messages :]

    def _messages(self, there: Mapping[Queue, FlatQueue], wanted: KeyQuery) -> Iterator[StoredMessage]:
        """Yield the messages that the index names, newest first.

        A heap has the next candidate of each queue. The index has times in seconds only. A candidate that may be the
        newest is read, and pushed again with its exact time.
        """
        topic = next(iter(there)).topic if there else ""
        found = list(self._of_topic(topic, [key_hash(topic, wanted.key)], wanted.begin))
        items = np.concatenate([_NO_ITEMS, *(each for each, _ in found)])
        times = np.concatenate([_NO_OFFSETS, *(each for _, each in found)])
        is_in_time = (times <= wanted.end) & (times + _MS > wanted.begin)
        left: dict[Queue, list[int]] = {}  # rows, ordered by offset
        heads: list[tuple[int, int, Queue, StoredMessage | None]] = []  # None if not read yet

        def step(queue: Queue) -> None:
            if left[queue]:
                heappush(heads, (-int(times[left[queue][-1]]) - _MS, -queue.queue_id, queue, None))

        for queue, it in there.items():
            rows = np.flatnonzero(is_in_time & (items["queue_id"] == queue.queue_id))
            rows = rows[items["physical_offset"][rows] >= it.begin]
            left[queue] = rows[np.argsort(items["physical_offset"][rows])].tolist()
            step(queue)
        while heads:
            _, _, queue, message = heappop(heads)
            if message is not None:
                yield message
                step(queue)
                continue
            item, log = items[left[queue].pop()], there[queue].log
            at, size = int(item["physical_offset"]), int(item["size"])
            message = decode_record(log.read(at, size), f"{queue}, archived at {at}")
            heappush(heads, (-message.store_timestamp, -queue.queue_id, queue, message))


def _unindexed_until(it: FlatQueue, catalog: Catalog) -> int:
    """Return the queue offset up to which the index lacks keys. A broker's index is assumed to be complete."""
    if it.archived.indexed_from is not None:
        return min(it.archived.indexed_from, it.archived.max_offset)
    return 0 if catalog.index else it.archived.max_offset


def _with_key(it: FlatQueue, start: int, stop: int, wanted: KeyQuery) -> Iterator[StoredMessage]:
    if start >= stop:
        return
    with it.ahead(start, stop) as (log, entries):
        for batch in scan_queue(log, entries, start, stop, Decoding(_KEYS, 0)):
            for offset in (start + np.flatnonzero(numbers(_may_have(batch, wanted.key)))).tolist():
                at, size, _ = it.entries.entries(offset, offset + 1)[0].item()
                message = decode_record(it.log.read(at, size), f"{it.queue}, offset {offset}")
                if wanted.matches(message):
                    yield message
            start += len(batch)


def _may_have(batch: pa.RecordBatch, key: str) -> pa.BooleanArray:
    among = pc.match_substring(batch["keys"].fill_null(constant("")), key)
    return pc.or_(among, pc.equal(batch["msgId"], constant(key)))


def _offsets_of_ids(keys: Sequence[str]) -> Iterator[int]:
    for key in keys:
        with suppress(InvalidMessageId):
            yield offset_of_id(key)
