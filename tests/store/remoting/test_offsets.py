"""Offsets of queues and of groups, as RocketMQ answers for them."""

from __future__ import annotations

import pytest

from store import Message, MessageStore
from store.broker.response_codes import ResponseCode
from store.remoting.codes import RequestCode
from store.remoting.header import Header
from store.remoting.headers import CommitOffset, GroupQueue, Offset, SearchOffset, Timestamp, TopicQueue
from tests.store.remoting.broker import Broker


def offset(broker: Broker, code: int, header: Header) -> int:
    answer = broker.ask(code, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return Offset.of(answer.fields).offset


def test_of_queues(broker: Broker, store: MessageStore) -> None:
    store.put_many([Message("orders", b"", queue_id=1)] * 3)
    first, _, last = store.get_message("g", "orders", 1, 0).messages
    assert offset(broker, RequestCode.GET_MAX_OFFSET, TopicQueue("orders", 1)) == 3
    assert offset(broker, RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 1)) == 0
    for time, lower, upper in ((0, 0, 0), (last.store_timestamp, 0, 2), (last.store_timestamp + 1, 3, 2)):
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert offset(broker, code, SearchOffset("orders", 1, time)) == lower
        assert offset(broker, code, SearchOffset("orders", 1, time, "UPPER")) == upper
    answer = broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueue("orders", 1))
    assert Timestamp.of(answer.fields).timestamp == first.store_timestamp
    answer = broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueue("orders", 0))
    assert Timestamp.of(answer.fields).timestamp == -1


def test_of_groups(broker: Broker, store: MessageStore) -> None:
    asked = GroupQueue("group", "orders", 1)
    assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, asked) == 0
    unknown = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("group", "orders", 1, False))
    assert unknown.code == ResponseCode.QUERY_NOT_FOUND
    assert broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("group", "orders", 1, 7)).code == 0
    assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, asked) == 7
    broker.serving.close()
    assert store.consumer_offset("group", "orders", 1) == 7


def test_what_a_client_says_counts_in_its_order(broker: Broker) -> None:
    """RocketMQ's asks for its offsets right after it set them back, as a reset wants it: it went on where it was."""
    asked, ends = GroupQueue("group", "orders", 1), (7, 0)
    for number in range(200):
        said = CommitOffset("group", "orders", 1, ends[number % 2])
        broker.begin(RequestCode.UPDATE_CONSUMER_OFFSET, said)
        assert offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, asked) == said.commit_offset, number


@pytest.mark.parametrize(
    ("code", "header", "answered"),
    [
        (RequestCode.GET_MAX_OFFSET, TopicQueue("nowhere", 0), ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_MIN_OFFSET, TopicQueue("orders", 7), ResponseCode.INVALID_PARAMETER),
        (RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("a b", "orders", 0, 1), ResponseCode.INVALID_PARAMETER),
        (RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "nowhere", 0, 1), ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("g", "nowhere", 0), ResponseCode.TOPIC_NOT_EXIST),
    ],
)
def test_what_is_not_there(broker: Broker, code: int, header: Header, answered: int) -> None:
    assert broker.ask(code, header).code == answered
