from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import (
    COLUMNS,
    DEFAULT_COLUMNS,
    CorruptRecord,
    FilterError,
    InvalidArgument,
    InvalidColumns,
    Message,
    MessageStore,
    OffsetLost,
    OffsetNotYet,
    StoreConfig,
    UnknownQueue,
    UnknownTopic,
    message_filter,
)
from store.format.layout import CQ_ENTRY, PROPERTIES_LENGTH_BYTES, RECORD_HEADER, field_offset, segment_name
from store.read.scan import batch_bounds
from tests.filled import Filled
from tests.rocketmq.golden import GOLDEN

SEGMENT = 4096


@given(
    st.lists(st.integers(91, 900), min_size=1, max_size=40),
    st.integers(1, 50),
    st.integers(1, 5000),
    st.integers(0, 2000),
)
def test_batches_cover_all_rows_within_every_limit(sizes: list[int], max_rows: int, max_bytes: int, gap: int) -> None:
    """`gap` bytes of other queues lie between the records."""
    physical, at = [], 0
    for size in sizes:
        if at % SEGMENT + size + 8 > SEGMENT:
            at += SEGMENT - at % SEGMENT
        physical.append(at)
        at += size + gap % 300
    cuts = list(batch_bounds(np.array(physical), np.array(sizes), SEGMENT, max_rows, max_bytes))
    assert [row for first, last in cuts for row in range(first, last)] == list(range(len(sizes)))
    for first, last in cuts:
        assert last - first <= max_rows
        assert last == first + 1 or sum(sizes[first:last]) <= max_bytes
        assert len({offset // SEGMENT for offset in physical[first:last]}) == 1


@pytest.mark.parametrize(("size", "count"), [(100, 1), (1131, 4), (2000, 7), (10_000, 33)])
def test_batches_have_similar_lengths(size: int, count: int) -> None:
    sizes = np.full(32_768, size)
    cuts = list(batch_bounds(np.cumsum(sizes) - size, sizes, 1 << 30, len(sizes), 10_000_000))
    assert len(cuts) == count
    lengths = [last - first for first, last in cuts]
    assert max(lengths) - min(lengths) <= count


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(mappedFileSizeCommitLog=SEGMENT, mappedFileSizeConsumeQueue=200)
    with MessageStore.open(tmp_path, config=config) as it:
        it.create_topic("t", 1)
        it.put_many([Message("t", f"{n}".encode() * 50, tags=["Aa", "BB", None][n % 3]) for n in range(60)])
        yield it


@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_numpy_offsets_are_accepted(store: MessageStore, kind: Callable[[int], int]) -> None:
    start, end, was = kind(20), kind(50), store.fingerprint("t", 0, 20)
    assert was is not None
    for batches in (store.scan("t", 0, start, end), store.to_arrow("t", queues={kind(0): (start, end)})):
        assert [offset for batch in batches for offset in batch["queueOffset"].to_pylist()] == list(range(20, 50))
    assert len(store.sizes("t", 0, start, end)) == 30
    assert store.can_have("t", 0, start, was)


def test_columns_are_in_the_requested_order(store: MessageStore) -> None:
    for columns in (("body",), ("queueOffset", "body", "tags"), tuple(reversed(COLUMNS)), DEFAULT_COLUMNS):
        batches = list(store.scan("t", 0, 0, 60, columns=columns))
        assert all(batch.schema == pa.schema([(name, COLUMNS[name]) for name in columns]) for batch in batches)
        assert sum(batch.num_rows for batch in batches) == 60


@pytest.mark.parametrize("limits", [{"max_rows": 0}, {"max_bytes": 0}, {"max_rows": -1}])
def test_limits_below_one_are_refused(store: MessageStore, limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must lie between 1 and"):
        store.scan("t", 0, 0, 60, **limits)


def test_limits_allow_at_least_one_row(store: MessageStore) -> None:
    assert [batch.num_rows for batch in store.scan("t", 0, 0, 60, max_bytes=1)] == [1] * 60
    assert [batch.num_rows for batch in store.scan("t", 0, 0, 60, max_rows=1)] == [1] * 60


def test_empty_range_gives_no_batch(store: MessageStore) -> None:
    assert list(store.scan("t", 0, 7, 7)) == []
    assert list(store.scan("t", 0, 60, 60)) == []


def test_tags_with_the_same_hash_are_told_apart(store: MessageStore) -> None:
    found = [
        offset
        for batch in store.scan("t", 0, 0, 60, columns=("queueOffset",), tags="Aa")
        for offset in batch["queueOffset"].to_pylist()
    ]
    assert found == list(range(0, 60, 3))
    with pytest.raises(FilterError):
        store.scan("t", 0, 0, 60, tags="||")


@pytest.mark.parametrize("columns", [("queueOffset",), ("properties", "queueOffset"), ("queueOffset", "body", "tags")])
@pytest.mark.parametrize("check_crc", [False, True])
def test_any_filter_selects_rows(store: MessageStore, columns: tuple[str, ...], check_crc: bool) -> None:
    accept = message_filter("TAGS IN ('Aa', 'C') AND NOT (TAGS = 'C')", "SQL92")
    batches = list(store.scan("t", 0, 0, 60, columns=columns, tags=accept, check_crc=check_crc))
    assert [offset for batch in batches for offset in batch["queueOffset"].to_pylist()] == list(range(0, 60, 3))
    assert all(tuple(batch.schema.names) == columns for batch in batches)


def damage(store: MessageStore, queue_offset: int, at: int) -> None:
    """Change byte `at` of a record of queue 0. A negative `at` counts from the record's end."""
    entries = np.frombuffer((store.path / "consumequeue/t/0" / segment_name(0)).read_bytes(), CQ_ENTRY)
    begin, size, _ = entries[queue_offset].tolist()
    file = store.path / "commitlog" / segment_name(0)
    content = bytearray(file.read_bytes())
    content[begin + at % size] ^= 1
    file.write_bytes(content)


def test_filtered_out_records_are_not_read(store: MessageStore) -> None:
    damage(store, 2, 0)
    assert sum(batch.num_rows for batch in store.scan("t", 0, 0, 60, tags="Aa || BB")) == 40
    with pytest.raises(CorruptRecord, match="topic t, queue 0, offset 2 "):
        list(store.scan("t", 0, 0, 60))


@pytest.mark.parametrize("name", ["total_size", "magic", "queue_id", "queue_offset", "physical_offset", "body_length"])
def test_headers_are_always_compared_with_the_queue(store: MessageStore, name: str) -> None:
    damage(store, 2, field_offset(RECORD_HEADER, name))
    with pytest.raises(CorruptRecord, match="topic t, queue 0, offset 2 "):
        list(store.scan("t", 0, 0, 60, ("queueOffset",), check_crc=False))


def test_properties_are_read_only_if_needed(store: MessageStore) -> None:
    whole = pa.Table.from_batches(store.scan("t", 0, 0, 60, ("queueOffset", "body")))
    properties = len(b"TAGS\x01Aa\x02")
    damage(store, 3, -properties - PROPERTIES_LENGTH_BYTES - len("t"))
    assert pa.Table.from_batches(store.scan("t", 0, 0, 60, ("queueOffset", "body"), check_crc=False)) == whole
    for columns, tag, check_crc in ((("body",), None, True), (("tags",), None, False), (("body",), "Aa", False)):
        with pytest.raises(CorruptRecord, match="topic t, queue 0, offset 3 "):
            list(store.scan("t", 0, 0, 60, columns, tag, check_crc=check_crc))


def test_batch_outlives_its_store(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"body", tags="x") for _ in range(100)])
        (batch,) = store.scan("t", 0, 0, 100)
    for file in (tmp_path / "commitlog").iterdir():
        file.unlink()
    del store
    assert batch["body"].to_pylist() == [b"body"] * 100
    assert batch["tags"].to_pylist() == ["x"] * 100


def change_entry(store: MessageStore, index: int, field: str, value: int) -> None:
    file = store.path / "consumequeue/t/0" / segment_name(0)
    entries = np.frombuffer(bytearray(file.read_bytes()), CQ_ENTRY)
    entries[field][index] = value
    file.write_bytes(entries.tobytes())


@pytest.mark.parametrize("code", [0, 66, 1 << 40, 1 << 62])
def test_wrong_tags_code_is_an_error(store: MessageStore, code: int) -> None:
    change_entry(store, 3, "tags_code", code)
    where = r"^topic t, queue 0, offset 3 \(commit log offset \d+\)"
    with pytest.raises(
        CorruptRecord, match=rf"{where}: the entry has tags code {code}, but the record has tag Aa; run"
    ):
        list(store.scan("t", 0, 0, 10, ("tags",)))
    another = rf"{where}: the log has another message there: .* tag Aa, tags code in the queue {code};"
    with pytest.raises(CorruptRecord, match=another):
        store.get_message("g", "t", 0, 3)
    assert sum(batch.num_rows for batch in store.scan("t", 0, 0, 10, ("body",))) == 10, "tags are not checked"


@pytest.mark.parametrize("expression", [None, "Aa", "none"])
def test_empty_entry_is_an_error_for_any_filter(store: MessageStore, expression: str | None) -> None:
    """Its tags code is the one of a message without a tag, so a filter must not use it."""
    change_entry(store, 5, "size", 0)
    change_entry(store, 5, "tags_code", 0)
    accept = message_filter(expression)
    with pytest.raises(CorruptRecord, match="queue 0, offset"):
        list(store.scan("t", 0, 0, 60, tags=accept))
    for as_records in (False, True):
        with pytest.raises(CorruptRecord, match=r"offset 5\b.* the queue entry is damaged .record size 0"):
            store.get_message("g", "t", 0, 5, message_filter=accept, as_records=as_records)


def test_error_names_the_record_that_was_found(store: MessageStore) -> None:
    entries = np.frombuffer((store.path / "consumequeue/t/0" / segment_name(0)).read_bytes(), CQ_ENTRY)
    change_entry(store, 3, "physical_offset", int(entries["physical_offset"][0]))
    said = r"offset 3 .*: the log has .* its record says queue 0, offset 0, commit log offset 0, topic t;"
    with pytest.raises(CorruptRecord, match=said):
        list(store.scan("t", 0, 3, 4))


@pytest.mark.parametrize(("field", "value"), [("queue_offset", 9), ("tags_code", 5)])
def test_entries_of_light_queues_are_compared(tmp_path: Path, field: str, value: int) -> None:
    """queue_offset: damaged by swapping two entries."""
    shutil.copytree(GOLDEN / "multi-dispatch-5.3", tmp_path / "mq")
    with MessageStore.open(tmp_path / "mq", read_only=True) as reader:
        topic = next(topic for topic in reader.topics() if topic.startswith("%LMQ%"))
        file = reader.path / "consumequeue" / topic / "0" / segment_name(0)
        entries = np.frombuffer(bytearray(file.read_bytes()), CQ_ENTRY)
        if field == "queue_offset":
            entries[1], entries[2] = entries[2].copy(), entries[1].copy()
        else:
            entries[field][1] = value
        file.write_bytes(entries.tobytes())
        with pytest.raises(CorruptRecord, match=rf"^topic {topic}, queue 0, offset 1"):
            list(reader.scan(topic, 0, 1, 2))
        with pytest.raises(CorruptRecord, match=rf"^topic {topic}, queue 0, offset 1"):
            reader.get_message("g", topic, 0, 1)


@pytest.mark.parametrize(
    ("field", "message"), [("size", "the entry says 9 bytes, its record"), ("tags_code", "in the queue 9;")]
)
def test_query_compares_the_entry(store: MessageStore, field: str, message: str) -> None:
    (batch,) = store.scan("t", 0, 3, 4, ("msgId",))
    change_entry(store, 3, field, 9)
    with pytest.raises(CorruptRecord, match=message):
        store.message_by_id(batch["msgId"][0].as_py())


def offsets(reader: pa.RecordBatchReader) -> list[tuple[int, int]]:
    table = reader.read_all()
    return list(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))


