"""The decision table, entry by entry, and its execution on directories as crashes and brokers leave them."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, CorruptSegment, Message, MessageStore, StoreConfig, StoreLocked
from store.files.checkpoint import read_checkpoint, write_checkpoint
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import CQ_ENTRY, PUBLISHED_END, RECORD_HEADER, SECTOR_BYTES, field_offset, segment_name
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.dispatch import index_keys, walk
from store.publish.published_end import PublishedEnd, checked
from store.upkeep.recovery import CASES, Evidence, Filed, Plan, Point, _Times, plan_for
from store.upkeep.repair import repair
from store.upkeep.verify import verify
from tests.end_to_end.test_kill import bodies, check_log

SIZE = 4096
SMALL = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=200, flushIntervalCommitLog=3_600_000)


# --- the table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", [Evidence(*facts) for facts in itertools.product([True, False], repeat=5)])
def test_every_directory_has_its_case(evidence: Evidence) -> None:
    matching = [
        plan
        for pattern, plan in CASES
        if all(wanted in (None, found) for wanted, found in zip(pattern, evidence, strict=True))
    ]
    assert len(matching) == 1, "exactly one, so that their order does not matter"
    plan = plan_for(evidence)
    assert plan is matching[0]
    if evidence.published and evidence.current and evidence.queues:
        assert plan is None
        return
    assert plan is not None
    assert (plan.begin is Point.FLUSHED) == (evidence.published and evidence.queues), "else queues are made anew"
    alive = evidence.published and evidence.current
    assert (plan.trusted is Point.CONFIRMED) == alive, "what is published is there"
    assert (plan.trusted is Point.FLUSHED) == (evidence.published and not alive)
    assert plan.left_well == (not alive and not evidence.abort), "then nothing may lie behind the end"
    assert (plan.filed is Filed.ALL) == (alive or not evidence.abort), "who leaves in good order flushes the index"
    if not evidence.published:
        assert (plan.trusted is Point.LAST_SEGMENT) == (not evidence.abort), "a clean end may be torn nowhere before"
        assert (plan.trusted is Point.CHECKPOINT) == (evidence.abort and evidence.checkpoint)


# --- machine crashes --------------------------------------------------------------------------------------


def another_boot(path: Path) -> None:
    """As if the machine had gone down since."""
    with (path / "watermark").open("r+b") as file:
        file.seek(field_offset(PUBLISHED_END, "boot_id"))
        file.write(b"an earlier boot".ljust(40, b"\0"))


def test_no_group_stands_behind_what_was_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Or it would pass over what is put in its place."""
    path, after = tmp_path / "mq", tmp_path / "after"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.create_topic("u", 1)
        put(store, 9)
        store.flush()
        shutil.copytree(path, after)
        put(store, 9)
        store.put(Message("u", b"x"))
        store.commit_offsets("g", "t", {0: 6, 1: 2})
        store.commit_offsets("g", "u", {0: 1})
        ConsumerOffsets.of_instance(path, "b", "i").commit("b", "t", {2: 5})
        for folder in ("config", "consumers"):  # these are on the device
            shutil.copytree(path / folder, after / folder, dirs_exist_ok=True)
    another_boot(after)
    with MessageStore.open(after, config=SMALL) as store:
        assert [store.max_offset("t", queue) for queue in range(3)] == [3, 3, 3]
        assert [store.consumer_offset("g", "t", queue) for queue in range(3)] == [3, 2, None]
        assert store.consumer_offset("g", "u", 0) == 0
        assert ConsumerOffsets.of_instance(after, "b", "i").offsets("b", "t") == {2: 3}
    assert "group g stood behind what the log has now" in caplog.text


