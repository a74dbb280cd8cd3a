"""What an archive is made of: the paths, and the names in the metadata, of RocketMQ's tiered store (PosixFileSegment).

    <hash>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<hash><begin offset>      records, contiguous
    <hash>_<cluster>/<broker>/<topic>/<queue id>/CONSUME_QUEUE/<hash><begin offset>   entries, as in a consume queue
    <hash>_<cluster>/<broker>/rmq_sys_INDEX/0/INDEX/<hash><begin offset>              keys of messages of all queues
    config/tieredStoreMetadata.json                                                   which of them count, and how far

A record is the one of the commit log (`store.format.layout`), but for its physical offset, which is the one in its
queue's own log; an entry holds that one, too. All offsets are bytes.
"""

from __future__ import annotations

import hashlib
from typing import Final

from store.format.layout import SEGMENT_NAME_DIGITS, segment_name
from store.model.log_protocol import Queue

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
    """The digits that stand before a name."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:HASH_DIGITS]


def cluster_folder(cluster: str) -> str:
    return f"{hashed(cluster)}_{cluster}"


def is_cluster_folder(name: str) -> bool:
    digits, _, cluster = name.partition("_")
    return bool(cluster) and digits == hashed(cluster)


def is_folder(name: str) -> bool:
    """Whether a topic, or a broker, of this name has a folder of its own."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def queue_path(broker: str, queue: Queue) -> str:
    """As the metadata has it: below the cluster's folder."""
    return f"{broker}/{queue.topic}/{queue.queue_id}"


def index_path(broker: str) -> str:
    """Where the index stands: the path of a queue."""
    return queue_path(broker, Queue(INDEX_TOPIC, 0))


def segment_path(queue: str, kind: str, base: int) -> str:
    """Below the cluster's folder. queue: its `queue_path`. kind: of SEGMENT_TYPES."""
    return f"{queue}/{kind}/{hashed(str(base))}{segment_name(base)}"


assert len(segment_path("", COMMIT_LOG, 0)) == len(f"/{COMMIT_LOG}/") + HASH_DIGITS + SEGMENT_NAME_DIGITS
