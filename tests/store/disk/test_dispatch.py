from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import Message, MessageRefused, MessageStore, StoreConfig
from store.disk.commit_log import CommitLog
from store.disk.dispatch import light_entries, queue_entries, walk
from store.format.hashes import java_hash_code
from store.format.layout import CQ_ENTRY, RECORD_HEADER, SECTOR_BYTES, field_offset, segment_name
from store.format.record_view import RecordView, moved_records
from tests.store.read.test_golden import GOLDEN, NAMES

SIZE = 4096


def log_of(path: Path) -> CommitLog:
    return CommitLog(path, SIZE, writable=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Twelve messages of 1,000 bytes, three in each segment."""
    config = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=200)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", bytes([65 + n]) * 1000, tags=f"tag{n}") for n in range(12)])
    return tmp_path


def starts(path: Path) -> list[int]:
    return [int(offset) for chunk in walk(log_of(path), 0) for offset in chunk.offsets]


def test_every_record_is_walked(path: Path) -> None:
    chunks = list(walk(log_of(path), 0))
    assert len(starts(path)) == 12
    with MessageStore.open(path, read_only=True) as store:
        assert chunks[-1].end == store.confirm_offset
    assert list(walk(log_of(path), chunks[-1].end)) == []
    assert sum(len(chunk.records) for chunk in walk(log_of(path), starts(path)[5])) == 7


def test_walk_ends_at_the_given_offset(path: Path) -> None:
    for count, until in enumerate(starts(path)):
        chunks = list(walk(log_of(path), 0, until=until))
        assert sum(len(chunk.records) for chunk in chunks) == count
        assert all(chunk.end <= until for chunk in chunks)


@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("value", [b"v", b"\0v", b"v\0"])
def test_lost_sector_in_properties_is_noticed(tmp_path: Path, lost: int, value: bytes) -> None:
    """No checksum covers properties. A sector can only be lost after the flushed offset."""
    with MessageStore.open(tmp_path, config=StoreConfig(mappedFileSizeCommitLog=SIZE)) as store:
        store.create_topic("t", 1)
        for properties in ({}, {"long": "long" * (3 * SECTOR_BYTES // 4 + 25)}):
            store.put(Message("t", b"body", properties=properties))
        end = store.confirm_offset
    (_, second), file = starts(tmp_path), tmp_path / "commitlog" / segment_name(0)
    content = bytearray(file.read_bytes())
    begin, length = content.index(b"longlong") + 4, 3 * SECTOR_BYTES
    content[begin : begin + length] = value * (length // len(value))

    def found(torn_from: int | None) -> int:
        file.write_bytes(content)
        return sum(len(chunk.records) for chunk in walk(log_of(tmp_path), 0, torn_from=torn_from))

    assert found(0) == 2
    sector = (-(-begin // SECTOR_BYTES) + lost) * SECTOR_BYTES
    content[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    content[end:] = bytes(SIZE - end)
    assert [found(torn_from) for torn_from in (None, second + 1, second, 0)] == [2, 2, 1, 1]


def test_zeros_covered_by_a_checksum_are_no_lost_sector(tmp_path: Path) -> None:
    """Zeros in the same record that no checksum covers count as lost, wherever its sectors are."""
    config = StoreConfig(mappedFileSizeCommitLog=SIZE, enabledAppendPropCRC=True)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 1)
        end = store.put(Message("t", b"body", properties={"p": "x" * 1200, "q": "v" * 1200})) and store.confirm_offset
        store.put(Message("t", b"behind"))
    file = tmp_path / "commitlog" / segment_name(0)
    content = bytearray(file.read_bytes().replace(b"x" * 1200, bytes(1200)))
    record = RecordView(np.frombuffer(bytes(content), np.uint8), np.array([0]), np.array([end]))
    record.measure_topics()
    content[:end] = moved_records(record, np.zeros(1, np.int64)).tobytes()
    file.write_bytes(content)
    assert sum(len(chunk.records) for chunk in walk(log_of(tmp_path), 0, torn_from=0)) == 2
    sector = -(-content.index(b"v" * 1200) // SECTOR_BYTES) * SECTOR_BYTES
    content[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    file.write_bytes(content)
    assert not list(walk(log_of(tmp_path), 0, torn_from=0))


@pytest.mark.parametrize("at_once", [1, 60])
@pytest.mark.parametrize("field", ["keys", "sharding_key", "value", "name"])
def test_messages_that_look_like_a_lost_sector_are_refused(tmp_path: Path, field: str, at_once: int) -> None:
    """A sector's length of zeros would end the log there and lose the acknowledged records after it."""

    def messages(zeros: int) -> list[Message]:
        text = "x" + "\0" * zeros
        properties = {"value": {"n": text}, "name": {text: "v"}}.get(field, {})
        given = {field: text} if not properties else {}
        return [Message("t", b"", properties=properties, **given) for _ in range(at_once)]  # type: ignore[arg-type]

    def columns(zeros: int) -> pa.Table:
        return pa.table(
            {
                "body": [b""] * at_once,
                "keys": [message.keys or "" for message in messages(zeros)],
                "shardingKey": [message.sharding_key for message in messages(zeros)],
                "properties": pa.array(
                    [list(message.properties.items()) for message in messages(zeros)], pa.map_(pa.string(), pa.string())
                ),
            }
        )

    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        for zeros in (SECTOR_BYTES, 4 * SECTOR_BYTES):
            with pytest.raises(MessageRefused, match="look like a sector that the device lost"):
                store.put_many(messages(zeros))
            with pytest.raises(MessageRefused, match="look like a sector that the device lost"):
                store.append_table("t", columns(zeros))
        store.put_many(messages(SECTOR_BYTES - 1))
        store.append_table("t", columns(SECTOR_BYTES - 1))
        walked = walk(CommitLog(tmp_path, store.config.mappedFileSizeCommitLog, writable=False), 0, torn_from=0)
        assert sum(len(chunk.records) for chunk in walked) == 2 * at_once


def test_nothing_is_walked_without_a_log(tmp_path: Path) -> None:
    assert list(walk(log_of(tmp_path), 0)) == []


@given(data=st.data())
def test_changed_byte_ends_the_log_or_has_no_checksum(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    with MessageStore.open(folder, config=StoreConfig(mappedFileSizeCommitLog=SIZE)) as store:
        store.create_topic("t", 1)
        for _ in range(3):
            store.put(Message("t", b"body", tags="x"))
    before = starts(folder)
    position = data.draw(st.integers(0, 3 * (before[1]) - 1))
    file = folder / "commitlog" / segment_name(0)
    content = bytearray(file.read_bytes())
    content[position] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    after = starts(folder)
    hit = position // before[1]
    assert after in (before, before[:hit])
    for chunk in walk(log_of(folder), 0):
        for topic, _, _, _ in queue_entries(chunk):
            assert "/" not in topic


@pytest.mark.parametrize("topic", [b"../../etc", b"/", b"..", b"\xff\xff"])
def test_invalid_topic_name_ends_the_log(tmp_path: Path, topic: bytes) -> None:
    """No CRC covers the topic, and its name becomes a folder."""
    with MessageStore.open(tmp_path, config=StoreConfig(mappedFileSizeCommitLog=SIZE)) as store:
        store.create_topic("t" * len(topic), 1)
        store.put(Message("t" * len(topic), b"body"))
    file = tmp_path / "commitlog" / segment_name(0)
    file.write_bytes(file.read_bytes().replace(b"t" * len(topic), topic))
    assert starts(tmp_path) == []


def one_queue(path: Path, count: int) -> tuple[Path, list[int]]:
    """Return the log's file of a store with `count` messages, and the begin of each record."""
    with MessageStore.open(path, config=StoreConfig(mappedFileSizeCommitLog=SIZE)) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"body") for _ in range(count)])
    return path / "commitlog" / segment_name(0), starts(path)


