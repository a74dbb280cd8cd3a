from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, StoredMessage
from store.api.message_store import delete_topic
from store.append.log_end import LogEnd
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues
from store.disk.index import Index
from store.disk.topics import Topics
from store.format.hashes import key_hash
from store.format.layout import INDEX_HEADER, field_offset
from store.model.errors import CorruptRecord, InvalidMessageId, OffsetLost, OffsetNotYet
from store.model.log_protocol import Boundary, Queue, QueueRange
from store.read import query
from store.read.published import PublishedQueues
from store.read.query import KeyQuery, message_at, messages_with_key, offset_of_id
from tests import seen
from tests.filled import Filled

GOLDEN = Path(__file__).parents[2] / "golden"
SEGMENT = 4096
INDEXES = {"hosts-5.3": (100, 400), "index-5.3": (20, 30), "index-4.9": (20, 30)}


@dataclass(frozen=True)
class Golden:
    """A golden directory, its log and index, and its messages as RocketMQ prints them."""

    root: Path
    log: CommitLog
    index: Index
    rows: list[seen.Row]

    @property
    def end(self) -> int:
        return self.rows[-1]["physicalOffset"] + SEGMENT

    def with_key(self, row: seen.Row, key: str, **limits: int) -> list[int]:
        arguments = {"max_messages": 100, **limits}
        found = messages_with_key(self.log, self.index, self.end, KeyQuery(row["topic"], key, **arguments))
        return [message.physical_offset for message in found]


@pytest.fixture(params=INDEXES)
def golden(request: pytest.FixtureRequest) -> Golden:
    root = GOLDEN / request.param
    queues = seen.golden(GOLDEN / f"{request.param}.jsonl").values()
    return Golden(
        root,
        CommitLog(root, SEGMENT, writable=False),
        Index(root, *INDEXES[request.param], writable=False),
        sorted((row for queue in queues for row in queue.rows), key=lambda row: row["physicalOffset"]),
    )


def keys_of(row: seen.Row) -> set[str]:
    return {row["properties"]["UNIQ_KEY"], *(row["keys"] or "").split()}


def test_messages_are_found_by_key(golden: Golden) -> None:
    for row in golden.rows:
        for key in keys_of(row):
            holders = [other["physicalOffset"] for other in golden.rows if key in keys_of(other)]
            assert golden.with_key(row, key) == holders
            assert golden.with_key(row, key, max_messages=1) == holders[-1:]
            assert golden.with_key({**row, "topic": "other"}, key) == []


def test_empty_key_finds_nothing(tmp_path: Path) -> None:
    assert key_hash("t", "elkfp2B") == key_hash("t", "")
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x", properties={"UNIQ_KEY": "elkfp2B"}))
        assert [message.body for message in store.query("t", "elkfp2B")] == [b"x"]
        assert store.query("t", "") == []


def published_queues(root: Path) -> tuple[PublishedQueues, ConsumeQueues]:
    log, queues = (kind(root, None, writable=False) for kind in (CommitLog, ConsumeQueues))
    return PublishedQueues(Topics(root), log, queues, LogEnd(root, log)), queues


def test_message_deleted_during_its_search_is_found(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    with filled.store as store:
        filled.put("t", 0, 90, size=1000)
        (message,) = store.query("t", "k3")
        assert store.clean(forced=True).log
    published, _ = published_queues(tmp_path / "mq")
    assert published.has(message)


@pytest.mark.parametrize("is_open", [False, True])
def test_message_of_a_deleted_topic_is_not_found_after_retention(tmp_path: Path, is_open: bool) -> None:
    path = tmp_path / "mq"
    filled = Filled(path, {"t": 1})
    with filled.store as store:
        store.put(Message("t", b"old", keys="old"))
        (message,) = store.query("t", "old")
        delete_topic(path, "t")
        store.create_topic("t", 1)
        filled.put("t", 0, 300, size=1000)
        published, queues = published_queues(path)
        assert not is_open or len(queues.of("t", 0).entries(0, 1))
        assert store.clean(forced=True).queues
    assert not published.has(message)


def test_search_by_key_and_time_is_exact_to_the_millisecond(golden: Golden) -> None:
    for row in golden.rows:
        key, time = row["properties"]["UNIQ_KEY"], row["storeTimestamp"]
        assert golden.with_key(row, key, begin=time, end=time) == [row["physicalOffset"]]
        assert golden.with_key(row, key, begin=time + 1) == []
        assert golden.with_key(row, key, end=time - 1) == []


@pytest.mark.parametrize(
    ("field", "value"), [("begin_timestamp", -1 << 60), ("begin_timestamp", 1 << 62), ("end_timestamp", -1)]
)
def test_damaged_times_of_an_index_file_hide_no_key(tmp_path: Path, field: str, value: int) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(maxHashSlotNum=50, maxIndexNum=100)) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"", keys=("k",)) for _ in range(3)])
    (file,) = (tmp_path / "index").iterdir()
    with open(file, "r+b") as header:
        header.seek(field_offset(INDEX_HEADER, field))
        header.write(value.to_bytes(8, "big", signed=True))
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert len(store.query("t", "k")) == 3
        assert store.with_keys([QueueRange(Queue("t", 0), 0, 3)], ["k"]) == [QueueRange(Queue("t", 0), 0, 3)]


