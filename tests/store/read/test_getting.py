"""RocketMQ's replies to `getMessage`, one row of its table at a time."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import (
    CorruptRecord,
    GetStatus,
    Message,
    MessageStore,
    StoreConfig,
    StoredMessage,
    StoreError,
    TagFilter,
    message_filter,
)
from store.disk.consume_queue import ConsumeQueue
from store.format.entering import QueueEntry
from store.format.hashes import java_hash_code
from store.format.layout import COMMIT_LOG_DIR, CQ_ENTRY, segment_name
from store.format.stored_message import decode_record, inflated, must_match_entry
from store.model.errors import CorruptSegment, OffsetLost, UnreadableBody
from store.model.log_protocol import Bounds, MessageFilter
from store.read import getting
from store.read.published import PublishedQueues

SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=10 * 20,
    maxTransferCountOnMessageInMemory=8,
    maxTransferBytesOnMessageInMemory=1000,
    maxFilterMessageSize=6 * 20,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store with 25 messages in queue 0: every fifth, from offset 4, has tag B, the others tag A."""
    with MessageStore.open(tmp_path, config=SMALL) as it:
        it.create_topic("t", 2)
        it.put_many([Message("t", f"{n}".encode(), queue_id=0, tags="AAAAB"[n % 5]) for n in range(25)])
        yield it


