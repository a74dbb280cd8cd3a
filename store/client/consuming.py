"""Calls a consumer's listener, and handles the messages that it fails to process."""

from __future__ import annotations

import inspect
import logging
import math
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, Protocol, cast

from store.api.group_protocol import ConsumeFromWhere, Member, MessageModel
from store.broker.retries import first_id
from store.client.process_queue import OrderlyQueue, ProcessQueue
from store.client.process_queues import ProcessQueues, TakenMessages
from store.client.received_messages import Messages, ReceivedMessage
from store.disk.figures import PROCESS_FAILED, PROCESSED, Figures
from store.format.layout import DLQ_TOPIC_PREFIX
from store.model.errors import InvalidArgument, StoreError
from store.model.integers import integer, one_of, span
from store.model.log_protocol import BATCH_BYTES

_MIB = 1 << 20
_MAX_RECONSUME_TIMES = 16


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """The settings of a consumer, with RocketMQ's names, and its defaults unless noted. Times are in seconds.

    consume_thread_max: threads that call the listener.
    consume_message_batch_max_size: most messages in one call.
    pull_threshold_for_queue: most unacknowledged messages of a queue in memory (RocketMQ: 1000).
    pull_threshold_size_for_queue: most MiB of their bodies.
    max_reconsume_times: retries before a message becomes a dead letter. -1 means 16, or unlimited for an orderly
    consumer.
    suspend_current_queue_time: delay before an orderly consumer retries in place.
    consume_timeout: time in the listener after which a message is logged as hanging.
    consume_timestamp: ms since 1970, for CONSUME_FROM_TIMESTAMP.
    await_termination_when_shutdown: how long `close` waits for running calls of the listener.
    unreadable: what to do with a message whose body does not decompress or exceeds the size limit: make it a dead
    letter, or raise an error, which ends the consumer.
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
    unreadable: Literal["dead_letter", "error"] = "dead_letter"

    @property
    def queue_limits(self) -> tuple[int, int]:
        return self.pull_threshold_for_queue, self.pull_threshold_size_for_queue * _MIB

    @property
    def pull_bytes(self) -> int:
        return min(BATCH_BYTES, self.queue_limits[1])

    @property
    def reconsume_times(self) -> int:
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
        one_of("unreadable", self.unreadable, ["dead_letter", "error"])
        one_of("message_model", self.message_model, list(MessageModel))


DEFAULTS = ConsumerConfig()


Listener = Callable[[Sequence[ReceivedMessage]], None]

_SHOWN = 5  # in one log line
_SEND_BACK_AGAIN_SECONDS = 5.0
_DEAD_LETTERS = -1  # delay level
_logger = logging.getLogger("store")


class ReconsumeLater(Exception):
    """Raised by a listener to acknowledge the first `done` messages and have the others delivered again.

    delay_level: one of RocketMQ's levels 1 to 18; 0 for a delay of 10 seconds that grows with each retry; negative for
    a dead letter at once. An orderly consumer retries in place, and ignores levels that are not negative.
    """

    def __init__(self, *, done: int = 0, delay_level: int = 0) -> None:
        super().__init__(f"done={done}, delay_level={delay_level}")
        self.done = done
        self.delay_level = delay_level


class CallResult(NamedTuple):
    """The outcome of a call of the listener: the first `done` messages are finished; the others are retried."""

    done: int
    delay_level: int = 0


def check_listener(listener: object) -> None:
    """Raise `InvalidArgument` if `listener` is not callable, or is a coroutine or generator function."""
    if not callable(listener):
        raise InvalidArgument(
            f"listener={listener!r:.80} is not callable. Give a function that takes a sequence of messages"
        )
    if inspect.iscoroutinefunction(listener) or inspect.isgeneratorfunction(listener):
        raise InvalidArgument(
            f"listener={listener!r:.80} is a coroutine or generator function, so a call runs none of its code. Give "
            "a plain function, or iterate: 'async for message in consumer'"
        )


def call(listener: Listener, messages: Messages, group: str) -> CallResult:
    """Call the listener, and return the outcome.

    If it raises an error or returns a value, no message is finished. This is logged, except for retries in place.
    """
    try:
        answer = cast("Callable[..., object]", listener)(messages)
    except ReconsumeLater as later:
        if 0 <= later.done <= len(messages):
            return CallResult(later.done, later.delay_level)
        what = f"ReconsumeLater({later}) does not fit {len(messages)} messages"
    except Exception as error:  # noqa: BLE001 - logged and retried
        what = "".join(traceback.format_exception(error)).rstrip()
    else:
        if answer is None:
            return CallResult(len(messages))
        what = f"the listener returned {answer!r:.80}. It must return None, or raise ReconsumeLater"
    if not messages.tries:
        ids = ", ".join(map(_named, messages[:_SHOWN]))
        more = f" and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
        _logger.warning("group %s: the listener failed for %s%s: %s", group, ids, more, what)
    return CallResult(0)


def _named(message: ReceivedMessage) -> str:
    again = f" (try {message.reconsume_times + 1})" if message.reconsume_times else ""
    return f"{first_id(message.msg_id, message.properties)} of {message.topic}{again}"


class ConsumeService(Protocol):
    """How a consumer treats failed messages."""

    @property
    def queue(self) -> type[ProcessQueue]:
        """The class that decides in which order messages are handed out."""

    def settle(self, queues: ProcessQueues, taken: TakenMessages, outcome: CallResult) -> None:
        """Acknowledge the finished messages, and redeliver the others."""


@dataclass(frozen=True)
class Concurrently:
    """Sends failed messages back to the group, which delivers them again after a delay."""

    member: Member
    max_reconsume_times: int
    queue = ProcessQueue

    def settle(self, queues: ProcessQueues, taken: TakenMessages, outcome: CallResult) -> None:
        if outcome.done == len(taken.handful.messages):
            queues.done(taken)
            return
        queues.done(taken, outcome.done)
        send_back(self.member, queues, taken, outcome.delay_level, self.max_reconsume_times)


@dataclass(frozen=True)
class Orderly:
    """Retries failed messages in place after `suspend_seconds`, and blocks their queue until then."""

    member: Member
    max_reconsume_times: float
    suspend_seconds: float
    queue = OrderlyQueue

    def settle(self, queues: ProcessQueues, taken: TakenMessages, outcome: CallResult) -> None:
        if outcome.done == len(taken.handful.messages):
            queues.done(taken)
            return
        queues.done(taken, outcome.done)
        tried = min(message.reconsume_times for message in taken.handful.messages)
        if outcome.delay_level < 0 or tried >= self.max_reconsume_times:
            send_back(self.member, queues, taken, _DEAD_LETTERS, 0)
        else:
            taken.handful.tried()
            queues.give_back(taken, self.suspend_seconds)


@dataclass(frozen=True)
class Broadcast:
    """Drops failed messages, as RocketMQ does, because a group cannot redeliver to one member alone."""

    queue = ProcessQueue

    def settle(self, queues: ProcessQueues, taken: TakenMessages, outcome: CallResult) -> None:
        if outcome.done < len(taken.handful.messages):
            _logger.warning("%s: failed messages are dropped, because this consumer is broadcasting", taken.queue.queue)
        queues.done(taken)


def consume_service(member: Member, config: ConsumerConfig, *, orderly: bool) -> ConsumeService:
    if orderly:
        times = math.inf if config.max_reconsume_times < 0 else config.max_reconsume_times
        return Orderly(member, times, config.suspend_current_queue_time)
    if config.message_model is MessageModel.BROADCASTING:
        return Broadcast()
    return Concurrently(member, config.reconsume_times)


def send_back(
    member: Member, queues: ProcessQueues, taken: TakenMessages, delay_level: int, max_reconsume_times: int
) -> None:
    try:
        member.send_back([each.stored() for each in taken.handful.messages], delay_level, max_reconsume_times)
    except StoreError as error:
        _logger.error(
            "%s: cannot be sent back to the store, and are tried again in place: %s", taken.handful.messages, error
        )
        taken.handful.tried()
        queues.give_back(taken, _SEND_BACK_AGAIN_SECONDS)
    else:
        queues.done(taken)


def dead_letter_if_unreadable(service: ConsumeService, queues: ProcessQueues, taken: TakenMessages, group: str) -> bool:
    """Make a message with an unreadable body a dead letter. Return whether the body is unreadable."""
    messages = taken.handful.messages
    if messages.body_error is None:
        return False
    if not messages.tries:
        where = taken.queue.queue, messages.offset
        _logger.error("group %s: %s, offset %d: the body cannot be read: %s", group, *where, messages.body_error)
    if taken.queue.queue.topic == DLQ_TOPIC_PREFIX + group:  # already a dead letter
        queues.done(taken)
    else:
        service.settle(queues, taken, CallResult(0, _DEAD_LETTERS))
    return True


def consume(
    queues: ProcessQueues, service: ConsumeService, listener: Listener, group: str, most: int, figures: Figures
) -> None:
    while (taken := queues.take(most)) is not None:
        if dead_letter_if_unreadable(service, queues, taken, group):
            continue
        messages, since = taken.handful.messages, taken.handful.since
        outcome = call(listener, messages, group)
        if queues.is_forked:
            _logger.error(
                "group %s: process %d, which a listener forked, returned from the listener. It exits now",
                group,
                os.getpid(),
            )
            return
        name = PROCESSED if outcome.done == len(messages) else PROCESS_FAILED
        figures.of(name, taken.queue.queue.topic, group).add((time.monotonic() - since) * 1000)
        service.settle(queues, taken, outcome)
