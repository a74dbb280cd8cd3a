"""`Presence`: a member's heartbeats, and the members that brokers list."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future

from store.api.group_protocol import Subscription
from store.broker.entries import MemberEntry
from store.cluster.address import ANSWER_SECONDS
from store.cluster.broker_refusals import is_temporary
from store.cluster.brokers import Brokers, answered
from store.cluster.route_table import Broker, parse_member_ids
from store.format.hashes import java_hash_code
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.strict_json import encode
from store.model.codes import RequestCode
from store.model.errors import RemotingError, RequestRefused, UnknownTopic, Unreachable
from store.remoting.bodies import ConsumerData, Heartbeat, SubscriptionData
from store.remoting.command import Command
from store.remoting.headers import ConsumerGroup, Header, UnregisterClient

_BEAT_SECONDS = 15.0  # RocketMQ's heartbeatBrokerInterval is 30 s; `ClusterMember.lock` is called every 20 s
_logger = logging.getLogger("store")


class Presence:
    """One member of a group, as brokers see it.

    members: the ids that at least one broker lists, sorted. A restarted broker lists a member after its next heartbeat.
    listed_at: `time.monotonic()` when brokers were last asked for the members.
    """

    def __init__(self, brokers: Brokers, group: str, entry: MemberEntry, what: str) -> None:
        """Send the first heartbeat. Raises `UnknownTopic` if no master has the member's topics."""
        self._brokers = brokers
        self._group = group
        self._id = entry.id
        self._what = what
        self._topics = [topic for topic in entry.subscriptions if not topic.startswith(RETRY_TOPIC_PREFIX)]
        self._heart_beat = _heart_beat(group, entry)
        self.members = [entry.id]
        if not self.masters():
            raise UnknownTopic(
                f"{what}: no master broker has topic {' or '.join(self._topics)}. Create the topic, or start its broker"
            )
        self._beat()
        self.look()

    def masters(self) -> dict[str, Broker]:
        """Return the masters of all subscribed topics, by name."""
        routes = [route for topic in self._topics if (route := self._brokers.routes.route(topic)) is not None]
        found = {broker.name: broker for route in routes for broker in (*route.read.values(), *route.write.values())}
        return {name: broker for name, broker in sorted(found.items()) if broker.writable}

    def beat_if_due(self) -> None:
        if time.monotonic() >= self._beaten_at + _BEAT_SECONDS:
            self._beat()

    def look(self) -> None:
        """Update `members`, unless no broker answers."""
        self.listed_at = time.monotonic()
        try:
            lists = self._lists()
            if any(self._id not in members for members in lists):  # a broker restarted, or missed heartbeats
                self._beat()
                lists = self._lists()
        except Unreachable as error:
            lists = []
            _logger.warning("%s: the other members cannot be listed; trying again later: %s", self._what, error)
        if lists:
            self.members = sorted({self._id}.union(*lists))

    def leave(self) -> None:
        header = UnregisterClient(self._id, None, self._group)
        for answer in self._ask_all(RequestCode.UNREGISTER_CLIENT, header):
            if isinstance(answer, RemotingError):
                _logger.warning(
                    "%s: left the group, but a broker was not told, and notices it later: %s", self._what, answer
                )

    def _beat(self) -> None:
        """Send a heartbeat. Raise an error if a broker refuses it, or if none answers."""
        answers = self._ask_all(RequestCode.HEART_BEAT, None, self._heart_beat)
        failed = [answer for answer in answers if isinstance(answer, RemotingError)]
        refused = [error for error in failed if not isinstance(error, Unreachable)]
        if refused or (failed and len(failed) == len(self.masters())):
            raise (refused or failed)[0]
        self._beaten_at = time.monotonic()

    def _lists(self) -> list[list[str]]:
        """Return the members that each broker lists which answers."""
        lists: list[list[str]] = []
        for answer in self._ask_all(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup(self._group)):
            if isinstance(answer, Command):
                lists.append(parse_member_ids(bytes(answer.body)))
            elif isinstance(answer, RequestRefused):  # the broker knows no member
                lists.append([])
            elif not isinstance(answer, Unreachable):
                raise answer
        return lists

    def _ask_all(
        self, code: RequestCode, header: Header | None, body: bytes = b""
    ) -> Iterator[Command | RemotingError]:
        """Send a request to all masters. Yield the answer, or the error, of each."""
        masters = self.masters().values()
        sent = [(broker, self._brokers.send(broker, code, header, body, ANSWER_SECONDS)) for broker in masters]
        for broker, answer in sent:
            try:
                yield answered_or_unreachable(answer, broker, code)
            except RemotingError as error:
                yield error


def answered_or_unreachable(answer: Future[Command], broker: Broker, code: RequestCode) -> Command:
    """Return a broker's answer as `answered`, but raise `Unreachable` for a temporary refusal, too."""
    try:
        return answered(answer, broker, code)
    except RequestRefused as error:
        if is_temporary(error):
            raise Unreachable(str(error)) from error
        raise


def _heart_beat(group: str, entry: MemberEntry) -> bytes:
    version = int(time.time() * 1000)
    reads = {**entry.subscriptions, RETRY_TOPIC_PREFIX + group: Subscription()}
    consumer = ConsumerData(
        group,
        "CONSUME_PASSIVELY",
        entry.model.name,
        "CONSUME_FROM_LAST_OFFSET",
        [_subscription(topic, read, version) for topic, read in reads.items()],
    )
    return encode(Heartbeat(entry.id, [], [consumer]))


def _subscription(topic: str, read: Subscription, version: int) -> SubscriptionData:
    expression = read.expression.strip() or "*"
    tags = [] if read.expression_type != "TAG" or expression == "*" else map(str.strip, expression.split("||"))
    named = [tag for tag in tags if tag]
    # For pulls without a filter, brokers use the filter of the group's last heartbeat, including these hashes.
    hashes = [java_hash_code(tag) for tag in named]
    return SubscriptionData(topic, expression, read.expression_type, named, hashes, version)
