from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from store import (
    ArchiveOfAnother,
    CorruptSegment,
    GetStatus,
    Message,
    MessageStore,
    OffsetLost,
    QueuesPassedOver,
    StoreConfig,
)
from store.api.message_store import delete_topic
from store.archive.archive_log import ArchiveAddress, ArchiveLog
from store.archive.catalog import Catalog
from store.archive.of_store import ArchiveOrder, ArchiveSettings, StoreArchive, remembered
from store.archive.place import ArchivePlace
from store.archive.removal import expire
from store.directory.directory_log import TieredDirectoryAddress
from store.model.log_protocol import Boundary, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.read.query import KeyQuery
from tests.filled import Filled

ROUNDS = int(os.environ.get("KILLS", "4"))
SEED = int(os.environ.get("SEED", "0"))
COLUMNS = ("topic", "queueId", "queueOffset", "body", "tags", "keys", "properties", "bornTimestamp", "storeTimestamp")
SPEC = ReadSpec(COLUMNS, EVERYTHING)


def rows(log: ArchiveLog | MessageStore, queue: Queue, begin: int, end: int) -> list[dict[str, object]]:
    read = log.read if isinstance(log, MessageStore) else log.scan
    return [row for batch in read(QueueRange(queue, begin, end), SPEC) for row in batch.to_pylist()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(store: MessageStore, url: Path) -> None:
    with ArchiveAddress(str(url)).open() as log:
        assert {topic: len(queues) for topic, queues in log.topics().items()} == store.topics()
        for queue in [queue for queues in log.topics().values() for queue in queues]:
            (bounds,) = log.bounds([queue]).values()
            assert bounds.max_offset == store.max_offset(queue.topic, queue.queue_id)
            first = max(bounds.min_offset, store.min_offset(queue.topic, queue.queue_id))
            assert rows(log, queue, first, bounds.max_offset) == rows(store, queue, first, bounds.max_offset)


def test_archive_gets_all_messages_and_then_only_new_ones(filled: Filled, tmp_path: Path) -> None:
    url = tmp_path / "archive"
    assert filled.store.archive(str(url)).messages == 8
    same(filled.store, url)
    assert filled.store.archive() == (0, 0, 0, 0)
    filled.put("orders", 1, 3)
    assert filled.store.archive().messages == 3
    same(filled.store, url)


def test_new_topics_and_queues_are_archived(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    filled.store.create_topic("orders", 4)
    filled.store.create_topic("more", 1)
    filled.put("more", 0, 2)
    assert filled.store.archive().messages == 2
    same(filled.store, tmp_path / "archive")


@pytest.mark.parametrize("count", [1, 60, 61, 200])
def test_recreated_topic_continues_in_the_archive(tmp_path: Path, count: int) -> None:
    """Retention keeps messages that are not archived yet; readers of the store get nothing of the deleted topic."""
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(mappedFileSizeCommitLog=4096)) as store:
        for topic in ("orders", "other"):
            store.create_topic(topic, 1)
        store.put_many([Message("orders", b"old", keys=("k",))] * 60)
        store.archive(str(tmp_path / "archive"), topics=["orders"])
        store.delete_topic("orders")
        store.create_topic("orders", 1)
        store.put_many([Message("orders", b"new", keys=("k",))] * count)
        store.put_many([Message("other", b"x" * 1000)] * 12)
        store.clean(forced=True)
        assert store.offsets("orders", 0) == (60, 60 + count)
        assert store.archive().messages == count
        with ArchiveAddress(str(tmp_path / "archive")).open() as log:
            assert log.bounds([Queue("orders", 0)]) == {Queue("orders", 0): (0, 60 + count)}
        store.put_many([Message("other", b"x" * 1000)] * 12)
        while store.clean(forced=True).log:
            pass
        assert store.min_offset("orders", 0) > 60 or count == 1
        with TieredDirectoryAddress(str(store.path)).open() as through:
            assert through.bounds([Queue("orders", 0)]) == {Queue("orders", 0): (60, 60 + count)}
        got = store.get_message("g", "orders", 0, 7)
        assert (got.status, got.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 60)
        with pytest.raises(OffsetLost):
            list(store.scan("orders", 0, 7, 60 + count))
        assert {message.body for message in store.query("orders", "k", 500)} == {b"new"}


def test_expired_messages_are_deleted_from_the_archive(filled: Filled, tmp_path: Path) -> None:
    url, queue, store = tmp_path / "archive", Queue("orders", 0), filled.store
    of_store = StoreArchive(store.path, str(url), "")

    def archive(reserved_hours: float) -> int:
        end_of = lambda queue: store.max_offset(queue.topic, queue.queue_id)  # noqa: E731
        order = ArchiveOrder([queue], end_of, reserved_hours=reserved_hours)
        return of_store.run(store._published, order, lambda done, total: None, 4096).deleted

    for _ in range(3):
        filled.put("orders", 0, 100)
        assert archive(reserved_hours=1) == 0
    assert archive(reserved_hours=0) > 0
    with ArchiveAddress(str(url)).open() as log:
        bounds = log.bounds([queue])[queue]
        assert 0 < bounds.min_offset < bounds.max_offset == store.max_offset(queue.topic, queue.queue_id)
        assert rows(log, queue, *bounds) == rows(store, queue, *bounds)
        with pytest.raises(OffsetLost, match="not archived"):
            rows(log, queue, 0, 1)
        wanted = QueueRange(queue, 0, bounds.max_offset)  # the missing range is kept, so that reading it raises
        assert log.with_keys([wanted], ["k0"])[0] == QueueRange(queue, 0, bounds.min_offset)
    assert archive(reserved_hours=0) == 0


def test_archived_records_get_a_new_property_crc(tmp_path: Path) -> None:
    config = StoreConfig(enabledAppendPropCRC=True, mappedFileSizeCommitLog=64 << 10)
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("orders", 2)
        store.append_table("orders", pa.table({"body": [f"{n}" * 40 for n in range(1000)]}))
        store.archive(str(tmp_path / "archive"))
        same(store, tmp_path / "archive")


def test_retention_waits_for_an_incomplete_first_archive(filled: Filled, tmp_path: Path) -> None:
    for _ in range(4):
        filled.put("orders", 0, 50, 1000)
        filled.put("orders", 1, 50, 1000)
    put = [body for topic, queue_id, _, body in filled.rows if queue_id == 1]

    class Killed(BaseException):
        pass

    def progress(done: int, total: int) -> None:
        if 0 < done < total:
            with MessageStore.open(filled.path, create=False) as other:
                other.clean(forced=True)
            raise Killed

    with pytest.raises(Killed):
        filled.store.archive(str(tmp_path / "archive"), progress=progress)
    assert filled.store.offsets("orders", 1)[0] == 0
    filled.store.archive()
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert [row["body"] for row in rows(log, Queue("orders", 1), 0, len(put))] == put


def test_messages_deleted_before_archiving_are_an_error(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 300, 1000)
    conf = Path(filled.path, "config", "store.conf")
    remembered = conf.read_text()
    conf.write_text("".join(line for line in remembered.splitlines(True) if not line.startswith("archive")))
    assert filled.store.clean(forced=True).log
    with pytest.raises(ArchiveOfAnother, match="may be the archive of another store"):
        filled.store.archive(str(tmp_path / "archive"))
    conf.write_text(remembered)
    with pytest.raises(QueuesPassedOver, match=r"orders/0: the archive ends at offset 3, .* were deleted before"):
        filled.store.archive(str(tmp_path / "archive"))
    done = filled.store.archive(str(tmp_path / "archive"), forget=["orders"])
    first, last = filled.store.offsets("orders", 0)
    assert (done.forgotten, done.messages) == (3, last - first)
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert log.bounds([Queue("orders", 0), Queue("orders", 1)]) == {
            Queue("orders", 0): (first, last),
            Queue("orders", 1): (0, 5),
        }


def test_other_store_of_the_same_name_is_refused(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    other = Filled(tmp_path / "other" / "mq", {"orders": 2})
    with other.store:
        other.put("orders", 1, 7)
        with pytest.raises(ArchiveOfAnother, match="the archive ends at offset 3, after the store's end 0"):
            other.store.archive(str(tmp_path / "archive"))
        other.put("orders", 0, 3)
        other.store.create_topic("more", 1)
        other.put("more", 0, 1)
        before = contents(tmp_path / "archive")
        for forget in ((), ["orders"]):
            with pytest.raises(ArchiveOfAnother, match="this may be the archive of another store"):
                other.store.archive(str(tmp_path / "archive"), forget=forget)
        assert contents(tmp_path / "archive") == before
        with pytest.raises(ArchiveOfAnother, match="nothing was deleted from it"):
            other.store.archive(str(tmp_path / "archive"), topics=["more"], forget=["orders"])
        assert remembered(tmp_path / "other" / "mq") == ArchiveSettings()


@pytest.mark.parametrize("topics", [{}, {"more": 1}])
def test_other_store_with_other_topics_is_refused(filled: Filled, tmp_path: Path, topics: dict[str, int]) -> None:
    """It would change the archived messages of the first store, for example by expiring them."""
    filled.store.archive(str(tmp_path / "archive"))
    before = contents(tmp_path / "archive")
    other = Filled(tmp_path / "other" / "mq", topics)
    with other.store:
        for topic in topics:
            other.put(topic, 0, 3)
        with pytest.raises(ArchiveOfAnother, match=r"so nothing was archived: the archive has other topics \(orders\)"):
            other.store.archive(str(tmp_path / "archive"), reserved_hours=0)
    assert contents(tmp_path / "archive") == before
    assert remembered(tmp_path / "other" / "mq") == ArchiveSettings()


def test_two_stores_cannot_share_an_archive_that_was_empty(tmp_path: Path) -> None:
    """The empty archive does not show its owner, so the store that archives later is refused."""
    one, other = (Filled(tmp_path / each / "mq", {each: 1}) for each in ("one", "other"))
    url = str(tmp_path / "archive")
    with one.store, other.store:
        one.store.archive(url)
        other.put("other", 0, 3)
        other.store.archive(url)
        before = contents(tmp_path / "archive")
        for _ in range(2):
            with pytest.raises(
                ArchiveOfAnother, match=r"nothing was archived: the archive has other topics .*brokerName$"
            ):
                one.store.archive(reserved_hours=0)
            one.put("one", 0, 3)
    assert contents(tmp_path / "archive") == before


@pytest.mark.parametrize("taken", [False, True])
def test_store_continues_after_its_archived_topics_were_deleted(tmp_path: Path, *, taken: bool) -> None:
    """Their messages are still in the log, or retention deleted them and nothing shows their topics."""
    filled = Filled(tmp_path / "mq", {"orders": 1, "more": 1})
    with filled.store as store:
        filled.put("orders", 0, 3)
        store.archive(str(tmp_path / "archive"), topics=["orders"])
        delete_topic(filled.path, "orders")
        filled.put("more", 0, 300, size=1000)
        if taken:
            assert store.clean(forced=True).log
        filled.put("more", 0, 1)
        assert store.archive(topics=["more"]).messages == 301 - store.min_offset("more", 0)


def test_truncated_object_is_named(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 1)
    for file in tmp_path.glob("archive/*/mq/orders/0/COMMIT_LOG/*"):
        os.truncate(file, 100)
    filled.put("orders", 1, 1)
    with pytest.raises(QueuesPassedOver, match=r"orders/0: .*100 bytes instead of 396") as passed:
        filled.store.archive()
    assert [type(reason) for reason in passed.value.reasons.values()] == [CorruptSegment]
    with (
        ArchiveAddress(str(tmp_path / "archive")).open() as log,
        pytest.raises(CorruptSegment, match="this object ends before"),
    ):
        rows(log, Queue("orders", 0), 0, 3)


@pytest.mark.parametrize("before", [0, 3])
def test_damaged_queue_does_not_stop_archiving_others(tmp_path: Path, before: int) -> None:
    """Some of the queue may already be archived."""
    filled = Filled(tmp_path / "mq", {"a": 1, "b": 1, "c": 1})
    filled.put("a", 0, 1)
    filled.put("b", 0, before)
    filled.store.archive(str(tmp_path / "archive"))
    for topic in "abc":
        filled.put(topic, 0, 250)
    filled.store.close()
    max((tmp_path / "mq/consumequeue/b/0").iterdir()).unlink()
    with MessageStore.open(tmp_path / "mq", create=False, read_only=True) as store:
        with pytest.raises(
            QueuesPassedOver, match=f"b/0: .*: entry {before + 249} existed before and is missing"
        ) as passed:
            store.archive()
        assert list(passed.value.reasons) == [Queue("b", 0)]
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        ends = {topic: log.bounds([Queue(topic, 0)])[Queue(topic, 0)].max_offset for topic in "abc"}
    assert ends == {"a": 251, "b": before, "c": 250}
    with MessageStore.open(tmp_path / "mq", create=False) as store:
        assert store.archive().messages == 250
        same(store, tmp_path / "archive")


PROGRAM = """
import sys
from store import MessageStore
from store.archive import archiving, of_store
with MessageStore.open(sys.argv[1], create=False) as store:
    run = of_store.StoreArchive.run
    of_store.StoreArchive.run = lambda *given, **named: run(*given, 32 << 10, **named)
    print("begun", flush=True)
    while True:
        store.archive(sys.argv[2])
        print("archived", flush=True)
        store.clean(forced=True)
        print("cleaned", flush=True)
"""


READER = """
import sys, time
from store.model.log_protocol import Boundary, Queue, QueueRange, ReadSpec
from store.api.message_store import delete_topic
from store.read.filters import EVERYTHING
from store.client.log_kinds import address_at
queues, passes = [Queue("orders", 0), Queue("orders", 1)], 0
with address_at(sys.argv[1]).open() as log:
    print("begun", flush=True)
    while True:
        for queue, bounds in log.bounds(queues).items():
            assert bounds.min_offset == 0, bounds
            at = 0
            for batch in log.scan(QueueRange(queue, *bounds), ReadSpec(("queueOffset", "body"), EVERYTHING)):
                offsets = batch["queueOffset"].to_pylist()
                assert offsets == list(range(at, at + len(offsets))), (queue, at, offsets)
                for offset, body in zip(offsets, batch["body"].to_pylist()):
                    assert body.rstrip(b".") == b"%d-%d" % (queue.queue_id, offset), (queue, offset, body)
                at += len(offsets)
            assert at == bounds.max_offset, (queue, at, bounds)
        passes += 1
        print(passes, flush=True)
"""


def test_killed_archivers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Processes archive and clean while others read everything; messages written during a run are in the next one.
    Readers are killed now and then, too."""
    filled, moments, url = Filled(tmp_path / "mq", {"orders": 2}), random.Random(SEED), tmp_path / "archive"
    read = [sys.executable, "-c", READER, filled.path]
    with filled.store:
        filled.store.archive(str(url))
        filled.put("orders", 0, 200, 1000)
        reader = subprocess.Popen(read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for round_ in range(ROUNDS):
            command = [sys.executable, "-c", PROGRAM, filled.path, str(url)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                for _ in range(moments.randrange(1, 6)):
                    filled.put("orders", 0, moments.randrange(100), 1000)
                    filled.put("orders", 1, moments.randrange(100), 1000)
                for _ in range(moments.randrange(4)):
                    process.stdout.readline()
                while not filled.store.min_offset("orders", 0) and round_ == 0:
                    assert process.stdout.readline()
                time.sleep(moments.random() * 0.1)
                process.send_signal(signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
            if round_ % 4 == 3:
                ended(reader)
                reader = subprocess.Popen(read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        filled.store.archive(str(url))
        ended(reader)
    bodies: dict[Queue, list[object]] = {}
    with ArchiveAddress(str(url)).open() as log:
        for queue, bounds in log.bounds([Queue("orders", 0), Queue("orders", 1)]).items():
            assert bounds.min_offset == 0
            bodies[queue] = [row["body"] for row in rows(log, queue, *bounds)]
        for queue in bodies:
            for offset in moments.sample(range(len(bodies[queue])), min(30, len(bodies[queue]))):
                found = [
                    each.queue_offset
                    for each in log.query(KeyQuery("orders", f"k{offset}"))
                    if each.queue_id == queue.queue_id
                ]
                assert found == [offset]
    for queue in (Queue("orders", 0), Queue("orders", 1)):
        assert bodies[queue] == [body for topic, queue_id, _, body in filled.rows if queue_id == queue.queue_id]


def ended(reader: subprocess.Popen[bytes]) -> None:
    """Kill a reader that has read everything at least once, and check that it found no error."""
    assert reader.stdout is not None
    lines = [reader.stdout.readline(), reader.stdout.readline()]
    reader.send_signal(signal.SIGKILL)
    _, errors = reader.communicate()
    assert lines[1], errors.decode()
    assert reader.returncode == -signal.SIGKILL, errors.decode()


def test_bounds_are_right_although_segments_are_deleted(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader holds stale metadata and loads it again."""
    url, queue, store = tmp_path / "archive", Queue("orders", 0), filled.store
    of_store, load, rounds = StoreArchive(store.path, str(url), ""), ArchivePlace.load, iter(range(12))

    def archive() -> None:
        filled.put("orders", 0, 100)
        end_of = partial(store._published.max_offset, "orders")
        of_store.run(
            store._published,
            ArchiveOrder([queue], lambda it: end_of(it.queue_id)),
            lambda done, total: None,
            4096,
        )

    def loaded_and_then_gone(place: ArchivePlace) -> Catalog | None:
        catalog = load(place)
        if next(rounds, 0) % 2:
            with monkeypatch.context() as patched:
                patched.setattr(ArchivePlace, "load", load)
                archive()
                assert expire(of_store.place(), int(time.time() * 1000) + 1) > 0
        return catalog

    archive()
    archive()
    expire(of_store.place(), int(time.time() * 1000) + 1)
    with ArchiveAddress(str(url)).open() as log:
        monkeypatch.setattr(ArchivePlace, "load", loaded_and_then_gone)
        for _ in range(2):
            first = log.bounds([queue])[queue].min_offset
            assert first > 0
            assert log.offsets_by_time([queue], 0, Boundary.LOWER)[queue] >= first
            assert len(log.sizes(QueueRange(queue, first, first + 3))) == 3
            assert log.fingerprints({queue: log.bounds([queue])[queue].max_offset})
