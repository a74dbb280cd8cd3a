"""`plan_for`: a decision table from the state of a directory to a recovery plan. No I/O."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Evidence(NamedTuple):
    published: bool
    current: bool  # of this boot; no flush has failed and no broker has appended since
    queues: bool  # queues and index are complete, or are empty and should be
    abort: bool  # a writer, of ours or a broker, did not close the store
    checkpoint: bool  # RocketMQ's checkpoint file has a time


class Point(Enum):
    FIRST_BYTE = auto()
    FLUSHED = auto()  # the published end's flushed offset
    CONFIRMED = auto()  # the published end; later bytes are ignored
    LAST_SEGMENT = auto()  # start of the last segment that begins with a record
    CHECKPOINT = auto()  # start of the last segment whose first record is 3 s older than RocketMQ's checkpoint


class SoundIndexFiles(Enum):
    """Which index files are undamaged. They may lack keys of records after `Plan.begin`."""

    NONE = auto()
    ALL = auto()
    FULL = auto()  # all except the last: each is flushed before the next is created
    CHECKPOINT = auto()  # those that end before RocketMQ's index checkpoint


class Plan(NamedTuple):
    """How to recover a directory.

    begin: start of the walk. trusted: the log is on the device up to this point. filed: index files to keep.
    closed_cleanly: whether the last writer closed the store, so that no bytes are expected after the end.
    """

    begin: Point
    trusted: Point
    filed: SoundIndexFiles = SoundIndexFiles.NONE
    closed_cleanly: bool = False


Y, N, X = True, False, None  # yes, no, either
CASES: list[tuple[tuple[bool | None, ...], Plan | None]] = [
    # published end, current, queues, abort, checkpoint
    ((Y, Y, Y, X, X), None),  # the next append undoes the append of a killed writer
    # First row: the machine was shut down, or a broker appended. Second row: the machine crashed, or a flush failed.
    ((Y, N, Y, N, X), Plan(Point.FLUSHED, Point.FLUSHED, SoundIndexFiles.ALL, closed_cleanly=True)),
    ((Y, N, Y, Y, X), Plan(Point.FLUSHED, Point.FLUSHED, SoundIndexFiles.FULL)),
    ((Y, Y, N, X, X), Plan(Point.FIRST_BYTE, Point.CONFIRMED, SoundIndexFiles.ALL)),
    ((Y, N, N, N, X), Plan(Point.FIRST_BYTE, Point.FLUSHED, SoundIndexFiles.ALL, closed_cleanly=True)),
    ((Y, N, N, Y, X), Plan(Point.FIRST_BYTE, Point.FLUSHED, SoundIndexFiles.FULL)),
    # A broker's directory. Its queues are rebuilt: parts may be missing, and crashes leave stale entries.
    ((N, X, X, N, X), Plan(Point.FIRST_BYTE, Point.LAST_SEGMENT, SoundIndexFiles.ALL, closed_cleanly=True)),
    ((N, X, X, Y, Y), Plan(Point.FIRST_BYTE, Point.CHECKPOINT, SoundIndexFiles.CHECKPOINT)),
    ((N, X, X, Y, N), Plan(Point.FIRST_BYTE, Point.FIRST_BYTE, SoundIndexFiles.NONE)),
]


def plan_for(evidence: Evidence) -> Plan | None:
    for pattern, plan in CASES:
        if all(wanted in (None, found) for wanted, found in zip(pattern, evidence, strict=True)):
            return plan
    raise AssertionError(f"CASES has none for {evidence}")
