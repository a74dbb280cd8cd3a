"""The headers of all implemented codes: the fields of a command, checked and typed.

On the wire, names are in camel case. Types are str, `Long` and bool; optional fields may be None. The docstring of a
header names the requests that have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
from msgspec import field

from store.format.strict_json import Long
from store.model.codes import ResponseCode
from store.model.errors import RequestRefused


class Header(msgspec.Struct, frozen=True, rename="camel"):
    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Parse the fields of a command. Unknown fields are ignored. Raises `RequestRefused`."""
        try:
            return msgspec.convert(texts, cls, strict=False)
        except msgspec.ValidationError as error:
            required = (field.encode_name for field in msgspec.structs.fields(cls) if field.required)
            missing = next((name for name in required if name not in texts), None)
            what = f"a custom field is wrong: {error}" if missing is None else f"the custom field <{missing}> is null"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, what) from error

    def texts(self) -> dict[str, str]:
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in values.items()
            if value is not None
        }


# --- a name server --------------------------------------------------------------------------------------


class GetRoute(Header, frozen=True):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool = False


# --- sending --------------------------------------------------------------------------------------------


class SendMessage(Header, frozen=True):
    """SEND_MESSAGE. properties, sys_flag, flag: as in a record. batch: whether the body has several messages."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Long
    queue_id: Long
    sys_flag: Long
    born_timestamp: Long
    flag: Long
    properties: str | None = None
    reconsume_times: Long | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Long | None = None


class SendMessageV2(SendMessage, frozen=True):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Long = field(name="d")
    queue_id: Long = field(name="e")
    sys_flag: Long = field(name="f")
    born_timestamp: Long = field(name="g")
    flag: Long = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: Long | None = field(default=None, name="j")
    unit_mode: bool = field(default=False, name="k")
    batch: bool = field(default=False, name="m")
    max_reconsume_times: Long | None = field(default=None, name="l")
    broker_name: str | None = field(default=None, name="n")


class SendAnswer(Header, frozen=True):
    """The answer to a send.

    msg_id: the offset id that the broker gave the message. For a batch, the ids of all messages, separated by commas.
    """

    msg_id: str
    queue_id: Long
    queue_offset: Long
    transaction_id: str | None = None
    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: bool | None = field(default=None, name="TRACE_ON")


class SendBack(Header, frozen=True):
    """CONSUMER_SEND_MSG_BACK. offset: commit log offset (bytes). delay_level: 0 for a delay that grows with the number
    of tries; below 0 for a dead letter.
    """

    offset: Long
    group: str
    delay_level: Long
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Long | None = None


class EndTransaction(Header, frozen=True):
    """END_TRANSACTION. commit_or_rollback: 8 to commit, 12 to roll back, 0 for unknown. tran_state_table_offset: queue
    offset in the half topic.
    """

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Long
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header, frozen=True):
    """CHECK_TRANSACTION_STATE, to a producer."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


# --- pulling --------------------------------------------------------------------------------------------


class PullMessage(Header, frozen=True):
    """PULL_MESSAGE, LITE_PULL_MESSAGE. sys_flag: the sum of 1 (commit `commit_offset`), 2 (the pull may be held) and 4
    (the request has a subscription).
    """

    consumer_group: str
    topic: str
    queue_id: Long
    queue_offset: Long
    max_msg_nums: Long
    sys_flag: Long
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None


class Pulled(Header, frozen=True):
    """The answer to a pull, with queue offsets."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


# --- offsets --------------------------------------------------------------------------------------------


class GroupQueue(Header, frozen=True):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Long
    set_zero_if_not_found: bool = True


class CommitOffset(Header, frozen=True):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Long
    commit_offset: Long


class TopicQueue(Header, frozen=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Long


class SearchOffset(Header, frozen=True):
    """SEARCH_OFFSET_BY_TIMESTAMP. timestamp: ms since 1970. boundary_type: LOWER or UPPER."""

    topic: str
    queue_id: Long
    timestamp: Long
    boundary_type: str | None = None


class Offset(Header, frozen=True):
    """The answer to requests for an offset."""

    offset: Long


class Timestamp(Header, frozen=True):
    """The answer to GET_EARLIEST_MSG_STORETIME, ms since 1970."""

    timestamp: Long


# --- clients --------------------------------------------------------------------------------------------


class UnregisterClient(Header, frozen=True):
    """UNREGISTER_CLIENT."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroup(Header, frozen=True):
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class ProducerGroup(Header, frozen=True):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class GroupSettings(Header, frozen=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class DeleteGroup(Header, frozen=True):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class ResetOffset(Header, frozen=True):
    """INVOKE_BROKER_TO_RESET_OFFSET, RESET_CONSUMER_CLIENT_OFFSET.

    timestamp: ms since 1970; -1 for the end.
    is_force: whether to also move forward.
    queue_id: below 0 for all queues.
    offset: used instead of the time if it is not negative.
    """

    group: str
    topic: str
    timestamp: Long
    is_force: bool
    queue_id: Long = -1
    offset: Long | None = None


class ConsumeStats(Header, frozen=True):
    """GET_CONSUME_STATS. topic: None for all topics."""

    consumer_group: str
    topic: str | None = None


# --- topics and messages --------------------------------------------------------------------------------


class CreateTopic(Header, frozen=True):
    """UPDATE_AND_CREATE_TOPIC. perm: 4 read, 2 write."""

    topic: str
    default_topic: str
    read_queue_nums: Long
    write_queue_nums: Long
    perm: Long
    topic_filter_type: str
    order: bool = False
    topic_sys_flag: Long | None = None
    attributes: str | None = None
    force: bool = False


class KvKey(Header, frozen=True):
    """GET_KV_CONFIG."""

    namespace: str
    key: str


class KvValue(Header, frozen=True):
    """The answer to GET_KV_CONFIG."""

    value: str | None = None


class Topic(Header, frozen=True):
    """GET_TOPIC_STATS_INFO, DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAMESRV, GET_TOPIC_CONFIG,
    QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


class ViewMessage(Header, frozen=True):
    """VIEW_MESSAGE_BY_ID. offset: commit log offset (bytes)."""

    offset: Long
    topic: str | None = None


class QueryMessage(Header, frozen=True):
    """QUERY_MESSAGE. Times are ms since 1970. is_unique_key: whether the key is an id that a producer gave."""

    topic: str
    key: str
    max_num: Long
    begin_timestamp: Long
    end_timestamp: Long
    is_unique_key: bool = field(default=False, name="_UNIQUE_KEY_QUERY")


class Found(Header, frozen=True):
    """The answer to QUERY_MESSAGE."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long
