from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, Message, MessageStore, NotAStore, OffsetLost, StoreConfig
from store.api.message_store import delete_topic
from store.format.layout import CQ_ENTRY, RECORD_HEADER, field_offset, segment_name
from store.upkeep.findings import MAX_FINDINGS, Finding
from store.upkeep.verify import repair, verify
from tests.store.upkeep.crashed import another_boot

GOLDEN = Path(__file__).parents[2] / "golden"
SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)
QUEUE = "consumequeue/t/0"
BODY = field_offset(RECORD_HEADER, "body_length") + 4


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.jsonl")))
def test_directories_of_rocketmq_have_no_findings(name: str) -> None:
    seen: list[tuple[int, int]] = []
    slots, entries = (20, 30) if name.startswith("index-") else (100, 400)
    sizes = StoreConfig(maxHashSlotNum=slots, maxIndexNum=entries)
    report = verify(GOLDEN / name, lambda done, total: seen.append((done, total)), sizes)
    assert report.findings == []
    assert report.records >= 3
    assert seen[-1] == (report.log_bytes, report.log_bytes)


def filled(path: Path) -> Path:
    """Queue 0 has 30 messages, three a segment; queue 1 has 15 small ones between them."""
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        for number in range(30):
            store.put(Message("t", bytes([number]) * 1000, queue_id=0))
            if number % 2:
                store.put(Message("t", b"small", queue_id=1, tags="a"))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "mq")


