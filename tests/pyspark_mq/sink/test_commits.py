"""The record of the last written batch is exact, despite kills and retention."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_mq.errors import CommitError
from pyspark_mq.sink.commits import Batch, Commits, plan_of
from store import Message, MessageStore, StoreConfig, StoreUnavailable
from store.directory.directory_log import DirectoryWriter
from store.format.topic_names import COMMITS_TOPIC
from tests.waiting import PATIENCE

QUERY = "9577ed49-f0eb-46cd-854c-2aee57a024df"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(
        mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=100, maxIndexNum=400
    )
    with MessageStore.open(tmp_path / "mq", config=config) as it:
        it.create_topic("orders", 1)
        yield it


def commits_of(store: MessageStore, query: str = QUERY) -> Commits:
    return Commits(DirectoryWriter(store), Path(store.path, "commits"), query)


def write(
    store: MessageStore, number: int, *, until: str = "end", query: str = QUERY, consecutive: bool = False
) -> None:
    """Write a batch as the sink does, or up to a step after which its process dies."""
    commits, batch = commits_of(store, query), Batch(number, {"orders": 1}, "first run", consecutive=consecutive)
    with commits.file.locked():
        commits.begin(batch)
        if until == "begin":
            return
        append = store.begin()
        append.add("orders", pa.table({"body": ["row"]}))
        append.add(COMMITS_TOPIC, commits.record(batch))
        append.publish()
        if until == "append":
            return
        commits.end(batch)


def has(
    store: MessageStore,
    number: int,
    query: str = QUERY,
    *,
    rows: int = 1,
    run: str = "next run",
) -> bool:
    batch = Batch(number, {"orders": rows} if rows else {}, run, consecutive=True)
    with commits_of(store, query).file.locked():
        return commits_of(store, query).has(batch)


def delete_old(store: MessageStore) -> None:
    """Delete everything that exists now, as retention does later."""
    store.put_many([Message("orders", b"x" * 1000) for _ in range(12)])
    for segment in sorted(Path(store.path, "commitlog").iterdir())[:-1]:
        segment.unlink()
    store.put(Message(COMMITS_TOPIC, json.dumps({"batch": 0}).encode(), keys=("another",)))
    assert store.min_offset(COMMITS_TOPIC, 0) > 0


def test_new_query_has_written_no_batch(store: MessageStore) -> None:
    assert not has(store, 0)


@pytest.mark.parametrize(("until", "written"), [("begin", False), ("append", True), ("end", True)])
def test_batch_is_written_once_if_killed_after_any_step(store: MessageStore, until: str, written: bool) -> None:
    write(store, 0)
    write(store, 1, until=until)
    assert has(store, 1) is written
    assert not has(store, 2)
    write(store, 2 if written else 1)
    assert has(store, 2 if written else 1)
    assert not has(store, 3)


def test_records_are_found_in_a_topic_with_more_queues(store: MessageStore) -> None:
    store.create_topic(COMMITS_TOPIC, 3)
    for number in range(3):
        write(store, number, until="append")
        assert has(store, number)


@pytest.mark.parametrize("until", ["begin", "append", "end"])
def test_an_old_checkpoint_is_refused(store: MessageStore, until: str) -> None:
    write(store, 0)
    write(store, 1, until=until)
    with pytest.raises(
        CommitError, match=r"batch 1 of this query was written, but Spark now runs batch 0\. The checkpoint"
    ):
        has(store, 0)


@pytest.mark.parametrize("until", ["begin", "append", "end"])
def test_queries_do_not_affect_each_other(store: MessageStore, until: str) -> None:
    write(store, 3, until=until)
    for other in ("other", f"{QUERY}-group"):
        assert not has(store, 3, other)
        assert not has(store, 0, other)


def test_finished_batch_is_known_after_retention(store: MessageStore) -> None:
    write(store, 7)
    delete_old(store)
    assert has(store, 7)
    assert not has(store, 8)


def test_unfinished_batch_after_retention_is_an_error(store: MessageStore) -> None:
    write(store, 7, until="append")
    delete_old(store)
    assert not has(store, 8)
    with pytest.raises(CommitError, match=r"mark\.json: batch 7 was begun, and retention deleted the messages") as it:
        has(store, 7)
    mark = Path(str(it.value).partition(": ")[0])
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "written": True}))
    assert has(store, 7)
    mark.unlink()
    assert not has(store, 7)


def test_batch_begun_before_retention_and_appended_after(store: MessageStore) -> None:
    write(store, 7, until="begin")
    write(store, 7, until="append")
    assert has(store, 7)


def test_mark_is_newer_than_the_log_after_a_machine_crash(store: MessageStore, tmp_path: Path) -> None:
    for batch in range(3):
        write(store, batch, query="other")
    write(store, 0, until="begin")
    kept = tmp_path / "mark.json"
    mark = Path(store.path, "commits", QUERY, "mark.json")
    shutil.copy(mark, kept)
    assert json.loads(kept.read_text())["since"] == 3
    with MessageStore.open(tmp_path / "before") as before:
        before.create_topic("orders", 1)
        write(before, 0, query="other")
        before_mark = Path(before.path, "commits", QUERY, "mark.json")
        before_mark.parent.mkdir()
        shutil.copy(kept, before_mark)
        assert not has(before, 0)
        write(before, 0, until="append")
        assert has(before, 0)


@pytest.mark.parametrize("until", ["append", "end"])
def test_batch_planned_again_is_refused(store: MessageStore, until: str) -> None:
    write(store, 7, until=until)
    with pytest.raises(
        CommitError, match=r"batch 7 .* with 1 rows for orders, and Spark now runs it with 31 rows for orders"
    ):
        has(store, 7, rows=31)
    assert has(store, 7)
    mark = Path(store.path, "commits", QUERY, "mark.json")
    mark.write_text(json.dumps({name: value for name, value in json.loads(mark.read_text()).items() if name != "rows"}))
    assert has(store, 7, rows=31)


def test_second_write_of_a_batch_by_one_name_is_refused(store: MessageStore) -> None:
    write(store, 7)
    with pytest.raises(CommitError, match=r"batch 7 was already written in this run .* have the same producerGroup"):
        has(store, 7, run="first run")
    assert not has(store, 8, run="first run")


def test_batches_of_equal_plans_are_equal(store: MessageStore) -> None:
    """The query may compute other rows. With another plan it is another batch, even with as many rows."""
    commits, rows = commits_of(store), {"orders": 1}
    with commits.file.locked():
        commits.begin(Batch(7, rows, plan="one"))
        append = store.begin()
        append.add(COMMITS_TOPIC, commits.record(Batch(7, rows)))
        append.publish()
        assert commits.has(Batch(7, {"orders": 2}, plan="one"))
        with pytest.raises(CommitError, match="batch 7 of this query was written, and Spark planned it again"):
            commits.has(Batch(7, rows, plan="another"))
        assert commits.has(Batch(7, rows))


def test_log_older_than_the_mark(store: MessageStore) -> None:
    """The store was restored from a backup whose file is newer than its log."""
    write(store, 6, query="other")
    write(store, 7)
    mark = Path(store.path, "commits", QUERY, "mark.json")
    with MessageStore.open(Path(store.path).parent / "older") as older:
        older.create_topic("orders", 1)
        copied = Path(older.path, "commits", QUERY, "mark.json")
        copied.parent.mkdir(parents=True)
        shutil.copy(mark, copied)
        for _ in range(2):
            with pytest.raises(
                CommitError, match=r"batch 7 was written, but the log has no record of it\. The log is older"
            ):
                has(older, 7)
            with pytest.raises(
                CommitError,
                match=r"batch 7 was written, but the log has no record .* Spark now runs batch 8\.",
            ):
                has(older, 8)
            for batch in range(3):
                write(older, batch, query="other")
        write(older, 7, until="append")
        shutil.copy(mark, copied)
        assert has(older, 7)


UNTIL = pytest.mark.parametrize("until", ["begin", "append", "end"])


@contextmanager
def put_back(store: MessageStore, name: str = "put back") -> Iterator[MessageStore]:
    path = Path(store.path).parent / name
    shutil.copytree(store.path, path, ignore=shutil.ignore_patterns("abort", "lock"))
    with MessageStore.open(path) as it:
        yield it


@UNTIL
def test_stream_refuses_a_store_older_than_its_checkpoint(
    store: MessageStore, caplog: pytest.LogCaptureFixture, until: str
) -> None:
    for batch in range(7):
        write(store, batch, consecutive=True)
    write(store, 7, consecutive=True, until=until)
    last = 6 if until == "begin" else 7
    verb = "begun" if until == "begin" else "written"
    with put_back(store) as it:
        assert has(it, 7) is (until != "begin")
        assert not has(it, last + 1)
        for batch in (last + 2, last + 20):
            with pytest.raises(
                CommitError, match=rf"batch 7 was the last one {verb} here.* batches above {last} .*; or delete"
            ):
                has(it, batch)
        Path(it.path, "commits", QUERY, "mark.json").unlink()
        assert not has(it, 27)
        assert "Spark runs batch 27. Whether" in caplog.text


@UNTIL
def test_mark_older_than_the_log_is_no_loss(store: MessageStore, until: str) -> None:
    """The file was restored alone: the log has the batch before."""
    write(store, 6, consecutive=True)
    mark = Path(store.path, "commits", QUERY, "mark.json")
    before = mark.read_bytes()
    write(store, 7, consecutive=True)
    write(store, 8, consecutive=True, until=until)
    mark.write_bytes(before)
    assert has(store, 8) is (until != "begin")
    if until == "begin":
        with pytest.raises(CommitError, match="batch 6 was the last one written here and Spark now runs batch 9"):
            has(store, 9)
    else:
        assert not has(store, 9)


def test_batches_of_foreach_batch_may_have_gaps(store: MessageStore) -> None:
    write(store, 7)
    assert not has(store, 9)
    write(store, 9, consecutive=True)
    assert not has(store, 10)


def test_empty_batch_repeated_with_rows_is_written(store: MessageStore) -> None:
    """The checkpoint lost its newest files, so the batch was planned again, and the store has none of its rows."""
    commits = commits_of(store)
    write(store, 6, consecutive=True)
    with commits.file.locked():
        commits.end(Batch(7, {}, "first run", consecutive=True))
    assert not has(store, 7)
    assert not has(store, 8)
    with pytest.raises(CommitError, match="batch 7 was the last one written here and Spark now runs batch 9"):
        has(store, 9)
    write(store, 7, consecutive=True)
    with pytest.raises(CommitError, match=r"batch 7 .* with 1 rows for orders, and Spark now runs it with no rows"):
        has(store, 7, rows=0)


def test_batches_are_known_by_their_records_without_the_mark(store: MessageStore) -> None:
    for batch in range(5):
        write(store, batch)
        write(store, batch + 10, query="other")
    shutil.rmtree(Path(store.path, "commits"))
    assert has(store, 4)
    assert not has(store, 5)
    assert not has(store, 10)


GOOD = {"batch": 0, "written": True, "since": 0, "run": "", "last": None, "plan": "", "consecutive": False}
DAMAGED = [
    *(b"", b"[]", b"{}", b"\xff" * 9000),
    *(
        json.dumps(GOOD | wrong).encode()
        for wrong in (
            *({"batch": "1"}, {"consecutive": 1}, {"plan": 1}, {"run": None}, {"last": []}, {"since": None}),
            *({"rows": rows} for rows in (3, [], {"orders": "3"})),
        )
    ),
    *(json.dumps({name: value for name, value in GOOD.items() if name != less}).encode() for less in GOOD),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_mark_is_named(store: MessageStore, content: bytes) -> None:
    write(store, 0)
    mark = Path(store.path, "commits", QUERY, "mark.json")
    mark.write_bytes(content)
    with pytest.raises(CommitError, match=r"mark\.json: this file does not record the last written batch .*Restore it"):
        has(store, 0)


def test_one_process_commits_at_a_time(store: MessageStore, capfd: pytest.CaptureFixture[str]) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_take_turn, args=(str(store.path), theirs), daemon=True)
    with commits_of(store).file.locked():
        process.start()
        assert ours.poll(PATIENCE)
        assert ours.recv() == "wants"
        assert not ours.poll(0.3)
    assert ours.poll(PATIENCE)
    assert ours.recv() == "has"
    assert "another process is committing a batch of this query. Waiting" in capfd.readouterr().err
    process.kill()  # in the middle of it
    process.join()
    with commits_of(store).file.locked():
        pass


def _take_turn(path: str, pipe) -> None:  # type: ignore[no-untyped-def]
    with MessageStore.open(path) as store:
        pipe.send("wants")
        with commits_of(store).file.locked():
            pipe.send("has")
            pipe.recv()


def test_plan_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "check # point"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "7").write_text("v1 ...")
    (checkpoint / "offsets" / "8").write_text("v1 ....")
    plans = {plan_of(f"{scheme}{checkpoint}", 7) for scheme in ("", "file:", "file://")}
    assert len(plans - {""}) == len(plans) == 1
    assert plan_of(str(checkpoint), 8) not in {"", *plans}


def test_relative_checkpoint_path_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("checkpoint", "offsets").mkdir(parents=True)
    Path("checkpoint", "offsets", "7").write_text("v1 ...")
    assert plan_of("checkpoint", 7) == plan_of(f"{tmp_path}/checkpoint", 7) != ""


@pytest.mark.parametrize(
    "checkpoint", [None, "", "relative", "hdfs://host/checkpoint", "s3a://bucket/checkpoint", "/no"]
)
def test_plan_is_unknown_without_a_readable_checkpoint(checkpoint: str | None) -> None:
    assert plan_of(checkpoint, 7) == ""


@pytest.mark.parametrize("damage", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_system_errors_name_the_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    (tmp_path / "offsets").mkdir()
    damage(tmp_path / "offsets" / "7")
    with pytest.raises(StoreUnavailable, match="offsets/7: "):
        plan_of(str(tmp_path), 7)
