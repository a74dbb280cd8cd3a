"""The offsets of consumer groups, at brokers and in a member's memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence

from store.cluster.address import ANSWER_SECONDS
from store.cluster.broker_refusals import is_temporary
from store.cluster.brokers import Ask, Brokers
from store.cluster.held_pulls import held_pull
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RemotingError, Unreachable
from store.model.log_protocol import Positions, Queue
from store.remoting.command import Command
from store.remoting.headers import CommitOffset, GroupQueue, Offset

_SUCCESS = (ResponseCode.SUCCESS,)
_logger = logging.getLogger("store")


class MemberOffsets:
    """The offsets that a member committed in its own queues, until they are persisted. Thread-safe.

    own: the member's queues. resets: the number of resets so far.
    """

    def __init__(self, brokers: Brokers, group: str, what: str) -> None:
        self._brokers = brokers
        self._group = group
        self._what = what
        self._threads = threading.Lock()
        self._committed: Positions = {}
        self._reset: Positions = {}  # not returned by `fetch_resets` yet
        self.own: frozenset[Queue] = frozenset()
        self.resets = 0

    def set_own(self, queues: Iterable[Queue]) -> None:
        """Set the member's queues. Forget the offsets of those that it gained or lost."""
        with self._threads:
            before, self.own = self.own, frozenset(queues)
            for queue in before ^ self.own:
                self._committed.pop(queue, None)

    def committed(self, queues: Iterable[Queue]) -> Positions:
        queues = list(queues)
        with self._threads:
            here = {queue: self._committed[queue] for queue in queues if queue in self._committed}
        found = committed(self._brokers, self._group, (queue for queue in queues if queue not in here))
        with self._threads:
            self._committed = {queue: at for queue, at in found.items() if queue in self.own} | self._committed
        return here | found

    def commit(self, positions: Positions) -> None:
        with self._threads:
            for queue, offset in positions.items():
                if queue in self.own and queue not in self._reset and offset > self._committed.get(queue, -1):
                    self._committed[queue] = offset

    def begin(self, positions: Positions) -> None:
        """Set the offsets of queues that have none at their brokers."""
        known = committed(self._brokers, self._group, positions)
        self._set({queue: offset for queue, offset in positions.items() if queue not in known})

    def persist(self, queues: Collection[Queue]) -> None:
        """Send committed offsets to the brokers, and retry for `ClusterAddress.patience` seconds."""
        self._set(self._committed_in(queues))

    def persist_soon(self, queues: Collection[Queue]) -> None:
        """Send committed offsets to the brokers once. The next call retries failures.

        Raises `Unreachable` if no broker answers.
        """
        of_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            of_broker.setdefault(queue.broker, []).append(queue)
        failed = []
        for each in of_broker.values():
            try:
                self._set(self._committed_in(each), once=True)
            except RemotingError as error:
                if not is_temporary(error):
                    raise
                failed.append(Unreachable(str(error)))
        warn_or_raise(self._what, failed, len(of_broker), "its offsets are committed later")

    def note_resets(self, positions: Positions) -> None:
        """Continue at these offsets. Commits in these queues are ignored until `fetch_resets` has returned them."""
        with self._threads:
            self._reset |= positions
            self._committed |= {queue: offset for queue, offset in positions.items() if queue in self.own}
            self.resets += 1

    def fetch_resets(self) -> Positions:
        """Return the resets since the last call."""
        with self._threads:
            found, self._reset = self._reset, {}
        return found

    def _committed_in(self, queues: Collection[Queue]) -> Positions:
        with self._threads:
            return {queue: self._committed[queue] for queue in queues if queue in self._committed}

    def _set(self, positions: Positions, *, once: bool = False) -> None:
        answers = commit(self._brokers, self._group, positions, once=once)
        for queue in positions.keys() - answers.keys():
            _logger.warning("%s: no broker has %s now, so the group's offset there is not committed", self._what, queue)
        if refused := {queue: positions[queue] for queue, answer in answers.items() if answer.remark}:
            self.note_resets(resets(self._brokers, self._group, refused))


def warn_or_raise(what: str, failed: Sequence[Unreachable], asked: int, then: str) -> None:
    """Raise the first error if no broker answered, otherwise log the errors.

    asked: the number of brokers. then: the consequence, for the log.
    """
    if failed and len(failed) == asked:
        raise failed[0]
    for error in failed:
        _logger.warning("%s: %s: %s", what, then, error)


def committed(brokers: Brokers, group: str, queues: Iterable[Queue]) -> Positions:
    """Return the next offset of each queue that has one."""

    def ask(queue: Queue) -> Ask:
        header = GroupQueue(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        return Ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, (*_SUCCESS, ResponseCode.QUERY_NOT_FOUND))

    answers = brokers.ask({queue: ask(queue) for queue in queues})
    return {
        queue: Offset.of(answer.fields).offset
        for queue, answer in answers.items()
        if answer.code == ResponseCode.SUCCESS
    }


def commit(brokers: Brokers, group: str, positions: Positions, *, once: bool = False) -> dict[Queue, Command]:
    """Set the group's offsets. Return the answer for each queue that a broker has. once: do not retry.

    An answer with a remark is a refusal: a broker of RocketMQ 5.3 or later refuses an offset if an admin tool has reset
    the group.
    """
    asks = {queue: _commit(group, queue, at) for queue, at in positions.items()}
    if once:
        asks = {queue: ask._replace(timeout=ANSWER_SECONDS) for queue, ask in asks.items()}
    answers = brokers.ask(asks, 0.0 if once else None)
    unknown = [queue for queue, answer in answers.items() if answer.code != ResponseCode.SUCCESS]
    if unknown:  # a broker creates a group at its first pull
        brokers.ask({queue: held_pull(group, queue, positions[queue], 1, 0.0) for queue in unknown})
        again = {queue: _commit(group, queue, positions[queue])._replace(answers=_SUCCESS) for queue in unknown}
        answers |= brokers.ask(again)
    return answers


def resets(brokers: Brokers, group: str, positions: Positions) -> Positions:
    """Return the new offsets of queues whose broker refused a commit after a reset. positions: their old offsets.

    A broker reports a reset until a client of the group pulls. So this fetches the offsets first, and then pulls.
    """
    found = committed(brokers, group, positions)
    brokers.ask({queue: held_pull(group, queue, at, 1, 0.0) for queue, at in positions.items()})
    return found


def _commit(group: str, queue: Queue, position: int) -> Ask:
    header = CommitOffset(group, queue.topic, queue.queue_id, position)
    answers = (*_SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    return Ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, answers)
