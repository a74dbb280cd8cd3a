from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

from pyspark_mq.errors import OptionError, QueuesTaken
from pyspark_mq.options.source import SourceOptions, WhenLocked
from pyspark_mq.planning.query_figures import QueryFigures
from pyspark_mq.planning.queues import positions_in_same_queues
from store import StoreError
from store.api.group_protocol import Group, HasGroups, Member, MessageModel, Subscriptions
from store.broker.members import is_served
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import Fingerprints, Log, LogAddress, Positions, Queue

_RENEW_SECONDS = 5.0  # for locks, and for persisting offsets; RocketMQ's clients renew locks every 20 s
_GRACE_SECONDS = 3.0  # until the locks of a killed query are released
_TRY_SECONDS = 1.0  # no event signals that a lock has expired
_COMMIT_SECONDS = 5.0  # RocketMQ's persistConsumerOffsetInterval
_logger = logging.getLogger("pyspark_mq")


def group_of(address: LogAddress, name: str) -> Group:
    if not isinstance(address, HasGroups):
        raise OptionError(
            f"consumeMode=orderly does not work with {address}: it has no consumer groups. Read the store's "
            "directory instead, or remove consumeMode"
        )
    return address.group(name)


def has_locks(group: Group, member: str, queues: Collection[Queue]) -> bool:
    """Return whether a member owns all of `queues`.

    It loses its locks if its process is killed or suspended for a minute.
    """
    return any(each.id == member and set(queues) <= set(each.queues) for each in group.members())


class NoGroup:
    """The group of a query without a consumer group. The query may read any queue, and reports nothing."""

    locks = False
    """Whether the query must acquire its queues."""

    @property
    def member(self) -> str | None:
        return None

    def acquire(self, queues: Collection[Queue], timeout: float) -> bool:
        """Wait up to `timeout` seconds for the ownership of `queues`. Return whether the query may read them."""
        return True

    def further(self, positions: Positions) -> Positions:
        """Return the group's offsets that are ahead of `positions`, by queue."""
        return {}

    def done(self, positions: Positions, last: Fingerprints) -> None:
        """Record that all messages before `positions` are processed.

        last: fingerprints of the messages before `positions`, if known.
        """

    def persist(self) -> None: ...

    def close(self) -> None:
        """Leave the group, because the query stops or another query took its queues over."""


class OrderlyQueues(NoGroup):
    """The group of an orderly query (`consumeMode=orderly`): it owns all of the query's queues or none.

    It commits the batches that Spark has finished. When it acquires the queues, the query continues at the group's
    offsets if they are ahead of its checkpoint, because another query of the group has read the messages in between. A
    background thread renews the locks. Only one other thread may use this object.
    """

    locks = True

    def __init__(
        self, log: Log, group: Group, reads: Subscriptions, when_locked: WhenLocked, figures: QueryFigures
    ) -> None:
        self._log = log
        self._group = group
        self._figures = figures
        self._reads = reads
        self._when_locked = when_locked
        self._member: Member | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()  # excludes the renewing thread; never held during a wait
        self._begins: Positions = {}  # the group's offsets at acquisition
        self._failure: Exception | None = None
        self._done: Positions | None = None  # the last committed positions

    def acquire(self, queues: Collection[Queue], timeout: float) -> bool:
        """Acquire all of `queues` or none, within `timeout` seconds. Return whether this query owns them.

        Raises the errors of `Group.join`, and `QueuesTaken` if another query took over or `whenLocked` is `fail`.
        """
        wanted = set(queues)
        member = self._joined()
        if member.asked():
            self.close()
            raise QueuesTaken(
                f"Group {self._group.name}: another query with whenLocked=takeOver took over the queues of this "
                "query. This query ended after its last committed batch"
            )
        fails = self._when_locked is WhenLocked.FAIL
        deadline = time.monotonic() + (_GRACE_SECONDS if fails else timeout)
        while not self._has(member, wanted):
            left = deadline - time.monotonic()
            if left <= 0 and fails:
                who = ", ".join(each.id for each in self._group.members() if wanted & set(each.queues))
                self.close()
                raise QueuesTaken(
                    f"Group {self._group.name}: {who or 'another member'} has locked queues of this query. Stop that "
                    "member, or set whenLocked to wait or takeOver"
                )
            if left <= 0:
                return False
            member.wait(min(left, _TRY_SECONDS))
        return True

    @property
    def member(self) -> str | None:
        return None if self._member is None else self._member.id

    def further(self, positions: Positions) -> Positions:
        return {queue: begin for queue, begin in self._begins.items() if begin > positions.get(queue, 0)}

    def done(self, positions: Positions, last: Fingerprints) -> None:
        if self._member is None:
            return
        self._note_resets()
        if positions != self._done:
            self._member.commit(positions_in_same_queues(self._log, positions, last))
            self._done = positions

    def persist(self) -> None:
        with self._turn:
            if self._member is not None:
                self._member.persist()

    def close(self) -> None:
        """Release all queues. The next `acquire` joins the group again."""
        self._over.set()
        with self._turn:
            member, self._member, self._begins = self._member, None, {}
        self._figures.close()
        if member is not None:
            member.leave()

    def _note_resets(self) -> None:
        if self._member is not None and (reset := self._member.resets()):
            with self._turn:
                self._begins |= {
                    queue: min(self._begins[queue], reset[queue]) for queue in self._begins.keys() & reset.keys()
                }
            _logger.warning(
                "Group %s was reset in %s, but this query continues from its checkpoint. To apply the reset, stop "
                "the query, and start it with a new checkpoint and startingOffsets=group",
                self._group.name,
                ", ".join(map(str, sorted(reset))),
            )

    def _joined(self) -> Member:
        if self._failure is not None:
            raise self._failure
        if self._member is None:
            self._member = self._group.join(self._reads, orderly=True, exclusive=True)
            self._over = threading.Event()
            keeps = threading.Thread(target=self._keep, args=(self._member, self._over), name="mq-queues", daemon=True)
            keeps.start()
        return self._member

    def _has(self, member: Member, wanted: set[Queue]) -> bool:
        with self._turn:
            if self._begins.keys() >= wanted:
                return True
            got = member.lock(wanted, ask=self._when_locked is WhenLocked.TAKE_OVER)
            if got >= wanted:
                new = wanted - self._begins.keys()
                self._begins |= dict.fromkeys(new, 0) | member.committed(new)
                self._figures.note({queue.topic for queue in wanted})
                return True
            member.unlock(got)
            self._begins = {}
            return False

    def _keep(self, member: Member, over: threading.Event) -> None:
        while not over.wait(_RENEW_SECONDS):
            with self._turn:
                if over.is_set():
                    return
                try:
                    member.persist()
                    if self._begins and member.lock(self._begins) < self._begins.keys():
                        self._begins = {}  # the locks expired, because this process was suspended for a minute
                except Exception as error:  # noqa: BLE001  # after any error, this thread renews no locks
                    self._failure = error
                    return


