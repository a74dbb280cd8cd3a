from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import CorruptRecord, Message, MessageRefused, MessageStore, PutStatus, StoreConfig
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.format.layout import BLANK, CQ_ENTRY, MAGIC_BLANK, RECORD_HEADER, field_offset, segment_name
from store.upkeep.verify import verify
from tests.device.disk import Change, Sync, Write
from tests.device.recorder import Recorder

SIZE = 256


def naive(begin: int, sizes: list[int]) -> tuple[list[int], int, list[int]]:
    at, offsets, blanks = begin, [], []
    for size in sizes:
        if size + 8 > SIZE - at % SIZE:
            blanks.append(at)
            at += SIZE - at % SIZE
        offsets.append(at)
        at += size
    return offsets, at, blanks


@given(
    st.integers(0, 4 * SIZE).filter(lambda begin: begin % SIZE <= SIZE - 8),
    st.lists(st.integers(91, SIZE - 8) | st.just(SIZE - 8), max_size=30),
)
def test_placement_equals_rocketmqs_rule(begin: int, sizes: list[int]) -> None:
    placement = CommitLog(Path("unused"), SIZE, writable=False).place(begin, np.array(sizes, np.int64))
    offsets, end, blanks = naive(begin, sizes)
    assert placement.physical_offsets.tolist() == offsets
    assert placement.end == end
    assert placement.blanks == blanks
    covered = []
    for first, last in placement.runs:
        at = offsets[first]
        assert at // SIZE == (at + sum(sizes[first:last]) - 1) // SIZE, "a run stays in one segment"
        covered += range(first, last)
    assert covered == list(range(len(sizes)))


@pytest.mark.parametrize("begin", [0, 100, SIZE, 3 * SIZE + 100])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_record_leaves_space_for_the_blank(begin: int, count: int) -> None:
    """A blank takes 8 bytes. A record that leaves fewer goes to the next segment."""
    log = CommitLog(Path("unused"), SIZE, writable=False)
    room = SIZE - begin % SIZE
    for left in range(12):
        sizes = [30] * (count - 1) + [room - left - 30 * (count - 1)]
        if sizes[-1] > SIZE - 8:
            continue
        placement = log.place(begin, np.array(sizes, np.int64))
        offsets, end, blanks = naive(begin, sizes)
        assert (placement.physical_offsets.tolist(), placement.end, placement.blanks) == (offsets, end, blanks)
        assert bool(blanks) == (left < 8)


def test_a_record_larger_than_a_segment_is_refused() -> None:
    log = CommitLog(Path("unused"), SIZE, writable=False)
    log.place(0, np.array([SIZE - 8]))
    with pytest.raises(
        MessageRefused, match=r"249 bytes, and a commit log segment has 256\. .* larger mapped"
    ) as refused:
        log.place(0, np.array([91, SIZE - 7]))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


def test_write_fills_segments_and_blanks_their_ends(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, SIZE, writable=True)
    records = [b"\1" * 100, b"\2" * 120, b"\3" * 200]
    placement = log.place(0, np.array([len(record) for record in records]))
    log.write(log.stretches(placement, lambda first, last: memoryview(b"".join(records[first:last]))))
    assert log.segments.starts() == [0, SIZE]
    assert log.segments.read(0, 220) == b"\1" * 100 + b"\2" * 120
    blank = np.frombuffer(log.segments.read(220, 8), BLANK)[0]
    assert blank.item() == (SIZE - 220, MAGIC_BLANK)
    assert log.segments.read(SIZE, 201) == b"\3" * 200 + b"\0"
    assert log.next_segment(0) == log.next_segment(255) == SIZE
    assert log.min_offset() == 0


def test_empty_log_begins_at_0(tmp_path: Path) -> None:
    assert CommitLog(tmp_path, SIZE, writable=False).min_offset() == 0


@pytest.mark.parametrize("begin", [0, 150, 200])
def test_hidden_records_are_invisible_until_shown(tmp_path: Path, begin: int) -> None:
    log = CommitLog(tmp_path, SIZE, writable=True)
    if begin:
        log.segments.write(0, b"\1" * begin)
    records = [bytes([0, 0, 0, 120]) + b"\2" * 116] * 4
    placement = log.place(begin, np.array([len(record) for record in records]))
    first = int(placement.physical_offsets[0])

    def written() -> list[bytes]:
        return [log.segments.read(int(at), 120) for at in placement.physical_offsets]

    log.write(log.stretches(placement, lambda first, last: memoryview(b"".join(records[first:last]))), hidden=first)
    assert written() == [b"\0" * 4 + records[0][4:], *records[1:]]
    log.show(first, 120, flush=True)
    assert written() == records
    log.clear(begin, placement.end)
    assert [log.segments.first_not_zero(begin, placement.end)] == [None]
    assert log.segments.read(0, begin) == b"\1" * begin


