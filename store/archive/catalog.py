"""`Catalog`: what an archive has, in RocketMQ's metadata (DefaultMetadataStore). An object that they do not name does
not count.

Paths and names are those of RocketMQ's tiered store (PosixFileSegment):

    <hash>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<hash><begin offset>      records, contiguous
    <hash>_<cluster>/<broker>/<topic>/<queue id>/CONSUME_QUEUE/<hash><begin offset>   entries, as in a consume queue
    <hash>_<cluster>/<broker>/rmq_sys_INDEX/0/INDEX/<hash><begin offset>              keys of messages of all queues
    config/tieredStoreMetadata.json                                                   which of them count, and how far

A record is the one of the commit log (`store.format.layout`), but its physical offset is the one in its queue's own
log; its entry has that offset, too. All offsets are bytes.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from store.files.admin_files import number, table
from store.format.layout import CQ_ENTRY, MAX_QUEUES, SEGMENT_NAME_DIGITS, segment_name
from store.format.strict_json import decode_fastjson, encode
from store.model.errors import CorruptStore
from store.model.integers import LONG_MAX
from store.model.log_protocol import Fingerprint, Queue

HASH_DIGITS: Final = 8  # of the MD5 of what follows: so neighbours are spread over an object store
COMMIT_LOG: Final = "COMMIT_LOG"
CONSUME_QUEUE: Final = "CONSUME_QUEUE"
INDEX: Final = "INDEX"
SEGMENT_TYPES: Final = {COMMIT_LOG: 0, CONSUME_QUEUE: 1, INDEX: 2}  # FileSegmentType
INDEX_TOPIC: Final = "rmq_sys_INDEX"  # in whose queue 0 the index stands
INDEX_SLOTS: Final = 1 << 17  # of an index that this project writes; RocketMQ's tieredStoreIndexFileMaxHashSlotNum
METADATA: Final = "config/tieredStoreMetadata.json"
DEFAULT_CLUSTER: Final = "DefaultCluster"

TOPICS: Final = "topicMetadataTable"  # topic to its number and its name
QUEUES: Final = "queueMetadataTable"  # topic to queue id to its offsets
INDEXED_FROM: Final = "indexedOffset"  # of a queue, this project's: the index has all keys from this offset on
LAST_AT: Final = "lastLogOffset"  # of a queue, this project's: of the last message, in the log of the store it is from
LAST_STORED: Final = "lastStoreTimestamp"  # of the same message, ms
SEGMENTS: Final = {
    COMMIT_LOG: "commitLogFileSegmentTable",
    CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    INDEX: "indexFileSegmentTable",
}
TOPIC_NUMBER: Final = "topicSerialNumber"  # the last one given to a topic
NO_OFFSET: Final = -1  # of a queue without messages
NO_TIME: Final = (1 << 63) - 1  # of a segment without messages, ms
GROWING: Final = 0  # a segment's status: more may be written behind its end
SEALED: Final = 1


def hashed(name: str) -> str:
    """Return the digits that precede a name in a path."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:HASH_DIGITS]


def cluster_folder(cluster: str) -> str:
    return f"{hashed(cluster)}_{cluster}"


def is_cluster_folder(name: str) -> bool:
    digits, _, cluster = name.partition("_")
    return bool(cluster) and digits == hashed(cluster)


