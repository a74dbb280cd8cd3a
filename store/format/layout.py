"""The layout of all files on disk.

All integers are big-endian, as in Java. Sources: RocketMQ's `MessageExtEncoder` and `CommitLog` (records),
`ConsumeQueue` (entries), `DefaultMessageStore` (directory).
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

# --- names in a store's directory ---------------------------------------------------------------------

COMMIT_LOG_DIR: Final = "commitlog"
CONSUME_QUEUE_DIR: Final = "consumequeue"
CONFIG_DIR: Final = "config"
TOPICS_FILE: Final = "config/topics.json"
CONSUMER_OFFSETS_FILE: Final = "config/consumerOffset.json"
GROUPS_FILE: Final = "config/subscriptionGroup.json"
DELAY_OFFSETS_FILE: Final = "config/delayOffset.json"
CONF_FILE: Final = "config/store.conf"
LOCK_FILE: Final = "lock"
ABORT_FILE: Final = "abort"
CHECKPOINT_FILE: Final = "checkpoint"
PUBLISHED_END_FILE: Final = "watermark"
QUEUE_ENDS_FILE: Final = "queueends"  # ours: JSON; its last field is the CRC of the bytes before
CONSUMERS_DIR: Final = "consumers"  # ours: a folder for each group
CLIENTS_DIR: Final = "clients"  # ours: see `store.disk.figures` and `store.broker.members`
SERVED_FILE: Final = "served"  # in CLIENTS_DIR
PREALLOCATE_FILE: Final = "preallocate.tmp"

# Names that only RocketMQ creates, see `store.disk.unsupported`.
DLEDGER_PREFIX: Final = "dledger-"
ROCKSDB_MARK: Final = "CURRENT"  # in every RocksDB folder
ROCKSDB_CONSUME_QUEUE_DIR: Final = "consumequeue_rocksdb"
BATCH_CONSUME_QUEUE_DIR: Final = "batchconsumequeue"
EPOCH_FILE: Final = "epochFileCheckpoint"
BROKER_IDENTITY_FILE: Final = "brokerIdentity"
TOPIC_MAPPINGS_FILE: Final = "config/topicQueueMapping.json"
TOPIC_QUEUE_TYPE: Final = "queue.type"  # a topic's attribute
BATCH_QUEUE_TYPE: Final = "BatchCQ"
TOPIC_CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION_POLICY: Final = "COMPACTION"

SEGMENT_NAME_DIGITS: Final = 20  # logical offset of the segment's byte 0


def segment_name(start: int) -> str:
    return f"{start:0{SEGMENT_NAME_DIGITS}d}"


# --- the commit log record ----------------------------------------------------------------------------

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)  # topic length: one byte
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)  # topic length: two bytes
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)  # the rest of the segment is unused

IPV4_BYTES: Final = 4
IPV6_BYTES: Final = 16
IPV6_EXTRA: Final = IPV6_BYTES - IPV4_BYTES

SYS_COMPRESSED: Final = 0x1
SYS_TRANSACTION_MASK: Final = 0xC
SYS_TRANSACTION_PREPARED: Final = 0x4
SYS_TRANSACTION_COMMIT: Final = 0x8
SYS_TRANSACTION_ROLLBACK: Final = 0xC
SYS_INNER_BATCH: Final = 0x80  # topics whose queues are in batchconsumequeue/
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_COMPRESSION_MASK: Final = 0x700
SYS_COMPRESSION: Final = {
    0x000: "zlib",
    0x100: "lz4",
    0x200: "zstd",
    0x300: "zlib",
}  # 0: from older clients, which write no type


def _record_header(born_ip: int, store_ip: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("total_size", ">i4"),
            ("magic", ">i4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_timestamp", ">i8"),
            ("born_ip", "u1", (born_ip,)),
            ("born_port", ">i4"),
            ("store_timestamp", ">i8"),
            ("store_ip", "u1", (store_ip,)),
            ("store_port", ">i4"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_length", ">i4"),
        ]
    )


# Indexed by [born host is IPv6][store host is IPv6]. Body, topic length, topic, properties length, properties follow.
RECORD_HEADERS: Final = tuple(
    tuple(_record_header(born, store) for store in (IPV4_BYTES, IPV6_BYTES)) for born in (IPV4_BYTES, IPV6_BYTES)
)
RECORD_HEADER: Final = RECORD_HEADERS[0][0]
TOPIC_LENGTH_BYTES: Final = {MAGIC_V1: 1, MAGIC_V2: 2}
PROPERTIES_LENGTH_BYTES: Final = 2

MIN_RECORD_BYTES: Final = RECORD_HEADER.itemsize + 1 + PROPERTIES_LENGTH_BYTES
BODY_CRC_MASK: Final = 0x7FFFFFFF

# After a segment's last record; length: to the segment's end.
BLANK: Final = np.dtype([("length", ">i4"), ("magic", ">i4")])

# A record goes to the next segment unless the record and a blank fit.
END_FILE_MIN_BLANK_BYTES: Final = BLANK.itemsize

MAX_PROPERTIES_BYTES: Final = 32_767
MAX_QUEUES: Final = 1 << 16  # RocketMQ maps a file of each, and Linux limits mappings to this number
MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
TOPIC_CHARACTERS: Final = r"[%|a-zA-Z0-9_-]+"
# RocketMQ's proxy rejects "|" and control characters, and tag expressions strip outer blanks.
NO_TAG = r"[|\x00-\x1f\x7f-\x9f]|^ | $"
MAX_GROUP_CHARACTERS: Final = 120
GROUP_SEPARATOR: Final = "@"  # between topic and group
RETRY_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_TOPIC_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)  # TopicValidator; a broker also names some after itself and its cluster

NAME_VALUE_SEPARATOR: Final = 1
PROPERTY_SEPARATOR: Final = 2
SECTOR_BYTES: Final = 512  # written atomically by a device; a lost one reads as zeros
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_KEYS: Final = "KEYS"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"  # of a waiting message
PROPERTY_REAL_QUEUE: Final = "REAL_QID"
PROPERTY_DELIVER_AT: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT: Final = "TIMER_OUT_MS"  # slot of the timer wheel, ms
PROPERTY_TRANSACTION: Final = "TRAN_MSG"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_REPLY_TO: Final = "REPLY_TO_CLIENT"
PROPERTY_TTL: Final = "TTL"  # timeout for the reply, ms
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY_MESSAGE_TYPE: Final = "reply"
REPLY_TOPIC_SUFFIX: Final = "REPLY_TOPIC"  # after the cluster's name
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"  # the original topic of a retried message
PROPERTY_ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"  # its offsetMsgId there
PROPERTY_BODY_ERROR: Final = "BODY_ERROR"  # ours: why a dead letter could not be decompressed
PROPERTY_LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"  # further queues of a record, then its offsets in these
PROPERTY_LIGHT_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_CRC: Final = "__CRC32#"  # the last property: covers the record before it
PROPERTY_CRC_DIGITS: Final = 10  # decimal, the last digit first
LIGHT_SEPARATOR: Final = ","
LIGHT_PREFIX: Final = "%LMQ%"  # a light queue is queue 0 of a topic of its own
KEY_SEPARATOR: Final = " "


PROPERTY_CRC_NAME: Final = PROPERTY_CRC.encode() + bytes([NAME_VALUE_SEPARATOR])
PROPERTY_CRC_END: Final = bytes([PROPERTY_SEPARATOR])
PROPERTY_CRC_BYTES: Final = len(PROPERTY_CRC_NAME) + PROPERTY_CRC_DIGITS + len(PROPERTY_CRC_END)


def field_offset(dtype: np.dtype[np.void], name: str) -> int:
    fields = dtype.fields
    assert fields is not None
    return int(fields[name][1])


def struct_of(dtype: np.dtype[np.void]) -> struct.Struct:
    """Return a struct, which is many times faster for single values."""
    codes = (_STRUCT_CODES.get(dtype[name].str, f"{dtype[name].itemsize}s") for name in dtype.names or ())
    return struct.Struct(">" + "".join(codes))


_STRUCT_CODES: Final = {">i4": "i", ">i8": "q"}  # other types become bytes


# --- ConsumeQueue --------------------------------------------------------------------------------------

CQ_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
CQ_EXTENSION_BELOW: Final = -(1 << 31) - 1  # codes up to here, below any hash, are addresses in consumequeue_ext
CQ_PRE_BLANK_SIZE: Final = 0x7FFFFFFF  # of the entries before the first one of a queue that does not begin at 0

# Here the entry's tags code is the delivery time (ms): store time plus the delay of the level.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
SCHEDULE_DELAYS_MS: Final = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *(60 * minute for minute in (*range(1, 11), 20, 30)), 3600, 7200)
)  # messageDelayLevel

# Transactions: half messages, and op messages that mark them as ended (TransactionalMessageServiceImpl).
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
UNDECIDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages that no producer decided in time
TRANSACTIONS_GROUP: Final = "CID_RMQ_SYS_TRANS"  # its offsets are the progress in half and op messages
OP_TAG: Final = "d"
OP_SEPARATOR: Final = ","  # after each queue offset in an op message's body

# Messages wait here until the time in their properties (TimerMessageStore).
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_PRECISION_MS: Final = 1000  # timerPrecisionMs
TIMER_MAX_DELAY_MS: Final = 3 * 24 * 3600 * 1000  # timerMaxDelaySec

# The broker's files for that topic: the timer wheel, a log to rebuild it from, and a checkpoint. Units of one slot form
# a chain, newest first.
TIMER_WHEEL_FILE: Final = "timerwheel"
TIMER_LOG_DIR: Final = "timerlog"
TIMER_CHECK_FILE: Final = "config/timercheck"
TIMER_LOG_FILE_BYTES: Final = 100 << 20  # mappedFileSizeTimerLog
TIMER_ROLL_WINDOW_MS: Final = 2 * 24 * 3600 * 1000  # timerRollWindowSlot: a message that waits longer is put again
TIMER_UNIT: Final = np.dtype(
    [
        ("unit_size", ">i4"),
        ("previous", ">i8"),  # position of the slot's next older unit, -1 for none
        ("magic", ">i4"),
        ("written", ">i8"),  # ms
        ("delay", ">i4"),  # ms from `written` to the slot
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("topic_hash", ">i4"),  # for statistics
        ("reserved", ">i8"),
    ]
)
TIMER_BLANK: Final = np.dtype([("length", ">i4"), ("previous", ">i8"), ("magic", ">i4")])  # after a file's last unit
TIMER_MAGIC: Final = 1
TIMER_MAGIC_ROLL: Final = 2
TIMER_MAGIC_BLANK: Final = (0xBBCCDDEE ^ 1880681586 + 8) - (1 << 32)
TIMER_CHECK: Final = np.dtype(
    [
        ("read_time", ">i8"),  # ms; earlier slots are delivered
        ("log_flushed", ">i8"),
        ("queue_offset", ">i8"),  # earlier messages are in the log
        ("master_queue_offset", ">i8"),
        ("state_version", ">i8"),
        ("timestamp", ">i8"),
        ("counter", ">i8"),
    ]
)
TIMER_CHECK_FILE_BYTES: Final = 4096


# --- index (IndexHeader, IndexFile) ----------------------------------------------------------------------
# A file is one header, the slots of a hash table, then room for entries; entries of one slot form a chain,
# newest first. Its name is the local time of its creation.
INDEX_DIR: Final = "index"
DELETED_DIR: Final = "deleted"  # ours: the queues of a topic during its deletion
REPAIR_DIR: Final = "repair"  # ours: the index while it is rebuilt
INDEX_NAME_DIGITS: Final = 17  # yyyyMMddHHmmssSSS
INDEX_HEADER: Final = np.dtype(
    [
        ("begin_timestamp", ">i8"),  # ms, store time of the first entry
        ("end_timestamp", ">i8"),  # ms, of the last entry
        ("begin_offset", ">i8"),  # commit log offset of the first entry
        ("end_offset", ">i8"),  # of the last entry
        ("slots_used", ">i4"),
        ("next_entry", ">i4"),
    ]
)
INDEX_SLOT: Final = np.dtype(">i4")  # number of the newest entry
INDEX_ENTRY: Final = np.dtype(
    [
        ("key_hash", ">i4"),
        ("physical_offset", ">i8"),
        ("seconds", ">i4"),  # since the header's begin_timestamp
        ("previous", ">i4"),  # number of the next older entry of the same slot
    ]
)
INDEX_NO_ENTRY: Final = 0  # so entry 0 exists but is never used
INDEX_KEY_SEPARATOR: Final = "#"  # between topic and key
INDEX_TAG_PREFIX: Final = "T#"  # RocketMQ 5.4 and later index a tag as a key with this prefix

# --- index of an archive (the tiered store's uploaded IndexStoreFile) -------------------------------------
# A file is one header, the slots of a hash table, then the items, grouped by slot, newest first. The position in the
# first slot gives the number of slots, which is not stored: the items begin there, even if that slot has none.

ARCHIVE_INDEX_HEADER: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("begin_timestamp", ">i8"),  # ms; items count seconds from it and may be older
        ("end_timestamp", ">i8"),  # ms, store time of the newest item
        ("slots_used", ">i4"),
        ("items", ">i4"),
    ]
)
ARCHIVE_INDEX_MAGIC: Final = (0xCCDDEEFF ^ 1880681586 + 8) - (1 << 32)
ARCHIVE_INDEX_SLOT: Final = np.dtype([("position", ">i4"), ("length", ">i4")])  # of the slot's items, bytes
ARCHIVE_INDEX_ITEM: Final = np.dtype(
    [
        ("key_hash", ">i4"),
        ("topic_id", ">i4"),  # number in the archive
        ("queue_id", ">i4"),
        ("physical_offset", ">i8"),  # of the record in its queue's own log
        ("size", ">i4"),
        ("seconds", ">i4"),  # since the header's begin_timestamp
    ]
)

# --- checkpoint (StoreCheckpoint) ------------------------------------------------------------------------

CHECKPOINT: Final = np.dtype(
    [
        ("log_timestamp", ">i8"),  # ms, store time of the last synced record
        ("queues_timestamp", ">i8"),  # ms, of its queue entry
        ("index_timestamp", ">i8"),  # ms, of the last full index file
    ]
)
CHECKPOINT_FILE_BYTES: Final = 4096
CHECKPOINT_MARGIN_MS: Final = 3000  # recovery begins so much before the checkpoint

# --- published end (ours; RocketMQ ignores the file) --------------------------------------------------------

PUBLISHED_END_MAGIC: Final = b"PYMQMARK"
PUBLISHED_END_VERSION: Final = 2  # version 1 had no checks
PUBLISHED_END_NUMBER_BITS: Final = 56  # of a ">u8"; the highest byte is a checksum, written by the same store
PUBLISHED_END: Final = np.dtype(
    [
        ("magic", "S8"),  # detects another file of this name
        ("version", ">i8"),
        ("boot_id", "S40"),  # another boot: the machine restarted and may have lost pages
        ("flushed_offset", ">u8"),  # synced up to here
        ("store_timestamp", ">u8"),  # of the newest announcement
        ("announced_end", ">u8"),  # > confirm_offset: an append is running, or its writer died
        ("confirm_offset", ">u8"),  # records and their queue entries are complete up to here
        ("failed_from", ">u8"),  # the flushed offset when a flush failed; 0 without its checksum: none failed
        ("failure", "S1024"),  # that error, UTF-8
        ("times_from", ">u8"),  # store times ascend from here on; 0 without its checksum: unknown
        ("keys_from", ">u8"),  # all keys are indexed from here on; 0 without its checksum: unknown
        ("deletions", ">u8"),  # twice the number of topic deletions; odd: one is running, or its process died
        ("unused", ">u8"),  # an earlier version wrote it
        ("has_lost", ">u8"),  # 1: a queue lost a file; the next recovery rebuilds all
    ]
)
PUBLISHED_END_FILE_BYTES: Final = 4096  # a page, allocated at creation, so that writes never fail on a full disk

# --- offsets of a consumer (ours) --------------------------------------------------------------------------

DONE_OFFSET: Final = np.dtype(">i8")  # the next queue offset to read, by slot; 0: none

# --- relations ------------------------------------------------------------------------------------------

assert RECORD_HEADER.itemsize == 88
assert all(struct_of(header).size == header.itemsize for row in RECORD_HEADERS for header in row)
assert RECORD_HEADERS[1][1].itemsize == RECORD_HEADER.itemsize + 2 * IPV6_EXTRA
assert MIN_RECORD_BYTES == 91
assert all(
    field_offset(header, name) == field_offset(RECORD_HEADER, name)
    for row in RECORD_HEADERS
    for header in row
    for name in (RECORD_HEADER.names or ())[:9]
)
assert PROPERTY_CRC_BYTES == 20
assert CQ_ENTRY.itemsize == 20
assert INDEX_HEADER.itemsize == 40
assert INDEX_ENTRY.itemsize == 20
assert (ARCHIVE_INDEX_HEADER.itemsize, ARCHIVE_INDEX_SLOT.itemsize, ARCHIVE_INDEX_ITEM.itemsize) == (28, 8, 28)
assert -(1 << 31) <= ARCHIVE_INDEX_MAGIC < 0
assert len(SCHEDULE_DELAYS_MS) == 18
assert SCHEDULE_TOPIC in SYSTEM_TOPICS
assert {HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC} <= SYSTEM_TOPICS
assert TIMER_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert TIMER_UNIT.itemsize == 52
assert TIMER_BLANK.itemsize == 16
assert TIMER_CHECK.itemsize == 56
assert -(1 << 31) <= TIMER_MAGIC_BLANK < 0
assert PUBLISHED_END.itemsize <= PUBLISHED_END_FILE_BYTES
assert field_offset(PUBLISHED_END, "confirm_offset") % 8 == 0, "published by one aligned write"
