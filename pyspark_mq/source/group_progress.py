"""A query's progress as a consumer group's offsets, so that the tools of groups show it."""

from __future__ import annotations

import logging
import time

from store import StoreError
from store.any_log import Log, Positions

_EVERY_SECONDS = 5.0  # RocketMQ's persistConsumerOffsetInterval
_logger = logging.getLogger("pyspark_mq")


class GroupProgress:
    """Tells a group where a query is, now and then, and at its end.

    It is for whoever looks on: the query itself goes on from its checkpoint, so what cannot be told is a warning. After
    a crash the group may be some seconds behind.
    """

    def __init__(self, log: Log, group: str) -> None:
        self._log = log
        self._group = group
        self._reached: Positions = {}
        self._told: Positions = {}
        self._next = 0.0  # time.monotonic()
        self._warned = False

    def reached(self, positions: Positions) -> None:
        """All messages before `positions` are done."""
        self._reached = positions
        if time.monotonic() >= self._next:
            self.tell()

    def tell(self) -> None:
        """Commit what was reached, if that is news."""
        news = {queue: offset for queue, offset in self._reached.items() if self._told.get(queue) != offset}
        self._next = time.monotonic() + _EVERY_SECONDS
        if not news:
            return
        try:
            self._log.commit(self._group, news)
        except StoreError as error:
            if not self._warned:
                _logger.warning("Group %s is not told how far this query is: %s", self._group, error)
            self._warned = True
        else:
            self._told = dict(self._reached)
