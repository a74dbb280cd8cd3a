"""Requests and replies, as in RocketMQ's clients.

Each requesting producer reads the whole topic of replies, and picks its own.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from store.api.message_store import MessageStore
from store.directory.directory_log import DirectoryLog
from store.disk.topics import Topics
from store.format.layout import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO,
    PROPERTY_TTL,
    REPLY_MESSAGE_TYPE,
    REPLY_TOPIC_SUFFIX,
)
from store.format.message import Message
from store.format.stored_message import StoredMessage
from store.model.errors import InvalidArgument, StoreClosed, StoreError, UnknownTopic, UnreadableBody
from store.model.log_protocol import Held, Queue
from store.read.filters import EVERYTHING

_CLUSTER = "DefaultCluster"  # as in RocketMQ's conf/broker.conf
_IDLE_SECONDS = 60.0
_READER = "CLIENT_INNER_PRODUCER"
_logger = logging.getLogger("store")


class RequestMessage(Protocol):
    @property
    def properties(self) -> dict[str, str]: ...


def reply(request: RequestMessage, body: bytes | str) -> Message:
    """Return the reply to a request. Any producer can send it. Raises `InvalidArgument` if the message is no
    request.
    """
    known = {name: request.properties.get(name) for name in (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO, PROPERTY_TTL)}
    cluster = request.properties.get(PROPERTY_CLUSTER)
    found = {name: value for name, value in known.items() if value is not None}
    if cluster is None or len(found) < len(known):
        raise InvalidArgument(
            f"{request!r:.200} is not a request, so its producer does not wait for a reply. Requests are sent by "
            "Producer.request"
        )
    properties = {**found, PROPERTY_MESSAGE_TYPE: REPLY_MESSAGE_TYPE}
    return Message(f"{cluster}_{REPLY_TOPIC_SUFFIX}", body, properties=properties)


class Replies:
    """Receives the replies to a producer's requests, in a thread."""

    def __init__(self, store: MessageStore, what: str) -> None:
        self._what = f"{what}: replies"
        self._is_over = False
        topic = f"{_CLUSTER}_{REPLY_TOPIC_SUFFIX}"
        if topic not in store.topics():
            store.create_topic(topic, 1)
        queues = [Queue(topic, queue) for queue in range(store.topics()[topic])]
        self._topic, self._topics = topic, Topics(Path(store.path))
        self._client_id = f"{socket.gethostname()}@{os.getpid()}#{time.monotonic_ns()}"
        self._store = store
        self._waiting: dict[str, Future[StoredMessage]] = {}
        self._error: StoreError | None = None
        begin = {queue: store.max_offset(queue.topic, queue.queue_id) for queue in queues}
        self._held: Held = DirectoryLog(store).hold(begin, math.inf, EVERYTHING, _IDLE_SECONDS)
        self._thread = threading.Thread(target=self._run, name="mq-replies", daemon=True)
        self._thread.start()

    @property
    def is_gone(self) -> bool:
        """Whether the topic of replies was deleted."""
        return isinstance(self._error, UnknownTopic) or not self._topics.queue_count(self._topic)

    def expect(self, timeout: float) -> tuple[dict[str, str], Future[StoredMessage]]:
        """Return the properties of a new request, and the future of its reply. timeout: seconds.

        The caller has to call `forget` when it stops waiting for the reply.
        """
        if self._error is not None:
            raise self._error
        properties = {
            PROPERTY_CORRELATION_ID: str(uuid4()),
            PROPERTY_REPLY_TO: self._client_id,
            PROPERTY_TTL: str(math.ceil(timeout * 1000)),
            PROPERTY_CLUSTER: _CLUSTER,
        }
        waits: Future[StoredMessage] = Future()
        self._waiting[properties[PROPERTY_CORRELATION_ID]] = waits
        return properties, waits

    def forget(self, properties: dict[str, str]) -> None:
        self._waiting.pop(properties[PROPERTY_CORRELATION_ID], None)

    def stop(self) -> None:
        """Let the thread end. Futures of replies then raise `StoreClosed`."""
        self._is_over = True
        self._held.wake()

    def close(self) -> None:
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._held as held:
                for found in held:
                    if self._is_over:
                        break
                    if found is not None:
                        self._read(found.queue, found.start, found.end)
                        held.again(found.queue, found.end)
            error: StoreError = StoreClosed(f"{self._what}: closed during the wait for a reply")
        except StoreClosed as closed:
            error = closed
        except StoreError as found_error:
            error = found_error
            _logger.error("%s: no further replies are read: %s", self._what, error)
        self._error = error
        for correlation_id in list(self._waiting):
            self._waiting.pop(correlation_id).set_exception(error)

    def _read(self, queue: Queue, begin: int, end: int) -> None:
        while begin < end:
            try:
                got = self._store.get_message(_READER, queue.topic, queue.queue_id, begin)
            except UnreadableBody as error:
                _logger.error("%s: a reply cannot be read: %s", self._what, error)
                begin += 1
                continue
            for message in got.messages:
                waits = self._waiting.pop(message.properties.get(PROPERTY_CORRELATION_ID, ""), None)
                if waits is not None:
                    waits.set_result(message)
            begin = max(begin + 1, got.next_begin_offset)
