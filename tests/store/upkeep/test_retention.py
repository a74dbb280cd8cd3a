from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore, OffsetLost, ReadOnlyStore, StoreConfig
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues
from store.disk.index import Index
from store.format.layout import CQ_ENTRY, segment_name
from store.upkeep.retention import CleanMoment, CleanReason, LogSegment, Retention, decide, used_percent

HOUR = 3600
DAYS = 24 * HOUR
NOW = 1_700_000_000.0
SEGMENTS = [LogSegment(1000, NOW - 5 * DAYS), LogSegment(1100, NOW - 4 * DAYS), LogSegment(1200, NOW - HOUR)]
SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    # Ignore how full the test machine's disk is.
    diskMaxUsedSpaceRatio=100,
    diskSpaceCleanForciblyRatio=100,
)


@pytest.mark.parametrize(
    ("hour", "used", "asked", "forced", "reason", "starts"),
    [
        (3, 10, False, False, CleanReason.NOT_NOW, []),
        (5, 75, False, False, CleanReason.NOT_NOW, []),
        (4, 10, False, False, CleanReason.HOUR, [1000, 1100]),
        (4, 75, True, False, CleanReason.HOUR, [1000, 1100]),
        (5, 10, True, False, CleanReason.ASKED, [1000, 1100]),
        (5, 76, False, False, CleanReason.DISK_FILLING, [1000, 1100]),
        (4, 85, True, False, CleanReason.DISK_FILLING, [1000, 1100]),
        (5, 86, False, False, CleanReason.DISK_FULL, [1000, 1100, 1200]),
        (4, 95, True, True, CleanReason.DISK_FULL, [1000, 1100, 1200]),
        (5, 10, False, True, CleanReason.FORCED, [1000, 1100, 1200]),
        (4, 80, True, True, CleanReason.FORCED, [1000, 1100, 1200]),
    ],
)
def test_decisions_depend_on_hour_and_disk_usage(
    hour: int, used: int, asked: bool, forced: bool, reason: CleanReason, starts: list[int]
) -> None:
    assert decide(StoreConfig(), CleanMoment(NOW, hour, used, asked, forced), SEGMENTS) == (reason, starts)


@pytest.mark.parametrize(
    ("settings", "used", "starts"),
    [
        ({"fileReservedTime": 97}, 10, [1000]),
        ({"fileReservedTime": 96}, 10, [1000, 1100]),
        ({"fileReservedTime": 0}, 10, [1000, 1100, 1200]),
        ({"fileReservedTime": 500}, 10, []),
        ({"deleteFileBatchMax": 1}, 10, [1000]),
        ({"deleteFileBatchMax": 2}, 99, [1000, 1100]),
        ({"cleanFileForciblyEnable": False}, 99, [1000, 1100]),
        ({"diskSpaceCleanForciblyRatio": 100}, 100, [1000, 1100]),
    ],
)
def test_settings_are_applied(settings: dict[str, int], used: int, starts: list[int]) -> None:
    assert decide(StoreConfig(**settings), CleanMoment(NOW, 4, used), SEGMENTS).starts == starts


def test_young_segment_keeps_later_older_ones() -> None:
    segments = [LogSegment(0, NOW - 5 * DAYS), LogSegment(100, NOW), LogSegment(200, NOW - 5 * DAYS)]
    assert decide(StoreConfig(), CleanMoment(NOW, 4, 10), segments).starts == [0]


def test_used_percent_equals_dfs(tmp_path: Path) -> None:
    printed = subprocess.run(["df", "--output=pcent", tmp_path], capture_output=True, text=True, check=True).stdout
    assert abs(used_percent(tmp_path) - int(printed.split()[-1].rstrip("%"))) <= 1


def age(path: Path, days: float, *numbers: int) -> None:
    for number, file in enumerate(sorted((path / "commitlog").iterdir())):
        if not numbers or number in numbers:
            os.utime(file, (time.time() - days * DAYS,) * 2)


