from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreClosed, StoreConfig
from store.api.store_tables import GROUPS_SCHEMA, TOPICS_SCHEMA, topic_rows, topics_html
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.layout import CONSUMER_OFFSETS_FILE, TOPICS_FILE

SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=2000)
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store whose topic t has messages in one of two queues, and topic u has none."""
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", 2)
        store.create_topic("u", 1)
        store.put_many([Message("t", b"body", queue_id=0)] * 3)
        yield store


def test_topics_table_counts_messages_and_bytes(store: MessageStore) -> None:
    table = store.topics_table()
    assert table.schema == TOPICS_SCHEMA
    t, u = table.to_pylist()
    assert abs(t.pop("newest") - datetime.now(UTC)) < timedelta(minutes=1)
    assert t == {"topic": "t", "queues": 2, "messages": 3, "bytes": store.confirm_offset}
    assert u == {"topic": "u", "queues": 1, "messages": 0, "bytes": 0, "newest": None}


def test_topics_table_counts_after_retention(store: MessageStore) -> None:
    store.put_many([Message("t", b"x" * 30_000, queue_id=1)] * 6)
    store.clean(now=time.time() + 100 * 3600, asked=True)
    first, end = store.offsets("t", 1)
    assert first > 0
    assert store.topics_table()["messages"].to_pylist() == [end - first, 0]


def test_empty_store_has_empty_tables(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        assert store.topics_table().equals(TOPICS_SCHEMA.empty_table())
        assert store.groups_table().equals(GROUPS_SCHEMA.empty_table())


def test_deleted_topic_has_no_row(store: MessageStore) -> None:
    assert [row.topic for row in topic_rows(store, ["gone", "t"])] == ["t"]


def test_large_topics_have_no_size_in_a_notebook(store: MessageStore) -> None:
    assert [row.size for row in topic_rows(store, ["t", "u"], 2)] == [None, 0]


def test_groups_table_has_lag_of_each_queue(store: MessageStore) -> None:
    store.commit_offsets("reads", "t", {0: 1})
    ConsumerOffsets(store.path).settings.create("idle")
    table = store.groups_table()
    assert table.schema == GROUPS_SCHEMA
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("idle", None, None, None, None, None),
        ("reads", "t", 0, 1, 3, 2),
        ("reads", "t", 1, None, 0, 0),
    ]


def test_pandas_takes_both_tables(store: MessageStore) -> None:
    store.commit_offsets("reads", "t", {0: 1})
    assert store.topics_table().to_pandas().set_index("topic")["messages"].to_dict() == {"t": 3, "u": 0}
    assert store.groups_table().to_pandas().groupby("group")["lag"].sum().to_dict() == {"reads": 2}


def test_tables_hold_hostile_names(store: MessageStore) -> None:
    store.commit_offsets("reads", "t", {0: 1})
    offsets = store.path / CONSUMER_OFFSETS_FILE
    offsets.write_text(offsets.read_text().replace("reads", SCRIPT))
    assert set(store.groups_table()["group"].to_pylist()) == {SCRIPT}


def test_notebook_shows_topics(store: MessageStore) -> None:
    shown = store._repr_html_()
    assert ">t</td>" in shown
    assert f">{store.confirm_offset:,}</td>" in shown


def test_notebook_shows_messages_of_last_minute(store: MessageStore) -> None:
    assert 'right">3</td></tr>' in store._repr_html_()


def test_notebook_shows_lag_of_groups(store: MessageStore) -> None:
    assert "Consumer groups" not in store._repr_html_()
    store.commit_offsets("reads", "t", {0: 1})
    shown = store._repr_html_()
    assert '>reads</td><td style="text-align: left">t</td><td style="text-align: right">2</td>' in shown


def test_notebook_shows_first_lags_of_many(store: MessageStore) -> None:
    for number in range(60):
        store.commit_offsets(f"g{number:02}", "t", {0: 1})
    assert "the other 10 are in groups_table()" in store._repr_html_()


def test_notebook_shows_first_topics_of_many(store: MessageStore) -> None:
    for number in range(60):
        store.create_topic(f"n{number:02}", 1)
    shown = topics_html(store)
    assert shown.count("<tr>") == 51
    assert "the other 12 are in topics_table()" in shown


def test_notebook_escapes_path_and_topics(tmp_path: Path) -> None:
    path = tmp_path / "<script>mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        topics = json.loads((path / TOPICS_FILE).read_text())
        topics["topicConfigTable"]["<script>"] = topics["topicConfigTable"]["t"]
        (path / TOPICS_FILE).write_text(json.dumps(topics))
        shown = store._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown + store._repr_html_()


def test_notebook_shows_errors(store: MessageStore) -> None:
    files = list((store.path / TOPICS_FILE).parent.glob("topics.json*"))
    sound = [path.read_bytes() for path in files]
    for path in files:
        path.write_text("{")
    assert str(store.path / TOPICS_FILE) in store._repr_html_()
    assert repr(store) == f"<MessageStore.open('{store.path}'): open, CorruptStore>"
    for path, content in zip(files, sound, strict=True):
        path.write_bytes(content)


def test_store_prints_its_state(store: MessageStore) -> None:
    assert repr(store) == f"<MessageStore.open('{store.path}'): open, 2 topics>"
    with MessageStore.open(store.path, read_only=True) as reader:
        assert repr(reader) == f"<MessageStore.open('{store.path}', read_only=True): open, 2 topics>"
    assert repr(reader) == f"<MessageStore.open('{store.path}', read_only=True): closed>"
    assert "was closed" in reader._repr_html_()
    with pytest.raises(StoreClosed):
        reader.topics_table()


def test_store_without_a_constructor_prints() -> None:
    assert repr(MessageStore.__new__(MessageStore)) == "<MessageStore: its constructor has not returned>"


def test_forked_store_prints_its_process(store: MessageStore) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, repr(store).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode() == f"<MessageStore.open('{store.path}'): opened in process {os.getpid()}>"
    os.close(read)
    os.close(write)
