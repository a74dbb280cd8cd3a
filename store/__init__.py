"""An embedded message log in RocketMQ's on-disk format: `MessageStore`, its types, producers and consumers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from store.api.group_protocol import ConsumeFromWhere, MessageModel, Subscription
from store.api.message_store import MessageStore
from store.api.writer import Append
from store.append.placing import AppendResult
from store.append.putting import PutResult
from store.archive.archiving import Archived
from store.disk.config import StoreConfig
from store.disk.unsupported import UnsupportedWarning
from store.format.columns import COLUMNS, DEFAULT_COLUMNS
from store.format.message import Message
from store.format.stored_message import StoredMessage
from store.model.errors import (
    ArchiveError,
    ArchiveOfAnother,
    BadFrame,
    BrokerMissing,
    BufferFull,
    ConfigError,
    CorruptRecord,
    CorruptSegment,
    CorruptStore,
    FileMissing,
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
    NoArchive,
    NoReply,
    NotAStore,
    ObjectsUnavailable,
    OffsetLost,
    OffsetNotYet,
    OffsetOutOfRange,
    PutStatus,
    QueuesPassedOver,
    ReadOnlyStore,
    RemotingError,
    RequestRefused,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreFull,
    StoreLocked,
    StoreNotOpen,
    StoreReplaced,
    StoreUnavailable,
    TransactionEnded,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
    Unreachable,
    UnreadableBody,
    UnsupportedStore,
    Untrusted,
)
from store.model.log_protocol import Boundary
from store.read.filters import TagFilter, message_filter
from store.read.getting import GetResult, GetStatus
from store.upkeep.retention import Cleaned

if TYPE_CHECKING:
    from store.api.message_store import delete_topic
    from store.broker.transactions import Outcome
    from store.client.consumer import Consumer
    from store.client.consuming import ConsumerConfig, ReconsumeLater
    from store.client.producer import Producer
    from store.client.received_messages import ReceivedMessage
    from store.client.replies import reply
    from store.client.transaction_producer import TransactionProducer, TransactionResult

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "Append",
    "AppendResult",
    "ArchiveError",
    "ArchiveOfAnother",
    "Archived",
    "BadFrame",
    "Boundary",
    "BrokerMissing",
    "BufferFull",
    "Cleaned",
    "ConfigError",
    "ConsumeFromWhere",
    "Consumer",
    "ConsumerConfig",
    "CorruptRecord",
    "CorruptSegment",
    "CorruptStore",
    "FileMissing",
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
    "MessageModel",
    "MessageRefused",
    "MessageStore",
    "MessageTooLarge",
    "NoArchive",
    "NoReply",
    "NotAStore",
    "ObjectsUnavailable",
    "OffsetLost",
    "OffsetNotYet",
    "OffsetOutOfRange",
    "Outcome",
    "Producer",
    "PutResult",
    "PutStatus",
    "QueuesPassedOver",
    "ReadOnlyStore",
    "ReceivedMessage",
    "ReconsumeLater",
    "RemotingError",
    "RequestRefused",
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
    "Subscription",
    "TagFilter",
    "TransactionEnded",
    "TransactionProducer",
    "TransactionResult",
    "UnknownGroup",
    "UnknownQueue",
    "UnknownTopic",
    "Unreachable",
    "UnreadableBody",
    "UnsupportedStore",
    "UnsupportedWarning",
    "Untrusted",
    "delete_topic",
    "message_filter",
    "reply",
]

# Imported on first use.
_ABOVE = {
    "Consumer": "store.client.consumer",
    "ConsumerConfig": "store.client.consuming",
    "Outcome": "store.broker.transactions",
    "Producer": "store.client.producer",
    "ReceivedMessage": "store.client.received_messages",
    "ReconsumeLater": "store.client.consuming",
    "TransactionProducer": "store.client.transaction_producer",
    "TransactionResult": "store.client.transaction_producer",
    "delete_topic": "store.api.message_store",
    "reply": "store.client.replies",
}


def __getattr__(name: str) -> Any:
    if name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ABOVE[name]), name)