def entry(path: Path, offset: int, queue: str = QUEUE) -> np.void:
    data = (path / queue / segment_name(offset // 10 * 200)).read_bytes()
    found: np.void = np.frombuffer(data, CQ_ENTRY)[offset % 10]
    return found


def patch(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(data)


def patch_log(path: Path, record: int, position: int, data: bytes) -> int:
    """Write `data` within a message of queue 0; return the log offset of its record."""
    at = int(entry(path, record)["physical_offset"])
    patch(path / "commitlog" / segment_name(at - at % 4096), at % 4096 + position, data)
    return at


def patch_entry(path: Path, offset: int, data: bytes, queue: str = QUEUE) -> None:
    patch(path / queue / segment_name(offset // 10 * 200), offset % 10 * CQ_ENTRY.itemsize, data)


def test_intact_store_has_no_findings(path: Path) -> None:
    report = verify(path)
    assert report.findings == []
    assert (report.records, report.queues) == (45, 2)
    with MessageStore.open(path) as store:
        assert verify(path).findings == []
        assert store.clean(forced=True).queues
        assert verify(path).findings == []
        store.put(Message("t", b"x", queue_id=2))
    assert verify(path).findings == []


def test_empty_store_has_no_findings(tmp_path: Path) -> None:
    MessageStore.open(tmp_path / "mq").close()
    assert verify(tmp_path / "mq").findings == []
    with pytest.raises(NotAStore):
        verify(tmp_path / "other")


Damage = Callable[[Path], object]
DAMAGED_RECORDS: dict[str, tuple[Damage, str]] = {
    "body": (lambda path: patch_log(path, 7, BODY + 5, b"!"), r"the body's CRC is 0x\w+, but 0x\w+ is stored"),
    "magic": (lambda path: patch_log(path, 7, 4, b"!"), "the record's magic is 0x21a320a7"),
    "length": (lambda path: patch_log(path, 7, 0, b"\x7f"), r"no record has a length of 21\d+"),
    "no length": (lambda path: patch_log(path, 7, 0, bytes(4)), "no record has a length of 0"),
    "place": (lambda path: patch_log(path, 7, 28, b"\x01"), r"the record names log offset \d{15,}"),
    "topic": (lambda path: patch_log(path, 7, BODY + 1000 + 1, b"/"), "'/' cannot be a topic"),
}


@pytest.mark.parametrize("case", DAMAGED_RECORDS)
def test_damaged_record_is_found(path: Path, case: str) -> None:
    damage, what = DAMAGED_RECORDS[case]
    at = damage(path)
    assert isinstance(at, int)
    report = verify(path)
    in_log, in_queue = report.findings
    assert in_log.where == f"commitlog/{segment_name(at - at % 4096)} @ {at % 4096}"
    assert re.fullmatch(rf"{what}; 1092 bytes up to log offset {at + 1092} cannot be read", in_log.what)
    assert in_log.remedy == "restore the file from a copy"
    where = "topic t, queue 0, offset 7"
    assert in_queue == Finding(where, "1 entries have no sound record in the log", "restore the file from a copy")
    assert report.records == 44
    with pytest.raises(CorruptRecord, match=f"the record at log offset {at} is damaged"):
        repair(path)
    assert verify(path).findings == report.findings


def test_record_with_a_wrong_time_is_found(path: Path) -> None:
    at = patch_log(path, 7, field_offset(RECORD_HEADER, "store_timestamp"), b"\xff")
    (finding,) = verify(path).findings
    assert finding.where == f"commitlog/{segment_name(at - at % 4096)} @ {at % 4096}"
    assert finding.what == "1 records have impossible store times, from here on"


def test_missing_segment_is_found(path: Path) -> None:
    (path / "commitlog" / segment_name(4096)).unlink()
    in_log, *in_queues = verify(path).findings
    assert in_log.where == f"commitlog/{segment_name(4096)} @ 0"
    assert in_log.what == "the segment is missing; 4096 bytes up to log offset 8192 cannot be read"
    assert [finding.what for finding in in_queues] == [
        "3 entries have no sound record in the log",
        "2 entries have no sound record in the log",
    ]


def test_number_of_findings_is_limited(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.put_many([Message("t", b"x", queue_id=0) for _ in range(MAX_FINDINGS + 200)])
    for record in range(30, 30 + MAX_FINDINGS + 100):
        patch_log(path, record, 4, b"!")
    assert len(verify(path).findings) == MAX_FINDINGS


def test_bytes_after_the_log_are_found(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        end = store.confirm_offset
    patch(path / "commitlog" / segment_name(end - end % 4096), end % 4096 + 100, b"x")
    (finding,) = verify(path).findings
    assert finding.where == f"commitlog/{segment_name(end - end % 4096)} @ {end % 4096}"
    repair(path)
    assert verify(path).findings == []


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("watermark", b"nonsense", "8 bytes, expected 4096"),
        (f"commitlog/{segment_name(0)}", b"short", "5 bytes, but segments of this store have 4096"),
        (f"{QUEUE}/{segment_name(0)}", b"short", "5 bytes, but segments of this store have 200"),
        ("config/topics.json", b"{nonsense", "not JSON"),
        ("config/consumerOffset.json", b"{nonsense", "not JSON"),
        ("config/topics.json", b'{"topicConfigTable": []}', "topicConfigTable is a list, not an object"),
        ("config/consumerOffset.json", b'{"offsetTable": {"t@g": {"0": true}}}', "t@g['0'] is true, not a number"),
        ("config/subscriptionGroup.json", b'{"subscriptionGroupTable": 5}', "subscriptionGroupTable is 5"),
        ("config/delayOffset.json", b'{"offsetTable": {"1": "x"}}', 'is "x", not a number'),
    ],
)
def test_wrong_files_are_found(path: Path, file: str, content: bytes, what: str) -> None:
    (path / file).write_bytes(content)
    (path / f"{file}.bak").unlink(missing_ok=True)
    findings = [finding.what for finding in verify(path).findings]
    assert what in findings[0]
    assert len(set(findings)) == len(findings)


WRITER = """
import sys
from store import Message, MessageStore
with MessageStore.open(sys.argv[1]) as store:
    for number in range(400):
        store.put_many([Message("t", bytes(300), queue_id=number % 3) for _ in range(7)])
        if number % 10 == 0:
            store.clean(forced=True)
"""


def test_concurrent_writes_and_retention_give_no_findings(path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=Path(__file__).parents[3])
    looks = 0
    while writer.poll() is None:
        assert verify(path).findings == []
        MessageStore.open(path, read_only=True).close()
        looks += 1
    assert writer.returncode == 0
    assert looks
    assert verify(path).findings == []


@pytest.mark.parametrize("again", [False, True])
def test_topic_deleted_during_the_check_is_not_reported(path: Path, again: bool) -> None:
    patch_log(path, 20, BODY + 5, b"!")
    expected = verify(path).findings
    shutil.copytree(path, copy := path.parent / "copy")
    looks = itertools.count()

    def delete(done: int, total: int) -> None:
        if next(looks) == 0:
            delete_topic(copy, "u")
            if again:
                with MessageStore.open(copy) as store:
                    store.create_topic("u", 1)
                    store.put(Message("u", b"new"))

    with MessageStore.open(copy) as store:
        store.create_topic("u", 1)
        store.put_many([Message("u", bytes(300)) for _ in range(40)])
    assert verify(copy).findings == expected
    assert verify(copy, delete).findings == expected
    assert next(looks) > 1
    assert verify(copy).findings == expected


@pytest.mark.parametrize("abort", [False, True])
def test_damaged_end_of_a_cleanly_stopped_broker_is_found(path: Path, abort: bool) -> None:
    """If the broker was killed, its end may be torn, and the log ends there."""
    (path / "watermark").unlink()
    if abort:
        (path / "abort").touch()
    at = patch_log(path, 28, BODY + 5, b"!")
    findings = verify(path).findings
    if abort:
        assert findings == []
        return
    (finding,) = findings
    assert finding.where == f"commitlog/{segment_name(at - at % 4096)} @ {at % 4096}"
    assert finding.what.startswith("no sound record from here on, although the last writer closed")
    assert finding.remedy == "restore the file from a copy"
    with pytest.warns(RuntimeWarning, match="These bytes are truncated"):
        repair(path)
    assert verify(path).findings == []


DAMAGED_BELOW: dict[str, Callable[[Path], object]] = {
    "body": lambda path: patch_log(path, 28, BODY + 5, b"!"),
    "length": lambda path: patch_log(path, 28, 0, bytes(4)),
    "segment": lambda path: sorted((path / "commitlog").iterdir())[-1].unlink(),
}


@pytest.mark.parametrize("case", DAMAGED_BELOW)
def test_damage_of_flushed_data_is_no_end_after_a_crash(path: Path, case: str) -> None:
    """Neither for this process nor for readers, which would silently see fewer messages."""
    (path / "abort").touch()
    another_boot(path)
    DAMAGED_BELOW[case](path)
    in_log, in_queue, *_ = verify(path).findings
    assert "cannot be read" in in_log.what
    assert "no sound record in the log" in in_queue.what
    with MessageStore.open(path, read_only=True) as store:
        assert [store.max_offset("t", queue) for queue in (0, 1)] == [30, 15]
        with pytest.raises((CorruptRecord, OffsetLost)):
            list(store.scan("t", 0, 27, 30))
