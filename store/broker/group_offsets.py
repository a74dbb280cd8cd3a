"""How far a group has read: RocketMQ's ConsumerOffsetManager, as one of the group's members uses it.

A member commits in memory, and persists now and then. Offsets never go backwards, unless somebody resets them; who
resets leaves a note for the members that consume meanwhile, and what they commit counts no longer until they have
read it:

    consumers/{group}/resets.json    {"count": of all resets, "queues": [[topic, queue id, number, offset, whose], ...]}
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import msgspec

from store.api.group_protocol import ConsumeFromWhere
from store.files.admin_files import MAX_BYTES
from store.files.atomic import make_folder, read_file, write_file
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import CONSUMERS_DIR, RETRY_TOPIC_PREFIX
from store.format.strict_json import Int, Long, decode, encode
from store.model.errors import CorruptStore
from store.model.log_protocol import Boundary, Log, Positions, Queue
from store.model.system_errors import system_errors

ALL = ""  # for every member


class GroupOffsets:
    """The offsets of the queues that one member has. Threads may share it."""

    def __init__(self, files: ConsumerOffsets, group: str, note: Callable[[Queue, int], None]) -> None:
        """note: told at once of every offset that is committed; 0 for a queue that is forgotten."""
        self._files = files
        self._group = group
        self._note = note
        self._threads = threading.Lock()
        self._done: Positions = {}
        self._persisted: Positions = {}  # of what is in `_done`

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """As committed here, or else in the files; queues without an offset are absent."""
        queues = list(queues)
        with self._threads:
            done = dict(self._done)
        missing = {queue.topic for queue in queues if queue not in done}
        found = (self._files.positions(self._group, missing) if missing else {}) | done
        return {queue: found[queue] for queue in queues if queue in found}

    def commit(self, positions: Positions) -> None:
        """All messages before `positions` are done; smaller ones than before do not count."""
        with self._threads:
            for queue, offset in positions.items():
                if offset > self._done.get(queue, -1):
                    self._note(queue, offset)
                    self._done[queue] = offset

    def put(self, positions: Positions) -> None:
        """`commit` of what was reset: smaller ones count as well."""
        with self._threads:
            for queue, offset in positions.items():
                self._note(queue, offset)
                self._done[queue] = offset

    @property
    def is_persisted(self) -> bool:
        """Whether there is nothing new to persist."""
        with self._threads:
            return self._done == self._persisted

    def persist(self, queues: Set[Queue], before: Callable[[], None]) -> None:
        """Bring to the files what was committed in these, where it is more than they say. Call it in turn.

        before: called when it is known what that is, and before any file says so.
        """
        with self._threads:
            news = {queue: offset for queue, offset in self._done.items() if self._persisted.get(queue) != offset}
        news = {queue: offset for queue, offset in news.items() if queue in queues}
        before()
        advance(self._files, self._group, news)
        with self._threads:
            self._persisted |= {queue: offset for queue, offset in news.items() if queue in self._done}

    def begin(self, positions: Positions) -> None:
        """Set the offsets of queues that have none in the files. Call it in turn."""
        there = self._files.positions(self._group, {queue.topic for queue in positions})
        missing = {queue: offset for queue, offset in positions.items() if queue not in there}
        if missing:
            self._files.commit_positions(self._group, missing)

    def forget(self, queues: Iterable[Queue]) -> None:
        """What was committed in these is to be read anew."""
        with self._threads:
            for queue in queues:
                if self._done.pop(queue, None) is not None:
                    self._note(queue, 0)
                self._persisted.pop(queue, None)


def advance(files: ConsumerOffsets, group: str, positions: Positions) -> None:
    """Set a group's offsets where they are more than its files say. Call it in turn."""
    there = files.positions(group, {queue.topic for queue in positions})
    larger = {queue: offset for queue, offset in positions.items() if offset > there.get(queue, -1)}
    if larger:
        files.set_positions(group, larger)


class _Noted(msgspec.Struct):
    """The file."""

    count: int
    queues: list[tuple[str, Int, int, Long, str]]


class Reset(NamedTuple):
    """number: which it was, of all of the group. offset: where to go on. whose: the instance that it is for alone."""

    number: int
    offset: int
    whose: str = ALL


class Resets:
    """The note of a group's resets, for the members that are there."""

    def __init__(self, root: Path, group: str) -> None:
        self._path = root / CONSUMERS_DIR / group / "resets.json"

    def read(self) -> tuple[int, Mapping[tuple[Queue, str], Reset]]:
        """How many there were, and the last one of each queue, for all and for each instance, in their order.

        Raises `CorruptStore`.
        """
        try:
            text = read_file(self._path, MAX_BYTES)
        except FileNotFoundError:
            return 0, {}
        try:
            noted = decode(text, _Noted)
        except ValueError as error:
            raise CorruptStore(f"{self._path}: not what a reset writes ({error}); remove the file") from error
        return noted.count, {
            (Queue(topic, queue_id), whose): Reset(number, offset, whose)
            for topic, queue_id, number, offset, whose in noted.queues
        }

    def since(self, count: int, instance: str) -> tuple[int, Positions]:
        """How many there are by now, and where an instance is to go on after those behind the first `count`."""
        now, resets = self.read()
        return now, {
            queue: reset.offset
            for (queue, whose), reset in resets.items()
            if reset.number > count and whose in (ALL, instance)
        }

    def add(self, positions: Positions, whose: str = ALL, by_all: int = 0, by_any: int = 0) -> None:
        """Call it in turn. by_all: how many all members know of, which need not stay here. by_any: how many any member
        knows of: the file may be lost, or an older one put back."""
        count, resets = self.read()
        count = max(count, by_any)
        new = {(queue, whose): Reset(count + 1, offset, whose) for queue, offset in positions.items()}
        kept = {key: reset for key, reset in resets.items() if key not in new and reset.number > by_all}
        queues = [(queue.topic, queue.queue_id, *reset) for (queue, _), reset in (kept | new).items()]
        make_folder(self._path.parent)
        write_file(self._path, encode(_Noted(count + 1, queues)))

    def forget(self) -> None:
        """For nobody is there who has to read it. Call it in turn."""
        with system_errors(self._path):
            self._path.unlink(missing_ok=True)


def first_offsets(
    log: Log,
    topic: str,
    committed: Callable[[Iterable[Queue]], Positions],
    where: ConsumeFromWhere,
    timestamp: int = 0,
) -> Positions:
    """Where a group begins in the queues of a topic that it has no offset of, for `Member.begin`.

    A group that has read some queue of the topic begins at the first message in the others: they were added since. So
    it does in what was sent back to it. Otherwise as `where` says; timestamp: ms since 1970. RocketMQ's consumer does
    the same, but for queues that are added: it begins where `where` says, and what was put before it noticed is lost.
    """
    queues = log.topics().get(topic, ())
    known = committed(queues)
    bounds = log.bounds(queue for queue in queues if queue not in known)
    if known or topic.startswith(RETRY_TOPIC_PREFIX) or where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return {queue: found.min_offset for queue, found in bounds.items()}
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return {queue: found.max_offset for queue, found in bounds.items()}
    return log.offsets_by_time(bounds, timestamp, Boundary.LOWER)
