"""The ledger: the first record of a task counts, appears whole, and is never replaced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pyspark_mq.errors import LedgerError
from pyspark_mq.ledger import Ledger, TaskName, TaskRecord
from pyspark_mq.offsets import Queue

TASK = TaskName("reader", 3, 0)


def record(offset: int, *, starved: bool = False) -> TaskRecord:
    return TaskRecord({Queue("orders", 0): offset, Queue("orders", 1): 2 * offset}, starved)


def test_what_is_recorded_is_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new" / "ledger")
    assert ledger.find(TASK) is None
    assert ledger.record(TASK, record(7, starved=True)) == record(7, starved=True)
    assert Ledger(tmp_path / "new" / "ledger").find(TASK) == record(7, starved=True)
    assert [path.name for path in (tmp_path / "new" / "ledger" / "reader").iterdir()] == ["3-0.json"]


def test_the_first_record_wins(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record(TASK, record(7))
    assert ledger.record(TASK, record(8)) == record(7)
    assert ledger.find(TASK) == record(7)


def test_one_of_many_at_once_wins_and_all_agree(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    answers: list[TaskRecord] = []

    def attempt(offset: int) -> None:
        start.wait()
        answers.append(Ledger(tmp_path).record(TASK, record(offset)))

    threads = [threading.Thread(target=attempt, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [Ledger(tmp_path).find(TASK)] * 8


def test_tasks_epochs_and_readers_are_apart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    names = [TaskName(reader, epoch, task) for reader in ("a", "b") for epoch in (1, 11) for task in (0, 1)]
    for offset, name in enumerate(names):
        ledger.record(name, record(offset))
    assert [ledger.find(name) for name in names] == [record(offset) for offset in range(8)]
    assert ledger.any_ended(TaskName("a", 1, 9))
    assert not ledger.any_ended(TaskName("a", 2, 0))


def test_old_records_are_forgotten(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for epoch in (8, 9, 10):
        ledger.record(TaskName("a", epoch, 0), record(epoch))
        ledger.record(TaskName("b", epoch, 0), record(epoch))
    ledger.forget_before("a", 10)
    assert ledger.find(TaskName("a", 9, 0)) is None
    assert ledger.find(TaskName("a", 10, 0)) == record(10)
    ledger.forget("a")
    ledger.forget("never there")
    assert ledger.find(TaskName("a", 10, 0)) is None
    assert ledger.find(TaskName("b", 8, 0)) == record(8)


def test_readers_killed_before_they_could_forget_are_forgotten_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    before: str | None = None
    for reader in ("a", "b", "c"):
        ledger.prepare(reader, before)
        ledger.record(TaskName(reader, 1, 0), record(1))
        before = reader
    ledger.prepare("other")
    ledger.forget("c")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"next": 1, "starved": false}', b'{"next": {"orders": {"0": -1}}}']
)
def test_a_damaged_record_says_how_to_go_on(tmp_path: Path, content: bytes) -> None:
    ledger = Ledger(tmp_path)
    ledger.prepare("reader")
    (tmp_path / "reader" / "3-0.json").write_bytes(content)
    with pytest.raises(LedgerError, match=r"3-0\.json: not a record .* restore the file"):
        ledger.find(TASK)


def test_a_directory_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (lambda it: it.prepare("reader"), lambda it: it.record(TASK, record(1))):
        with pytest.raises(LedgerError, match="set the option ledgerPath to a directory"):
            attempt(Ledger(tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_store_says_what_to_set(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerError, match="ledgerPath"):
        Ledger(tmp_path / "ledger").prepare("reader")
