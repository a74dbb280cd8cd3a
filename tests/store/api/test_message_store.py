"""The public methods compared with plain lists, on small files and from two stores on one directory; and their
errors."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import store as package
from store import (
    COLUMNS,
    GetStatus,
    InvalidColumns,
    Message,
    MessageRefused,
    MessageStore,
    OffsetLost,
    OffsetNotYet,
    PutStatus,
    ReadOnlyStore,
    StoreConfig,
    TagFilter,
    UnknownQueue,
    UnknownTopic,
)
from store.format.hashes import java_hash_code
from store.format.stored_message import offset_msg_id
from tests import seen
from tests.store.read.test_golden import GOLDEN

SMALL = StoreConfig(mappedFileSizeCommitLog=2048, mappedFileSizeConsumeQueue=5 * 20)
TOPICS = {"a": 2, "b": 3}
TAGS = st.sampled_from([None, "x", "y"])
ROWS = st.lists(st.tuples(st.binary(max_size=300), TAGS), min_size=1, max_size=12)
Row = tuple[bytes, str | None]


class Machine(RuleBasedStateMachine):
    """Two writing stores and a reader on one directory. The model has one list for each queue."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "mq"
        self.stores = [MessageStore.open(self.path, config=SMALL), MessageStore.open(self.path)]
        for topic, queues in TOPICS.items():
            self.stores[0].create_topic(topic, queues)
        self.reader = MessageStore.open(self.path, read_only=True)
        self.model: dict[tuple[str, int], list[Row]] = {(t, q): [] for t, n in TOPICS.items() for q in range(n)}

    def expect(self, topic: str, row: Row, queue: int, offset: int) -> None:
        assert len(self.model[topic, queue]) == offset
        self.model[topic, queue].append(row)

    @rule(writer=st.integers(0, 1), topic=st.sampled_from(sorted(TOPICS)), row=ROWS.map(lambda rows: rows[0]))
    def put(self, writer: int, topic: str, row: Row) -> None:
        result = self.stores[writer].put(Message(topic, row[0], tags=row[1]))
        assert result.status is PutStatus.PUT_OK
        assert result.msg_id == offset_msg_id(SMALL.store_host[0], SMALL.store_host[1], result.physical_offset)
        self.expect(topic, row, result.queue_id, result.queue_offset)

    @rule(writer=st.integers(0, 1), rows=st.lists(st.tuples(st.sampled_from(sorted(TOPICS)), ROWS), max_size=3))
    def put_many(self, writer: int, rows: list[tuple[str, list[Row]]]) -> None:
        flat = [(topic, row) for topic, some in rows for row in some]
        results = self.stores[writer].put_many([Message(topic, body, tags=tags) for topic, (body, tags) in flat])
        for (topic, row), result in zip(flat, results, strict=True):
            self.expect(topic, row, result.queue_id, result.queue_offset)

    @rule(
        writer=st.integers(0, 1), topic=st.sampled_from(sorted(TOPICS)), rows=ROWS, queue=st.none() | st.integers(0, 1)
    )
    def append_table(self, writer: int, topic: str, rows: list[Row], queue: int | None) -> None:
        columns: dict[str, Any] = {
            "body": pa.array([body for body, _ in rows], pa.binary()),
            "tags": pa.array([tags for _, tags in rows], pa.string()),
        }
        if queue is not None:
            columns["queueId"] = [queue] * len(rows)
        result = self.stores[writer].append_table(topic, pa.table(columns))
        for row, queue_id, offset in zip(rows, result.queue_ids.tolist(), result.queue_offsets.tolist(), strict=True):
            assert queue in (None, queue_id)
            self.expect(topic, row, queue_id, offset)

    @rule(writer=st.integers(0, 1))
    def refused(self, writer: int) -> None:
        with pytest.raises(MessageRefused, match="and a commit log segment has"):
            self.stores[writer].put_many([Message("a", b"fits"), Message("a", bytes(2048))])

    @rule(writer=st.integers(0, 1))
    def reopen(self, writer: int) -> None:
        self.stores[writer].close()
        self.stores[writer] = MessageStore.open(self.path)

    @rule()
    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = MessageStore.open(self.path, read_only=True)

    @rule(writer=st.integers(0, 1))
    def flush(self, writer: int) -> None:
        self.stores[writer].flush()

    @rule(data=st.data(), name=st.sampled_from([(t, q) for t, n in TOPICS.items() for q in range(n)]))
    def scan(self, data: st.DataObject, name: tuple[str, int]) -> None:
        rows = self.model[name]
        start = data.draw(st.integers(0, len(rows)))
        end = data.draw(st.integers(start, len(rows)))
        tags = data.draw(st.sampled_from([None, "x", "y || x", "z"]))
        limits = data.draw(st.sampled_from([{}, {"max_rows": 2}, {"max_bytes": 300}]))
        batches = list(
            self.reader.scan(*name, start, end, columns=("body", "queueOffset", "tags"), tags=tags, **limits)
        )
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        accept = TagFilter.parse(tags)
        assert found == [(rows[n][0], n, rows[n][1]) for n in range(start, end) if accept.match(rows[n][1], {})]
        assert all(batch.num_rows <= 2 for batch in batches) or "max_rows" not in limits

    @invariant()
    def all_see_the_same(self) -> None:
        for store in (*self.stores, self.reader):
            for name, rows in self.model.items():
                assert store.offsets(*name) == (0, len(rows))

    def teardown(self) -> None:
        if hasattr(self, "model"):
            for name, rows in self.model.items():
                offset, found = 0, []
                while offset < len(rows):
                    result = self.reader.get_message("g", *name, offset)
                    assert result.status is GetStatus.FOUND
                    found += [(message.body, message.tags) for message in result.messages]
                    offset = result.next_begin_offset
                assert found == rows
            for store in (*self.stores, self.reader):
                store.close()
            assert not (self.path / "abort").exists()
            self.folder.cleanup()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("orders", 2)
        yield store


