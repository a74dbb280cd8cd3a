"""The files of one consumer group: offsets, resets, and the lock (`GroupFiles.locked`) that callers hold to change
them.

A member commits in memory, and persists regularly. Offsets never decrease, except by a reset. A reset is recorded for
the present members, whose commits do not count until they have read it:

    consumers/{group}/resets.json    {"count": of all resets, "queues": [[topic, queue id, number, offset, whose], ...]}
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from store.api.group_protocol import ConsumeFromWhere, MessageModel
from store.append.flusher import flush_log
from store.append.locks import among_groups
from store.broker.entries import MemberEntry
from store.broker.members import MemberFiles, Roster
from store.disk.admin_files import MAX_BYTES
from store.disk.atomic import make_folder, read_file, write_file
from store.disk.consumer_offsets import ConsumerOffsets, check_group_name
from store.disk.topics import Topics
from store.format.layout import CONSUMERS_DIR, RETRY_TOPIC_PREFIX
from store.format.strict_json import Int, Long, decode, encode
from store.model.errors import CorruptStore, FlushFailed, system_errors
from store.model.log_protocol import Boundary, Log, Positions, Queue

ALL = ""  # for all members


class GroupOffsets:
    """The offsets of one member's queues. Thread-safe."""

    def __init__(self, files: ConsumerOffsets, group: str, note: Callable[[Queue, int], None]) -> None:
        """note: called with every committed offset, and with 0 for a forgotten queue."""
        self._files = files
        self._group = group
        self._note = note
        self._threads = threading.Lock()
        self._done: Positions = {}
        self._persisted: Positions = {}

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """Return the offsets of queues, as committed here, else as in the files. Queues without one are left out."""
        queues = list(queues)
        with self._threads:
            done = dict(self._done)
        missing = {queue.topic for queue in queues if queue not in done}
        found = (self._files.positions(self._group, missing) if missing else {}) | done
        return {queue: found[queue] for queue in queues if queue in found}

    def commit(self, positions: Positions) -> None:
        """Commit offsets, except those that are lower than before."""
        with self._threads:
            for queue, offset in positions.items():
                if offset > self._done.get(queue, -1):
                    self._note(queue, offset)
                    self._done[queue] = offset

    def put(self, positions: Positions) -> None:
        """Set offsets after a reset, even if they are lower than before."""
        with self._threads:
            for queue, offset in positions.items():
                self._note(queue, offset)
                self._done[queue] = offset

    @property
    def is_persisted(self) -> bool:
        with self._threads:
            return self._done == self._persisted

    def persist(self, queues: Set[Queue], before: Callable[[], None]) -> None:
        """Write the commits in these queues that are ahead of the files.

        before: called after the commits are collected, and before a file changes.
        """
        with self._threads:
            news = {queue: offset for queue, offset in self._done.items() if self._persisted.get(queue) != offset}
        news = {queue: offset for queue, offset in news.items() if queue in queues}
        before()
        advance(self._files, self._group, news)
        with self._threads:
            self._persisted |= {queue: offset for queue, offset in news.items() if queue in self._done}

    def begin(self, positions: Positions) -> None:
        """Set the offsets of queues that have none in the files."""
        there = self._files.positions(self._group, {queue.topic for queue in positions})
        missing = {queue: offset for queue, offset in positions.items() if queue not in there}
        if missing:
            self._files.commit_positions(self._group, missing)

    def forget(self, queues: Iterable[Queue]) -> None:
        with self._threads:
            for queue in queues:
                if self._done.pop(queue, None) is not None:
                    self._note(queue, 0)
                self._persisted.pop(queue, None)


def advance(files: ConsumerOffsets, group: str, positions: Positions) -> None:
    """Raise a group's offsets in its files. Offsets that are not ahead of the files are ignored."""
    there = files.positions(group, {queue.topic for queue in positions})
    larger = {queue: offset for queue, offset in positions.items() if offset > there.get(queue, -1)}
    if larger:
        files.set_positions(group, larger)


class _ResetsFile(msgspec.Struct):
    count: int
    queues: list[tuple[str, Int, int, Long, str]]


class Reset(NamedTuple):
    """A reset of a queue. number: counts the group's resets. offset: where to continue. whose: an instance, or ALL."""

    number: int
    offset: int
    whose: str = ALL


