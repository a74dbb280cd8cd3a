from __future__ import annotations

from pathlib import Path

import pytest

from store import MessageStore, StoreConfig
from store.broker.transactions import Outcome, Transactions
from store.format.layout import HALF_TOPIC
from store.upkeep.verify import verify
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import INDEX
from tests.store.format.test_delayed import all_of

pytestmark = pytest.mark.rocketmq

SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000, **INDEX}


def test_open_transactions_of_a_broker_are_ended(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """Of 30 it committed ten and rolled back ten (see LiveKinds.java)."""
    path = tmp_path / "mq"
    with rocketmq.broker(path, SIZES, topic="other", bodyBytes=10) as broker:
        broker.ask("produce", kinds=["transactional"])
        assert next(broker)["kind"] == "done"
        broker.ask("stop")
        assert next(broker)["kind"] == "stopped"
    with MessageStore.open(path, config=StoreConfig(**SIZES)) as store:
        committed = {each.body for each in all_of(store, "transactional")}
        transactions = Transactions(store, "transacting")
        left = {message.body for _, message in transactions.open(-1)}
        assert (len(committed), len(left)) == (10, 10)
        assert committed.isdisjoint(left)
        assert transactions.check(lambda message: Outcome.COMMIT, immunity=-1) == 10
        there = all_of(store, "transactional")
        assert sorted(each.body for each in there) == sorted(committed | left)
        theirs, ours = there[0], next(each for each in there if each.body in left)
        brokers = {"REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES"}  # the newest brokers remove the first two
        assert theirs.properties.keys() - brokers == ours.properties.keys() - brokers
        assert (theirs.sys_flag, theirs.flag) == (ours.sys_flag, ours.flag)
        half = store.message_by_id("7F00000100002A9F" + f"{ours.prepared_transaction_offset:016X}")
        assert (half.topic, half.body) == (HALF_TOPIC, ours.body)
        assert transactions.open(-1) == []
        found = seen.by_scan(store)
    assert verify(path).findings == []
    seen.assert_same(found, seen.by_rocketmq(rocketmq.read(path, SIZES)))
