"""Recreated topics, as RocketMQ 5.4 leaves them and as the store writes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, Message, MessageStore, StoreConfig
from store.disk.consume_queues import ConsumeQueues
from store.disk.queue_files import Entries
from store.disk.queues_in_log import Life, QueueInLog, QueuesInLog
from store.format.layout import CQ_ENTRY, RECORD_HEADER, field_offset, segment_name
from store.upkeep.verify import repair, verify
from tests import seen
from tests.store.read.test_golden import GOLDEN
from tests.store.upkeep.test_golden_recovery import as_it_is, killed, without_checkpoint, without_queues

SIZES = StoreConfig(maxHashSlotNum=1000, maxIndexNum=4000)
SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50)
OLD, NEW = 30, 12


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A RocketMQ 5.4 store: 30 messages to the topics Gone and Plain, then Gone recreated with 12 messages."""
    shutil.unpack_archive(GOLDEN / "recreated-topic-5.4.tar.gz", tmp_path)
    return tmp_path / "store"


def assert_as_its_client_saw(path: Path) -> None:
    expected = seen.golden(path.parent / "seen.jsonl")
    with MessageStore.open(path, read_only=True, config=SIZES) as reader:
        seen.assert_same(seen.by_scan(reader), expected)
        seen.assert_same(seen.by_get_message(reader), expected)
        by_key: dict[tuple[str, str], list[int]] = {}
        for queue in expected.values():
            for row in queue.rows:
                for key in {row["properties"]["UNIQ_KEY"], *row["keys"].split()}:
                    by_key.setdefault((row["topic"], key), []).append(row["physicalOffset"])
        for (topic, key), offsets in by_key.items():
            assert [message.physical_offset for message in reader.query(topic, key)] == sorted(offsets)
        assert len(reader.query("Gone", "dup")) == NEW
        old = [message for n in range(OLD) for message in reader.query("Gone", f"a{n}")]
        assert old == [], "they are of the deleted topic"
    assert verify(path, config=SIZES).findings == []


def test_reader_sees_the_same_as_rocketmqs_client(brokers: Path) -> None:
    assert_as_its_client_saw(brokers)


@pytest.mark.parametrize("change", [as_it_is, without_queues, without_checkpoint, killed])
def test_writer_continues_at_the_end_of_the_recreated_topic(brokers: Path, change: Callable[[Path], None]) -> None:
    change(brokers)
    for _ in range(2):
        with MessageStore.open(brokers, config=SIZES) as store:
            assert store.dispatched_offset == store.confirm_offset
        assert_as_its_client_saw(brokers)
    with MessageStore.open(brokers, config=SIZES) as store:
        assert store.put(Message("Gone", b"ours", queue_id=1)).queue_offset == NEW // 3
    assert verify(brokers, config=SIZES).findings == []


@pytest.mark.parametrize("lost", [(), ("consumequeue",), ("consumequeue", "index")])
def test_repair_keeps_the_recreated_topic(brokers: Path, lost: tuple[str, ...]) -> None:
    for name in lost:
        shutil.rmtree(brokers / name)
    repair(brokers, config=SIZES)
    assert_as_its_client_saw(brokers)


LIVES = (40, 25, 12)
ENTRIES = 10
FILE = ENTRIES * CQ_ENTRY.itemsize


def entries(path: Path) -> Entries:
    files = sorted((path / "consumequeue/t/0").iterdir())
    return np.frombuffer(b"".join(file.read_bytes() for file in files), CQ_ENTRY)