@pytest.mark.parametrize("begin", [0, 150, 200])
def test_head_of_hidden_record_is_written_last_cleared_first(tmp_path: Path, begin: int) -> None:
    root = tmp_path / "device"
    root.mkdir()
    recorder = Recorder(root)
    with recorder.recording():
        log = CommitLog(root, SIZE, writable=True)
        if begin:
            log.segments.write(0, b"\1" * begin)
        placement = log.place(begin, np.array([120] * 3))
        first, end = int(placement.physical_offsets[0]), placement.end
        log.write(log.stretches(placement, lambda first, last: memoryview(b"\2" * 120 * (last - first))), hidden=first)
        log.segments.flush(begin, end)
        hidden = len(recorder.changes)
        log.show(first, 120, flush=True)
        shown = len(recorder.changes)
        log.clear(first, end)

    def kinds(changes: list[Change]) -> list[tuple[int, bytes] | type[Sync]]:
        return [(each.position, each.data) if isinstance(each, Write) else type(each) for each in changes]  # type: ignore[misc]

    head = first % SIZE
    assert kinds(recorder.changes[hidden:shown]) == [(head, (120).to_bytes(4, "big")), Sync]
    cleared = kinds(recorder.changes[shown:])
    assert cleared[:2] == [(head, bytes(4)), Sync], "the cleared head is on the device before other bytes are deleted"
    assert cleared[-1] is Sync
    assert len(cleared) > 3


GIANT = 400 << 20


@pytest.fixture(params=["body", "header"])
def giant(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """Return a closed store whose second record claims almost the size of a segment, and that record's offset."""
    with MessageStore.open(tmp_path, config=StoreConfig(mappedFileSizeCommitLog=GIANT)) as store:
        store.create_topic("t", 1)
        at = store.put_many([Message("t", b"%d" % n, keys="k") for n in range(3)])[1].physical_offset
    size = (GIANT - 4096).to_bytes(4, "big")
    with (tmp_path / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(at)
        file.write(size)
        if request.param == "body":  # also the body's length, so that nothing adds up from here on
            file.seek(at + field_offset(RECORD_HEADER, "body_length"))
            file.write(size)
    with (tmp_path / "consumequeue/t/0" / segment_name(0)).open("r+b") as file:
        file.seek(CQ_ENTRY.itemsize + field_offset(CQ_ENTRY, "size"))
        file.write(size)
    with closing(PublishedEnd(tmp_path, writable=True)) as end:
        end.publish(GIANT - 1)
    return tmp_path, at


def by_get(path: Path, _: int) -> None:
    with MessageStore.open(path, read_only=True) as store:
        store.get_message("g", "t", 0, 1)


def as_records(path: Path, _: int) -> None:
    with MessageStore.open(path, read_only=True) as store:
        store.get_message("g", "t", 0, 1, as_records=True)


def by_scan(path: Path, _: int) -> None:
    with MessageStore.open(path, read_only=True) as store:
        list(store.scan("t", 0, 1, 2))


def by_id(path: Path, at: int) -> None:
    with MessageStore.open(path, read_only=True) as store:
        store.record_at(at)


def by_key(path: Path, _: int) -> None:
    with MessageStore.open(path, read_only=True) as store:
        store.query("t", "k")


def by_log(path: Path, _: int) -> None:
    (path / "watermark").unlink()
    with MessageStore.open(path, read_only=True) as store:
        assert store.max_offset("t", 0) == 1
        raise CorruptRecord


def recovered(path: Path, _: int) -> None:
    (path / "watermark").unlink()
    with pytest.warns(RuntimeWarning, match="there is no sound record from byte"), MessageStore.open(path) as store:
        assert store.max_offset("t", 0) == 1
    raise CorruptRecord


def verified(path: Path, _: int) -> None:
    assert verify(path).findings
    raise CorruptRecord


@pytest.mark.parametrize("look", [by_get, as_records, by_scan, by_id, by_key, by_log, recovered, verified])
def test_impossible_length_is_not_read(giant: tuple[Path, int], look: Callable[[Path, int], None]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord):
            look(*giant)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


def test_reader_follows_a_replaced_segment_and_keeps_a_deleted(
    tmp_path: Path,
) -> None:
    writer, reader = (CommitLog(tmp_path, SIZE, writable=writable).segments for writable in (True, False))
    for start in (0, SIZE):
        writer.write(start, b"old")
        assert reader.read(start, 3) == reader.view(start, 3).tobytes() == b"old"
    writer.rewrite(0, 1)
    writer.write(3, b"new")
    writer.delete(SIZE)
    assert reader.read(0, 6) == reader.view(0, 6).tobytes() == b"oldnew"
    reader = CommitLog(tmp_path, SIZE, writable=False).segments
    assert reader.read(0, 6) == b"oldnew"
    writer.delete(0)
    assert reader.read(0, 6) == reader.view(0, 6).tobytes() == b"oldnew"