class Resets:
    """The record of a group's resets, from which its members learn of them."""

    def __init__(self, root: Path, group: str) -> None:
        self._path = root / CONSUMERS_DIR / group / "resets.json"

    def read(self) -> tuple[int, Mapping[tuple[Queue, str], Reset]]:
        """Return the number of resets, and the last reset of each queue and instance. Raises `CorruptStore`."""
        try:
            text = read_file(self._path, MAX_BYTES)
        except FileNotFoundError:
            return 0, {}
        try:
            noted = decode(text, _ResetsFile)
        except ValueError as error:
            raise CorruptStore(f"{self._path}: this file is not the record of a reset ({error}). Delete it") from error
        return noted.count, {
            (Queue(topic, queue_id), whose): Reset(number, offset, whose)
            for topic, queue_id, number, offset, whose in noted.queues
        }

    def since(self, count: int, instance: str) -> tuple[int, Positions]:
        """Return the number of resets, and the offsets that the resets after the first `count` set for an instance."""
        now, resets = self.read()
        return now, {
            queue: reset.offset
            for (queue, whose), reset in resets.items()
            if reset.number > count and whose in (ALL, instance)
        }

    def add(self, positions: Positions, whose: str = ALL, by_all: int = 0, by_any: int = 0) -> None:
        """Record a reset.

        by_all: the number of resets that all members have seen; these are dropped.
        by_any: the highest number that a member has seen, because the file may be lost or older.
        """
        count, resets = self.read()
        count = max(count, by_any)
        new = {(queue, whose): Reset(count + 1, offset, whose) for queue, offset in positions.items()}
        kept = {key: reset for key, reset in resets.items() if key not in new and reset.number > by_all}
        queues = [(queue.topic, queue.queue_id, *reset) for (queue, _), reset in (kept | new).items()]
        make_folder(self._path.parent)
        write_file(self._path, encode(_ResetsFile(count + 1, queues)))

    def forget(self) -> None:
        """Delete the record. Call it if the group has no members."""
        with system_errors(self._path):
            self._path.unlink(missing_ok=True)


def first_offsets(
    log: Log,
    topic: str,
    committed: Callable[[Iterable[Queue]], Positions],
    where: ConsumeFromWhere,
    timestamp: int = 0,
) -> Positions:
    """Return initial offsets, for `Member.begin`, of a topic's queues in which a group has none.

    If the group has an offset in any queue of the topic, the other queues were added later, and begin at their first
    message. RocketMQ's consumer applies `where` to added queues, too, and so skips messages put before it noticed the
    queue. timestamp: ms since 1970.
    """
    queues = log.topics().get(topic, ())
    known = committed(queues)
    bounds = log.bounds(queue for queue in queues if queue not in known)
    if known or topic.startswith(RETRY_TOPIC_PREFIX) or where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return {queue: found.min_offset for queue, found in bounds.items()}
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return {queue: found.max_offset for queue, found in bounds.items()}
    return log.offsets_by_time(bounds, timestamp, Boundary.LOWER)


_logger = logging.getLogger("store")


class GroupFiles:
    def __init__(self, root: Path, name: str, timeout: float) -> None:
        """Raise `InvalidGroup` for an invalid name. timeout: seconds to wait for the lock."""
        check_group_name(name)
        self.root = root
        self.name = name
        self._timeout = timeout
        self.offsets = ConsumerOffsets(root)
        self.roster = Roster(root, name)
        self.resets = Resets(root, name)
        self._topics = Topics(root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock all groups of this store, and remove dead members.

        Raises `StoreBusy`, and `StoreLocked` while a RocketMQ broker runs.
        """
        with among_groups(self.root, self._timeout):
            self.roster.remove_dead(self._inherit)
            yield

    def enter(self, entry: MemberEntry) -> MemberFiles:
        """Add a member, and create its group if it is new. Raises `GroupConflict`."""
        self.offsets.settings.create(self.name)
        return self.roster.enter(entry)

    def reset(self, positions: Positions) -> None:
        """Set offsets for all members, and notify them. Raises `UnknownTopic`, `OffsetOutOfRange`."""
        self._reset([self.offsets, *ConsumerOffsets.of_instances(self.root, self.name)], positions, ALL)

    def reset_by(self, entry: MemberEntry, positions: Positions) -> None:
        """Reset the member's own offsets if it is broadcasting, otherwise the group's."""
        if entry.model is MessageModel.CLUSTERING:
            self.reset(positions)
        else:
            self._reset([self.offsets_of(entry)], positions, entry.instance)

    def _reset(self, files: Iterable[ConsumerOffsets], positions: Positions, whose: str) -> None:
        for queue in positions:
            self._topics.check_queue(queue.topic, queue.queue_id)
        for offsets in files:
            offsets.commit_positions(self.name, positions)
        self._record_reset(positions, whose)

    def _record_reset(self, positions: Positions, whose: str) -> None:
        if members := self.roster.present():
            known = [entry.resets for entry in members]
            self.resets.add(positions, whose, min(known), max(known))
        else:
            self.resets.forget()

    def offsets_of(self, entry: MemberEntry) -> ConsumerOffsets:
        """Return the files with a member's offsets. A broadcasting member has its own."""
        if entry.model is MessageModel.CLUSTERING:
            return self.offsets
        return ConsumerOffsets.of_instance(self.root, self.name, entry.instance)

    def existing(self, queues: Set[Queue]) -> set[Queue]:
        counts = self._topics.queue_counts()
        return {queue for queue in queues if queue.queue_id < counts.get(queue.topic, 0)}

    def _inherit(self, entry: MemberEntry, done: Positions) -> None:
        """Take over offsets, except in queues that were reset after the dead member's last commit."""
        _, reset = self.resets.since(entry.resets, entry.instance)
        counts = self.existing(done.keys() - reset.keys())
        if not counts:
            return
        try:
            flush_log(self.root)  # store the messages that it sent back before offsets pass them
        except FlushFailed as failure:
            _logger.warning(
                "group %s: the progress of member %s is lost, so its last messages are delivered again: %s",
                self.name,
                entry.id,
                failure,
            )
        else:
            advance(self.offsets_of(entry), self.name, {queue: done[queue] for queue in counts})
