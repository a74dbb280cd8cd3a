"""`ConsumerConfig`: how a consumer consumes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from store.api.group_protocol import ConsumeFromWhere, MessageModel
from store.model.integers import integer, one_of, span
from store.model.log_protocol import BATCH_BYTES

_MIB = 1 << 20
_MAX_RECONSUME_TIMES = 16


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """RocketMQ's names and, but where said, its defaults; times in seconds.

    consume_thread_max: threads that call the listener. consume_message_batch_max_size: of messages in one call.
    pull_threshold_for_queue: messages of one queue that may be cached and not acknowledged (RocketMQ: 1000);
    pull_threshold_size_for_queue: and MiB of their bodies.
    max_reconsume_times: how often a message may fail and come again before it is a dead letter; -1: 16 times, and
    without end where consumption is orderly. suspend_current_queue_time: until an orderly one tries again in place.
    consume_timeout: after which what is in hand is named as hanging. consume_timestamp: ms since 1970, for
    CONSUME_FROM_TIMESTAMP. await_termination_when_shutdown: how long `close` waits for calls that are under way.
    """

    consume_thread_max: int = 20
    consume_message_batch_max_size: int = 1
    pull_threshold_for_queue: int = 10_000
    pull_threshold_size_for_queue: int = 100
    max_reconsume_times: int = -1
    suspend_current_queue_time: float = 1.0
    consume_timeout: float = 900.0
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp: int = 0
    message_model: MessageModel = MessageModel.CLUSTERING
    await_termination_when_shutdown: float = 30.0

    @property
    def queue_limits(self) -> tuple[int, int]:
        """Messages of one queue in memory that are not acknowledged, and bytes of their bodies."""
        return self.pull_threshold_for_queue, self.pull_threshold_size_for_queue * _MIB

    @property
    def pull_bytes(self) -> int:
        """Bytes of records that are pulled at once."""
        return min(BATCH_BYTES, self.queue_limits[1])

    @property
    def reconsume_times(self) -> int:
        """How often a message comes again unless it is consumed orderly."""
        return _MAX_RECONSUME_TIMES if self.max_reconsume_times < 0 else self.max_reconsume_times

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                least = {"max_reconsume_times": -1, "consume_timestamp": 0}.get(field.name, 1)
                integer(field.name, value, least)
            elif field.type == "float":
                span(field.name, value)
        one_of("consume_from_where", self.consume_from_where, list(ConsumeFromWhere))
        one_of("message_model", self.message_model, list(MessageModel))


DEFAULTS = ConsumerConfig()
