"""A message that was read can be written again, whatever the broker noted in its properties."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, Outcome, StoredMessage, TransactionProducer
from store.cluster.address import ClusterAddress
from store.format.entering import RESERVED
from store.format.layout import SCHEDULE_TOPIC
from store.remoting.serving import serve
from tests.pyspark_mq.cli.process import succeed
from tests.store.format.test_delayed import all_of
from tests.waiting import until

COLUMNS = ("body", "tags", "keys", "properties", "flag", "bornTimestamp")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic "orders" with messages that were delayed, timed, and committed in a transaction."""
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
