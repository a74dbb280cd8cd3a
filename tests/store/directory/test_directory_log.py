from __future__ import annotations

import pickle
import shutil
import threading
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from store import (
    ArchiveOfAnother,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    CorruptRecord,
    GetStatus,
    Message,
    MessageStore,
    MessageTooLarge,
    NoArchive,
    ObjectsUnavailable,
    ReceivedMessage,
    StoreConfig,
    message_filter,
)
from store.api.message_store import delete_topic
from store.archive.archive_log import ArchiveLog
from store.archive.comparison import StoreComparison
from store.client.log_kinds import address_at
from store.directory.directory_log import TieredDirectoryAddress, TieredDirectoryLog
from store.disk.consume_queue import ConsumeQueue
from store.format.layout import (
    COMMIT_LOG_DIR,
    CONF_FILE,
    RECORD_HEADER,
    SYS_COMPRESSED,
    field_offset,
    segment_name,
)
from store.model.log_protocol import Boundary, Bounds, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.read.published import PublishedQueues
from tests.filled import Filled
from tests.waiting import PATIENCE, until

ORDERS = Queue("orders", 0)
BODIES = ReadSpec(("body", "queueOffset"), EVERYTHING)


def bodies(log: TieredDirectoryLog, begin: int, end: int) -> list[bytes]:
    batches = log.scan(QueueRange(ORDERS, begin, end), BODIES)
    return [body for batch in batches for body in batch["body"].to_pylist()]


@pytest.fixture
def shortened(filled: Filled, tmp_path: Path) -> Filled:
    """303 messages in queue 0: at least the first 200 only in the archive, the last ones only in the store."""
    filled.put("orders", 0, 250, 1000)
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 50, 1000)
    assert filled.store.clean(forced=True).log
    assert 100 < filled.store.min_offset("orders", 0) < 253
    return filled


@pytest.fixture
def log(shortened: Filled) -> Iterator[TieredDirectoryLog]:
    with pickle.loads(pickle.dumps(TieredDirectoryAddress(shortened.path))).open() as it:
        yield it


def test_archive_and_store_are_one_log(shortened: Filled, log: TieredDirectoryLog) -> None:
    assert log.bounds([ORDERS]) == {ORDERS: (0, 303)}
    put = [body for _, queue_id, _, body in shortened.rows if queue_id == 0]
    assert bodies(log, 0, 303) == put
    first = shortened.store.min_offset("orders", 0)
    for begin, end in ((0, 1), (first - 1, first), (first, first + 1), (first - 1, first + 1), (7, 7), (302, 303)):
        assert bodies(log, begin, end) == put[begin:end]


def test_archive_in_a_brokers_directory_does_not_hide_its_store(filled: Filled, tmp_path: Path) -> None:
    """Otherwise messages that are not archived yet would be invisible."""
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 2)
    (Path(filled.path) / CONF_FILE).unlink()
    for folder in (tmp_path / "archive").iterdir():
        shutil.copytree(folder, Path(filled.path) / folder.name)
    with address_at(filled.path).open() as log:
        assert log.bounds([ORDERS]) == {ORDERS: (0, 5)}


def test_topic_named_like_a_stores_folder_hides_no_archive(filled: Filled, tmp_path: Path) -> None:
    """Otherwise the archive would be read as a store without topics."""
    filled.store.create_topic(COMMIT_LOG_DIR, 1)
    filled.put(COMMIT_LOG_DIR, 0, 2)
    filled.store.archive(str(tmp_path / "archive"))
    (folder,) = (tmp_path / "archive").glob(f"*/{Path(filled.path).name}")
    with address_at(str(folder)).open() as log:
        assert log.topics().keys() == {COMMIT_LOG_DIR, "orders"}


def test_fingerprints_survive_retention(shortened: Filled, log: TieredDirectoryLog) -> None:
    last = log.fingerprints({ORDERS: 303})
    assert last
    shortened.put("orders", 0, 200, 1000)
    shortened.store.archive()
    assert shortened.store.clean(forced=True).log
    assert shortened.store.min_offset("orders", 0) > 303
    assert log.replaced({ORDERS: 303}, last) == []
    assert len(bodies(log, 0, 503)) == 503


