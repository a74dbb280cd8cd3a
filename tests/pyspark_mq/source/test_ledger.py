"""The ledger: a task's first record wins, appears atomically, and is never replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pyspark_mq.errors import LedgerError
from pyspark_mq.source.ledger import Ledger, TaskName, TaskRecord
from store.model.log_protocol import Fingerprint, Queue
from store.objects.any_objects import objects_at

A, B, C, D = (digit * 32 for digit in "abcd")
TASK = TaskName(A, 3, 0)
QUEUES = (Queue("orders", 0), Queue("orders", 1))


def record(offset: int, *, starved: bool = False) -> TaskRecord:
    last = {Queue("orders", 1): Fingerprint(100 * offset, 1763772000123)}
    return TaskRecord({Queue("orders", 0): offset, Queue("orders", 1): 2 * offset}, starved, last)


@pytest.fixture(params=["directory", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}/ledger"
    return f"{request.getfixturevalue('bucket')}/ledger" if request.param == "s3" else str(tmp_path / "new" / "ledger")


def age(ledger: Path, days: float) -> None:
    for path in (*ledger.rglob("*"), ledger):
        times = path.lstat()
        os.utime(path, (times.st_atime, times.st_mtime - days * 86400), follow_symlinks=False)


def test_record_is_found(place: str) -> None:
    ledger = Ledger(place)
    assert ledger.find(TASK, QUEUES) is None
    told = replace(record(7, starved=True), slots=3)
    assert ledger.record(TASK, told) == told
    assert Ledger(place).find(TASK, QUEUES) == told
    assert list(objects_at(place, {}).names(A)) == ["3-0.json"]


def test_first_record_wins(place: str) -> None:
    ledger = Ledger(place)
    ledger.prepare(A)
    ledger.record(TASK, record(7))
    assert ledger.record(TASK, record(8)) == record(7)
    ledger.prepare(A)
    assert ledger.find(TASK, QUEUES) == record(7)


def test_record_hidden_by_a_cache_is_not_replaced(tmp_path: Path) -> None:
    """A file system may cache that the name was missing."""
    ledger = Ledger(tmp_path)
    ledger.prepare(A)
    (tmp_path / A / "3-0.json").symlink_to("elsewhere")
    with pytest.raises(
        LedgerError, match=r"3-0\.json: another attempt at this task wrote this file.* restart the query"
    ):
        ledger.record(TASK, record(8))


def test_one_of_many_concurrent_records_wins(place: str) -> None:
    start = threading.Barrier(8)
    answers: list[TaskRecord] = []

    def attempt(offset: int) -> None:
        start.wait()
        answers.append(Ledger(place).record(TASK, record(offset)))

    threads = [threading.Thread(target=attempt, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [Ledger(place).find(TASK, QUEUES)] * 8


RACER = """
import sys
from pyspark_mq.source.ledger import Ledger, TaskName, TaskRecord
from store.model.log_protocol import Queue

ledger, mine, queue = Ledger(sys.argv[1]), int(sys.argv[2]), Queue("orders", 0)
ledger.any_ended(TaskName("a" * 32, 0, 0))  # connects
for epoch in range(int(sys.argv[3])):
    print("ready", flush=True)
    sys.stdin.readline()
    print(ledger.record(TaskName("a" * 32, epoch, 0), TaskRecord({queue: mine})).next[queue], flush=True)
