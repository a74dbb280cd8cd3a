"""Reduce ranges to pieces that may have the messages of a search by key or id.

Messages before the published end's `keys_from` are never skipped, because the index may lack their keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice

from store.append.log_end import LogEnd
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.index import Index
from store.format.layout import LIGHT_PREFIX, RECORD_HEADER
from store.model.errors import ConfigError, CorruptRecord, InvalidMessageId, OffsetLost, OffsetNotYet
from store.model.log_protocol import QueueRange
from store.read.fingerprint import place_of
from store.read.published import PublishedQueues
from store.read.query import message_at, offset_of_id

_MOST_SEARCHES = 10_000  # with more candidates, reading the whole range is faster
_NEARBY = 64  # pieces at most so many messages apart are read together, which is faster


class Narrowing:
    def __init__(
        self,
        log: CommitLog,
        index: Index,
        published: PublishedQueues,
        end: PublishedEnd | LogEnd,
    ) -> None:
        self._log = log
        self._index = index
        self._published = published
        self._end = end

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        """Return the pieces that may have messages with a key or id; `ranges` if the index cannot be used."""
        ranges = list(ranges)
        try:
            before = self._keys_from(), self._index.names()
            if before[0] is None:
                return ranges
            found: list[QueueRange] = []
            for topic, of_topic in groupby(ranges, lambda wanted: wanted.queue.topic):
                found += self._with_keys(topic, list(of_topic), before[0], keys)
            is_same = (self._keys_from(), self._index.names()) == before
        except (ConfigError, FileNotFoundError):  # other sizes, or deleted by retention
            return ranges
        return found if is_same else ranges  # deleted or rebuilt concurrently

    def _keys_from(self) -> int | None:
        """Return the log offset from which the index has all keys, None if unknown."""
        keys_from = self._end.keys_from
        begin = None if keys_from is None else self._index.keys_complete_from(keys_from)
        return None if keys_from is None or begin is None else max(keys_from, begin)

    def _with_keys(self, topic: str, ranges: list[QueueRange], keys_from: int, keys: Sequence[str]) -> list[QueueRange]:
        if topic.startswith(LIGHT_PREFIX):  # their keys are indexed under the topic that they were sent to
            return ranges
        most = _MOST_SEARCHES // len(ranges)
        some = list(islice(self._candidates(topic, keys), most + 1))  # a record appears once for each key
        if len(some) > most:
            return ranges
        left = set(some)
        pieces = [piece for wanted in ranges for piece in self._pieces_with(wanted, keys_from, sorted(set(some)), left)]
        return ranges if any(at >= keys_from and self._is_in(ranges, at) for at in left) else pieces

    def _is_in(self, ranges: Sequence[QueueRange], physical: int) -> bool:
        with suppress(OffsetLost, OffsetNotYet):
            _, queue_id, offset = place_of(self._log.segments.read(physical, RECORD_HEADER.itemsize))
            if any(each.queue.queue_id == queue_id and each.start <= offset < each.end for each in ranges):
                with suppress(CorruptRecord):
                    return message_at(self._log, physical, self._end.confirm_offset).topic == ranges[0].queue.topic
                return True
        return False

    def _candidates(self, topic: str, keys: Sequence[str]) -> Iterator[int]:
        for key in keys:
            with suppress(InvalidMessageId):
                yield offset_of_id(key)
            yield from self._index.candidates(topic, key)

    def _pieces_with(
        self, wanted: QueueRange, keys_from: int, found: Sequence[int], left: set[int]
    ) -> list[QueueRange]:
        """Return the part of a range before log offset `keys_from`, and its messages at log offsets `found`. Removes
        these from `left`; if an entry is damaged, some stay.
        """
        queue = self._published.of(wanted.queue.topic, wanted.queue.queue_id)
        try:
            known = _first_from(queue, wanted, keys_from)
            pieces, rest = [wanted._replace(end=known)], wanted._replace(start=known)
            for physical in found:
                at = _first_from(queue, rest, physical)
                if at < wanted.end and queue.entries(at, at + 1)["physical_offset"][0] == physical:
                    pieces.append(wanted._replace(start=at, end=at + 1))
                    left.discard(physical)
        except OffsetLost:
            return [wanted]
        min_offset, _ = self._published.offsets(wanted.queue.topic, wanted.queue.queue_id)
        if min_offset > wanted.start:  # deleted by retention: reading the range raises the error
            return [wanted]
        return joined(pieces)


def _first_from(queue: ConsumeQueue, wanted: QueueRange, physical_offset: int) -> int:
    """Return the queue offset of a range's first record at or after a log offset, else the range's end.

    Raises `OffsetLost`.
    """

    def physical_at(offset: int) -> int:
        return int(queue.entries(offset, offset + 1)["physical_offset"][0])

    return bisect_left(range(wanted.end), physical_offset, wanted.start, wanted.end, key=physical_at)


def joined(pieces: Iterable[QueueRange]) -> list[QueueRange]:
    """Drop empty pieces and join near ones. pieces: ascending, of one range."""
    joined: list[QueueRange] = []
    for piece in pieces:
        if not piece.length:
            continue
        if joined and piece.start - joined[-1].end <= _NEARBY:
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    return joined
