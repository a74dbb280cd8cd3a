from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from store import CorruptSegment, Message, MessageStore, OffsetLost
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.queue_files import MAKE_ANEW
from store.disk.queues_in_log import FirstEntry, first_remaining, must_have_first_file, resume_after_lost
from store.format.layout import segment_name
from tests.store.disk.damages import ENTRIES, SMALL, first_file


def parts(path: Path) -> tuple[CommitLog, ConsumeQueue]:
    sizes = SMALL.mappedFileSizeCommitLog, SMALL.mappedFileSizeConsumeQueue
    return CommitLog(path, sizes[0], writable=False), ConsumeQueue.at(path, "t", 1, sizes[1], writable=False)


def test_lost_first_file_is_an_error(path: Path) -> None:
    first_file(path)
    log, queue = parts(path)
    assert first_remaining(log, queue, ENTRIES) == ENTRIES, "no earlier entry is needed"
    said = (
        f"{queue}: entries before {ENTRIES} are lost or damaged, "
        f"because the log has the message of offset 0. {MAKE_ANEW}"
    )
    for offset in (0, ENTRIES - 1):
        with pytest.raises(CorruptSegment) as told:
            first_remaining(log, queue, offset)
        assert str(told.value) == said
    begins = {("t", 1): FirstEntry.of(queue)}
    assert must_have_first_file(log, begins, {"t": begins["t", 1].at}), "the record is of a deleted topic"
    assert not must_have_first_file(log, begins, most=50), "50 bytes are less than a record"
    assert must_have_first_file(log, {("t", 1): begins["t", 1]._replace(at=0)}), "the record is the first of the log"
    assert must_have_first_file(log, {("t", 1): begins["t", 1]._replace(offset=0)})
    assert must_have_first_file(log, {("t", 7): begins["t", 1]}), "the log has no record of queue 7"


def test_damaged_log_does_not_prove_a_loss(path: Path) -> None:
    first_file(path)
    log, queue = parts(path)
    with (path / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(4)
        file.write(b"?")
    assert not must_have_first_file(log, {("t", 1): FirstEntry.of(queue)})
    with pytest.raises(CorruptSegment, match=r"its first entry is 10\. Whether earlier entries are lost is unknown"):
        first_remaining(log, queue, 0)


@pytest.mark.parametrize("batch", [2, 3], ids=["in a file", "at a file's end"])
def test_files_deleted_by_retention_are_no_loss(path: Path, batch: int) -> None:
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(200), queue_id=n % 3) for n in range(75)])
        store.clean(forced=True, config=replace(SMALL, deleteFileBatchMax=batch))
    log, queue = parts(path)
    first = queue.first()
    assert first_remaining(log, queue, 0) == first > 0
    lost = OffsetLost("the file is gone")
    assert resume_after_lost(log, queue, 0, lost) == first
    with pytest.raises(
        CorruptSegment, match=f"a file of the queue is lost: the file is gone. To do without it: {MAKE_ANEW}"
    ):
        resume_after_lost(log, queue, first, lost)
