"""The offsets of micro-batches and real-time batches in the checkpoint, and the JSON of offsets in options.

The offset of a micro-batch is JSON in Spark's checkpoint, so the format must stay compatible between versions:

    {"orders": {"0": 23, "1": 345}, "$start": {"orders": {"1": 300}},
     "$last": {"orders": {"0": [104857, 1763772000123]}}}

It has the *next* offset to read in each queue. `$start` pins the begin of this batch in a queue if it is not the end of
the previous batch: if the queue is read for the first time, or after lost messages. Without a pin, a replay of the
first batch could begin elsewhere, because Spark asks for the initial offset again, and "latest" moves.

`$last` has the fingerprint of each queue's last message before the next offset: log offset (bytes) and store time (ms).
If another message is at this place now, the queue was replaced. A queue without a readable last message is left out.
`$last` is always present, to distinguish these offsets from other sources'.

Topic names contain no `$`. An unknown key that begins with `$` was written by a newer version.

The end of a real-time batch is not known when it is planned. Its offset has the begins of each task (`$from`), and the
epoch and reader under which the ledger records the ends. `$last` is about the messages before `$from`:

    {"$epoch": 7, "$reader": "5f0c2b9e...", "$from": [{"orders": {"0": 23}}, {"orders": {"1": 345}}], "$last": {}}

The JSON may be damaged or malicious, so all of it is validated before use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from pyspark_mq.errors import CheckpointError
from pyspark_mq.offsets.losses import Loss, loss_before
from store.model.integers import LONG_MAX
from store.model.log_protocol import Bounds, Fingerprint, Fingerprints, Positions, Queue, QueueRange

_START = "$start"
_LAST = "$last"
_EPOCH = "$epoch"
_READER = "$reader"
_FROM = "$from"

_OF_EPOCH = {"epoch": _EPOCH, "reader": _READER, "tasks": _FROM, "last": _LAST}
READER_ID = re.compile(r"[0-9a-f]{32}")  # the name of a folder in the ledger

T = TypeVar("T")
OffsetJson = dict[str, dict[str, Any]]
_QUEUE_NAME = re.compile(r"(?:(?P<broker>[^:]{1,255}):)?(?P<number>0|[1-9][0-9]{0,9})")
_MAX_QUEUE_ID = (1 << 31) - 1  # Java's maximum


def to_json(positions: Mapping[Queue, int | list[int]]) -> OffsetJson:
    json_: OffsetJson = {}
    for queue in sorted(positions):
        json_.setdefault(queue.topic, {})[queue.name] = positions[queue]
    return json_


def positions_from_json(json_: Any, lowest: int = 0) -> Positions:
    """Parse the JSON of `to_json`, with offsets of at least `lowest`. Raises `ValueError`."""
    return _by_queue(json_, "an offset", lambda value: value if is_long(value, lowest) else None)


def fingerprints_to_json(last: Fingerprints) -> OffsetJson:
    """Return `{topic: {queue id: [log offset, ms]}}`."""
    return to_json({queue: list(was) for queue, was in last.items()})


def fingerprints_from_json(json_: Any) -> Fingerprints:
    """Parse the JSON of `fingerprints_to_json`. Raises `ValueError`."""

    def fingerprint(value: Any) -> Fingerprint | None:
        good = isinstance(value, list) and len(value) == 2 and all(is_long(number) for number in value)
        return Fingerprint(*value) if good else None

    return _by_queue(json_, "a log offset and a time", fingerprint)


def _by_queue(json_: Any, expected: str, parse: Callable[[Any], T | None]) -> dict[Queue, T]:
    values: dict[Queue, T] = {}
    for topic, by_queue in json_object(json_, "the JSON").items():
        for queue_id, value in json_object(by_queue, repr(topic)).items():
            queue = queue_of(topic, queue_id)
            if queue is None:
                raise ValueError(f"{topic!r} has {queue_id!r} instead of a queue number")
            parsed = parse(value)
            if parsed is None:
                raise ValueError(f"{topic}/{queue_id} has {shown(value)} instead of {expected}")
            values[queue] = parsed
    return values


def queue_of(topic: str, name: str) -> Queue | None:
    found = _QUEUE_NAME.fullmatch(name)
    if found is None or int(found["number"]) > _MAX_QUEUE_ID:
        return None
    return Queue(topic, int(found["number"]), broker=found["broker"] or "")


def is_long(json_: Any, lowest: int = 0) -> bool:
    return type(json_) is int and lowest <= json_ <= LONG_MAX


def json_object(json_: Any, where: str) -> dict[str, Any]:
    if not isinstance(json_, dict):
        raise ValueError(f"{where} is {shown(json_)} instead of an object")
    return json_


def shown(json_: Any) -> str:
    """Return a value for an error message.

    Containers are only named, because JSON may be nested too deeply to write it.
    """
    if isinstance(json_, list | dict):
        return "a list" if isinstance(json_, list) else "an object"
    return json.dumps(json_)[:50]


@dataclass(frozen=True)
class StreamOffset:
    """The end of one micro-batch: the next offset of each queue. starts: `$start`. last: `$last`."""

    next: Positions
    starts: Positions = field(default_factory=dict)
    last: Fingerprints = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON in a canonical order, because Spark compares offsets as text."""
        pinned = {_START: to_json(self.starts)} if self.starts else {}
        return {**to_json(self.next), **pinned, _LAST: fingerprints_to_json(self.last)}

    @classmethod
    def from_json(cls, json_: Any) -> StreamOffset:
        """Parse an offset. Raises `CheckpointError` for JSON that `to_json` of this version does not write."""
        if isinstance(json_, dict):
            _refuse_newer(json_, (_START, _LAST))
        try:
            if _LAST not in json_object(json_, "the JSON"):
                raise ValueError(f"{_LAST} is missing")
            return cls(
                positions_from_json(_bare(json_)),
                positions_from_json(json_.get(_START, {})),
                fingerprints_from_json(json_[_LAST]),
            )
        except ValueError as error:
            raise CheckpointError(
                f"The checkpoint has an offset that this source cannot read: {error}. If another source wrote the "
                "checkpoint, give this query its own checkpoint location. Otherwise the checkpoint is "
                "damaged: restore it from a copy, or start with a new location, where the query begins at "
                "startingOffsets"
            ) from error