def names(path: Path, folder: str) -> list[int]:
    return sorted(int(entry.name) for entry in (path / folder).iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Queue 0 has 30 records of 1 kB, three a segment; queue 1 has one at the very beginning; queue 2 is empty."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.put(Message("t", b"first", queue_id=1))
        for number in range(30):
            store.put(Message("t", bytes([number]) * 1000, queue_id=0))
    assert names(tmp_path, "commitlog") == list(range(0, 41_000, 4096))[:10]
    assert names(tmp_path, "consumequeue/t/0") == [0, 200, 400]
    return tmp_path


def kept(store: MessageStore) -> list[int]:
    minimum, maximum = store.offsets("t", 0)
    assert maximum >= 30
    rows = [row for batch in store.scan("t", 0, minimum, maximum) for row in batch.to_pylist()]
    assert [row["queueOffset"] for row in rows] == list(range(minimum, maximum))
    assert all(row["body"] == bytes([row["queueOffset"]]) * 1000 for row in rows if row["queueOffset"] < 30)
    return [row["queueOffset"] for row in rows]


def test_old_segments_and_their_entries_are_deleted(path: Path) -> None:
    age(path, 4, 0, 1, 2, 3, 4)
    other_hour = replace(SMALL, deleteWhen=f"{(time.localtime().tm_hour + 12) % 24:02}")
    with MessageStore.open(path, config=other_hour) as store, MessageStore.open(path, read_only=True) as reader:
        assert kept(reader) == list(range(30))
        done = store.clean(asked=True)
        assert [Path(name).name for name in done.log] == [segment_name(4096 * n) for n in range(5)]
        assert [Path(name).name for name in done.queues] == [segment_name(0)]
        assert (done.reason, done.min_offset) == (CleanReason.ASKED, 5 * 4096)
        assert done.taken >= 6 * 4096
        assert names(path, "consumequeue/t/0") == [200, 400]
        for each in (store, reader):
            assert each.offsets("t", 0) == (15, 30)
            assert kept(each) == list(range(15, 30))
            assert each.offsets("t", 1) == (1, 1), "its offsets continue"
            assert each.offsets("t", 2) == (0, 0)
            with pytest.raises(OffsetLost, match=r"offset 0 was deleted\. Begin at offset 15"):
                each.scan("t", 0, 0, 30)
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 1
        assert store.clean(asked=True).log == []
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        assert kept(store) == list(range(15, 30))
        assert store.offsets("t", 1) == (1, 2)


def test_last_segment_with_a_record_is_kept(path: Path) -> None:
    with MessageStore.open(path) as store:
        assert len(store.clean(forced=True).log) == 9
        assert kept(store) == [27, 28, 29]
        assert names(path, "consumequeue/t/0") == [400]
        assert store.clean(forced=True).log == []
        for _ in range(30, 34):
            store.put(Message("t", bytes(1000), queue_id=0))
        assert len(store.clean(forced=True).log) == 2
        assert kept(store) == [33]


def test_preallocated_segment_keeps_the_last_records(path: Path) -> None:
    """A RocketMQ broker creates the next file ahead of time."""
    with MessageStore.open(path) as store:
        (path / "commitlog" / segment_name(10 * 4096)).write_bytes(bytes(4096))
        store.clean(forced=True)
        assert kept(store) == [27, 28, 29]


def test_step_is_limited(path: Path) -> None:
    age(path, 4)
    with MessageStore.open(path, config=replace(SMALL, deleteFileBatchMax=4)) as store:
        assert [len(store.clean(asked=True).log) for _ in range(4)] == [4, 4, 1, 0]


def test_nothing_is_deleted_at_another_hour(path: Path) -> None:
    age(path, 4)
    four, five = (time.mktime((2030, 1, 1, hour, 30, 0, 0, 0, -1)) for hour in (4, 5))
    with MessageStore.open(path) as store:
        assert (store.clean(now=five).reason, store.clean(now=five).log) == (CleanReason.NOT_NOW, [])
        assert store.clean(now=four, dry_run=True).reason is CleanReason.HOUR
        assert len(store.clean(now=four).log) == 9


def test_dry_run_deletes_nothing_and_needs_no_writer(path: Path) -> None:
    age(path, 4)
    with MessageStore.open(path, read_only=True) as reader:
        assert len(reader.clean(asked=True, dry_run=True).log) == 9
        assert kept(reader) == list(range(30))
        with pytest.raises(ReadOnlyStore):
            reader.clean(asked=True)


def test_deleted_files_are_reported(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=replace(SMALL, maxHashSlotNum=20, maxIndexNum=20)) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(1000), keys=(f"k{n}",)) for n in range(50)])
        store.flush()
        taken = {str(file): file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file()}
        planned = store.clean(forced=True, dry_run=True)
        assert planned.taken == sum(taken[path] for path in planned.log) > 0
        done = store.clean(forced=True)
        gone = [*done.log, *done.queues, *done.index]
        assert done.log == planned.log
        assert (len(done.log), len(done.queues), len(done.index)) == (10, 3, 1), "of deleteFileBatchMax segments"
        assert set(gone) == {path for path in taken if not Path(path).exists()}
        assert done.taken == sum(taken[path] for path in gone)
        assert [len(store.query("t", f"k{n}")) for n in range(50)] == [0] * 30 + [1] * 20


