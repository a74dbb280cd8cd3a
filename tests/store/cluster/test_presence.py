"""Members stay members while one of two brokers restarts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from store.api.group_protocol import Subscription
from store.cluster.address import ClusterAddress
from tests.pair import Pair


def test_restarted_broker_that_lists_no_member_removes_none(tmp_path: Path) -> None:
    """RocketMQ's Java client sends a heartbeat only every 30 s; until then the others must not take its queues."""
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path)
        group = ClusterAddress.parse(pair.names).group("g")
        one, other = (stack.enter_context(group.join({"t": Subscription()})) for _ in range(2))
        both = sorted([one.id, other.id])
        one._presence.look()
        assert one.members() == both
        pair.serving["a"].close()
        pair.start("a")
        one._presence.look()
        assert one.members() == both
