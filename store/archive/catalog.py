"""`Catalog`: the topics, queues and segments of an archive, in RocketMQ's metadata format (DefaultMetadataStore).

Readers ignore objects that the metadata do not name. Paths follow RocketMQ's tiered store (PosixFileSegment):

    <hash>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<hash><begin offset>      records, contiguous
    <hash>_<cluster>/<broker>/<topic>/<queue id>/CONSUME_QUEUE/<hash><begin offset>   entries, as in a consume queue
    <hash>_<cluster>/<broker>/rmq_sys_INDEX/0/INDEX/<hash><begin offset>              keys of messages of all queues
    config/tieredStoreMetadata.json                                                   the segments and their sizes

Records have the format of the commit log (`store.format.layout`), but the physical offset in a record and its entry is
the offset in the queue's own log. All offsets are bytes.
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

from store.disk.admin_files import number, table
from store.format.layout import CQ_ENTRY, MAX_QUEUES, SEGMENT_NAME_DIGITS, segment_name
from store.format.strict_json import decode_fastjson, encode
from store.model.errors import CorruptStore
from store.model.integers import LONG_MAX
from store.model.log_protocol import Fingerprint, Queue

HASH_DIGITS: Final = 8  # of the MD5 of the name after it: spreads adjacent names over an object store
COMMIT_LOG: Final = "COMMIT_LOG"
CONSUME_QUEUE: Final = "CONSUME_QUEUE"
INDEX: Final = "INDEX"
SEGMENT_TYPES: Final = {COMMIT_LOG: 0, CONSUME_QUEUE: 1, INDEX: 2}  # FileSegmentType
INDEX_TOPIC: Final = "rmq_sys_INDEX"  # the index is its queue 0
INDEX_SLOTS: Final = 1 << 17  # in indexes that we write; RocketMQ's tieredStoreIndexFileMaxHashSlotNum
METADATA: Final = "config/tieredStoreMetadata.json"
DEFAULT_CLUSTER: Final = "DefaultCluster"

TOPICS: Final = "topicMetadataTable"  # topic to number and name
QUEUES: Final = "queueMetadataTable"  # topic to queue id to offsets
# Fields of a queue that RocketMQ does not have:
INDEXED_FROM: Final = "indexedOffset"  # the index has all keys of the queue from this queue offset on
LAST_AT: Final = "lastLogOffset"  # of the last message in the store's commit log
LAST_STORED: Final = "lastStoreTimestamp"  # of the same message, ms
SEGMENTS: Final = {
    COMMIT_LOG: "commitLogFileSegmentTable",
    CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    INDEX: "indexFileSegmentTable",
}
TOPIC_NUMBER: Final = "topicSerialNumber"  # the highest one in use
NO_OFFSET: Final = -1  # of a queue without messages
NO_TIME: Final = (1 << 63) - 1  # of a segment without messages, ms
GROWING: Final = 0  # status of a segment to which more may be appended
SEALED: Final = 1
_NO_METADATA = (
    "Restore the file from a copy. Without a copy, begin a new archive: delete the line 'archive' in the store's "
    "config/store.conf, then archive to another URL"
)


def hashed(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:HASH_DIGITS]


def cluster_folder(cluster: str) -> str:
    return f"{hashed(cluster)}_{cluster}"


def is_cluster_folder(name: str) -> bool:
    digits, _, cluster = name.partition("_")
    return bool(cluster) and digits == hashed(cluster)


def is_folder(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def queue_path(broker: str, queue: Queue) -> str:
    """Return a queue's path below the cluster's folder, its key in the metadata."""
    return f"{broker}/{queue.topic}/{queue.queue_id}"


def index_path(broker: str) -> str:
    return queue_path(broker, Queue(INDEX_TOPIC, 0))


def segment_path(queue: str, kind: str, base: int) -> str:
    """Return a segment's path below the cluster's folder. queue: a `queue_path`. kind: a key of SEGMENT_TYPES."""
    return f"{queue}/{kind}/{hashed(str(base))}{segment_name(base)}"


assert len(segment_path("", COMMIT_LOG, 0)) == len(f"/{COMMIT_LOG}/") + HASH_DIGITS + SEGMENT_NAME_DIGITS


_CRC = b',"metadata.crc32":'  # last field: CRC of all bytes before it. No topic name has a dot
_MOST_BYTES = 1 << 60  # the offset after it must fit int64
_MOST_TOPICS = 1 << 30  # half of the index's int32 range, to leave numbers for new topics


@dataclass(frozen=True)
class Segment:
    """One object of a file, with its bytes [base, base + size).

    begin, end: earliest and latest store time, ms. sealed: nothing more is appended.
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
    """The archived part of one queue. Its log and its entries are each contiguous.

    next_offset: the next queue offset to archive if there are no entries.
    indexed_from: the index has the keys of all messages from this queue offset on.
    last: fingerprint of the last archived message, with its offset in the store's log.

    indexed_from and last are None if a broker wrote the archive.
    """

    log: Segments = ()
    entries: Segments = ()
    next_offset: int = 0
    indexed_from: int | None = None
    last: Fingerprint | None = None

    @property
    def first_entry(self) -> int:
        """Queue offset of the first entry. Its record may be deleted."""
        return self.entries[0].base // CQ_ENTRY.itemsize if self.entries else self.next_offset

    @property
    def max_offset(self) -> int:
        return self.entries[-1].stop // CQ_ENTRY.itemsize if self.entries else self.next_offset

    @property
    def is_forgotten(self) -> bool:
        return not self.entries and self.indexed_from is None and bool(self.log) and self.log[-1].base > 0

    def written(self, log: Segment, entries: Segment, last: Fingerprint) -> ArchivedQueue:
        """Return a copy with these segments appended. They replace segments of the same base."""

        def behind(segments: Segments, added: Segment) -> Segments:
            return (*(each for each in segments if each.base != added.base), added)

        return replace(self, log=behind(self.log, log), entries=behind(self.entries, entries), last=last)