def test_scan_continues_in_the_archive_after_retention(shortened: Filled, log: TieredDirectoryLog) -> None:
    batches = log.scan(QueueRange(ORDERS, 0, 303), BODIES)
    read = len(next(batches))
    shortened.put("orders", 0, 200, 1000)
    shortened.store.archive()
    shortened.store.clean(forced=True)
    assert read + sum(map(len, batches)) == 303


def test_range_deleted_before_its_scan_comes_from_the_archive(shortened: Filled, log: TieredDirectoryLog) -> None:
    """The store had the range when it was requested. A filter may leave gaps in the batches."""
    for message_filter_, columns in ((EVERYTHING, ("body",)), (message_filter("A"), ("tags", "body"))):
        begin, end = log.bounds([ORDERS])[ORDERS].max_offset, 0
        shortened.put("orders", 0, 200, 1000)
        end = begin + 200
        spec = ReadSpec(columns, message_filter_, max_rows=7)
        batches = log.scan(QueueRange(ORDERS, begin, end), spec)
        read = [next(batches)]
        shortened.put("orders", 0, 200, 1000)
        shortened.store.archive()
        assert shortened.store.clean(forced=True).log
        assert begin + 20 < shortened.store.min_offset("orders", 0)
        read += batches
        assert all(tuple(batch.schema.names) == columns for batch in read)
        found = [body for batch in read for body in batch["body"].to_pylist()]
        put = [body for _, queue_id, _, body in shortened.rows if queue_id == 0][begin:end]
        assert found == (put if message_filter_ is EVERYTHING else put[begin % 2 :: 2])


def test_store_reads_through_to_its_archive(shortened: Filled) -> None:
    assert sum(map(len, shortened.store.scan("orders", 0, 0, 303))) == 303
    archive = Path(shortened.path).with_name("archive")
    archive.rename(archive.with_name("elsewhere"))
    with pytest.raises(NoArchive):
        list(shortened.store.scan("orders", 0, 0, 303))


def test_missing_or_foreign_archive_is_an_error(shortened: Filled, tmp_path: Path) -> None:
    with TieredDirectoryAddress(shortened.path, str(tmp_path / "nothing")).open() as log:
        assert bodies(log, 300, 303)
        with pytest.raises(NoArchive):
            log.bounds([ORDERS])
    other = Filled(tmp_path / "other" / "mq", {"orders": 2})
    with other.store:
        other.put("orders", 0, 400)
        other.store.archive(str(tmp_path / "others"))
    with (
        TieredDirectoryAddress(shortened.path, str(tmp_path / "others")).open() as log,
        pytest.raises(ArchiveOfAnother),
    ):
        log.bounds([ORDERS])


def test_archived_messages_are_found_by_key(shortened: Filled, log: TieredDirectoryLog) -> None:
    first = shortened.store.min_offset("orders", 0)
    for offset in (0, 7, first - 1, first, 302):
        (found,) = [each for each in shortened.store.query("orders", f"k{offset}") if each.queue_id == 0]
        assert (found.queue_offset, found.body) == (offset, bodies(log, offset, offset + 1)[0])
        pieces = log.with_keys([QueueRange(ORDERS, 0, 303)], [f"k{offset}"])
        assert any(each.start <= offset < each.end for each in pieces)
        assert sum(each.length for each in pieces) < 3
    shortened.store.put_many(Message("orders", b"%d" % number, keys=("common",)) for number in range(40))
    shortened.put("orders", 0, 200, 1000)
    shortened.put("orders", 1, 200, 1000)
    shortened.store.archive()
    shortened.store.put_many(Message("orders", b"%d" % number, keys=("common",)) for number in range(40, 60))
    assert shortened.store.clean(forced=True).log
    every = [each.body for each in shortened.store.query("orders", "common", 100)]
    assert sorted(map(int, every)) == list(range(60))
    newest = shortened.store.query("orders", "common", 30)
    assert {int(each.body) for each in newest[-20:]} == set(range(40, 60))
    assert len(newest) == 30
    assert shortened.store.query("orders", "common", 9, begin=newest[-1].store_timestamp + 1) == []


