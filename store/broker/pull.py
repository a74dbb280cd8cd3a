"""Answers a pull as RocketMQ's broker does (PullMessageProcessor): code, corrected offset, messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from store.api.message_store import MessageStore
from store.format.stored_message import StoredMessage
from store.model.codes import ResponseCode
from store.model.errors import UnknownQueue, UnknownTopic
from store.model.log_protocol import MessageFilter
from store.read.getting import GetResult, GetStatus

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


def response_code(status: GetStatus, offset: int) -> ResponseCode:
    """Return RocketMQ's response code for a status. Offset 0 of an empty queue is no error: it is the queue's end."""
    if status is GetStatus.NO_MESSAGE_IN_QUEUE:
        return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]


class PullRequest(NamedTuple):
    group: str
    topic: str
    queue_id: int
    offset: int  # queue offset
    max_messages: int = 32
    message_filter: MessageFilter | None = None


class PullResponse(NamedTuple):
    """The response to a pull. Offsets are queue offsets.

    remark: the store's status, or the error. records: see `GetResult`.
    """

    code: ResponseCode
    remark: str
    next_begin_offset: int
    min_offset: int = 0
    max_offset: int = 0
    messages: Sequence[StoredMessage] = ()
    records: Sequence[memoryview] = ()


def answer(store: MessageStore, request: PullRequest, *, as_records: bool = False) -> PullResponse:
    """Answer a pull at once, without waiting for messages. as_records, and errors: see `MessageStore.get_message`."""
    try:
        got = store.get_message(
            request.group,
            request.topic,
            request.queue_id,
            request.offset,
            request.max_messages,
            request.message_filter,
            as_records=as_records,
        )
        if got.status is GetStatus.NO_MESSAGE_IN_QUEUE:
            store.max_offset(request.topic, request.queue_id)  # raises if the topic does not exist
    except UnknownQueue as error:
        return PullResponse(ResponseCode.INVALID_PARAMETER, str(error), request.offset)
    except UnknownTopic as error:
        return PullResponse(ResponseCode.TOPIC_NOT_EXIST, str(error), request.offset)
    return response(request, got)


def response(request: PullRequest, got: GetResult) -> PullResponse:
    code = response_code(got.status, request.offset)
    bounds = got.next_begin_offset, got.min_offset, got.max_offset
    return PullResponse(code, got.status.name, *bounds, got.messages, got.records)
