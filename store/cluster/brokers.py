"""`Brokers`: requests to the brokers of a cluster, with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeVar

from store.cluster.address import FIRST_PAUSE_SECONDS, PAUSE_SECONDS, REQUEST_SECONDS, ClusterAddress
from store.cluster.broker_refusals import explained, is_temporary
from store.cluster.route_table import Broker, RouteTable, parse_topic_stats
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RemotingError, Unreachable, Untrusted
from store.model.log_protocol import Bounds, Queue
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import CreateTopic, Header, Offset, Topic, TopicQueue

_CLAMPS = {RequestCode.GET_MIN_OFFSET: min, RequestCode.GET_MAX_OFFSET: max}
_NOT_THERE = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND})


class SlaveAnswers:
    """Corrects the answers of slaves by earlier answers. Thread-safe.

    A slave may lag behind its master, or lack messages from before its creation, and does not report either.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Queue, RequestCode], int] = {}  # the last answer, as corrected

    def corrected(self, broker: Broker, queue: Queue, code: RequestCode, answer: Command) -> Command:
        """Return an answer. A slave's end is at least the last known end, its begin at most the last known begin.

        Raises `Unreachable` if a slave lacks the topic or the offset, because only its master can decide.
        """
        if broker.is_slave and answer.code in _NOT_THERE:
            raise Unreachable(
                f"broker {broker.name} at {broker.readable}, {code.name} of {queue}: this slave does not know the "
                "queue, and its master does not answer. Start the master"
            )
        if code not in _CLAMPS or answer.code != ResponseCode.SUCCESS:
            return answer
        return replace(
            answer, fields=Offset(self._clamped(broker, queue, code, Offset.of(answer.fields).offset)).texts()
        )

    def bounds(self, broker: Broker, queue: Queue, there: Bounds) -> Bounds:
        first = self._clamped(broker, queue, RequestCode.GET_MIN_OFFSET, there.min_offset)
        return Bounds(first, self._clamped(broker, queue, RequestCode.GET_MAX_OFFSET, there.max_offset))

    def _clamped(self, broker: Broker, queue: Queue, code: RequestCode, offset: int) -> int:
        if broker.is_slave:
            offset = _CLAMPS[code](offset, self._known.get((queue, code), offset))
        self._known[queue, code] = offset
        return offset


_Key = TypeVar("_Key", bound=Hashable)


class Ask(NamedTuple):
    """A request about one queue. answers: accepted codes; all others are refusals. timeout: seconds."""

    queue: Queue
    code: RequestCode
    header: Header
    answers: tuple[int, ...] = (ResponseCode.SUCCESS,)
    timeout: float = REQUEST_SECONDS

    @staticmethod
    def of_end(queue: Queue, code: RequestCode = RequestCode.GET_MAX_OFFSET) -> Ask:
        """Return a request for the end of a queue, or for its begin with GET_MIN_OFFSET."""
        return Ask(queue, code, TopicQueue(queue.topic, queue.queue_id))