def is_folder(name: str) -> bool:
    """Return whether a topic or a broker of this name has a folder of its own."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def queue_path(broker: str, queue: Queue) -> str:
    """Return a queue's path below the cluster's folder, as the metadata have it."""
    return f"{broker}/{queue.topic}/{queue.queue_id}"


def index_path(broker: str) -> str:
    """Return the path of the index, which looks like a queue."""
    return queue_path(broker, Queue(INDEX_TOPIC, 0))


def segment_path(queue: str, kind: str, base: int) -> str:
    """Return a segment's path below the cluster's folder. queue: its `queue_path`. kind: of SEGMENT_TYPES."""
    return f"{queue}/{kind}/{hashed(str(base))}{segment_name(base)}"


assert len(segment_path("", COMMIT_LOG, 0)) == len(f"/{COMMIT_LOG}/") + HASH_DIGITS + SEGMENT_NAME_DIGITS


_CRC = b',"metadata.crc32":'  # of all bytes before it; behind it a number and "}". No topic has such a name
_MOST_BYTES = 1 << 60  # of a file, and of a segment: what comes behind has an offset, too
_MOST_TOPICS = 1 << 30  # as many numbers as the index has, and more to give


@dataclass(frozen=True)
class Segment:
    """One object of a file: bytes [base, base + size) of it.

    begin, end: store times of the first and the last message, ms. sealed: nothing is written behind its end, and its
    times are those of all its messages.
    """

    base: int
    size: int
    begin: int = NO_TIME
    end: int = NO_TIME
    sealed: bool = False

    @property
    def stop(self) -> int:
        return self.base + self.size


Segments = tuple[Segment, ...]


@dataclass(frozen=True)
class ArchivedQueue:
    """The archived part of one queue: its log and its entries, each contiguous.

    next_offset: the queue offset that is archived next if there are no entries. indexed_from: the index has the keys of
    all messages from that queue offset on; None if that is unknown, as in a broker's archive. last: the last message as
    it stands in the store's log; None likewise.
    """

    log: Segments = ()
    entries: Segments = ()
    next_offset: int = 0
    indexed_from: int | None = None
    last: Fingerprint | None = None

    @property
    def first_entry(self) -> int:
        """Queue offset of the first entry; its record may be missing."""
        return self.entries[0].base // CQ_ENTRY.itemsize if self.entries else self.next_offset

    @property
    def max_offset(self) -> int:
        return self.entries[-1].stop // CQ_ENTRY.itemsize if self.entries else self.next_offset

    @property
    def is_forgotten(self) -> bool:
        """Whether it was archived, and deleted from the archive."""
        return not self.entries and self.indexed_from is None and bool(self.log) and self.log[-1].base > 0

    def written(self, log: Segment, entries: Segment, last: Fingerprint) -> ArchivedQueue:
        """Return it with two more segments, or with longer ones in the place of the last."""

        def behind(segments: Segments, added: Segment) -> Segments:
            return (*(each for each in segments if each.base != added.base), added)

        return replace(self, log=behind(self.log, log), entries=behind(self.entries, entries), last=last)


@dataclass(frozen=True)
class Catalog:
    """What one broker has archived. topics: topic to its number in the archive. index: segments that are each complete;
    they need not be contiguous."""

    broker: str
    topics: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[Queue, ArchivedQueue] = field(default_factory=dict)
    index: Segments = ()

    def of_topics(self) -> dict[str, tuple[Queue, ...]]:
        """Return each topic and its queues, both in order. A missing queue between others is empty."""
        counts: dict[str, int] = dict.fromkeys(sorted(self.topics), 0)
        for queue in (queue for queue, archived in self.queues.items() if not archived.is_forgotten):
            counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
        return {topic: tuple(Queue(topic, each) for each in range(count)) for topic, count in counts.items() if count}

    def queue(self, queue: Queue) -> ArchivedQueue | None:
        """Return one queue, None if it is not archived. A missing queue between others is empty."""
        found = self.queues.get(queue)
        if found is None and queue in self.of_topics().get(queue.topic, ()):
            return ArchivedQueue()
        return found

    def having(self, queue: Queue, archived: ArchivedQueue) -> Catalog:
        """Return the catalog with this queue as it is now."""
        numbered = self if queue.topic in self.topics else self.numbered(queue.topic)
        return replace(numbered, queues={**self.queues, queue: archived})

    def without(self, queue: Queue) -> Catalog:
        """Return the catalog without what is archived of this queue. What is archived next begins behind it in the
        queue's log, so that no reader with older metadata, and no key in the index, takes the new records for the old.
        """
        queues, archived = dict(self.queues), self.queues[queue]
        if archived.log:
            queues[queue] = ArchivedQueue(log=(Segment(archived.log[-1].stop, 0),))
        else:
            del queues[queue]
        return replace(self, queues=queues)

    def numbered(self, topic: str) -> Catalog:
        """Return the catalog with a new number for this topic. Keys that the index has under its old number no longer
        count."""
        return replace(self, topics={**self.topics, topic: max(self.topics.values(), default=-1) + 1})

    # --- as JSON ---------------------------------------------------------------------------------------

    @staticmethod
    def parse(where: str, data: bytes) -> Catalog | None:
        """Return the metadata of one broker, None if nothing was ever archived. Raises `CorruptStore`."""
        path = Path(where)
        text, found, crc = data.rpartition(_CRC)  # RocketMQ writes none, nor did a version before
        if found and crc != b"%d}" % zlib.crc32(text):
            raise CorruptStore(f"{where}: damaged, for its checksum does not fit; restore it from a copy")
        try:
            content = decode_fastjson(data, dict[str, Any])
        except ValueError as error:
            raise CorruptStore(f"{where}: no metadata of an archive ({error}); restore it from a copy") from error
        tables = {kind: table(path, content, name) for kind, name in SEGMENTS.items()}
        brokers = {name.partition("/")[0] for segments in tables.values() for name in segments}
        queues: dict[Queue, ArchivedQueue] = {}
        for topic, numbered in table(path, content, QUEUES).items():
            for queue_id, said in table(path, {topic: numbered}, topic).items():
                own = said.get("queue")
                brokers.add(str(own.get("brokerName") or "") if isinstance(own, dict) else "")
                queue = Queue(topic, number(path, f"a queue of {topic}", queue_id, MAX_QUEUES - 1))

                def own_number(name: str, said: Mapping[str, Any] = said, queue: Queue = queue) -> int | None:
                    value = said.get(name)
                    return None if value is None else number(path, f"{name} of {queue}", value, LONG_MAX)

                ends, last_at, last_stored = (
                    said.get("maxOffset", NO_OFFSET),
                    own_number(LAST_AT),
                    own_number(LAST_STORED),
                )
                queues[queue] = ArchivedQueue(
                    next_offset=0 if ends == NO_OFFSET else number(path, f"maxOffset of {queue}", ends, LONG_MAX),
                    indexed_from=own_number(INDEXED_FROM),
                    last=None if last_at is None or last_stored is None else Fingerprint(last_at, last_stored),
                )
        brokers.discard("")
        for name in (*brokers, *(queue.topic for queue in queues)):
            if not is_folder(name):
                raise CorruptStore(f"{where}: {name!r} is no name of a broker, or of a topic; restore it from a copy")
        if len(brokers) > 1:
            raise CorruptStore(f"{where}: of several brokers ({', '.join(sorted(brokers))}), which no broker writes")
        if not brokers:
            return None
        broker = brokers.pop()
        for queue, known in queues.items():
            name = queue_path(broker, queue)
            log, entries = (_segments(path, tables[kind], name) for kind in (COMMIT_LOG, CONSUME_QUEUE))
            for each in (log, entries):
                _must_be_contiguous(path, name, each)
            queues[queue] = replace(known, log=log, entries=entries)
        name = index_path(broker)
        index = tuple(each for each in _segments(path, tables[INDEX], name) if each.size)
        topics = {
            topic: number(path, f"topicId of {topic}", said.get("topicId"), _MOST_TOPICS)
            for topic, said in table(path, content, TOPICS).items()
        }
        catalog = Catalog(broker, topics, queues, index)
        for topic in sorted({queue.topic for queue in queues} - topics.keys()):
            catalog = catalog.numbered(topic)
        return catalog

    def text(self) -> bytes:
        now = int(time.time() * 1000)
        topics = {
            topic: {"topicId": each, "topic": topic, "status": 0, "reserveTime": -1, "updateTimestamp": now}
            for topic, each in self.topics.items()
        }
        queues: dict[str, dict[str, Any]] = {}
        for queue, archived in self.queues.items():
            said: dict[str, Any] = {
                "queue": {"brokerName": self.broker, "queueId": queue.queue_id, "topic": queue.topic},
                "minOffset": archived.first_entry,
                "maxOffset": archived.max_offset,
                "updateTimestamp": now,
            }
            if archived.indexed_from is not None:
                said[INDEXED_FROM] = archived.indexed_from
            if archived.last is not None:
                said[LAST_AT], said[LAST_STORED] = archived.last.physical_offset, max(0, archived.last.store_timestamp)
            queues.setdefault(queue.topic, {})[str(queue.queue_id)] = said
        content: dict[str, Any] = {
            TOPIC_NUMBER: max(self.topics.values(), default=-1),
            TOPICS: topics,
            QUEUES: queues,
        }
        content |= {name: {} for name in SEGMENTS.values()}
        for kind, path, segments in self._files():
            if segments:
                content[SEGMENTS[kind]][path] = {str(each.base): _as_json(path, kind, each, now) for each in segments}
        text = encode(content)[:-1]
        return b"%b%b%d}" % (text, _CRC, zlib.crc32(text))

    def _files(self) -> Iterator[tuple[str, str, Segments]]:
        """Yield kind, path and segments of each file."""
        for queue, archived in self.queues.items():
            path = queue_path(self.broker, queue)
            yield COMMIT_LOG, path, archived.log
            yield CONSUME_QUEUE, path, archived.entries
        yield INDEX, index_path(self.broker), self.index


def _as_json(path: str, kind: str, segment: Segment, now: int) -> dict[str, Any]:
    return {
        "path": path,
        "type": SEGMENT_TYPES[kind],
        "baseOffset": segment.base,
        "status": SEALED if segment.sealed else GROWING,
        "size": segment.size,
        "createTimestamp": now,
        "beginTimestamp": segment.begin,
        "endTimestamp": segment.end,
        "sealTimestamp": now if segment.sealed else 0,
    }


def _segments(path: Path, listed: dict[str, Any], name: str) -> Segments:
    """Return the segments in order, without empty ones; a lone empty one stays: it says where a queue begins."""

    def segment(base: str, said: Mapping[str, Any]) -> Segment:
        def of(key: str, maximum: int = LONG_MAX) -> int:
            return number(path, f"{key} of {name} at {base}", said.get(key), maximum)

        return Segment(
            of("baseOffset", _MOST_BYTES),
            of("size", _MOST_BYTES),
            of("beginTimestamp"),
            of("endTimestamp"),
            of("status") == SEALED,
        )

    segments = table(path, listed, name) if name in listed else {}
    found = sorted((segment(base, said) for base, said in segments.items()), key=lambda each: each.base)
    return tuple(each for each in found if each.size) or tuple(found[:1])


def _must_be_contiguous(path: Path, name: str, segments: Iterable[Segment]) -> None:
    for one, other in pairwise(segments):
        if one.stop != other.base:
            raise CorruptStore(
                f"{path}: {name}: one segment ends at {one.stop}, the next begins at {other.base}; restore the "
                "metadata from a copy"
            )
