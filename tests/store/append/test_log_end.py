from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from store import CorruptSegment, Message, MessageStore, StoreConfig, StoreFull, StoreReplaced
from store.append import log_end
from store.append.log_end import LogEnd
from store.append.published_end import PublishedEnd, checked
from store.disk.commit_log import CommitLog
from store.disk.dispatch import LogChunk, walk
from store.format.layout import ABORT_FILE, COMMIT_LOG_DIR, PUBLISHED_END_FILE, QUEUE_ENDS_FILE, segment_name
from store.upkeep.findings import COPY
from store.upkeep.verify import verify
from tests.end_to_end.dying_writers import QUEUES
from tests.end_to_end.test_kill import ROOT, bodies
from tests.takeover import PATIENCE, Follower, broker, die
from tests.waiting import another_millisecond

SIZE = 16 << 10
SMALL = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=2000)

Steps = list[Callable[[CommitLog, int], list[LogChunk]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", QUEUES)
        put(store, "ours", 20)
    return tmp_path / "mq"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.05)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.0)


def put(store: MessageStore, what: str, count: int) -> None:
    for n in range(count):
        store.put(Message("t", f"{what} {n}".encode(), queue_id=n % QUEUES))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("dead", [False, True])
def test_open_reader_raises_for_a_new_owner(path: Path, dead: bool, killed: bool) -> None:
    for number in range(2):
        with MessageStore.open(path, read_only=True) as early:
            Follower(early).until(bodies(early))
            if dead:
                die(path)
            with broker(path, killed=killed) as theirs:
                put(theirs, f"theirs {number}", 1)
                must_be_told(early)
                with MessageStore.open(path, read_only=True) as late:
                    follower = Follower(late)
                    follower.until(bodies(theirs))
                    put(theirs, f"and {number}", 200)
                    follower.until(bodies(theirs))
                expected = bodies(theirs)
        with MessageStore.open(path, read_only=True) as between:
            assert bodies(between) == expected
            with MessageStore.open(path) as ours:
                assert bodies(ours) == expected
                must_be_told(between)
                put(ours, f"again {number}", 30)


def must_be_told(reader: MessageStore) -> None:
    def wait_on() -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            reader.wait(reader.confirm_offset, 0.1)

    with pytest.raises(StoreReplaced, match=r"changed owner: .* Close this store and open it again"):
        wait_on()
    with pytest.raises(StoreReplaced):
        reader.max_offset("t", 0)


