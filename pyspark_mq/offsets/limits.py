"""The starts and ends of a query: options such as `startingOffsets` and `startingTimestamp`, resolved to offsets.

As in Spark's Kafka source, a time takes precedence over times by queue, and these over offsets. Unlike there, values
may be relative: "-1000" means the last 1,000 messages of each queue, and "-10 minutes" that long before planning. The
`parse_` functions, `start_of` and `end_of` raise `OptionError`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.stream_offsets import positions_from_json
from store.format.strict_json import decode_unique
from store.model.integers import iso_time
from store.model.log_protocol import Boundary, Bounds, Log, Positions, Queue

_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]+)", re.IGNORECASE)
_UNITS_MS = {
    name: milliseconds
    for names, milliseconds in (
        ("ms millisecond milliseconds", 1),
        ("s second seconds", 1000),
        ("m min minute minutes", 60_000),
        ("h hour hours", 3_600_000),
        ("d day days", 86_400_000),
    )
    for name in names.split()
}


def milliseconds_of(text: str) -> float | None:
    """Parse a duration, such as "10 minutes". Return None for any other text."""
    length = _LENGTH.fullmatch(text.strip())
    unit = _UNITS_MS.get(length[2].lower()) if length else None
    return None if length is None or unit is None else float(length[1]) * unit


LATEST = -1
EARLIEST = -2
Strategy = Literal["error", "latest"]

_LAST_MESSAGES = re.compile(r"-([0-9]{1,18})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE_MS = re.compile(r"[0-9]{1,18}")


class StartOrEnd(Protocol):
    """A start or end before it is resolved to offsets. Frozen and picklable."""

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        """Return an offset for each subscribed queue. Raises `OptionError`.

        Only offsets from an option or a group may be outside of the bounds. The log may have grown since `bounds` was
        read.
        """


@dataclass(frozen=True)
class EarliestOrLatest:
    """The first offset of each queue (EARLIEST), or its end (LATEST)."""

    offset: int

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        return {queue: _offset(self.offset, bound) for queue, bound in bounds.items()}


@dataclass(frozen=True)
class LastMessages:
    count: int

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        return {queue: max(bound.min_offset, bound.max_offset - self.count) for queue, bound in bounds.items()}


@dataclass(frozen=True)
class OffsetsByQueue:
    """An offset for each queue, or EARLIEST or LATEST. option: the option's name, for errors."""

    option: str
    offsets: Positions

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        """Return the named offsets. Raises `OptionError` unless exactly the subscribed queues are named."""
        _same_queues(self.option, self.offsets, bounds, "-2 for the earliest and -1 for the latest offset of a queue")
        return {queue: _offset(self.offsets[queue], bound) for queue, bound in bounds.items()}


@dataclass(frozen=True)
class Time:
    """The first message of each queue that was stored at or after a time.

    timestamp: ms since 1970; a negative one is relative to now. unmatched: what to do if all messages are older. With a
    relative time, it is always the latest offset.
    """

    option: str
    timestamp: int
    unmatched: Strategy

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        if self.timestamp < 0:
            timestamp = int(time.time() * 1000) + self.timestamp
            return _inside(log.offsets_by_time(bounds, timestamp, Boundary.LOWER), bounds)
        return _by_time(log, self.option, dict.fromkeys(bounds, self.timestamp), bounds, self.unmatched)


@dataclass(frozen=True)
class TimesByQueue:
    """The first message that was stored at or after a time, with its own time for each queue.

    timestamps: ms since 1970. unmatched: as in `Time`.
    """

    option: str
    timestamps: Positions
    unmatched: Strategy

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        _same_queues(self.option, self.timestamps, bounds, "0 to include all messages of a queue")
        return _by_time(log, self.option, self.timestamps, bounds, self.unmatched)


