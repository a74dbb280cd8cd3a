from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from store import Message, MessageRefused, MessageStore, StoredMessage, StoreForked, TransactionEnded, UnknownTopic
from store.api.message_store import delete_topic
from store.broker.half_messages import Half
from store.broker.transactions import Outcome, Transactions
from store.format.layout import HALF_TOPIC, OP_TOPIC, TRANSACTIONS_GROUP, UNDECIDED_TOPIC
from store.upkeep.verify import verify
from tests.children import in_a_child
from tests.end_to_end.test_kill import ROOT
from tests.store.format.test_delayed import all_of
from tests.waiting import PATIENCE

KILLS = int(os.environ.get("TRANSACTION_KILLS", "3"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 2)
        yield it
    assert verify(tmp_path / "mq").findings == []


def orders(*numbers: int) -> list[Message]:
    return [Message("orders", b"%d" % n, "A", f"k{n}", {"p": "q"}, queue_id=n % 2, flag=n) for n in numbers]


def bodies(store: MessageStore, topic: str = "orders") -> list[bytes]:
    return sorted(each.body for each in all_of(store, topic))


@pytest.mark.parametrize("verb", ["commit", "prepare", "roll_back"])
def test_forked_child_does_not_wait_for_a_lock(store: MessageStore, verb: str) -> None:
    transactions = Transactions(store, "sellers")
    halves = transactions.prepare(orders(1))
    is_amid, goes_on = threading.Event(), threading.Event()

    def be_amid() -> None:
        with transactions._turn:
            is_amid.set()
            goes_on.wait(PATIENCE)

    def try_it() -> None:
        signal.alarm(10)
        with pytest.raises(StoreForked):
            getattr(transactions, verb)(orders(2) if verb == "prepare" else halves)

    amid = threading.Thread(target=be_amid)
    amid.start()
    assert is_amid.wait(PATIENCE)
    try:
        assert in_a_child(try_it) == "None"
    finally:
        goes_on.set()
        amid.join()
    transactions.roll_back(halves)


def test_only_committed_messages_are_visible(store: MessageStore) -> None:
    transactions = Transactions(store, "sellers")
    halves = transactions.prepare(orders(1, 2, 3))
    assert bodies(store) == []
    waiting = all_of(store, HALF_TOPIC)
    assert [Half(each.msg_id, each.queue_offset, each.physical_offset) for each in waiting] == halves
    placed = transactions.commit(halves[:2])
    transactions.roll_back(halves[2:])
    assert bodies(store) == [b"1", b"2"]
    assert (placed.queue_ids.tolist(), placed.queue_offsets.tolist()) == ([1, 0], [0, 0])
    for each, half, was in zip(sorted(all_of(store, "orders"), key=lambda m: m.body), halves, waiting, strict=False):
        own = {"REAL_TOPIC": "orders", "REAL_QID": str(each.queue_id), "TRAN_MSG": "true", "PGROUP": "sellers"}
        ids = {"UNIQ_KEY": half.transaction_id, "__transactionId__": half.transaction_id}
        assert each.properties == {"TAGS": "A", "KEYS": each.keys[0], "p": "q", **own, **ids} == was.properties
        assert (each.sys_flag, each.prepared_transaction_offset) == (8, half.physical_offset)
        assert (each.flag, each.born_timestamp) == (was.flag, was.born_timestamp)
    assert [each.body for each in all_of(store, OP_TOPIC)] == [b"0,1,", b"2,"]
    assert {each.tags for each in all_of(store, OP_TOPIC)} == {"d"}
    assert [each.body for each in store.query("orders", halves[0].transaction_id)] == [b"1"]


@pytest.mark.parametrize("again", ["commit", "roll_back"])
@pytest.mark.parametrize("first", ["commit", "roll_back"])
def test_first_call_ends_a_transaction(store: MessageStore, first: str, again: str) -> None:
    """Two producers of a group both believe that the transaction is open; the second call changes nothing."""
    one, other = Transactions(store, "sellers"), Transactions(store, "sellers")
    halves = one.prepare(orders(1, 2))
    getattr(one, first)(halves[:1])
    with pytest.raises(TransactionEnded, match=halves[0].transaction_id):
        getattr(other, again)(halves)
    assert bodies(store) == ([b"1"] if first == "commit" else [])
    other.commit(halves[1:])
    assert bodies(store)[-1:] == [b"2"]


@pytest.mark.parametrize("verb", ["commit", "roll_back"])
def test_transaction_given_twice_is_refused(store: MessageStore, verb: str) -> None:
    transactions = Transactions(store, "sellers")
    (half,) = transactions.prepare(orders(1))
    with pytest.raises(TransactionEnded, match="twice"):
        getattr(transactions, verb)([half, half])
    assert bodies(store) == []
    transactions.commit([half])
    assert bodies(store) == [b"1"]


def test_check_reads_as_many_as_fit_into_memory(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next checks read the others."""
    monkeypatch.setattr("store.broker.transactions._MOST_BYTES", 2)
    transactions, asked = Transactions(store, "sellers"), list[bytes]()

    def decide(message: StoredMessage) -> Outcome:
        asked.append(message.body)
        return Outcome.UNKNOWN

    transactions.prepare([Message("orders", body) for body in (b"a", b"b", b"long", b"c", b"d")])
    assert [transactions.check(decide, 0) for _ in range(5)] == [2, 1, 2, 2, 1]
    assert asked == [b"a", b"b", b"long", b"c", b"d", b"a", b"b", b"long"]


def test_open_transactions_are_checked(store: MessageStore) -> None:
    asked: list[bytes] = []

    def decide(message: StoredMessage) -> Outcome:
        assert (message.topic, message.queue_id) == ("orders", int(message.body) % 2)
        asked.append(message.body)
        return [Outcome.COMMIT, Outcome.ROLL_BACK, Outcome.UNKNOWN][int(message.body) % 3]

    Transactions(store, "others").prepare(orders(100))
    transactions = Transactions(store, "sellers")
    halves = transactions.prepare(orders(*range(7)))
    transactions.commit(halves[6:])
    assert transactions.check(decide) == 0
    assert Transactions(store, "sellers").check(decide, immunity=-1) == 6
    assert asked == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert bodies(store) == [b"0", b"3", b"6"]
    asked.clear()
    assert transactions.check(decide, immunity=-1) == 2
    assert asked == [b"2", b"5"]
    assert [each.properties["TRANSACTION_CHECK_TIMES"] for _, each in transactions.open(-1)] == ["2", "2"]
    assert store.consumer_offset(TRANSACTIONS_GROUP, HALF_TOPIC, 0) in (None, 0)
    assert Transactions(store, "others").check(decide=lambda message: Outcome.ROLL_BACK, immunity=-1) == 1
    assert transactions.check(decide, immunity=-1, max_checks=3) == 2
    assert bodies(store, UNDECIDED_TOPIC) == [b"2", b"5"]
    assert transactions.open(-1) == []
    assert store.consumer_offset(TRANSACTIONS_GROUP, HALF_TOPIC, 0) == store.max_offset(HALF_TOPIC, 0)
    assert store.consumer_offset(TRANSACTIONS_GROUP, OP_TOPIC, 0) == store.max_offset(OP_TOPIC, 0)
    assert Transactions(store, "sellers").open(-1) == []
    with pytest.raises(TransactionEnded):
        Transactions(store, "sellers").commit(halves[:1])


def test_message_may_delay_its_check(store: MessageStore) -> None:
    transactions = Transactions(store, "sellers")
    message = Message("orders", b"", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
    transactions.prepare([message])
    assert transactions.open(-1) == []


def test_transaction_begun_while_the_clock_was_fast(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked once the clock is right again. One whose producer's clock is fast is not checked early."""
    clock, ahead = time.time, 86_400.0
    transactions = Transactions(store, "sellers")
    transactions.prepare([Message("orders", b"fast", born_timestamp=int((clock() + 86_400) * 1000))])
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    transactions.prepare([Message("orders", b"ahead")])
    monkeypatch.undo()
    assert [message.body for _, message in transactions.open(3600)] == [b"ahead"]


def test_transaction_is_ended_while_it_is_checked(store: MessageStore) -> None:
    transactions, producer = Transactions(store, "sellers"), Transactions(store, "sellers")
    halves = producer.prepare(orders(1, 2))

    def decide(message: StoredMessage) -> Outcome:
        if message.body == b"1":
            producer.roll_back(halves[:1])
        return Outcome.COMMIT

    assert transactions.check(decide, immunity=-1) == 2
    assert bodies(store) == [b"2"]


def test_transaction_is_ended_and_forgotten_while_it_is_checked(store: MessageStore) -> None:
    transactions = Transactions(store, "sellers")
    halves = transactions.prepare(orders(1, 2))

    def decide(message: StoredMessage) -> Outcome:
        if message.body == b"1":
            with ThreadPoolExecutor(1) as other:
                other.submit(transactions.commit, halves[:1]).result()
                other.submit(transactions.check, lambda _: Outcome.UNKNOWN).result()
        return Outcome.COMMIT

    assert transactions.check(decide, immunity=-1) == 2
    assert bodies(store) == [b"1", b"2"]


@pytest.mark.parametrize("times", [1, 2])
def test_checked_transaction_is_ended_in_its_new_place(store: MessageStore, times: int) -> None:
    transactions = Transactions(store, "sellers")
    halves = transactions.prepare(orders(1, 2, 3, 4))
    transactions.commit(halves[3:])
    for _ in range(times):
        assert Transactions(store, "sellers").check(lambda _: Outcome.UNKNOWN, immunity=-1) == 3
    with pytest.raises(TransactionEnded):
        transactions.commit(halves)
    assert len(transactions.commit(halves[:2]).queue_ids) == 2
    transactions.roll_back(halves[2:3])
    assert bodies(store) == [b"1", b"2", b"4"]
    for half in halves:
        with pytest.raises(TransactionEnded):
            transactions.commit([half])
    assert transactions.check(lambda _: Outcome.COMMIT, immunity=-1) == 0


def test_transaction_is_given_up_after_its_last_check(store: MessageStore) -> None:
    transactions = Transactions(store, "sellers")
    (half,) = transactions.prepare(orders(1))
    transactions.check(lambda _: Outcome.UNKNOWN, immunity=-1, max_checks=1)
    with pytest.raises(TransactionEnded):
        transactions.commit([half])
    assert bodies(store, UNDECIDED_TOPIC) == [b"1"]


def test_transactions_with_equal_ids_are_told_apart(store: MessageStore) -> None:
    transactions = Transactions(store, "sellers")
    first, other = transactions.prepare([Message("orders", body, properties={"UNIQ_KEY": "ours"}) for body in "ab"])
    transactions.commit([first])
    transactions.check(lambda _: Outcome.UNKNOWN, immunity=-1)
    with pytest.raises(TransactionEnded):
        transactions.commit([first])
    transactions.commit([other])
    assert bodies(store) == [b"a", b"b"]


def test_concurrent_save_of_progress_reopens_no_transaction(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Transactions(store, "sellers")
    first.commit(first.prepare(orders(1)))
    asked_for = MessageStore.consumer_offset

    def meanwhile(store: MessageStore, *queue: Any) -> int | None:
        found = asked_for(store, *queue)
        monkeypatch.undo()
        first.check(lambda _: Outcome.UNKNOWN)
        return found

    monkeypatch.setattr(MessageStore, "consumer_offset", meanwhile)
    assert Transactions(store, "sellers").check(lambda _: Outcome.COMMIT, immunity=-1) == 0
    assert bodies(store) == [b"1"]


def test_wrong_half_messages_are_refused(store: MessageStore) -> None:
    transactions = Transactions(store, "sellers")
    with pytest.raises(UnknownTopic, match="nowhere"):
        transactions.prepare([Message("nowhere", b"")])
    with pytest.raises(MessageRefused, match="a message in a transaction cannot be delayed"):
        transactions.prepare([Message("orders", b"", delay_level=1)])
    assert transactions.prepare([]) == []
    assert all_of(store, HALF_TOPIC) == []


def test_commit_into_a_deleted_topic_is_refused(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("gone", 1)
        halves = Transactions(store, "sellers").prepare([Message("gone", b"")])
    delete_topic(tmp_path, "gone")
    with MessageStore.open(tmp_path) as store:
        transactions = Transactions(store, "sellers")
        with pytest.raises(UnknownTopic, match=r"topic 'gone' was deleted after .*\. Roll the transaction back"):
            transactions.commit(halves)
        transactions.roll_back(halves)
        assert transactions.open(-1) == []


def test_transaction_commits_into_a_recreated_topic(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        halves = Transactions(store, "sellers").prepare(orders(1))
    delete_topic(tmp_path, "orders")
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        Transactions(store, "sellers").commit(halves)
        assert bodies(store) == [b"1"]


def test_transaction_of_a_deleted_topic_is_given_up(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        Transactions(store, "sellers").prepare(orders(1))
    delete_topic(tmp_path, "orders")
    with MessageStore.open(tmp_path) as store:
        transactions = Transactions(store, "sellers")
        assert transactions.check(lambda message: Outcome.UNKNOWN, -1) == 1
        assert bodies(store, UNDECIDED_TOPIC) == [b"1"]
        store.create_topic("orders", 2)
        assert transactions.open(-1) == []


def test_transactions_that_cannot_end_do_not_block_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One half message is of a deleted topic, one has no room for another property, one has an invalid count, some name
    no queue, and an op message is invalid."""
    properties = [{}, {"x": "y" * 32_600}, {"TRANSACTION_CHECK_TIMES": "many"}, {}]
    with MessageStore.open(tmp_path) as store:
        for topic in ("gone", "orders"):
            store.create_topic(topic, 1)
        rows = [Message("orders", b"%d" % n, properties=own) for n, own in enumerate(properties)]
        Transactions(store, "sellers").prepare([Message("gone", b"gone"), *rows])
        append = store.begin()
        strange = [{"REAL_TOPIC": "orders", "REAL_QID": "none"}, {"REAL_TOPIC": "orders", "REAL_QID": "99999999"}, {}]
        for body, own in zip((b"5", b"6", b"7"), strange, strict=True):
            append.add_broker_messages([Message(HALF_TOPIC, body, properties={"PGROUP": "sellers", **own}, queue_id=0)])
        append.add_broker_messages([Message(OP_TOPIC, b"\xff,x,9" + b"9" * 5000, "d", queue_id=0)])
        append.publish()
    delete_topic(tmp_path, "gone")
    with MessageStore.open(tmp_path) as store:
        transactions = Transactions(store, "sellers")
        assert transactions.check(lambda each: Outcome.COMMIT if each.topic == "gone" else Outcome.UNKNOWN, -1) == 8
        assert len(transactions.open(-1)) == 6
        assert transactions.check(lambda _: Outcome.COMMIT, -1, max_checks=2) == 6
        assert sorted(bodies(store)) == [b"0", b"1", b"2", b"3"]
        assert transactions.open(-1) == []
        assert bodies(store, UNDECIDED_TOPIC) == [b"5", b"6", b"7", b"gone"]
    assert "stays open: " in caplog.text


SELLER = """
import random, sys
from store import Append, Message, MessageStore, TransactionEnded
from store.broker.transactions import Outcome, Transactions
path, name = sys.argv[1:]
chance, number = random.Random(name), 0
with MessageStore.open(path) as store:
    transactions = Transactions(store, "sellers")
    while True:
        messages = [Message("orders", f"{name}-{number + n}".encode()) for n in range(5)]
        number += 5
        halves = transactions.prepare(messages)
        try:
            transactions.commit(halves[:3])
            transactions.roll_back(halves[3:4])
        except TransactionEnded:
            pass  # the other one was asked first
        print("sold", flush=True)
        outcomes = Outcome.COMMIT, Outcome.UNKNOWN
        transactions.check(lambda message: chance.choice(outcomes), immunity=chance.choice((-1, 6)))
"""


def test_each_transaction_ends_once_despite_kills(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path) as store:
        store.create_topic("orders", 2)
    chance = random.Random(KILLS)
    for number in range(KILLS):
        command = [sys.executable, "-c", SELLER, str(path)]
        sellers = [
            subprocess.Popen([*command, f"{number}-{which}"], cwd=ROOT, stdout=subprocess.PIPE) for which in range(2)
        ]
        for _ in range(chance.randrange(1, 20)):
            for seller in sellers:
                assert seller.stdout is not None
                assert seller.stdout.readline() == b"sold\n"
        for seller in sellers:
            seller.kill()
            seller.wait()
    with MessageStore.open(path) as store:
        transactions = Transactions(store, "sellers")
        while transactions.check(lambda message: Outcome.COMMIT, immunity=-1):
            pass
        committed = Counter(bodies(store))
        assert set(committed.values()) == {1}
        prepared = Counter(bodies(store, HALF_TOPIC))
        rolled_back = prepared.keys() - committed.keys()
        assert all(int(body.rpartition(b"-")[2]) % 5 == 3 for body in rolled_back)
        assert committed.keys() <= prepared.keys()
    assert verify(path).findings == []
