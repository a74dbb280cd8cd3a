"""CONSUMER_SEND_MSG_BACK: messages that a client could not process come again, by way of `store.broker.retries`."""

from __future__ import annotations

from collections.abc import Mapping

from store import MessageStore
from store.broker.retries import send_back
from store.files.consumer_offsets import check_group_name
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.stored_message import decode_record
from store.local_group import LocalGroup
from store.remoting.codes import RequestCode
from store.remoting.headers import SendBack
from store.remoting.request import Handler, Request, Response


class Retries:
    """What a group needs for messages to come again."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def others(self) -> Mapping[int, Handler]:
        """Handlers for threads of the pool."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def prepare(self, group: str) -> None:
        """Make a group, and the topic that its consumers subscribe to beside their own."""
        check_group_name(group)
        topic = RETRY_TOPIC_PREFIX + group
        if topic not in self._store.topics():
            LocalGroup(self._store.path, group).create()
            self._store.create_topic(topic, 1)

    def _send_back(self, request: Request) -> Response:
        header = SendBack.of(request.command.fields)
        message = decode_record(self._store.record_at(header.offset), f"commit log offset {header.offset}")
        most = header.max_reconsume_times
        send_back(self._store, header.group, [message], level=header.delay_level, max_reconsume_times=most)
        return Response()