@dataclass(frozen=True)
class Catalog:
    """The contents of an archive.

    topics: the number of each topic. index: segments of the key index. Each can be searched alone.
    """

    broker: str
    topics: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[Queue, ArchivedQueue] = field(default_factory=dict)
    index: Segments = ()

    def of_topics(self) -> dict[str, tuple[Queue, ...]]:
        """Return the topics, sorted, each with all queues up to its highest archived one."""
        counts: dict[str, int] = dict.fromkeys(sorted(self.topics), 0)
        for queue in (queue for queue, archived in self.queues.items() if not archived.is_forgotten):
            counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
        return {topic: tuple(Queue(topic, each) for each in range(count)) for topic, count in counts.items() if count}

    def queue(self, queue: Queue) -> ArchivedQueue | None:
        """Return the archived part of a queue, None if the queue is not in `of_topics`."""
        found = self.queues.get(queue)
        if found is None and queue in self.of_topics().get(queue.topic, ()):
            return ArchivedQueue()
        return found

    def having(self, queue: Queue, archived: ArchivedQueue) -> Catalog:
        numbered = self if queue.topic in self.topics else self.numbered(queue.topic)
        return replace(numbered, queues={**self.queues, queue: archived})

    def without(self, queue: Queue) -> Catalog:
        """Return a copy without a queue's messages.

        The queue's log continues after the deleted records, so that stale metadata and keys never name new ones.
        """
        queues, archived = dict(self.queues), self.queues[queue]
        if archived.log:
            queues[queue] = ArchivedQueue(log=(Segment(archived.log[-1].stop, 0),))
        else:
            del queues[queue]
        return replace(self, queues=queues)

    def numbered(self, topic: str) -> Catalog:
        """Return a copy with a new number for a topic, which invalidates its keys in the index."""
        return replace(self, topics={**self.topics, topic: max(self.topics.values(), default=-1) + 1})

    @staticmethod
    def parse(where: str, data: bytes) -> Catalog | None:
        """Parse the metadata. Return None if they name no broker, and so no queue and no segment.

        where: the path for error messages. Raises `CorruptStore`.
        """
        path = Path(where)
        text, found, crc = data.rpartition(_CRC)  # absent in metadata by RocketMQ and older versions
        if found and crc != b"%d}" % zlib.crc32(text):
            raise CorruptStore(f"{where}: the metadata is damaged: its checksum is wrong. {_NO_METADATA}")
        try:
            content = decode_fastjson(data, dict[str, Any])
        except ValueError as error:
            raise CorruptStore(
                f"{where}: this file is not the metadata of an archive ({error}). {_NO_METADATA}"
            ) from error
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
                raise CorruptStore(
                    f"{where}: the metadata is damaged: {name!r} is no name of a broker or of a topic. {_NO_METADATA}"
                )
        if len(brokers) > 1:
            raise CorruptStore(
                f"{where}: the metadata is damaged: it names several brokers ({', '.join(sorted(brokers))}). "
                f"{_NO_METADATA}"
            )
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
    """Return the segments in order, without empty ones.

    If the only segment is empty, it is kept, because it has the offset at which the queue's log continues.
    """

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
                f"{path}: the metadata is damaged: in {name}, one segment ends at {one.stop}, but the next begins at "
                f"{other.base}. {_NO_METADATA}"
            )
