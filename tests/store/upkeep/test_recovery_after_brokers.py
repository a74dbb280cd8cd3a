from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, Message, MessageStore
from store.disk.checkpoint import write_checkpoint
from store.disk.commit_log import CommitLog
from store.disk.dispatch import index_keys, walk
from store.disk.index import Index
from store.format.layout import CQ_ENTRY, segment_name
from store.model.log_protocol import Queue
from store.upkeep.plans import Evidence, Plan, Point, SoundIndexFiles, plan_for
from store.upkeep.verify import repair, verify
from tests.end_to_end.test_kill import bodies, check_log
from tests.store.upkeep.crashed import SIZE, SMALL, put
from tests.takeover import broker


def test_messages_that_a_broker_appended_are_found(path: Path) -> None:
    """A broker does not update the watermark. Its messages are not overwritten."""
    before = (path / "watermark").read_bytes()
    with MessageStore.open(path) as broker:
        put(broker, 7)
        expected = bodies(broker)
    (path / "watermark").write_bytes(before)
    for queue in range(3):
        for file in sorted((path / f"consumequeue/t/{queue}").iterdir())[-1:]:
            os.truncate(file, 160)
            os.truncate(file, 200)
    with MessageStore.open(path) as store:
        assert bodies(store) == expected
        put(store, 3)
    check_log(path, 90)


@pytest.mark.parametrize("killed", [False, True])
def test_queue_continues_after_a_broker_deleted_our_messages(tmp_path: Path, killed: bool) -> None:
    """A queue without messages continues at the offset in the broker's files, not at our older one."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("quiet", 2)
        store.put_many([Message("quiet", b"ours", queue_id=0)] * 3)
    with broker(path, killed=killed) as theirs:
        theirs.put_many([Message("quiet", b"theirs", queue_id=queue) for queue in (0, 0, 1, 1, 1)])
        theirs.create_topic("busy", 1)
        theirs.put_many([Message("busy", bytes(SIZE // 4))] * 40)
        theirs.clean(forced=True)
        assert theirs.bounds([Queue("quiet", 0), Queue("quiet", 1)]) == {
            Queue("quiet", 0): (5, 5),
            Queue("quiet", 1): (3, 3),
        }
    for _ in range(2):
        with MessageStore.open(path) as store:
            assert store.bounds([Queue("quiet", 0), Queue("quiet", 1)]) == {
                Queue("quiet", 0): (5, 5),
                Queue("quiet", 1): (3, 3),
            }
    assert verify(path).findings == []


def test_reader_finds_messages_that_a_broker_appended(path: Path) -> None:
    before = (path / "watermark").read_bytes()
    with MessageStore.open(path) as broker:
        put(broker, 7)
        expected = bodies(broker)
    (path / "watermark").write_bytes(before)
    with MessageStore.open(path, read_only=True) as reader:
        assert bodies(reader) == expected


@pytest.mark.parametrize("puts", [0, 1])
def test_partial_record_of_a_killed_broker_is_removed(path: Path, puts: int) -> None:
    """Otherwise it would stay before the next records, and readers would report possibly missing messages."""
    with MessageStore.open(path, read_only=True) as reader:
        expected = len(bodies(reader))
        end = reader.confirm_offset
    segments = CommitLog(path, SIZE, writable=True).segments
    segments.write(end, segments.read(0, 100))
    (path / "abort").touch()
    with pytest.warns(
        RuntimeWarning, match=f"the log ends at {end}, but bytes that are no sound record .* are truncated"
    ):
        store = MessageStore.open(path)
    with store:
        store.put_many([Message("t", b"a", queue_id=0)] * puts)
        assert len(bodies(store)) == expected + puts
    assert verify(path).findings == []
    check_log(path, expected + puts)


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


def test_checkpoint_limits_the_torn_end_of_a_brokers_log(path: Path) -> None:
    """Before the last segment older than the checkpoint a bad record is damage; after it, a torn end."""
    assert plan_for(Evidence(False, False, True, True, True)) == Plan(
        Point.FIRST_BYTE, Point.CHECKPOINT, SoundIndexFiles.CHECKPOINT
    )
    with MessageStore.open(path, read_only=True) as reader:
        stored = reader.get_message("g", "t", 0, 0, 1).messages[0].store_timestamp
    (path / "watermark").unlink()
    (path / "abort").write_text("1")
    file = path / "commitlog" / segment_name(SIZE)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    write_checkpoint(path, stored + 3000)
    with pytest.raises(CorruptRecord, match="the record at log offset 4096 is damaged"):
        MessageStore.open(path)
    write_checkpoint(path, stored + 2999)
    with MessageStore.open(path) as store:
        assert store.confirm_offset == SIZE


@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("lose", [os.unlink, lambda file: file.write_bytes(bytes(SIZE))])
def test_queues_ahead_of_a_brokers_log_show_a_lost_segment(
    path: Path, lose: Callable[[Path], object], killed: bool, use: Callable[[Path], None]
) -> None:
    """Nothing else shows that the last segment is missing. If the broker was killed, a crash may have lost it."""
    (path / "watermark").unlink()
    if killed:
        (path / "abort").write_text("1")
    last = max((path / "commitlog").iterdir())
    lose(last)
    findings = verify(path).findings
    assert len(findings) == (0 if killed else 3)
    assert all(f"records after log offset {int(last.name)}, where" in finding.what for finding in findings)
    with pytest.warns(RuntimeWarning, match=rf"end at log offset {int(last.name)}, but 3 queues have entries after"):
        use(path)
    assert verify(path).findings == []


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("first_kept", [1, 30, 60])
def test_index_rebuilt_by_a_broker_is_completed(tmp_path: Path, first_kept: int, appends: bool) -> None:
    """RocketMQ 5.5 rebuilds it from where its recovery starts, so the earlier keys are missing."""
    live, path, copy = (tmp_path / name for name in ("live", "mq", "copy"))
    store = MessageStore.open(live, config=SMALL)
    store.create_topic("t", 1)
    store.put_many([Message("t", b"%d" % n, keys=(f"k{n}",)) for n in range(60)])
    shutil.copytree(live, path)
    store.close()
    ours = {name: (path / name).read_bytes() for name in ("watermark", "queueends")}
    count = 60
    if appends:  # a broker updates neither file
        with MessageStore.open(path) as broker:
            broker.put_many([Message("t", b"%d" % n, keys=(f"k{n}",)) for n in range(60, 70)])
        count = 70
        for name, content in ours.items():
            (path / name).write_bytes(content)
    (path / "abort").unlink(missing_ok=True)
    shutil.rmtree(path / "index")
    log, index = CommitLog(path, SIZE, writable=False), Index.of(path, SMALL, writable=True)
    for at in [int(offset) for chunk in walk(log, 0) for offset in chunk.offsets][first_kept : first_kept + 1]:
        for chunk in walk(log, at):
            index.append(*index_keys(chunk, tags=False))
    shutil.copytree(path, copy)
    with MessageStore.open(path) as store:
        assert [store.query("t", f"k{n}")[0].body for n in range(count)] == [b"%d" % n for n in range(count)]
    assert verify(path).findings == []
    repair(copy)
    assert verify(copy).findings == []
