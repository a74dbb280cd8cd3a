"""The state that the processors of one server share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from store.api.message_store import MessageStore
from store.disk.config import entries, parsed
from store.disk.consumer_offsets import GroupConfigs
from store.format.layout import RETRY_TOPIC_PREFIX
from store.model.errors import ConfigError, UnknownGroup
from store.remoting.access import ALLOW_ALL, Access
from store.remoting.clients import Clients
from store.remoting.served_offsets import ServedOffsets
from store.remoting.tiered_store import TieredStore


@dataclass(frozen=True)
class BrokerConfig:
    """Settings of a served store, with RocketMQ's names and defaults (BrokerConfig). Times are ms."""

    brokerName: str = "broker-a"  # as in RocketMQ's conf/broker.conf
    brokerClusterName: str = "DefaultCluster"
    autoCreateTopicEnable: bool = True
    transactionTimeOut: int = 6_000
    transactionCheckInterval: int = 30_000
    transactionCheckMax: int = 15

    @property
    def own_topics(self) -> Mapping[str, int]:
        """The topics that tools expect each broker to have, with their number of queues.

        The store creates them at their first message.
        """
        return {self.brokerClusterName: 16, self.brokerName: 1}

    @staticmethod
    def load(path: str | os.PathLike[str]) -> BrokerConfig:
        """Read a properties file. Unknown names are ignored. Raises `ConfigError`."""
        found = [entry for entry in entries(Path(path)) if entry[1] in BROKER_SETTINGS]
        values = {key: parsed(where, key, text, BROKER_SETTINGS[key]) for where, key, text in found}
        for name, value in values.items():
            if type(value) is int and value < 1:
                raise ConfigError(f"{path}: {name}={value}: must be at least 1")
        return BrokerConfig(**values)


BROKER_SETTINGS = {field.name: type(field.default) for field in fields(BrokerConfig)}


@dataclass(frozen=True)
class ServedBroker:
    store: MessageStore
    config: BrokerConfig
    clients: Clients
    offsets: ServedOffsets
    tiered: TieredStore
    access: Access = ALLOW_ALL

    @property
    def name(self) -> str:
        return self.config.brokerName

    def must_know(self, group: str) -> None:
        """Raise `UnknownGroup` for a new group, which needs topics, if topics are not created automatically."""
        if not self.config.autoCreateTopicEnable and GroupConfigs(self.store.path).of(group) is None:
            raise UnknownGroup(
                f"group {group} does not exist, and this broker creates no topics for it, such as "
                f"{RETRY_TOPIC_PREFIX}{group}; create the group first: mqadmin updateSubGroup -g {group}"
            )
