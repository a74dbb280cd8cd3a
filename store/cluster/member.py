"""`ClusterMember`: consumes from a cluster's brokers as RocketMQ's clients do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType

from store.broker.allocation import LOCK_SECONDS, Claims, claim
from store.broker.entries import MemberEntry
from store.cluster.address import ANSWER_SECONDS, ClusterAddress
from store.cluster.brokers import Brokers, answered
from store.cluster.committed_offsets import MemberOffsets, warn_or_raise
from store.cluster.presence import Presence, answered_or_unreachable
from store.cluster.route_table import parse_locked, parse_reset
from store.disk.opened import Opened
from store.format.stored_message import StoredMessage
from store.format.strict_json import encode
from store.model.codes import RequestCode
from store.model.errors import InvalidArgument, Unreachable
from store.model.log_protocol import Positions, Queue
from store.remoting.bodies import LockRequest, MessageQueue
from store.remoting.command import Command
from store.remoting.headers import SendBack

_LOOK_SECONDS = 10.0  # between two requests for the members, without a notification; RocketMQ's waitInterval is 20 s
_UNANSWERED_SECONDS = LOCK_SECONDS / 2  # how long a lock lasts if its broker does not answer
_logger = logging.getLogger("store")


class ClusterMember(Opened):
    """A `Member` of a group that RocketMQ's clients may share.

    A member that is not orderly locks no queues. The next owner of a queue begins at the group's offset, so messages of
    the last 5 s may be delivered twice, or of a longer time if a broker does not answer. An orderly member locks queues
    at their brokers, for 60 s or until it unlocks them.

    A broker that does not answer does not delay queues of other brokers. An orderly member drops that broker's queues
    30 s after it last renewed their locks.
    """

    def __init__(self, address: ClusterAddress, group: str, entry: MemberEntry) -> None:
        super().__init__(f"member {entry.id} of group {group} at {address}", "ClusterGroup.join")
        self.id = entry.id
        self._group = group
        self._notified = threading.Event()  # set if a broker reports changed members or offsets
        self._brokers = Brokers(address, self._notify)
        self._turn = threading.RLock()  # held by `lock`, `unlock` and `leave`
        self._claims: Claims = {}
        self._offsets = MemberOffsets(self._brokers, group, self._what)
        try:
            self._presence = Presence(self._brokers, group, entry, self._what)
        except BaseException:
            self._brokers.close()
            raise
        self._locks = _BrokerLocks(self._brokers, self._presence, group, self.id) if entry.orderly else None
        self._seen = self._group_view

    def members(self) -> list[str]:
        self.must_be_open()
        return list(self._presence.members)

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            self.must_be_open()
            if self._notified.is_set() or time.monotonic() >= self._presence.listed_at + _LOOK_SECONDS:
                self._notified.clear()
                self._presence.look()
            if self._group_view != self._seen:
                self._seen = self._group_view
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._notified.wait(min(left, _LOOK_SECONDS))

    @property
    def _group_view(self) -> tuple[list[str], int]:
        return self._presence.members, self._offsets.resets

    def _notify(self, command: Command) -> None:
        """Handle a request of a broker, in the connections' thread."""
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._offsets.note_resets(parse_reset(bytes(command.body)))
        self._notified.set()

    def lock(self, queues: Iterable[Queue], *, ask: bool = False) -> set[Queue]:
        """Lock queues, see `Member.lock`.

        ask: ignored, because brokers do not pass requests for queues to other members.
        """
        wanted = set(queues)
        with self._turn:
            self.must_be_open()
            now = time.monotonic()
            self._presence.beat_if_due()
            granted, unanswered = (wanted, set[Queue]()) if self._locks is None else self._locks.lock(wanted)
            before = self._claims
            kept = {queue for queue in unanswered & before.keys() if now - before[queue] <= _UNANSWERED_SECONDS}
            self._set_claims(claim(wanted - unanswered, before, wanted - granted - kept, now))
            return wanted & self._claims.keys()

    def asked(self) -> set[Queue]:
        self.must_be_open()
        return set()

    def unlock(self, queues: Iterable[Queue]) -> None:
        """Release queues, see `Member.unlock`.

        If a broker does not answer, its locks expire later, and finished messages are delivered twice.
        """
        with self._turn:
            self.must_be_open()
            own = set(queues) & self._claims.keys()
            try:
                self._offsets.persist_soon(own)
                self._free(own)
            except Unreachable as error:
                _logger.warning("%s: released %s, but a broker was not told: %s", self._what, own, error)
            self._drop(own)

    def committed(self, queues: Iterable[Queue]) -> Positions:
        self.must_be_open()
        return self._offsets.committed(queues)

    def begin(self, positions: Positions) -> None:
        self.must_be_open()
        self._offsets.begin(positions)

    def commit(self, positions: Positions) -> None:
        """Commit in memory. If the process is killed before `persist`, the group receives these messages again."""
        self.must_be_open()
        self._offsets.commit(positions)

    def persist(self) -> None:
        """Send all offsets again, even unchanged ones, as RocketMQ's clients do.

        A former owner of a queue may have sent a lower offset later, and the broker may report a reset.
        """
        self.must_be_open()
        self._offsets.persist_soon(self._offsets.own)

    def resets(self) -> Positions:
        self.must_be_open()
        return self._offsets.fetch_resets()

    def reset(self, positions: Positions) -> None:
        """Continue at these offsets. The next `persist` sends them to the brokers."""
        self.must_be_open()
        if positions:
            self._offsets.note_resets(positions)

    def send_back(
        self, messages: Sequence[StoredMessage], delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        self.must_be_open()
        masters = self._presence.masters()
        code, sent = RequestCode.CONSUMER_SEND_MSG_BACK, []
        for message in messages:
            broker = masters.get(message.broker_name)
            if broker is None:
                raise InvalidArgument(
                    f"{self._what}: message {message.msg_id} is of broker {message.broker_name!r}, but the "
                    f"present masters are {', '.join(masters) or 'unknown'}. Start that broker's master. If no broker "
                    "has that name, pass the messages as they were received, unchanged"
                )
            header = SendBack(
                message.physical_offset,
                self._group,
                delay_level,
                message.msg_id,
                message.topic,
                max_reconsume_times=max_reconsume_times,
            )
            sent.append((broker, message, self._brokers.send(broker, code, header)))
        for broker, message, answer in sent:
            answered(answer, broker, code, message.msg_id)

    def leave(self) -> None:
        if self.is_forked:  # a child may never get the lock
            return
        with self._turn:
            if self._is_over:
                return
            self._is_over = True
            self._notified.set()
            try:
                own = set(self._claims)
                self._offsets.persist(own)
                self._free(own)
                self._drop(own)
                self._presence.leave()
            finally:
                self._brokers.close()

    def _free(self, own: Collection[Queue]) -> None:
        if self._locks is not None:
            self._locks.unlock(own)

    def _drop(self, own: Collection[Queue]) -> None:
        self._set_claims({queue: since for queue, since in self._claims.items() if queue not in own})

    def _set_claims(self, claims: Claims) -> None:
        self._claims = claims
        self._offsets.set_own(claims)

    def __enter__(self) -> ClusterMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


class _BrokerLocks:
    def __init__(self, brokers: Brokers, presence: Presence, group: str, client_id: str) -> None:
        self._brokers = brokers
        self._presence = presence
        self._group = group
        self._client_id = client_id

    def lock(self, wanted: Collection[Queue]) -> tuple[set[Queue], set[Queue]]:
        """Return the locked queues, and the queues of brokers that do not answer.

        Raises `Unreachable` if no broker answers.
        """
        granted = set()
        answers, unanswered = self._ask(RequestCode.LOCK_BATCH_MQ, wanted)
        for broker, body in answers:
            granted |= parse_locked(broker, body)
        return granted, unanswered

    def unlock(self, queues: Collection[Queue]) -> None:
        self._ask(RequestCode.UNLOCK_BATCH_MQ, queues)

    def _ask(self, code: RequestCode, queues: Collection[Queue]) -> tuple[list[tuple[str, bytes]], set[Queue]]:
        """Return each broker's name and answer, and the queues of brokers that do not answer."""
        asked = []
        for broker in self._presence.masters().values():
            of_broker = [queue for queue in queues if queue.broker == broker.name]
            if of_broker:
                named = [MessageQueue(broker.name, queue.queue_id, queue.topic) for queue in of_broker]
                body = encode(LockRequest(self._group, self._client_id, named))
                answer = self._brokers.send(broker, code, body=body, timeout=ANSWER_SECONDS)
                asked.append((broker, of_broker, answer))
        answers, unanswered, failed = [], set[Queue](), []
        for broker, of_broker, answer in asked:
            try:
                answers.append((broker.name, bytes(answered_or_unreachable(answer, broker, code).body)))
            except Unreachable as error:
                unanswered.update(of_broker)
                failed.append(error)
        warn_or_raise(
            f"member {self._client_id} of group {self._group}", failed, len(asked), "the locks are requested again"
        )
        return answers, unanswered
