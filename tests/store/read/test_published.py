from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from store import GetStatus, Message, MessageStore, OffsetLost, OffsetNotYet, StoreConfig, UnknownQueue, UnknownTopic
from store.api.message_store import delete_topic
from store.append.published_end import PublishedEnd
from store.disk.commit_log import CommitLog
from store.disk.consume_queue import ConsumeQueue
from store.disk.consume_queues import ConsumeQueues
from store.disk.queue_files import QueueFiles
from store.disk.topics import Topics
from store.model.log_protocol import Bounds, Queue, QueueRange
from store.read.published import PublishedQueues

LOG_SIZE, QUEUE_SIZE = 4096, 200


@pytest.fixture
def published(tmp_path: Path) -> PublishedQueues:
    """Queue 1 of two queues had 40 messages; retention deleted those in the oldest segments."""
    sizes = StoreConfig(mappedFileSizeCommitLog=LOG_SIZE, mappedFileSizeConsumeQueue=QUEUE_SIZE)
    with MessageStore.open(tmp_path, config=sizes) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", bytes(1000), queue_id=1) for _ in range(40)])
        store.clean(forced=True)
    log, queues = CommitLog(tmp_path, LOG_SIZE, writable=False), ConsumeQueues(tmp_path, QUEUE_SIZE, writable=False)
    return PublishedQueues(Topics(tmp_path), log, queues, PublishedEnd(tmp_path, writable=False))


def test_bounds_of_queues(published: PublishedQueues) -> None:
    minimum, maximum = published.offsets("t", 1)
    assert 0 < minimum < maximum == published.max_offset("t", 1) == 40
    assert published.offsets("t", 0) == (0, 0)
    assert published.ever_put("t") == 40


@pytest.mark.parametrize("read_only", [True, False])
def test_bounds_of_several_queues_are_of_one_moment(tmp_path: Path, read_only: bool) -> None:
    queues = [Queue("t", 0), Queue("t", 1)]
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 2)

        def looked_at() -> Iterator[Queue]:
            for queue in queues:
                yield queue
                store.put_many([Message("t", b"body", queue_id=queue_id) for queue_id in (0, 1)])

        with MessageStore.open(tmp_path, read_only=read_only) as reader:
            for count in (0, 2, 4):
                assert reader.bounds(looked_at()) == dict.fromkeys(queues, Bounds(0, count))


def test_range_outside_of_the_queue_is_refused(published: PublishedQueues) -> None:
    minimum, _ = published.offsets("t", 1)
    for start, end in ((minimum, 40), (40, 40), (0, 0)):
        assert published.queue_containing(QueueRange(Queue("t", 1), start, end)) is published.of("t", 1)
    with pytest.raises(OffsetLost, match=f"offset 0 was deleted. Begin at offset {minimum}"):
        published.queue_containing(QueueRange(Queue("t", 1), 0, 40))
    with pytest.raises(OffsetNotYet, match="up to offset 41, but the queue ends at 40"):
        published.queue_containing(QueueRange(Queue("t", 1), minimum, 41))


def test_missing_queue_and_topic_are_refused(published: PublishedQueues) -> None:
    with pytest.raises(UnknownQueue):
        published.of("t", 2)
    with pytest.raises(UnknownTopic):
        published.ever_put("u")


def test_topic_is_deleted_between_two_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = StoreConfig(mappedFileSizeCommitLog=LOG_SIZE, mappedFileSizeConsumeQueue=QUEUE_SIZE)
    with MessageStore.open(tmp_path, config=sizes) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(1000)) for _ in range(40)])
        store.clean(forced=True)
    min_offset = ConsumeQueue.min_offset

    def overtaken(queue: ConsumeQueue, first: int, end: int) -> int:
        monkeypatch.setattr(ConsumeQueue, "min_offset", min_offset)
        delete_topic(tmp_path, "t")
        return min_offset(queue, first, end)

    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert reader.max_offset("t", 0) == 40
        monkeypatch.setattr(ConsumeQueue, "min_offset", overtaken)
        with pytest.raises(UnknownTopic):
            reader.offsets("t", 0)


@pytest.mark.parametrize("tags", [None, "x"])
@pytest.mark.parametrize("recreated", [None, 0, 10, 40])
def test_topic_is_deleted_during_a_scan(tmp_path: Path, recreated: int | None, tags: str | None) -> None:
    """The scan reads messages of the old topic to its end, or raises."""
    sizes = StoreConfig(mappedFileSizeCommitLog=LOG_SIZE, mappedFileSizeConsumeQueue=QUEUE_SIZE)
    with MessageStore.open(tmp_path, config=sizes) as store, MessageStore.open(tmp_path, read_only=True) as reader:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"old", tags="x") for _ in range(47)])
        batches = reader.scan("t", 0, 0, 47, ("body",), tags, max_rows=7)
        found = next(batches)["body"].to_pylist()
        delete_topic(tmp_path, "t")
        if recreated is not None:
            store.create_topic("t", 1)
            store.put_many([Message("t", b"new", tags="x") for _ in range(recreated)])
            assert reader.offsets("t", 0) == (47, 47 + recreated)
        with suppress(OffsetLost):
            for batch in batches:
                found += batch["body"].to_pylist()
            assert len(found) == 47
        assert set(found) == {b"old"}


@pytest.mark.parametrize("made_anew", [None, 0, 10])
def test_topic_is_deleted_during_a_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_anew: int | None) -> None:
    """The reply reflects the topic's new state, and reports no damage or loss."""
    sizes = StoreConfig(mappedFileSizeCommitLog=LOG_SIZE, mappedFileSizeConsumeQueue=QUEUE_SIZE)
    min_offset = ConsumeQueue.min_offset
    with MessageStore.open(tmp_path, config=sizes) as store, MessageStore.open(tmp_path, read_only=True) as reader:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"old") for _ in range(40)])

        def overtaken(queue: ConsumeQueue, first: int, end: int) -> int:
            monkeypatch.setattr(ConsumeQueue, "min_offset", min_offset)
            found = min_offset(queue, first, end)
            delete_topic(tmp_path, "t")
            if made_anew is not None:
                store.create_topic("t", 1)
                store.put_many([Message("t", b"new") for _ in range(made_anew)])
            return found

        monkeypatch.setattr(ConsumeQueue, "min_offset", overtaken)
        found = reader.get_message("g", "t", 0, 25)
        status = GetStatus.NO_MESSAGE_IN_QUEUE if made_anew is None else GetStatus.OFFSET_TOO_SMALL
        assert (found.status, found.next_begin_offset) == (status, 0 if made_anew is None else 40)


def test_put_to_a_topic_during_its_deletion_reports_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"old"))
    with MessageStore.open(tmp_path) as store:
        check = QueueFiles.check

        def deleted_meanwhile(queue: QueueFiles) -> int:
            monkeypatch.undo()
            first = check(queue)
            delete_topic(tmp_path, "t")
            return first

        monkeypatch.setattr(QueueFiles, "check", deleted_meanwhile)
        with pytest.raises(UnknownTopic):
            store.put(Message("t", b"goes nowhere"))
