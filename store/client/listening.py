"""Calls a user's listener, and makes of whatever it does how many of the messages are done."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from store.broker.retries import first_id
from store.client.messages import Messages, ReceivedMessage
from store.model.errors import InvalidArgument

Listener = Callable[[Sequence[ReceivedMessage]], None]

_SHOWN = 5  # message ids
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


class Outcome(NamedTuple):
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


def call(listener: Listener, messages: Messages, group: str) -> Outcome:
    """What a listener raises, but for `ReconsumeLater`, and what it should not return is logged, and nothing is done.

    It is logged once for messages that are tried again in place.
    """
    try:
        answer = cast("Callable[..., object]", listener)(messages)
    except ReconsumeLater as later:
        if 0 <= later.done <= len(messages):
            return Outcome(later.done, later.delay_level)
        what = f"ReconsumeLater({later}) of {len(messages)} messages"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and the messages come again
        what = "".join(traceback.format_exception(error)).rstrip()
    else:
        if answer is None:
            return Outcome(len(messages))
        what = f"the listener returned {answer!r:.80}; it has to return nothing, or raise ReconsumeLater"
    if not messages.tries:
        ids = ", ".join(map(_named, messages[:_SHOWN]))
        more = f" and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
        _logger.warning("group %s: failed: %s%s: %s", group, ids, more, what)
    return Outcome(0)


def _named(message: ReceivedMessage) -> str:
    """By the id that it had at the first try."""
    again = f" (try {message.reconsume_times + 1})" if message.reconsume_times else ""
    return f"{first_id(message.msg_id, message.properties)} of {message.topic}{again}"
