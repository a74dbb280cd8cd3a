from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from store import (
    Message,
    MessageStore,
    NotAStore,
    StoreConfig,
    StoreLocked,
    StoreUnavailable,
    UnknownTopic,
    UnsupportedStore,
)
from store.archive.archive_log import ArchiveAddress
from store.directory.restoring import UNFINISHED, restore
from store.format.layout import SCHEDULE_TOPIC
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.upkeep.verify import verify
from tests.filled import Filled
from tests.waiting import another_millisecond, until

SMALL = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=100 * 20)
COLUMNS = ("queueOffset", "body", "tags", "keys", "properties", "bornTimestamp", "storeTimestamp")
SPEC = ReadSpec(COLUMNS, EVERYTHING)
GOLDEN = Path(__file__).parents[2] / "golden"


def same(store: MessageStore, address: ArchiveAddress) -> int:
    """Check that queues, offsets and messages equal the archive's; return the number of messages."""
    count = 0
    with address.open() as log:
        assert {topic: len(queues) for topic, queues in log.topics().items()} == store.topics()
        bounds = log.bounds([queue for queues in log.topics().values() for queue in queues])
        for queue, ends in bounds.items():
            count += ends.max_offset - ends.min_offset
            if ends.min_offset < ends.max_offset:
                assert store.bounds([queue]) == {queue: ends}
                spec, wanted = ReadSpec(COLUMNS, EVERYTHING), QueueRange(queue, *ends)
                read = [
                    pa.Table.from_batches(it).to_pylist() for it in (log.scan(wanted, spec), store.read(wanted, spec))
                ]
                assert read[0] == read[1]
    return count


def test_whole_archive_is_restored(filled: Filled, tmp_path: Path) -> None:
    filled.put("orders", 0, 200, 1000)
    filled.store.create_topic("none", 3)
    filled.store.archive(str(tmp_path / "archive"))
    address, seen = ArchiveAddress(str(tmp_path / "archive")), []
    assert restore(address, tmp_path / "new", config=SMALL, progress=lambda *so_far: seen.append(so_far)) == 208
    assert seen[-1] == (208, 208)
    assert not verify(str(tmp_path / "new")).findings
    with MessageStore.open(tmp_path / "new", create=False) as store:
        assert same(store, address) == 208
        assert store.query("orders", "k199")
        store.append_table("orders", pa.table({"body": ["more"] * 40}))
        assert store.max_offset("orders", 0) > 203


def test_archive_that_begins_later_keeps_its_offsets(filled: Filled, tmp_path: Path) -> None:
    filled.put("orders", 0, 200, 1000)
    assert filled.store.clean(forced=True).log
    filled.store.archive(str(tmp_path / "archive"))
    address = ArchiveAddress(str(tmp_path / "archive"))
    restore(address, tmp_path / "new", config=SMALL)
    with MessageStore.open(tmp_path / "new", create=False) as store:
        assert 0 < same(store, address) < 200
        assert store.min_offset("orders", 0) == filled.store.min_offset("orders", 0)


def test_archive_of_rocketmq_is_restored(tmp_path: Path) -> None:
    address = ArchiveAddress(str(GOLDEN / "tiered" / "5.5"))
    assert restore(address, tmp_path / "new", config=SMALL) == 72
    with MessageStore.open(tmp_path / "new", create=False) as store:
        assert same(store, address) == 72


def test_only_named_topics_are_restored(filled: Filled, tmp_path: Path) -> None:
    filled.store.create_topic("more", 1)
    filled.put("more", 0, 2)
    filled.store.archive(str(tmp_path / "archive"))
    address = ArchiveAddress(str(tmp_path / "archive"))
    (tmp_path / "new.restoring").mkdir()
    assert restore(address, tmp_path / "new", ["more"], SMALL) == 2
    with MessageStore.open(tmp_path / "new", create=False) as store:
        assert store.topics() == {"more": 1}
    with pytest.raises(NotAStore, match="this path exists"):
        restore(address, tmp_path / "new")
    with pytest.raises(UnknownTopic, match=r"no topic nowhere in this archive. It has more, orders"):
        restore(address, tmp_path / "other", ["nowhere"])


def test_light_queues_are_not_restored_as_ordinary_ones(tmp_path: Path) -> None:
    """Light queues are rebuilt from the log, where messages of different queues alternate."""
    shutil.copytree(GOLDEN / "multi-dispatch-5.3", tmp_path / "mq")
    shutil.rmtree(tmp_path / "mq" / "index")
    address, of_light = (ArchiveAddress(str(tmp_path / name)) for name in ("archive", "light"))
    with MessageStore.open(tmp_path / "mq", create=False) as store:
        store.archive(address.url)
        light = [topic for topic in store.topics() if topic.startswith("%LMQ%")]
        ends = store.bounds([Queue("lmq", number) for number in range(4)])
    with MessageStore.open(tmp_path / "mq", create=False) as store:
        store.archive(of_light.url, topics=light)
    with (
        pytest.warns(RuntimeWarning, match="light"),
        pytest.raises(UnsupportedStore, match=r"other topics, name them: lmq$"),
    ):
        restore(address, tmp_path / "new", config=SMALL)
    with pytest.raises(UnsupportedStore, match="No other topics are archived"):
        restore(of_light, tmp_path / "new", config=SMALL)
    with pytest.raises(UnknownTopic, match="restored with the topics that its messages"):
        restore(address, tmp_path / "new", light[:1], SMALL)
    assert not (tmp_path / "new").exists()
    with pytest.warns(RuntimeWarning, match="light"):
        assert restore(address, tmp_path / "new", ["lmq", light[0]], SMALL) == 36
    with MessageStore.open(tmp_path / "new", create=False) as store:
        assert store.bounds(ends) == ends


