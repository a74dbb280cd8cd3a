from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, CorruptSegment, Message, MessageStore
from store.append.published_end import PublishedEnd
from store.format.layout import CQ_ENTRY, RECORD_HEADER, field_offset, segment_name
from store.upkeep.verify import repair, verify
from tests.end_to_end.test_kill import bodies, check_log
from tests.store.disk.damages import note_ends, recorded_ends
from tests.store.upkeep.crashed import SIZE, SMALL, put
from tests.store.upkeep.test_damaged import bodies as what_is_left
from tests.store.upkeep.test_damaged import digests
from tests.takeover import broker


@pytest.mark.parametrize("also", [[], ["watermark"], ["watermark", "checkpoint", "config"]])
def test_queues_are_rebuilt_from_the_log_alone(path: Path, also: list[str]) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        expected = bodies(reader)
    files = {file: file.read_bytes() for file in (path / "consumequeue").glob("*/*/*")}
    shutil.rmtree(path / "consumequeue")
    for name in also:
        shutil.rmtree(path / name) if name == "config" else (path / name).unlink()
    with MessageStore.open(path, config=SMALL) as store:
        assert bodies(store) == expected
        put(store, 3)
    assert all(file.read_bytes()[:180] == content[:180] for file, content in files.items() if file.name == "0" * 20)
    check_log(path, 83)


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_damaged_last_record_of_a_clean_directory_is_reported(path: Path, damaged: bool, abort: bool) -> None:
    """A broker's directory has no published end. If the broker was killed, a torn end is normal and only lost records
    are reported."""
    with MessageStore.open(path, read_only=True) as reader:
        ends = [
            reader.get_message("g", "t", queue, reader.max_offset("t", queue) - 1).messages[0] for queue in range(3)
        ]
        last, count = max(ends, key=lambda message: message.physical_offset), len(bodies(reader))
    (path / "watermark").unlink()
    if abort:
        (path / "abort").touch()
    at = last.physical_offset % SIZE
    segment = path / "commitlog" / f"{last.physical_offset - at:020}"
    if damaged:
        content = bytearray(segment.read_bytes())
        content[content.index(last.body, at)] ^= 1
        segment.write_bytes(content)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with MessageStore.open(path) as store:
            assert len(bodies(store)) == count - damaged
    cut = f"{segment}: there is no sound record from byte {at} on (log offset {last.physical_offset})"
    known = f"{segment.parent}: sound records end at log offset {last.physical_offset}, but 1 queues have entries"
    expected = [known if abort else cut] if damaged else []
    assert [str(warning.message)[: len(start)] for warning, start in zip(told, expected, strict=True)] == expected


