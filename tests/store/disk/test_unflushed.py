"""A flush writes the files that any store appended to since the last flush, and no others."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues
from store.disk.queues_in_log import Ranges, UnflushedEntries, ranges_of
from store.format.layout import ABORT_FILE, PUBLISHED_END_FILE
from tests.descriptors import allowed
from tests.end_to_end.test_kill import bodies, check_log

QUEUES = 300
CONFIG = StoreConfig(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=200, flushIntervalCommitLog=3_600_000)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many")
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", QUEUES)
        store.put_many([Message("t", b"0", queue_id=queue) for queue in range(QUEUES)])
    return path


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    if sys.platform != "linux":
        pytest.skip("names of open files are read from /proc")
    names: set[str] = set()
    flush: Callable[[int], None] = os.fdatasync

    def fdatasync(fd: int) -> None:
        names.add(os.readlink(f"/proc/self/fd/{fd}"))
        flush(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return names


def queue_files(names: set[str]) -> set[int]:
    return {int(Path(name).parent.name) for name in names if "/consumequeue/" in name}


def put(store: MessageStore, queues: list[int]) -> None:
    store.put_many([Message("t", b"x" * 200, queue_id=queue) for queue in queues])


def test_only_new_data_is_flushed(built: Path, flushed: set[str]) -> None:
    with MessageStore.open(built) as store:
        for queues in ([7], [7, 250], list(range(0, QUEUES, 10))):
            put(store, queues)
            flushed.clear()
            store.flush()
            assert queue_files(flushed) == set(queues)
            others = {Path(name).parent.name for name in flushed if "/consumequeue/" not in name}
            assert others == {"commitlog", built.name}
        flushed.clear()
        store.flush()
        assert not flushed


def test_puts_of_other_stores_are_flushed(built: Path, flushed: set[str]) -> None:
    choose = random.Random(7)
    with MessageStore.open(built) as one, MessageStore.open(built) as two:
        new: set[int] = set()
        for _ in range(150):
            queues = choose.sample(range(QUEUES), choose.randint(1, 5))
            put(choose.choice((one, two)), queues)
            new.update(queues)
            if choose.random() < 0.2:
                flushed.clear()
                choose.choice((one, two)).flush()
                assert queue_files(flushed) == new
                assert PublishedEnd(built, writable=False).flushed_offset == one.confirm_offset
                new.clear()


def test_large_puts_of_other_stores_are_flushed(built: Path, flushed: set[str]) -> None:
    """If the log grew by more than a scan is worth, all queues are flushed; otherwise only those named in the log."""
    config = StoreConfig(mappedFileSizeCommitLog=8 << 20, mappedFileSizeConsumeQueue=2000)
    path = built.parent / "few"
    with MessageStore.open(path, config=config) as one, MessageStore.open(path) as two:
        two.create_topic("t", 4)
        for megabytes, queues in (1, {3}), (5, {0, 1, 2, 3}), (0, {3}):
            two.put_many([Message("t", b"x", queue_id=queue) for queue in range(4)])
            two.flush()
            two.put_many([Message("t", bytes(1 << 20), queue_id=3) for _ in range(megabytes)])
            one.put(Message("t", b"x", queue_id=3))
            flushed.clear()
            one.flush()
            assert queue_files(flushed) == queues
            assert PublishedEnd(path, writable=False).flushed_offset == one.confirm_offset


def test_dead_append_is_undone_in_its_queues(built: Path) -> None:
    with MessageStore.open(built) as store:
        before = bodies(store)
        with MessageStore.open(built) as other:
            begin = other.confirm_offset
            put(other, [1, 2, 299, 2])
            end = other.confirm_offset
        published = PublishedEnd(built, writable=True)
        published.announce(end, published.store_timestamp)
        published.publish(begin)
        put(store, [299])
        after = bodies(store)
        offset = store.max_offset("t", 299) - 1
    assert after == {**before, (299, offset): b"x" * 200}
    check_log(built, len(after))


def test_number_of_open_files_is_limited(built: Path) -> None:
    """During recovery, too. A process usually has at most 1,024 descriptors."""
    if sys.platform != "linux":
        pytest.skip("open files are counted in /proc")

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    with allowed(1024), MessageStore.open(built) as store:
        for queue in range(QUEUES):
            store.offsets("t", queue)
        put(store, list(range(QUEUES)))
        store.flush()
        assert 200 < count() - before < 300
    assert count() <= before
    (built / PUBLISHED_END_FILE).unlink()
    (built / ABORT_FILE).touch()
    with allowed(1024):
        MessageStore.open(built).close()
    assert count() <= before
    with MessageStore.open(built, read_only=True) as reader:
        messages = len(bodies(reader))
    check_log(built, messages)


def log_and_end(path: Path) -> tuple[CommitLog, int]:
    with MessageStore.open(path, read_only=True) as reader:
        return CommitLog(path, reader.config.mappedFileSizeCommitLog, writable=False), reader.confirm_offset


def test_log_gives_the_new_entries_of_each_queue(tmp_path: Path) -> None:
    choose = random.Random(3)
    names = [("a", 0), ("a", 1), ("b", 1), ("b", 2)]
    sent = [choose.choice(names) for _ in range(1500)]
    with MessageStore.open(tmp_path) as store:
        for topic in "ab":
            store.create_topic(topic, 3)
        placed = store.put_many([Message(topic, b"x" * 50, queue_id=queue) for topic, queue in sent])
    log, end = log_and_end(tmp_path)
    begins = [result.physical_offset for result in placed] + [end]
    assert end > 2 * 64 << 10
    for first, last in ((0, 1500), (1, 1499), (700, 1400), (3, 4), (9, 9)):
        expected: Ranges = {}
        for name, result in zip(sent[first:last], placed[first:last], strict=True):
            begin, _ = expected.get(name, (result.queue_offset, 0))
            expected[name] = begin, result.queue_offset + 1
        assert ranges_of(log, begins[first], begins[last]) == expected


def test_entries_of_a_single_queue_are_found(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)
        for _ in range(2):
            store.put(Message("t", b"x", queue_id=1))
    log, end = log_and_end(tmp_path)
    assert ranges_of(log, 0, end) == {("t", 1): (0, 2)}


def test_log_gives_no_ranges_if_damaged_outside_of_bodies(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        places = [store.put(Message("t", b"body", queue_id=0)).physical_offset for _ in range(3)]
    log, end = log_and_end(tmp_path)
    file = tmp_path / "commitlog" / f"{0:020d}"
    with file.open("rb") as opened:
        whole = opened.read(end)
    for damaged, expected in (whole.replace(b"body", b"BODY"), {("t", 0): (0, 3)}), (bytes(places[1]), None):
        with file.open("r+b") as opened:
            opened.write(whole[: places[1]] + damaged[places[1] :].ljust(places[1], b"\0"))
        assert ranges_of(log, 0, end) == expected


def test_recorded_ranges_need_no_log(tmp_path: Path) -> None:
    unflushed = UnflushedEntries(
        CommitLog(tmp_path, 1 << 30, writable=False), ConsumeQueues(tmp_path, 200, writable=False)
    )
    unflushed.note(100, 9 << 20, {("t", 0): (5, 7), ("t", 1): (1, 2)})
    unflushed.note(9 << 20, 20 << 20, {("t", 0): (7, 9)})
    unflushed.note(20 << 20, 21 << 20, {("t", 0): (9, 10)})
    assert unflushed.take(100, 20 << 20) == {("t", 0): (5, 9), ("t", 1): (1, 2)}
    assert unflushed.take(20 << 20, 21 << 20) == {("t", 0): (9, 10)}
    assert unflushed.take(21 << 20, 21 << 20) == {}


@pytest.mark.parametrize(("queues", "is_looked_up"), [(2, False), (100, True)])
def test_log_is_scanned_if_cheaper_than_flushing_all_queues(tmp_path: Path, queues: int, is_looked_up: bool) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", queues)
        store.put_many([Message("t", b"x", queue_id=queue) for queue in range(queues)])
        begin = store.confirm_offset
        store.put_many([Message("t", bytes(1 << 20), queue_id=1) for _ in range(5)])
    log, end = log_and_end(tmp_path)
    found = UnflushedEntries(log, ConsumeQueues(tmp_path, 6_000_000, writable=False)).take(begin, end)
    assert found == ({("t", 1): (1, 6)} if is_looked_up else None)
