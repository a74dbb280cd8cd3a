from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import CorruptStore, Message, MessageStore, StoreConfig, UnknownTopic
from store.api.message_store import delete_topic
from store.disk.queue_ends import QueueEnds
from store.disk.topic_table import Tombstone
from store.disk.topics import Topics
from store.format.layout import DELETED_DIR, PUBLISHED_END_FILE, TOPICS_FILE
from store.upkeep import deletion
from store.upkeep.verify import verify

ENTRIES = 5
CONFIG = StoreConfig(
    mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=ENTRIES * 20, maxHashSlotNum=50, maxIndexNum=400
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mq"


@pytest.fixture
def stores(path: Path) -> Iterator[tuple[MessageStore, MessageStore]]:
    with MessageStore.open(path, config=CONFIG) as one, MessageStore.open(path) as other:
        one.create_topic("t", 1)
        one.create_topic("other", 1)
        one.put(Message("other", b"kept"))
        yield one, other


def put(store: MessageStore, body: str, count: int) -> None:
    store.put_many([Message("t", f"{body} {n}".encode(), keys=("k",)) for n in range(count)])


def bodies(store: MessageStore, topic: str = "t") -> list[bytes]:
    return [row for batch in store.to_arrow(topic, ["body"]) for row in batch["body"].to_pylist()]


def new(count: int) -> list[bytes]:
    return [f"new {n}".encode() for n in range(count)]


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("after", [0, 1, 4, 5, 12, 13, 20])
@pytest.mark.parametrize("before", [1, 4, 5, 12])
def test_writers_continue_at_the_old_end(
    path: Path, stores: tuple[MessageStore, MessageStore], before: int, after: int, flushed: bool
) -> None:
    for store in stores:
        put(store, "old", before)
        assert len(bodies(store)) >= before
        if flushed:
            store.flush()
    stores[0].commit_offsets("g", "t", {0: 1})
    delete_topic(path, "t")
    for store in stores:
        with pytest.raises(UnknownTopic):
            put(store, "late", 1)
        with pytest.raises(UnknownTopic):
            store.offsets("t", 0)
        assert store.topics() == {"other": 1}
        assert bodies(store, "other") == [b"kept"]
    stores[0].create_topic("t", 1)
    put(stores[1], "new", after)
    for store in stores:
        assert store.offsets("t", 0) == (2 * before, 2 * before + after)
        assert bodies(store) == new(after)
        assert store.consumer_offset("g", "t", 0) == 1
        assert len(store.query("t", "k")) == after
    put(stores[0], "more", 1)
    put(stores[1], "more", 1)
    assert bodies(stores[0]) == [*new(after), b"more 0", b"more 0"]
    for store in stores:
        store.close()
    ends = QueueEnds.read(path)
    assert ends is not None
    assert ends.of == {("t", 0): 2 * before + after + 2, ("other", 0): 1}
    assert verify(path).findings == []
    for file in (PUBLISHED_END_FILE, "nothing"):
        (path / file).unlink(missing_ok=True)
        with MessageStore.open(path) as store:
            assert bodies(store) == [*new(after), b"more 0", b"more 0"]


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("few", [True, False])
def test_running_append_fails_or_goes_into_the_new_topic(
    path: Path, stores: tuple[MessageStore, MessageStore], few: bool, is_created_again: bool
) -> None:
    store, other = stores
    put(store, "old", 7)
    append, end = store.begin(), store.confirm_offset
    append.add_messages([Message("other", b"with it")])
    append.add_messages([Message("t", f"new {n}".encode()) for n in range(2 if few else 200)])
    delete_topic(path, "t")
    if is_created_again:
        other.create_topic("t", 1)
        append.publish()
        assert bodies(other) == new(2 if few else 200)
        assert bodies(other, "other") == [b"kept", b"with it"]
    else:
        with pytest.raises(UnknownTopic, match="topic 't' was deleted"):
            append.publish()
        assert store.confirm_offset == end
        other.put(Message("other", b"more"))
        assert bodies(store, "other") == [b"kept", b"more"]
        assert "t" not in other.topics()


def test_running_append_fails_if_the_new_topic_lacks_its_queue(
    path: Path, stores: tuple[MessageStore, MessageStore]
) -> None:
    """Readers that know the number of queues would not look there."""
    store, other = stores
    store.create_topic("t", 2)
    append = store.begin()
    append.add_messages([Message("t", b"new", queue_id=1)])
    delete_topic(path, "t")
    other.create_topic("t", 1)
    with pytest.raises(UnknownTopic, match=r"queue 1 of topic 't' was deleted\. Nothing was appended\. Create"):
        append.publish()
    assert (other.topics()["t"], store.offsets("t", 0)) == (1, (0, 0))


def test_joining_and_idle_writers_continue_at_the_old_end(
    path: Path, stores: tuple[MessageStore, MessageStore]
) -> None:
    store, idle = stores
    for round_ in range(3):
        put(store, "old", 12 - round_)
        store.flush()
        with MessageStore.open(path) as joined:
            delete_topic(path, "t")
            joined.create_topic("t", 1)
            put(joined, "new", 3 + round_)
    put(idle, "more", 1)
    assert bodies(store) == [*new(5), b"more 0"]
    store.close()
    idle.close()
    ends = QueueEnds.read(path)
    assert ends is not None
    assert ends.of == {("t", 0): 12 + 3 + 11 + 4 + 10 + 6, ("other", 0): 1}


def test_dead_deletion_is_finished_by_the_next_open_or_append(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", 1)
        put(store, "old", 12)
        store.commit_offsets("g", "t", {0: 2})
        store.flush()
        end = store.confirm_offset
    (path / DELETED_DIR / "t").mkdir(parents=True)
    Topics(path).delete("t", Tombstone(end, (12,)))
    assert Topics(path).queue_counts() == {}
    with (
        MessageStore.open(shutil.copytree(path, tmp_path / "copy"), read_only=True) as reader,
        pytest.raises(UnknownTopic),
    ):
        reader.offsets("t", 0)
    assert verify(path).findings == []
    with MessageStore.open(path) as store:
        assert store.create_topic("t", 1) == 1
        assert store.offsets("t", 0) == (12, 12)
        put(store, "new", 1)
        assert bodies(store) == new(1)
    assert not (path / DELETED_DIR).exists()


def test_dead_deletion_is_finished_by_an_open_store(
    path: Path, stores: tuple[MessageStore, MessageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = stores

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for life in range(3):
        put(store, "old", 7)
        other.commit_offsets("g", "t", {0: 2})
        with monkeypatch.context() as patch:
            patch.setattr(deletion, "finish_deletion", die)
            with pytest.raises(KeyboardInterrupt):
                delete_topic(path, "t")
        assert (path / DELETED_DIR).exists()
        if life == 1:
            other.put(Message("other", b"first"))
            assert not (path / DELETED_DIR).exists()
        other.create_topic("t", 1)
        assert store.offsets("t", 0) == (7 * (life + 1), 7 * (life + 1))
        assert bodies(other) == []


def test_writer_joins_after_all_topics_were_deleted(path: Path, stores: tuple[MessageStore, MessageStore]) -> None:
    put(stores[0], "old", 7)
    for topic in ("t", "other"):
        delete_topic(path, topic)
    with MessageStore.open(path) as joined:
        assert joined.topics() == {}
        joined.create_topic("t", 1)
        put(joined, "new", 3)
        assert bodies(stores[1]) == new(3)


def test_deletion_does_not_touch_earlier_deleted_topics(path: Path, stores: tuple[MessageStore, MessageStore]) -> None:
    """Otherwise the cost would grow with the number of deletions, and a folder may exist again without a table
    entry."""
    delete_topic(path, "t")
    again = path / "consumequeue" / "t" / "0"
    again.mkdir(parents=True)
    delete_topic(path, "other")
    assert again.exists()
    assert stores[0].topics() == {}


def test_restored_older_table_of_topics(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It lists the topic as deleted, and not as recreated."""
    with MessageStore.open(path, config=CONFIG) as store:
        for topic in ("t", "other"):
            store.create_topic(topic, 1)
            store.put(Message(topic, b"old"))
    for topic in ("t", "other"):
        delete_topic(path, topic)
    older = (path / TOPICS_FILE).read_bytes()
    with MessageStore.open(path) as store:
        store.create_topic("t", 3)
        store.create_topic("other", 1)
        store.put(Message("t", b"new", queue_id=2))
    (path / TOPICS_FILE).write_bytes(older)
    (finding,) = verify(path).findings
    assert finding.what.startswith("topic t has messages after its deletion, which readers do not see")
    for _ in range(2):
        with MessageStore.open(path) as store:
            assert store.topics() == {"t": 3}
            assert bodies(store) == [b"new"]
            assert store.max_offset("t", 0) == 1
    assert [record.message for record in caplog.records if "has messages after" in record.message] == [
        f"{path}: topic t has messages after its deletion, so the file {TOPICS_FILE} is older than the log. "
        "The topic is listed again. Check which other topics are missing"
    ]
    assert verify(path).findings == []


@pytest.mark.parametrize("file", ["producers/x/reached.json"])
def test_nothing_is_deleted_if_a_file_cannot_be_read(
    path: Path, stores: tuple[MessageStore, MessageStore], file: str
) -> None:
    """Otherwise the next append would have to finish the deletion, and could not."""
    put(stores[0], "old", 3)
    (path / file).parent.mkdir(parents=True, exist_ok=True)
    (path / file).write_text("{x")
    with pytest.raises(CorruptStore, match=file.rpartition("/")[2]):
        delete_topic(path, "t")
    put(stores[1], "more", 1)
    assert stores[0].offsets("t", 0) == (0, 4)


def test_saved_ends_are_older_than_a_deletion(path: Path, tmp_path: Path) -> None:
    """The recreated topic begins at the old end, even after a crash."""
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.create_topic("other", 1)
        put(store, "old", 30)
    with MessageStore.open(path) as store:
        store.delete_topic("t")
        store.put_many([Message("other", b"x" * 500)] * 60)
        assert store.clean(forced=True).log
        store.create_topic("more", 1)
        store.delete_topic("more")
        store.create_topic("t", 1)
        store.flush()
        crashed = shutil.copytree(path, tmp_path / "crashed")
    with MessageStore.open(crashed) as store:
        assert store.offsets("t", 0) == (30, 30)
