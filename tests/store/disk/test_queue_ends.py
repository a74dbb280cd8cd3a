from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store import CorruptStore, Message, MessageStore, StoreConfig
from store.api.message_store import delete_topic
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.disk.index import Index
from store.disk.queue_ends import QueueEnds
from store.format.layout import segment_name
from store.upkeep.verify import verify
from tests.children import ended
from tests.end_to_end.test_kill import bodies
from tests.store.disk.damages import SMALL, folder, recorded_ends
from tests.store.upkeep.crashed import another_boot


def agree(path: Path, end: int | None = None, **changes: object) -> bool:
    """Return whether the saved ends, with `changes`, match the directory with a log up to `end` (default: its own)."""
    found = QueueEnds.read(path)
    assert found is not None
    ends = replace(found, **changes)  # type: ignore[arg-type]
    log, files = CommitLog(path, SMALL.mappedFileSizeCommitLog, writable=False), Index.of(path, SMALL, writable=False)
    return ends.match_files(log, files, SMALL.mappedFileSizeConsumeQueue, found.at if end is None else end)


def test_ends_of_another_log_do_not_match(path: Path) -> None:
    with MessageStore.open(path) as store:
        end, last = store.confirm_offset, store.get_message("g", "t", 2, 24).messages[0].physical_offset
    assert agree(path)
    others = {("t", 0): 25, ("t", 1): 25}
    assert agree(path, at=last, of={**others, ("t", 2): 24}), "later messages are read from the log"
    assert not agree(path, end=last), "the log ends before"
    assert not agree(path, end=last, of={}), "the log ends before, for any queues"
    assert not agree(path, end=last, at=last), "an entry of a missing record"
    assert not agree(path, of={("t", 2): 26})
    log = path / "commitlog" / segment_name(last // 4096 * 4096)
    content = bytearray(log.read_bytes())
    content[last % 4096 + 4] ^= 1
    log.write_bytes(content)
    assert not agree(path, at=last), f"{last} to {end} is no record"


@pytest.mark.parametrize(
    ("newer", "had"),
    [("consumequeue", 25), ("consumequeue", 30), ("consumequeue", 0), ("index", 25)],
    ids=["in a file", "in the next file", "a whole queue", "keys"],
)
def test_files_newer_than_the_log_are_replaced(path: Path, tmp_path: Path, newer: str, had: int) -> None:
    """A newer queue or index, for example from a backup, would point to other records once the log reaches its offsets.

    had: messages of the queue that got more.
    """
    live, queue_id = tmp_path / "live", 2 if had else 3
    with MessageStore.open(path) as store:
        store.create_topic("t", 4)
        store.put_many([Message("t", b"some", queue_id=2)] * (had - 25))
    shutil.copytree(path, live)
    with MessageStore.open(live) as store:
        store.put_many([Message("t", bytes(300), keys="later", queue_id=queue_id)] * 4)
    shutil.rmtree(path / newer)
    shutil.copytree(live / newer, path / newer)
    with MessageStore.open(path) as store:
        before = bodies(store)
        store.put_many([Message("t", b"new", keys="new", queue_id=0)] * 40)
        assert [message.body for message in store.query("t", "new")] == [b"new"] * 40
        assert list(store.query("t", "later")) == []
        assert store.max_offset("t", queue_id) == had
        assert {place: body for place, body in bodies(store).items() if body != b"new"} == before
    assert verify(path).findings == []


@pytest.mark.parametrize(
    "step", [(PublishedEnd, "publish"), (CommitLog, "write")], ids=["whole", "of which there is nothing"]
)
@pytest.mark.parametrize("newer", ["consumequeue", "index"])
def test_files_newer_than_a_log_with_a_dead_append_are_replaced(
    path: Path, tmp_path: Path, newer: str, step: tuple[type, str]
) -> None:
    live = tmp_path / "live"
    with MessageStore.open(path) as store:
        store.create_topic("t", 4)
    child = os.fork()
    if child == 0:
        killed = MessageStore.open(path)
        setattr(*step, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        killed.put_many([Message("t", b"dead", queue_id=n % 2) for n in range(3)])
    assert ended(child) == -signal.SIGKILL
    shutil.copytree(path, live)
    with MessageStore.open(live) as store:
        store.put_many([Message("t", bytes(300), keys="later", queue_id=n % 4) for n in range(16)])
    shutil.rmtree(path / newer)
    shutil.copytree(live / newer, path / newer)
    with MessageStore.open(path) as store:
        before = bodies(store)
        store.put_many([Message("t", b"new", keys="new", queue_id=0)] * 60)
        assert len(store.query("t", "new", 100)) == 60
        assert list(store.query("t", "later")) == []
        assert {place: body for place, body in bodies(store).items() if body != b"new"} == before
        assert [store.max_offset("t", queue) for queue in range(4)] == [85, 25, 25, 0]
    assert verify(path).findings == []


@pytest.mark.parametrize("reboot", [True, False])
@pytest.mark.parametrize(
    ("noted", "damaged"),
    [('["t", 1, 35]', '["t", 1, 15]'), ('["t", 1, 35]', '["t", 1, 30]'), ('["t", 1, 35]', '["u", 1, 35]')],
    ids=["in a file", "at a file's end", "another topic"],
)
def test_wrong_saved_ends_make_no_queue_shorter(path: Path, noted: str, damaged: str, reboot: bool) -> None:
    """An older version wrote the ends without a checksum. Data that was on the device before a reboot is not checked
    again."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", b"more", queue_id=1)] * 10)
        before = bodies(store)
    content = json.dumps(recorded_ends(path))
    assert noted in content
    (path / "queueends").write_text(content.replace(noted, damaged))
    if reboot:
        another_boot(path)
    (path / "abort").touch()
    with MessageStore.open(path) as store:
        assert bodies(store) == before
        assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 35


@pytest.fixture
def emptied(path: Path) -> Path:
    """Retention deleted all 25 messages of queue 1; the machine restarted since."""
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(300), queue_id=2 * (n % 2)) for n in range(60)])
        store.clean(forced=True)
        assert store.offsets("t", 1) == (25, 25)
        assert store.offsets("t", 0)[0] < 55
    another_boot(path)
    return path


def test_any_damage_to_the_saved_ends_is_noticed(emptied: Path) -> None:
    """Only `queueends` holds the next offset of a queue without messages, so one wrong digit must be detected."""
    sound = (emptied / "queueends").read_bytes()
    number = sound.index(b'["t",1,25]') + len(b'["t",1,')
    for at in (number, number + 1, sound.index(b"logOffset") + 11, len(sound) - 2):
        damaged = bytearray(sound)
        damaged[at] = b"1234567890"[damaged[at] - ord("0")]
        path = emptied.parent / f"damaged{at}"
        shutil.copytree(emptied, path)
        (path / "queueends").write_bytes(damaged)
        assert [(where, remedy) for where, _, remedy in verify(path).findings] == [("queueends", "verify --repair")]
        with pytest.warns(RuntimeWarning, match="queueends: .*damaged"), MessageStore.open(path) as store:
            assert store.put(Message("t", b"next", queue_id=1)).queue_offset == 25
        assert verify(path).findings == []


@pytest.mark.parametrize(
    ("name", "other"),
    [('"t"', "5"), ('"t"', '"../t"'), ('"t"', '"%LMQ%\\ud800"'), ('"index":{', '"index":{"\\u0000":1, ')],
)
def test_invalid_names_in_the_saved_ends_are_damage(path: Path, name: str, other: str) -> None:
    ends = path / "queueends"
    ends.write_text(ends.read_text().rpartition(', "crc"')[0].replace(name, other) + "}")
    with pytest.raises(CorruptStore, match=r"queueends: .*damaged"):
        QueueEnds.sound(path)
    with pytest.warns(RuntimeWarning, match="queueends: .*damaged"), MessageStore.open(path) as store:
        assert store.max_offset("t", 0)


def test_lost_queue_with_damaged_ends_is_an_error(emptied: Path) -> None:
    """Opening fails until a user deletes the file, which states that the queue had no messages."""
    shutil.rmtree(emptied / "consumequeue/t/1")
    sound = (emptied / "queueends").read_bytes()
    (emptied / "queueends").write_bytes(sound.replace(b'["t",1,25]', b'["t",1,35]'))
    with (
        pytest.warns(RuntimeWarning, match="queueends: .*damaged"),
        pytest.raises(CorruptStore, match=r"1 queue .* topic t, queue 1\. Restore .* delete it"),
    ):
        MessageStore.open(emptied)
    copied = emptied.parent / "copied"
    shutil.copytree(emptied, copied)
    for path, offset in ((emptied, 25), (copied, 0)):
        (path / "queueends").write_bytes(sound) if offset else (path / "queueends").unlink()
        with MessageStore.open(path) as store:
            assert store.put(Message("t", b"next", queue_id=1)).queue_offset == offset


def test_queue_files_of_a_deleted_topic_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    for body in (b"old", b"new"):
        with MessageStore.open(path) as store:
            store.create_topic("t", 1)
            store.put_many([Message("t", body)] * 5)
        if body == b"old":
            shutil.copytree(path / "consumequeue", tmp_path / "older")
            delete_topic(path, "t")
    shutil.rmtree(path / "consumequeue")
    shutil.copytree(tmp_path / "older", path / "consumequeue")
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == (5, 10)
        assert {message.body for message in store.get_message("g", "t", 0, 5).messages} == {b"new"}
    assert verify(path).findings == []


def test_index_file_without_records_may_be_missing(path: Path) -> None:
    (path / "commitlog" / segment_name(0)).unlink()
    first_byte = CommitLog(path, 4096, writable=False).min_offset()
    assert agree(path, index={"20260101000000000": first_byte - 1})
    assert not agree(path, index={"20260101000000000": first_byte})


def test_ends_flushed_by_others_are_read_from_the_log(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        end, middle = reader.confirm_offset, reader.get_message("g", "t", 0, 10).messages[0].physical_offset
    log, ours = CommitLog(path, 4096, writable=False), {("t", 0): (10, 25), ("t", 1): (10, 25)}
    for _ in range(2):
        ends = QueueEnds(0, {})
        ends.follow(middle, end, ours)
        assert ends.complete(log, QueueEnds(0, {}))
        assert ends.of == {("t", 0): 25, ("t", 1): 25, ("t", 2): 10}
        assert ends.complete(log, QueueEnds(0, {})), "nothing is missing anymore"
    ends = QueueEnds(0, {})
    ends.follow(middle, end, ours)
    assert ends.complete(log, QueueEnds(middle, {("t", 2): 9})), "records that another store saved are not read again"
    assert ends.of == {("t", 0): 25, ("t", 1): 25, ("t", 2): 9}


def test_unreadable_log_is_not_read_at_each_flush(path: Path) -> None:
    log = path / "commitlog" / segment_name(0)
    log.write_bytes(bytes(4096))
    ends, none = QueueEnds(0, {}), Index.of(path / "nowhere", SMALL, writable=False)
    ends.follow(4096, 64 << 20, {})
    assert ends.is_due(none)
    assert not ends.complete(CommitLog(path, 4096, writable=False), QueueEnds(0, {}))
    assert not ends.is_due(none)


def test_ends_are_saved_now_and_then(path: Path) -> None:
    index, far = Index.of(path, SMALL, writable=False), 1 << 40
    QueueEnds(far, {("t", 0): 25}).write(path, index)
    ends = QueueEnds.read(path)
    assert ends is not None
    assert not ends.is_due(index)
    ends.follow(far, far + (64 << 20) - 1, {})
    assert not ends.is_due(index)
    ends.follow(ends.at, ends.at + 1, {})
    assert ends.is_due(index)
    ends.write(path / "nowhere", index)
    assert ends.is_due(index)
    ends.write(path, index)
    assert not ends.is_due(index)


def test_foreign_file_in_the_index_does_not_stop_flush_or_close(path: Path) -> None:
    stranger = path / "index" / "20200101000000000"
    with MessageStore.open(path) as store:
        stranger.write_bytes(b"none of ours")
        store.put(Message("t", b"x", queue_id=0))
        store.flush()
    stranger.unlink()
    with MessageStore.open(path) as store:
        assert store.max_offset("t", 0) == 26


def test_index_file_without_own_records_is_not_saved_each_time(path: Path) -> None:
    index, keys = Index.of(path, SMALL, writable=False), tuple(map(str, range(2 * 49)))
    with MessageStore.open(path) as store:
        store.put(Message("t", b"x", keys=keys, queue_id=0))
        store.flush()
        ends = QueueEnds.read(path)
        assert ends is not None
        assert set(index.names()) - ends.index.keys()
        assert not ends.is_due(index)
        assert index.last_keys(ends.at, max(ends.index)).keys() == {max(ends.index)}, "older files are not read"


def test_topic_deleted_by_a_broker_stays_deleted(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.create_topic("other", 1)
        store.put(Message("other", b"stays"))
    shutil.rmtree(path / "consumequeue/t")
    topics = json.loads((path / "config/topics.json").read_text())
    del topics["topicConfigTable"]["t"]
    (path / "config/topics.json").write_text(json.dumps(topics))
    with MessageStore.open(path) as store:
        assert list(store.topics()) == ["other"]


@pytest.mark.parametrize("killed", [False, True])
def test_topic_deleted_by_a_broker_restarts_at_0(path: Path, killed: bool) -> None:
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


def test_saved_ends_include_both_writers(path: Path) -> None:
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


def test_overtaken_writer_saves_no_foreign_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own offset with the other writer's ends would make the queues look shorter at that offset."""
    with MessageStore.open(path) as first, MessageStore.open(path) as second:
        first.put_many([Message("t", b"first", keys=(f"f{n}",), queue_id=0) for n in range(100)])
        follow = QueueEnds.follow

        def overtaken(*arguments: Any) -> None:
            monkeypatch.undo()
            second.put_many([Message("t", b"second", queue_id=0) for _ in range(5)])
            assert second.clean(asked=True, forced=True).log, "clean saves the ends before it deletes"
            follow(*arguments)

        monkeypatch.setattr(QueueEnds, "follow", overtaken)
        first.flush()
        kept = QueueEnds.read(path)
        assert kept is not None
        assert (kept.at, kept.of["t", 0]) == (second.confirm_offset, 130)


def test_ten_thousand_queues_are_checked_fast(tmp_path: Path) -> None:
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
