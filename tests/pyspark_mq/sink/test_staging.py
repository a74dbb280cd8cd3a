from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from pyspark_mq.errors import StagingError
from pyspark_mq.sink.staging import RETENTION_SECONDS, Staging, run_of_batch
from store.objects.any_objects import objects_at


@pytest.fixture(params=["directory", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}/staging"
    return f"{request.getfixturevalue('bucket')}/staging" if request.param == "s3" else str(tmp_path / "staging")


def batch(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch({"body": list(bodies)})


def begun(directory: Path | str, owner: str = "q", run: str = "run") -> Staging:
    staging = Staging(str(directory))
    staging.begin(owner, run)
    return staging


def bodies(tables: dict[str, pa.Table]) -> dict[str, list[str]]:
    return {topic: table["body"].to_pylist() for topic, table in tables.items()}


def test_rows_of_tasks_by_topic_in_the_order_of_the_files(place: str) -> None:
    staging = begun(place)
    first, rows = staging.write("q", "run", "0-0", [("a", batch("1", "2")), ("b", batch("3")), ("a", batch("4"))])
    second, _ = staging.write("q", "run", "1-1", [("b", batch("5").slice(0, 1)), ("a", batch("6", "7").slice(1))])
    assert rows == {"a": 3, "b": 1}
    assert bodies(staging.tables([first, second])) == {"a": ["1", "2", "4", "7"], "b": ["3", "5"]}
    assert bodies(staging.tables([second, first])) == {"b": ["5", "3"], "a": ["7", "1", "2", "4"]}


def test_task_without_rows_writes_no_file(place: str) -> None:
    assert begun(place).write("q", "run", "0-0", []) == ("", {})
    assert list(objects_at(place, {}).names("q.run")) == [".made"]


def test_forget_deletes_other_batches_of_the_query_only(place: str) -> None:
    staging = Staging(place)
    staging.prepare()
    q1, q9, q10 = run_of_batch(1, "a"), run_of_batch(9, "b"), run_of_batch(10, "c")
    for owner, run in (
        ("q", q1),
        ("q", q9),
        ("q", q10),
        ("q-group", q1),
        ("other", q1),
        ("batch", "5"),
        ("batch", "6"),
    ):
        staging.begin(owner, run)
        staging.write(owner, run, "0-0", [("a", batch("1"))])
    others = [f"other.{q1}", f"q-group.{q1}"]
    staging.forget("q", run_of_batch(9, "d"))
    assert list(objects_at(place, {}).names("")) == sorted(["batch.5", "batch.6", *others, f"q.{q10}"])
    staging.forget("batch", "5")
    assert list(objects_at(place, {}).names("")) == sorted(["batch.6", *others, f"q.{q10}"])
    staging.forget("batch", "c")
    assert list(objects_at(place, {}).names("")) == sorted(["batch.6", *others])


def test_old_rows_are_deleted_in_any_place(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Object times cannot be changed, so the test makes new objects count as old."""
    run = uuid4().hex
    staging = begun(place, "batch", run)
    staging.write("batch", run, "0-0", [("a", batch("1"))])
    staging.forget("q", run_of_batch(3, uuid4().hex))
    assert list(objects_at(place, {}).names("")) == [f"batch.{run}"]
    monkeypatch.setattr("pyspark_mq.sink.staging.RETENTION_SECONDS", -3600.0)
    staging.forget("q", run_of_batch(3, uuid4().hex))
    assert list(objects_at(place, {}).names("")) == []


def test_rows_unused_for_long_are_deleted_by_any_query(tmp_path: Path) -> None:
    runs = [uuid4().hex, run_of_batch(1, uuid4().hex), run_of_batch(1, uuid4().hex)]
    owners = ["batch", str(uuid4()), f"{uuid4()}-a-group"]
    paths = []
    for owner, run in zip(owners, runs, strict=True):
        staging = begun(tmp_path, owner, run)
        paths.append(tmp_path / staging.write(owner, run, "0-0", [("a", batch("1"))])[0])
    old = time.time() - RETENTION_SECONDS - 60
    for path in (*paths[1:], *(path.parent / ".made" for path in paths)):
        os.utime(path, (old, old))
    staging.forget("q", run_of_batch(3, uuid4().hex))
    assert [path.exists() for path in paths] == [True, False, False]


@pytest.mark.parametrize("name", [".ssh", "project.v1", "image.0123456789abcdef0123456789abcdef"])
def test_foreign_files_are_kept(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / name / "file"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    old = time.time() - RETENTION_SECONDS - 60
    for path in (theirs, theirs.parent):
        os.utime(path, (old, old))
    staging = begun(tmp_path, "batch", uuid4().hex)
    staging.forget("batch", uuid4().hex)
    assert theirs.exists()


def test_a_failing_task_raises_its_own_error(place: str) -> None:
    def failing() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield "a", batch("1")
        raise RuntimeError("upstream")

    with pytest.raises(RuntimeError, match="upstream"):
        begun(place).write("q", "run", "0-0", failing())


def test_task_cannot_write_after_its_run_ended(place: str) -> None:
    driver, task = begun(place, "batch", "1"), Staging(place)

    def late() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield "a", batch("1")
        driver.forget("batch", "1")
        yield "a", batch("2")

    with suppress(StagingError):
        task.write("batch", "1", "0-0", late())
    with pytest.raises(StagingError, match="cannot write the rows of a task"):
        task.write("batch", "1", "1-1", [("a", batch("3"))])
    assert list(objects_at(place, {}).names("")) == []


def test_missing_or_torn_file_is_an_error(tmp_path: Path) -> None:
    staging = begun(tmp_path)
    file, _ = staging.write("q", "run", "0-0", [("a", batch("1" * 5000))])
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(StagingError, match=r"0-0.arrow: the rows of a task are missing or incomplete .*stagingPath"):
        staging.tables([file])
    path.unlink()
    with pytest.raises(StagingError, match=r"Nothing was appended.*run the write again"):
        staging.tables([file])


def test_missing_or_torn_object_is_an_error(bucket: str) -> None:
    import fsspec

    staging = begun(f"{bucket}/staging")
    file, _ = staging.write("q", "run", "0-0", [("a", batch("1" * 5000))])
    system = fsspec.filesystem("s3")
    path = f"{bucket}/staging/{file}"
    system.pipe_file(path, system.cat_file(path)[:3000])
    with pytest.raises(StagingError, match=rf"{path}: the rows of a task are missing or incomplete"):
        staging.tables([file])
    system.rm_file(path)
    with pytest.raises(StagingError, match=r"Nothing was appended.*run the write again"):
        staging.tables([file])
    with pytest.raises(StagingError, match=rf"{bucket}-not: cannot write the rows .*the bucket does not exist"):
        Staging(f"{bucket}-not").prepare()


def test_unwritable_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match=r"[Ss]et stagingPath to a directory that the driver and all"):
        Staging(str(tmp_path / "file" / "staging")).prepare()
