"""Records whose damaged headers name another position or none: only the queue shows the right one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import CorruptRecord, Message, MessageStore, StoreConfig
from store.format.layout import CQ_ENTRY, RECORD_HEADER, SYS_INNER_BATCH, SYS_TRANSACTION_PREPARED, field_offset
from store.upkeep.findings import Report
from store.upkeep.verify import repair, verify
from tests.store.upkeep.crashed import SIZE, another_boot
from tests.store.upkeep.test_damaged import bodies, digests

SMALL = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten messages in each of two queues, in several segments, then one in queue 2."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        for number in range(20):
            store.put(Message("t", bytes([number]) * 500, keys=(f"k{number}",), queue_id=number % 2))
        store.put(Message("t", b"one", keys=("k20",), queue_id=2))
    return path


def entry(path: Path, queue_id: int, offset: int) -> tuple[int, int]:
    """Return log offset and size of a message."""
    file = path / f"consumequeue/t/{queue_id}" / f"{offset // 10 * 200:020d}"
    found: tuple[int, int, int] = np.frombuffer(file.read_bytes(), CQ_ENTRY)[offset % 10].item()
    return found[:2]


def patch(path: Path, at: int, data: bytes) -> None:
    with (path / "commitlog" / f"{at - at % SIZE:020d}").open("r+b") as file:
        file.seek(at % SIZE)
        file.write(data)


def say(path: Path, queue_id: int, offset: int, field: str, value: int) -> None:
    at, _ = entry(path, queue_id, offset)
    patch(path, at + field_offset(RECORD_HEADER, field), np.array(value, RECORD_HEADER[field]).tobytes())


def rename(path: Path, queue_id: int, offset: int) -> None:
    at, size = entry(path, queue_id, offset)
    segment = (path / "commitlog" / f"{at - at % SIZE:020d}").read_bytes()
    patch(path, at - at % SIZE + segment.rindex(b"\x01t", at % SIZE, at % SIZE + size) + 1, b"u")


WRONG: dict[str, tuple[Callable[[Path], None], int, int]] = {
    "another topic": (lambda path: rename(path, 1, 9), 1, 9),
    "prepared": (lambda path: say(path, 1, 9, "sys_flag", SYS_TRANSACTION_PREPARED), 1, 9),
    "inner batch": (lambda path: say(path, 0, 9, "sys_flag", SYS_INNER_BATCH), 0, 9),
    "another queue": (lambda path: say(path, 2, 0, "queue_id", 7), 2, 0),
    "no queue": (lambda path: say(path, 2, 0, "queue_id", -7), 2, 0),
}
USES: dict[str, Callable[[Path], object]] = {
    "repair": repair,
    "without index": lambda path: shutil.rmtree(path / "index"),
    "a broker's": lambda path: (path / "watermark").unlink(),
    "rebooted, without index": lambda path: [another_boot(path), shutil.rmtree(path / "index")],
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("use", USES)
def test_record_with_a_wrong_position_is_kept(path: Path, case: str, use: str) -> None:
    damage, queue_id, offset = WRONG[case]
    damage(path)
    at, _ = entry(path, queue_id, offset)
    before = digests(path)
    findings = [finding for finding in verify(path).findings if "no other entry names it" in finding.what]
    assert [finding.where for finding in findings] == [f"topic t, queue {queue_id}, offset {offset}"]
    assert findings[0].what.startswith(f"the record at log offset {at} says topic ")
    assert findings[0].remedy == "restore the file from a copy"
    said = f"log offset {at} says topic .*, but topic t, queue {queue_id} has it at offset {offset}."
    with pytest.raises(CorruptRecord, match=rf"{said} Restore .*move consumequeue/t/{queue_id} out of"):
        repair(path)
    assert digests(path) == before
    if use != "repair":
        USES[use](path)
        before = digests(path)
        with pytest.raises(CorruptRecord, match=said):
            MessageStore.open(path)
        assert digests(path) == before


def test_first_record_with_a_wrong_position_is_kept(path: Path) -> None:
    """At the begin of the log any record may be the first of a queue."""
    with MessageStore.open(path) as store:
        store.clean(forced=True)
        first = store.min_offset("t", 1)
        assert 0 < first < 10
    say(path, 1, first, "sys_flag", SYS_TRANSACTION_PREPARED)
    with pytest.raises(CorruptRecord, match=rf"but topic t, queue 1 has it at offset {first}\."):
        repair(path)
    assert any("no other entry names it" in finding.what for finding in verify(path).findings)


def test_moving_the_queue_away_resolves_the_error(path: Path) -> None:
    rename(path, 1, 9)
    with pytest.raises(CorruptRecord, match="move consumequeue/t/1 out"):
        repair(path)
    shutil.rmtree(path / "consumequeue/t/1")
    repair(path)
    with MessageStore.open(path, read_only=True) as store:
        assert [len(found) for found in bodies(store).values()] == [10, 9, 1]


@pytest.mark.parametrize("of", [(0, 3), (1, 9), (2, 0)])
def test_extra_entry_is_no_wrong_record(path: Path, of: tuple[int, int]) -> None:
    file = path / "consumequeue/t/0" / f"{200:020d}"
    data = (path / f"consumequeue/t/{of[0]}" / f"{0:020d}").read_bytes()[of[1] * 20 :][:20]
    file.write_bytes((data + data).ljust(200, b"\0"))
    with MessageStore.open(path, read_only=True) as store:
        assert store.max_offset("t", 0) == 12
    (finding,) = verify(path).findings
    assert (finding.where, finding.remedy) == ("topic t, queue 0, offset 10", "verify --repair")
    repair(path)
    assert verify(path).findings == []
    with MessageStore.open(path, read_only=True) as store:
        assert [len(found) for found in bodies(store).values()] == [10, 10, 1]


def test_report_prints_one_line() -> None:
    report = Report(records=1, log_bytes=1000, queues=2)
    assert repr(report) == "<Report of 1 record, 1,000 bytes, 2 queues: 0 findings>"
    report.add("topic t", "wrong", "verify --repair")
    assert repr(report) == "<Report of 1 record, 1,000 bytes, 2 queues: 1 finding, damaged>"


def test_notebook_escapes_findings() -> None:
    report = Report()
    assert report._repr_html_() == "<p>&lt;Report of 0 records, 0 bytes, 0 queues: 0 findings&gt;</p>"
    report.add("topic <script>", "<img src=x onerror=alert(1)>", "<b>")
    shown = report._repr_html_()
    assert shown.count("<tr>") == 2
    assert not any(hostile in shown for hostile in ("<script", "<img", "<b>"))
