"""The JSON of positions in queues `{topic: {queue id: value}}`, as checkpoints, the ledger and options have it.

What is read may be damaged, or written by anybody: all of it is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from store.model.log_protocol import Fingerprint, Fingerprints, Positions, Queue

T = TypeVar("T")
OffsetJson = dict[str, dict[str, Any]]
_QUEUE_NAME = re.compile(r"(?:(?P<broker>[^:]{1,255}):)?(?P<number>0|[1-9][0-9]{0,9})")
_MAX_QUEUE_ID = (1 << 31) - 1  # both are Java's
_MAX_LONG = (1 << 63) - 1


def to_json(positions: Mapping[Queue, int | list[int]]) -> OffsetJson:
    """`{topic: {queue id: offset}}`, sorted by queue."""
    json_: OffsetJson = {}
    for queue in sorted(positions):
        json_.setdefault(queue.topic, {})[queue.name] = positions[queue]
    return json_


def positions_from_json(json_: Any, lowest: int = 0) -> Positions:
    """What `to_json` wrote, offsets of at least `lowest`. Raises `ValueError` that says where it is something else."""
    return _by_queue(json_, "an offset belongs", lambda value: value if is_long(value, lowest) else None)


def fingerprints_to_json(last: Fingerprints) -> OffsetJson:
    """`{topic: {queue id: [log offset, ms]}}`, as `to_json`."""
    return to_json({queue: list(was) for queue, was in last.items()})


def fingerprints_from_json(json_: Any) -> Fingerprints:
    """What `fingerprints_to_json` wrote. Raises `ValueError` that says where it is something else."""

    def fingerprint(value: Any) -> Fingerprint | None:
        good = isinstance(value, list) and len(value) == 2 and all(is_long(number) for number in value)
        return Fingerprint(*value) if good else None

    return _by_queue(json_, "a log offset and a time belong", fingerprint)


def _by_queue(json_: Any, expected: str, parse: Callable[[Any], T | None]) -> dict[Queue, T]:
    """Raises `ValueError` that says where `json_` is not `{topic: {queue id: value}}`. parse: None for what is none."""
    values: dict[Queue, T] = {}
    for topic, by_queue in json_object(json_, "the top level").items():
        for queue_id, value in json_object(by_queue, repr(topic)).items():
            queue = queue_of(topic, queue_id)
            if queue is None:
                raise ValueError(f"{topic!r} has {queue_id!r} where a queue number belongs")
            parsed = parse(value)
            if parsed is None:
                raise ValueError(f"{topic}/{queue_id} has {shown(value)} where {expected}")
            values[queue] = parsed
    return values


def queue_of(topic: str, name: str) -> Queue | None:
    """Return the queue of a topic with a `Queue.name`, or None if `name` is not one."""
    found = _QUEUE_NAME.fullmatch(name)
    if found is None or int(found["number"]) > _MAX_QUEUE_ID:
        return None
    return Queue(topic, int(found["number"]), broker=found["broker"] or "")


def is_long(json_: Any, lowest: int = 0) -> bool:
    """Whether a value is a Java long of at least `lowest`."""
    return type(json_) is int and lowest <= json_ <= _MAX_LONG


def json_object(json_: Any, where: str) -> dict[str, Any]:
    """A value that is an object. Raises `ValueError`, which names `where`, for another."""
    if not isinstance(json_, dict):
        raise ValueError(f"{where} is {shown(json_)} where an object belongs")
    return json_


def shown(json_: Any) -> str:
    """A value for an error text: short, and JSON may be nested deeper than Python can write it."""
    if isinstance(json_, list | dict):
        return "a list" if isinstance(json_, list) else "an object"
    return json.dumps(json_)[:50]
