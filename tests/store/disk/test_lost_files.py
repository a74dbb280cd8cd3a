from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store import CorruptRecord, CorruptSegment, CorruptStore, Message, MessageRefused, MessageStore
from store.api.message_store import delete_topic
from store.disk.queue_files import MAKE_ANEW
from store.format.layout import CQ_ENTRY, INDEX_HEADER, field_offset, segment_name
from store.upkeep.verify import repair, verify
from tests.end_to_end.test_kill import bodies
from tests.store.disk.damages import (
    DAMAGES,
    ENTRIES,
    SMALL,
    Damage,
    all_queues,
    damage_entry,
    first_index_file,
    folder,
    index,
    last_file,
    missing_in_the_middle,
    moved_folder,
    points_back,
    queue_files,
    size_of_nothing,
    topic,
    zeroed,
    zeroed_index,
    zeroed_index_file,
)
from tests.store.upkeep.test_damaged import bodies as what_is_left


@pytest.mark.parametrize("lost", [*range(9), 24, 37, 62])
def test_entry_lost_after_the_known_end_gives_no_offset_twice(tmp_path: Path, lost: int) -> None:
    """A killed writer saved no queue ends since it opened, so the search for an end may meet the damage."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
    killed = "import os, sys; from store import *; store = MessageStore.open(sys.argv[1]); "
    killed += "[store.put(Message('t', b'x')) for _ in range(64)]; os._exit(0)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=True)
    file = tmp_path / "consumequeue/t/0" / segment_name(lost // ENTRIES * ENTRIES * CQ_ENTRY.itemsize)
    with file.open("r+b") as opened:
        opened.seek(lost % ENTRIES * CQ_ENTRY.itemsize)
        opened.write(bytes(CQ_ENTRY.itemsize))
    with MessageStore.open(tmp_path) as store:
        assert store.put(Message("t", b"next")).queue_offset == 64


@pytest.mark.parametrize("damage", [index, first_index_file])
def test_index_lost_while_a_store_is_open_is_rebuilt(path: Path, damage: Damage) -> None:
    with MessageStore.open(path) as store:
        damage(path)
        for n in range(75, 200):
            store.put(Message("t", b"%d" % n, keys=(f"k{n}",)))
    with MessageStore.open(path) as store:
        assert [store.query("t", f"k{n}")[0].body for n in range(200)] == [b"%d" % n for n in range(200)]
        files = len(list((path / "index").iterdir()))
    inodes = {file.stat().st_ino for file in (path / "index").iterdir()}
    MessageStore.open(path).close()
    assert {file.stat().st_ino for file in (path / "index").iterdir()} == inodes, "the files were rebuilt only once"
    assert len(inodes) == files > 2


FILES = """
import sys
from store import Message, MessageStore
store = MessageStore.open(sys.argv[1])
store.create_topic("t", 3)
append = store.begin()
append.add_messages([Message("t", b"%d" % n, keys=(f"k{n}",)) for n in range(75)])
append.publish()
store.flush()  # which notes what the index has, and as a rule comes by itself half a second later
for n in range(75, 95):
    store.put(Message("t", b"%d" % n, keys=(f"k{n}",)))
print("done", flush=True)
input()
if len(sys.argv) > 2:
    store.put(Message("t", b"95", keys=("k95",)))
    store.close()
"""


@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("damage", [index, first_index_file, zeroed_index, zeroed_index_file])
def test_keys_lost_before_their_writer_closed_are_rebuilt(tmp_path: Path, damage: Damage, closed: bool) -> None:
    """The lost index files were created after the store was opened, so they are recorded nowhere."""
    MessageStore.open(tmp_path, config=SMALL).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", FILES, str(tmp_path), *(["closes"] if closed else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"done\n"
    damage(tmp_path)
    if not closed:
        writer.send_signal(signal.SIGKILL)
    writer.communicate(b"\n")
    count = 96 if closed else 95
    with MessageStore.open(tmp_path) as store:
        found = [[message.body for message in store.query("t", f"k{n}")] for n in range(count)]
    assert found == [[b"%d" % n] for n in range(count)]
    assert verify(tmp_path).findings == []


@pytest.mark.parametrize("more", [1, 30])
@pytest.mark.parametrize(
    ("damage", "before"),
    [*((damage, 27) for damage in (folder, queue_files, last_file, topic, all_queues)), (folder, 30), (topic, 30)],
)
def test_queue_files_lost_while_a_store_is_open_are_rebuilt(path: Path, damage: Damage, before: int, more: int) -> None:
    """Later puts start the next file in its middle, or as the queue's first file."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", b"more", queue_id=1)] * (before - 25))
        damage(path)
        results = store.put_many([Message("t", b"later", queue_id=1)] * more)
        assert [result.queue_offset for result in results] == list(range(before, before + more))
    with MessageStore.open(path) as store:
        assert len(bodies(store)) == 50 + before + more
    assert verify(path).findings == []


