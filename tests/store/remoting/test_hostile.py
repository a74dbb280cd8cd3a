from __future__ import annotations

import logging
import os
from typing import get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.model.codes import RequestCode
from store.remoting.headers import (
    CommitOffset,
    ConsumerGroup,
    ConsumeStats,
    CreateTopic,
    DeleteGroup,
    EndTransaction,
    GetRoute,
    GroupQueue,
    GroupSettings,
    Header,
    ProducerGroup,
    PullMessage,
    QueryMessage,
    ResetOffset,
    SearchOffset,
    SendBack,
    SendMessage,
    SendMessageV2,
    Topic,
    TopicQueue,
    UnregisterClient,
    ViewMessage,
)
from tests.store.remoting.broker import Broker

EXAMPLES = int(os.environ.get("HOSTILE_REQUESTS", "60"))
HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.QUERY_MESSAGE: QueryMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: GroupQueue,
    RequestCode.UPDATE_CONSUMER_OFFSET: CommitOffset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopic,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffset,
    RequestCode.GET_MAX_OFFSET: TopicQueue,
    RequestCode.GET_MIN_OFFSET: TopicQueue,
    RequestCode.GET_EARLIEST_MSG_STORETIME: TopicQueue,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessage,
    RequestCode.HEART_BEAT: Header,
    RequestCode.UNREGISTER_CLIENT: UnregisterClient,
    RequestCode.CONSUMER_SEND_MSG_BACK: SendBack,
    RequestCode.END_TRANSACTION: EndTransaction,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerGroup,
    RequestCode.LOCK_BATCH_MQ: Header,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRoute,
    RequestCode.GET_TOPIC_STATS_INFO: Topic,
    RequestCode.GET_TOPIC_CONFIG: Topic,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerGroup,
    RequestCode.GET_CONSUME_STATS: ConsumeStats,
    RequestCode.GET_BROKER_CONSUME_STATS: Header,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Topic,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerGroup,
    RequestCode.DELETE_TOPIC_IN_BROKER: Topic,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Header,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GroupSettings,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Header,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteGroup,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffset,
    RequestCode.GET_BROKER_RUNTIME_INFO: Header,
    RequestCode.GET_BROKER_CONFIG: Header,
}
EDGES = [0, 1, 2, 7, -1, 255, (1 << 31) - 1, 1 << 31, -(1 << 31) - 1, (1 << 63) - 1, -(1 << 63)]
TEXTS = st.sampled_from(
    ["orders", "", " ", "a b", "../..", "a/b", "\0", "%RETRY%", "x" * 300, "é😀", "\1\2", "TAGS\1a\2"]
)
KINDS = {
    "int": st.sampled_from(EDGES),
    "bool": st.booleans(),
    "str": TEXTS | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
}
BODIES = st.binary(max_size=40) | st.sampled_from(
    [b"{}", b"[]", b'{"clientID":"a","consumerDataSet":[{"groupName":"/"}]}']
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_hostile_requests_are_answered(broker: Broker, caplog: pytest.LogCaptureFixture, data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(sorted(HEADERS)))
    header, body = HEADERS[code], data.draw(BODIES)
    fields: dict[str, str] = {}
    if header is not Header:
        hints = {name: hint for name, hint in get_type_hints(header).items() if name in header.__match_args__}
        kinds = {name: KINDS[next(kind for kind in KINDS if kind in str(hint))] for name, hint in hints.items()}
        kinds = {name: kind if name != "suspend_timeout_millis" else st.just(50) for name, kind in kinds.items()}
        fields = data.draw(st.builds(header, **kinds)).texts()
    answer = broker.client.ask(broker.address, code, fields, body).result()
    assert answer.is_response
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
