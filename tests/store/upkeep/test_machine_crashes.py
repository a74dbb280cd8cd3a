from __future__ import annotations

import random
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, Message, MessageStore
from store.append.published_end import PublishedEnd, checked
from store.broker.retries import send_back
from store.broker.transactions import Transactions
from store.disk.index import Index
from store.format.layout import CQ_ENTRY, PUBLISHED_END, RECORD_HEADER, SECTOR_BYTES, field_offset, segment_name
from store.upkeep.verify import verify
from tests.end_to_end.test_kill import bodies, check_log
from tests.store.upkeep.crashed import SIZE, SMALL, Crashed, another_boot, damage, records_before


@pytest.mark.parametrize("seed", range(50))
def test_crash_loses_no_flushed_message(crashed: Crashed, seed: int) -> None:
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
    if chance.random() < 0.2:
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
def test_message_with_a_lost_sector_in_properties_is_dropped(tmp_path: Path, length: int) -> None:
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


@pytest.mark.parametrize("again", ["sent back", "committed"])
def test_zeros_in_a_resent_brokers_message_do_not_end_the_log(tmp_path: Path, again: str) -> None:
    """Nor do they hide the acknowledged messages after it."""
    live, path = tmp_path / "live", tmp_path / "mq"
    with MessageStore.open(live, config=replace(SMALL, mappedFileSizeCommitLog=4 * SIZE)) as store:
        store.create_topic("t", 1)
        transactions, row = Transactions(store, "g"), Message("t", b"theirs", properties={"p": "x" * 1200})
        halves = transactions.prepare([row]) if again == "committed" else []
        store.put_many([row] if not halves else [])
        file = live / "commitlog" / segment_name(0)
        file.write_bytes(file.read_bytes().replace(b"x" * 1200, bytes(1200)))
        store.flush()
        if halves:
            transactions.commit(halves)
        else:
            send_back(store, "g", store.get_message("g", "t", 0, 0).messages)
        acknowledged = [b"%d" % n for n in range(5)]
        store.put_many([Message("t", body) for body in acknowledged])
        shutil.copytree(live, path)
    another_boot(path)
    for read_only in (True, False):
        with MessageStore.open(path, read_only=read_only) as store:
            assert list(bodies(store).values()) == [b"theirs", *acknowledged]


def test_crash_without_a_loss_loses_nothing(crashed: Crashed) -> None:
    path, flushed, _ = crashed
    with MessageStore.open(path) as store:
        assert len(bodies(store)) == 80
        assert bodies(store).items() >= flushed.items()


def test_reader_before_and_after_the_recovery(crashed: Crashed) -> None:
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


def test_damage_before_the_flushed_offset_is_no_torn_end(
    crashed: Crashed,
) -> None:
    """With its queues deleted the log is walked from its first byte; a bad record there must not end the log."""
    path, _, _ = crashed
    shutil.rmtree(path / "consumequeue")
    file = path / "commitlog" / segment_name(SIZE)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    before = {entry: entry.read_bytes() for entry in (path / "commitlog").iterdir()}
    with pytest.raises(
        CorruptRecord, match=rf"the record at log offset {SIZE} is damaged, although the log was flushed up to \d+"
    ):
        MessageStore.open(path)
    assert {entry: entry.read_bytes() for entry in (path / "commitlog").iterdir()} == before