@pytest.mark.parametrize(
    ("queue", "offset", "status", "next_begin"),
    [
        (1, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (1, 7, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (7, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (0, -1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, 25, GetStatus.OFFSET_OVERFLOW_ONE, 25),
        (0, 26, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
        (0, 24, GetStatus.FOUND, 25),
    ],
)
def test_statuses_equal_rocketmqs(
    store: MessageStore, queue: int, offset: int, status: GetStatus, next_begin: int
) -> None:
    result = store.get_message("g", "t", queue, offset)
    assert (result.status, result.next_begin_offset) == (status, next_begin)
    assert (result.min_offset, result.max_offset) == ((0, 25) if queue == 0 else (0, 0))
    assert bool(result.messages) == (status is GetStatus.FOUND)


@pytest.mark.parametrize(
    ("offset", "max_messages", "count"),
    [(0, 1, 1), (0, 3, 3), (0, 32, 8), (7, 32, 3), (9, 32, 1), (10, 5, 5), (20, 32, 5)],
)
def test_call_stays_in_one_queue_file_and_its_limits(
    store: MessageStore, offset: int, max_messages: int, count: int
) -> None:
    result = store.get_message("g", "t", 0, offset, max_messages)
    assert [message.queue_offset for message in result.messages] == list(range(offset, offset + count))
    assert result.next_begin_offset == offset + count


def test_byte_limit_allows_at_least_one_message(store: MessageStore) -> None:
    store.put_many([Message("t", bytes(500), queue_id=1) for _ in range(3)] + [Message("t", bytes(3000), queue_id=1)])
    assert [store.get_message("g", "t", 1, offset).next_begin_offset for offset in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("only_b", [TagFilter.parse("B"), message_filter("TAGS = 'B'", "SQL92")])
def test_filter_stops_after_its_limit_of_entries(store: MessageStore, only_b: MessageFilter) -> None:
    first = store.get_message("g", "t", 0, 0, 2, only_b)
    assert [message.body for message in first.messages] == [b"4"]
    assert first.next_begin_offset == 6, "maxFilterMessageSize / 20 entries"
    none = store.get_message("g", "t", 0, 5, 2, TagFilter.parse("C"))
    assert (none.status, none.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
    collected, offset = [], 0
    while (result := store.get_message("g", "t", 0, offset, 2, only_b)).status is not GetStatus.OFFSET_OVERFLOW_ONE:
        collected += [message.body for message in result.messages]
        offset = result.next_begin_offset
    assert collected == [b"4", b"9", b"14", b"19", b"24"]


@pytest.mark.parametrize("as_records", [False, True])
@pytest.mark.parametrize("condition", [None, "TAGS = 'A'"])
def test_get_during_retention_returns_the_next_offset(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, condition: str | None, as_records: bool
) -> None:
    """As after the deletion. A lost segment raises OffsetLost instead."""
    store.put_many([Message("t", bytes(800), "A", queue_id=1) for _ in range(18)])
    segments, accept = sorted((store.path / "commitlog").iterdir()), condition and message_filter(condition, "SQL92")
    bounded, files = PublishedQueues.bounded, segments[:2]

    def overtaken(published: PublishedQueues, topic: str, queue_id: int) -> tuple[ConsumeQueue, Bounds]:
        found = bounded(published, topic, queue_id)
        while files:
            files.pop().unlink()
        return found

    monkeypatch.setattr(PublishedQueues, "bounded", overtaken)
    with MessageStore.open(store.path, read_only=True) as reader:
        got = reader.get_message("g", "t", 1, 3, 5, accept, as_records=as_records)
        assert (got.status, got.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 5)
        assert (got.min_offset, got.max_offset, got.messages, got.records) == (5, 18, [], [])
        files = segments[4:5]
        with pytest.raises(OffsetLost, match="the file was lost"):
            reader.get_message("g", "t", 1, 13, 32, accept, as_records=as_records)


def change_entry(store: MessageStore, index: int, field: str, value: int) -> None:
    file = store.path / "consumequeue/t/0" / segment_name(0)
    entries = np.frombuffer(bytearray(file.read_bytes()), CQ_ENTRY)
    entries[field][index] = value
    file.write_bytes(entries.tobytes())


@pytest.mark.parametrize("other", [0, 2])
def test_entry_of_another_message_is_an_error(store: MessageStore, other: int) -> None:
    entries = np.frombuffer((store.path / "consumequeue/t/0" / segment_name(0)).read_bytes(), CQ_ENTRY)
    change_entry(store, 1, "physical_offset", int(entries["physical_offset"][other]))
    message = r"topic t, queue 0, offset 1 \(commit log offset \d+\): the log has another message there"
    with pytest.raises(CorruptRecord, match=message):
        store.get_message("g", "t", 0, 1)
    with pytest.raises(CorruptRecord, match=message):
        list(store.scan("t", 0, 1, 2))
    with pytest.raises(CorruptRecord, match="t, queue 0"):
        list(store.scan("t", 0, 0, 3))


@pytest.mark.parametrize("size", [1, 50, 90, 101, 4096])
def test_entry_with_a_wrong_size_is_an_error(store: MessageStore, size: int) -> None:
    change_entry(store, 1, "size", size)
    with pytest.raises(CorruptRecord, match="t, queue 0, offset"):
        store.get_message("g", "t", 0, 1)
    with pytest.raises(CorruptRecord, match="t, queue 0, offset"):
        list(store.scan("t", 0, 1, 2))


def test_changed_body_is_an_error(store: MessageStore) -> None:
    file = store.path / "commitlog" / segment_name(0)
    entry = np.frombuffer((store.path / "consumequeue/t/0" / segment_name(0)).read_bytes(), CQ_ENTRY)[5]
    content = bytearray(file.read_bytes())
    content[entry["physical_offset"] + 88] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptRecord, match=r"topic t, queue 0, offset 5 .*: the body's CRC is 0x"):
        store.get_message("g", "t", 0, 5)
    with pytest.raises(CorruptRecord, match=r"topic t, queue 0, offset 5 .*: its body does not match its CRC; restore"):
        list(store.scan("t", 0, 0, 10))
    assert sum(batch.num_rows for batch in store.scan("t", 0, 0, 10, check_crc=False)) == 10


GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_NAMES = sorted(path.stem for path in GOLDEN.glob("*.jsonl"))
Answer = tuple[str, int, list[StoredMessage]] | str


def reference(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int, tags: tuple[str, ...] | None
) -> Answer:
    """Return the result of RocketMQ's `getMessage` within a queue, or our error, by decoding records one by one."""
    queue, log, config = store._queues.of(topic, queue_id), store._log, store.config
    limit = max(1, min(count, config.maxTransferCountOnMessageInMemory))
    maximum, per_file = store.max_offset(topic, queue_id), queue.entries_per_file
    end = min(maximum, offset + max(config.maxFilterMessageSize // 20, count), (offset // per_file + 1) * per_file)
    messages: list[StoredMessage] = []
    taken, left = 0, config.maxDecompressedMessageSize
    for at, fields in enumerate(queue.entries(offset, end).tolist(), offset):
        entry = QueueEntry(topic, queue_id, at, *fields)
        is_hash = -(1 << 31) <= entry.tags_code < 1 << 31
        is_other = tags is not None and is_hash and entry.tags_code not in map(java_hash_code, tags)
        if is_other and entry.size > 0:
            continue
        if messages and (len(messages) == limit or taken + entry.size > config.maxTransferBytesOnMessageInMemory):
            return "FOUND", at, messages
        try:
            if entry.physical_offset < 0 or not 91 <= entry.size <= log.segments.size:
                raise CorruptRecord(str(entry))
            message = decode_record(log.segments.read(entry.physical_offset, entry.size), entry)
            must_match_entry(message, entry)
            if tags is not None and message.tags not in tags:
                continue
            message = inflated(message._replace(queue_id=queue_id), entry, left)
        except OffsetLost:
            return ""
        except UnreadableBody:
            if not messages:
                return f"{entry}"
            return "FOUND", at, messages
        except CorruptRecord:
            return f"{entry}"
        messages.append(message)
        taken, left = taken + entry.size, left - len(message.body)
    return "FOUND" if messages else "NO_MATCHED_MESSAGE", end, messages


def answer(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int, tags: tuple[str, ...] | None
) -> Answer:
    try:
        got = store.get_message("g", topic, queue_id, offset, count, TagFilter(tags))
    except (CorruptRecord, UnreadableBody, OffsetLost) as error:
        return str(error)
    return got.status.name, got.next_begin_offset, got.messages


def same(ours: Answer, theirs: Answer) -> bool:
    """Compare two results. Errors are equal if they name the same place."""
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours.startswith(theirs)
    return ours == theirs


@pytest.fixture(params=[1, 3])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getting, "_MANY", request.param)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_batches_of_a_broker_equal_single_records(name: str) -> None:
    with MessageStore.open(GOLDEN / name, read_only=True) as store:
        for topic, queues in store.topics().items():
            for queue_id in range(queues):
                minimum, maximum = store.offsets(topic, queue_id)
                for offset, count, tags in [(minimum, 1000, None), (minimum, 2, None), (minimum, 1000, ("TagA",))]:
                    if offset < maximum:
                        wanted = topic, queue_id, offset, count, tags
                        assert same(answer(store, *wanted), reference(store, *wanted))


MANY = StoreConfig(
    mappedFileSizeCommitLog=8192,
    mappedFileSizeConsumeQueue=40 * 20,
    maxTransferCountOnMessageInMemory=20,
    maxTransferBytesOnMessageInMemory=3000,
    maxFilterMessageSize=30 * 20,
    maxHashSlotNum=100,
    maxIndexNum=400,
)
TAGS = ("a", "Aa", "BB", None)  # "Aa" and "BB" have the same hash


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, chance = tmp_path_factory.mktemp("mixed") / "mq", random.Random(5)
    with MessageStore.open(path, config=MANY) as store:
        store.create_topic("t", 2)
        for _ in range(30):
            store.put_many(
                Message(
                    "t",
                    chance.randbytes(chance.choice([0, 1, 30, 400])),
                    chance.choice(TAGS),
                    keys=["k"] * chance.randrange(3),
                    properties={name: "x" for name in "pq" if chance.random() < 0.5},
                    queue_id=chance.randrange(2),
                )
                for _ in range(5)
            )
    return path


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_batches_equal_single_records_despite_damage(mixed: Path, data: st.DataObject) -> None:
    path = mixed.with_name("damaged")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(mixed, path)
    files = sorted(file for folder in (COMMIT_LOG_DIR, "consumequeue") for file in (path / folder).rglob("0*[0-9]"))
    for _ in range(data.draw(st.integers(0, 3))):
        file = data.draw(st.sampled_from([file for file in files if file.is_file()]))
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
    if data.draw(st.integers(0, 4)) == 0:
        (path / COMMIT_LOG_DIR / segment_name(8192)).unlink()
    try:
        opened = MessageStore.open(path, read_only=True, config=MANY)
    except CorruptSegment:
        return
    with opened as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(getting, "_MANY", data.draw(st.sampled_from([1, 4, 1000])))
        for _ in range(10):
            queue_id = data.draw(st.integers(0, 1))
            try:
                minimum, maximum = store.offsets("t", queue_id)
            except StoreError:
                continue
            if minimum < maximum:
                offset = data.draw(st.integers(minimum, maximum - 1))
                count = data.draw(st.integers(1, 50))
                tags = data.draw(st.sampled_from([None, ("a",), ("Aa",), ("BB", "a")]))
                wanted = "t", queue_id, offset, count, tags
                assert same(answer(store, *wanted), reference(store, *wanted))


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("field", ["tags_code", "size", "physical_offset"])
def test_wrong_entry_among_many_is_named(store: MessageStore, field: str) -> None:
    change_entry(store, 5, field, 77)
    with pytest.raises(CorruptRecord, match=r"topic t, queue 0, offset 5 \(commit log offset \d+\): "):
        store.get_message("g", "t", 0, 0)
