"""What becomes of messages that a listener was called with: done, tried again in place, or sent back to the group."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Protocol

from store.api.group_protocol import Member
from store.client.listening import Listener, Outcome, call
from store.client.process_queue import OrderlyQueue, ProcessQueue
from store.client.process_queues import ProcessQueues, Taken
from store.files.figures import PROCESS_FAILED, PROCESSED, Figures
from store.model.errors import StoreError

_SEND_BACK_AGAIN_SECONDS = 5.0
_DEAD_LETTERS = -1  # delay level
_logger = logging.getLogger("store")


class ConsumeService(Protocol):
    """One of the ways to consume."""

    @property
    def queue(self) -> type[ProcessQueue]:
        """How what of one queue is in hand goes out."""

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: Outcome) -> None:
        """Do with what was taken, and the listener was called with, what came of that."""


@dataclass(frozen=True)
class Concurrently:
    """What failed goes back to the group and comes again later, while others go on."""

    member: Member
    max_reconsume_times: int
    queue = ProcessQueue

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: Outcome) -> None:
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

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: Outcome) -> None:
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

    def settle(self, queues: ProcessQueues, taken: Taken, outcome: Outcome) -> None:
        if outcome.done < len(taken.handful.messages):
            _logger.warning("%s: what failed does not come again, for this consumer is broadcasting", taken.queue.queue)
        queues.done(taken)


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


def consume(
    queues: ProcessQueues, service: ConsumeService, listener: Listener, group: str, most: int, figures: Figures
) -> None:
    """One thread's work, until the queues are closed."""
    while (taken := queues.take(most)) is not None:
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
