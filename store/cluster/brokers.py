"""What is asked of a cluster: name servers for routes, brokers for what is in their queues; again where that helps."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from store.any_log import Queue
from store.broker.response_codes import ResponseCode
from store.cluster.copies import Copies
from store.cluster.name_servers import NameServers
from store.cluster.refusals import explained, may_pass
from store.cluster.routes import Broker, Route, parse_brokers, parse_json, parse_route, parse_topics
from store.errors import RemotingError, RequestRefused, Unreachable, Untrusted
from store.format.layout import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from store.remoting.client import Client
from store.remoting.codes import RequestCode
from store.remoting.command import Command
from store.remoting.header import Header
from store.remoting.headers import CreateTopic, GetRoute, TopicQueue

ROUTE_SECONDS = 30.0  # pollNameServerInterval
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 3.0  # mqClientApiTimeout: of what is asked while others' queues wait
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 0.05, 1.0
_REPLY_TOPIC = "_REPLY_TOPIC"
# Of a name server that waits until it knows all brokers (needWaitForService). One that lists no topics
# (enableAllTopicList=false) says the same of that, for ever.
_NOT_READY = ResponseCode.SYSTEM_ERROR, RequestCode.GET_ROUTEINFO_BY_TOPIC
_Key = TypeVar("_Key", bound=Hashable)


class Ask(NamedTuple):
    """A request to the broker of a queue. answers: the codes that are one; all others are refusals."""

    queue: Queue
    code: RequestCode
    header: Header
    answers: tuple[int, ...] = (ResponseCode.SUCCESS,)
    timeout: float = REQUEST_SECONDS

    @staticmethod
    def of_end(queue: Queue, code: RequestCode = RequestCode.GET_MAX_OFFSET) -> Ask:
        """Where a queue ends; or, by GET_MIN_OFFSET, begins."""
        return Ask(queue, code, TopicQueue(queue.topic, int(queue.queue_id)))


class Brokers:
    """A cluster's name servers and brokers, in one process, for any threads.

    What was refused for a while only, or not answered, is asked again for `NameServers.patience` seconds: of the
    next name server; of the broker as a new route has it, or of what copies it.
    """

    def __init__(self, address: NameServers, heard: Callable[[Command], None] = lambda command: None) -> None:
        """heard: see `Client`."""
        self.address = address
        self._client = Client(REQUEST_SECONDS, address.tls, heard)
        self.tls = None if address.tls is None else address.tls.context()
        self._lock = threading.Lock()
        self._routes: dict[str, Route | None] = {}
        self._copies = Copies()
        self._missed: dict[str, float] = {}  # since when brokers are in no route that had them
        self._in_vain: set[tuple[str, str]] = set()  # topics and brokers that were waited for
        self._server = 0  # of the name servers, the one that answered last
        self._unheard = -math.inf  # when none of them answered, time.monotonic(): not each topic waits for that

    # --- name servers ------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics but a cluster's own."""
        listed = parse_topics(bytes(self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body))
        own = parse_topics(bytes(self._ask_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body))
        # Clusters and brokers have topics, too.
        hidden = {*SYSTEM_TOPICS, *own, *(f"{name}{_REPLY_TOPIC}" for name in own)}
        return sorted(name for name in listed if name not in hidden and not name.startswith(SYSTEM_TOPIC_PREFIX))

    def route(
        self, topic: str, *, oldest: float = ROUTE_SECONDS, waits: bool = True, named: Iterable[str] = ()
    ) -> Route | None:
        """Where a topic is, as it was at most `oldest` seconds ago; None for one that is not there.

        Brokers that are no longer in it are waited for, each as long as the address has patience; once, for all topics.
        Likewise those that are `named`, for somebody saw them in it. waits: False to get them, meanwhile, where they
        were. While no name server answers it is as it was, but for who asks how it is now (oldest=0.0).
        """
        with self._lock:
            known = self._routes.get(topic)
            there = {name for name in named if (topic, name) not in self._in_vain}
        if known is not None and time.monotonic() - known.made < oldest:
            return known
        there |= set() if known is None else known.brokers
        may_be_old = known is not None and (oldest > 0.0 or not waits)  # its brokers may be well
        if may_be_old and time.monotonic() - self._unheard < max(oldest, ANSWER_SECONDS):
            return known
        try:
            found = self._ask_route(topic, 0.0 if may_be_old else self.address.patience)
        except Unreachable:
            if not may_be_old:
                raise
            self._unheard = time.monotonic()
            return known
        since: dict[str, float] = {}  # of those that were missed at the last look, too, wherever else they were seen
        while missed := there - (set() if found is None else found.brokers):
            # A broker that restarts is in no route meanwhile, nor is a topic that nobody else has.
            since = {name: since.get(name, self._missed_since(name)) for name in missed}
            if time.monotonic() >= max(since.values()) + self.address.patience:
                self._in_vain.update((topic, name) for name in missed)
                break
            if not waits:
                before, now = known or Route(), found or Route()
                return Route(before.read | now.read, before.write | now.write, now.made)
            time.sleep(_PAUSE_SECONDS)
            self._server += 1  # one that was started just now knows only who told it since; another one may know all
            found = self._ask_route(topic, self.address.patience)
        with self._lock:
            self._routes[topic] = found
        return found

    def _missed_since(self, broker: str) -> float:
        """Since when it is in no route that had it (time.monotonic())."""
        with self._lock:
            return self._missed.setdefault(broker, time.monotonic())

    def _ask_route(self, topic: str, patience: float) -> Route | None:
        made = time.monotonic()
        try:
            header = GetRoute(topic, accept_standard_json_only=True)
            answer = self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, patience)
        except RequestRefused as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None
        route = parse_route(topic, bytes(answer.body), made)
        with self._lock:
            for name in route.brokers:
                self._missed.pop(name, None)
        return route

    def readable(self, queues: Iterable[Queue], *, waits: bool = True) -> dict[Queue, Broker]:
        """The brokers of those of `queues` that are there, in their order. waits: see `route`."""
        found: dict[Queue, Broker] = {}
        asked: set[str] = set()
        for queue in (queues := list(queues)):
            route = self.route(queue.topic, waits=waits)
            if (route is None or queue not in route.read) and queue.topic not in asked:
                asked.add(queue.topic)
                named = {getattr(each.queue_id, "broker", "") for each in queues if each.topic == queue.topic}
                route = self.route(queue.topic, oldest=0.0, waits=waits, named=named - {""})
            if route is not None and queue in route.read:
                found[queue] = route.read[queue]
        return found

    def _ask_name_server(
        self, code: RequestCode, header: Header | None = None, patience: float | None = None
    ) -> Command:
        """What one of them answers, from the one on that answered last. patience: as of `ask`. Raises `Unreachable`,
        `RequestRefused`."""
        servers = self.address.name_servers
        fields = {} if header is None else header.texts()
        patience = self.address.patience if patience is None else patience
        timeout = min(REQUEST_SECONDS, max(ANSWER_SECONDS, patience))
        deadline, pause = time.monotonic() + patience, _FIRST_PAUSE_SECONDS
        while True:
            silent: list[str] = []
            for number in range(len(servers)):
                server = servers[(self._server + number) % len(servers)]
                try:
                    answer = self._begin(server, code, fields, timeout=timeout).result()
                except Unreachable as error:
                    silent.append(str(error))
                    continue
                refused = (
                    None if answer.code == ResponseCode.SUCCESS else explained(answer, f"name server {server}", code)
                )
                if refused is not None and (may_pass(refused) or (refused.code, code) == _NOT_READY):  # or is leaving
                    silent.append(str(refused))
                    continue
                self._server = (self._server + number) % len(servers)
                if refused is not None:
                    raise refused
                return answer
            if time.monotonic() >= deadline:
                raise Unreachable(f"no name server answers (option nameServer): {'; '.join(silent)}")
            time.sleep(pause)
            pause = _PAUSE_SECONDS

    # --- brokers -----------------------------------------------------------------------------------------

    def ask(self, asks: Mapping[_Key, Ask], patience: float | None = None) -> dict[_Key, Command]:
        """What brokers answer about those queues that are there, in order; all are asked at once. patience: seconds;
        the address' own by default.

        Raises `Unreachable`, `RequestRefused`.
        """
        found: dict[_Key, Command] = {}
        deadline = time.monotonic() + (self.address.patience if patience is None else patience)
        pause, attempt, left = _FIRST_PAUSE_SECONDS, 0, dict(asks)
        while left:
            there = self.readable(ask.queue for ask in left.values())
            where = {queue: broker.next(attempt) for queue, broker in there.items()}
            asked = {key: self.begin(where[ask.queue], ask) for key, ask in left.items() if ask.queue in where}
            failed: dict[_Key, RemotingError] = {}
            for key, answer in asked.items():
                try:
                    taken = self.take(answer, where[asks[key].queue], asks[key])
                except RemotingError as error:
                    if not may_pass(error):
                        raise
                    failed[key] = error
                else:
                    if taken is not None:
                        found[key] = taken
            left = {key: asks[key] for key in failed}
            if left:
                self.wait(next(iter(failed.values())), deadline, pause)
                self.refresh({ask.queue.topic for ask in left.values()})
                pause, attempt = _PAUSE_SECONDS, attempt + 1
        return {key: found[key] for key in asks if key in found}

    def begin(self, broker: Broker, ask: Ask) -> Future[Command]:
        """Ask a broker."""
        return self._begin(broker.readable, ask.code, ask.header.texts(), timeout=ask.timeout)

    def take(self, answer: Future[Command], broker: Broker, ask: Ask) -> Command | None:
        """The answer as it counts, see `Copies`; None where there is no such topic.

        Raises `Unreachable`, `Untrusted`, `RequestRefused`.
        """
        said = answered(answer, broker, ask.code, ask.queue, (*ask.answers, ResponseCode.TOPIC_NOT_EXIST))
        command = self._copies.heard(broker, ask.queue, ask.code, said)
        return command if command.code in ask.answers else None

    def send(
        self,
        broker: Broker,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        timeout: float = REQUEST_SECONDS,
    ) -> Future[Command]:
        """Ask a master."""
        return self._begin(broker.writable[0], code, {} if header is None else header.texts(), body, timeout)

    def create_topic(self, topic: str, queues: int, template: str, perm: int) -> None:
        """Ask all masters for it. Raises `Unreachable`, `RequestRefused`."""
        header = CreateTopic(topic, template, queues, queues, perm, "SINGLE_TAG")
        masters = [broker for broker in self._all() if broker.writable]
        asked = [(each, self.send(each, RequestCode.UPDATE_AND_CREATE_TOPIC, header)) for each in masters]
        for broker, answer in asked:
            answered(answer, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)

    def ask_all(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        answers: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> dict[str, Command]:
        """What each broker of the cluster answers, by its name. Raises `Unreachable`, `RequestRefused`."""
        fields = {} if header is None else header.texts()
        asked = [(broker, self._begin(broker.readable, code, fields, body)) for broker in self._all()]
        return {broker.name: answered(answer, broker, code, answers=answers) for broker, answer in asked}

    def _all(self) -> list[Broker]:
        return parse_brokers(parse_json(bytes(self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO).body)))

    def refresh(self, topics: Iterable[str], *, waits: bool = True) -> None:
        """Ask for new routes. waits: see `route`."""
        for topic in topics:
            self.route(topic, oldest=0.0, waits=waits)

    @staticmethod
    def wait(error: RemotingError, deadline: float, pause: float) -> None:
        """Before another try. Raises `error` behind the deadline."""
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
        credentials = self.address.credentials
        signed = fields if credentials is None else credentials.signed(fields, body)
        return self._client.ask(address, code, signed, body, timeout)

    def close(self) -> None:
        self._client.close()


def answered(
    answer: Future[Command],
    broker: Broker,
    code: RequestCode,
    what: object = None,
    answers: tuple[int, ...] = (ResponseCode.SUCCESS,),
) -> Command:
    """What a broker answered, about `what`. Raises `Unreachable`, `Untrusted`, `RequestRefused`."""
    try:
        command = answer.result()
    except (Unreachable, Untrusted) as error:
        raise type(error)(f"broker {broker.name} at {error}") from error
    if command.code not in answers:
        raise explained(command, f"broker {broker.name} at {broker.readable}", code, what)
    return command
