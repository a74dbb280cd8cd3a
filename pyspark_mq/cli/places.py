"""Places in a topic, as users give them: an end, an offset, a time, an age."""

import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import click
from click.shell_completion import CompletionItem

from store import MessageStore

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGE = re.compile(rf"(\d+)\s*([{''.join(_UNITS)}])")
FORMS = "earliest, latest, an offset (17), an age (10m, 2h, 3d) or a time (2013-01-31T06:00)"


@dataclass(frozen=True)
class Moment:
    """The first message stored at a time or after. milliseconds: since 1970."""

    milliseconds: int


End = Literal["earliest", "latest"]
Place = End | int | Moment
_ENDS: tuple[End, ...] = ("earliest", "latest")


def place(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Place | None:
    """Reads a `Place`, as an option's callback; a time without a zone is local time."""
    if value is None:
        return None
    for word in _ENDS:
        if value == word:
            return word
    if value.isascii() and value.isdecimal():
        return int(value)
    if age := _AGE.fullmatch(value):
        return Moment(round((time.time() - int(age[1]) * _UNITS[age[2]]) * 1000))
    try:
        return Moment(milliseconds(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is none of: {FORMS}") from error


def words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words among places, for a shell."""
    return [CompletionItem(word) for word in _ENDS if word.startswith(incomplete)]


def milliseconds(text: str) -> int:
    """ISO 8601 as ms since 1970; without a time zone it is local time. Raises `ValueError`."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def offsets_at(store: MessageStore, topic: str, queues: list[int], place: Place) -> dict[int, int]:
    """The offset that a place means in each of `queues`: an offset counts in every queue.

    Raises `UnknownTopic`, `UnknownQueue`.
    """
    if isinstance(place, int):
        return dict.fromkeys(queues, place)
    if isinstance(place, Moment):
        return {queue: store.offset_by_time(topic, queue, place.milliseconds) for queue in queues}
    return {queue: store.offsets(topic, queue)[place == "latest"] for queue in queues}


def queues_of(store: MessageStore, topic: str, queue: int | None = None) -> list[int]:
    """`queue`, or all queues of `topic`. Raises `UnknownTopic`, `UnknownQueue`."""
    # Of an unknown topic queue 0 is asked for, so that the store says what is wrong.
    queues = list(range(store.topics().get(topic, 1))) if queue is None else [queue]
    store.max_offset(topic, queues[0])
    return queues
