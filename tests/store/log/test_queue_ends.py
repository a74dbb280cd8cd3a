"""A writer does not trust the end of a queue blindly: what is gone is noticed at opening, and made from the log."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store import CorruptRecord, CorruptStore, Message, MessageStore, StoreConfig
from store.format.layout import CQ_ENTRY, INDEX_HEADER, field_offset, segment_name
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.consume_queue import MAKE_ANEW
from store.log.queue_ends import QueueEnds
from store.upkeep.verify import verify
from tests.end_to_end.test_kill import bodies
from tests.store.upkeep.test_damaged import bodies as what_is_left

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50)
ENTRIES = 10  # of a queue file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Closed in good order: 75 messages in three queues, 25 in each."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.put_many([Message("t", b"%d" % n, keys=(f"k{n}",), queue_id=n % 3) for n in range(75)])
    return path


def folder(path: Path) -> None:
    shutil.rmtree(path / "consumequeue/t/1")


def moved_folder(path: Path) -> None:
    (path / "consumequeue/t/1").rename(path.parent / "elsewhere")


def topic(path: Path) -> None:
    shutil.rmtree(path / "consumequeue/t")


def all_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def queue_files(path: Path) -> None:
    for file in (path / "consumequeue/t/1").iterdir():
        file.unlink()


def first_file(path: Path) -> None:
    min((path / "consumequeue/t/1").iterdir()).unlink()


def last_file(path: Path) -> None:
    max((path / "consumequeue/t/1").iterdir()).unlink()


def zeroed(path: Path) -> None:
    max((path / "consumequeue/t/1").iterdir()).write_bytes(bytes(200))


def last_entry(path: Path) -> None:
    with max((path / "consumequeue/t/1").iterdir()).open("r+b") as file:
        file.seek(4 * CQ_ENTRY.itemsize)
        file.write(bytes(CQ_ENTRY.itemsize))


def index(path: Path) -> None:
    shutil.rmtree(path / "index")


def first_index_file(path: Path) -> None:
    min((path / "index").iterdir()).unlink()


def ends(path: Path) -> None:
    (path / "queueends").unlink()


def damaged_ends(path: Path) -> None:
    (path / "queueends").write_bytes(b"[{")


def endless_ends(path: Path) -> None:
    (path / "queueends").write_text('{"version": 1, "logOffset": 1e999, "queues": [["t", 0, 1e999]], "index": {}}')


def deep_ends(path: Path) -> None:
    (path / "queueends").write_bytes(b"[" * 100_000)


Damage = Callable[[Path], None]
DAMAGES: list[Damage] = [
    *(folder, moved_folder, topic, all_queues, queue_files, first_file, last_file, zeroed, last_entry),
    *(index, first_index_file, ends, damaged_ends, endless_ends, deep_ends),
]


@pytest.mark.parametrize("lost", [*range(9), 24, 37, 62])
def test_an_entry_lost_behind_the_known_end_gives_no_offset_twice(tmp_path: Path, lost: int) -> None:
    """A killed writer kept no ends since it was opened; a search for the end may meet what is damaged before it."""
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
def test_an_index_that_goes_while_a_store_is_open_is_made_anew_by_the_next(path: Path, damage: Damage) -> None:
    with MessageStore.open(path) as store:
        damage(path)
        for n in range(75, 200):
            store.put(Message("t", b"%d" % n, keys=(f"k{n}",)))
        assert store.query("t", "k199")[0].body == b"199"
    with MessageStore.open(path) as store:
        assert [store.query("t", f"k{n}")[0].body for n in range(200)] == [b"%d" % n for n in range(200)]
        files = len(list((path / "index").iterdir()))
    inodes = {file.stat().st_ino for file in (path / "index").iterdir()}
    MessageStore.open(path).close()
    assert {file.stat().st_ino for file in (path / "index").iterdir()} == inodes, "made once"
    assert len(inodes) == files > 2


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("killed", [False, True])
def test_what_is_gone_is_made_anew(path: Path, damage: Damage, killed: bool) -> None:
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


@pytest.fixture(params=[2, 3], ids=["in a file", "at a file's end"])
def cleaned(path: Path, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """Retention took some segments, and files of queue 1, which begins at this offset now."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(200), queue_id=n % 3) for n in range(75)])
        assert store.clean(forced=True, config=replace(SMALL, deleteFileBatchMax=request.param)).queues
        return path, store.min_offset("t", 1)


@pytest.mark.parametrize("removed", [1, 2])
def test_a_first_file_that_is_gone_behind_what_retention_took(cleaned: tuple[Path, int], removed: int) -> None:
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


def test_a_first_file_that_retention_took_is_not_missed(cleaned: tuple[Path, int]) -> None:
    """Also where the next begins with the first record that the log has of its queue."""
    path, first = cleaned
    last = max((path / "commitlog").iterdir())
    content = bytearray(last.read_bytes())
    content[88] ^= 1  # of a body: whoever walks finds this
    last.write_bytes(content)
    with MessageStore.open(path) as store:
        assert store.min_offset("t", 1) == first