def test_store_timestamps_do_not_decrease_over_a_crash(
    crashed: Crashed,
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


def test_damaged_store_timestamp_is_not_continued(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        at = store.get_message("g", "t", 0, 3, 1).messages[0].physical_offset
    with (path / "commitlog" / segment_name(at - at % SIZE)).open("r+b") as file:
        file.seek(at % SIZE + field_offset(RECORD_HEADER, "store_timestamp"))
        file.write(b"\x7f")
    (path / "watermark").unlink()
    with MessageStore.open(path) as store:
        offset = store.put(Message("t", b"next", queue_id=0)).queue_offset
        assert store.get_message("g", "t", 0, offset).messages[0].store_timestamp < 1 << 43


def test_device_remounted_in_the_same_boot(tmp_path: Path) -> None:
    """Unflushed data is lost although the boot id is the same. Opening raises an error, and does not shorten the log,
    until the file of its published end is deleted."""
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
    with pytest.raises(
        CorruptRecord, match=f"the record at log offset {end} is damaged, although the log was flushed up to"
    ):
        MessageStore.open(left)
    assert {each: each.read_bytes() for each in left.rglob("*") if each.is_file()} == before
    (left / "watermark").unlink()
    with MessageStore.open(left) as store:
        assert [message.physical_offset for message in store.get_message("g", "t", 0, 0).messages] == flushed
        assert store.put(Message("t", b"next")).queue_offset == 3


@pytest.mark.parametrize("offset", range(27))
@pytest.mark.parametrize("part", ["record", "entry"])
def test_no_offset_is_given_twice_after_damage_of_flushed_data(path: Path, part: str, offset: int) -> None:
    """Otherwise a search for the queue's end would stop there, and later entries would be cut off."""
    file = path / "consumequeue/t/0" / segment_name(offset // 10 * 200)
    at = int(np.frombuffer(file.read_bytes(), CQ_ENTRY)["physical_offset"][offset % 10])
    place = offset % 10 * CQ_ENTRY.itemsize
    if part == "record":
        file, place = path / "commitlog" / segment_name(at - at % SIZE), at % SIZE
        place += field_offset(RECORD_HEADER, "queue_id")
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(b"\7")
    if offset % 2:
        (path / "abort").touch()
    another_boot(path)
    with MessageStore.open(path) as store:
        assert [store.max_offset("t", queue) for queue in range(3)] == [27, 27, 26]
        assert store.put(Message("t", b"next", queue_id=0)).queue_offset == 27


@pytest.mark.parametrize("flushed", [5, 40, 63])
def test_each_key_is_indexed(tmp_path: Path, flushed: int) -> None:
    live, path = tmp_path / "live", tmp_path / "mq"
    config = replace(SMALL, maxHashSlotNum=20, maxIndexNum=50)
    messages = [Message("t", b"%d" % number, keys=(f"k{number}",)) for number in range(64)]
    with MessageStore.open(live, config=config) as store:
        store.create_topic("t", 1)
        store.put_many(messages[:flushed])
        store.flush()
        store.put_many(messages[flushed:])
        shutil.copytree(live, path)
    another_boot(path)
    with MessageStore.open(path) as store:
        assert [[found.body for found in store.query("t", f"k{n}")] for n in range(64)] == [
            [b"%d" % n] for n in range(64)
        ]
    index = Index.of(path, config, writable=False)
    filed = sum(index.file(name).header()["next_entry"] - 1 for name in index.names())
    assert filed - 64 <= 1, "it indexes the record where it continues again, as RocketMQ does"
    assert verify(path).findings == []


@pytest.mark.parametrize("flushed", [30, 64])
@pytest.mark.parametrize("index_files", [1, 2])
def test_known_times_and_keys_after_a_crash(tmp_path: Path, flushed: int, index_files: int) -> None:
    """Known in full if no message followed the flushed ones; otherwise a broker may have rebuilt the index."""
    live, path = tmp_path / "live", tmp_path / "mq"
    config = replace(SMALL, maxHashSlotNum=20, maxIndexNum=1000 if index_files == 1 else 40)
    messages = [Message("t", b"%d" % number, keys=(f"k{number}",)) for number in range(64)]
    with MessageStore.open(live, config=config) as store:
        store.create_topic("t", 1)
        store.put_many(messages[:flushed])
        store.flush()
        begin = store.confirm_offset
        store.put_many(messages[flushed:])
        shutil.copytree(live, path)
    another_boot(path)
    assert len(list((path / "index").iterdir())) == index_files
    with MessageStore.open(path) as store:
        end = store.confirm_offset
    with closing(PublishedEnd(path, writable=False)) as published:
        assert published.times_from == (begin if begin < end else 0)
        assert published.keys_from == (end if begin < end and index_files > 1 else 0)