class GroupProgress(NoGroup):
    """The group of a query that is not orderly: commits the query's progress as the group's offsets, for monitoring.

    A failure is only a warning, because the query continues from its checkpoint. The offsets of topics that the group's
    consumers read are never overwritten, even while the consumers restart.
    """

    def __init__(self, log: Log, address: LogAddress, group: str) -> None:
        self._log = log
        self._address = address
        self._group = group
        self._figures = QueryFigures(address, group)
        self._reached: Positions = {}
        self._last: Fingerprints = {}
        self._committed: Positions = {}
        self._next = 0.0  # `time.monotonic()` of the next commit
        self._warned = False
        self._consumed: set[str] = set()  # topics that the group's consumers read

    def done(self, positions: Positions, last: Fingerprints) -> None:
        self._reached, self._last = positions, last
        if time.monotonic() >= self._next:
            self.persist()

    def close(self) -> None:
        self.persist()
        self._figures.close()

    def persist(self) -> None:
        news = {queue: offset for queue, offset in self._reached.items() if self._committed.get(queue) != offset}
        self._next = time.monotonic() + _COMMIT_SECONDS
        if not news:
            return
        try:
            self._consumed |= consumed_topics(self._address, self._group, {queue.topic for queue in news})
            done = positions_in_same_queues(self._log, news, self._last)
            mine = {queue: offset for queue, offset in done.items() if queue.topic not in self._consumed}
            self._log.commit(self._group, mine)
        except StoreError as error:
            self._warn(str(error))
            return
        self._figures.note({queue.topic for queue in mine})
        self._committed |= mine
        if self._consumed:
            self._warn(
                f"the group's members consume {', '.join(sorted(self._consumed))}, and a restarted member would skip "
                "messages if the query committed there. Give the query another consumerGroup"
            )

    def _warn(self, why: str) -> None:
        if not self._warned:
            _logger.warning("The progress of this query is not committed to group %s: %s", self._group, why)
        self._warned = True


def consumed_topics(address: LogAddress, group: str, topics: Collection[str]) -> set[str]:
    """Return those of `topics` that a group's members consume, none if the log cannot tell. Raises `StoreError`."""
    if not isinstance(address, DirectoryAddress):
        return set()
    it = address.group(group)
    if is_served(it.path, group):  # `pyspark-mq serve` knows the members; this process cannot ask it
        return set(topics)
    sharing = [member for member in it.members() if member.model is MessageModel.CLUSTERING]
    return {topic for member in sharing for topic in member.subscriptions if topic in topics}


def group_of_query(log: Log, options: SourceOptions) -> NoGroup:
    if options.consumer_group is None:
        return NoGroup()
    if options.orderly is None:
        return GroupProgress(log, options.address, options.consumer_group)
    reads = dict.fromkeys(options.subscription.names(), options.expression)
    group = group_of(options.address, options.consumer_group)
    return OrderlyQueues(log, group, reads, options.orderly, QueryFigures(options.address, group.name))
