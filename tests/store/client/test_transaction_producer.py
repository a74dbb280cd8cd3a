from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from store import (
    InvalidArgument,
    Message,
    MessageStore,
    Outcome,
    StoreClosed,
    StoreConfig,
    StoredMessage,
    StoreForked,
    StoreLocked,
    StoreUnavailable,
    TransactionEnded,
    TransactionProducer,
    UnknownTopic,
)
from store.append.locks import among_groups
from store.broker.transactions import Transactions
from tests.children import ended
from tests.end_to_end.test_kill import ROOT
from tests.store.format.test_delayed import all_of
from tests.waiting import PATIENCE, until

GROUP = "sellers"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 1)
        yield it


def test_system_error_of_the_folder_is_raised(store: MessageStore) -> None:
    Path(store.path, "producers").write_bytes(b"no folder")
    with pytest.raises(StoreUnavailable, match="producers"):
        TransactionProducer(store, GROUP, never)


def never(message: StoredMessage) -> Outcome:
    raise AssertionError("nobody is to be asked")


def unknown(message: StoredMessage) -> Outcome:
    return Outcome.UNKNOWN


def bodies(store: MessageStore) -> list[bytes]:
    return [each.body for each in all_of(store, "orders")]


def test_message_is_visible_only_after_a_commit(store: MessageStore) -> None:
    ids = []

    def execute(transaction_id: str) -> Outcome:
        assert bodies(store) == []
        ids.append(transaction_id)
        return outcome

    with TransactionProducer(store, GROUP, never) as producer:
        for outcome in (Outcome.ROLL_BACK, Outcome.UNKNOWN, Outcome.COMMIT):
            done = producer.send(Message("orders", outcome.value), execute)
            assert (done.outcome, done.transaction_id) == (outcome, ids[-1])
            assert (done.put is None) == (outcome is not Outcome.COMMIT)
    (message,) = all_of(store, "orders")
    assert message.body == b"commit"
    assert done.put is not None
    assert done.put.physical_offset == message.physical_offset
    assert done.put.msg_id == message.msg_id == ids[-1]


def test_unknown_outcome_is_checked_by_its_id(store: MessageStore) -> None:
    done: dict[str, Outcome] = {}
    asked = []

    def check(message: StoredMessage) -> Outcome:
        asked.append((message.topic, message.body))
        return done[message.msg_id]

    def execute(transaction_id: str) -> Outcome:
        done[transaction_id] = Outcome.COMMIT
        raise OSError("the answer of the database was lost")

    with TransactionProducer(store, GROUP, check, check_interval=0.01, immunity=0.0) as producer:
        with pytest.raises(OSError, match="was lost"):
            producer.send(Message("orders", b"a"), execute)
        with pytest.raises(InvalidArgument, match="True is no Outcome"):
            producer.send(Message("orders", b"b"), lambda own: done.setdefault(own, Outcome.ROLL_BACK) is not None)  # type: ignore[arg-type,return-value]
        until(lambda: len(asked) >= 2)
        until(lambda: bodies(store) == [b"a"])
    assert sorted(asked) == [("orders", b"a"), ("orders", b"b")]


