"""`Retention`: delete old log segments, then queue and index files without records (CleanCommitLogService).

Each call is one step. It never deletes the last segment with a record. A process that has a deleted file open can still
read it; the space is free when the file is closed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from store.disk.atomic import sync_directory
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queues import ConsumeQueues
from store.disk.index import Index
from store.model.errors import StoreFull, system_errors

_SECONDS_PER_HOUR = 3600
Files = list[tuple[str, int]]  # path, bytes on the device


class CleanReason(Enum):
    """Why files are deleted or not. The values are texts for users."""

    DISK_FULL = "the disk is fuller than diskSpaceCleanForciblyRatio: the oldest segments are deleted at any age"
    FORCED = "all segments but the last are deleted at any age"
    DISK_FILLING = "the disk is fuller than diskMaxUsedSpaceRatio: segments older than fileReservedTime are deleted"
    HOUR = "it is an hour of deleteWhen: segments older than fileReservedTime are deleted"
    ASKED = "segments older than fileReservedTime are deleted"
    NOT_NOW = "it is no hour of deleteWhen, and the disk has space"

    @property
    def ignores_age(self) -> bool:
        return self in (CleanReason.DISK_FULL, CleanReason.FORCED)


class CleanMoment(NamedTuple):
    now: float  # seconds since 1970
    hour: int  # local, 0 to 23
    used_percent: int
    asked: bool = False  # ignore deleteWhen
    forced: bool = False  # delete at any age


class LogSegment(NamedTuple):
    start: int  # log offset
    modified: float  # seconds since 1970


class CleanDecision(NamedTuple):
    reason: CleanReason
    starts: list[int]


def decide(config: StoreConfig, moment: CleanMoment, segments: list[LogSegment]) -> CleanDecision:
    """Return the segments to delete in one step, at most `deleteFileBatchMax`. No I/O.

    segments: in ascending order, without the last. As in RocketMQ, the first segment that is too young stops the
    search: no segment after it is deleted.
    """
    reason = _reason(config, moment)
    if reason is CleanReason.NOT_NOW:
        return CleanDecision(reason, [])
    kept_since = moment.now - config.fileReservedTime * _SECONDS_PER_HOUR
    expired = takewhile(lambda each: reason.ignores_age or each.modified <= kept_since, segments)
    return CleanDecision(reason, [each.start for each in expired][: config.deleteFileBatchMax])


def _reason(config: StoreConfig, moment: CleanMoment) -> CleanReason:
    if config.cleanFileForciblyEnable and moment.used_percent > config.diskSpaceCleanForciblyRatio:
        return CleanReason.DISK_FULL
    if moment.forced:
        return CleanReason.FORCED
    if moment.used_percent > config.diskMaxUsedSpaceRatio:
        return CleanReason.DISK_FILLING
    if moment.hour in config.delete_hours:
        return CleanReason.HOUR
    return CleanReason.ASKED if moment.asked else CleanReason.NOT_NOW


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The files that one step deleted, or would delete.

    log, queues, index: paths, oldest first.
    taken: bytes that they took on the device.
    min_offset: the log's first offset after the step.
    kept: number of expired segments that stay, because they have messages that are not archived or delivered yet.
    """

    reason: CleanReason
    min_offset: int
    used_percent: int
    taken: int = 0
    log: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    index: list[str] = field(default_factory=list)
    kept: int = 0


class Retention:
    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        log: CommitLog,
        index: Index,
        queues: ConsumeQueues,
    ) -> None:
        self._root = root
        self._config = config
        self._log = log
        self._index = index
        self._queues = queues

    def decide(
        self, confirm_offset: int, now: float | None, kept_from: int | None = None, *, asked: bool, forced: bool
    ) -> tuple[CleanDecision, int, int]:
        """Return the decision, the device's usage in percent, and `Cleaned.kept`.

        kept_from: log offset of the first record that is not archived or delivered yet.
        """
        used, now = used_percent(self._root), time.time() if now is None else now
        moment = CleanMoment(now, time.localtime(now).tm_hour, used, asked, forced)
        segments, size = list(self._candidates(confirm_offset)), self._log.segments.size
        free = [each for each in segments if kept_from is None or each.start + size <= kept_from]
        decision = decide(self._config, moment, free)
        return decision, used, len(decide(self._config, moment, segments).starts) - len(decision.starts)

    def _candidates(self, confirm_offset: int) -> Iterator[LogSegment]:
        segments = self._log.segments
        for start in segments.starts()[:-1]:
            if start + segments.size < confirm_offset:
                with suppress(FileNotFoundError):
                    yield LogSegment(start, segments.modified(start))

    def preview(self, decision: CleanDecision, used: int, kept: int) -> Cleaned:
        """Return what `clean` would delete, without queue and index files. Deletes nothing."""
        paths, taken = self._of_log(decision, self._log.segments.taken)
        return Cleaned(decision.reason, self._log.min_offset(), used, taken, paths, kept=kept)

    def clean(
        self, decision: CleanDecision, used: int, kept: int, held: Callable[[], AbstractContextManager[None]]
    ) -> Cleaned:
        """Execute a decision. Also delete queue files that an earlier step left.

        held: acquires the append lock, for deleting files to which appends may write. Segments are deleted without the
        lock: that is slow, and no process writes to them.
        """
        paths, taken = self._of_log(decision, self._log.segments.delete)
        with suppress(FileNotFoundError):  # sync: segments that a machine crash restores would have no entries
            sync_directory(self._log.segments.directory)
        with held():
            minimum, queue_files, index_files = self._of_the_rest()
        taken += sum(length for _, length in (*queue_files, *index_files))
        queues, index = ([path for path, _ in files] for files in (queue_files, index_files))
        return Cleaned(decision.reason, minimum, used, taken, paths, queues, index, kept)

    def _of_the_rest(self) -> tuple[int, Files, Files]:
        minimum = self._log.min_offset()
        queue_files = [file for name in self._queues.existing() for file in self._queues.of(*name).expire(minimum)]
        self._queues.close_deleted()
        return minimum, queue_files, self._index.expire(minimum)

    def _of_log(self, decision: CleanDecision, take: Callable[[int], int]) -> tuple[list[str], int]:
        paths, taken = [], 0
        for start in decision.starts:
            with suppress(FileNotFoundError):
                taken += take(start)
                paths.append(str(self._log.segments.path(start)))
        return paths, taken


def used_percent(path: Path) -> int:
    """Return the usage of a path's device in percent, rounded up, as `df` shows it to an unprivileged user."""
    with system_errors(path):
        space = os.statvfs(path)
    used = space.f_blocks - space.f_bfree
    return -(-100 * used // max(1, used + space.f_bavail))


def refuse_when_full(path: Path, config: StoreConfig) -> None:
    """Raise `StoreFull` above `diskSpaceWarningLevelRatio`, where RocketMQ rejects puts."""
    used = used_percent(path)
    if used > config.diskSpaceWarningLevelRatio:
        raise StoreFull(
            f"{path}: the disk is {used}% full, more than diskSpaceWarningLevelRatio="
            f"{config.diskSpaceWarningLevelRatio}. Nothing of the failed call is visible. Free some space "
            "('pyspark-mq clean' deletes old segments), or raise the ratio"
        )
