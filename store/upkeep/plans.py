"""What a directory needs, by the evidence found in it: a decision table. Nothing is read or written here."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Evidence(NamedTuple):
    """What is found in a directory."""

    published: bool
    current: bool  # it was made since the machine came up, and the log does not go on behind it
    queues: bool  # queues and index are where they were left, or the published end says that there is nothing in them
    abort: bool  # a writer, ours or RocketMQ, did not leave in good order
    checkpoint: bool  # RocketMQ's has a time


class Point(Enum):
    """A log offset."""

    FIRST_BYTE = auto()
    FLUSHED = auto()  # the published end's flushed offset
    CONFIRMED = auto()  # its confirm offset, and nothing behind it counts
    LAST_SEGMENT = auto()  # the last one that begins with a record
    CHECKPOINT = auto()  # the last one whose first record is 3 s older than the checkpoint, as in RocketMQ


class Filed(Enum):
    """Index files that are known to be whole; keys of records behind `begin` may be missing all the same."""

    NONE = auto()
    ALL = auto()
    FULL = auto()  # all but the last: it is begun when the one before is on the device
    CHECKPOINT = auto()  # those that end before RocketMQ's checkpoint of the index


class Plan(NamedTuple):
    """Walk the log from `begin`; up to `trusted` all of it is on the device. Keys that `filed` lacks are filed again.

    left_well: the last writer left in good order, so there should be nothing behind the end.
    """

    begin: Point
    trusted: Point
    filed: Filed = Filed.NONE
    left_well: bool = False


Y, N, X = True, False, None  # yes, no, no matter
CASES: list[tuple[tuple[bool | None, ...], Plan | None]] = [
    # published end, current, queues, abort, checkpoint
    ((Y, Y, Y, X, X), None),  # what a dead writer left is undone by the next append
    # The machine came up, or a broker appended; the machine died.
    ((Y, N, Y, N, X), Plan(Point.FLUSHED, Point.FLUSHED, Filed.ALL, left_well=True)),
    ((Y, N, Y, Y, X), Plan(Point.FLUSHED, Point.FLUSHED, Filed.FULL)),
    ((Y, Y, N, X, X), Plan(Point.FIRST_BYTE, Point.CONFIRMED, Filed.ALL)),  # a part of queues or index is gone
    ((Y, N, N, N, X), Plan(Point.FIRST_BYTE, Point.FLUSHED, Filed.ALL, left_well=True)),
    ((Y, N, N, Y, X), Plan(Point.FIRST_BYTE, Point.FLUSHED, Filed.FULL)),
    # A broker's directory. Its queues are made anew: a part may be missing, and stale entries stay after its crashes.
    ((N, X, X, N, X), Plan(Point.FIRST_BYTE, Point.LAST_SEGMENT, Filed.ALL, left_well=True)),
    ((N, X, X, Y, Y), Plan(Point.FIRST_BYTE, Point.CHECKPOINT, Filed.CHECKPOINT)),
    ((N, X, X, Y, N), Plan(Point.FIRST_BYTE, Point.FIRST_BYTE, Filed.NONE)),
]


def plan_for(evidence: Evidence) -> Plan | None:
    """The first case that matches; None when there is nothing to recover."""
    for pattern, plan in CASES:
        if all(wanted in (None, found) for wanted, found in zip(pattern, evidence, strict=True)):
            return plan
    raise AssertionError(f"CASES has none for {evidence}")
