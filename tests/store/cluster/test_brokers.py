"""Answers of a slave while its master is down: the slave may be behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, Unreachable
from store.cluster.address import ClusterAddress
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.remoting.serving import Serving, serve
from tests.store.cluster.test_pulls import Moody

QUEUE = Queue("orders", 0, broker="b")
COUNT, COPIED = 10, 7


@pytest.fixture
def names() -> Iterator[Moody]:
    it = Moody()
    yield it
    it.close()


def _opened(path: Path, count: int) -> Iterator[MessageStore]:
    with MessageStore.open(path) as it:
        it.create_topic("orders", 1)
        it.put_many([Message("orders", b"%d" % n, queue_id=0) for n in range(count)])
        yield it


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    yield from _opened(tmp_path / "master", COUNT)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Serving]:
    for copied in _opened(tmp_path / "copy", COPIED):
        with serve(copied, "127.0.0.1:0") as it:
            yield it


def test_only_a_master_reports_that_a_group_has_no_offset(store: MessageStore, names: Moody, copy: Serving) -> None:
    """Otherwise the group would start over, and skip messages that it has not read."""
    address = ClusterAddress((names.server.address,), patience=0.0, broker_timeout=0.0)
    with serve(store, "127.0.0.1:0") as master:
        names.addresses = {"0": master.address, "1": copy.address}
        with address.open() as log:
            assert log.committed("g", [QUEUE]) == {}
            log.commit("g", {QUEUE: 3})
    names.addresses = {"1": copy.address}
    with address.open() as log:
        with pytest.raises(
            Unreachable, match=rf"{copy.address}, QUERY_CONSUMER_OFFSET of .*: this slave does not know"
        ):
            log.committed("g", [QUEUE])
        log.commit("g", {QUEUE: 4})
        assert log.committed("g", [QUEUE]) == {QUEUE: 4}


def test_end_of_a_queue_does_not_follow_a_stale_slave(store: MessageStore, names: Moody, copy: Serving) -> None:
    address = ClusterAddress((names.server.address,), patience=30.0, broker_timeout=30.0)
    with address.open() as log:
        with serve(store, "127.0.0.1:0") as master:
            names.addresses = {"0": master.address, "1": copy.address}
            assert log.bounds([QUEUE]) == {QUEUE: (0, COUNT)}
        names.addresses = {"1": copy.address}
        assert log.bounds([QUEUE]) == {QUEUE: (0, COUNT)}
        with address.open() as another:
            assert another.bounds([QUEUE]) == {QUEUE: (0, COPIED)}
        with log.hold({QUEUE: COUNT}, time.monotonic() + 60, EVERYTHING, 0.2) as held:
            assert next(held) is None
            with serve(store, master.address):
                names.addresses = {"0": master.address, "1": copy.address}
                store.put(Message("orders", b"x", queue_id=0))
                assert next(there for there in held if there) == QueueRange(QUEUE, COUNT, COUNT + 1)
        names.addresses = {"1": copy.address}
        assert "orders" in log.topics()
        with log.hold({QUEUE: COUNT}, time.monotonic(), EVERYTHING, 60) as held:
            assert list(held) == []


def test_scan_in_a_new_process_waits_for_what_a_slave_lacks(store: MessageStore, names: Moody, copy: Serving) -> None:
    """As in a task that starts while the master is missing."""
    address = ClusterAddress((names.server.address,), patience=30.0, broker_timeout=30.0)
    with serve(store, "127.0.0.1:0") as master:
        pass  # it had this address
    names.addresses = {"1": copy.address}
    with address.open() as log, ThreadPoolExecutor(1) as thread:
        assert log.bounds([QUEUE]) == {QUEUE: (0, COPIED)}
        read = thread.submit(lambda: list(log.scan(QueueRange(QUEUE, 0, COUNT), ReadSpec(("body",), EVERYTHING))))
        with pytest.raises(TimeoutError):
            read.result(0.5)
        with serve(store, master.address):
            names.addresses = {"0": master.address, "1": copy.address}
            assert sum(batch.num_rows for batch in read.result()) == COUNT


def test_begin_of_a_queue_does_not_follow_a_young_slave(
    tmp_path: Path, names: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new RocketMQ slave begins with the last file of the log."""
    monkeypatch.setattr("store.cluster.pulls._PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("store.cluster.held_pulls._AGAIN_SECONDS", 0.05)
    address = ClusterAddress((names.server.address,), patience=30.0, broker_timeout=30.0)
    config = StoreConfig(mappedFileSizeCommitLog=1 << 12)
    with (
        MessageStore.open(tmp_path / "master", config=config) as whole,
        MessageStore.open(tmp_path / "copy", config=config) as young,
        address.open() as log,
    ):
        for each in (whole, young):
            each.create_topic("orders", 1)
            each.put_many([Message("orders", b"%d" % n * 1000, queue_id=0) for n in range(COUNT)])
        young.clean(forced=True)
        assert young.min_offset("orders", 0) > 1
        with serve(young, "127.0.0.1:0") as copy, ThreadPoolExecutor(1) as thread:
            with serve(whole, "127.0.0.1:0") as master:
                names.addresses = {"0": master.address, "1": copy.address}
                assert log.bounds([QUEUE]) == {QUEUE: (0, COUNT)}
            names.addresses = {"1": copy.address}
            assert log.bounds([QUEUE]) == {QUEUE: (0, COUNT)}
            read = thread.submit(lambda: list(log.scan(QueueRange(QUEUE, 1, COUNT), ReadSpec(("body",), EVERYTHING))))
            with log.hold({QUEUE: 1}, time.monotonic() + 60, EVERYTHING, 0.2) as held:
                assert next(held) is None
                with serve(whole, master.address):
                    names.addresses = {"0": master.address, "1": copy.address}
                    assert next(there for there in held if there) == QueueRange(QUEUE, 1, COUNT)
                    assert sum(batch.num_rows for batch in read.result()) == COUNT - 1