"""


@pytest.mark.parametrize("place", ["directory", "s3"], indirect=True)
def test_one_of_two_racing_processes_wins(place: str) -> None:
    rounds = int(os.environ.get("ROUNDS", "20"))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, place, str(mine), str(rounds)],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mine in (1, 2)
    ]

    def told() -> list[str]:
        return [racer.stdout.readline() for racer in racers if racer.stdout is not None]

    for epoch in range(rounds):
        assert told() == ["ready\n", "ready\n"]
        for racer in racers:
            print(file=racer.stdin, flush=True)
        answers = {int(answer) for answer in told()}
        recorded = Ledger(place).find(TaskName(A, epoch, 0), QUEUES[:1])
        assert recorded is not None
        assert answers == {recorded.next[QUEUES[0]]} <= {1, 2}
    assert [racer.wait(60) for racer in racers] == [0, 0]


def test_tasks_epochs_and_readers_have_own_records(place: str) -> None:
    ledger = Ledger(place)
    names = [TaskName(reader, epoch, task) for reader in (A, B) for epoch in (1, 11) for task in (0, 1)]
    for offset, name in enumerate(names):
        ledger.record(name, record(offset))
    assert [ledger.find(name, QUEUES) for name in names] == [record(offset) for offset in range(8)]
    assert ledger.any_ended(TaskName(A, 1, 9))
    assert not ledger.any_ended(TaskName(A, 2, 0))


def test_old_records_are_deleted(place: str) -> None:
    ledger = Ledger(place)
    for epoch in (8, 9, 10):
        ledger.record(TaskName(A, epoch, 0), record(epoch))
        ledger.record(TaskName(B, epoch, 0), record(epoch))
    ledger.forget_before(A, 10)
    assert ledger.find(TaskName(A, 9, 0), QUEUES) is None
    assert ledger.find(TaskName(A, 10, 0), QUEUES) == record(10)
    assert ledger.find(TaskName(B, 8, 0), QUEUES) == record(8)


def test_passed_readers_are_pruned_in_any_place(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, objects = Ledger(place), objects_at(place, {})
    assert objects.names("") == {}
    for reader in (A, B, C):
        ledger.prepare(reader)
    for reader in (A, B):
        ledger.record(TaskName(reader, 1, 0), record(1))
    ledger.mark_passed(A)
    ledger.prune()
    assert objects.names("").keys() == {A, B, C}
    monkeypatch.setattr("pyspark_mq.source.ledger.RETENTION_SECONDS", -3600.0)
    ledger.prune()
    assert objects.names("").keys() == {B}
    assert objects.names(A) == {}
    ledger.mark_passed(B)
    objects.create(f"{B}/notes.txt", b"the user's")
    ledger.prune()
    assert objects.names(B).keys() == {"notes.txt"}


def test_passed_readers_are_pruned_after_some_days(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for reader in (A, B, C):
        ledger.prepare(reader)
        ledger.record(TaskName(reader, 1, 0), record(1))
    ledger.prepare(D)
    ledger.mark_passed(A)
    age(tmp_path, 6.9)
    ledger.mark_passed(B)
    ledger.prune()
    assert {path.name for path in tmp_path.iterdir()} == {A, B, C, D}
    age(tmp_path, 0.2)
    (tmp_path / A / f"9-0.json.{A}.tmp").write_bytes(b"of a killed task")
    ledger.prune()
    assert {path.name for path in tmp_path.iterdir()} == {B, C}
    age(tmp_path, 6.9)
    ledger.mark_passed(B)
    age(tmp_path, 6.9)
    ledger.prune()
    assert {path.name for path in tmp_path.iterdir()} == {B, C}
    age(tmp_path, 1000)
    ledger.prune()
    assert {path.name for path in tmp_path.iterdir()} == {C}  # a stopped query may continue from it at any time


def test_unlistable_place_is_not_pruned(tmp_path: Path) -> None:
    (tmp_path / "ledger").touch()
    Ledger(tmp_path / "ledger").prune()


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("passed", "1-0.json"):
        (other / name).touch()
    for reader in (A, B):
        ledger.prepare(reader)
        ledger.mark_passed(reader)
    (tmp_path / "ledger" / A / "notes.txt").touch()
    (tmp_path / "ledger" / A / "sub").mkdir()
    (tmp_path / "ledger" / A / "1-0.json").symlink_to(other / "1-0.json")
    (tmp_path / "ledger" / "notes").mkdir()
    (tmp_path / "ledger" / "notes" / "passed").touch()
    (tmp_path / "ledger" / C).symlink_to(other)
    age(tmp_path, 100)
    ledger.prune()
    assert {path.name for path in (tmp_path / "ledger").iterdir()} == {A, "notes", C}
    assert {path.name for path in (tmp_path / "ledger" / A).iterdir()} == {"notes.txt", "sub"}
    assert {path.name for path in other.iterdir()} == {"passed", "1-0.json"}


@pytest.mark.parametrize("reader", ["", ".", "..", "../other", "/other", "reader", A.upper(), A + "\n", A[1:]])
def test_wrong_reader_id_is_refused(tmp_path: Path, reader: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1-0.json").touch()
    ledger = Ledger(tmp_path / "ledger")
    name = TaskName(reader, 3, 0)
    for verb in (
        lambda: ledger.prepare(reader),
        lambda: ledger.find(name, QUEUES),
        lambda: ledger.record(name, record(1)),
        lambda: ledger.any_ended(name),
        lambda: ledger.forget_before(reader, 9),
        lambda: ledger.mark_passed(reader),
    ):
        with pytest.raises(LedgerError, match="is no id of a reader"):
            verb()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1-0.json", "other"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"next": 1, "starved": false, "last": {}, "slots": null}',
        b'{"next": {"orders": {"0": -1, "1": 1}}, "starved": false, "last": {}, "slots": null}',
        b'{"next": {"orders": {"0": 1}}, "starved": false, "last": {}, "slots": null}',
        b'{"next": {"orders": {"0": 1, "1": 1}}, "starved": false, "last": 1, "slots": null}',
        b'{"next": {"orders": {"0": 1, "1": 1}}, "starved": false, "slots": null}',
        b'{"next": {"orders": {"0": 1, "1": 1}}, "starved": false, "last": {}}',
        b'{"next": {"orders": {"0": 1, "1": 1}}, "last": {}, "slots": null}',
        b'{"next": {"orders": {"0": 1, "1": 1}}, "starved": false, "last": {}, "slots": 0}',
        b'{"next": {"orders": {"0": 1, "1": 1, "2": 1}}, "starved": false, "last": {}, "slots": null}',
    ],
)
def test_error_of_a_damaged_record_has_a_remedy(tmp_path: Path, content: bytes) -> None:
    ledger = Ledger(tmp_path)
    ledger.prepare(A)
    (tmp_path / A / "3-0.json").write_bytes(content)
    with pytest.raises(LedgerError, match=r"3-0\.json: this file does not record .* Restore the file"):
        ledger.find(TASK, QUEUES)


def test_unwritable_directory_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (lambda it: it.prepare(A), lambda it: it.record(TASK, record(1))):
        with pytest.raises(LedgerError, match=r"[Ss]et ledgerPath to a directory"):
            attempt(Ledger(tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_store_has_a_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerError, match="ledgerPath"):
        Ledger(tmp_path / "ledger").prepare(A)
