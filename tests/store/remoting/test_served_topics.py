from __future__ import annotations

import pytest

from store import Message, MessageStore
from store.format.stored_message import decode_record
from store.model.codes import RequestCode, ResponseCode
from store.remoting.headers import (
    CommitOffset,
    CreateTopic,
    GroupQueue,
    Offset,
    QueryMessage,
    SendAnswer,
    Topic,
    ViewMessage,
)
from tests.store.remoting.broker import Broker


def create(queues: int, topic: str = "new", **fields: int) -> CreateTopic:
    usual = {"read_queue_nums": queues, "write_queue_nums": queues, "perm": 6}
    return CreateTopic(topic=topic, default_topic="TBW102", topic_filter_type="SINGLE_TAG", **{**usual, **fields})


def test_topic_is_created(broker: Broker, store: MessageStore) -> None:
    assert broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create(3)).code == ResponseCode.SUCCESS
    assert store.topics()["new"] == 3


@pytest.mark.parametrize(
    "header", [create(0), create(1, "orders"), create(3, "a topic"), create(3, perm=4), create(3, read_queue_nums=2)]
)
def test_wrong_topic_is_refused(broker: Broker, store: MessageStore, header: CreateTopic) -> None:
    answer = broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert header.topic in (answer.remark or "")
    assert store.topics() == {"orders": 2}


def test_statistics_of_a_topic_are_returned(broker: Broker, store: MessageStore) -> None:
    store.put(Message("orders", b"", queue_id=1))
    (message,) = store.get_message("g", "orders", 1, 0).messages
    answer = broker.ask(RequestCode.GET_TOPIC_STATS_INFO, Topic("orders"))
    assert bytes(answer.body).decode() == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:'
        '{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        '{"brokerName":"broker-a","queueId":1,"topic":"orders"}:'
        f'{{"lastUpdateTimestamp":{message.store_timestamp},"maxOffset":1,"minOffset":0}}}}}}'
    )
    for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_TOPIC_CONFIG):
        assert broker.ask(code, Topic("nowhere")).code == ResponseCode.TOPIC_NOT_EXIST


def test_message_is_found_by_its_log_offset(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"%d" % n, queue_id=0) for n in range(3)])
    messages = store.get_message("g", "orders", 0, 0).messages
    for message in messages:
        answer = broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(message.physical_offset))
        assert decode_record(bytes(answer.body), 0) == message
    assert broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(7)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(1 << 40)).code == ResponseCode.QUERY_NOT_FOUND


def test_messages_are_found_by_key(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"%d" % n, keys=f"k{n % 2}", queue_id=0) for n in range(5)])
    answer = broker.ask(RequestCode.QUERY_MESSAGE, QueryMessage("orders", "k1", 32, 0, 1 << 50))
    records = b"".join(store.record_at(each.physical_offset) for each in store.query("orders", "k1"))
    assert (answer.code, bytes(answer.body)) == (ResponseCode.SUCCESS, records)
    none = broker.ask(RequestCode.QUERY_MESSAGE, QueryMessage("orders", "none", 32, 0, 1 << 50))
    assert none.code == ResponseCode.QUERY_NOT_FOUND


def test_next_message_recreates_a_deleted_topic_at_the_old_end(broker: Broker, store: MessageStore) -> None:
    for _ in range(5):
        broker.send(b"old")
    held = broker.pull(5, seconds=60)
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 0, 4))
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV):
        assert broker.ask(code, Topic("orders")).code == ResponseCode.SUCCESS
    assert broker.ask(RequestCode.GET_TOPIC_STATS_INFO, Topic("orders")).code == ResponseCode.TOPIC_NOT_EXIST
    assert store.topics() == {}
    assert SendAnswer.of(broker.send(b"new", default_topic_queue_nums=1).fields).queue_offset == 5
    assert store.topics() == {"orders": 1}
    assert [row["body"] for batch in store.to_arrow("orders", ["body"]) for row in batch.to_pylist()] == [b"new"]
    asked = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", "orders", 0, False))
    assert Offset.of(asked.fields).offset == 4
    assert held.result().code == ResponseCode.SUCCESS


def test_missing_and_system_topics_are_not_deleted(broker: Broker, store: MessageStore) -> None:
    store.create_topic("SCHEDULE_TOPIC_XXXX", 18)
    for name, code in (("none", ResponseCode.TOPIC_NOT_EXIST), ("SCHEDULE_TOPIC_XXXX", ResponseCode.INVALID_PARAMETER)):
        answer = broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(name))
        assert (answer.code, name in (answer.remark or "")) == (code, True), answer.remark