def test_failed_check_is_repeated(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([ValueError("the database is down"), "yes", Outcome.UNKNOWN, Outcome.COMMIT])

    def check(message: StoredMessage) -> Outcome:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    with (
        TransactionProducer(store, GROUP, check, check_interval=0.01, immunity=0.0) as producer,
        caplog.at_level(logging.ERROR, "store"),
    ):
        sent = producer.send(Message("orders", b"a"), lambda own: Outcome.UNKNOWN)
        until(lambda: bodies(store) == [b"a"])
    assert [sent.transaction_id in each.getMessage() for each in caplog.records] == [True, True]
    assert "the database is down" in caplog.text
    assert "'yes' is no Outcome" in caplog.text


def test_one_member_of_a_group_checks_at_a_time(store: MessageStore) -> None:
    asked: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def check(number: int) -> Outcome:
        asked.append(number)
        entered.set()
        go_on.wait()
        return Outcome.UNKNOWN if number == 0 else Outcome.COMMIT

    quick = {"check_interval": 0.01, "immunity": 0.0}
    first = TransactionProducer(store, GROUP, lambda message: check(0), **quick)
    second = TransactionProducer(store, GROUP, lambda message: check(1), **quick)
    with second:
        second.send(Message("orders", b""), lambda own: Outcome.UNKNOWN)
        entered.wait()
        go_on.set()
        until(lambda: len(asked) > 3)
        assert set(asked) == {0}
        first.close()
        until(lambda: bodies(store) == [b""])
    assert asked[-1] == 1


def test_transaction_ended_by_another_member_is_an_error(store: MessageStore) -> None:
    with TransactionProducer(
        store, GROUP, lambda message: Outcome.COMMIT, check_interval=0.01, immunity=0.0
    ) as producer:

        def execute(transaction_id: str) -> Outcome:
            until(lambda: bodies(store) == [b"slow"])
            return Outcome.COMMIT

        with pytest.raises(TransactionEnded):
            producer.send(Message("orders", b"slow"), execute)
        assert bodies(store) == [b"slow"]


def test_failure_to_check_is_logged_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[object] = []

    def check(message: StoredMessage) -> Outcome:
        asked.append(message)
        return Outcome.UNKNOWN

    def is_told(times: int) -> bool:
        return caplog.text.count("trying again in") == times

    with MessageStore.open(tmp_path, config=StoreConfig(lockTimeoutMillis=10)) as store:
        store.create_topic("orders", 1)
        Transactions(store, GROUP).prepare([Message("orders", b"order")])
        with TransactionProducer(store, GROUP, check, check_interval=0.01, immunity=0.0, max_checks=1 << 30):
            for times in (1, 2):
                with among_groups(tmp_path, PATIENCE):
                    until(partial(is_told, times))
                asked.clear()
                until(lambda: len(asked) > 2)


SELLER = """
import sys, time
from pathlib import Path
from store import Message, TransactionProducer
path, done, dies_before = sys.argv[1:]

def execute(transaction_id):
    if not dies_before:
        Path(done).write_text(transaction_id)
    print("half", flush=True)
    time.sleep(600)

with TransactionProducer(path, "sellers", None.__class__) as producer:
    producer.send(Message("orders", b"order"), execute)
"""


@pytest.mark.parametrize("dies_before", [True, False])
def test_producer_killed_between_half_message_and_commit(
    store: MessageStore, tmp_path: Path, dies_before: bool
) -> None:
    done = tmp_path / "done"
    asked = []

    def check(message: StoredMessage) -> Outcome:
        asked.append(message.msg_id)
        return Outcome.COMMIT if done.exists() and done.read_text() == message.msg_id else Outcome.ROLL_BACK

    command = [sys.executable, "-c", SELLER, str(store.path), str(done), "yes" if dies_before else ""]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as seller:
        assert seller.stdout is not None
        assert seller.stdout.readline() == b"half\n"
        with TransactionProducer(store, GROUP, check, check_interval=0.05, immunity=0.0):
            assert bodies(store) == []
            seller.kill()
            until(lambda: len(asked) == 1)
            if not dies_before:
                until(lambda: bodies(store) == [b"order"])
    with TransactionProducer(store, GROUP, never, check_interval=0.05, immunity=0.0):
        assert bodies(store) == ([] if dies_before else [b"order"])


def test_wrong_arguments_are_refused(store: MessageStore) -> None:
    with pytest.raises(InvalidArgument, match="check=None"):
        TransactionProducer(store, GROUP, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="check_interval=0"):
        TransactionProducer(store, GROUP, never, check_interval=0)
    with TransactionProducer(store, GROUP, never) as producer, pytest.raises(UnknownTopic, match="nowhere"):
        producer.send(Message("nowhere", b""), lambda own: Outcome.COMMIT)
    with pytest.raises(StoreClosed, match="was closed"):
        producer.send(Message("orders", b""), lambda own: Outcome.COMMIT)
    producer.close()


def test_forked_child_cannot_use_the_producer(store: MessageStore) -> None:
    with TransactionProducer(store.path, GROUP, never) as producer:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(StoreForked):
                    producer.send(Message("orders", b""), lambda own: Outcome.COMMIT)
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert ended(child) == 0
        producer.send(Message("orders", b"parent's"), lambda own: Outcome.COMMIT)
    assert bodies(store) == [b"parent's"]


def test_check_that_ends_its_thread_is_repeated(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def check(message: StoredMessage) -> Outcome:
        asked.append(message.msg_id)
        if len(asked) == 1:
            sys.exit("no such database")
        return Outcome.COMMIT

    with TransactionProducer(store, GROUP, check, check_interval=0.05, immunity=0.0) as producer:
        producer.send(Message("orders", b"x"), lambda _: Outcome.UNKNOWN)
        until(lambda: bodies(store) == [b"x"])
    assert "SystemExit: no such database" in caplog.text


def test_check_may_close_the_producer(store: MessageStore) -> None:
    asked = []

    def check(message: StoredMessage) -> Outcome:
        asked.append(message.msg_id)
        producer.close()
        return Outcome.COMMIT

    with TransactionProducer(store.path, GROUP, check, check_interval=0.01, immunity=0.0) as producer:
        producer.send(Message("orders", b"x"), lambda _: Outcome.UNKNOWN)
        until(lambda: bodies(store) == [b"x"])
    assert len(asked) == 1


def test_signal_handler_during_send_cannot_close(store: MessageStore) -> None:
    with TransactionProducer(store.path, GROUP, never) as producer:
        with producer._transactions._turn, pytest.raises(StoreLocked, match="raise an exception instead"):
            producer.close()
        producer.send(Message("orders", b"x"), lambda _: Outcome.COMMIT)
    assert bodies(store) == [b"x"]


def test_dropped_producer_warns(store: MessageStore) -> None:
    producers = [TransactionProducer(store, GROUP, never)]
    checker = producers[0]._checker
    with pytest.warns(ResourceWarning, match="was dropped without a call of close. Close it"):
        producers.clear()
    checker.stopping.set()
    checker.join()