@pytest.mark.usefixtures("soon")
def test_reader_of_an_empty_directory_accepts_the_first_owner(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    (path / COMMIT_LOG_DIR).mkdir(parents=True)
    with MessageStore.open(path, read_only=True) as reader, MessageStore.open(path, config=SMALL) as ours:
        ours.create_topic("t", QUEUES)
        put(ours, "first", 3)
        Follower(reader).until(bodies(ours))


@pytest.mark.usefixtures("soon")
def test_reader_continues_after_a_recovery(path: Path) -> None:
    with closing(PublishedEnd(path, writable=True)) as published:
        published._file._fields["boot_id"][...] = b"another"
        published._file._fields["flushed_offset"][...] = checked(0)
    (path / ABORT_FILE).touch()
    with MessageStore.open(path, read_only=True) as reader, reader.watch() as watch:
        follower = Follower(reader)
        follower.until(bodies(reader))
        assert len(follower.read) == 20
        assert watch.polls
        with MessageStore.open(path) as ours:
            put(ours, "ours", 1)
            follower.until(bodies(ours))
            assert not watch.polls


def test_broker_below_the_end_announced_by_a_dead_writer(path: Path) -> None:
    die(path)
    with broker(path) as theirs:
        put(theirs, "theirs", 1)
        with MessageStore.open(path, read_only=True) as reader:
            assert reader.confirm_offset == theirs.confirm_offset < PublishedEnd(path, writable=False).announced_end
            assert bodies(reader) == bodies(theirs)


@pytest.mark.usefixtures("soon")
def test_broker_that_keeps_a_dead_append_is_a_new_owner(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        published = bodies(reader)
        die(path)
        assert bodies(reader) == published
        with broker(path) as theirs:
            kept = bodies(theirs)
        assert len(kept) > len(published)
        must_be_told(reader)
    with MessageStore.open(path, read_only=True) as reader:
        assert bodies(reader) == kept


def test_dead_writer_is_not_mistaken_for_a_broker(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        published = bodies(reader)
    die(path)
    with MessageStore.open(path, read_only=True) as reader:
        assert bodies(reader) == published
    assert not LogEnd(path, CommitLog(path, SIZE, writable=False)).by_log


@pytest.mark.usefixtures("soon")
def test_preallocated_segment_of_a_broker_is_replaced(path: Path) -> None:
    with broker(path) as theirs:
        put(theirs, "theirs", 1)
        reader = MessageStore.open(path, read_only=True)
        follower = Follower(reader)
        ahead = path / COMMIT_LOG_DIR / segment_name(theirs.confirm_offset // SIZE * SIZE + SIZE)
        ahead.touch()
        os.truncate(ahead, SIZE)
        put(theirs, "before", 1)
        follower.until(bodies(theirs))
        ahead.unlink()
        put(theirs, "after", 150)
        assert ahead.exists()
        follower.until(bodies(theirs))
        reader.close()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("how", ["missing", "emptied", "zeroed"])
@pytest.mark.parametrize("machine_died", [False, True])
def test_no_append_follows_a_lost_segment(path: Path, how: str, machine_died: bool) -> None:
    with MessageStore.open(path) as store:
        put(store, "more", 2 * SIZE // 100)
        last = path / COMMIT_LOG_DIR / segment_name(store.confirm_offset // SIZE * SIZE)
        assert store.confirm_offset % SIZE
    if machine_died:
        with closing(PublishedEnd(path, writable=True)) as published:
            published._file._fields["boot_id"][...] = b"another"
        (path / ABORT_FILE).touch()
    content = last.read_bytes()
    if how == "missing":
        last.unlink()
    else:
        last.write_bytes(b"" if how == "emptied" else bytes(SIZE))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(CorruptSegment, match=f"{last.name}: this segment is missing.* Restore it from a copy"):
        MessageStore.open(path)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    last.write_bytes(content)
    with MessageStore.open(path) as store:
        put(store, "again", 1)
    assert verify(path).findings == []


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("with_ends", [False, True])
def test_older_watermark_of_a_damaged_log_cuts_nothing_silently(path: Path, killed: bool, with_ends: bool) -> None:
    files = [PUBLISHED_END_FILE, QUEUE_ENDS_FILE][: 1 + with_ends]
    older = {name: (path / name).read_bytes() for name in files}
    with MessageStore.open(path) as store:
        at, position = store.confirm_offset, store.confirm_offset % SIZE
        put(store, "more", 20)
    for name, content in older.items():
        (path / name).write_bytes(content)
    with open(path / COMMIT_LOG_DIR / segment_name(at - position), "r+b") as file:
        file.seek(position)
        file.write(bytes(4))
    if killed:
        (path / ABORT_FILE).touch()
    else:
        with pytest.warns(RuntimeWarning, match=f"the readable log ends at log offset {at}, .* messages are missing"):
            MessageStore.open(path, read_only=True).close()
        assert [finding.remedy for finding in verify(path).findings if "no sound record" in finding.what] == [COPY]
    said = (
        f"the log ends at {at}, but bytes that are no sound record follow"
        if killed
        else rf"log offset {at}\), although the last writer"
    )
    with pytest.warns(RuntimeWarning, match=said):
        MessageStore.open(path).close()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("how", ["deleted", "deleted and rebuilt", "older"])
def test_reader_raises_for_another_watermark(path: Path, how: str) -> None:
    watermark = path / PUBLISHED_END_FILE
    older = watermark.read_bytes()
    with MessageStore.open(path) as ours:
        put(ours, "more", 5)
    with MessageStore.open(path, read_only=True) as reader:
        Follower(reader).until(bodies(reader))
        if how == "older":
            watermark.write_bytes(older)
        else:
            watermark.unlink()
        if how == "deleted and rebuilt":
            MessageStore.open(path).close()
        must_be_told(reader)


@pytest.mark.usefixtures("soon")
def test_watch_polls_beside_a_broker(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader, reader.watch() as watch:
        assert not watch.polls
    with broker(path) as theirs:
        put(theirs, "theirs", 1)
        with MessageStore.open(path, read_only=True) as reader, reader.watch() as watch:
            assert watch.polls
            put(theirs, "theirs", 1)
            deadline = time.monotonic() + PATIENCE
            while reader.confirm_offset < theirs.confirm_offset:
                assert time.monotonic() < deadline
                watch.wait(PATIENCE)


@pytest.mark.usefixtures("always")
def test_dying_writers_are_not_mistaken_for_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    (tmp_path / "mq.acks").mkdir()
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", QUEUES)
    end = LogEnd(path, CommitLog(path, SIZE, writable=False))
    command = [sys.executable, "-m", "tests.end_to_end.dying_writers", "random", str(path), "40"]
    looks = last = 0
    for seed in range(7, 107):
        with subprocess.Popen([*command, str(seed)], cwd=ROOT) as writers:
            while writers.poll() is None:
                confirm_offset = end.confirm_offset
                assert not end.by_log
                assert confirm_offset >= last
                looks, last = looks + 1, confirm_offset
        assert writers.returncode == 0
        if looks > 1000 and last > SIZE:
            break
    assert looks > 1000
    assert last > SIZE


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps: Steps = []

    def walk_late(
        log: CommitLog, begin: int, *, until: int | None = None, torn_from: int | None = None
    ) -> Iterator[LogChunk]:
        return iter(steps.pop(0)(log, begin)) if steps else walk(log, begin, until=until, torn_from=torn_from)

    monkeypatch.setattr(log_end, "walk", walk_late)
    return steps


@pytest.mark.usefixtures("always")
def test_appends_during_a_check_are_no_new_owner(path: Path, steps: Steps) -> None:
    with MessageStore.open(path) as ours:
        end = LogEnd(path, CommitLog(path, SIZE, writable=False))

        def appended_twice(log: CommitLog, begin: int) -> list[LogChunk]:
            for _ in range(2):
                put(ours, "more", 1)
                another_millisecond()
            return list(walk(log, begin))

        steps.append(appended_twice)
        assert end.confirm_offset == ours.confirm_offset
        assert not steps
        assert not end.by_log


@pytest.mark.usefixtures("always")
def test_undone_append_during_a_check_is_no_new_owner(
    path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both appends are in the same millisecond, so their times do not differ."""
    now = time.time()
    monkeypatch.setattr("store.append.appender.time.time", lambda: now)
    with MessageStore.open(path) as ours:
        put(ours, "ours", 1)
        end = LogEnd(path, CommitLog(path, SIZE, writable=False))
        published = ours.confirm_offset

        def failed_and_undone(log: CommitLog, begin: int) -> list[LogChunk]:
            with monkeypatch.context() as full:
                fill_the_device_after_one_write(full)
                with pytest.raises(StoreFull):
                    put(ours, "never", 1)
            found = list(walk(log, begin))
            assert found[-1].end > published
            ours.clean()
            return found

        steps.append(failed_and_undone)
        assert end.confirm_offset == published
        assert not steps
        assert not end.by_log


def fill_the_device_after_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is written, but its queue entry finds no space."""
    pwrite, calls = os.pwrite, itertools.count()

    def pwrite_once(fd: int, data: bytes, position: int) -> int:
        if next(calls):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite_once)


def test_reader_trusts_a_publication_without_a_walk(path: Path, steps: Steps) -> None:
    with MessageStore.open(path) as ours, MessageStore.open(path, read_only=True) as reader:
        steps.append(lambda log, begin: pytest.fail("walked"))
        for _ in range(100):
            put(ours, "ours", 1)
            assert reader.confirm_offset == ours.confirm_offset
        assert len(steps) == 1


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs the kernel's count of bytes read")
@pytest.mark.usefixtures("always")
def test_check_of_a_running_broker_reads_little(tmp_path: Path) -> None:
    def bytes_read() -> int:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counts["rchar"])

    path = tmp_path / "mq"
    with MessageStore.open(path) as ours:
        ours.create_topic("t", QUEUES)
        put(ours, "before", 1)
    with broker(path) as theirs:
        put(theirs, "first", 1)
        reader = MessageStore.open(path, read_only=True)
        seen = reader.confirm_offset
        put(theirs, "new", 1)
        before = bytes_read()
        assert reader.confirm_offset > seen
        assert bytes_read() - before < 1 << 18
        put(theirs, "many", 1000)
        assert reader.confirm_offset == theirs.confirm_offset
        reader.close()
