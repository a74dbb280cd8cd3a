"""What a `broker.conf` says beside the settings of its store."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from store.files.config import entries, parsed
from store.model.errors import ConfigError
from store.remoting.transactions import Checks


@dataclass(frozen=True)
class BrokerConfig:
    """Settings of a served store, with RocketMQ's names and defaults (BrokerConfig). Times are ms."""

    brokerName: str = "broker-a"  # as RocketMQ's conf/broker.conf has them
    brokerClusterName: str = "DefaultCluster"
    autoCreateTopicEnable: bool = True
    transactionTimeOut: int = 6_000
    transactionCheckInterval: int = 30_000
    transactionCheckMax: int = 15

    @staticmethod
    def load(path: str | os.PathLike[str]) -> BrokerConfig:
        """The settings in a properties file, the defaults for the rest; what is not named here is passed over.

        Raises `ConfigError`, naming file, line and what is wrong.
        """
        found = [entry for entry in entries(Path(path)) if entry[1] in BROKER_SETTINGS]
        values = {key: parsed(where, key, text, BROKER_SETTINGS[key]) for where, key, text in found}
        for name, value in values.items():
            if type(value) is int and value < 1:
                raise ConfigError(f"{path}: {name}={value}: must be 1 at least")
        return BrokerConfig(**values)

    @property
    def checks(self) -> Checks:
        """How transactions that are open are asked for."""
        interval, immunity = self.transactionCheckInterval / 1000, self.transactionTimeOut / 1000
        return Checks(interval, immunity, self.transactionCheckMax)


BROKER_SETTINGS = {field.name: type(field.default) for field in fields(BrokerConfig)}
