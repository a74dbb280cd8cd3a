"""Calls of a user's listener, and their outcome: messages are done, tried again in place, or sent back to the group."""

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
from store.client.process_queues import ProcessQueues, Taken
from store.client.received_messages import Messages, ReceivedMessage
from store.files.figures import PROCESS_FAILED, PROCESSED, Figures
from store.format.layout import DLQ_TOPIC_PREFIX
from store.model.errors import InvalidArgument, StoreError
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
    unreadable: what to do with a message whose body does not decompress, or becomes too large: "dead_letter", or
    "error", which ends the consumer. consume_timeout: after which what is in hand is named as hanging.
    consume_timestamp: ms since 1970, for CONSUME_FROM_TIMESTAMP. await_termination_when_shutdown: how long `close`
    waits for calls that are under way.
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
        one_of("unreadable", self.unreadable, ["dead_letter", "error"])
        one_of("message_model", self.message_model, list(MessageModel))


DEFAULTS = ConsumerConfig()


Listener = Callable[[Sequence[ReceivedMessage]], None]

_SHOWN = 5  # message ids
_SEND_BACK_AGAIN_SECONDS = 5.0
_DEAD_LETTERS = -1  # delay level
_logger = logging.getLogger("store")


class ReconsumeLater(Exception):
    """A listener raises it for messages that shall come again: those behind the first `done`, which are done.

    delay_level: RocketMQ's, 1 to 18; 0 for its own choice, 10 seconds at first and longer each time; below 0 for the
    dead letters at once. An orderly consumer tries again in place, so there only the last has a meaning.
    """

    def __init__(self, *, done: int = 0, delay_level: int = 0) -> None:
        super().__init__(f"done={done}, delay_level={delay_level}")
        self.done = done
        self.delay_level = delay_level


class CallResult(NamedTuple):
    """done: how many messages are done, from the first on; the others come again, see `ReconsumeLater`."""

    done: int
    delay_level: int = 0


def check_listener(listener: object) -> None:
    """Raises `InvalidArgument` for what cannot be called, or would only be begun by that."""
    if not callable(listener):
        raise InvalidArgument(f"listener={listener!r:.80}: give a function of a sequence of messages")
    if inspect.iscoroutinefunction(listener) or inspect.isgeneratorfunction(listener):
        raise InvalidArgument(
            f"listener={listener!r:.80}: to call it runs none of it; give a plain function, or iterate: "
            "'async for message in consumer'"
        )


def call(listener: Listener, messages: Messages, group: str) -> CallResult:
    """What a listener raises, but for `ReconsumeLater`, and what it should not return is logged, and nothing is done.

    It is logged once for messages that are tried again in place.
    """
    try:
        answer = cast("Callable[..., object]", listener)(messages)
    except ReconsumeLater as later:
        if 0 <= later.done <= len(messages):
            return CallResult(later.done, later.delay_level)
        what = f"ReconsumeLater({later}) of {len(messages)} messages"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and the messages come again
        what = "".join(traceback.format_exception(error)).rstrip()
    else:
        if answer is None:
            return CallResult(len(messages))
        what = f"the listener returned {answer!r:.80}; it has to return nothing, or raise ReconsumeLater"
    if not messages.tries:
        ids = ", ".join(map(_named, messages[:_SHOWN]))
        more = f" and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
        _logger.warning("group %s: failed: %s%s: %s", group, ids, more, what)
    return CallResult(0)


def _named(message: ReceivedMessage) -> str:
    """By the id that it had at the first try."""
    again = f" (try {message.reconsume_times + 1})" if message.reconsume_times else ""
    return f"{first_id(message.msg_id, message.properties)} of {message.topic}{again}"


class ConsumeService(Protocol):
    """One of the ways to consume."""

    @property
    def queue(self) -> type[ProcessQueue]:
        """How what of one queue is in hand goes out."""

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: CallResult) -> None:
        """Do with what was taken, and the listener was called with, what came of that."""


@dataclass(frozen=True)
class Concurrently:
    """What failed goes back to the group and comes again later, while others go on."""

    member: Member
    max_reconsume_times: int
    queue = ProcessQueue

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: CallResult) -> None:
        if outcome.done == len(taken.handful.messages):
            queues.done(taken)
            return
        queues.done(taken, outcome.done)
        send_back(self.member, queues, taken, outcome.delay_level, self.max_reconsume_times)


@dataclass(frozen=True)
class Orderly:
    """What failed is tried again in place after `suspend_seconds`, and its queue stands still until then."""

    member: Member
    max_reconsume_times: float
    suspend_seconds: float
    queue = OrderlyQueue

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: CallResult) -> None:
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
    """What failed is gone, as with RocketMQ: other members have it as well, and nothing goes back for one alone."""

    queue = ProcessQueue

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: CallResult) -> None:
        if outcome.done < len(taken.handful.messages):
            _logger.warning("%s: what failed does not come again, for this consumer is broadcasting", taken.queue.queue)
        queues.done(taken)


def consume_service(member: Member, config: ConsumerConfig, *, orderly: bool) -> ConsumeService:
    """Return the way to consume that a consumer's settings ask for."""
    if orderly:
        times = math.inf if config.max_reconsume_times < 0 else config.max_reconsume_times
        return Orderly(member, times, config.suspend_current_queue_time)
    if config.message_model is MessageModel.BROADCASTING:
        return Broadcast()
    return Concurrently(member, config.reconsume_times)


def send_back(member: Member, queues: ProcessQueues, taken: Taken, delay_level: int, max_reconsume_times: int) -> None:
    """Let the group have again what is in hand; where that fails, try it here once more, and log why."""
    try:
        member.send_back([each.stored() for each in taken.handful.messages], delay_level, max_reconsume_times)
    except StoreError as error:
        _logger.error("%s: could not be sent back, and is tried again in place: %s", taken.handful.messages, error)
        taken.handful.tried()
        queues.give_back(taken, _SEND_BACK_AGAIN_SECONDS)
    else:
        queues.done(taken)


def set_aside(service: ConsumeService, queues: ProcessQueues, taken: Taken, group: str) -> bool:
    """Make a dead letter of a message whose body cannot be read. Return whether it is one."""
    messages = taken.handful.messages
    if messages.body_error is None:
        return False
    if not messages.tries:
        where = taken.queue.queue, messages.offset
        _logger.error("group %s: %s, offset %d: the body cannot be read: %s", group, *where, messages.body_error)
    if taken.queue.queue.topic == DLQ_TOPIC_PREFIX + group:  # it is a dead letter of this group
        queues.done(taken)
    else:
        service.settle(queues, taken, CallResult(0, _DEAD_LETTERS))
    return True


def consume(
    queues: ProcessQueues, service: ConsumeService, listener: Listener, group: str, most: int, figures: Figures
) -> None:
    """One thread's work, until the queues are closed."""
    while (taken := queues.take(most)) is not None:
        if set_aside(service, queues, taken, group):
            continue
        messages, since = taken.handful.messages, taken.handful.since
        outcome = call(listener, messages, group)
        if queues.is_forked:
            _logger.error(
                "group %s: process %d, which its listener forked, came back from that, and ends", group, os.getpid()
            )
            return
        name = PROCESSED if outcome.done == len(messages) else PROCESS_FAILED
        figures.of(name, taken.queue.queue.topic, group).add((time.monotonic() - since) * 1000)
        service.settle(queues, taken, outcome)