@pytest.mark.parametrize(("kept_from", "gone"), [(None, 9), (0, 0), (4095, 0), (4096, 1), (8191, 1), (8192, 2)])
def test_unarchived_segments_are_kept(path: Path, kept_from: int | None, gone: int) -> None:
    log, index = CommitLog(path, 4096, writable=False), Index.of(path, SMALL, writable=False)
    retention = Retention(path, SMALL, log, index, ConsumeQueues(path, 200, writable=False))
    decision, _, kept = retention.decide(41_000, None, kept_from, asked=False, forced=True)
    assert decision.starts == [4096 * n for n in range(gone)]
    assert kept == 9 - gone


def test_empty_store_has_nothing_to_delete(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        assert store.clean(forced=True).log == []
        assert store.clean(forced=True).min_offset == 0


def test_running_scan_raises_for_deleted_messages(path: Path) -> None:
    with MessageStore.open(path) as store, MessageStore.open(path, read_only=True) as reader:
        batches = reader.scan("t", 0, 0, 30, columns=("queueOffset",), max_rows=3)
        seen = next(batches).column(0).to_pylist()
        store.clean(forced=True)
        with pytest.raises(OffsetLost, match="Retention deleted"):
            seen.extend(offset for batch in batches for offset in batch.column(0).to_pylist())
        assert seen == list(range(len(seen)))
        assert reader.offsets("t", 0) == (27, 30)


def test_idle_writer_continues_although_queue_files_were_deleted(path: Path) -> None:
    with MessageStore.open(path) as idle, MessageStore.open(path) as busy:
        assert idle.put(Message("t", bytes(1000), queue_id=0)).queue_offset == 30
        for _ in range(60):
            busy.put(Message("t", bytes(1000), queue_id=0))
        busy.clean(forced=True)
        busy.clean(forced=True)
        busy.clean(forced=True)
        assert names(path, "consumequeue/t/0")[0] >= 800
        assert idle.put(Message("t", bytes(1000), queue_id=0)).queue_offset == 91
        assert busy.offsets("t", 0)[1] == 92


def test_reader_of_a_brokers_directory_survives_retention(path: Path, tmp_path: Path) -> None:
    theirs = shutil.copytree(path, tmp_path.with_name(f"{tmp_path.name}-theirs"))
    (theirs / "watermark").unlink()
    later = sorted((theirs / "commitlog").iterdir())[5:]
    kept_back = [(file, file.read_bytes()) for file in later]
    for file in later:
        file.unlink()
    with MessageStore.open(theirs, read_only=True) as reader:
        assert reader.offsets("t", 0) == (0, 15)
        for file, content in kept_back:
            file.write_bytes(content)
        for file in sorted((theirs / "commitlog").iterdir())[:7]:
            file.unlink()
        assert reader.offsets("t", 0) == (21, 30)


def test_several_processes_clean_concurrently(path: Path) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        stores = [stack.enter_context(MessageStore.open(path)) for _ in range(4)]
        done = list(pool.map(lambda store: store.clean(forced=True), stores))
        deleted = [Path(name).name for each in done for name in each.log]
        assert sorted(deleted) == [segment_name(4096 * n) for n in range(9)]
        assert {each.min_offset for each in done} == {9 * 4096}
        assert kept(stores[0]) == [27, 28, 29]


WRITER = """
import sys
from store import Message, MessageStore
with MessageStore.open(sys.argv[1]) as store:
    for number in range(400):
        store.put_many([Message("t", bytes(300), queue_id=0) for _ in range(5)])
        if number % 3 == 0:
            store.clean(forced=True)
print(store.path)
"""


def test_other_processes_lose_only_old_messages(path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=Path(__file__).parents[3])
    lost = read = 0
    with MessageStore.open(path, read_only=True) as reader:
        minimum, maximum = 0, 30
        while writer.poll() is None:
            low, high = reader.offsets("t", 0)
            assert minimum <= low <= high
            assert maximum <= high <= reader.max_offset("t", 0)
            minimum, maximum = low, high
            try:
                got = [o for b in reader.scan("t", 0, low, high, ("queueOffset",)) for o in b.column(0).to_pylist()]
                assert got == list(range(low, high))
                read += len(got)
            except OffsetLost:
                lost += 1
        assert writer.returncode == 0
        assert reader.offsets("t", 0)[1] == 30 + 2000
    assert read > 0


def test_append_dies_during_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append had begun the queue's next file. The file before is the last again and stays: otherwise saving the
    queue's end would need space for a whole file, which a full disk lacks."""
    config = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, flushIntervalCommitLog=3_600_000)
    with MessageStore.open(tmp_path, config=config) as store, MessageStore.open(tmp_path, config=config) as dying:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"x", queue_id=0) for _ in range(10)])
        store.put_many([Message("t", bytes(500), queue_id=1) for _ in range(30)])
        unlink = Path.unlink
        died: list[int] = []

        def die(published: PublishedEnd, confirm_offset: int) -> None:
            died.append(confirm_offset)
            raise KeyboardInterrupt

        def unlink_and_die(self: Path, missing_ok: bool = False) -> None:
            unlink(self, missing_ok)
            if self.parent.name == "commitlog" and not died:
                with monkeypatch.context() as patch:
                    patch.setattr(PublishedEnd, "publish", die)
                    with pytest.raises(KeyboardInterrupt):
                        dying.put(Message("t", b"dead", queue_id=0))

        monkeypatch.setattr(Path, "unlink", unlink_and_die)
        assert len(store.clean(forced=True).log) > 1
        assert died
        assert names(tmp_path, "consumequeue/t/0") == [0]
        assert store.offsets("t", 0) == (10, 10)
        assert store.put(Message("t", b"next", queue_id=0)).queue_offset == 10