@pytest.mark.parametrize(("damage", "before", "left"), [(folder, 25, 0), (last_file, 30, 20)])
@pytest.mark.parametrize("others", [True, False], ids=["others put", "a put fails"])
def test_writer_gives_no_offset_twice_after_files_were_lost(
    tmp_path: Path, damage: Damage, before: int, left: int, others: bool
) -> None:
    """Even if the queue was created while the store was open and no remaining file shows its end."""
    with MessageStore.open(tmp_path, config=SMALL) as store, MessageStore.open(tmp_path) as other:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"x", queue_id=1)] * before)
        damage(tmp_path)
        if others:
            other.put(Message("t", b"y", queue_id=0))
        else:
            with pytest.raises(MessageRefused):
                store.put(Message("t", bytes(SMALL.mappedFileSizeCommitLog), queue_id=0))
        with pytest.raises(CorruptSegment, match=f"ends at {left}, but had {before} entries before. {MAKE_ANEW}"):
            store.put(Message("t", b"next", queue_id=1))
        assert store.put(Message("t", b"next", queue_id=0)).queue_offset == others
    with MessageStore.open(tmp_path) as store:
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == before
    assert verify(tmp_path).findings == []


@pytest.mark.parametrize("damage", [folder, last_file, zeroed])
def test_store_that_saw_a_queue_detects_lost_files(tmp_path: Path, damage: Damage) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store, MessageStore.open(tmp_path) as other:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"x", queue_id=1)] * 25)
        assert other.max_offset("t", 1) == 25
        damage(tmp_path)
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 25
        with pytest.raises(CorruptSegment, match=f"damaged, but entries follow it. {MAKE_ANEW}"):
            other.put(Message("t", b"next", queue_id=1))


@pytest.mark.parametrize("damage", [folder, last_file])
def test_hole_in_a_queue_is_detected(tmp_path: Path, damage: Damage) -> None:
    """Later readers and writers see the hole, even after the queue's end is saved again."""
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"x", queue_id=1)] * 25)
        damage(tmp_path)
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 25
        store._writer.settle()  # type: ignore[union-attr]
        with MessageStore.open(tmp_path) as other, pytest.raises(CorruptSegment, match=MAKE_ANEW):
            other.put(Message("t", b"next", queue_id=1))
        for _ in range(2):
            with MessageStore.open(tmp_path, read_only=True) as reader, pytest.raises(CorruptSegment, match=MAKE_ANEW):
                reader.max_offset("t", 1)
            store.close()
    with MessageStore.open(tmp_path) as store:
        assert store.offsets("t", 1) == (0, 26)
    assert verify(tmp_path).findings == []


def test_damaged_queue_does_not_affect_the_saved_ends_of_others(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=replace(SMALL, deleteFileBatchMax=100)) as store:
        store.create_topic("t", 3)
        store.put_many([Message("t", b"gone", queue_id=1)] * 25)
        store.put_many([Message("t", bytes(100), queue_id=0)] * 65)
        store.clean(forced=True)
        max((tmp_path / "consumequeue/t/0").iterdir()).unlink()
        assert store.put(Message("t", b"next", queue_id=0)).queue_offset == 65
    folder(tmp_path)
    with MessageStore.open(tmp_path) as store:
        assert store.offsets("t", 1) == (25, 25)
        assert store.max_offset("t", 0) == 66


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("killed", [False, True])
def test_lost_files_are_rebuilt(path: Path, damage: Damage, killed: bool) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
    if killed:
        (path / "abort").write_text("1")
    damage(path)
    with MessageStore.open(path) as store:
        assert bodies(store) == before
        assert [store.query("t", f"k{n}")[0].body for n in range(75)] == [b"%d" % n for n in range(75)]
        results = store.put_many([Message("t", b"next", queue_id=queue) for queue in range(3)])
        assert [result.queue_offset for result in results] == [25, 25, 25]
    assert verify(path).findings == []


