"""`verify` checks a store in one walk of the log. `repair` rebuilds its queues and index from the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import numpy as np

from store.append.locks import alone
from store.append.log_end import LogEnd
from store.disk.atomic import make_folder
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queues import ConsumeQueues, Ends
from store.disk.consumer_offsets import ConsumerOffsets, delay_offsets
from store.disk.dispatch import LogChunk, index_keys, walk
from store.disk.index import Index
from store.disk.queue_ends import QueueEnds
from store.disk.topics import Topics
from store.format.columns import LAST_MS
from store.format.layout import (
    ABORT_FILE,
    CONSUMER_OFFSETS_FILE,
    DELAY_OFFSETS_FILE,
    GROUPS_FILE,
    INDEX_DIR,
    QUEUE_ENDS_FILE,
    RECORD_HEADER,
    REPAIR_DIR,
    TOPICS_FILE,
)
from store.format.stored_message import decode_record
from store.model.errors import CorruptRecord, CorruptStore, OffsetLost, system_errors
from store.upkeep.deletion import topics_used_after_deletion
from store.upkeep.findings import COPY, REPAIR, UNREADABLE, Enough, Report, broken_bodies
from store.upkeep.index_check import IndexCheck
from store.upkeep.plans import Plan, Point, SoundIndexFiles, plan_for
from store.upkeep.queues_check import QueuesCheck
from store.upkeep.recovery import Recovery
from store.upkeep.store_directory import StoreDirectory

Progress = Callable[[int, int], None]  # bytes of the log: checked, total

_DISPATCH_SECONDS = 1.0  # a running broker's queues lag at most so far behind its log
_SIZE_BYTES = RECORD_HEADER["total_size"].itemsize

_BAD_END = (
    "no sound record from here on, although the last writer closed the store. If a writer was killed, it may have "
    f"left these bytes, and {REPAIR} truncates them. Otherwise messages are damaged"
)
_LOST_END = (
    "the queue has entries of records after log offset {end}, where sound records end, although the last writer "
    f"closed the store. If the machine crashed, it may have lost these records, and {REPAIR} truncates the entries. "
    "Otherwise the log is damaged, or segments are missing"
)


def verify(
    path: str | os.PathLike[str],
    progress: Progress = lambda done, total: None,
    config: StoreConfig | str | os.PathLike[str] | None = None,
) -> Report:
    """Check a store of this project or of a RocketMQ broker. Nothing is written.

    Other processes may append; messages published after the start are not checked. Memory: a few chunks of the log, a
    few values for each queue, the slots of one index file. config: as in `MessageStore.open`; needed for a broker's
    index whose files have other sizes than RocketMQ's default. Raises `NotAStore`, `ConfigError`; every other problem
    is a finding.
    """
    directory = StoreDirectory.at(path)
    directory.must_be_store()
    verifier = _Verifier(directory, directory.configuration(config), progress)
    with suppress(Enough), system_errors(directory.root):
        try:
            verifier.run()
        except CorruptStore as error:
            verifier.add(str(directory.root), f"{error}. Nothing more was checked", COPY)
    return verifier.report


class _Verifier:
    def __init__(self, directory: StoreDirectory, config: StoreConfig, progress: Progress) -> None:
        self.report = Report()
        self._root = directory.root
        self._directory = directory
        self._progress = progress
        self._config = config
        self._log = CommitLog(self._root, self._config.mappedFileSizeCommitLog, writable=False)
        # by topic and log offset; False for deleted topics and batch queues
        self._is_compared: Callable[[str, int], bool] = lambda topic, at: True
        self._deletions: dict[str, int] = {}
        self._is_damaged = False

    def add(self, where: str, what: str, remedy: str) -> None:
        self.report.add(where, what, remedy)

    def run(self) -> None:
        self._check_admin_files()
        with closing(LogEnd(self._root, self._log)) as log_end:
            begin, end = self._log.min_offset(), log_end.confirm_offset
            # Read the topics again, for new ones. Errors were reported above.
            with suppress(CorruptStore):
                self._look_at_topics(is_told=False)
            size = self._config.mappedFileSizeConsumeQueue
            by_log = log_end.by_log
            queues = ConsumeQueues(
                self._root, size, writable=False, is_message=log_end.is_message, is_brokers=lambda: by_log
            )
            patience = _DISPATCH_SECONDS if log_end.by_log else 0.0
            queues_check = QueuesCheck(queues, self._log, self.report, self._is_compared, self._deletions, patience)
            index = Index.of(self._root, self._config, writable=False)
            index_check = IndexCheck(index, self._log, end, is_complete=not log_end.by_log)
            for chunk in self._walk(begin, end, queues_check):
                self.report.records += int(np.searchsorted(chunk.offsets, end))
                self._check_times(chunk)
                self._check_bodies(chunk)
                keys, with_tags = index_keys(chunk, tags=False), index_keys(chunk, tags=True)
                index_check.compare(keys, with_tags, chunk.begin, min(chunk.end, end))
                queues_check.compare(chunk, end)
                self._progress(min(chunk.end, end) - begin, end - begin)
            self.report.log_bytes = max(0, end - begin)
            noted = {} if log_end.by_log else self._recorded_ends(end)
            queues_check.finish(end, noted, self._is_gone, is_damaged=self._is_damaged)
            index_check.finish()
            left = self._bytes_after_end(end)
            behind = [self._place(at) for at in left] + queues_check.behind(end, of_records=log_end.by_log)
            is_closed = not (self._root / ABORT_FILE).exists()  # read after the queues and before the end
            is_over = end == log_end.confirm_offset
            is_at_rest = log_end.is_at_rest and is_over
            if log_end.by_log and is_closed and is_over:
                for where in [self._place(end)] if left else behind:
                    self.add(where, _BAD_END if left else _LOST_END.format(end=end), COPY)
            if is_at_rest:  # otherwise an append is running, or the next one undoes it
                for where in behind:
                    self.add(where, "bytes are left after the end", REPAIR)
            for where, what in index_check.findings(is_at_rest=is_at_rest):
                self.add(where, what, REPAIR)

    def _check_admin_files(self) -> None:
        groups = ConsumerOffsets(self._root)
        looks: tuple[tuple[str, Callable[[], object], str], ...] = (
            (TOPICS_FILE, self._look_at_topics, COPY),
            (CONSUMER_OFFSETS_FILE, groups.all_offsets, COPY),
            (GROUPS_FILE, groups.settings.all, COPY),
            (DELAY_OFFSETS_FILE, partial(delay_offsets, self._root), COPY),
            (QUEUE_ENDS_FILE, partial(QueueEnds.sound, self._root), REPAIR),
        )
        for name, look, remedy in looks:
            try:
                look()
            except CorruptStore as error:
                self.add(name, str(error), remedy)

    def _look_at_topics(self, *, is_told: bool = True) -> None:
        topics = Topics(self._root)
        topics.queue_counts()
        self._deletions = topics.deletions()
        for topic in topics_used_after_deletion(self._root) if is_told else ():
            what = (
                f"topic {topic} has messages after its deletion, which readers do not see, so this file is older "
                "than the log"
            )
            self.add(TOPICS_FILE, what, "open the store for writing: that lists the topic again")
        table = topics.table()
        self._is_compared = lambda topic, at: topic not in table.batches and table.is_there(topic, at)

    def _recorded_ends(self, end: int) -> Ends:
        """Return the recorded ends of existing queues, no ends if they were recorded for a longer log."""
        with suppress(CorruptStore):  # reported by _check_admin_files
            noted, topics = QueueEnds.sound(self._root), Topics(self._root).queue_counts()
            if noted is not None and noted.at <= end:
                noted.forget(self._deletions)
                return {name: had for name, had in noted.of.items() if name[0] in topics}
        return {}

    def _is_gone(self, topic: str) -> bool:
        with suppress(CorruptStore):
            return Topics(self._root).deletions().get(topic) != self._deletions.get(topic)
        return False

    def _walk(self, at: int, end: int, queues: QueuesCheck) -> Iterator[LogChunk]:
        """Yield the sound records of the log, and report the bytes between them."""
        while at < end:
            for chunk in walk(self._log, at):
                yield chunk
                at = chunk.end
                if at >= end:
                    return
            first = self._log.min_offset()
            if at < first:  # retention deleted this part concurrently
                at = first
                queues.forget_offsets()
                continue
            try:
                resume, what = self._resume(at, end, queues), self._damage(at)
            except OffsetLost:  # by retention
                continue
            self._is_damaged = True
            self.add(self._place(at), f"{what}; {resume - at} bytes up to log offset {resume} cannot be read", COPY)
            at = resume

    def _check_times(self, chunk: LogChunk) -> None:
        """Report impossible store times, which no CRC covers."""
        times = chunk.records.field("store_timestamp")
        wrong = chunk.offsets[(times <= 0) | (times > LAST_MS)]
        if len(wrong):
            self.add(
                self._place(int(wrong[0])), f"{len(wrong)} records have impossible store times, from here on", COPY
            )

    def _check_bodies(self, chunk: LogChunk) -> None:
        broken = broken_bodies(chunk, self._config.maxDecompressedMessageSize)
        if broken:
            what = f"{len(broken)} bodies cannot be read, though their checksums are right; the first: {broken[0].what}"
            self.add(self._place(broken[0].at), what, UNREADABLE)

    def _damage(self, at: int) -> str:
        segments = self._log.segments
        if not segments.exists(at):
            return "the segment is missing"
        size = int.from_bytes(segments.read(at, _SIZE_BYTES), "big", signed=True)
        if not self._log.can_be_record(at, size):
            return f"no record has a length of {size}"
        try:
            record = decode_record(segments.read(at, size), "")
        except CorruptRecord as error:
            return str(error).removeprefix(": ").partition(";")[0]
        if record.physical_offset != at:
            return f"the record names log offset {record.physical_offset}"
        return f"{record.topic!r} cannot be a topic"

    def _resume(self, at: int, end: int, queues: QueuesCheck) -> int:
        following = next((start for start in self._log.segments.starts() if start > at), end)
        if not self._log.segments.exists(at):
            return min(end, following)
        return min(end, following, queues.next_record(at, end))

    def _place(self, at: int) -> str:
        start = at - at % self._log.segments.size
        return f"{self._log.segments.path(start).relative_to(self._root)} @ {at - start}"

    def _bytes_after_end(self, end: int) -> list[int]:
        segments = self._log.segments
        found = [segments.first_not_zero(end, start + segments.size) for start in segments.starts()[-1:]]
        return [at for at in found if at is not None]


def repair(path: str | os.PathLike[str], config: StoreConfig | str | os.PathLike[str] | None = None) -> None:
    """Rebuild queues and index from the log, and cut off all bytes after the log's end.

    config: as for `verify`. Raises `StoreLocked` if another process writes, `CorruptStore` for damage beyond repair,
    and `ConfigError` if a broker's index files have other sizes than `config`. The store is then unchanged.
    """
    directory = StoreDirectory.at(path)
    directory.must_be_store(writing=True)
    root, settings = directory.root, directory.configuration(config)
    log = CommitLog(root, settings.mappedFileSizeCommitLog, writable=True)
    index = Index.of(root, settings, writable=True)
    made = root / REPAIR_DIR
    with alone(root, "a repair"), system_errors(root):
        # Only the store's own settings are sure to have the right sizes. With others, a sound file looks damaged.
        if not directory.has_configuration:
            index.check()
        shutil.rmtree(made, ignore_errors=True)  # left by a killed repair
        new = Index.of(made, settings, writable=True) if settings.messageIndexEnable else index
        recovery = Recovery(root, log, new, settings.mappedFileSizeConsumeQueue)
        evidence = directory.evidence(log, index, settings.mappedFileSizeConsumeQueue, QueueEnds.read(root), alone=True)
        plan = plan_for(evidence) or Plan(Point.FIRST_BYTE, Point.CONFIRMED)
        filed = SoundIndexFiles.NONE if settings.messageIndexEnable else SoundIndexFiles.ALL
        decision = recovery.decide(plan._replace(begin=Point.FIRST_BYTE, filed=filed))
        decision = decision._replace(keys_from=decision.end)  # the new index is not in its folder yet
        directory.mark_open()
        with _in_place_of(made, root) if settings.messageIndexEnable else nullcontext():
            recovery.carry_out(decision)
            new.flush()
        directory.save_configuration(settings)
        directory.mark_closed()


@contextmanager
def _in_place_of(made: Path, root: Path) -> Iterator[None]:
    make_folder(made / INDEX_DIR)
    try:
        yield
        shutil.rmtree(root / INDEX_DIR, ignore_errors=True)
        (made / INDEX_DIR).rename(root / INDEX_DIR)
    finally:
        shutil.rmtree(made)
