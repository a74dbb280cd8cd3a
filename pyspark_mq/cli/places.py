"""Places in a topic, as users give them: an end, an offset, a time, an age."""

import re
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import click
from click.shell_completion import CompletionItem

from pyspark_mq.options.subscription import did_you_mean
from store import UnknownQueue, UnknownTopic
from store.model.log_protocol import Boundary, Bounds, Log, Positions, Queue

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGE = re.compile(rf"(\d{{1,9}})\s*([{''.join(_UNITS)}])")
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
    if age := _AGE.fullmatch(value):
        return Moment(round((time.time() - int(age[1]) * _UNITS[age[2]]) * 1000))
    try:
        return int(value) if value.isascii() and value.isdecimal() else Moment(milliseconds(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is none of: {FORMS}") from error


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Reads a time or an age as ms since 1970, as an option's callback."""
    found = place(ctx, param, value)
    if value is not None and not isinstance(found, Moment):
        raise click.BadParameter(f"{value!r} is neither an age (10m, 2h, 3d) nor a time (2013-01-31T06:00)")
    return found.milliseconds if isinstance(found, Moment) else None


def age(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Reads an age in seconds, as an option's callback."""
    found = _AGE.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no age: give 90s, 10m, 2h or 3d")
    return float(int(found[1]) * _UNITS[found[2]])


def words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words among places, for a shell."""
    return [CompletionItem(word) for word in _ENDS if word.startswith(incomplete)]


def milliseconds(text: str) -> int:
    """ISO 8601 as ms since 1970; without a time zone it is local time. Raises `ValueError`."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def bounds_of(log: Log, topic: str, queue: int | None = None) -> dict[Queue, Bounds]:
    """What `queue`, or each queue of `topic`, has now. Raises `UnknownTopic`, `UnknownQueue`."""
    topics = log.topics()
    # Of an unknown topic queue 0 is asked for, so that the log says what is wrong, if it knows.
    queues = topics.get(topic, (Queue(topic, 0),))
    if queue is not None:  # of a cluster, each broker's
        queues = tuple(each for each in queues if each.queue_id == queue) or (Queue(topic, queue),)
    bounds = log.bounds(queues)
    if topic not in topics:
        raise UnknownTopic(
            f"no topic {topic!r}. {did_you_mean([topic], topics)}There are: {', '.join(topics) or 'none'}"
        )
    numbers = {each.queue_id for each in topics[topic]}
    if queue is not None and queue not in numbers:
        raise UnknownQueue(f"topic {topic!r} has queues 0 to {max(numbers)}, not {queue}")
    _must_be_there(queues, bounds)
    return bounds


def offsets_at(log: Log, bounds: Mapping[Queue, Bounds], place: Place) -> Positions:
    """The offset that a place means in each queue, of which `bounds_of` gave the bounds: an offset counts in all.

    Raises `UnknownQueue` for one that is gone meanwhile.
    """
    if isinstance(place, int):
        return dict.fromkeys(bounds, place)
    if isinstance(place, Moment):
        found = log.offsets_by_time(bounds, place.milliseconds, Boundary.LOWER)
        _must_be_there(bounds, found)
        return found
    return {queue: each.max_offset if place == "latest" else each.min_offset for queue, each in bounds.items()}


def _must_be_there(queues: Iterable[Queue], there: Container[Queue]) -> None:
    """Raises `UnknownQueue`: what others have would be taken for all of it."""
    if gone := ", ".join(str(queue) for queue in queues if queue not in there):
        raise UnknownQueue(f"{gone}: gone just now, deleted or with its broker; try again")
