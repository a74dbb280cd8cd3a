"""An embedded message log in RocketMQ's on-disk format: `MessageStore` and what goes in and out of it."""

from store.appender import AppendResult
from store.columns import COLUMNS, DEFAULT_COLUMNS
from store.config import StoreConfig
from store.errors import (
    ConfigError,
    CorruptRecord,
    CorruptSegment,
    CorruptStore,
    FilterError,
    FlushFailed,
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
from store.filters import TagFilter
from store.getting import GetResult, GetStatus
from store.kinds import UnsupportedWarning
from store.message import Message, StoredMessage
from store.message_store import MessageStore
from store.putting import PutResult
from store.query import Boundary
from store.retention import Cleaned

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
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
]