def put(store: MessageStore, count: int, size: int = 300) -> None:
    first = len(bodies(store))
    store.put_many(
        [Message("t", f"{n}-".encode().ljust(size, b"."), queue_id=n % 3) for n in range(first, first + count)]
    )


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, dict[tuple[int, int], bytes], int]:
    """A directory as its files are while a writer lives: 40 messages flushed, 40 not; and the flushed ones."""
    store = MessageStore.open(tmp_path / "live", config=SMALL)
    store.create_topic("t", 3)
    put(store, 40)
    store.flush()
    flushed, end = bodies(store), store.confirm_offset
    put(store, 40)
    shutil.copytree(tmp_path / "live", tmp_path / "mq")
    store.close()
    another_boot(tmp_path / "mq")
    return tmp_path / "mq", flushed, end


def damage(path: Path, keep: int, chance: random.Random) -> None:
    """What a page cache that died may leave of a file: blocks of its tail lost, cut or stale, in any mixture."""
    content = bytearray(path.read_bytes())
    position = keep
    while position < len(content):
        length = chance.choice([1, 20, 100, 512, 4096])
        if chance.random() < 0.5:
            filler = chance.choice([0, 0, 0, 0xFF, 0x41])
            content[position : position + length] = bytes([filler]) * len(content[position : position + length])
        position += length
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(50))
def test_a_machine_crash(crashed: tuple[Path, dict[tuple[int, int], bytes], int], seed: int) -> None:
    """Nothing that was flushed is lost, nothing torn is served, and what is served was put."""
    path, flushed, end = crashed
    chance = random.Random(seed)
    with MessageStore.open(path.parent / "live", read_only=True) as live:
        put_once = bodies(live)
    for file in sorted((path / "commitlog").iterdir()):
        damage(file, min(max(end - int(file.name), 0), SIZE), chance)
    for queue in range(3):
        count = sum(1 for q, _ in flushed if q == queue)
        for file in sorted((path / f"consumequeue/t/{queue}").iterdir()):
            damage(file, min(max(count * 20 - int(file.name), 0), 200), chance)
    if chance.random() < 0.2:  # files that were created since
        for file in sorted((path / "commitlog").iterdir()):
            if int(file.name) >= end:
                file.unlink()
    with MessageStore.open(path) as store:
        found = bodies(store)
        assert flushed.items() <= found.items() <= put_once.items()
        result = store.put(Message("t", b"next", queue_id=1))
        assert bodies(store) == {**found, (1, result.queue_offset): b"next"}
    check_log(path, len(found) + 1)


