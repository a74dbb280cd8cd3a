"""`ClusterAppends`: lets a producer append to a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from itertools import count, groupby
from typing import Any
from uuid import uuid4

from store.append.placing import AppendResult
from store.client.producer_future import Row
from store.cluster.address import ClusterAddress
from store.cluster.cluster_writer import ClusterAppend
from store.disk.config import StoreConfig
from store.disk.figures import Figures
from store.format.encoding import NotColumns, table_of
from store.format.layout import PROPERTY_UNIQ_KEY
from store.format.message import Message, illegal

_PROPERTIES = 3  # index in a `Row`


class ClusterAppends:
    """Appends to a cluster, with the methods of `MessageStore` that a producer uses."""

    def __init__(self, address: ClusterAddress) -> None:
        self.path = str(address)
        self.config = StoreConfig()
        self.figures = Figures()
        self._writer = address.open_writer()
        self._prefix = uuid4().hex.upper()[:24]
        self._numbers = count()

    def begin(self) -> MessageAppend:
        return MessageAppend(self._writer.begin())

    def with_id(self, row: Row) -> Row:
        properties = row[_PROPERTIES]
        if PROPERTY_UNIQ_KEY in properties:
            return row
        key = f"{self._prefix}{next(self._numbers) & 0xFFFFFFFF:08X}"
        return (*row[:_PROPERTIES], {**properties, PROPERTY_UNIQ_KEY: key}, *row[_PROPERTIES + 1 :])

    def close(self) -> None:
        self._writer.close()


class MessageAppend:
    """An append to a cluster, with the methods of `Append` that a producer uses."""

    def __init__(self, append: ClusterAppend) -> None:
        self._append = append

    def add(self, topic: str, table: Any) -> None:
        self._append.add(topic, table)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Add messages, which may have several topics.

        Raises `MessageRefused` for an invalid message, or if messages of one topic do not fit into one table.
        """
        for topic, of_topic in groupby(messages, key=lambda message: message.topic):
            try:
                self.add(topic, table_of(list(zip(*(astuple(each)[1:] for each in of_topic), strict=True))))
            except NotColumns as error:
                raise illegal(f"the messages of topic {topic} cannot be sent in one append: {error}") from error

    def publish(self) -> AppendResult:
        return self._append.publish()