def test_records_before_an_undecodable_topic_are_walked(tmp_path: Path) -> None:
    file, (_, last) = one_queue(tmp_path, 2)
    content = bytearray(file.read_bytes())
    content[content.index(b"\1t", last) + 1] = 0xFF
    file.write_bytes(content)
    found = [piece for chunk in walk(log_of(tmp_path), 0) for piece in queue_entries(chunk)]
    assert [(topic, queue_id, offsets.tolist()) for topic, queue_id, offsets, _ in found] == [("t", 0, [0])]


def test_queue_offsets_of_a_chunk_are_consecutive(tmp_path: Path) -> None:
    file, records = one_queue(tmp_path, 6)
    with file.open("r+b") as opened:
        opened.seek(records[2] + field_offset(RECORD_HEADER, "queue_offset"))
        opened.write(bytes(8))
    found = [piece for chunk in walk(log_of(tmp_path), 0) for piece in queue_entries(chunk)]
    assert [offsets.tolist() for _, _, offsets, _ in found] == [[0, 1], [0], [3, 4, 5]]
    assert [entries["physical_offset"].tolist() for *_, entries in found] == [records[:2], records[2:3], records[3:]]


def test_entries_equal_those_of_the_append(path: Path) -> None:
    found: dict[int, bytes] = {0: b"", 1: b""}
    for chunk in walk(log_of(path), 0):
        for topic, queue_id, offsets, entries in queue_entries(chunk):
            assert topic == "t"
            assert offsets.tolist() == list(
                range(len(found[queue_id]) // 20, len(found[queue_id]) // 20 + len(entries))
            )
            found[queue_id] += entries.tobytes()
    for queue_id, entries in found.items():
        file = path / f"consumequeue/t/{queue_id}" / segment_name(0)
        assert file.read_bytes() == entries.ljust(200, b"\0")
        assert np.frombuffer(entries, CQ_ENTRY)["tags_code"].tolist() == [
            java_hash_code(f"tag{n}") for n in range(queue_id, 12, 2)
        ]


@pytest.mark.parametrize("name", NAMES)
def test_entries_equal_rocketmqs(name: str) -> None:
    """Only tags codes differ if RocketMQ stored addresses in a queue extension: ours are the hashes."""
    for chunk in walk(log_of(GOLDEN / name), 0):
        for topic, queue_id, offsets, entries in chain(queue_entries(chunk), light_entries(chunk)):
            for offset, entry in zip(offsets.tolist(), entries, strict=True):
                start, position = offset * 20 // 200 * 200, offset * 20 % 200
                file = GOLDEN / name / "consumequeue" / topic / str(queue_id) / segment_name(start)
                theirs = np.frombuffer(file.read_bytes(), CQ_ENTRY)[position // 20]
                assert entry["physical_offset"] == theirs["physical_offset"]
                assert entry["size"] == theirs["size"]
                assert entry["tags_code"] == theirs["tags_code"] or name == "queue-extension-5.3"


@pytest.mark.parametrize("name", NAMES)
def test_no_entry_of_rocketmq_is_missing(name: str) -> None:
    ours = {
        (topic, queue_id, int(offset))
        for chunk in walk(log_of(GOLDEN / name), 0)
        for topic, queue_id, offsets, _ in chain(queue_entries(chunk), light_entries(chunk))
        for offset in offsets
    }
    theirs = set()
    for file in (GOLDEN / name / "consumequeue").glob("*/*/*"):
        entries = np.frombuffer(file.read_bytes(), CQ_ENTRY)
        topic, queue_id = file.parts[-3], int(file.parts[-2])
        theirs |= {(topic, queue_id, int(file.name) // 20 + int(n)) for n in np.flatnonzero(entries["size"] > 0)}
    assert ours == theirs


@pytest.mark.parametrize(("with_crc", "found"), [(True, 1), (False, 3)])
def test_property_crc_covers_the_header(tmp_path: Path, with_crc: bool, found: int) -> None:
    with MessageStore.open(tmp_path, config=StoreConfig(enabledAppendPropCRC=with_crc)) as store:
        store.create_topic("t", 1)
        second = store.put_many([Message("t", b"body", "tag") for _ in range(3)])[1].physical_offset
        assert [message.properties for message in store.get_message("g", "t", 0, 0).messages] == [{"TAGS": "tag"}] * 3
        path = tmp_path / "commitlog" / segment_name(0)
        with path.open("r+b") as file:
            file.seek(second + field_offset(RECORD_HEADER, "flag"))
            file.write(b"\1")
        log = CommitLog(tmp_path, store.config.mappedFileSizeCommitLog, writable=False)
        assert sum(len(chunk.records) for chunk in walk(log, 0)) == found
        assert sum(len(chunk.records) for chunk in walk(log, 0, check_crc=False)) == 3
