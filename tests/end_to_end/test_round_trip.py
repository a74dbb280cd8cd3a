from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from store import Message, MessageStore, Outcome, StoredMessage, TransactionProducer
from store.broker.retries import send_back
from store.cluster.address import ClusterAddress
from store.format.entering import RESERVED
from store.format.layout import DLQ_TOPIC_PREFIX, SCHEDULE_TOPIC
from store.remoting.serving import serve
from tests.end_to_end.written import save
from tests.pyspark_mq.cli.process import succeed
from tests.store.format.test_delayed import all_of
from tests.waiting import until

COLUMNS = ("body", "tags", "keys", "properties", "flag", "bornTimestamp")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic "orders" with messages that were delayed, timed, or committed in a transaction."""
    path = tmp_path_factory.mktemp("source") / "mq"
    with MessageStore.open(path) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"plain", tags="paid", keys=("k-1", "k-2"), properties={"region": "eu"}))
        store.put(Message("orders", b"delayed", tags="paid", delay_level=1))
        store.put(Message("orders", b"timed", properties={"region": "us"}, deliver_at=1))
        with TransactionProducer(store, "group", lambda _: Outcome.COMMIT) as producer:
            message = Message("orders", b"committed", keys="k-3", properties={"region": "eu"})
            producer.send(message, lambda *_: Outcome.COMMIT)
        until(lambda: store.max_offset("orders", 0) == 4)
        noted = {name for message in all_of(store, "orders") for name in message.properties}
    assert {"DELAY", "TRAN_MSG"} <= noted & RESERVED
    return path


def put(source: Path, copy: Path) -> None:
    with MessageStore.open(source, read_only=True) as there, MessageStore.open(copy) as store:
        for each in all_of(there, "orders"):
            store.put(Message("orders", each.body, each.tags, each.keys, each.properties, flag=each.flag))


def append_table(source: Path, copy: Path) -> None:
    with MessageStore.open(source, read_only=True) as there, MessageStore.open(copy) as store:
        store.append_table("orders", there.to_arrow("orders", COLUMNS))


def command_line(source: Path, copy: Path) -> None:
    lines = succeed("tail", source, "orders", "--until-end", "--json", "--from", "earliest")
    succeed("send", copy, "orders", "--json", stdin=lines.encode())


def cluster(source: Path, copy: Path) -> None:
    with MessageStore.open(source, read_only=True) as there, MessageStore.open(copy) as store:
        table = pa.Table.from_batches(there.to_arrow("orders", COLUMNS))
        with serve(store, "127.0.0.1:0") as serving, ClusterAddress((serving.address,)).open_writer() as log:
            append = log.begin()
            append.add("orders", table)
            append.publish()


def without_bookkeeping(messages: list[StoredMessage]) -> list[tuple[bytes, str | None, object, object]]:
    return [
        (each.body, each.tags, each.keys, {k: v for k, v in each.properties.items() if k not in RESERVED})
        for each in messages
    ]


def test_spark_writes_the_rows_that_it_read(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    options = {"subscribe": "orders", "includeProperties": "true"}
    read = spark.read.format("mq").options(**options).load(str(source))
    with MessageStore.open(tmp_path / "copy") as store:
        store.create_topic("orders", 1)
        save(read.select("body", "tags", "keys", "properties"), store, topic="orders")
        with MessageStore.open(source, read_only=True) as there:
            assert sorted(without_bookkeeping(all_of(store, "orders")), key=str) == sorted(
                without_bookkeeping(all_of(there, "orders")), key=str
            )


def test_dead_letters_can_be_written_again(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"fails", tags="paid", keys="k-1"))
        send_back(store, "group", all_of(store, "orders"), level=-1)
        dead = DLQ_TOPIC_PREFIX + "group"
        (letter,) = all_of(store, dead)
        store.put(Message("orders", letter.body, letter.tags, letter.keys, letter.properties))
        store.append_table("orders", store.to_arrow(dead, COLUMNS))
        again = [(each.body, each.tags, each.keys) for each in all_of(store, "orders")]
        assert again == [(b"fails", "paid", ("k-1",))] * 3


@pytest.mark.parametrize("write", [put, append_table, command_line, cluster], ids=lambda way: way.__name__)
def test_read_messages_can_be_written_again(source: Path, tmp_path: Path, write: Callable[[Path, Path], None]) -> None:
    copy = tmp_path / "copy"
    with MessageStore.open(copy) as store:
        store.create_topic("orders", 1)
    write(source, copy)
    with MessageStore.open(source, read_only=True) as there, MessageStore.open(copy, read_only=True) as store:
        written = all_of(store, "orders")
        assert not RESERVED & {name for each in written for name in each.properties}
        assert without_bookkeeping(written) == without_bookkeeping(all_of(there, "orders"))


def test_messages_of_rocketmqs_delay_topic_can_be_written(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "delayed-5.3"
    with MessageStore.open(golden, read_only=True) as there, MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("orders", 1)
        table = pa.Table.from_batches(there.to_arrow(SCHEDULE_TOPIC, COLUMNS))
        store.append_table("orders", table)
        assert len(all_of(store, "orders")) == table.num_rows > 0
