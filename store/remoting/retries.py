"""CONSUMER_SEND_MSG_BACK: messages that a client could not process come again, by way of `store.broker.retries`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from store.api.message_store import MessageStore
from store.broker.response_codes import ResponseCode
from store.broker.retries import send_back
from store.directory.directory_group import LocalGroup
from store.files.consumer_offsets import check_group_name
from store.format.layout import PROPERTY_UNIQ_KEY, RETRY_TOPIC_PREFIX
from store.format.stored_message import StoredMessage, decode_record
from store.model.errors import InvalidMessageId, RequestRefused
from store.read.query import offset_of_id
from store.remoting.codes import RequestCode
from store.remoting.headers import SendBack
from store.remoting.older import Older
from store.remoting.request import Answer, Handler, Request, Response
from store.remoting.topics import must_be_of


class Retries:
    """What a group needs for messages to come again."""

    def __init__(self, store: MessageStore, older: Older) -> None:
        self._store = store
        self._older = older

    def others(self) -> Mapping[int, Handler]:
        """Handlers that may wait."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def prepare(self, group: str) -> None:
        """Make a group, and the topic that its consumers subscribe to beside their own."""
        check_group_name(group)
        LocalGroup(self._store.path, group).create()  # which inherits what members beside the server did that died
        topic = RETRY_TOPIC_PREFIX + group
        if topic not in self._store.topics():
            self._store.create_topic(topic, 1)

    def _send_back(self, request: Request) -> Answer:
        header = SendBack.of(request.command.fields)
        return self._older.answer_of(request, header.offset, lambda record: self._sent_back(header, record))

    def _sent_back(self, header: SendBack, record: bytes) -> Response:
        message = decode_record(record, f"commit log offset {header.offset}")
        _must_be_meant(message, header)
        most = header.max_reconsume_times
        send_back(self._store, header.group, [message], level=header.delay_level, max_reconsume_times=most)
        return Response()


def _must_be_meant(message: StoredMessage, header: SendBack) -> None:
    """Raises `RequestRefused` where a client says by its topic, or by its producer's id, that it means another message;
    it sends that one back as a new one then."""
    must_be_of(message, header.origin_topic)
    own, meant = message.properties.get(PROPERTY_UNIQ_KEY), header.origin_msg_id
    if own and meant and meant != own and not _is_of_place(meant, header.offset):
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            f"at commit log offset {header.offset} stands message {own}, and not {meant}, which is to be sent back",
        )


def _is_of_place(msg_id: str, physical_offset: int) -> bool:
    with suppress(InvalidMessageId):
        return offset_of_id(msg_id) == physical_offset
    return False
