"""A consumer's messages equal the results of `get_message`, whichever attribute is read first."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoredMessage
from store.client.received_messages import COLUMNS, Columns, FewColumns, Messages
from store.directory.directory_log import DirectoryLog
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING

FIELDS = (*StoredMessage._fields, "tags", "keys")
GOLDEN = Path(__file__).parents[2] / "golden"


def received(store: MessageStore, topic: str, queue_id: int) -> list[Messages]:
    wanted = QueueRange(Queue(topic, queue_id), *store.offsets(topic, queue_id))
    batches = DirectoryLog(store).scan(wanted, ReadSpec(COLUMNS, EVERYTHING, max_rows=5))
    return [Messages(Columns(wanted.queue, batch), 0, len(batch)) for batch in batches]


@pytest.mark.parametrize("name", ["properties-4.9", "hosts-5.3", "compressed-5.3", "transactions-5.3", "delayed-5.3"])
def test_messages_of_a_broker_equal_get_message(name: str) -> None:
    with MessageStore.open(GOLDEN / name, read_only=True) as store:
        seen = 0
        for topic, queues in store.topics().items():
            for queue_id in range(queues):
                stored = store.get_message("g", topic, queue_id, *store.offsets(topic, queue_id)[:1]).messages
                got = [message for messages in received(store, topic, queue_id) for message in messages]
                few = Messages(FewColumns(Queue(topic, queue_id), stored), 0, len(stored))
                for one, other in [*zip(got, stored, strict=False), *zip(few, stored, strict=True)]:
                    assert [getattr(one, field) for field in FIELDS] == [getattr(other, field) for field in FIELDS]
                    assert pickle.loads(pickle.dumps(one)) == one.stored() == other
                    seen += 1
        assert seen


@pytest.fixture(params=["as columns", "one by one"])
def messages(tmp_path: Path, request: pytest.FixtureRequest) -> Messages:
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"x" * n, tags=f"t{n}" if n % 2 else None, queue_id=0) for n in range(5)])
        (all_of_them,) = received(store, "t", 0)
        found = DirectoryLog(store).few(QueueRange(Queue("t", 0), 0, 5))
        assert found is not None
        return all_of_them if request.param == "as columns" else Messages(FewColumns(Queue("t", 0), found), 0, 5)


def test_messages_are_a_sequence(messages: Messages) -> None:
    assert [m.queue_offset for m in messages] == [0, 1, 2, 3, 4]
    assert [m.queue_offset for m in messages[1:3]] == [1, 2]
    assert [m.queue_offset for m in messages[3:1]] == []
    assert [m.queue_offset for m in messages[::-2]] == [4, 2, 0]
    assert [m.queue_offset for m in messages[1:][1:]] == [2, 3, 4]
    assert (messages[-1].tags, messages[1].tags, messages[1].keys) == (None, "t1", ())
    with pytest.raises(IndexError):
        messages[2:][3]


def test_messages_can_be_split_by_size(messages: Messages) -> None:
    for count in range(6):
        first, others = messages.cut(count)
        assert [m.queue_offset for m in (*first, *others)] == [0, 1, 2, 3, 4]
        assert (len(first), first.body_bytes + others.body_bytes) == (count, 10)
        assert first.body_bytes == sum(range(count))


def test_retried_message_has_its_original_topic(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x"))
        (of_topic,) = received(store, "t", 0)
    batch = of_topic._columns._batch
    index = batch.schema.get_field_index("properties")
    field = batch.schema.field(index)
    retried = batch.set_column(index, field, pa.array([[("RETRY_TOPIC", "first")]], field.type))
    assert Messages(Columns(Queue("%RETRY%g", 0), retried), 0, 1)[0].topic == "first"
    assert Messages(Columns(Queue("t", 0), retried), 0, 1)[0].topic == "t"
    few = [of_topic[0].stored()._replace(properties={"RETRY_TOPIC": "first"})]
    assert Messages(FewColumns(Queue("%RETRY%g", 0), few), 0, 1)[0].topic == "first"
    assert Messages(FewColumns(Queue("t", 0), few), 0, 1)[0].topic == "t"


@pytest.mark.parametrize("at", [0, -62_135_596_800_000, 253_402_300_799_999, -62_135_596_800_001, 253_402_300_800_000])
def test_extreme_times_are_read_alike(tmp_path: Path, at: int) -> None:
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        append = store.begin()
        append.add_messages([Message("t", b"x")], {"born_timestamp": at})
        append.publish()
        ((of_scan,),) = received(store, "t", 0)
        found = DirectoryLog(store).few(QueueRange(Queue("t", 0), 0, 1))
        assert found is not None
        (few,) = Messages(FewColumns(Queue("t", 0), found), 0, 1)
    assert few.born_timestamp == of_scan.born_timestamp
    assert (few.born_timestamp is None) == (abs(at) in (62_135_596_800_001, 253_402_300_800_000))


def test_few_returns_all_messages_or_none(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"x" * 100_000) for _ in range(5)])
        log = DirectoryLog(store)
        assert len(log.few(QueueRange(Queue("t", 0), 1, 3)) or ()) == 2
        assert log.few(QueueRange(Queue("t", 0), 0, 5)) is None
        assert log.few(QueueRange(Queue("t", 0), 3, 6)) is None


def test_retry_in_place_counts_as_reconsumption(messages: Messages) -> None:
    assert [m.reconsume_times for m in messages] == [0] * 5
    assert [m.reconsume_times for m in messages[1:3]] == [0, 0]
    assert [m.reconsume_times for m in messages.tried().tried()] == [2] * 5