@dataclass(frozen=True)
class GroupPosition:
    """The group's offsets, or the first message of a queue in which the group has none."""

    group: str

    def resolve(self, log: Log, bounds: Mapping[Queue, Bounds]) -> Positions:
        """Return the group's offset for each queue, the queue's first offset if the group has none.

        An offset before the queue's first offset or after its current end is kept, because it shows a loss. A queue
        that was deleted concurrently gets no offset.
        """
        positions = {queue: first for queue, (first, _) in bounds.items()} | log.committed(self.group, bounds)
        there = log.bounds(positions)
        for queue, (_, end) in there.items():  # the group may have read past `bounds` since
            if positions[queue] <= end:
                positions[queue] = min(positions[queue], bounds[queue].max_offset)
        return {queue: position for queue, position in positions.items() if queue in there}


def parse_offsets(option: str, text: str, group: str | None = None) -> StartOrEnd:
    """Parse `startingOffsets` or `endingOffsets`. group: the group that the value "group" means."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EarliestOrLatest(EARLIEST if word == "earliest" else LATEST)
    if word == "group":
        if group is None:
            raise OptionError(
                f"{option}=group needs the option consumerGroup. Set consumerGroup to the name of the group"
            )
        return GroupPosition(group)
    if last := _LAST_MESSAGES.fullmatch(word):
        return LastMessages(int(last[1])) if int(last[1]) else EarliestOrLatest(LATEST)
    expected = (
        f"{option} takes earliest, latest, group, -1000 for the last 1,000 messages of each queue, or JSON such as "
        '{"orders": {"0": 23, "1": -1}} (-2 earliest, -1 latest)'
    )
    return OffsetsByQueue(option, _json(expected, text, lowest=EARLIEST))


def parse_time(option: str, text: str, unmatched: Strategy) -> Time:
    """Parse ms since 1970, ISO 8601, or "-10 minutes"."""
    word = text.strip()
    ago = milliseconds_of(word[1:]) if word.startswith("-") else None
    if ago is not None:
        return Time(option, -max(1, int(ago)), unmatched)
    if _WHOLE_MS.fullmatch(word):
        return Time(option, int(word), unmatched)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError as error:
        raise OptionError(
            f"{option} takes milliseconds since 1970, a time such as 2026-01-31T12:00:00Z, or a relative time such "
            f"as '-10 minutes', not {text[:40]!r}"
        ) from error
    if moment.tzinfo is None:
        local = moment.isoformat()  # a date without a time has no zone
        raise OptionError(
            f"{option}={text[:40]!r} has no time zone. Write {local}Z for UTC, or {local}+02:00 for another zone"
        )
    return Time(option, max(0, (moment - _EPOCH) // timedelta(milliseconds=1)), unmatched)


def parse_times(option: str, text: str, unmatched: Strategy) -> TimesByQueue:
    expected = f'{option} takes JSON such as {{"orders": {{"0": 1767225600000, "1": 1767225600000}}}} (ms since 1970)'
    return TimesByQueue(option, _json(expected, text, lowest=0), unmatched)


def start_of(given: Mapping[str, str]) -> StartOrEnd | None:
    """Return the start of a query, None if no option names one."""
    unmatched: Strategy = _strategy("startingOffsetsByTimestampStrategy", given)
    return _first_given(
        given,
        {
            "startingTimestamp": lambda name, text: parse_time(name, text, unmatched),
            "startingOffsetsByTimestamp": lambda name, text: parse_times(name, text, unmatched),
            "startingOffsets": lambda name, text: parse_offsets(name, text, given.get("consumerGroup")),
        },
    )


def end_of(given: Mapping[str, str]) -> StartOrEnd | None:
    """Return the end of a query, None if no option names one."""
    return _first_given(
        given,
        {
            "endingTimestamp": lambda name, text: parse_time(name, text, "latest"),
            "endingOffsetsByTimestamp": lambda name, text: parse_times(name, text, "latest"),
            "endingOffsets": lambda name, text: parse_offsets(name, text, given.get("consumerGroup")),
        },
    )


def option_of(limit: StartOrEnd, default: str) -> str:
    return limit.option if isinstance(limit, OffsetsByQueue | Time | TimesByQueue) else default


def require_order(start: StartOrEnd, end: StartOrEnd) -> None:
    if isinstance(start, Time) and isinstance(end, Time):
        now = int(time.time() * 1000)
        first, last = (each.timestamp if each.timestamp >= 0 else now + each.timestamp for each in (start, end))
        if last < first:
            raise OptionError(
                f"{end.option} ({iso_time(last)}) is before {start.option} ({iso_time(first)}). Give an end after "
                "the start"
            )


def says(limit: StartOrEnd, offset: int) -> str | None:
    """Return for which queues a limit is `offset` (EARLIEST or LATEST), for an error message.

    The text is "" for all queues, " for <queue>" for one queue, and None for no queue.
    """
    if isinstance(limit, EarliestOrLatest):
        return "" if limit.offset == offset else None
    by_queue = limit.offsets if isinstance(limit, OffsetsByQueue) else {}
    return next((f" for {queue}" for queue, named in by_queue.items() if named == offset), None)


def _strategy(name: str, given: Mapping[str, str]) -> Strategy:
    text = given.get(name, "error").strip().lower()
    if text not in ("error", "latest"):
        raise OptionError(f"{name} takes error or latest, not {text[:40]!r}")
    return "latest" if text == "latest" else "error"


def _first_given(
    given: Mapping[str, str], parsers: Mapping[str, Callable[[str, str], StartOrEnd]]
) -> StartOrEnd | None:
    """Parse all given options, so that an invalid one raises an error. Return the first in the order of `parsers`."""
    limits = [parse(name, given[name]) for name, parse in parsers.items() if name in given]
    return limits[0] if limits else None


def _by_time(
    log: Log, option: str, timestamps: Positions, bounds: Mapping[Queue, Bounds], unmatched: Strategy
) -> Positions:
    found: Positions = {}
    for timestamp in set(timestamps.values()):
        queues = [queue for queue, wanted in timestamps.items() if wanted == timestamp]
        found |= log.offsets_by_time(queues, timestamp, Boundary.LOWER)
    none = sorted(queue for queue, offset in found.items() if offset >= bounds[queue].max_offset)
    if none and unmatched == "error":
        time_helps = all(bounds[queue].min_offset < bounds[queue].max_offset for queue in none)
        names, moment = ", ".join(map(str, none)), iso_time(timestamps[none[0]])
        raise OptionError(
            f"{option}: no message of {names} was stored at {moment} or after. "
            f"{'Give an earlier time, or set' if time_helps else 'Set'} startingOffsetsByTimestampStrategy to latest, "
            "to begin with the next message"
        )
    return _inside(found, bounds)


def _inside(positions: Positions, bounds: Mapping[Queue, Bounds]) -> Positions:
    there = ((queue, bounds[queue]) for queue in bounds if queue in positions)
    return {queue: min(max(positions[queue], first), end) for queue, (first, end) in there}


def _json(expected: str, text: str, lowest: int) -> Positions:
    try:
        json_ = decode_unique(text)
        if isinstance(json_, dict):  # users also copy offsets from a checkpoint
            json_ = {topic: by_queue for topic, by_queue in json_.items() if not topic.startswith("$")}
        return positions_from_json(json_, lowest=lowest)
    except ValueError as error:
        raise OptionError(f"{expected}: {error}") from error


def _offset(offset: int, bound: Bounds) -> int:
    return {EARLIEST: bound.min_offset, LATEST: bound.max_offset}.get(offset, offset)


def _same_queues(option: str, named: Iterable[Queue], bounds: Mapping[Queue, Bounds], use: str) -> None:
    there = ", ".join(map(str, sorted(bounds))) or "none"
    if unknown := ", ".join(map(str, sorted(set(named) - bounds.keys()))):
        raise OptionError(
            f"{option} names queues that do not exist or are not subscribed: {unknown}. Subscribed queues: {there}. "
            f"Use {use}"
        )
    if missing := ", ".join(map(str, sorted(bounds.keys() - set(named)))):
        raise OptionError(
            f"{option} must name every subscribed queue, but does not name: {missing}. Subscribed queues: {there}. "
            f"Use {use}"
        )