@pytest.mark.parametrize("length", [20, 600])
def test_a_message_whose_properties_lost_a_sector_is_none(tmp_path: Path, length: int) -> None:
    """Its body's CRC holds, and so do all lengths."""
    live, path = tmp_path / "live", tmp_path / "mq"
    with MessageStore.open(live, config=SMALL) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"%d" % n, properties={"p": "x" * length}) for n in range(60)])
        shutil.copytree(live, path)
    another_boot(path)
    file = path / "commitlog" / segment_name(0)
    content = bytearray(file.read_bytes())
    sector = next(
        at for at in range(SECTOR_BYTES, SIZE, SECTOR_BYTES) if content[at - 3 : at] == content[at : at + 3] == b"xxx"
    )
    lost = len(records_before(content, sector))
    content[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    file.write_bytes(content)
    for read_only in (True, False):
        with MessageStore.open(path, read_only=read_only) as store:
            assert list(bodies(store).values()) == [b"%d" % n for n in range(lost)]


def records_before(content: bytes, end: int) -> list[int]:
    """Where the records begin that end before `end`."""
    starts, at = [], 0
    while (following := at + int.from_bytes(content[at : at + 4], "big")) <= end:
        starts, at = [*starts, at], following
    return starts


def test_a_crash_that_lost_nothing_loses_nothing(crashed: tuple[Path, dict[tuple[int, int], bytes], int]) -> None:
    path, flushed, _ = crashed
    with MessageStore.open(path) as store:
        assert len(bodies(store)) == 80
        assert bodies(store).items() >= flushed.items()


def test_a_reader_before_the_recovery_and_after_it(crashed: tuple[Path, dict[tuple[int, int], bytes], int]) -> None:
    """It goes by the log itself, and by the watermark as soon as a writer has recovered it."""
    path, flushed, end = crashed
    for file in (path / "commitlog").iterdir():
        damage(file, min(max(end - int(file.name), 0), SIZE), random.Random(1))
    with MessageStore.open(path, read_only=True) as reader:
        found = bodies(reader)
        assert flushed.items() <= found.items()
        with MessageStore.open(path) as store:
            assert bodies(store) == bodies(reader) == found
            store.put(Message("t", b"next", queue_id=0))
            assert bodies(store) == bodies(reader)


def test_damage_below_the_flushed_offset_is_no_torn_end(
    crashed: tuple[Path, dict[tuple[int, int], bytes], int],
) -> None:
    """With its queues gone the log is walked from its first byte; a bad record there must not end it."""
    path, _, _ = crashed
    shutil.rmtree(path / "consumequeue")
    file = path / "commitlog" / segment_name(SIZE)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    before = {entry: entry.read_bytes() for entry in (path / "commitlog").iterdir()}
    with pytest.raises(CorruptRecord, match=rf"no sound record at log offset {SIZE}, although all is safe up to \d+"):
        MessageStore.open(path)
    assert {entry: entry.read_bytes() for entry in (path / "commitlog").iterdir()} == before


def test_store_timestamps_do_not_step_back_over_a_crash(
    crashed: tuple[Path, dict[tuple[int, int], bytes], int],
) -> None:
    path, _, _ = crashed
    future = int(time.time() * 1000) + 1_800_000
    with (path / "watermark").open("r+b") as file:
        file.seek(field_offset(PUBLISHED_END, "store_timestamp"))
        file.write(checked(future).to_bytes(8, "big"))
    with MessageStore.open(path) as store:
        offset = store.put(Message("t", b"next", queue_id=0)).queue_offset
        (message,) = store.get_message("g", "t", 0, offset).messages
        assert message.store_timestamp == future


def test_a_damaged_store_timestamp_is_not_gone_on_from(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        at = store.get_message("g", "t", 0, 3, 1).messages[0].physical_offset
    with (path / "commitlog" / segment_name(at - at % SIZE)).open("r+b") as file:
        file.seek(at % SIZE + field_offset(RECORD_HEADER, "store_timestamp"))
        file.write(b"\x7f")
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        offset = store.put(Message("t", b"next", queue_id=0)).queue_offset
        assert store.get_message("g", "t", 0, offset).messages[0].store_timestamp < 1 << 43


# --- missing parts ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly: 80 messages in three queues."""
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", 3)
        put(store, 80)
    return tmp_path / "mq"


@pytest.mark.parametrize("also", [[], ["watermark"], ["watermark", "checkpoint", "config"]])
def test_queues_are_made_from_the_log_alone(path: Path, also: list[str]) -> None:
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
def test_a_damaged_record_at_the_end_of_a_clean_directory_is_told(path: Path, damaged: bool, abort: bool) -> None:
    """A broker's, which has no published end. Where it was killed a torn end is nothing to tell of."""
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
    if damaged and not abort:
        (warning,) = told
        assert f"{segment}: what lies from byte {at} on (log offset {last.physical_offset}) is" in str(warning.message)
    else:
        assert not told


def test_one_lost_queue_is_made_anew_with_the_watermark_deleted(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        expected = bodies(reader)
    shutil.rmtree(path / "consumequeue/t/1")
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        assert bodies(store) == expected


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
def test_a_topic_that_its_broker_deleted_stays_deleted(path: Path, use: Callable[[Path], None], killed: bool) -> None:
    """Its records stay in the log; neither its table nor a queue's folder names it. A light queue is in no table."""
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
        (path / "consumequeue/gone").mkdir()  # 4.9 leaves it empty
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


def test_a_log_whose_head_was_deleted(path: Path) -> None:
    """Queues begin where the log does, with pre-blank entries before, as RocketMQ makes them."""
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


def test_queues_that_are_ahead_of_the_log(path: Path) -> None:
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


def test_a_segment_missing_in_the_middle_is_named(path: Path) -> None:
    (path / "commitlog" / segment_name(SIZE)).unlink()
    (path / "watermark").unlink()
    with pytest.raises(CorruptSegment, match=rf"commitlog: no file for bytes {SIZE} to {2 * SIZE}; restore"):
        MessageStore.open(path)
    assert not (path / "abort").exists(), "a store that could not be opened is as it was"


def test_recovery_wants_to_be_alone(path: Path) -> None:
    with MessageStore.open(path):
        (path / "watermark").unlink()
        with pytest.raises(StoreLocked, match="were deleted while other processes write here; close those"):
            MessageStore.open(path)


def test_a_crash_in_the_middle_of_a_recovery(path: Path) -> None:
    """It is idempotent: whatever part of the queues it had written, the next one ends the same."""
    with MessageStore.open(path, read_only=True) as reader:
        expected = bodies(reader)
    for keep in range(0, 540, 45):
        (path / "watermark").unlink()
        for queue in range(3):
            for file in sorted((path / f"consumequeue/t/{queue}").iterdir()):
                content = file.read_bytes()
                kept = min(max(keep - int(file.name), 0), 200)
                file.write_bytes(content[:kept].ljust(200, b"\0"))
        with MessageStore.open(path) as store:
            assert bodies(store) == expected


# --- where a RocketMQ broker was ------------------------------------------------------------------------------


def test_a_broker_that_appended_after_us(path: Path) -> None:
    """It knows nothing of the watermark, which is left behind: its messages are found, and not written over."""
    before = (path / "watermark").read_bytes()
    with MessageStore.open(path) as broker:
        put(broker, 7)
        expected = bodies(broker)
    (path / "watermark").write_bytes(before)
    for queue in range(3):  # they may not even be in the queues yet
        for file in sorted((path / f"consumequeue/t/{queue}").iterdir())[-1:]:
            os.truncate(file, 160)
            os.truncate(file, 200)
    with MessageStore.open(path) as store:
        assert bodies(store) == expected
        put(store, 3)
    check_log(path, 90)


def test_a_reader_of_a_directory_where_a_broker_appends_after_us(path: Path) -> None:
    before = (path / "watermark").read_bytes()
    with MessageStore.open(path) as broker:
        put(broker, 7)
        expected = bodies(broker)
    (path / "watermark").write_bytes(before)
    with MessageStore.open(path, read_only=True) as reader:
        assert bodies(reader) == expected


def test_stale_entries_of_a_broker_do_not_count(path: Path) -> None:
    """RocketMQ truncates by moving positions. Here queue 0 has such an entry, and the log has grown over it."""
    (path / "watermark").unlink()
    with MessageStore.open(path, read_only=True) as reader:
        minimum, maximum = reader.offsets("t", 0)
        other = int(
            np.frombuffer((path / "consumequeue/t/1" / segment_name(0)).read_bytes(), CQ_ENTRY)[3]["physical_offset"]
        )
    stale = np.zeros(1, CQ_ENTRY)
    stale["physical_offset"], stale["size"] = other, 392
    file = path / "consumequeue/t/0" / segment_name(maximum * 20 // 200 * 200)
    with file.open("r+b") as opened:
        opened.seek(maximum * 20 % 200)
        opened.write(stale.tobytes())
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 0) == (minimum, maximum)


def test_the_checkpoint_decides_where_a_killed_brokers_log_may_be_torn(path: Path) -> None:
    """Below the last segment that is older than the checkpoint a bad record is damage, behind it a torn end."""
    assert plan_for(Evidence(False, False, True, True, True)) == Plan(
        Point.FIRST_BYTE, Point.CHECKPOINT, Filed.CHECKPOINT
    )
    (path / "watermark").unlink()
    (path / "abort").write_text("1")
    file = path / "commitlog" / segment_name(SIZE)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    write_checkpoint(path, (read_checkpoint(path) or 0) + 3001)
    with pytest.raises(CorruptRecord, match="no sound record at log offset 4096"):
        MessageStore.open(path)
    write_checkpoint(path, 1)
    with MessageStore.open(path) as store:
        assert store.confirm_offset == SIZE


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("first_kept", [1, 30, 60])
def test_a_broker_that_made_the_index_anew_after_a_killed_writer(
    tmp_path: Path, first_kept: int, appends: bool
) -> None:
    """RocketMQ 5.5 does, from where it recovers: the keys before are missing, and are filed again."""
    live, path, copy = (tmp_path / name for name in ("live", "mq", "copy"))
    store = MessageStore.open(live, config=SMALL)
    store.create_topic("t", 1)
    store.put_many([Message("t", b"%d" % n, keys=(f"k{n}",)) for n in range(60)])
    shutil.copytree(live, path)  # as a killed writer leaves it
    store.close()
    ours = {name: (path / name).read_bytes() for name in ("watermark", "queueends")}
    count = 60
    if appends:  # as a broker does, who knows neither
        with MessageStore.open(path) as broker:
            broker.put_many([Message("t", b"%d" % n, keys=(f"k{n}",)) for n in range(60, 70)])
        count = 70
        for name, content in ours.items():
            (path / name).write_bytes(content)
    (path / "abort").unlink(missing_ok=True)
    shutil.rmtree(path / "index")
    log, index = CommitLog(path, SIZE, writable=False), Index.of(path, StoreConfig(), writable=True)
    for at in [int(offset) for chunk in walk(log, 0) for offset in chunk.offsets][first_kept : first_kept + 1]:
        for chunk in walk(log, at):
            index.append(*index_keys(chunk, tags=False))
    shutil.copytree(path, copy)
    with MessageStore.open(path) as store:
        assert [store.query("t", f"k{n}")[0].body for n in range(count)] == [b"%d" % n for n in range(count)]
    assert verify(path).findings == []
    repair(copy)
    assert verify(copy).findings == []


def test_queue_files_that_a_deletion_left_behind_go(tmp_path: Path) -> None:
    """It died between the log and the queues; RocketMQ looks for a queue's head in its first file only."""
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
        assert first <= head < first + 10, "of ten entries"


def test_a_device_that_was_mounted_again_under_the_same_boot(tmp_path: Path) -> None:
    """What was not flushed is gone, and no boot says so: an error, not a shorter log, until its end is deleted."""
    path, left = tmp_path / "mq", tmp_path / "left"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        flushed = [store.put(Message("t", b"%d" % n)).physical_offset for n in range(3)]
        store.flush()
        end = store.confirm_offset
        store.put_many([Message("t", b"not flushed")] * 3)
        shutil.copytree(path, left)
    for file, begin in (left / "commitlog" / segment_name(0), end), (left / "consumequeue/t/0" / segment_name(0), 60):
        content = file.read_bytes()
        file.write_bytes(content[:begin].ljust(len(content), b"\0"))
    before = {each: each.read_bytes() for each in left.rglob("*") if each.is_file()}
    with pytest.raises(CorruptRecord, match=f"no sound record at log offset {end}, although all is safe up to"):
        MessageStore.open(left)
    assert {each: each.read_bytes() for each in left.rglob("*") if each.is_file()} == before
    (left / "watermark").unlink()
    with MessageStore.open(left) as store:
        assert [message.physical_offset for message in store.get_message("g", "t", 0, 0).messages] == flushed
        assert store.put(Message("t", b"next")).queue_offset == 3


@pytest.mark.parametrize(
    ("times", "least", "expected"),
    [([5, 5, 6], 6, 0), ([5, 5, 6], 5, 30), ([5, 4, 4], 6, 10), ([5, 6, 4], 6, 20), ([7, 8, 8], 9, 0)],
)
def test_from_where_on_times_ascend(times: list[int], least: int, expected: int) -> None:
    walked = _Times(0)
    walked.follow(np.array([0, 10, 20]), np.array(times))
    assert walked.ascend_from(30, least) == expected


def test_a_lost_queue_brings_no_dead_append_back(tmp_path: Path) -> None:
    """The log is walked from its first byte then, and has whole records of it behind the published end."""
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