def test_get_message_returns_archived_messages(shortened: Filled) -> None:
    first, store = shortened.store.min_offset("orders", 0), shortened.store
    put = [body for _, queue_id, _, body in shortened.rows if queue_id == 0]
    offset, got = 0, []
    while offset < 303:
        result = store.get_message("readers", "orders", 0, offset)
        assert result.status is GetStatus.FOUND
        assert (result.min_offset, result.max_offset) == (0 if offset < first else first, 303)
        assert 0 < len(result.messages) <= 32
        got += [each.body for each in result.messages]
        offset = result.next_begin_offset
    assert got == put
    tagged = store.get_message("readers", "orders", 0, 1, 8, message_filter("A"))
    assert [each.queue_offset for each in tagged.messages] == list(range(2, 18, 2))
    none = store.get_message("readers", "orders", 0, 0, 8, message_filter("nothing"))
    assert (none.status, none.messages) == (GetStatus.NO_MATCHED_MESSAGE, [])
    assert none.next_begin_offset > 0
    records = store.get_message("readers", "orders", 0, 0, as_records=True)
    assert (records.status, records.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, first)


@pytest.mark.parametrize(("tags", "step"), [("*", 1), ("A", 2)])
def test_get_message_reads_the_archive_after_retention(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: str, step: int
) -> None:
    filled.put("orders", 0, 250, 1000)
    filled.store.archive(str(tmp_path / "archive"))
    bounded = PublishedQueues.bounded

    def overtaken(published: PublishedQueues, topic: str, queue_id: int) -> tuple[ConsumeQueue, Bounds]:
        monkeypatch.setattr(PublishedQueues, "bounded", bounded)
        found = bounded(published, topic, queue_id)
        assert filled.store.clean(forced=True).log
        return found

    with MessageStore.open(filled.path, read_only=True) as reader:
        monkeypatch.setattr(PublishedQueues, "bounded", overtaken)
        got = reader.get_message("g", "orders", 0, 40, 8, message_filter(tags))
    assert [each.queue_offset for each in got.messages] == list(range(40, 40 + 8 * step, step))


def test_too_large_body_does_not_hide_earlier_messages(tmp_path: Path) -> None:
    """A caller that continues after the first message, as `get_message` documents, would skip the others."""
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(mappedFileSizeCommitLog=1 << 20)) as store:
        store.create_topic("t", 1)
        bomb = zlib.compress(bytes((64 << 20) + 1))
        put = store.put_many([Message("t", body) for body in (b"a", b"b", bomb, b"c")])
        with (tmp_path / "mq/commitlog" / segment_name(0)).open("r+b") as file:
            file.seek(put[2].physical_offset + field_offset(RECORD_HEADER, "sys_flag"))
            file.write(SYS_COMPRESSED.to_bytes(4, "big"))
        store.put_many([Message("t", bytes(600_000))] * 3)
        store.archive(str(tmp_path / "archive"))
        assert store.clean(forced=True).log
        assert store.min_offset("t", 0) >= 4
        for offset, bodies, next_begin in ((0, [b"a", b"b"], 2), (1, [b"b"], 2), (3, [b"c"], 4)):
            got = store.get_message("g", "t", 0, offset, 4 - offset)
            assert ([each.body for each in got.messages], got.next_begin_offset) == (bodies, next_begin)
        with pytest.raises(MessageTooLarge):
            store.get_message("g", "t", 0, 2)


def damage(filled: Filled) -> None:
    (path,) = Path(filled.path).parent.glob("archive/*/mq/orders/0/COMMIT_LOG/*")
    path.write_bytes(path.read_bytes().replace(b"0-57.", b"0-57,"))


def test_damaged_archived_message_hides_no_earlier_ones(shortened: Filled) -> None:
    damage(shortened)
    for offset, most, end in ((0, 32, 32), (40, 32, 57), (56, 32, 57), (58, 32, 90)):
        got = shortened.store.get_message("g", "orders", 0, offset, most)
        assert [each.queue_offset for each in got.messages] == list(range(offset, end))
        assert got.next_begin_offset == end
    none = shortened.store.get_message("g", "orders", 0, 0, 8, message_filter("nothing"))
    assert (none.status, none.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 57)
    with pytest.raises(CorruptRecord, match=r"queue 0, offset 57 .*its body does not match its CRC"):
        shortened.store.get_message("g", "orders", 0, 57)