def test_lost_queue_is_rebuilt_without_the_watermark(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        expected = bodies(reader)
    shutil.rmtree(path / "consumequeue/t/1")
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        assert bodies(store) == expected


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
def test_topic_deleted_by_its_broker_stays_deleted(path: Path, use: Callable[[Path], None], killed: bool) -> None:
    """Its records stay in the log, but neither the table nor a queue folder names it. Light queues are in no table."""
    with MessageStore.open(path) as store:
        for topic in ("gone", "%LMQ%light"):
            store.create_topic(topic, 2)
            store.put_many([Message(topic, b"%d" % n, queue_id=n % 2) for n in range(10)])
        put(store, 3)
        expected = bodies(store)
    topics = json.loads((path / "config/topics.json").read_text())
    for topic in ("gone", "%LMQ%light"):
        del topics["topicConfigTable"][topic]
        shutil.rmtree(path / "consumequeue" / topic)
    (path / "config/topics.json").write_text(json.dumps(topics))
    for file in ("watermark", "queueends"):
        (path / file).unlink()
    if killed:
        (path / "abort").touch()
        (path / "consumequeue/gone").mkdir()  # RocketMQ 4.9 leaves an empty folder
    assert {finding.where for finding in verify(path).findings} == {
        f"topic %LMQ%light, queue {queue}, offset 0" for queue in (0, 1)
    }
    for _ in range(2):
        use(path)
        with MessageStore.open(path, read_only=True) as reader:
            assert reader.topics() == {"%LMQ%light": 2, "t": 3, **({"gone": 0} if killed else {})}
            assert bodies(reader) == expected
        assert not list(path.glob("consumequeue/gone/*"))
        assert verify(path).findings == []
    with MessageStore.open(path) as store:
        store.create_topic("gone", 2)
        assert [store.put(Message("gone", b"again", queue_id=queue)).queue_offset for queue in (0, 1)] == [0, 0]
    assert verify(path).findings == []


def test_queues_begin_at_the_begin_of_a_shortened_log(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
    for start in (0, SIZE, 2 * SIZE):
        (path / "commitlog" / segment_name(start)).unlink()
    shutil.rmtree(path / "consumequeue")
    with MessageStore.open(path) as store:
        for queue in range(3):
            minimum, maximum = store.offsets("t", queue)
            assert 0 < minimum < maximum
            found = [
                body
                for batch in store.scan("t", queue, minimum, maximum, columns=("body",))
                for body in batch["body"].to_pylist()
            ]
            assert found == [before[queue, offset] for offset in range(minimum, maximum)]
            file = path / f"consumequeue/t/{queue}" / segment_name(minimum * 20 // 200 * 200)
            blanks = np.frombuffer(file.read_bytes(), CQ_ENTRY)[: minimum % 10]
            assert blanks.tolist() == [(0, 0x7FFFFFFF, 0)] * (minimum % 10)


def test_queues_ahead_of_the_log_are_cut(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
    (path / "watermark").unlink()
    last = max((path / "commitlog").iterdir())
    last.write_bytes(bytes(SIZE))
    with MessageStore.open(path) as store:
        found = bodies(store)
        assert 0 < len(found) < len(before)
        assert found.items() <= before.items()
        put(store, 80 - len(found))
        assert bodies(store) == before


def test_segment_missing_in_the_middle_is_named(path: Path) -> None:
    (path / "commitlog" / segment_name(SIZE)).unlink()
    (path / "watermark").unlink()
    with pytest.raises(CorruptSegment, match=rf"commitlog: the file of bytes {SIZE} to {2 * SIZE} is missing"):
        MessageStore.open(path)
    assert not (path / "abort").exists(), "a store that could not be opened is unchanged"


def test_leftover_queue_files_of_retention_are_deleted(tmp_path: Path) -> None:
    """Retention died between deleting log and queue files. RocketMQ searches only the first file for a queue's head."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", bytes(500), queue_id=n % 2) for n in range(100)])
        segments = sorted((tmp_path / "commitlog").iterdir())
        gone = store.get_message("g", "t", 0, 30).messages[0].physical_offset // SIZE
    for file in segments[:gone]:
        file.unlink()
    (tmp_path / "watermark").unlink()
    with MessageStore.open(tmp_path, config=SMALL) as store:
        heads = [store.min_offset("t", queue_id) for queue_id in range(2)]
        assert [store.max_offset("t", queue_id) for queue_id in range(2)] == [50, 50]
    for queue_id, head in enumerate(heads):
        first = min(int(file.name) // CQ_ENTRY.itemsize for file in (tmp_path / f"consumequeue/t/{queue_id}").iterdir())
        assert first <= head < first + 10, "the first file has ten entries"


def test_rebuilding_a_queue_does_not_restore_a_dead_append(tmp_path: Path) -> None:
    """The log is walked from its first byte, and has whole records of the dead append after the published end."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"%d" % n) for n in range(3)])
        end = store.confirm_offset
        store.put_many([Message("t", b"dead")] * 3)
        announced = store.confirm_offset
    published = PublishedEnd(tmp_path, writable=True)
    published.announce(announced, published.store_timestamp)
    published.publish(end)
    (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue/t")
    with MessageStore.open(tmp_path) as store:
        assert list(bodies(store).values()) == [b"0", b"1", b"2"]
        assert store.put(Message("t", b"next")).queue_offset == 3
    check_log(tmp_path, 4)


@pytest.mark.parametrize("offset", [3, 26, 1 << 60, -1])
def test_record_with_a_wrong_queue_offset_is_named(path: Path, offset: int) -> None:
    """Queue 0 has 27 messages; this is the 13th, and no queue entry contradicts it."""
    with MessageStore.open(path, read_only=True) as store:
        at = store.get_message("g", "t", 0, 12).messages[0].physical_offset
    with (path / "commitlog" / segment_name(at - at % SIZE)).open("r+b") as file:
        file.seek(at % SIZE + field_offset(RECORD_HEADER, "queue_offset"))
        file.write(offset.to_bytes(8, "big", signed=True))
    (path / "watermark").unlink()
    before = digests(path)
    said = f"log offset {at} says topic t, queue 0, offset {offset}, but the queue's next offset is 12. Restore the"
    with pytest.raises(CorruptRecord, match=said) as told:
        MessageStore.open(path)
    remedy = "If the topic was deleted and created again, move consumequeue/t/0 out of the store instead"
    assert (remedy in str(told.value)) == (0 <= offset < 12)
    assert digests(path) == before


def zero_properties(path: Path, at: int) -> None:
    """Zero more than a sector of the properties of the record at a log offset, as a broker may have stored them."""
    file = path / "commitlog" / segment_name(at - at % SIZE)
    content = bytearray(file.read_bytes())
    first = content.index(b"x" * 1200, at % SIZE)
    content[first : first + 1200] = bytes(1200)
    file.write_bytes(content)


def test_zeros_in_a_brokers_properties_are_no_loss(tmp_path: Path) -> None:
    """Zeros count as loss only after a machine crash, and only after the flushed offset."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"%d" % n, properties={"p": "x" * 1200}) for n in range(6)])
        at = store.get_message("g", "t", 0, 4).messages[0].physical_offset
    zero_properties(tmp_path, at)
    (tmp_path / "watermark").unlink()
    with MessageStore.open(tmp_path) as store:
        assert store.max_offset("t", 0) == 6
    shutil.rmtree(tmp_path / "consumequeue")
    with MessageStore.open(tmp_path) as store:
        assert store.max_offset("t", 0) == 6


@pytest.mark.parametrize("killed", [False, True])
def test_zeros_in_messages_appended_by_a_broker_are_no_loss(tmp_path: Path, killed: bool) -> None:
    """They are after the flushed offset, but the machine did not crash."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"ours"))
    with broker(path, killed=killed) as theirs:
        theirs.put_many([Message("t", b"%d" % n, properties={"p": "x" * 1200}) for n in range(6)])
        at = theirs.get_message("g", "t", 0, 1).messages[0].physical_offset
    zero_properties(path, at)
    with MessageStore.open(path) as store:
        assert store.max_offset("t", 0) == 7


def test_saved_ends_beyond_the_log_lose_nothing(path: Path) -> None:
    """Saved ends count only for a queue without any record in the log."""
    with MessageStore.open(path) as store:
        store.clean(forced=True, config=replace(store.config, deleteFileBatchMax=2))
        before = what_is_left(store)
    assert all(before.values())
    ends = recorded_ends(path)
    ends["queues"] = [[topic, queue_id, end + 5] for topic, queue_id, end in ends["queues"]]
    note_ends(path, ends)
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        assert what_is_left(store) == before
        assert store.put(Message("t", b"next", queue_id=0)).queue_offset == 27


def test_index_of_another_log_is_rebuilt(tmp_path: Path) -> None:
    """The log was truncated and grew again, so the index refers to positions that are no longer records."""
    for name, size in ("mq", 10), ("other", 20):
        with MessageStore.open(tmp_path / name, config=SMALL) as store:
            store.create_topic("t", 1)
            store.put_many([Message("t", bytes(size), keys=(f"{name}{n}",)) for n in range(60)])
    path = tmp_path / "mq"
    shutil.rmtree(path / "index")
    shutil.copytree(tmp_path / "other" / "index", path / "index")
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        assert [len(store.query("t", f"mq{n}")) for n in range(60)] == [1] * 60
    assert verify(path).findings == []


def test_queues_older_than_the_last_retention_are_rebuilt(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path / "consumequeue", tmp_path / "older")
    with MessageStore.open(path, config=replace(SMALL, deleteFileBatchMax=100)) as store:
        store.put_many([Message("t", bytes(300), queue_id=n % 3) for n in range(60)])
        store.clean(forced=True)
        store.put_many([Message("t", b"last", queue_id=n % 3) for n in range(3)])
        expected = what_is_left(store)
        offsets = [store.offsets("t", queue) for queue in range(3)]
    shutil.rmtree(path / "consumequeue")
    shutil.copytree(tmp_path / "older", path / "consumequeue")
    for _ in range(3):
        with pytest.raises(
            CorruptRecord, match="If the queue's files are older than the log's first record, move "
        ) as told:
            MessageStore.open(path)
        folder = str(told.value).rpartition("move ")[2].partition(" ")[0]
        shutil.rmtree(path / folder)
    with MessageStore.open(path) as store:
        assert what_is_left(store) == expected
        assert [store.offsets("t", queue) for queue in range(3)] == offsets
    assert verify(path).findings == []
