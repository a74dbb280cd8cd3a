"""What retention takes of transactions that are open is said, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.broker.transactions import Outcome, Transactions
from store.format.layout import HALF_TOPIC

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, diskSpaceWarningLevelRatio=100)


def test_those_that_nobody_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> list[str]:
        with caplog.at_level("WARNING", "store"):
            caplog.clear()
            assert store.clean(forced=True).log
        return [record.getMessage() for record in caplog.records]

    def fill() -> None:
        store.put_many([Message("t", bytes(1000)) for _ in range(20)])

    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        transactions = Transactions(store, "g")
        halves = transactions.prepare([Message("t", b"%d" % n) for n in range(30)])
        transactions.commit(halves[:3])
        fill()
        transactions.roll_back(halves[3:17])
        transactions.check(lambda message: Outcome.UNKNOWN, immunity=-1, max_checks=1)  # those go elsewhere
        fill()
        assert not warned()
        begin = store.max_offset(HALF_TOPIC, 0)
        some = transactions.prepare([Message("t", b"%d" % n) for n in range(4)])
        transactions.commit([some[0], some[2]])
        fill()
        transactions.prepare([Message("t", b"of a kept segment")])
        (told,) = warned()
        assert "2 half messages go" in told
        assert f"from offset {begin + 1} of {HALF_TOPIC} on" in told
        fill()
        (told,) = warned()
        assert "1 half messages go" in told
        fill()
        assert not warned()