@pytest.mark.parametrize("offset", [0, 4000, 1 << 20, 1 << 40])
def test_message_with_a_damaged_entry_is_an_error(tmp_path: Path, offset: int) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(mappedFileSizeCommitLog=64 << 10, maxHashSlotNum=50)) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"", keys=(f"k{n}",)) for n in range(300)])
    with open(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", "r+b") as entries:
        entries.write((offset + 7).to_bytes(8, "big"))
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert len(store.query("t", "k1")) == 1
        with pytest.raises(CorruptRecord):
            store.query("t", "k0")


def test_newest_messages_do_not_depend_on_index_file_names(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(maxHashSlotNum=50, maxIndexNum=11)) as store:
        store.create_topic("t", 1)
        for _ in range(30):
            store.put(Message("t", b"", keys=("k",)))
    names = sorted((tmp_path / "index").iterdir())
    names[1].rename(names[0].with_name("20000101000000000"))
    (tmp_path / "watermark").unlink()
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert [message.queue_offset for message in store.query("t", "k", 12)] == list(range(18, 30))
        assert [message.queue_offset for message in store.query("t", "k", 22)] == list(range(8, 30))


def test_unpublished_message_is_not_found(golden: Golden) -> None:
    last = golden.rows[-1]
    key, end = last["properties"]["UNIQ_KEY"], last["physicalOffset"]
    assert messages_with_key(golden.log, golden.index, end, KeyQuery(last["topic"], key, 100)) == []
    with pytest.raises(OffsetNotYet):
        message_at(golden.log, end, end)


def test_messages_are_found_by_id(golden: Golden) -> None:
    for row in golden.rows:
        message = message_at(golden.log, row["physicalOffset"], golden.end)
        assert (message.topic, message.body) == (row["topic"], row["body"])


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("7F00000100002A9F0000000000000090", 0x90),
        ("7f00000100002a9f7fffffffffffffff", 2**63 - 1),
        ("20010DB800000000000000000000000100002A9F0000000000000451", 0x451),
    ],
)
def test_offset_is_read_from_an_id(text: str, offset: int) -> None:
    assert offset_of_id(text) == offset


@pytest.mark.parametrize("text", ["", "UID0", "7F00000100002A9F00000000000000", "7F 00000100002A9F0000000000000090"])
def test_wrong_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidMessageId, match="query by key"):
        offset_of_id(text)


def test_offset_inside_a_record_is_refused(golden: Golden) -> None:
    for inside in range(1, 200):
        with pytest.raises(CorruptRecord):
            message_at(golden.log, golden.rows[0]["physicalOffset"] + inside % 90 + 1, golden.end)


def test_offset_of_a_deleted_segment_is_refused(golden: Golden) -> None:
    with pytest.raises(OffsetLost):
        message_at(golden.log, 100 * SEGMENT, 101 * SEGMENT)


def test_messages_are_found_by_time(golden: Golden) -> None:
    for (topic, queue_id), there in seen.golden(GOLDEN / f"{golden.root.name}.jsonl").items():
        times = [row["storeTimestamp"] for row in there.rows]
        with MessageStore.open(golden.root, read_only=True) as store:
            for time in range(times[0] - 2, times[-1] + 3):
                older, not_newer = (sum(stored < limit for stored in times) for limit in (time, time + 1))
                for boundary, expected in ((Boundary.LOWER, older), (Boundary.UPPER, max(0, not_newer - 1))):
                    assert store.offset_by_time(topic, queue_id, time, boundary) == expected


def test_search_by_time_survives_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    offsets = PublishedQueues.offsets

    def stale(published: PublishedQueues, topic: str, queue_id: int) -> tuple[int, int]:
        known = offsets(published, topic, queue_id)
        filled.store.clean(forced=True)
        return known

    with filled.store:
        filled.put("t", 0, 250, size=1000)
        monkeypatch.setattr(PublishedQueues, "offsets", stale)
        with MessageStore.open(filled.path, read_only=True) as reader:
            assert reader.offset_by_time("t", 0, 0) == filled.store.min_offset("t", 0) > 0


@pytest.mark.parametrize("meanwhile", [False, True])
def test_search_by_key_survives_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: bool) -> None:
    config, look = StoreConfig(mappedFileSizeCommitLog=8192, mappedFileSizeConsumeQueue=200), query.message_at

    def overtaken(log: CommitLog, physical_offset: int, confirm_offset: int) -> StoredMessage:
        monkeypatch.setattr(query, "message_at", look)
        found = look(log, physical_offset, confirm_offset)
        assert store.clean(forced=True).log
        return found

    with MessageStore.open(tmp_path, config=config) as store, MessageStore.open(tmp_path, read_only=True) as reader:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(300), keys=("k",)) for _ in range(40)])
        assert len(reader.query("t", "k")) == len(reader.query("t", "k")) == 40
        if meanwhile:
            monkeypatch.setattr(query, "message_at", overtaken)
        else:
            assert store.clean(forced=True).log
        found = [message.queue_offset for message in reader.query("t", "k")]
        assert found == list(range(store.min_offset("t", 0), 40))


def test_search_by_time_over_a_lost_segment_ends(tmp_path: Path) -> None:
    config = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(500)) for _ in range(60)])
    for segment in sorted((tmp_path / "mq" / "commitlog").iterdir())[1:-1]:
        segment.unlink()
    raised: list[OffsetLost] = []

    def search() -> None:
        with MessageStore.open(tmp_path / "mq", read_only=True) as reader:
            try:
                reader.offset_by_time("t", 0, 1)
            except OffsetLost as error:
                raised.append(error)

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(20)
    assert raised
