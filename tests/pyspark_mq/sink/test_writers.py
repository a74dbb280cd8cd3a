from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_mq.errors import CommitError, StagingError
from pyspark_mq.options.sink import WriteOptions
from pyspark_mq.sink.staging import BATCH, Staging, run_of_batch
from pyspark_mq.sink.writers import AllOrNothing, OncePerBatch, TaskRows
from store import MessageStore
from store.format.topic_names import COMMITS_TOPIC


def test_shortened_file_is_an_error(tmp_path: Path) -> None:
    """The file was cut between two record batches, so it looks complete."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
    options = WriteOptions.parse({"path": str(tmp_path), "topic": "orders"})
    staging, batch = Staging(options.staging_path), pa.record_batch({"body": ["a", "b"]})
    staging.begin(BATCH, "run")
    whole = staging.write(BATCH, "run", "0-0", [("orders", batch)] * 2)
    short = staging.write(BATCH, "run", "1-0", [("orders", batch)] * 2)
    one = staging.write(BATCH, "run", "2-0", [("orders", batch)])
    end_of_stream = 8
    folder = Path(options.staging_path)
    os.truncate(folder / short[0], os.path.getsize(folder / one[0]) - end_of_stream)
    with pytest.raises(StagingError, match=r"tasks wrote 8 rows there, but the driver reads 6\. Nothing was appended"):
        AllOrNothing(options).commit([TaskRows(rows, file) for file, rows in (whole, short)])
    with MessageStore.open(tmp_path) as store:
        assert store.max_offset("orders", 0) == 0
        AllOrNothing(options).commit([TaskRows(rows, file) for file, rows in (whole, one)])
        assert store.max_offset("orders", 0) == 6


QUERY = "9577ed49-f0eb-46cd-854c-2aee57a024df"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 1)
        yield it


def options_of(store: MessageStore, **more: str) -> WriteOptions:
    return WriteOptions.parse({"path": str(store.path), "topic": "orders", **more})


def staged(store: MessageStore, number: int, *bodies: str, run: str = "1", attempt: str = "a") -> TaskRows:
    staging, folder = Staging(options_of(store).staging_path), run_of_batch(number, attempt)
    staging.begin(QUERY, folder)
    tables = [("orders", pa.record_batch({"body": list(bodies)}))] if bodies else []
    file, rows = staging.write(QUERY, folder, "0-0", tables)
    return TaskRows(rows, file, QUERY, number, run)


def commit(store: MessageStore, sent: TaskRows, **options: str) -> None:
    OncePerBatch(options_of(store, **options)).commit([sent])


def test_stream_records_empty_batches_to_detect_missing_ones(store: MessageStore) -> None:
    commit(store, staged(store, 0))
    commit(store, staged(store, 1, "a"))
    commit(store, staged(store, 2))
    commit(store, staged(store, 2, run="2"))
    commit(store, staged(store, 3, "b"))
    for bodies in (["c"], []):
        with pytest.raises(CommitError, match="batch 3 was the last one written here and Spark now runs batch 5"):
            commit(store, staged(store, 5, *bodies))
    assert store.max_offset("orders", 0) == store.max_offset(COMMITS_TOPIC, 0) == 2


@pytest.mark.parametrize("options", [{}, {"producerGroup": "copier"}])
def test_repeated_batch_with_an_older_mark_is_not_written(store: MessageStore, options: dict[str, str]) -> None:
    """The file was restored from a backup; the record beside the rows in the log decides."""
    mark = Path(store.path, "commits", QUERY, "mark.json")
    commit(store, staged(store, 6, "a"), **options)
    older = mark.read_bytes()
    commit(store, staged(store, 7, "b", "c"), **options)
    mark.write_bytes(older)
    for run in ("2", "3"):
        commit(store, staged(store, 7, "b", "c", run=run), **options)
    commit(store, staged(store, 8, "d", run="3"), **options)
    assert store.max_offset("orders", 0) == 4


def test_writes_in_foreach_batch_may_skip_batches(store: MessageStore) -> None:
    for number, *bodies in ((0,), (3, "a"), (4,), (7, "b"), (7,)):
        commit(store, staged(store, number, *bodies), producerGroup="copier")
    assert store.max_offset("orders", 0) == 2


def test_second_write_of_one_name_fails_in_a_repeated_batch(store: MessageStore) -> None:
    """The earlier run was killed between the two writes: the second write's rows were never stored."""
    commit(store, staged(store, 7, "a", run="1"), producerGroup="copier")
    commit(store, staged(store, 7, "a", run="2"), producerGroup="copier")
    with pytest.raises(CommitError, match=r"batch 7 was already written in this run .* have the same producerGroup"):
        commit(store, staged(store, 7, "b", run="2"), producerGroup="copier")
    assert store.max_offset("orders", 0) == 1


def test_late_commit_keeps_the_rows_of_the_next_batch(store: MessageStore) -> None:
    """The late commit is a killed driver's; the next driver has written the batch, and its tasks already stage rows."""
    late = staged(store, 7, "a", run="1", attempt="a")
    commit(store, staged(store, 7, "a", run="2", attempt="b"))
    following = staged(store, 8, "c", run="2", attempt="c")
    commit(store, late)
    commit(store, following)
    assert store.max_offset("orders", 0) == 2
    assert os.listdir(options_of(store).staging_path) == []


@pytest.mark.parametrize("is_noted", [True, False])
def test_batch_repeated_without_rows_stays_written(store: MessageStore, tmp_path: Path, is_noted: bool) -> None:
    """It may be repeated with rows later: Spark repeats the batch until its own commit log has it."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text("one")
    commit(store, staged(store, 7, "a", run="1"), checkpointLocation=str(tmp_path))
    if not is_noted:
        Path(store.path, "commits", QUERY, "mark.json").unlink()
    for run, bodies in (("2", []), ("3", ["b", "c"])):
        commit(store, staged(store, 7, *bodies, run=run), checkpointLocation=str(tmp_path))
    assert store.max_offset("orders", 0) == 1


@pytest.mark.parametrize("options", [{}, {"producerGroup": "copier"}])
def test_batch_planned_again_is_detected_by_its_checkpoint(
    store: MessageStore, tmp_path: Path, options: dict[str, str]
) -> None:
    options["checkpointLocation"] = str(tmp_path)
    plan = tmp_path / "offsets" / "7"
    plan.parent.mkdir()
    plan.write_text("one")
    for run, bodies in (("1", ["a"]), ("2", ["b", "c"])):
        commit(store, staged(store, 7, *bodies, run=run), **options)
    plan.write_text("another")
    with pytest.raises(CommitError, match="batch 7 of this query was written, and Spark planned it again"):
        commit(store, staged(store, 7, "d", run="3"), **options)
    assert store.max_offset("orders", 0) == 1
