"""The permissions that each request needs for its topics and groups.

Codes that are not listed need an admin account. If a request names a message by its offset only, or lists topics and
groups, its handler asks `Access` about those that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntFlag
from typing import NamedTuple

from store.format.entering import NOT_FOR_PUTTING
from store.format.layout import RETRY_TOPIC_PREFIX
from store.model.codes import RequestCode
from store.remoting.bodies import Heartbeat, LockRequest
from store.remoting.command import Command


class Perm(IntFlag):
    DENY = 0
    PUB = 1
    SUB = 2
    EITHER = PUB | SUB  # in a `Need`: one of both


class Need(NamedTuple):
    """A permission that a request needs: `perm` for the topic or group `name`."""

    name: str
    perm: Perm
    is_group: bool = False

    @property
    def is_brokers_own(self) -> bool:
        """Return whether the broker keeps messages of other topics in this one, such as delayed messages."""
        return not self.is_group and self.name in NOT_FOR_PUTTING

    def __str__(self) -> str:
        perm = "PUB or SUB" if self.perm is Perm.EITHER else self.perm.name
        return f"{perm} of {'group' if self.is_group else 'topic'} {self.name!r:.260}"


def of_topic(name: str, perm: Perm = Perm.EITHER) -> Need:
    """Return the permission for a topic. A group's retry topic needs a permission for the group instead."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return of_group(name.removeprefix(RETRY_TOPIC_PREFIX))
    return Need(name, perm)


def of_group(name: str, perm: Perm = Perm.SUB) -> Need:
    """Return the permission for a group. `Perm.EITHER` is for a producer's group: either permission is enough."""
    return Need(name, perm, is_group=True)


def needs_of(command: Command) -> Iterator[Need] | None:
    """Return the permissions that a request needs, None if it needs an admin account.

    The iterator raises `BadFrame` for a malformed body.
    """
    rules = _RULES.get(command.code)
    return None if rules is None else (need for rule in rules for need in rule(command))


_Rule = Callable[[Command], Iterator[Need]]


def _topic(field: str, perm: Perm = Perm.EITHER) -> _Rule:
    def rule(command: Command) -> Iterator[Need]:
        yield of_topic(command.fields.get(field, ""), perm)

    return rule


def _group(field: str, perm: Perm = Perm.SUB) -> _Rule:
    def rule(command: Command) -> Iterator[Need]:
        yield of_group(command.fields.get(field, ""), perm)

    return rule


def _unregistered(command: Command) -> Iterator[Need]:
    # A producer removes only itself, so its group needs no permission.
    if (group := command.fields.get("consumerGroup")) is not None:
        yield of_group(group)


def _consumers(command: Command) -> Iterator[Need]:
    # The handler checks the producers, because each Java client sends a producer group of its own.
    for consumer in Heartbeat.of(command.body).consumers or ():
        yield of_group(consumer.group_name)
        yield from (of_topic(each.topic, Perm.SUB) for each in consumer.subscription_data_set or ())


def _locks(command: Command) -> Iterator[Need]:
    asked = LockRequest.of(command.body)
    yield of_group(asked.group)
    yield from (of_topic(topic, Perm.SUB) for topic in {queue.topic for queue in asked.queues})


_ANYONE: tuple[_Rule, ...] = ()  # any account
_READS = (_group("consumerGroup"), _topic("topic", Perm.SUB))
_NAMES_TOPIC = (_topic("topic"),)
_NAMES_GROUP = (_group("consumerGroup"),)
_RULES: Mapping[int, tuple[_Rule, ...]] = {
    RequestCode.SEND_MESSAGE: (_topic("topic", Perm.PUB),),
    RequestCode.SEND_MESSAGE_V2: (_topic("b", Perm.PUB),),
    RequestCode.SEND_BATCH_MESSAGE: (_topic("b", Perm.PUB),),
    RequestCode.END_TRANSACTION: (_group("producerGroup", Perm.EITHER),),
    RequestCode.CONSUMER_SEND_MSG_BACK: (_group("group"),),
    RequestCode.PULL_MESSAGE: _READS,
    RequestCode.LITE_PULL_MESSAGE: _READS,
    RequestCode.QUERY_MESSAGE: (_topic("topic", Perm.SUB),),
    RequestCode.VIEW_MESSAGE_BY_ID: _ANYONE,
    RequestCode.QUERY_CONSUMER_OFFSET: _READS,
    RequestCode.UPDATE_CONSUMER_OFFSET: _READS,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _ANYONE,
    RequestCode.HEART_BEAT: (_consumers,),
    RequestCode.UNREGISTER_CLIENT: (_unregistered,),
    RequestCode.LOCK_BATCH_MQ: (_locks,),
    RequestCode.UNLOCK_BATCH_MQ: (_locks,),
    RequestCode.CHECK_CLIENT_CONFIG: _ANYONE,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _NAMES_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _NAMES_GROUP,
    RequestCode.GET_CONSUME_STATS: _NAMES_GROUP,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: (_group("producerGroup", Perm.EITHER),),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (_group("group"),),
    RequestCode.GET_MAX_OFFSET: _NAMES_TOPIC,
    RequestCode.GET_MIN_OFFSET: _NAMES_TOPIC,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _NAMES_TOPIC,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _NAMES_TOPIC,
    RequestCode.GET_TOPIC_STATS_INFO: _NAMES_TOPIC,
    RequestCode.GET_TOPIC_CONFIG: _NAMES_TOPIC,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _NAMES_TOPIC,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _ANYONE,
    RequestCode.GET_BROKER_CLUSTER_INFO: _ANYONE,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _ANYONE,
    RequestCode.GET_TOPICS_BY_CLUSTER: _ANYONE,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _ANYONE,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _ANYONE,
    RequestCode.GET_KV_CONFIG: _ANYONE,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _ANYONE,
}
