from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store import (
    Message,
    MessageStore,
    NoArchive,
    OffsetLost,
    OffsetNotYet,
    QueuesPassedOver,
    UnknownTopic,
    message_filter,
)
from store.archive.archive_log import ArchiveAddress
from store.archive.of_store import ArchiveOrder, StoreArchive
from store.directory.restoring import restore
from store.model.log_protocol import Bounds, Queue, QueueRange, ReadSpec
from store.objects.any_objects import LocalObjects
from store.read.filters import EVERYTHING
from store.read.query import KeyQuery
from tests.store.archive.lives import (
    ORDERS,
    SPEC,
    anew,
    archived,
    named,
    put,
    restarted,
)


def test_filtered_scan_raises_if_its_topic_was_replaced(store: MessageStore, url: str) -> None:
    """No entry matches, so no record is read that would reveal the older topic."""
    store.put_many(Message("orders", b"old", tags="A") for _ in range(40))
    store.archive(url)
    with ArchiveAddress(url).open() as log:
        wanted = ReadSpec(("body",), message_filter("A"))
        found = log.scan(QueueRange(ORDERS, 0, 40), wanted)
        anew(store, 50)
        with pytest.raises(OffsetLost, match="CONSUME_QUEUE: bytes 0 to 800 were deleted from the archive"):
            list(found)
        assert list(log.scan(QueueRange(ORDERS, 0, 40), wanted)) == []


def test_asking_about_no_queue_sends_no_request(store: MessageStore, url: str) -> None:
    store.put_many(Message("orders", b"") for _ in range(40))
    store.archive(url)
    with ArchiveAddress(url).open() as log:
        last = log.fingerprints({ORDERS: 40})
        shutil.rmtree(url)
        assert log.fingerprints({}) == {}
        assert log.replaced({ORDERS: 40}, {}) == []
        assert log.replaced({}, last) == []
        with pytest.raises(NoArchive):
            log.replaced({ORDERS: 40}, last)


def test_reader_during_a_removal_sees_the_current_archive(store: MessageStore, url: str) -> None:
    class Swapping(dict[Queue, int]):
        def __getitem__(self, queue: Queue) -> int:
            if not store.max_offset(queue.topic, queue.queue_id) < 40:
                anew(store, 30)
            return super().__getitem__(queue)

    put(store, "orders", "old", 40)
    store.archive(url)
    with ArchiveAddress(url).open() as log:
        assert log.fingerprints(Swapping({ORDERS: 40})) == {}
        assert log.bounds([ORDERS]) == {ORDERS: (0, 30)}


@pytest.mark.parametrize("count", [0, 1, 30, 31, 80])
def test_other_queues_are_archived_before_the_recreated_one(store: MessageStore, url: str, count: int) -> None:
    put(store, "orders", "old", 30)
    store.archive(url)
    restarted(store)
    put(store, "orders", "new", count)
    put(store, "other", "other", 7)
    with pytest.raises(QueuesPassedOver, match=re.escape(f"{url}, all others were: orders/0: ")) as passed:
        store.archive()
    assert list(passed.value.reasons) == [ORDERS]
    assert pickle.loads(pickle.dumps(passed.value)).reasons.keys() == {ORDERS}
    assert archived(url, Queue("other", 0)) == named("other", 7)
    assert archived(url) == named("old", 30)
    done = store.archive(forget=["orders"])
    assert (done.forgotten, done.messages) == (30, count)
    assert archived(url) == named("new", count)
    put(store, "orders", "more", 4)
    assert store.archive(forget=["orders"])[:1] == (4,)
    assert archived(url) == named("new", count) + named("more", 4)
    with ArchiveAddress(url).open() as log:
        for key in ("old7", "new7", "more3"):
            found = [message.body.decode() for message in log.query(KeyQuery("orders", key))]
            assert found == ([] if key == "old7" or (key == "new7" and count < 8) else [f"{key[:-1]} {key[-1]}"])


def test_queues_of_the_old_topic_are_not_joined_with_new_ones(store: MessageStore, url: str) -> None:
    store.create_topic("wide", 4)
    put(store, "wide", "old", 9, queue_id=2)
    put(store, "other", "other", 1)
    store.archive(url)
    restarted(store)
    restarted(store, 2, "wide")
    put(store, "wide", "new", 3, queue_id=1)
    with pytest.raises(
        QueuesPassedOver, match="wide/0, wide/1, wide/2: the archive has wide/2, but the store does not"
    ):
        store.archive()
    done = store.archive(forget=["wide"])
    assert (done.forgotten, done.messages) == (9, 3)
    with ArchiveAddress(url).open() as log:
        assert log.bounds(log.topics()["wide"]) == {Queue("wide", 0): Bounds(0, 0), Queue("wide", 1): Bounds(0, 3)}