def test_last_published_record_before_an_empty_segment_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(500)) for _ in range(9)])
    (path / "commitlog" / segment_name(4096)).write_bytes(bytes(4096))
    (path / "watermark").unlink()
    (path / "abort").write_text("1")
    with MessageStore.open(path) as store:
        assert store.confirm_offset == 4096
        assert store.clean(forced=True).log == []
        assert store.offsets("t", 0)[0] == 0


def test_lost_queue_without_records_continues_at_its_saved_end(tmp_path: Path) -> None:
    """The cleaning process was killed after it had saved the end, which nothing else records."""
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", 1)
        store.create_topic("u", 1)
        store.put_many([Message("t", b"x")] * 3)
        store.put_many([Message("u", bytes(1000))] * 10)
        assert store.clean(forced=True).min_offset > 0
        shutil.copytree(tmp_path / "mq", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed/consumequeue/t")
    with MessageStore.open(tmp_path / "killed") as store:
        assert store.put(Message("t", b"next")).queue_offset == 3


def test_damaged_entry_does_not_delete_a_queue_file(tmp_path: Path) -> None:
    """The file's last entry names a deleted record, but earlier ones name existing records."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=replace(SMALL, deleteFileBatchMax=1)) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(200)) for _ in range(60)])
    entry = np.zeros(1, CQ_ENTRY)
    entry["physical_offset"], entry["size"] = 100, 300
    with (path / "consumequeue/t/0" / segment_name(200)).open("r+b") as file:
        file.seek(180)
        file.write(entry.tobytes())
    with MessageStore.open(path) as store:
        cleaned = store.clean(forced=True, config=replace(store.config, deleteFileBatchMax=1))
        assert [Path(queue).name for queue in cleaned.queues] == [segment_name(0)]
        first = store.min_offset("t", 0)
        assert 10 < first < 19
        assert store.get_message("g", "t", 0, first, 1).messages[0].physical_offset == cleaned.min_offset
