"""A broker is missing until it answers and name servers list it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from store.cluster.address import ClusterAddress
from store.model.codes import ResponseCode
from store.model.log_protocol import Bounds
from tests.store.cluster.test_pulls import Moody


@pytest.fixture
def broker() -> Iterator[Moody]:
    with closing(Moody()) as moody:
        yield moody


def test_broker_that_answers_is_missing_until_it_is_listed(monkeypatch: pytest.MonkeyPatch, broker: Moody) -> None:
    """Otherwise tasks, which find brokers by their name servers, wait for it, and so does all of their batch."""
    monkeypatch.setattr("store.cluster.cluster_bounds._AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("store.cluster.route_table._AGAIN_SECONDS", 0.0)
    with ClusterAddress((broker.server.address,)).open() as log:
        queues = log.topics()["orders"]
        broker.moods = [ResponseCode.SYSTEM_BUSY] * 2
        assert log.look(queues).missing.keys() == {"b"}
        broker.is_gone, broker.is_listed = True, False
        for _ in range(2):
            broker.moods = [None]
            looked = log.look(queues)
            assert looked.bounds == {}
            assert looked.missing.keys() == {"b"}
            assert broker.moods == []
        broker.is_gone, broker.is_listed = False, True
        broker.moods = [None]
        assert log.look(queues) == ({queues[0]: Bounds(0, 3)}, {})
