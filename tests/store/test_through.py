"""A store and its archive, read as one log."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from store import ArchiveOfAnother, NoArchive
from store.any_log import Boundary, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.through import ThroughAddress, ThroughLog
from tests.filled import Filled

ORDERS = Queue("orders", 0)
BODIES = ReadSpec(("body", "queueOffset"), EVERYTHING)


def bodies(log: ThroughLog, begin: int, end: int) -> list[bytes]:
    batches = log.scan(QueueRange(*ORDERS, begin, end), BODIES)
    return [body for batch in batches for body in batch["body"].to_pylist()]


@pytest.fixture
def shortened(filled: Filled, tmp_path: Path) -> Filled:
    """303 messages in queue 0: the first 200 at least only in the archive, the last ones only in the store."""
    filled.put("orders", 0, 250, 1000)
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 50, 1000)
    assert filled.store.clean(forced=True).log
    assert 100 < filled.store.min_offset(*ORDERS) < 253
    return filled


@pytest.fixture
def log(shortened: Filled) -> Iterator[ThroughLog]:
    with pickle.loads(pickle.dumps(ThroughAddress(shortened.path))).open() as it:
        yield it


def test_all_that_was_ever_put_is_there(shortened: Filled, log: ThroughLog) -> None:
    assert log.bounds([ORDERS]) == {ORDERS: (0, 303)}
    put = [body for _, queue_id, _, body in shortened.rows if queue_id == 0]
    assert bodies(log, 0, 303) == put
    first = shortened.store.min_offset(*ORDERS)
    for begin, end in ((0, 1), (first - 1, first), (first, first + 1), (first - 1, first + 1), (7, 7), (302, 303)):
        assert bodies(log, begin, end) == put[begin:end]


def test_sizes_and_times(shortened: Filled, log: ThroughLog) -> None:
    sizes = log.sizes(QueueRange(*ORDERS, 0, 303))
    assert (sizes > 0).all()
    (batches,) = [list(log.scan(QueueRange(*ORDERS, 0, 303), ReadSpec(("storeTimestamp",), EVERYTHING)))]
    stored = pa.Table.from_batches(batches)["storeTimestamp"].cast(pa.int64()).to_pylist()
    times = [each // 1000 for each in stored]
    for at in {*times, times[0] - 1, times[-1] + 1}:
        assert log.offsets_by_time([ORDERS], at, Boundary.LOWER) == {ORDERS: sum(each < at for each in times)}
        upper = max(0, sum(each <= at for each in times) - 1)
        assert log.offsets_by_time([ORDERS], at, Boundary.UPPER) == {ORDERS: upper}
        (found, *more) = log.stored_between([QueueRange(*ORDERS, 0, 303)], at, at) or [QueueRange(*ORDERS, 0, 0)]
        kept = {offset for each in (found, *more) for offset in range(each.start, each.end)}
        assert kept >= {offset for offset, each in enumerate(times) if each == at}


def test_retention_does_not_make_strangers(shortened: Filled, log: ThroughLog) -> None:
    last = log.fingerprints({ORDERS: 303})
    assert last
    shortened.put("orders", 0, 200, 1000)
    shortened.store.archive()
    assert shortened.store.clean(forced=True).log
    assert shortened.store.min_offset(*ORDERS) > 303
    assert log.strangers({ORDERS: 303}, last) == []
    assert len(bodies(log, 0, 503)) == 503


def test_retention_in_the_middle_of_a_scan(shortened: Filled, log: ThroughLog) -> None:
    batches = log.scan(QueueRange(*ORDERS, 0, 303), BODIES)
    read = len(next(batches))
    shortened.put("orders", 0, 200, 1000)
    shortened.store.archive()
    shortened.store.clean(forced=True)
    assert read + sum(map(len, batches)) == 303


def test_the_store_reads_through_by_itself(shortened: Filled) -> None:
    assert sum(map(len, shortened.store.scan(*ORDERS, 0, 303))) == 303
    archive = Path(shortened.path).with_name("archive")
    archive.rename(archive.with_name("elsewhere"))
    with pytest.raises(NoArchive):
        list(shortened.store.scan(*ORDERS, 0, 303))


def test_an_archive_that_is_missing_or_of_another_store(shortened: Filled, tmp_path: Path) -> None:
    with pytest.raises(NoArchive):
        ThroughAddress(shortened.path, str(tmp_path / "nothing")).open()
    other = Filled(tmp_path / "other" / "mq", {"orders": 2})
    with other.store:
        other.put("orders", 0, 400)
        other.store.archive(str(tmp_path / "others"))
    with ThroughAddress(shortened.path, str(tmp_path / "others")).open() as log, pytest.raises(ArchiveOfAnother):
        log.bounds([ORDERS])
