"""`ClusterGroup`: a consumer group of a cluster, whose members are RocketMQ's clients, in any language.

Methods that need more than brokers offer raise `UnsupportedStore`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Literal

import msgspec

from store.api.group_protocol import MemberInfo, MessageModel, Subscriptions
from store.broker.entries import MemberEntry, check_fit, client_id
from store.cluster.address import ClusterAddress
from store.cluster.brokers import Brokers
from store.cluster.committed_offsets import committed
from store.cluster.member import ClusterMember
from store.cluster.route_table import parse_json
from store.disk.consumer_offsets import check_group_name
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.strict_json import encode
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RequestRefused, UnsupportedStore
from store.model.log_protocol import Positions, Queue
from store.remoting.bodies import SubscriptionData
from store.remoting.headers import ConsumerGroup


class ClusterGroup:
    """A `Group` of a cluster. Raises `InvalidGroup`."""

    def __init__(self, address: ClusterAddress, name: str) -> None:
        check_group_name(name)
        self.address = address
        self.name = name

    def join(
        self,
        subscriptions: Subscriptions,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        exclusive: bool = False,
        instance: str | None = None,
    ) -> ClusterMember:
        """Join the group, see `Group.join`. Order is not checked: brokers do not report whether members are orderly.

        Raises `UnsupportedStore` for broadcasting and exclusive members.
        """
        if model is not MessageModel.CLUSTERING:
            raise self._unsupported(
                "broadcasting does not work on a cluster, because brokers keep offsets of groups only. Let each "
                "member join a group of its own, which reads everything"
            )
        if exclusive:
            raise self._unsupported(
                "exclusive=True does not work on a cluster, because clients share the queues among all members. Join "
                "without it"
            )
        entry = MemberEntry(client_id(instance), dict(subscriptions), model, orderly)
        for other in self._known_members():
            check_fit(self.name, entry, MemberEntry(other.id, other.subscriptions, other.model, orderly), "a client")
        return ClusterMember(self.address, self.name, entry)

    def _known_members(self) -> list[MemberInfo]:
        try:
            return self.members()
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return []

    def create(self) -> None:
        settings = encode({"groupName": self.name})
        with closing(Brokers(self.address)) as brokers:
            brokers.ask_all(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings)

    def members(self) -> list[MemberInfo]:
        """Return the members, without their queues. All have the group's last subscriptions.

        Brokers do not know the queues and subscriptions of each member.
        """
        with closing(Brokers(self.address)) as brokers:
            answers = brokers.ask_all(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                ConsumerGroup(self.name),
                answers=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
            )
        found: dict[str, MemberInfo] = {}
        for answer in answers.values():
            if answer.code == ResponseCode.SUCCESS:
                members = parse_json(bytes(answer.body), _Members, "members of a group")
                found |= {info.id: info for info in members.infos()}
        return [info for _, info in sorted(found.items())]

    def committed(self, queues: Iterable[Queue]) -> Positions:
        with closing(Brokers(self.address)) as brokers:
            return committed(brokers, self.name, queues)

    def reset(self, positions: Positions) -> None:
        """Raise `UnsupportedStore`, because brokers can only reset to a time."""
        raise self._unsupported("brokers reset a group to a time, not to offsets. Use mqadmin resetOffsetByTime")

    def _unsupported(self, why: str) -> UnsupportedStore:
        return UnsupportedStore(f"{self.address}: group {self.name}: {why}")


class _Connected(msgspec.Struct, rename="camel"):
    client_id: str


class _Members(msgspec.Struct, rename="camel"):
    """The answer to GET_CONSUMER_CONNECTION_LIST."""

    subscription_table: dict[str, SubscriptionData]
    message_model: Literal["CLUSTERING", "BROADCASTING"]
    connection_set: list[_Connected]

    def infos(self) -> list[MemberInfo]:
        reads = {
            topic: each.subscription
            for topic, each in self.subscription_table.items()
            if not topic.startswith(RETRY_TOPIC_PREFIX)
        }
        model = MessageModel(self.message_model.lower())
        return [MemberInfo(each.client_id, reads, model, False, (), 0.0) for each in self.connection_set]