def test_to_arrow_reads_all_queues_some_or_ranges(filled: Filled) -> None:
    store = filled.store
    everything = [(0, n) for n in range(3)] + [(1, n) for n in range(5)]
    assert offsets(store.to_arrow("orders")) == everything
    assert offsets(store.to_arrow("orders", queues=[1])) == everything[3:]
    assert offsets(store.to_arrow("orders", queues={1: (2, 4), 0: (1, 2)})) == [(1, 2), (1, 3), (0, 1)]
    assert offsets(store.to_arrow("orders", tags="B")) == [each for each in everything if each[1] % 2]
    filled.put("orders", 0, 1)
    assert offsets(store.to_arrow("orders", queues=[])) == []


def test_to_arrow_reads_all_queues_at_one_moment(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    store, look = filled.store, filled.store.offsets

    def look_and_append(topic: str, queue_id: int) -> tuple[int, int]:
        found = look(topic, queue_id)
        store.put_many([Message("orders", b"body", queue_id=each) for each in (0, 1)])
        return found

    monkeypatch.setattr(store, "offsets", look_and_append)
    queue_ids = [queue_id for queue_id, _ in offsets(store.to_arrow("orders"))]
    assert queue_ids.count(0) - 3 == queue_ids.count(1) - 5


def test_to_arrow_reads_a_range_of_time(filled: Filled) -> None:
    store = filled.store
    seen = store.to_arrow("orders", ["storeTimestamp"]).read_all()["storeTimestamp"].cast(pa.int64()).to_pylist()
    first, last = min(seen) // 1000, max(seen) // 1000
    assert len(offsets(store.to_arrow("orders", begin=first, end=last + 1))) == 8
    assert offsets(store.to_arrow("orders", begin=last + 1)) == []
    assert offsets(store.to_arrow("orders", end=first)) == []
    assert len(offsets(store.to_arrow("orders", queues={0: (1, 3)}, begin=first))) == 2


def test_range_of_time_includes_archived_messages_correctly(filled: Filled, tmp_path: Path) -> None:
    store = filled.store
    filled.put("orders", 0, 300, size=1000)
    filled.put("orders", 0, 1)
    (newest,) = store.scan("orders", 0, 303, 304, ["storeTimestamp"])
    last = newest["storeTimestamp"].cast(pa.int64())[0].as_py() // 1000
    store.archive(str(tmp_path / "archive"))
    store.clean(forced=True)
    first = store.min_offset("orders", 0)
    everything = {0: (0, 304)}
    assert len(offsets(store.to_arrow("orders", queues=everything))) == 304
    assert offsets(store.to_arrow("orders", queues=everything, begin=last)) == [(0, 303)]
    assert len(offsets(store.to_arrow("orders", queues=everything, end=last))) == 303
    assert len(offsets(store.to_arrow("orders", queues={0: (first, 304)}, begin=1))) == 304 - first
    for time in ({"begin": 1}, {"end": 1}, {"begin": 1, "end": last + 1}):
        with pytest.raises(
            OffsetLost,
            match=f"before offset {first} were deleted, .* stored at 1970-01-01T00:00:00.001Z or after is unknown",
        ):
            store.to_arrow("orders", queues=everything, **time)


def test_empty_result_has_columns_and_types(filled: Filled) -> None:
    reader = filled.store.to_arrow("orders", ["body", "properties"], queues={0: (1, 1)})
    assert reader.schema.names == ["body", "properties"]
    assert reader.read_all().num_rows == 0


def test_wrong_arguments_are_refused_at_once(filled: Filled) -> None:
    to_arrow = filled.store.to_arrow
    with pytest.raises(UnknownTopic):
        to_arrow("nowhere")
    with pytest.raises(UnknownQueue):
        to_arrow("orders", queues=[7])
    with pytest.raises(InvalidColumns):
        to_arrow("orders", ["value"])
    with pytest.raises(OffsetNotYet):
        to_arrow("orders", queues={0: (0, 4)})
    with pytest.raises(InvalidArgument, match=r"queue 0: the range \[2, 1\) ends before it begins"):
        to_arrow("orders", queues={0: (2, 1)})


def test_errors_during_the_read_are_raised(filled: Filled) -> None:
    store = filled.store
    filled.put("orders", 0, 200, size=1000)
    reader = store.to_arrow("orders", queues=[0])
    reader.read_next_batch()
    store.clean(forced=True)
    with pytest.raises(OffsetLost):
        reader.read_all()