def test_nothing_is_made_anew_where_nothing_is_gone(path: Path) -> None:
    """Else every opening walked the whole log."""
    log = path / "commitlog" / segment_name(0)
    content = bytearray(log.read_bytes())
    content[88] ^= 1  # of a body: whoever walks finds this
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
def test_what_a_killed_writer_appended_is_noticed_too(path: Path, damage: Damage) -> None:
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


def damage_entry(path: Path, offset: int, data: bytes) -> None:
    file = path / "consumequeue/t/1" / segment_name(offset // ENTRIES * 200)
    with file.open("r+b") as opened:
        opened.seek(offset % ENTRIES * CQ_ENTRY.itemsize)
        opened.write(data)


def missing_in_the_middle(path: Path) -> None:
    (path / "consumequeue/t/1" / segment_name(200)).unlink()


def size_of_nothing(path: Path) -> None:
    damage_entry(path, 24, bytes(11) + b"\1")


def points_back(path: Path) -> None:
    damage_entry(path, 7, (path / "consumequeue/t/1" / segment_name(0)).read_bytes()[60:80])


@pytest.mark.parametrize("damage", [missing_in_the_middle, size_of_nothing, points_back])
def test_what_the_errors_say_helps(path: Path, damage: Damage) -> None:
    """Literally: the store is closed, the folder moved out, the store opened for writing."""
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


def hold(path: Path, end: int | None = None, **changes: object) -> bool:
    """Whether the kept ends, with `changes`, are those of the directory with a log up to `end`, its own by default."""
    found = QueueEnds.read(path)
    assert found is not None
    ends = replace(found, **changes)  # type: ignore[arg-type]
    log, files = CommitLog(path, SMALL.mappedFileSizeCommitLog, writable=False), Index.of(path, SMALL, writable=False)
    return ends.hold(path, log, files, SMALL.mappedFileSizeConsumeQueue, {"t"}, found.at if end is None else end)


def test_ends_of_another_log_do_not_hold(path: Path) -> None:
    with MessageStore.open(path) as store:
        end, last = store.confirm_offset, store.get_message("g", "t", 2, 24).messages[0].physical_offset
    assert hold(path)
    assert hold(path, at=last, of={("t", 2): 24}), "what was appended since is read from the log"
    assert not hold(path, end=last), "the log ends before"
    assert not hold(path, end=last, of={}), "it does, whatever the queues say"
    assert not hold(path, end=last, at=last), "an entry of a record that is not there"
    assert not hold(path, of={("t", 2): 26})
    log = path / "commitlog" / segment_name(last // 4096 * 4096)
    content = bytearray(log.read_bytes())
    content[last % 4096 + 4] ^= 1  # of its magic
    log.write_bytes(content)
    assert not hold(path, at=last), f"{last} to {end} is no record"


def test_an_index_file_may_be_missing_when_its_records_are(path: Path) -> None:
    (path / "commitlog" / segment_name(0)).unlink()
    first_byte = CommitLog(path, 4096, writable=False).min_offset()
    assert hold(path, index={"20260101000000000": first_byte - 1})
    assert not hold(path, index={"20260101000000000": first_byte})


def test_what_others_flushed_is_read_from_the_log(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        end, middle = reader.confirm_offset, reader.get_message("g", "t", 0, 10).messages[0].physical_offset
    log, ours = CommitLog(path, 4096, writable=False), {("t", 0): (10, 25), ("t", 1): (10, 25)}
    for _ in range(2):
        ends = QueueEnds(0, {})
        ends.follow(middle, end, ours)
        assert ends.complete(log, None)
        assert ends.of == {("t", 0): 25, ("t", 1): 25, ("t", 2): 10}
        assert ends.complete(log, None), "nothing is missing any more"
    ends = QueueEnds(0, {})
    ends.follow(middle, end, ours)
    assert ends.complete(log, QueueEnds(middle, {("t", 2): 9})), "what another one wrote is not read again"
    assert ends.of == {("t", 0): 25, ("t", 1): 25, ("t", 2): 9}


def test_what_cannot_be_read_is_not_asked_for_with_each_flush(path: Path) -> None:
    log = path / "commitlog" / segment_name(0)
    log.write_bytes(bytes(4096))
    ends = QueueEnds(0, {})
    ends.follow(4096, 64 << 20, {})
    assert ends.is_due
    assert not ends.complete(CommitLog(path, 4096, writable=False), None)
    assert not ends.is_due


def test_they_are_written_now_and_then_and_where_there_is_room(path: Path) -> None:
    index, far = Index.of(path, SMALL, writable=False), 1 << 40
    QueueEnds(far, {("t", 0): 25}).write(path, index)
    ends = QueueEnds.read(path)
    assert ends is not None
    assert not ends.is_due
    ends.follow(far, far + (64 << 20) - 1, {})
    assert not ends.is_due
    ends.follow(ends.at, ends.at + 1, {})
    assert ends.is_due
    ends.write(path / "nowhere", index)
    assert ends.is_due
    ends.write(path, index)
    assert not ends.is_due


def test_no_offset_is_used_twice_behind_a_damaged_entry(path: Path) -> None:
    """A search for the end would stop at any of these."""
    for offset in range(24):
        damage_entry(path, offset, bytes(20))
    with MessageStore.open(path) as store:
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 25


def test_a_topic_that_a_broker_deleted_stays_deleted(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("other", 1)
        store.put(Message("other", b"stays"))
    shutil.rmtree(path / "consumequeue/t")
    topics = json.loads((path / "config/topics.json").read_text())
    del topics["topicConfigTable"]["t"]
    (path / "config/topics.json").write_text(json.dumps(topics))
    with MessageStore.open(path) as store:
        assert list(store.topics()) == ["other"]


@pytest.mark.parametrize("count", [25, 30], ids=["in a file", "at a file's end"])
@pytest.mark.parametrize("damage", [folder, queue_files, last_file, zeroed])
def test_a_queue_without_records_goes_on_where_it_ended(tmp_path: Path, damage: Damage, count: int) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=replace(SMALL, deleteFileBatchMax=100)) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", b"gone", queue_id=1) for _ in range(count)])
        store.put_many([Message("t", bytes(100), queue_id=0) for _ in range(60)])
        store.clean(forced=True)
        assert store.offsets("t", 1) == (count, count)
    damage(path)
    for more in range(2):
        with MessageStore.open(path) as store:
            assert store.offsets("t", 1) == (count, count + more)
            assert store.put(Message("t", b"next", queue_id=1)).queue_offset == count + more
    assert not verify(path).findings


@pytest.mark.parametrize("killed", [False, True])
def test_a_topic_that_a_broker_deleted_begins_anew(path: Path, killed: bool) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("other", 1)
        store.put(Message("other", b"stays"))
    shutil.rmtree(path / "consumequeue/t")
    table = path / "config/topics.json"
    table.write_text(json.dumps({**json.loads(table.read_text()), "topicConfigTable": {}}))
    with MessageStore.open(path) as store:
        store.create_topic("t", 3)
        assert store.put(Message("t", b"new", queue_id=1)).queue_offset == 0
        with MessageStore.open(path) as second:
            assert second.put(Message("t", b"newer", queue_id=1)).queue_offset == 1
            assert second.put(Message("t", b"newer", queue_id=2)).queue_offset == 0
        if killed:
            copied = path.parent / "killed"
            shutil.copytree(path, copied)
            path = copied
    with MessageStore.open(path) as store:
        assert [message.body for message in store.get_message("g", "t", 1, 0).messages] == [b"new", b"newer"]
        assert store.put(Message("t", b"newest", queue_id=1)).queue_offset == 2


def test_two_writers_know_the_ends_of_both(path: Path) -> None:
    with MessageStore.open(path) as first:
        with MessageStore.open(path) as second:
            for n in range(20):
                (first, second)[n % 2].put(Message("t", b"%d" % n, queue_id=n % 2))
                if n % 5 == 0:
                    (first, second)[n % 3 % 2].flush()
        first.put(Message("t", b"last", queue_id=2))
        expected = bodies(first)
    kept = json.loads((path / "queueends").read_text())
    assert kept["queues"] == [["t", 0, 35], ["t", 1, 35], ["t", 2, 26]]
    folder(path)
    with MessageStore.open(path) as store:
        assert bodies(store) == expected


def test_ten_thousand_queues_are_looked_at_in_a_moment(tmp_path: Path) -> None:
    path, count = tmp_path / "mq", int(os.environ.get("QUEUES", "500"))
    with MessageStore.open(path, config=StoreConfig(mappedFileSizeConsumeQueue=200)) as store:
        store.create_topic("t", count)
        store.put_many([Message("t", b"", queue_id=n) for n in range(count)])
    begin = time.perf_counter()
    MessageStore.open(path).close()
    print(f"{count:,} queues: {1000 * (time.perf_counter() - begin):.0f} ms")
    shutil.rmtree(path / "consumequeue/t" / str(count // 2))
    with MessageStore.open(path) as store:
        assert store.offsets("t", count // 2) == (0, 1)


@pytest.mark.parametrize("field", ["begin_offset", "end_offset", "next_entry"])
@pytest.mark.parametrize("bit", [2, 10, 20])
@pytest.mark.parametrize("file", [min, max])
@pytest.mark.parametrize("killed", [False, True])
def test_an_index_file_that_says_what_it_has_not_is_made_anew(
    path: Path, file: Callable[[list[Path]], Path], field: str, bit: int, killed: bool
) -> None:
    """One that says that it goes further takes no more keys: they were missed without a word."""
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