class Brokers:
    """A cluster's brokers. Thread-safe.

    A request that a broker refuses temporarily, or does not answer, is repeated for `ClusterAddress.patience` seconds,
    at the broker's address in a new route or at its slaves.
    """

    def __init__(self, address: ClusterAddress, on_request: Callable[[Command], None] = lambda command: None) -> None:
        self.address = address
        self._client = Client(REQUEST_SECONDS, address.tls, on_request)
        self.tls = None if address.tls is None else address.tls.context()
        self.routes = RouteTable(address, self._client)
        self._slave_answers = SlaveAnswers()

    def ask(self, asks: Mapping[_Key, Ask], patience: float | None = None) -> dict[_Key, Command]:
        """Return the answers for the queues that exist. Requests run concurrently.

        patience: seconds to retry, by default `ClusterAddress.patience`. Raises `Unreachable`, `RequestRefused`.
        """
        found: dict[_Key, Command] = {}
        deadline = time.monotonic() + (self.address.patience if patience is None else patience)
        pause, attempt, left = FIRST_PAUSE_SECONDS, 0, dict(asks)
        while left:
            there = self.routes.readable(ask.queue for ask in left.values())
            where = {queue: broker.next(attempt) for queue, broker in there.items()}
            asked = {key: self.begin(where[ask.queue], ask) for key, ask in left.items() if ask.queue in where}
            failed: dict[_Key, RemotingError] = {}
            for key, answer in asked.items():
                try:
                    taken = self.take(answer, where[asks[key].queue], asks[key])
                except RemotingError as error:
                    if not is_temporary(error):
                        raise
                    failed[key] = error
                else:
                    if taken is not None:
                        found[key] = taken
            left = {key: asks[key] for key in failed}
            if left:
                self.wait(next(iter(failed.values())), deadline, pause)
                self.routes.refresh({ask.queue.topic for ask in left.values()})
                pause, attempt = PAUSE_SECONDS, attempt + 1
        return {key: found[key] for key in asks if key in found}

    def begin(self, broker: Broker, ask: Ask) -> Future[Command]:
        return self._begin(broker.readable, ask.code, ask.header.texts(), timeout=ask.timeout)

    def take(self, answer: Future[Command], broker: Broker, ask: Ask) -> Command | None:
        """Return an answer as corrected by `SlaveAnswers`, None if the topic does not exist."""
        said = answered(answer, broker, ask.code, ask.queue, (*ask.answers, ResponseCode.TOPIC_NOT_EXIST))
        command = self._slave_answers.corrected(broker, ask.queue, ask.code, said)
        return command if command.code in ask.answers else None

    def begin_stats(self, broker: Broker, topic: str, timeout: float) -> Future[Command]:
        return self._begin(broker.readable, RequestCode.GET_TOPIC_STATS_INFO, Topic(topic).texts(), timeout=timeout)

    def take_stats(self, answer: Future[Command], broker: Broker, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        """Return the bounds of the `queues`, of one topic, that the broker has."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        said = answered(answer, broker, code, queues[0].topic, (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST))
        for queue in queues:
            self._slave_answers.corrected(broker, queue, code, said)
        there = parse_topic_stats(broker.name, bytes(said.body)) if said.code == ResponseCode.SUCCESS else {}
        return {queue: self._slave_answers.bounds(broker, queue, there[queue]) for queue in queues if queue in there}

    def send(
        self,
        broker: Broker,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        timeout: float = REQUEST_SECONDS,
    ) -> Future[Command]:
        """Send a request to a master."""
        return self._begin(broker.writable[0], code, {} if header is None else header.texts(), body, timeout)

    def create_topic(self, topic: str, queues: int, template: str, perm: int) -> None:
        """Create a topic on all masters."""
        header = CreateTopic(topic, template, queues, queues, perm, "SINGLE_TAG")
        masters = [broker for broker in self.routes.brokers() if broker.writable]
        asked = [(each, self.send(each, RequestCode.UPDATE_AND_CREATE_TOPIC, header)) for each in masters]
        for broker, answer in asked:
            answered(answer, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)

    def ask_all(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        answers: tuple[int, ...] = (ResponseCode.SUCCESS,),
        leave_out: Container[str] = (),
    ) -> dict[str, Command]:
        """Return the answers of all brokers by name, except those in `leave_out`."""
        fields = {} if header is None else header.texts()
        brokers = [broker for broker in self.routes.brokers() if broker.name not in leave_out]
        asked = [(broker, self._begin(broker.readable, code, fields, body)) for broker in brokers]
        return {broker.name: answered(answer, broker, code, answers=answers) for broker, answer in asked}

    @staticmethod
    def wait(error: RemotingError, deadline: float, pause: float) -> None:
        """Sleep `pause` seconds before another try. After the deadline (`time.monotonic()`), raise `error` instead."""
        if time.monotonic() >= deadline:
            raise error
        time.sleep(pause)

    def _begin(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str],
        body: bytes = b"",
        timeout: float = REQUEST_SECONDS,
    ) -> Future[Command]:
        if not address:
            unknown: Future[Command] = Future()
            unknown.set_exception(
                Unreachable("an unknown address: no name server lists one. Check that the broker runs")
            )
            return unknown
        return self._client.ask(address, code, self.address.signed(fields, body), body, timeout)

    def close(self) -> None:
        self._client.close()


def answered(
    answer: Future[Command],
    broker: Broker,
    code: RequestCode,
    what: object = None,
    answers: tuple[int, ...] = (ResponseCode.SUCCESS,),
) -> Command:
    """Wait for a broker's answer, and return it.

    what: the queue, topic or message, for errors. answers: accepted codes. Raises `Unreachable`, `Untrusted`, and
    `RequestRefused` for another code.
    """
    try:
        command = answer.result()
    except (Unreachable, Untrusted) as error:
        raise type(error)(f"broker {broker.name} at {error}") from error
    if command.code not in answers:
        raise explained(command, f"broker {broker.name} at {broker.readable}", code, what)
    return command
