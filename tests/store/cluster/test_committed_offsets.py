from __future__ import annotations

from contextlib import closing

from store.cluster.address import ClusterAddress
from store.cluster.brokers import Brokers
from store.cluster.committed_offsets import resets
from store.model.log_protocol import Queue
from tests.store.cluster.test_pulls import Moody

QUEUE = Queue("orders", 0, broker="b")


def test_reset_announced_on_a_lost_connection_is_noticed() -> None:
    """A broker announces a reset only once, to one pull; later pulls look normal."""
    with (
        closing(Moody()) as moody,
        closing(Brokers(ClusterAddress((moody.server.address,)))) as brokers,
    ):
        assert resets(brokers, "g", {QUEUE: 3}) == {QUEUE: 1}
