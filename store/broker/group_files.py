"""The files of one consumer group, and the turns in which they change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from store.api.group_protocol import MessageModel
from store.broker.entries import Entry
from store.broker.group_offsets import ALL, Resets, advance
from store.broker.members import Roster, Seat
from store.files.consumer_offsets import ConsumerOffsets, check_group_name
from store.files.topics import Topics
from store.model.errors import FlushFailed
from store.model.log_protocol import Positions, Queue
from store.publish.flusher import flush_log
from store.publish.locks import among_groups

_logger = logging.getLogger("store")


class GroupFiles:
    """Whether anybody is in the group or not. Raises `InvalidGroup`."""

    def __init__(self, root: Path, name: str, timeout: float) -> None:
        """timeout: how long to wait for a turn, in seconds."""
        check_group_name(name)
        self.root = root
        self.name = name
        self._timeout = timeout
        self.offsets = ConsumerOffsets(root)
        self.roster = Roster(root, name)
        self.resets = Resets(root, name)
        self._topics = Topics(root)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Change groups of this store, after the dead were buried: one thread on this host does at a time.

        Raises `StoreLocked` while a RocketMQ broker runs here, `StoreBusy`.
        """
        with among_groups(self.root, self._timeout):
            self.roster.bury(self._inherit)
            yield

    def enter(self, entry: Entry) -> Seat:
        """Become a member; the group is made if it is new. In turn. Raises `GroupConflict`."""
        self.offsets.create(self.name)
        return self.roster.enter(entry)

    def reset(self, positions: Positions) -> None:
        """Set offsets, for all, and let members know. In turn. Raises `UnknownTopic`, `OffsetOutOfRange`."""
        self._reset([self.offsets, *ConsumerOffsets.of_instances(self.root, self.name)], positions, ALL)

    def reset_by(self, entry: Entry, positions: Positions) -> None:
        """`reset` by a member of what it reads: where each has its own offsets, the others go on as they were."""
        if entry.model is MessageModel.CLUSTERING:
            self.reset(positions)
        else:
            self._reset([self.offsets_of(entry)], positions, entry.instance)

    def _reset(self, files: Iterable[ConsumerOffsets], positions: Positions, whose: str) -> None:
        for queue in positions:
            self._topics.check_queue(queue.topic, queue.queue_id)
        for offsets in files:
            offsets.commit_positions(self.name, positions)
        self._tell(positions, whose)

    def _tell(self, positions: Positions, whose: str) -> None:
        """Let the members that are there know, also where the note of what they know is lost, or an older one."""
        if members := self.roster.present():
            known = [entry.resets for entry in members]
            self.resets.add(positions, whose, min(known), max(known))
        else:
            self.resets.forget()

    def offsets_of(self, entry: Entry) -> ConsumerOffsets:
        """Where a member's offsets are: a broadcasting one has its own."""
        if entry.model is MessageModel.CLUSTERING:
            return self.offsets
        return ConsumerOffsets.of_instance(self.root, self.name, entry.instance)

    def there(self, queues: Set[Queue]) -> set[Queue]:
        """Those of which the topic is not deleted."""
        counts = self._topics.queue_counts()
        return {queue for queue in queues if queue.queue_id < counts.get(queue.topic, 0)}

    def _inherit(self, entry: Entry, done: Positions) -> None:
        """What a member that died had done, the group has done, unless it was reset meanwhile."""
        _, reset = self.resets.since(entry.resets, entry.instance)
        counts = self.there(done.keys() - reset.keys())
        if not counts:
            return
        try:
            flush_log(self.root)  # first, what that one sent back and took for done
        except FlushFailed as failure:
            _logger.warning("group %s: what member %s had done is done again: %s", self.name, entry.id, failure)
        else:
            advance(self.offsets_of(entry), self.name, {queue: done[queue] for queue in counts})
