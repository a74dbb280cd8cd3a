"""A query's progress as a consumer group's offsets, so that the tools of groups show it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from pyspark_mq.source.queues import unchanged
from store import StoreError
from store.api.group_protocol import MessageModel
from store.broker.members import is_served
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import Fingerprints, Log, LogAddress, Positions

_EVERY_SECONDS = 5.0  # RocketMQ's persistConsumerOffsetInterval
_logger = logging.getLogger("pyspark_mq")


class GroupProgress:
    """Tells a group where a query is, now and then, and at its end.

    It is for whoever looks on: the query itself goes on from its checkpoint, so what cannot be told is a warning. After
    a crash the group may be some seconds behind. Where consumers of the group were seen its offsets are theirs, also
    while they are restarted.
    """

    def __init__(self, log: Log, address: LogAddress, group: str) -> None:
        """address: of the log."""
        self._log = log
        self._address = address
        self._group = group
        self._reached: Positions = {}
        self._last: Fingerprints = {}
        self._told: Positions = {}
        self._next = 0.0  # time.monotonic()
        self._warned = False
        self._consumed: set[str] = set()  # topics

    def reached(self, positions: Positions, last: Fingerprints) -> None:
        """All messages before `positions` are done, the last of which was `last`, as far as that is known."""
        self._reached, self._last = positions, last
        if time.monotonic() >= self._next:
            self.tell()

    def tell(self) -> None:
        """Commit what was reached, if that is news."""
        news = {queue: offset for queue, offset in self._reached.items() if self._told.get(queue) != offset}
        self._next = time.monotonic() + _EVERY_SECONDS
        if not news:
            return
        try:
            self._consumed |= consumed_topics(self._address, self._group, {queue.topic for queue in news})
            done = unchanged(self._log, news, self._last)
            mine = {queue: offset for queue, offset in done.items() if queue.topic not in self._consumed}
            self._log.commit(self._group, mine)
        except StoreError as error:
            self._warn(str(error))
            return
        self._told |= mine
        if self._consumed:
            self._warn(
                f"its members consume {', '.join(sorted(self._consumed))}, and whoever comes after them would not "
                "read what they have not read; give the query a consumerGroup of its own"
            )

    def _warn(self, why: str) -> None:
        if not self._warned:
            _logger.warning("Group %s is not told how far this query is: %s", self._group, why)
        self._warned = True


def consumed_topics(address: LogAddress, group: str, topics: Collection[str]) -> set[str]:
    """Those of `topics` that members of a group read now, who commit offsets of their own; none where this cannot tell.

    Raises `StoreError`.
    """
    if not isinstance(address, DirectoryAddress):
        return set()
    it = address.group(group)
    if is_served(it.path, group):  # of which topics is not known here
        return set(topics)
    sharing = [member for member in it.members() if member.model is MessageModel.CLUSTERING]
    return {topic for member in sharing for topic in member.subscriptions if topic in topics}