@pytest.mark.parametrize("removed", [1, 2])
@pytest.mark.parametrize("queue", [0, 2])
def test_first_files_of_a_queue_and_all_of_another_are_rebuilt(path: Path, queue: int, removed: int) -> None:
    """A queue that begins after its first record does not prove that the topic was recreated and the other queue
    ended."""
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
    for file in sorted((path / "consumequeue/t/1").iterdir())[:removed]:
        file.unlink()
    shutil.rmtree(path / "consumequeue/t" / str(queue))
    with MessageStore.open(path) as store:
        assert bodies(store) == before
        assert store.put(Message("t", b"next", queue_id=queue)).queue_offset == 25
    assert verify(path).findings == []


@pytest.fixture(params=[2, 3], ids=["in a file", "at a file's end"])
def cleaned(path: Path, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """Retention deleted segments and files of queue 1. Returns the path and the queue's new first offset."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(200), queue_id=n % 3) for n in range(75)])
        assert store.clean(forced=True, config=replace(SMALL, deleteFileBatchMax=request.param)).queues
        return path, store.min_offset("t", 1)


@pytest.mark.parametrize("removed", [1, 2])
def test_first_file_lost_after_retention_is_rebuilt(cleaned: tuple[Path, int], removed: int) -> None:
    path, first = cleaned
    assert first > ENTRIES
    with MessageStore.open(path, read_only=True) as reader:
        before = what_is_left(reader)
    for file in sorted((path / "consumequeue/t/1").iterdir())[:removed]:
        file.unlink()
    assert [finding.where for finding in verify(path).findings] == [f"topic t, queue 1, offset {first}"]
    with MessageStore.open(path) as store:
        assert what_is_left(store) == before
        assert store.min_offset("t", 1) == first
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 50
    assert verify(path).findings == []


@pytest.mark.parametrize("at", [b"\xff" * 8, bytes([0, 9, *bytes(6)])], ids=["negative", "behind the end"])
def test_garbage_before_the_first_message_is_repaired(path: Path, at: bytes) -> None:
    """The queue's next entry shows that its record follows."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(200), queue_id=n % 3) for n in range(75)])
        store.clean(forced=True, config=replace(SMALL, deleteFileBatchMax=2))
        first, before = store.min_offset("t", 1), what_is_left(store)
    assert first % ENTRIES
    damage_entry(path, first - 1, at)
    repair(path)
    assert verify(path).findings == []
    with MessageStore.open(path) as store:
        assert what_is_left(store) == before
        assert store.offsets("t", 1) == (first, 50)


def test_first_file_deleted_by_retention_is_no_loss(cleaned: tuple[Path, int]) -> None:
    """Even if the next file begins with the queue's first record in the log."""
    path, first = cleaned
    last = max((path / "commitlog").iterdir())
    content = bytearray(last.read_bytes())
    content[88] ^= 1
    last.write_bytes(content)
    with MessageStore.open(path) as store:
        assert store.min_offset("t", 1) == first


def test_intact_files_are_not_rebuilt(path: Path) -> None:
    """Otherwise every opening would walk the whole log."""
    log = path / "commitlog" / segment_name(0)
    content = bytearray(log.read_bytes())
    content[88] ^= 1
    log.write_bytes(content)
    for _ in range(2):
        with MessageStore.open(path) as store:
            store.put(Message("t", b"next", queue_id=1))
    (path / "queueends").unlink()
    with pytest.raises(CorruptRecord):
        MessageStore.open(path)


WRITER = """
import sys
from store import Message, MessageStore
store = MessageStore.open(sys.argv[1])
for number in range(100):
    store.put(Message("t", b"more", queue_id=number % 2))
print("done", flush=True)
input()
"""


@pytest.mark.parametrize("damage", [folder, last_file, zeroed, index])
def test_lost_files_of_a_killed_writer_are_rebuilt(path: Path, damage: Damage) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"done\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
        assert len(before) == 175
    damage(path)
    with MessageStore.open(path) as store:
        assert bodies(store) == before
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 75
    assert verify(path).findings == []


@pytest.mark.parametrize("damage", [missing_in_the_middle, size_of_nothing, points_back])
def test_remedy_of_the_errors_works(path: Path, damage: Damage) -> None:
    """It is: close the store, move the folder out, open the store for writing."""
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
    damage(path)
    with MessageStore.open(path) as store, pytest.raises(CorruptStore, match=re.escape(MAKE_ANEW)):
        list(store.scan("t", 1, 0, 25))
    moved_folder(path)
    with MessageStore.open(path) as store:
        assert bodies(store) == before
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 25
    assert verify(path).findings == []


def test_no_offset_is_used_twice_after_a_damaged_entry(path: Path) -> None:
    """A search for the end could stop at any damaged entry."""
    for offset in range(24):
        damage_entry(path, offset, bytes(20))
    with MessageStore.open(path) as store:
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 25


def test_no_offset_is_used_twice_in_a_recreated_topic(path: Path) -> None:
    """Deleting a topic deletes its saved queue ends, but no ends of other topics or of the recreated one."""
    delete_topic(path, "t")
    with MessageStore.open(path) as store:
        store.create_topic("t", 2)
        store.create_topic("u", 1)
        store.put_many([Message("t", b"x", queue_id=1)] * 25)
    for offset in range(25, 34):
        damage_entry(path, offset, b"\xff" * 20)
    with MessageStore.open(path) as store:
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 50
        store.delete_topic("u")
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 51


def test_first_file_and_the_next_entry_are_rebuilt(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        before = bodies(reader)
    (path / "consumequeue/t/1" / segment_name(0)).unlink()
    damage_entry(path, 10, bytes(20))
    with MessageStore.open(path) as store:
        assert bodies(store) == before


@pytest.mark.parametrize("count", [25, 30], ids=["in a file", "at a file's end"])
@pytest.mark.parametrize("damage", [folder, queue_files, last_file, zeroed])
def test_queue_without_records_continues_at_its_end(tmp_path: Path, damage: Damage, count: int) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=replace(SMALL, deleteFileBatchMax=100)) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"gone", queue_id=1) for _ in range(count)])
        store.put_many([Message("t", bytes(100), queue_id=0) for _ in range(60)])
        store.clean(forced=True)
        assert store.offsets("t", 1) == (count, count)
    damage(path)
    (finding,) = verify(path).findings
    assert (finding.where, finding.remedy) == ("topic t, queue 1", "verify --repair")
    assert finding.what.endswith(f"but had {count} entries")
    for more in range(2):
        with MessageStore.open(path) as store:
            assert store.offsets("t", 1) == (count, count + more)
            assert store.put(Message("t", b"next", queue_id=1)).queue_offset == count + more
    assert not verify(path).findings


@pytest.mark.parametrize("field", ["begin_offset", "end_offset", "next_entry"])
@pytest.mark.parametrize("bit", [2, 10, 20])
@pytest.mark.parametrize("file", [min, max])
@pytest.mark.parametrize("killed", [False, True])
def test_index_file_with_a_wrong_header_is_rebuilt(
    path: Path, file: Callable[[list[Path]], Path], field: str, bit: int, killed: bool
) -> None:
    """A header that claims more keys lets the file take no new ones, so queries would silently miss them."""
    damaged = file(list((path / "index").iterdir()))
    content = bytearray(damaged.read_bytes())
    last = field_offset(INDEX_HEADER, field) + INDEX_HEADER[field].itemsize - 1
    content[last - bit // 8] ^= 1 << bit % 8
    damaged.write_bytes(content)
    if killed:
        (path / "abort").touch()
    with MessageStore.open(path) as store:
        store.put_many([Message("t", b"%d" % n, keys=(f"k{n}",)) for n in range(75, 100)])
        found = [[message.body for message in store.query("t", f"k{n}")] for n in range(100)]
    assert found == [[b"%d" % n] for n in range(100)]
    assert verify(path).findings == []