def test_everything_public_is_exported() -> None:
    assert sorted(package.__all__) == package.__all__ or len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert hasattr(package, name)


@pytest.mark.parametrize("topic", ["nope", "order", "../config"])
def test_unknown_topic_is_refused(orders: MessageStore, topic: str) -> None:
    message = rf"topic '{topic}' does not exist. Existing topics: orders"
    for verb in (
        lambda: orders.put(Message(topic, b"")),
        lambda: orders.append_table(topic, pa.table({"body": [b""]})),
        lambda: orders.offsets(topic, 0),
        lambda: orders.scan(topic, 0, 0, 0),
        lambda: orders.sizes(topic, 0, 0, 0),
    ):
        with pytest.raises(UnknownTopic, match=message):
            verb()
    assert orders.get_message("g", topic, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert orders.topics() == {"orders": 2}


@pytest.mark.parametrize("queue", [-1, 2, 1 << 40])
def test_queue_out_of_range_is_refused(orders: MessageStore, queue: int) -> None:
    message = rf"topic 'orders' has queues 0 to 1, not {queue}"
    for verb in (
        lambda: orders.put(Message("orders", b"", queue_id=queue)),
        lambda: orders.append_table("orders", pa.table({"body": [b"", b""], "queueId": [0, queue]})),
        lambda: orders.offsets("orders", queue),
        lambda: orders.scan("orders", queue, 0, 0),
    ):
        with pytest.raises(UnknownQueue, match=message):
            verb()
    assert orders.confirm_offset == 0


def test_offsets_out_of_range_are_refused(orders: MessageStore) -> None:
    orders.put(Message("orders", b"", queue_id=0))
    with pytest.raises(
        OffsetNotYet, match=r"'orders', queue 0: asked for messages up to offset 2, but the queue ends at 1"
    ):
        orders.scan("orders", 0, 0, 2)
    with pytest.raises(OffsetLost, match=r"'orders', queue 0: offset -1 was deleted\. Begin at offset 0"):
        orders.scan("orders", 0, -1, 1)
    with pytest.raises(InvalidColumns, match=r"unknown columns value\. The columns are topic, queueId"):
        orders.scan("orders", 0, 0, 1, columns=("body", "value"))


def test_refused_append_leaves_nothing(orders: MessageStore) -> None:
    good = Message("orders", b"good", queue_id=0)
    for bad, status in (
        (Message("orders", bytes((4 << 20) + 1), queue_id=0), PutStatus.MESSAGE_ILLEGAL),
        (Message("orders", b"", queue_id=0, properties={"p": "v" * 40_000}), PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ):
        with pytest.raises(MessageRefused) as refused:
            orders.put_many([good, bad])
        assert refused.value.status is status
    assert orders.offsets("orders", 0) == (0, 0)
    assert orders.put(good).physical_offset == 0


def test_reader_does_not_write(orders: MessageStore) -> None:
    with MessageStore.open(orders.path, read_only=True) as reader:
        for verb in (
            lambda: reader.put(Message("orders", b"")),
            lambda: reader.put_many([]),
            lambda: reader.append_table("orders", pa.table({"body": [b""]})),
            lambda: reader.create_topic("t"),
            lambda: reader.flush(),
        ):
            with pytest.raises(ReadOnlyStore, match="the store is open with read_only=True"):
                verb()


def test_messages_without_a_queue_are_spread(orders: MessageStore) -> None:
    assert [orders.put(Message("orders", b"")).queue_id for _ in range(4)] == [0, 1, 0, 1]
    result = orders.append_table("orders", pa.table({"body": [b""] * 3}))
    assert result.queue_ids.tolist() == [0, 1, 0]
    assert orders.put(Message("orders", b"")).queue_id == 1
    keys = ["o-1", "o-2", "é", "polygenelubricants", None, ""]
    table = pa.table({"body": [b""] * len(keys), "shardingKey": keys})
    by_table = orders.append_table("orders", table).queue_ids.tolist()
    for key, queue in zip(keys[:4], by_table, strict=False):
        assert key is not None
        assert queue == abs(java_hash_code(key)) % 2
        assert orders.put(Message("orders", b"", sharding_key=key)).queue_id == queue


def test_putting_no_message_appends_nothing(orders: MessageStore) -> None:
    assert orders.put_many([]) == []
    assert len(orders.append_table("orders", pa.table({"body": pa.array([], pa.binary())}))) == 0
    assert orders.confirm_offset == 0


def test_put_message_has_all_columns(orders: MessageStore) -> None:
    put = orders.put(
        Message(
            "orders",
            b"body",
            tags="paid",
            keys=("k1", "k2"),
            properties={"region": "eu"},
            queue_id=1,
            flag=-7,
            born_timestamp=1234,
        )
    )
    (batch,) = orders.scan("orders", 1, 0, 1, columns=tuple(COLUMNS))
    assert batch.schema == pa.schema(list(COLUMNS.items()))
    (row,) = batch.to_pylist()
    (message,) = orders.get_message("g", "orders", 1, 0).messages
    assert dict(row["properties"]) == message.properties == {"region": "eu", "TAGS": "paid", "KEYS": "k1 k2"}
    assert row["msgId"] == message.msg_id == put.msg_id
    assert row["bornTimestamp"].timestamp() == 1.234
    assert round(row["storeTimestamp"].timestamp() * 1000) == message.store_timestamp
    assert (row["keys"], message.keys) == ("k1 k2", ("k1", "k2"))
    assert row["flag"] == message.flag == -7


def test_early_reader_learns_the_sizes_of_a_brokers_files(tmp_path: Path) -> None:
    """RocketMQ creates the folders at its start, and files of any size for the first message."""
    path = tmp_path / "mq"
    (path / "commitlog").mkdir(parents=True)
    with MessageStore.open(path, read_only=True) as early:
        assert early.topics() == {}
        assert early.confirm_offset == early.dispatched_offset == 0
        shutil.copytree(GOLDEN / "clean", path, dirs_exist_ok=True)
        seen.assert_same(seen.by_scan(early), seen.golden(GOLDEN / "clean.jsonl"))
        seen.assert_same(seen.by_get_message(early), seen.golden(GOLDEN / "clean.jsonl"))


def test_early_reader_learns_the_sizes_of_the_first_writer(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    (path / "commitlog").mkdir(parents=True)
    with MessageStore.open(path, read_only=True) as early:
        assert early.confirm_offset == 0
        with MessageStore.open(path, config=SMALL) as store:
            store.create_topic("a", 1)
            assert early.offsets("a", 0) == (0, 0)
            store.put_many([Message("a", b"x" * n) for n in range(100)])
            early.wait(0, timeout=60)
            rows = [body for batch in early.scan("a", 0, 0, 100, ("body",)) for body in batch["body"].to_pylist()]
            assert rows == [b"x" * n for n in range(100)]


def test_sizes_are_lengths_of_records(orders: MessageStore) -> None:
    results = orders.put_many([Message("orders", bytes(n), queue_id=0) for n in range(5)])
    sizes = orders.sizes("orders", 0, 0, 5).tolist()
    assert sizes == [results[0 + 1].physical_offset - results[0].physical_offset + n for n in range(5)]
    assert results[-1].physical_offset + sizes[-1] == orders.confirm_offset


def test_tables_go_round_trip(orders: MessageStore) -> None:
    orders.put(Message("orders", b"x", tags="paid", keys=("k",), properties={"p": "q"}, queue_id=0))
    names = ("body", "tags", "keys", "properties", "queueId", "flag", "bornTimestamp")
    first = pa.Table.from_batches(orders.scan("orders", 0, 0, 1, columns=names))
    orders.append_table("orders", first)
    second = pa.Table.from_batches(orders.scan("orders", 0, 1, 2, columns=names))
    assert sorted(second["properties"][0].as_py()) == sorted(first["properties"][0].as_py())
    assert second.drop(["properties"]) == first.drop(["properties"])


def test_wait_returns_after_a_put(orders: MessageStore) -> None:
    seen = orders.confirm_offset
    assert orders.wait(seen, 0.01) == seen
    orders.put(Message("orders", b""))
    assert orders.wait(seen, 30) == orders.confirm_offset > seen


def test_several_threads_wait_concurrently(orders: MessageStore) -> None:
    waiting, rounds = 4, 50
    steps = threading.Barrier(waiting + 1)

    def follow() -> int:
        seen = orders.confirm_offset
        for _ in range(rounds):
            steps.wait(30)
            now = orders.wait(seen, 60)
            assert now > seen
            seen = now
        return seen

    with ThreadPoolExecutor(waiting) as threads:
        ends = [threads.submit(follow) for _ in range(waiting)]
        for _ in range(rounds):
            steps.wait(30)
            orders.put(Message("orders", b""))
        assert {end.result(30) for end in ends} == {orders.confirm_offset}


def test_close_is_idempotent(orders: MessageStore) -> None:
    orders.close()
    orders.close()


def test_short_lived_writers_spread_messages_over_queues(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.create_topic("t", 3)
    queue_ids = []
    for _ in range(6):
        with MessageStore.open(tmp_path / "store") as store:
            queue_ids.append(store.put(Message("t", b"")).queue_id)
    assert queue_ids == [0, 1, 2, 0, 1, 2]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at open files where Linux shows them")
@pytest.mark.parametrize("read_only", [False, True])
def test_closed_store_has_no_file_open(tmp_path: Path, read_only: bool) -> None:
    """Without garbage collection, because an open deleted file keeps its disk space. Only the page of the published end
    stays mapped."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"body", keys=("k",)) for _ in range(20)])
    gc.disable()
    try:
        with MessageStore.open(tmp_path, read_only=read_only) as store:
            if not read_only:
                store.append_table("t", pa.table({"body": [b"body"] * 20, "keys": ["k"] * 20}))
            assert len(store.query("t", "k")) >= 20
            batches = list(store.scan("t", 0, 0, 20))
            assert store.wait(0, 0) > 0
            assert any(str(tmp_path) in name for name in open_files())
        del batches
        assert {Path(name.split()[-1]).name for name in open_files() if str(tmp_path) in name} <= {"watermark"}
    finally:
        gc.enable()


def open_files() -> list[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [os.readlink(link) for link in links] + Path("/proc/self/maps").read_text().splitlines()
