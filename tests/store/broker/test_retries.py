from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import InvalidGroup, Message, MessageStore, StoreConfig, StoredMessage
from store.archive.archive_log import ArchiveAddress
from store.broker.retries import send_back
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.layout import GROUPS_FILE, SCHEDULE_DELAYS_MS, SCHEDULE_TOPIC
from store.model.log_protocol import Queue, QueueRange
from store.upkeep.verify import verify
from tests.waiting import until

RETRY, DEAD = "%RETRY%workers", "%DLQ%workers"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 2)
        rows = [
            Message(
                "orders", b"%d" % n, "A", f"k{n}", {"region": "eu"}, queue_id=n % 2, flag=n, born_timestamp=1000 + n
            )
            for n in range(6)
        ]
        it.put_many(rows)
        yield it
    assert verify(tmp_path / "mq").findings == []


def messages(store: MessageStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    return store.get_message("workers", topic, queue_id, 0).messages


def test_first_retry_waits_at_level_three(store: MessageStore) -> None:
    failed = messages(store, "orders")
    placed = send_back(store, "workers", failed)
    waiting = messages(store, SCHEDULE_TOPIC, 2)
    assert placed.physical_offsets.tolist() == [each.physical_offset for each in waiting]
    assert len({each.store_timestamp for each in waiting}) == 1
    for was, now in zip(failed, waiting, strict=True):
        assert (now.body, now.flag, now.born_timestamp, now.born_host) == (
            was.body,
            was.flag,
            was.born_timestamp,
            was.born_host,
        )
        assert now.reconsume_times == 1
        assert now.properties == {
            **was.properties,
            "RETRY_TOPIC": "orders",
            "ORIGIN_MESSAGE_ID": was.msg_id,
            "REAL_TOPIC": RETRY,
            "REAL_QID": "0",
            "DELAY": "3",
            "WAIT": "false",
        }
    due = waiting[0].store_timestamp + SCHEDULE_DELAYS_MS[2]
    assert store.tags_codes(SCHEDULE_TOPIC, 2, 0, 3).tolist() == [due] * 3
    assert store.topics()[RETRY] == 1


@pytest.mark.parametrize(("times", "level", "queue"), [(1, 0, 3), (14, 0, 16), (15, 0, 17), (1, 5, 4), (1, 99, 17)])
def test_later_retries_wait_longer(store: MessageStore, times: int, level: int, queue: int) -> None:
    failed = messages(store, "orders")[:1]
    for number in range(times):
        send_back(store, "workers", failed, level=1, max_reconsume_times=100)
        failed = messages(store, SCHEDULE_TOPIC, 0)[number:]
    send_back(store, "workers", failed, level=level)
    (waiting,) = messages(store, SCHEDULE_TOPIC, queue)
    assert waiting.reconsume_times == times + 1
    assert waiting.properties["DELAY"] == str(queue + 1)
    assert waiting.properties["RETRY_TOPIC"] == "orders"
    assert waiting.properties["ORIGIN_MESSAGE_ID"] == messages(store, "orders")[0].msg_id


def test_message_becomes_a_dead_letter_after_its_last_retry(store: MessageStore) -> None:
    fresh, other, again = messages(store, "orders")
    send_back(store, "workers", [again], level=1)
    again = messages(store, SCHEDULE_TOPIC, 0)[0]
    placed = send_back(store, "workers", [again, fresh, other], level=2, max_reconsume_times=1)
    (dead,) = messages(store, DEAD)
    assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (again.body, 2, "0")
    assert [each.body for each in messages(store, SCHEDULE_TOPIC, 1)] == [fresh.body, other.body]
    assert placed.queue_ids.tolist() == [0, 1, 1]
    assert placed.physical_offsets[0] == dead.physical_offset


def test_dead_letters_on_request(store: MessageStore) -> None:
    send_back(store, "workers", messages(store, "orders"), level=-1)
    assert [each.body for each in messages(store, DEAD)] == [b"0", b"2", b"4"]
    assert SCHEDULE_TOPIC not in store.topics()


def test_settings_of_the_group_count(store: MessageStore) -> None:
    ConsumerOffsets(store.path).settings.create("workers")
    file = store.path / GROUPS_FILE
    content = json.loads(file.read_text())
    content["subscriptionGroupTable"]["workers"] |= {"retryMaxTimes": 0, "retryQueueNums": 3}
    file.write_text(json.dumps(content))
    failed = messages(store, "orders")
    send_back(store, "workers", failed)
    assert len(messages(store, DEAD)) == 3
    send_back(store, "workers", failed, max_reconsume_times=5)
    assert store.topics()[RETRY] == 3


def test_archived_message_is_sent_back(store: MessageStore, tmp_path: Path) -> None:
    """Its log offset belongs to the archive: in this log another record is there, or none."""
    archive = str(tmp_path / "archive")
    store.archive(archive)
    with ArchiveAddress(archive).open() as log:
        failed = [each for queue_id in (1, 0) for each in log.messages(QueueRange(Queue("orders", queue_id), 0, 3))]
    there = {each.physical_offset for queue_id in (0, 1) for each in messages(store, "orders", queue_id)}
    assert {each.physical_offset for each in failed} <= there
    failed.append(failed[2]._replace(physical_offset=1 << 40, queue_offset=3))
    failed[4:4] = messages(store, "orders")[1:2]
    for level, topic, queue_id in ((2, SCHEDULE_TOPIC, 1), (-1, DEAD, 0)):
        placed = send_back(store, "workers", failed, level=level)
        came = messages(store, topic, queue_id)
        assert placed.queue_offsets.tolist() == [each.queue_offset for each in came]
        for was, now in zip(failed, came, strict=True):
            for name in ("body", "body_crc", "tags", "keys", "flag", "sys_flag", "born_timestamp", "born_host"):
                assert getattr(now, name) == getattr(was, name)
            assert (now.reconsume_times, now.properties["RETRY_TOPIC"]) == (1, "orders")


def test_deleted_message_is_sent_back(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "small", config=StoreConfig(mappedFileSizeCommitLog=1 << 16)) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", b"%d" % number + b"x" * 3000) for number in range(60)])
        kept, gone = (store.get_message("workers", "orders", 0, at, 1).messages[0] for at in (59, 0))
        assert store.clean(forced=True).log
        send_back(store, "workers", [kept, gone], level=-1)
        assert [each.body for each in messages(store, DEAD)] == [kept.body, gone.body]


def test_stored_record_is_copied(store: MessageStore) -> None:
    """Compressed as its producer sent it; consumers see the retry under its original topic."""
    send_back(store, "workers", messages(store, "orders")[:1], level=1)
    until(lambda: RETRY in store.topics() and bool(messages(store, RETRY)))
    (again,) = messages(store, RETRY)
    send_back(store, "workers", [again._replace(topic="orders", body=b"read")], level=-1)
    assert [each.body for each in messages(store, DEAD)] == [again.body]


def test_sending_back_no_message_appends_nothing(store: MessageStore) -> None:
    before = store.confirm_offset
    assert len(send_back(store, "workers", [])) == 0
    assert store.confirm_offset == before


def test_wrong_group_is_refused(store: MessageStore) -> None:
    with pytest.raises(InvalidGroup):
        send_back(store, "a group", messages(store, "orders"))
