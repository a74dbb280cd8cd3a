"""`ClusterMember`: a client of a cluster's brokers that consumes, as RocketMQ's own clients do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType

from store.broker.allocation import LOCK_SECONDS, Claims, claim
from store.broker.entries import MemberEntry
from store.cluster.address import ANSWER_SECONDS, NameServers
from store.cluster.broker_refusals import may_pass
from store.cluster.brokers import Brokers, answered
from store.cluster.committed_offsets import commit, committed, resets
from store.cluster.heart_beat import heart_beat
from store.cluster.route_table import Broker, parse_locked, parse_member_ids, parse_reset
from store.files.opened import Opened
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.stored_message import StoredMessage
from store.format.strict_json import encode
from store.model.codes import RequestCode
from store.model.errors import InvalidArgument, RemotingError, RequestRefused, UnknownTopic, Unreachable
from store.model.log_protocol import Positions, Queue
from store.remoting.bodies import LockRequest, MessageQueue
from store.remoting.command import Command
from store.remoting.headers import ConsumerGroup, Header, SendBack, UnregisterClient

_BEAT_SECONDS = 15.0  # RocketMQ's heartbeatBrokerInterval is 30 s; `lock` comes every 20 s
_LOOK_SECONDS = 10.0  # at the members, though no broker said that they are others; RocketMQ's waitInterval is 20 s
_UNHEARD_SECONDS = LOCK_SECONDS / 2  # a lock that its broker does not renew counts so long; who asks goes by it as long
_logger = logging.getLogger("store")


class ClusterMember(Opened):
    """A `Member`. Of queues that change hands RocketMQ's rules hold, for RocketMQ's clients are in the group, too:

    concurrently nobody locks a queue, and who takes one over begins where the group's offset stands, so that messages
    of the last 5 s may come twice (of a longer time while a broker is away); orderly, brokers lock them for 60 s, or
    until they are given back.

    A broker that does not answer keeps none of the others' queues waiting: it is asked again. Its own, orderly, are
    lost when it should have renewed them.
    """

    def __init__(self, address: NameServers, group: str, entry: MemberEntry) -> None:
        super().__init__(f"member {entry.id} of group {group} at {address}", "ClusterGroup.join")
        self.id = entry.id
        self._group = group
        self._orderly = entry.orderly
        self._topics = [topic for topic in entry.subscriptions if not topic.startswith(RETRY_TOPIC_PREFIX)]
        self._heart_beat = heart_beat(group, entry)
        self._brokers = Brokers(address, self._hear)
        self._turn = threading.RLock()  # to lock, to unlock, to leave
        self._threads = threading.Lock()
        self._claims: Claims = {}
        self._done: Positions = {}
        self._news: Positions = {}  # what was reset, and not fetched yet
        self._resets = 0
        self._told = threading.Event()  # that there is something to look at
        self._members = [self.id]
        try:
            if not self._masters():
                raise UnknownTopic(f"{self._what}: no master has topic {' or '.join(self._topics)}")
            self._beat()
            self._look()
        except BaseException:
            self._brokers.close()
            raise
        self._seen = self._sight

    def members(self) -> list[str]:
        self.must_be_open()
        return list(self._members)

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            self.must_be_open()
            if self._told.is_set() or time.monotonic() >= self._looked + _LOOK_SECONDS:
                self._told.clear()
                self._look()
            if self._sight != self._seen:
                self._seen = self._sight
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._told.wait(min(left, _LOOK_SECONDS))

    def lock(self, queues: Iterable[Queue], *, ask: bool = False) -> set[Queue]:
        """Nobody learns that this member asks."""
        wanted = set(queues)
        with self._turn:
            self.must_be_open()
            now = time.monotonic()
            if now >= self._beaten + _BEAT_SECONDS:
                self._beat()
            granted, unheard = self._granted(wanted) if self._orderly else (wanted, set[Queue]())
            with self._threads:
                before = self._claims
                kept = {queue for queue in unheard & before.keys() if now - before[queue] <= _UNHEARD_SECONDS}
                self._claims = claim(wanted - unheard, before, wanted - granted - kept, now)
                self._forget(before.keys() ^ self._claims.keys())
                return wanted & self._claims.keys()

    def asked(self) -> set[Queue]:
        """None: brokers do not pass it on."""
        self.must_be_open()
        return set()

    def unlock(self, queues: Iterable[Queue]) -> None:
        """A broker that does not answer frees them later, and messages come twice that it does not know to be done."""
        with self._turn:
            self.must_be_open()
            own = set(queues) & self._claims.keys()
            try:
                self._persist_now(own)
                self._free(own)
            except Unreachable as error:
                _logger.warning("%s: gave back %s, of which a broker does not know: %s", self._what, own, error)
            self._drop(own)

    def committed(self, queues: Iterable[Queue]) -> Positions:
        self.must_be_open()
        queues = list(queues)
        with self._threads:
            done = {queue: self._done[queue] for queue in queues if queue in self._done}
        found = committed(self._brokers, self._group, (queue for queue in queues if queue not in done))
        with self._threads:
            self._done = {queue: offset for queue, offset in found.items() if queue in self._claims} | self._done
        return done | found

    def begin(self, positions: Positions) -> None:
        self.must_be_open()
        known = committed(self._brokers, self._group, positions)
        self._set({queue: offset for queue, offset in positions.items() if queue not in known})

    def commit(self, positions: Positions) -> None:
        """In memory: what was not persisted when this process is killed comes again."""
        self.must_be_open()
        with self._threads:
            for queue, offset in positions.items():
                if queue in self._claims and queue not in self._news and offset > self._done.get(queue, -1):
                    self._done[queue] = offset

    def persist(self) -> None:
        """Say it all again, as RocketMQ's clients do: who had a queue before may have said less meanwhile, and a broker
        may have a reset to tell."""
        self.must_be_open()
        self._persist_now(self._claims.keys())

    def resets(self) -> Positions:
        self.must_be_open()
        with self._threads:
            news, self._news = self._news, {}
        return news

    def reset(self, positions: Positions) -> None:
        """Brokers hear of it with what is persisted next."""
        self.must_be_open()
        if positions:
            self._note_resets(positions)

    def send_back(
        self, messages: Sequence[StoredMessage], delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        self.must_be_open()
        masters = self._masters()
        asked = []
        for message in messages:
            broker = masters.get(message.broker_name)
            if broker is None:
                raise InvalidArgument(
                    f"{self._what}: message {message.msg_id} is of broker {message.broker_name!r}, and the brokers are "
                    f"{', '.join(masters)}. Give messages as they were consumed"
                )
            header = SendBack(
                message.physical_offset,
                self._group,
                delay_level,
                message.msg_id,
                message.topic,
                max_reconsume_times=max_reconsume_times,
            )
            code = RequestCode.CONSUMER_SEND_MSG_BACK
            asked.append((broker, message, self._brokers.send(broker, code, header)))
        for broker, message, answer in asked:
            answered(answer, broker, RequestCode.CONSUMER_SEND_MSG_BACK, message.msg_id)

    def leave(self) -> None:
        if self.is_forked:  # the thread that has the turn may be missing
            return
        with self._turn:
            if self._is_over:
                return
            self._is_over = True
            self._told.set()
            try:
                own = set(self._claims)
                self._persist(own)
                self._free(own)
                self._drop(own)
                header = UnregisterClient(self.id, None, self._group)
                for error in self._tell(self._masters(), RequestCode.UNREGISTER_CLIENT, header):
                    _logger.warning("%s: left, and a broker may miss it later only: %s", self._what, error)
            finally:
                self._brokers.close()

    def __enter__(self) -> ClusterMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # --- who is in the group -------------------------------------------------------------------------------

    @property
    def _sight(self) -> tuple[list[str], int]:
        return self._members, self._resets

    def _masters(self) -> dict[str, Broker]:
        """By name, of all topics that are read. Raises `Unreachable`."""
        routes = [route for topic in self._topics if (route := self._brokers.routes.route(topic)) is not None]
        found = {broker.name: broker for route in routes for broker in (*route.read.values(), *route.write.values())}
        return {name: broker for name, broker in sorted(found.items()) if broker.writable}

    def _beat(self) -> None:
        """Tell all brokers that this is a member, and what it reads. Raises where one refuses, or none answers."""
        masters = self._masters()
        failed = list(self._tell(masters, RequestCode.HEART_BEAT, None, self._heart_beat))
        refused = [error for error in failed if not isinstance(error, Unreachable)]
        if refused or (failed and len(failed) == len(masters)):
            raise (refused or failed)[0]
        self._beaten = time.monotonic()

    def _tell(
        self, masters: Mapping[str, Broker], code: RequestCode, header: Header | None, body: bytes = b""
    ) -> Iterator[RemotingError]:
        """Why those did not take it that did not."""
        asked = [
            (broker, self._brokers.send(broker, code, header, body, ANSWER_SECONDS)) for broker in masters.values()
        ]
        for broker, answer in asked:
            try:
                _answered(answer, broker, code)
            except RemotingError as error:
                yield error

    def _look(self) -> None:
        """Who is in the group, as the first broker says that answers; as it was, where none does."""
        self._looked = time.monotonic()
        try:
            found = self._listed()
            if found is not None and self.id not in found:  # it was started anew, or took this one for dead
                self._beat()
                found = self._listed()
        except Unreachable as error:
            found = None
            _logger.warning("%s: who else is in it cannot be seen, and is asked again: %s", self._what, error)
        if found is not None:
            self._members = sorted({*found, self.id})

    def _listed(self) -> list[str] | None:
        for broker in self._masters().values():
            code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
            answer = self._brokers.send(broker, code, ConsumerGroup(self._group), timeout=ANSWER_SECONDS)
            try:
                body = _answered(answer, broker, code).body
            except RequestRefused:  # it knows nobody
                return []
            except Unreachable:
                continue
            return parse_member_ids(bytes(body))
        return None

    def _hear(self, command: Command) -> None:
        """What a broker tells. In the connections' thread."""
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._note_resets(parse_reset(bytes(command.body)))
        self._told.set()

    def _note_resets(self, news: Positions) -> None:
        with self._threads:
            self._news |= news
            self._done |= {queue: offset for queue, offset in news.items() if queue in self._claims}
            self._resets += 1

    # --- queues and offsets --------------------------------------------------------------------------------

    def _granted(self, wanted: Collection[Queue]) -> tuple[set[Queue], set[Queue]]:
        """Those that brokers lock for this member, and those of brokers that do not answer. Raises as `_ask_locks`."""
        granted = set()
        answers, unheard = self._ask_locks(RequestCode.LOCK_BATCH_MQ, wanted)
        for broker, body in answers:
            granted |= parse_locked(broker, body)
        return granted, unheard

    def _ask_locks(self, code: RequestCode, queues: Collection[Queue]) -> tuple[list[tuple[str, bytes]], set[Queue]]:
        """What the broker of each of `queues` answers, by its name, and the queues of those that do not.

        Raises `Unreachable` where none does, `RequestRefused`.
        """
        asked = []
        for broker in self._masters().values():
            of_broker = [queue for queue in queues if queue.broker == broker.name]
            if of_broker:
                named = [MessageQueue(broker.name, queue.queue_id, queue.topic) for queue in of_broker]
                body = encode(LockRequest(self._group, self.id, named))
                answer = self._brokers.send(broker, code, body=body, timeout=ANSWER_SECONDS)
                asked.append((broker, of_broker, answer))
        answers, unheard, failed = [], set[Queue](), []
        for broker, of_broker, answer in asked:
            try:
                answers.append((broker.name, bytes(_answered(answer, broker, code).body)))
            except Unreachable as error:
                unheard.update(of_broker)
                failed.append(error)
        self._tell_of(failed, len(asked), "its locks are asked for again")
        return answers, unheard

    def _free(self, own: Collection[Queue]) -> None:
        """Let others lock queues."""
        if self._orderly:
            self._ask_locks(RequestCode.UNLOCK_BATCH_MQ, own)

    def _drop(self, own: Collection[Queue]) -> None:
        with self._threads:
            self._claims = {queue: since for queue, since in self._claims.items() if queue not in own}
            self._forget(own)

    def _persist_now(self, queues: Collection[Queue]) -> None:
        """Waiting for no broker: what one did not hear comes with the next. Raises `Unreachable` where none answers."""
        of_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            of_broker.setdefault(queue.broker, []).append(queue)
        failed = []
        for each in of_broker.values():
            try:
                self._persist(each, once=True)
            except RemotingError as error:
                if not may_pass(error):
                    raise
                failed.append(Unreachable(str(error)))
        self._tell_of(failed, len(of_broker), "where the group stands is noted later")

    def _tell_of(self, failed: Sequence[Unreachable], asked: int, then: str) -> None:
        """Raises the first where all that were asked failed."""
        if failed and len(failed) == asked:
            raise failed[0]
        for error in failed:
            _logger.warning("%s: %s: %s", self._what, then, error)

    def _persist(self, queues: Collection[Queue], *, once: bool = False) -> None:
        with self._threads:
            done = {queue: self._done[queue] for queue in queues if queue in self._done}
        self._set(done, once=once)

    def _set(self, positions: Positions, *, once: bool = False) -> None:
        answers = commit(self._brokers, self._group, positions, once=once)
        for queue in positions.keys() - answers.keys():
            _logger.warning("%s: no broker has %s now; where the group stands there is not noted", self._what, queue)
        if refused := {queue: positions[queue] for queue, answer in answers.items() if answer.remark}:
            self._note_resets(resets(self._brokers, self._group, refused))

    def _forget(self, queues: Iterable[Queue]) -> None:
        """What was committed in these is to be read anew. With `_threads` held."""
        for queue in queues:
            self._done.pop(queue, None)


def _answered(answer: Future[Command], broker: Broker, code: RequestCode) -> Command:
    """`answered`; a refusal that may pass is no other than silence."""
    try:
        return answered(answer, broker, code)
    except RequestRefused as error:
        if may_pass(error):
            raise Unreachable(str(error)) from error
        raise