def renumber(path: Path, at: int, queue_offset: int) -> None:
    """Change the queue offset of the record at log offset `at`. No checksum covers it."""
    with (path / "commitlog" / segment_name(at - at % 4096)).open("r+b") as file:
        file.seek(at % 4096 + field_offset(RECORD_HEADER, "queue_offset"))
        file.write(queue_offset.to_bytes(8, "big"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A topic recreated twice, as a broker leaves it: the log has three lives, the queue the last 12 messages."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.create_topic("other", 1)
        for life, count in enumerate(LIVES):
            store.put_many([Message("t", f"{life}-{n}".encode(), keys=("all",)) for n in range(count)])
            store.put_many([Message("other", bytes(100)) for _ in range(3)])
    found = entries(path)
    for first, count in ((40, 25), (65, 12)):
        for offset in range(count):
            renumber(path, int(found["physical_offset"][first + offset]), offset)
    shutil.rmtree(path / "consumequeue/t/0")
    (path / "consumequeue/t/0").mkdir()
    for start in (0, ENTRIES):
        kept = found[65 + start : min(65 + start + ENTRIES, sum(LIVES))]
        (path / "consumequeue/t/0" / segment_name(start * CQ_ENTRY.itemsize)).write_bytes(
            kept.tobytes().ljust(FILE, b"\0")
        )
    (path / "watermark").unlink()
    return path


def assert_last_life(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 0) == (0, 12)
        bodies = [body for b in reader.scan("t", 0, 0, 12, columns=("body",)) for body in b["body"].to_pylist()]
        assert bodies == [f"2-{n}".encode() for n in range(12)]
        assert [message.body for message in reader.query("t", "all", max_messages=1000)] == bodies
        assert reader.offsets("other", 0) == (0, 9)
    assert verify(path).findings == []


@pytest.mark.parametrize("lost", [(), ("consumequeue",), ("consumequeue", "index")])
@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
def test_topic_recreated_twice_keeps_its_last_messages(
    path: Path, lost: tuple[str, ...], use: Callable[[Path], None]
) -> None:
    if not lost:
        assert_last_life(path)
    for name in lost:
        shutil.rmtree(path / name)
    for _ in range(2):
        use(path)
        assert_last_life(path)


@pytest.fixture(params=[3, 2])
def fewer(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A topic of three queues, recreated with three or two, of which only the first has messages."""
    path = tmp_path / "fewer"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        for queue_id in (1, 0, 2):
            store.put_many([Message("t", b"old", queue_id=queue_id, keys=("all",)) for _ in range(15)])
        store.put_many([Message("t", b"new", queue_id=0, keys=("all",)) for _ in range(4)])
    new = entries(path)[15:19]
    for offset in range(4):
        renumber(path, int(new["physical_offset"][offset]), offset)
    shutil.rmtree(path / "consumequeue/t")
    (path / "consumequeue/t/0").mkdir(parents=True)
    (path / "consumequeue/t/0" / segment_name(0)).write_bytes(new.tobytes().ljust(FILE, b"\0"))
    topics = json.loads((path / "config/topics.json").read_text())
    topics["topicConfigTable"]["t"].update(readQueueNums=request.param, writeQueueNums=request.param)
    (path / "config/topics.json").write_text(json.dumps(topics))
    for name in ("watermark", "queueends"):
        (path / name).unlink()
    return path


@pytest.mark.parametrize("use", [lambda path: None, lambda path: MessageStore.open(path).close(), repair])
def test_topic_recreated_with_fewer_queues(fewer: Path, use: Callable[[Path], None]) -> None:
    for _ in range(2):
        use(fewer)
        with MessageStore.open(fewer, read_only=True) as reader:
            assert [reader.max_offset("t", queue_id) for queue_id in range(reader.topics()["t"])] in ([4, 0, 0], [4, 0])
            assert [message.body for message in reader.query("t", "all")] == [b"new"] * 4
        assert verify(fewer).findings == []


def test_message_of_a_deleted_topic_is_found_by_its_id(path: Path) -> None:
    """A message id is a log offset, so older messages stay readable, as in RocketMQ."""
    with MessageStore.open(path, read_only=True) as reader:
        newer = reader.get_message("g", "t", 0, 0).messages[0]
        first = newer.msg_id[:-16] + f"{0:016X}"  # the id ends with the log offset
        assert reader.message_by_id(first).body == b"0-0"


def test_recreated_topic_is_rebuilt_after_a_crash(path: Path) -> None:
    (path / "consumequeue/t/0" / segment_name(FILE)).unlink()
    (path / "abort").write_text("1")
    MessageStore.open(path).close()
    assert_last_life(path)


@pytest.mark.parametrize("lost", [None, 0, 8, "queue"])
def test_damaged_queue_offset_is_no_recreation(tmp_path: Path, lost: int | str | None) -> None:
    """The last record has the queue offset of an older one. Either of two queue entries proves the right one."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"body") for _ in range(9)])
    renumber(path, int(entries(path)["physical_offset"][8]), 0)
    (path / "watermark").unlink()
    if lost == "queue":
        shutil.rmtree(path / "consumequeue")
        with MessageStore.open(path) as store:
            assert store.offsets("t", 0) == (0, 1)
        return
    if isinstance(lost, int):
        with (path / "consumequeue/t/0" / segment_name(0)).open("r+b") as file:
            file.seek(lost * CQ_ENTRY.itemsize)
            file.write(bytes(CQ_ENTRY.itemsize))
    with pytest.raises(
        CorruptRecord, match=r"offset 0, but the queue's next offset is 8\. .* move consumequeue/t/0 out of"
    ):
        MessageStore.open(path)


def test_records_of_the_last_life_count() -> None:
    queue = QueueInLog(max_offset=0, is_cut=False)
    for start, at, count in ((0, 0, 10), (10, 1000, 5), (0, 2000, 8), (6, 3000, 3)):
        queue.grow(start, at, count)
    assert queue.lives == [Life(0, 2000), Life(6, 3000)]
    assert (queue.begin, queue.max_offset) == (0, 9)

    def counting(start: int, at: int, count: int) -> list[int]:
        offsets = np.arange(start, start + count)
        made = np.zeros(count, CQ_ENTRY)
        made["physical_offset"], made["size"] = at + 100 * np.arange(count), 100
        return offsets[queue.counting(offsets, made)].tolist()

    assert counting(0, 0, 10) == counting(10, 1000, 5) == []
    assert counting(0, 2000, 8) == list(range(6))
    assert counting(6, 3000, 3) == [6, 7, 8]
    none = QueueInLog(max_offset=5, is_cut=True).counting(np.arange(3), np.zeros(3, CQ_ENTRY))
    assert none.start == none.stop, "all entries are of deleted topics"


@pytest.mark.parametrize(
    ("first_byte", "had", "first_seen", "may_follow"),
    [
        (0, 0, 0, True),
        (0, 0, 5, False),  # the log still has its first record, so the queue begins there
        (1, 0, 5, True),
        (4096, 0, 5, True),
        (4096, 3, 3, True),
        (4096, 3, 5, False),  # the queue proves another begin
    ],
)
def test_begin_of_a_queue_in_the_log(
    tmp_path: Path, first_byte: int, had: int, first_seen: int, may_follow: bool
) -> None:
    queues = ConsumeQueues(tmp_path, 10 * CQ_ENTRY.itemsize, writable=True)
    entries = np.zeros(had + 2, CQ_ENTRY)
    entries["physical_offset"], entries["size"] = 5000 + 100 * np.arange(had + 2), 100
    queues.of("t", 0).write(0, entries[:had])
    found = QueuesInLog(queues, lambda *entry: True, first_byte)
    if had:
        found.begin(("t", 0), had)
    assert found.add(("t", 0), np.arange(first_seen, first_seen + 2), entries[had:]) is may_follow
    if may_follow:
        assert (found.found["t", 0].begin, found.found["t", 0].max_offset) == (first_seen, first_seen + 2)