def test_records_before_a_damaged_one_are_returned(shortened: Filled) -> None:
    damage(shortened)
    with address_at(str(Path(shortened.path).parent / "archive")).open() as log:
        assert isinstance(log, ArchiveLog)
        for tags, matching in ((EVERYTHING, 17), (message_filter("B"), 8)):
            offset, found = 40, 0
            while offset < 57:
                got = log.records(QueueRange(ORDERS, offset, 100), tags, 32, 1 << 20)
                offset, found = got.next_begin, found + b"".join(got.records).count(b"region")
            assert (offset, found) == (57, matching)
            with pytest.raises(CorruptRecord, match=r"queue 0, offset 57 .*its body does not match its CRC"):
                log.records(QueueRange(ORDERS, 57, 100), EVERYTHING, 32, 1 << 20)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_topic_is_deleted_and_forgotten_during_get_message(
    shortened: Filled, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    store, reaches = shortened.store, ArchiveLog.reaches

    def deleting(log: ArchiveLog, queue: Queue, comparison: StoreComparison) -> bool:
        found = reaches(log, queue, comparison)
        delete_topic(store.path, "orders")
        if is_made_again:
            store.create_topic("orders", 1)
        store.archive(forget=["orders"])
        return found

    monkeypatch.setattr(ArchiveLog, "reaches", deleting)
    got = store.get_message("g", "orders", 0, 7)
    status = GetStatus.OFFSET_TOO_SMALL if is_made_again else GetStatus.NO_MESSAGE_IN_QUEUE
    assert (got.status, got.messages) == (status, [])


def first(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    closing = threading.Timer(PATIENCE, consumer.close)
    closing.start()
    try:
        return list(islice(consumer, count))
    finally:
        closing.cancel()


def test_consumer_begins_with_archived_messages(shortened: Filled) -> None:
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with Consumer(shortened.path, "readers", "orders", config=config) as consumer:
        got = [(each.queue_id, each.queue_offset, each.body) for each in first(consumer, len(shortened.rows))]
    assert sorted(got) == sorted((row[1], row[2], row[3]) for row in shortened.rows)


def take_away(tmp_path: Path) -> None:
    (tmp_path / "archive").rename(tmp_path / "away")
    (tmp_path / "file").touch()
    (tmp_path / "archive").symlink_to("file")
    (tmp_path / "back").symlink_to("away")


def test_consumer_waits_for_a_missing_archive(
    shortened: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take_away(tmp_path)
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with Consumer(shortened.path, "readers", "orders", config=config) as consumer:
        until(lambda: "tried again" in caplog.text)
        (tmp_path / "back").replace(tmp_path / "archive")
        assert len({(each.queue_id, each.queue_offset) for each in first(consumer, len(shortened.rows))}) == 308


@pytest.mark.parametrize("is_new", [True, False])
def test_new_consumer_misses_nothing_without_its_archive(
    shortened: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_new: bool
) -> None:
    """A new group begins at the end, if the end is known. An existing group continues at its offset."""
    if not is_new:
        Consumer(shortened.path, "readers", "orders").close()
    take_away(tmp_path)
    try:
        consumer = Consumer(shortened.path, "readers", "orders")
    except ObjectsUnavailable:
        assert is_new
        (tmp_path / "back").replace(tmp_path / "archive")
        consumer = Consumer(shortened.path, "readers", "orders")
    with consumer:
        shortened.store.put(Message("orders", b"next", queue_id=0))
        if (tmp_path / "back").exists():
            until(lambda: "tried again" in caplog.text)
            (tmp_path / "back").replace(tmp_path / "archive")
        until(lambda: ORDERS in consumer.assigned)
        shortened.store.put(Message("orders", b"last", queue_id=0))
        assert [each.body for each in first(consumer, 1)] == [b"next"]


@pytest.mark.parametrize("is_made_again", [False, True])
def test_topic_is_deleted_during_a_request_for_bounds(
    shortened: Filled, log: TieredDirectoryLog, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    reaches, store = ArchiveLog.reaches, shortened.store
    store.create_topic("others", 1)

    def deleting(log: ArchiveLog, queue: Queue, comparison: StoreComparison) -> bool:
        if store.topics()["orders"] > 1:
            delete_topic(store.path, "orders")
            if is_made_again:
                store.create_topic("orders", 1)
        return reaches(log, queue, comparison)

    monkeypatch.setattr(ArchiveLog, "reaches", deleting)
    found = log.bounds([ORDERS, Queue("others", 0)])
    assert found.pop(Queue("others", 0)) == (0, 0)
    assert list(found) == [ORDERS] * is_made_again
    assert log.offsets_by_time([ORDERS], 0, Boundary.LOWER) == dict.fromkeys(found, 303)
