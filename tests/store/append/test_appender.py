from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store import CorruptSegment, CorruptStore, Message, MessageRefused, MessageStore, StoreConfig, StoreReplaced
from store.append.published_end import PublishedEnd
from store.disk.queue_ends import QueueEnds
from store.format.layout import ABORT_FILE, PUBLISHED_END_FILE, QUEUE_ENDS_FILE, segment_name
from store.upkeep.verify import verify
from tests.device.disk import Sync, Write
from tests.device.recorder import Recorder
from tests.end_to_end.test_kill import bodies, check_log
from tests.waiting import PATIENCE

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", f"{n}".encode(), queue_id=n % 2) for n in range(10)])
    return tmp_path


def dead_append(path: Path, *, announced: int) -> None:
    """Leave the files of a writer that announced `announced` bytes, wrote records and entries, and died unpublished."""
    with MessageStore.open(path) as other:
        before = other.confirm_offset
        other.put_many([Message("t", b"dead" * 20, queue_id=n % 2) for n in range(announced // 500)])
        after = other.confirm_offset
    published = PublishedEnd(path, writable=True)
    published.announce(max(after, before + announced), published.store_timestamp)
    published.publish(before)
    (path / ABORT_FILE).touch()


@pytest.mark.parametrize("announced", [1, 600, 5000, 20_000])
def test_next_append_undoes_a_dead_one(path: Path, announced: int) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
        dead_append(path, announced=announced)
        assert bodies(reader) == before
        with MessageStore.open(path) as store:
            assert bodies(store) == before
            for n in range(10, 60):
                store.put(Message("t", f"{n}".encode(), queue_id=n % 2))
        after = bodies(reader)
    assert after == {(n % 2, n // 2): f"{n}".encode() for n in range(60)}
    check_log(path, 60)


def test_close_undoes_a_dead_append(path: Path) -> None:
    """RocketMQ does not read the published end."""
    dead_append(path, announced=5000)
    MessageStore.open(path).close()
    check_log(path, 10)
    assert not (path / "abort").exists()


def test_two_stores_in_turns_keep_offsets_dense(path: Path) -> None:
    with MessageStore.open(path) as one, MessageStore.open(path) as two:
        for n in range(10, 100):
            result = (one, two)[n % 3 == 0].put(Message("t", f"{n}".encode(), queue_id=n % 2))
            assert result.queue_offset == n // 2
    check_log(path, 100)


def test_many_threads_append_to_one_store(path: Path) -> None:
    def work(name: int) -> None:
        for n in range(30):
            store.put(Message("t", f"{name}-{n}".encode()))
            store.append_table("t", pa.table({"body": [f"{name}+{n}"] * 2}))

    with MessageStore.open(path) as store:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = sorted(bodies(store).values())
    expected = [f"{n}" for n in range(10)]
    expected += [body for name in range(4) for n in range(30) for body in (f"{name}-{n}", *[f"{name}+{n}"] * 2)]
    assert found == sorted(body.encode() for body in expected)
    check_log(path, len(expected))


def test_store_timestamps_never_decrease(path: Path) -> None:
    with MessageStore.open(path) as store:
        published = PublishedEnd(path, writable=True)
        ahead = published.store_timestamp + 3_600_000
        published.announce(store.confirm_offset, ahead)
        offset = store.put(Message("t", b"", queue_id=0)).queue_offset
        assert store.get_message("g", "t", 0, offset).messages[0].store_timestamp == ahead


def test_wrong_clock_affects_a_single_message(path: Path) -> None:
    with MessageStore.open(path) as store:
        published = PublishedEnd(path, writable=True)
        right = published.store_timestamp
        published.announce(store.confirm_offset, right + 325 * 365 * 86_400_000)
        with pytest.warns(RuntimeWarning, match=r"10,249,(199|200),\d\d\d s after the present time of this machine"):
            store.put(Message("t", b"wrong", queue_id=0))
        offsets = [store.put(Message("t", b"", queue_id=0)).queue_offset for _ in range(20)]
        times = [store.get_message("g", "t", 0, offset).messages[0].store_timestamp for offset in offsets]
        assert times == sorted(times)
        assert right <= times[0] < right + 3_600_000
        assert store.offset_by_time("t", 0, times[0]) <= offsets[0]
        assert store.offset_by_time("t", 0, times[-1] + 1) == offsets[-1] + 1


def test_large_append_needs_several_writes(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        sent = [bytes([n]) * (4 << 20) for n in range(10)]
        store.put_many([Message("t", body) for body in sent])
        assert [body for batch in store.scan("t", 0, 0, 10) for body in batch["body"].to_pylist()] == sent


@pytest.mark.parametrize(
    ("config", "body", "message"),
    [
        (
            StoreConfig(maxMessageSize=8, mappedFileSizeCommitLog=1 << 20),
            b"too large",
            "the body has 9 bytes, and at most 8",
        ),
        (StoreConfig(mappedFileSizeCommitLog=1 << 20), bytes(1 << 20), "and a commit log segment has"),
    ],
)
def test_table_that_fails_late_is_not_appended(tmp_path: Path, config: StoreConfig, body: bytes, message: str) -> None:
    bodies = [b"fits"] * 60_000
    bodies[55_000] = body
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 1)
        with pytest.raises(MessageRefused, match=message):
            store.append_table("t", pa.table({"body": pa.array(bodies, pa.binary())}))
        assert store.max_offset("t", 0) == 0
        assert store.put(Message("t", b"next")).queue_offset == 0
    check_log(tmp_path, 1)


def test_large_table_is_one_sequence(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 3)
        table = pa.table({"body": pa.array([n.to_bytes(4, "big") * 2500 for n in range(8000)], pa.binary())})
        result = store.append_table("t", table)
        for queue_id in range(3):
            rows = np.flatnonzero(result.queue_ids == queue_id)
            assert result.queue_offsets[rows].tolist() == list(range(len(range(queue_id, 8000, 3))))
            (batch,) = store.scan("t", queue_id, 2000, 2001, columns=("body",))
            assert batch["body"][0].as_py() == int(rows[2000]).to_bytes(4, "big") * 2500


def publish(store: MessageStore, *parts: list[Message], **how: Any) -> None:
    append = store.begin()
    for part in parts:
        append.add_messages(part)
    append.publish(**how)


MARK = Message("t", b"marked", queue_id=0)
HOW: dict[str, Callable[[MessageStore], object]] = {
    "put": lambda store: store.put(MARK),
    "put 2": lambda store: store.put_many([MARK] * 2),
    "put 3": lambda store: store.put_many([MARK] * 3),
    "publish": lambda store: publish(store, [MARK]),
    "publish 2 parts": lambda store: publish(store, [MARK], [MARK]),
    "publish flushed": lambda store: publish(store, [MARK], flush=True),
    "publish 2 flushed": lambda store: publish(store, [MARK] * 2, flush=True),
    "publish 3 flushed": lambda store: publish(store, [MARK] * 3, flush=True),
    "publish 2 parts flushed": lambda store: publish(store, [MARK], [MARK], flush=True),
    "publish unless": lambda store: publish(store, [MARK], unless=lambda: False),
    "publish 2 unless": lambda store: publish(store, [MARK] * 2, unless=lambda: False),
}
TO_BE_FLUSHED = {name for name in HOW if "flushed" in name}
SEVERAL_PARTS = {name for name in HOW if "parts" in name}
SINGLE = {"put", "publish", "publish flushed", "publish unless"}


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_unflushed_records_are_hidden_until_all_are_written(tmp_path: Path, name: str, flush: str) -> None:
    """The head of the first record is written last, so that the records of one append appear all at once."""
    root = tmp_path / "device"
    root.mkdir()
    recorder = Recorder(root)
    config = replace(SMALL, flushDiskType=flush, flushIntervalCommitLog=3_600_000)
    with recorder.recording(), MessageStore.open(root / "mq", config=config) as store:
        store.create_topic("t", 1)
        begin = store.put(Message("t", b"before")).physical_offset
        at, begun = store.confirm_offset, recorder.look()
        HOW[name](store)
        changes = recorder.changes[begun : recorder.look()]
    assert begin < at
    log = next(each.node for each in changes if isinstance(each, Write) and b"marked" in each.data)
    writes = [(each.position, len(each.data)) for each in changes if isinstance(each, Write) and each.node == log]
    flushes = [each for each in changes if isinstance(each, Sync) and each.node == log]
    is_flushed = flush == "SYNC_FLUSH" or name in TO_BE_FLUSHED
    is_hidden = name in SEVERAL_PARTS or (is_flushed and name not in SINGLE)
    assert bool(flushes) == is_flushed
    assert writes[0][0] == at + 4 * is_hidden
    assert ((at, 4) in writes[1:]) == is_hidden
    assert len(flushes) == is_flushed * (1 + is_hidden)


@pytest.mark.parametrize("indexed", [True, False])
def test_published_end_names_the_known_times_and_keys(tmp_path: Path, indexed: bool) -> None:
    with MessageStore.open(tmp_path, config=replace(SMALL, messageIndexEnable=indexed)) as store:
        store.create_topic("t", 1)
        published = PublishedEnd(tmp_path, writable=False)
        for n in range(200):  # several puts share a millisecond
            store.put(Message("t", b"", keys=(f"k{n}",)))
            assert published.keys_from == (0 if indexed else store.confirm_offset)
            assert published.times_from == 0


def test_append_after_an_undone_one_has_a_later_time(path: Path) -> None:
    """A reader that saw part of the undone append detects the undo by the later time."""
    with MessageStore.open(path) as store:
        dead_append(path, announced=600)
        published = PublishedEnd(path, writable=True)
        seen = published.store_timestamp + 60_000
        published.announce(published.announced_end, seen)
        store.put(Message("t", b"next"))
        assert published.store_timestamp > seen


def test_types_of_a_result(path: Path) -> None:
    with MessageStore.open(path) as store:
        result = store.append_table("t", pa.table({"body": [b"x"] * 3}))
    assert (result.queue_ids.dtype, result.queue_offsets.dtype, result.physical_offsets.dtype) == ("i4", "i8", "i8")


def test_messages_are_stamped_with_the_clock_in_milliseconds(path: Path) -> None:
    with MessageStore.open(path) as store:
        before = int(time.time() * 1000)
        offset = store.put(Message("t", b"now", queue_id=0)).queue_offset
        after = int(time.time() * 1000)
        assert before <= store.get_message("g", "t", 0, offset).messages[0].store_timestamp <= after


@pytest.mark.parametrize("others", [False, True], ids=["its own", "another's"])
@pytest.mark.parametrize("verb", ["put", "clean", None])
def test_restored_older_published_end_loses_nothing(path: Path, verb: str | None, others: bool) -> None:
    """Without the check an append would overwrite newer records, and `close` would delete segments."""
    store, other = MessageStore.open(path), MessageStore.open(path)
    put = (other if others else store).put_many
    put([Message("t", bytes(300), queue_id=0)] * 20)
    older = (path / PUBLISHED_END_FILE).read_bytes()
    put([Message("t", bytes(300), queue_id=0)] * 20)
    with MessageStore.open(path, read_only=True) as reader:
        expected = bodies(reader)
        with (path / PUBLISHED_END_FILE).open("r+b") as file:
            file.write(older)
        with pytest.raises(StoreReplaced):
            bodies(reader)
    said = "was replaced by an older one while the store is open"
    if not others:  # otherwise the store may not know the newer records
        with pytest.raises(CorruptStore, match=said):
            store.max_offset("t", 0)
    if verb is not None:
        arguments = {"put": (Message("t", b"next", queue_id=1),), "clean": ()}[verb]
        with pytest.raises(CorruptStore, match=said):
            getattr(store, verb)(*arguments)
    for each in (store, other):
        with pytest.raises(CorruptStore, match=said):
            each.close()
    with MessageStore.open(path) as store:
        assert bodies(store) == expected
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 5


def test_queue_file_lost_while_ends_are_saved_is_rebuilt(path: Path) -> None:
    """By the next opening, although the put creates the deleted file again, without its entries."""
    entered, goes_on = threading.Event(), threading.Event()

    def wait(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is QueueEnds.write.__code__:
            entered.set()
            goes_on.wait(PATIENCE)

    def flush() -> None:
        sys.setprofile(wait)
        store.flush()

    ends = path / QUEUE_ENDS_FILE
    with MessageStore.open(path, config=replace(SMALL, flushIntervalCommitLog=3_600_000)) as store:
        store.put_many([Message("t", b"x", queue_id=0, keys="k") for _ in range(8)])
        flusher = threading.Thread(target=flush)
        flusher.start()
        assert entered.wait(PATIENCE)
        before = bodies(store)
        (path / "consumequeue/t/0" / segment_name(200)).unlink()
        store.put(Message("t", b"next", queue_id=0))
        goes_on.set()
        flusher.join()
        assert ends.exists()
    with MessageStore.open(path) as store:
        assert bodies(store) == before | {(0, 13): b"next"}
    assert verify(path).findings == []


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("count", [1, 2, 60])
def test_lost_last_segment_is_not_replaced(path: Path, count: int, flush: str) -> None:
    """Otherwise the append would be acknowledged in a log with a hole, which no writer could open."""
    last = sorted((path / "commitlog").iterdir())[-1]
    with MessageStore.open(path, config=replace(SMALL, flushDiskType=flush)) as store:
        before, copy = bodies(store), last.read_bytes()
        messages = [Message("t", f"{n}".encode(), queue_id=0) for n in range(count)]
        last.unlink()
        for _ in range(2):
            with pytest.raises(CorruptSegment, match=f"{last}: this segment is missing; its first"):
                store.put_many(messages)
            assert not last.exists()
        last.write_bytes(copy)
        results = store.put_many(messages)
        after = bodies(store)
        assert after == before | {
            (0, each.queue_offset): sent.body for each, sent in zip(results, messages, strict=True)
        }
    with MessageStore.open(path) as store:
        assert bodies(store) == after
    check_log(path, len(after))
