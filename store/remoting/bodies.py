"""Bodies that RocketMQ's clients and brokers exchange: JSON, and batches of messages.

A batch: int size | int 0 | int 0 | int flag | int n, body | short n, properties; repeated. Unused JSON fields are not
checked.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta, Struct, field

from store.api.group_protocol import Subscription
from store.format.arrays import constant, lengths, pc
from store.format.records import rows_as_binary
from store.format.strict_json import Int, Long
from store.model.errors import BadFrame, MessageRefused, PutStatus
from store.model.log_protocol import Queue
from store.remoting.command import Bytes, parse_json

MAX_BEAT_BYTES = 256 << 10  # of JSON, which takes sixteen times as much memory after parsing
MAX_LOCKS_BYTES = 1 << 20
T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class MessageQueue(Struct, rename="camel"):
    broker_name: str
    queue_id: Int
    topic: str


class SubscriptionData(Struct, rename="camel"):
    """A subscription to a topic. Of several, the one with the highest sub_version counts."""

    topic: Name
    sub_string: str | None = None
    expression_type: str | None = None
    tags_set: Any = ()
    code_set: Any = ()
    sub_version: Long | None = 0
    class_filter_mode: Any = False

    @property
    def subscription(self) -> Subscription:
        return Subscription(self.sub_string or "*", self.expression_type or "TAG")


class ConsumerData(Struct, rename="camel"):
    group_name: Name
    consume_type: Any = None
    message_model: str | None = None
    consume_from_where: Any = None
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: Any = False


class ProducerData(Struct, rename="camel"):
    group_name: Name


class Heartbeat(Struct):
    """The body of HEART_BEAT."""

    client_id: Name = field(name="clientID")
    producers: list[ProducerData] | None = field(default=None, name="producerDataSet")
    consumers: list[ConsumerData] | None = field(default=None, name="consumerDataSet")

    @staticmethod
    def of(body: Bytes) -> Heartbeat:
        """Parse a body. Raises `BadFrame`."""
        return _parsed(body, Heartbeat, MAX_BEAT_BYTES)


class LockRequest(Struct):
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    group: Name = field(name="consumerGroup")
    client_id: Name = field(name="clientId")
    message_queues: list[MessageQueue] | None = field(default=None, name="mqSet")

    @property
    def queues(self) -> dict[Queue, MessageQueue]:
        return {Queue(each.topic, each.queue_id): each for each in self.message_queues or ()}

    @staticmethod
    def of(body: Bytes) -> LockRequest:
        """Parse a body. Raises `BadFrame`."""
        return _parsed(body, LockRequest, MAX_LOCKS_BYTES)


def _parsed(body: Bytes, kind: type[T], most: int) -> T:
    if len(body) > most:
        raise BadFrame(
            f"{kind.__name__}: the request has {len(body):,} bytes, this server accepts {most:,}. Use fewer topics"
        )
    return parse_json(bytes(body), kind, strict=False)  # some clients write numbers as texts


_HEAD = struct.Struct(">iiiii")  # up to the body's length
_PROPERTIES = struct.Struct(">h")
_HEADS = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_length", ">i4")])
assert _HEADS.itemsize == _HEAD.size
MIN_BATCHED_BYTES: Final = _HEAD.size + _PROPERTIES.size


class Batched(NamedTuple):
    """One message of a batch. properties: encoded, as in a record."""

    flag: int
    body: bytes
    properties: bytes


def decode_batch(data: bytes, most: int) -> list[Batched]:
    """Return the messages of a batch. Raises `BadFrame`, and `MessageRefused` for more than `most` messages."""
    found: list[Batched] = []
    at = 0
    while at < len(data):
        if len(found) == most:
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL, f"a batch of more than {most:,} messages of this kind: send less at once"
            )
        if len(data) - at < MIN_BATCHED_BYTES:
            raise BadFrame(f"the batch is damaged: {len(data) - at} bytes are left after message {len(found)}")
        size, _, _, flag, length = _HEAD.unpack_from(data, at)
        body = at + _HEAD.size
        properties = body + length + _PROPERTIES.size
        if length < 0 or properties > len(data):
            raise BadFrame(f"the batch is damaged: message {len(found)} has a body of {length} bytes")
        (width,) = _PROPERTIES.unpack_from(data, body + length)
        end = properties + width
        if width < 0 or end > len(data) or end - at != size:
            raise BadFrame(
                f"the batch is damaged: message {len(found)} has {size} bytes, of them {width} of properties"
            )
        found.append(Batched(flag, data[body : body + length], data[properties:end]))
        at = end
    return found


def batch_entries(bodies: pa.BinaryArray, properties: pa.BinaryArray, flags: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Encode messages for a batch, which is a concatenation of them.

    properties: encoded. flags: shape (n,).
    """
    heads = np.zeros(len(bodies), _HEADS)
    heads["flag"], heads["body_length"] = flags, lengths(bodies)
    widths = lengths(properties)
    heads["size"] = _HEADS.itemsize + heads["body_length"] + _PROPERTIES.size + widths
    behind = np.ascontiguousarray(widths.astype(">i2").view(np.uint8).reshape(-1, _PROPERTIES.size))
    rows = heads.view(np.uint8).reshape(-1, _HEADS.itemsize)
    return pc.binary_join_element_wise(rows_as_binary(rows), bodies, rows_as_binary(behind), properties, constant(b""))
