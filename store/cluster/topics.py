"""The topics of a cluster, each looked up when it is asked for: a cluster may have thousands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from store.cluster.brokers import Brokers
from store.model.log_protocol import Queue


class Topics(Mapping[str, tuple[Queue, ...]]):
    """Topic to its queues, as they stand when they are first asked for. A cluster's own topics are not listed, but
    there for who names them."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[str, tuple[Queue, ...]] = {}

    def __getitem__(self, topic: str) -> tuple[Queue, ...]:
        if topic not in self._known:
            route = self._brokers.routes.route(topic, oldest=0.0)
            self._known[topic] = () if route is None else tuple(route.read)
        if not self._known[topic]:
            raise KeyError(topic)
        return self._known[topic]

    def __iter__(self) -> Iterator[str]:
        return (topic for topic in self._names if topic in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _names(self) -> list[str]:
        return self._brokers.routes.topics()
