"""Bodies that clients and brokers of RocketMQ send each other, declared once. What nobody here reads is not checked."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, field

from store.api.group_protocol import Subscription
from store.format.strict_json import Int, Long
from store.model.errors import BadFrame
from store.model.log_protocol import Queue
from store.remoting.command import Bytes, parse_json

MAX_BODY_BYTES = 4 << 20
T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class MessageQueue(Struct, rename="camel"):
    broker_name: str
    queue_id: Int
    topic: str


class SubscriptionData(Struct, rename="camel"):
    """What a consumer reads of a topic. sub_version: a later one counts instead of an earlier one."""

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
    """A client in a group that it consumes for."""

    group_name: Name
    consume_type: Any = None
    message_model: str | None = None
    consume_from_where: Any = None
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: Any = False


class ProducerData(Struct, rename="camel"):
    group_name: Name


class Heartbeat(Struct):
    """What a client says of itself."""

    client_id: Name = field(name="clientID")
    producers: list[ProducerData] | None = field(default=None, name="producerDataSet")
    consumers: list[ConsumerData] | None = field(default=None, name="consumerDataSet")

    @staticmethod
    def of(body: Bytes) -> Heartbeat:
        """Raises `BadFrame`."""
        return _parsed(body, Heartbeat)


class LockRequest(Struct):
    """The queues that a client of a group locks, or unlocks."""

    group: Name = field(name="consumerGroup")
    client_id: Name = field(name="clientId")
    message_queues: list[MessageQueue] | None = field(default=None, name="mqSet")

    @property
    def queues(self) -> dict[Queue, MessageQueue]:
        return {Queue(each.topic, each.queue_id): each for each in self.message_queues or ()}

    @staticmethod
    def of(body: Bytes) -> LockRequest:
        """Raises `BadFrame`."""
        return _parsed(body, LockRequest)


def _parsed(body: Bytes, kind: type[T]) -> T:
    """Parse leniently: some clients write numbers as texts."""
    if len(body) > MAX_BODY_BYTES:
        raise BadFrame(f"a {kind.__name__} of {len(body):,} bytes; at most {MAX_BODY_BYTES:,}")
    return parse_json(bytes(body), kind, strict=False)