def test_deleted_topic_stays_archived_until_forgotten(store: MessageStore, url: str, tmp_path: Path) -> None:
    put(store, "orders", "old", 30)
    put(store, "other", "other", 3)
    store.archive(url)
    store.delete_topic("orders")
    assert store.archive() == (0, 0, 0, 0)
    assert archived(url) == named("old", 30)
    with pytest.raises(UnknownTopic, match=r"topic nothing is not in the archive. Archived topics: .*orders, other"):
        store.archive(forget=["orders", "nothing"])
    assert store.archive(forget=["orders"]).forgotten == 30
    assert store.archive(forget=["orders"]).forgotten == 0
    with ArchiveAddress(url).open() as log:
        assert list(log.topics()) == ["other"]
    assert not [path for path in Path(url).rglob("orders/**/*") if path.is_file()]
    store.create_topic("orders", 1)
    store.archive()
    with ArchiveAddress(url).open() as log:
        assert log.bounds([ORDERS]) == {ORDERS: (0, 0)}


class Killed(BaseException):
    pass


def test_killed_removal_is_repeated(
    store: MessageStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed before each object that it writes or deletes. Readers with stale metadata see no new message."""
    put(store, "orders", "old", 30)
    store.archive(url)
    restarted(store)
    put(store, "orders", "new", 50)
    shutil.copytree(url, tmp_path / "before")
    left, verbs = 0, {name: getattr(LocalObjects, name) for name in ("write", "delete")}

    def counted(name: str) -> Callable[..., None]:
        def verb(*given: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            verbs[name](*given)

        return verb

    for name in verbs:
        monkeypatch.setattr(LocalObjects, name, counted(name))
    for moment in range(40):
        shutil.rmtree(url)
        shutil.copytree(tmp_path / "before", url)
        with ArchiveAddress(url).open() as reader:
            assert reader.bounds([ORDERS]) == {ORDERS: (0, 30)}
            held = reader.scan(QueueRange(ORDERS, 0, 30), ReadSpec(("body",), EVERYTHING, max_rows=1))
            left = moment
            try:
                store.archive(forget=["orders"])
                is_done = True
            except Killed:
                is_done = False
                left = 1000
                store.archive(forget=["orders"])
            left = 1000
            with suppress(OffsetLost):
                assert {body.decode()[:3] for batch in held for body in batch["body"].to_pylist()} == {"old"}
        assert archived(url) == named("new", 50)
        segments = [path for path in Path(url).rglob("orders/0/*/*") if path.is_file()]
        assert len(segments) == 2
        if is_done:
            break
    assert is_done
    assert 4 < moment < 40


def test_topic_is_recreated_while_it_is_archived(store: MessageStore, url: str) -> None:
    put(store, "orders", "old", 300)
    put(store, "other", "other", 3)
    of_store = StoreArchive(store.path, url, "")
    done: list[int] = []

    def progress(count: int, total: int) -> None:
        done.append(count)
        if count and done[-2] == 0:
            restarted(store)
            put(store, "orders", "new", 400)

    queues = [ORDERS, Queue("other", 0)]
    with pytest.raises(QueuesPassedOver, match=r"orders/0: the store.s message before offset"):
        of_store.run(
            store._published,
            ArchiveOrder(queues, lambda queue: store.max_offset(queue.topic, queue.queue_id)),
            progress,
            4096,
        )
    there = archived(url)
    assert 0 < len(there) < 300
    assert there == named("old", len(there))
    assert archived(url, Queue("other", 0)) == named("other", 3)
    assert store.archive(forget=["orders"]).forgotten == len(there)
    assert archived(url) == named("new", 400)


def test_reader_of_the_archive_detects_a_replaced_topic(store: MessageStore, url: str) -> None:
    put(store, "orders", "old", 30)
    store.archive(url)
    with ArchiveAddress(url).open() as log:
        last = log.fingerprints({ORDERS: 20})
        assert log.replaced({ORDERS: 20}, last) == []
        restarted(store)
        store.archive(forget=["orders"])
        assert log.replaced({ORDERS: 20}, last) == [ORDERS]
        put(store, "orders", "new", 50)
        store.archive()
        assert log.replaced({ORDERS: 20}, last) == [ORDERS]


def test_copy_during_a_removal_is_of_one_topic_only(store: MessageStore, url: str, tmp_path: Path) -> None:
    store.create_topic("orders", 2)
    for queue_id in range(2):
        put(store, "orders", "first", 5, queue_id)
    store.archive(url)
    restarted(store, 2)
    for queue_id in range(2):
        put(store, "orders", "second", 5, queue_id)

    def progress(done: int, total: int) -> None:
        if done == 5:
            assert store.archive(forget=["orders"]).forgotten == 10

    with pytest.raises(OffsetLost, match="were deleted from the archive"):
        restore(ArchiveAddress(url), tmp_path / "copy", ["orders"], progress=progress)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("is_archived_again", [False, True])
def test_removed_messages_are_not_skipped_by_a_key_search(
    store: MessageStore, url: str, *, is_archived_again: bool
) -> None:
    put(store, "orders", "first", 5)
    put(store, "other", "kept", 1)
    store.archive(url)
    restarted(store)
    put(store, "orders", "second", 2 * is_archived_again)
    store.archive(forget=["orders"])
    wanted = QueueRange(ORDERS, 0, 5)
    with ArchiveAddress(url).open() as log:
        last = log.with_keys([wanted], ["first0"])[-1]
        assert last.end == 5
        with pytest.raises((OffsetNotYet, UnknownTopic)):
            list(log.scan(last, SPEC))
