"""The header of every code that is spoken here, declared once: what is required, and the defaults of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from store.remoting.header import Header

# --- a name server --------------------------------------------------------------------------------------


class GetRoute(Header):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool = False


# --- sending --------------------------------------------------------------------------------------------


class SendMessage(Header):
    """SEND_MESSAGE. properties: as in a record; sys_flag, flag: likewise; batch: the body is several messages."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: int | None = None


class SendMessageV2(SendMessage):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: the same under names of one letter."""

    broker_name: str | None = None

    aliases: ClassVar[Mapping[str, str]] = {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    }


class Sent(Header):
    """The answer to a message that was sent. msg_id: the broker's; of a batch one for each message, by commas."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = None
    trace_on: bool | None = None

    aliases: ClassVar[Mapping[str, str]] = {"region": "MSG_REGION", "trace_on": "TRACE_ON"}


class SendBack(Header):
    """CONSUMER_SEND_MSG_BACK. offset: commit log offset (bytes). delay_level: 0 by how often it came, < 0 never."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


class EndTransaction(Header):
    """END_TRANSACTION. commit_or_rollback: 8 or 12, 0 for not known yet; offsets: in the half topic's queue, in bytes
    of the commit log."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header):
    """CHECK_TRANSACTION_STATE, to a producer; offsets as in `EndTransaction`."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


# --- pulling --------------------------------------------------------------------------------------------


class PullMessage(Header):
    """PULL_MESSAGE, LITE_PULL_MESSAGE. sys_flag: 1 commit_offset counts, 2 may be held, 4 the subscription is here."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None


class Pulled(Header):
    """The answer to a pull; all but the first are queue offsets."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


# --- offsets --------------------------------------------------------------------------------------------


class GroupQueue(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool = True


class CommitOffset(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class TopicQueue(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: int


class SearchOffset(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP. timestamp: ms since 1970. boundary_type: LOWER or UPPER."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class Offset(Header):
    """The answer to all of these."""

    offset: int


class Timestamp(Header):
    """The answer to GET_EARLIEST_MSG_STORETIME, ms since 1970."""

    timestamp: int


# --- clients --------------------------------------------------------------------------------------------


class UnregisterClient(Header):
    """UNREGISTER_CLIENT."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None

    aliases: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}


class Group(Header):
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class ProducerGroup(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class GroupSettings(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class DeleteGroup(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class ResetOffset(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET, RESET_CONSUMER_CLIENT_OFFSET. timestamp: ms since 1970, -1 the end. is_force: also
    behind where the group is. queue_id: below 0 all. offset: instead of the time, from 0 on."""

    group: str
    topic: str
    timestamp: int
    is_force: bool
    queue_id: int = -1
    offset: int | None = None


class ConsumeStats(Header):
    """GET_CONSUME_STATS. topic: only this one."""

    consumer_group: str
    topic: str | None = None


# --- topics and messages --------------------------------------------------------------------------------


class CreateTopic(Header):
    """UPDATE_AND_CREATE_TOPIC. perm: 4 read, 2 write."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    order: bool = False
    topic_sys_flag: int | None = None
    attributes: str | None = None
    force: bool = False


class Topic(Header):
    """GET_TOPIC_STATS_INFO, DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAMESRV, GET_TOPIC_CONFIG,
    QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


class ViewMessage(Header):
    """VIEW_MESSAGE_BY_ID. offset: commit log offset (bytes)."""

    offset: int
    topic: str | None = None


class QueryMessage(Header):
    """QUERY_MESSAGE. Times are ms since 1970. is_unique_key: the key is a producer's id."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    is_unique_key: bool = False

    aliases: ClassVar[Mapping[str, str]] = {"is_unique_key": "_UNIQUE_KEY_QUERY"}


class Found(Header):
    """The answer to QUERY_MESSAGE."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int
