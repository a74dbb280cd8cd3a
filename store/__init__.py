"""An embedded message log in RocketMQ's on-disk format: `MessageStore` and what goes in and out of it."""

from store.any_log import Boundary
from store.append import Append
from store.errors import (
    ConfigError,
    CorruptRecord,
    CorruptSegment,
    CorruptStore,
    FilterError,
    FlushFailed,
    GroupConflict,
    InvalidArgument,
    InvalidColumns,
    InvalidGroup,
    InvalidMessageId,
    InvalidTopic,
    MessageRefused,
    MessageTooLarge,
    NotAStore,
    OffsetLost,
    OffsetNotYet,
    OffsetOutOfRange,
    PutStatus,
    ReadOnlyStore,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreFull,
    StoreLocked,
    StoreNotOpen,
    StoreReplaced,
    StoreUnavailable,
    UnknownQueue,
    UnknownTopic,
    UnsupportedStore,
)
from store.files.config import StoreConfig
from store.files.kinds import UnsupportedWarning
from store.format.columns import COLUMNS, DEFAULT_COLUMNS
from store.format.message import Message
from store.format.stored_message import StoredMessage
from store.message_store import MessageStore
from store.publish.appender import AppendResult
from store.publish.putting import PutResult
from store.read.filters import TagFilter, message_filter
from store.read.getting import GetResult, GetStatus
from store.upkeep.retention import Cleaned

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "Append",
    "AppendResult",
    "Boundary",
    "Cleaned",
    "ConfigError",
    "CorruptRecord",
    "CorruptSegment",
    "CorruptStore",
    "FilterError",
    "FlushFailed",
    "GetResult",
    "GetStatus",
    "GroupConflict",
    "InvalidArgument",
    "InvalidColumns",
    "InvalidGroup",
    "InvalidMessageId",
    "InvalidTopic",
    "Message",
    "MessageRefused",
    "MessageStore",
    "MessageTooLarge",
    "NotAStore",
    "OffsetLost",
    "OffsetNotYet",
    "OffsetOutOfRange",
    "PutResult",
    "PutStatus",
    "ReadOnlyStore",
    "StoreBusy",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreForked",
    "StoreFull",
    "StoreLocked",
    "StoreNotOpen",
    "StoreReplaced",
    "StoreUnavailable",
    "StoredMessage",
    "TagFilter",
    "UnknownQueue",
    "UnknownTopic",
    "UnsupportedStore",
    "UnsupportedWarning",
    "message_filter",
]