class _EpochJson(msgspec.Struct, forbid_unknown_fields=True, rename=_OF_EPOCH):
    epoch: Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
    reader: Annotated[str, msgspec.Meta(pattern=rf"\A{READER_ID.pattern}\Z")]
    tasks: list[Any]
    last: Any


@dataclass(frozen=True)
class EpochOffset:
    """The end of one real-time batch.

    epoch: the number of the batch.
    reader: the id of the query's run that planned it, 32 hexadecimal digits.
    tasks: the begin of each task's queues.
    last: fingerprints of the messages before each begin, if any.
    """

    epoch: int
    reader: str
    tasks: tuple[Positions, ...]
    last: Fingerprints = field(default_factory=dict)

    @property
    def begin(self) -> Positions:
        return {queue: offset for task in self.tasks for queue, offset in task.items()}

    def last_of(self, task: Positions) -> Fingerprints:
        return {queue: self.last[queue] for queue in task if queue in self.last}

    def to_json(self) -> dict[str, Any]:
        begin = [to_json(task) for task in self.tasks]
        return {_EPOCH: self.epoch, _READER: self.reader, _FROM: begin, _LAST: fingerprints_to_json(self.last)}

    @classmethod
    def from_json(cls, json_: Any) -> EpochOffset | None:
        """Parse an offset. Return None for the offset of a micro-batch. Raises `CheckpointError`."""
        if not isinstance(json_, dict) or _EPOCH not in json_:
            return None
        _refuse_newer(json_, tuple(_OF_EPOCH.values()))
        try:
            found = msgspec.convert(json_, _EpochJson)
            return cls(found.epoch, found.reader, _tasks(found.tasks), fingerprints_from_json(found.last))
        except ValueError as error:
            raise CheckpointError(
                f"The checkpoint has a damaged real-time offset: {error}. Restore the checkpoint from a copy, or use "
                "a new checkpoint location"
            ) from error


def _refuse_newer(json_: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(key for key in json_ if key.startswith("$") and key not in known)
    if unknown:
        raise CheckpointError(
            f"The checkpoint has an offset with {unknown[0]!r}, which a newer pyspark-mq wrote. Upgrade pyspark-mq, "
            "or use a new checkpoint location"
        )


class BatchStart(NamedTuple):
    """Where a batch begins in each queue, and the losses before that.

    starts: the part of `begin` to write into the batch's end offset. last: fingerprints in the previous offset.
    """

    begin: Positions
    starts: Positions
    losses: list[Loss]
    last: Fingerprints


def begin_batch(start: StreamOffset, bounds: Mapping[Queue, Bounds], replaced: Collection[Queue] = ()) -> BatchStart:
    """Return the begin of the batch after `start`.

    replaced: queues in which the message before `start.next` is not the one that was read. In a new queue, and after a
    loss, the batch begins at the queue's first message, and this begin is pinned. A pin is kept until a batch moves
    past it.
    """
    begin: Positions = {}
    starts: Positions = {}
    losses = []
    for queue in [*bounds, *(start.next.keys() - bounds.keys())]:
        position, there = start.next.get(queue), bounds.get(queue)
        loss = None if position is None else loss_before(queue, position, there, queue in replaced)
        if loss is not None:
            losses.append(loss)
            position = None
        if there is not None:
            begin[queue] = there.min_offset if position is None else position
            if position is None or start.starts.get(queue) == position:
                starts[queue] = begin[queue]
    kept = {queue for queue, position in begin.items() if position == start.next.get(queue) and queue not in replaced}
    return BatchStart(begin, starts, losses, {queue: was for queue, was in start.last.items() if queue in kept})


def batch_ranges(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Return the non-empty ranges between two offsets.

    They depend only on the offsets, so a replay reads the same ranges.
    """
    ranges = []
    for queue, until in end.next.items():
        begin = end.starts.get(queue, start.next.get(queue))
        if begin is None:
            raise CheckpointError(
                f"The checkpoint does not record where {queue} begins. Restore the checkpoint from a copy, or "
                "use a new location"
            )
        if begin < until:
            ranges.append(QueueRange(queue, begin, until))
    return ranges


def _bare(json_: dict[str, Any]) -> dict[str, Any]:
    return {topic: by_queue for topic, by_queue in json_.items() if topic not in (_START, _LAST)}


def _tasks(json_: list[Any]) -> tuple[Positions, ...]:
    tasks = tuple(positions_from_json(task) for task in json_)
    seen: set[Queue] = set()
    for queue in (queue for task in tasks for queue in task):
        if queue in seen:
            raise ValueError(f"{_FROM} names {queue} twice")
        seen.add(queue)
    return tasks