def test_restored_range_of_times_keeps_its_offsets(filled: Filled, tmp_path: Path) -> None:
    begin = another_millisecond()
    filled.put("orders", 0, 50)
    filled.store.create_topic("later", 1)
    end = another_millisecond()
    filled.put("orders", 0, 20)
    filled.put("later", 0, 5)
    filled.store.archive(str(tmp_path / "archive"))
    address = ArchiveAddress(str(tmp_path / "archive"))
    wanted = {
        (begin, end): {"orders": (3, 53), "later": (0, 0)},
        (None, end): {"orders": (0, 53), "later": (0, 0)},
        (end, None): {"orders": (53, 73), "later": (0, 5)},
        (end + 60_000, None): {"orders": (0, 0), "later": (0, 0)},
    }
    for number, ((first, last), offsets) in enumerate(wanted.items()):
        path = tmp_path / f"new{number}"
        count = restore(address, path, config=SMALL, stored=(first, last))
        assert not verify(str(path)).findings
        with MessageStore.open(path, create=False) as store, address.open() as log:
            assert {topic: store.offsets(topic, 0) for topic in store.topics()} == offsets
            for topic, ends in offsets.items():
                queue = QueueRange(Queue(topic, 0), *ends)
                rows = [
                    [row for batch in batches for row in batch.to_pylist()]
                    for batches in (log.scan(queue, SPEC), store.read(queue, SPEC))
                ]
                assert rows[0] == rows[1]
            assert sum(bounds[1] - bounds[0] for bounds in offsets.values()) == count - store.max_offset("orders", 1)


@pytest.mark.parametrize("with_crc", [False, True])
def test_deliveries_of_the_old_log_do_not_count_in_a_restored(tmp_path: Path, *, with_crc: bool) -> None:
    """Otherwise a delayed message counts as delivered if the other log had one waiting at its offset."""
    url, config = str(tmp_path / "archive"), StoreConfig(enabledAppendPropCRC=with_crc)
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"delivered", delay_level=1))
        until(lambda: store.max_offset("t", 0) == 1)
        store.archive(url, topics=["t"])
        (was,) = store.get_message("g", "t", 0, 0).messages
    restore(ArchiveAddress(url), tmp_path / "new" / "mq")
    with MessageStore.open(tmp_path / "new" / "mq") as store:
        (now,) = store.get_message("g", "t", 0, 0).messages
        assert (was.prepared_transaction_offset, now.prepared_transaction_offset) == (-1, 0)
        assert (was.body, was.properties, was.queue_offset) == (now.body, now.properties, now.queue_offset)
        assert store.archive(url, topics=["t"]).messages == 0


def test_delayed_messages_are_not_delivered_again(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"delivered", delay_level=1))
        until(lambda: store.max_offset("t", 0) == 1)
        store.archive(url, topics=["t", SCHEDULE_TOPIC])
    for topics in ([], [SCHEDULE_TOPIC, "t"]):
        with pytest.raises(UnsupportedStore, match=r"SCHEDULE_TOPIC_XXXX cannot be .* Name only the topics t"):
            restore(ArchiveAddress(url), tmp_path / "new", topics)
    assert restore(ArchiveAddress(url), tmp_path / "new", ["t"]) == 1


def test_one_process_restores_and_removes_a_killed_ones_files(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    address, path = ArchiveAddress(str(tmp_path / "archive")), tmp_path / "new"
    left = path.with_name(path.name + UNFINISHED) / "commitlog"
    left.mkdir(parents=True)
    (left / "00000000000000000000").write_bytes(b"half of it")

    def progress(done: int, total: int) -> None:
        with pytest.raises(StoreLocked, match="another process is restoring here"):
            restore(address, path)

    assert restore(address, path, config=SMALL, progress=progress) == 8
    with MessageStore.open(path, create=False) as store:
        assert same(store, address) == 8
    with pytest.raises(NotAStore):
        restore(address, path)
    assert not left.parent.exists()


def test_late_restore_does_not_empty_anothers_folder(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late restore had the folder open when the folder was renamed and a third restore created another."""
    filled.store.archive(str(tmp_path / "archive"))
    unfinished, flock = tmp_path / ("new" + UNFINISHED), fcntl.flock

    def late(fd: int, how: int) -> None:
        unfinished.rename(tmp_path / "whole")
        (unfinished / "of another").mkdir(parents=True)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(StoreLocked, match=r"another process has just restored here\. Check its result"):
        restore(ArchiveAddress(str(tmp_path / "archive")), tmp_path / "new", config=SMALL)
    assert (unfinished / "of another").exists()


def test_restore_accepts_file_urls(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filled.store.archive(str(tmp_path / "archive"))
    address = ArchiveAddress(str(tmp_path / "archive"))
    assert restore(address, f"file://{tmp_path}/new", config=SMALL) == 8
    for path in ("s3://bucket/new", "file://elsewhere/new", "/", str(tmp_path / "new")):
        with pytest.raises(NotAStore):
            restore(address, path, config=SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "mq", "new"]


def test_system_errors_of_the_path_are_raised(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "new", tmp_path / ("n" * 300)):
        with pytest.raises(StoreUnavailable):
            restore(ArchiveAddress(str(tmp_path / "archive")), path)
