from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import CorruptRecord, InvalidGroup, Message, MessageStore, StoreConfig, TransactionEnded
from store.append.published_end import PublishedEnd
from store.broker.half_messages import offsets_ended, op_body
from store.broker.transactions import Outcome, Transactions
from store.directory.directory_group import DirectoryGroup
from store.format.layout import HALF_TOPIC, OP_TOPIC, TRANSACTIONS_GROUP
from store.model.log_protocol import Queue
from tests.store.broker.test_transactions import bodies, orders
from tests.waiting import until

SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 16)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.COMMIT])
def test_progress_is_saved_only_after_a_flush(tmp_path: Path, outcome: Outcome) -> None:
    """A crash must not lose the messages that ended the half messages."""
    with MessageStore.open(tmp_path, config=StoreConfig(flushIntervalCommitLog=3_600_000)) as store:
        store.create_topic("orders", 2)
        transactions = Transactions(store, "sellers")
        transactions.prepare(orders(1))
        assert transactions.check(lambda message: outcome, immunity=-1) == 1
        assert store.consumer_offset(TRANSACTIONS_GROUP, HALF_TOPIC, 0) == 1
        with closing(PublishedEnd(tmp_path, writable=False)) as published:
            assert published.flushed_offset == store.confirm_offset


def test_progress_of_transactions_cannot_be_reset(tmp_path: Path) -> None:
    """Otherwise open transactions would be hidden."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        transactions = Transactions(store, "sellers")
        transactions.prepare(orders(1))
        transactions.check(lambda message: Outcome.UNKNOWN, immunity=-1)
        group = DirectoryGroup(tmp_path, TRANSACTIONS_GROUP)
        with pytest.raises(InvalidGroup, match="its offsets say which transactions ended"):
            group.reset({Queue(HALF_TOPIC, 0): 2})
        with pytest.raises(InvalidGroup, match="its offsets say which transactions ended"):
            store.commit_offsets(TRANSACTIONS_GROUP, HALF_TOPIC, {0: 2})
        assert len(Transactions(store, "sellers").open(-1)) == 1


def test_damaged_half_message_does_not_block_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It stays open until it is rolled back, and is logged once."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("orders", 2)
        halves = Transactions(store, "sellers").prepare(orders(1, 2, 3, 4))
    (segment,) = (tmp_path / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    for number in (1, 3):
        content[halves[number].physical_offset + 88] ^= 1
    segment.write_bytes(content)
    with MessageStore.open(tmp_path) as store:
        transactions = Transactions(store, "sellers")
        for count in (2, 0):
            assert transactions.check(lambda _: Outcome.COMMIT, -1) == count
        assert bodies(store) == [b"1", b"3"]
        assert store.consumer_offset(TRANSACTIONS_GROUP, HALF_TOPIC, 0) == 1
        with pytest.raises(CorruptRecord):
            transactions.commit(halves[1:2])
        for number in (1, 3):
            transactions.roll_back(halves[number : number + 1])
        assert transactions.check(lambda _: Outcome.COMMIT, -1) == 0
        assert store.consumer_offset(TRANSACTIONS_GROUP, HALF_TOPIC, 0) == 4
        with pytest.raises(TransactionEnded, match=f"rolled back: {halves[0].transaction_id}"):
            transactions.roll_back(halves[:1])
    assert caplog.text.count("a transaction stays open and cannot be checked: ") == 2


@pytest.mark.parametrize("part", [b"PGROUP", b"UNIQ_KEY", b"{id}"])
def test_half_message_with_damaged_properties_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: bytes
) -> None:
    """No other transaction is checked and rolled back in its place."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("orders", 2)
        halves = Transactions(store, "sellers").prepare(orders(1, 2))
    (segment,) = (tmp_path / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    part = part.replace(b"{id}", halves[0].transaction_id.encode())
    content[content.index(part, halves[0].physical_offset)] ^= 1
    segment.write_bytes(content)
    asked = []
    with MessageStore.open(tmp_path) as store:
        transactions = Transactions(store, "sellers")
        for _ in range(2):
            transactions.check(lambda message: asked.append(message.msg_id) or Outcome.ROLL_BACK, -1)
        assert store.consumer_offset(TRANSACTIONS_GROUP, HALF_TOPIC, 0) in (None, 0)
    assert asked == [halves[1].transaction_id]
    assert caplog.text.count("a transaction stays open and cannot be checked: ") == 1


@pytest.mark.parametrize("files", ["consumerOffset.json", "consumerOffset*"])
def test_ended_transactions_stay_ended_if_the_progress_is_lost(tmp_path: Path, files: str) -> None:
    """The progress file is missing, or only its older backup is left."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        checks, forgets = Transactions(store, "sellers"), Transactions(store, "sellers")
        for number in (1, 2):
            checks.commit(checks.prepare(orders(number)))
            checks.roll_back(checks.prepare(orders(number + 2)))
            checks.check(lambda _: Outcome.UNKNOWN)
        forgets.forget()
        for file in (tmp_path / "config").glob(files):
            file.unlink()
        forgets.forget()
        assert forgets.check(lambda _: Outcome.COMMIT, -1) == 0
        assert bodies(store) == [b"1", b"2"]


def test_progress_never_decreases(tmp_path: Path) -> None:
    """Otherwise op messages that were read would no longer end half messages that are still open."""
    over = threading.Event()

    def sell(store: MessageStore) -> None:
        transactions = Transactions(store, "sellers")
        while not over.is_set():
            transactions.roll_back(transactions.prepare([Message("orders", b"")]))
            transactions.check(lambda _: Outcome.UNKNOWN)

    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
        sellers = [threading.Thread(target=sell, args=(store,)) for _ in range(3)]
        for seller in sellers:
            seller.start()
        found = []

        def look() -> bool:
            found.append([store.consumer_offset(TRANSACTIONS_GROUP, topic, 0) or 0 for topic in (HALF_TOPIC, OP_TOPIC)])
            return found[-1][0] > 30

        until(look)
        over.set()
        for seller in sellers:
            seller.join()
    for one in zip(*found, strict=True):
        assert list(one) == sorted(one)


@given(st.lists(st.integers(0, 10**18 - 1)))
def test_op_body_has_its_offsets(offsets: list[int]) -> None:
    assert offsets_ended(op_body(offsets).encode()) == offsets


def test_op_body_has_rocketmqs_format() -> None:
    assert op_body([0, 1]) == "0,1,"


@pytest.mark.parametrize("text", [b"", b",", b"x", b"-1", b"1.5", "٣".encode(), b"\xff", b" 7", b"9" * 5000])
def test_wrong_offsets_in_an_op_body_are_ignored(text: bytes) -> None:
    assert offsets_ended(b"3," + text + b",5,") == [3, 5]
