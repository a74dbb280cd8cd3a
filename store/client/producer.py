"""`Producer`: accepts single messages and appends them in batches."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, overload

import pyarrow as pa

from store.api.message_store import MessageStore
from store.client.cluster_appends import ClusterAppends
from store.client.producer_buffer import Buffer, BufferLimits
from store.client.producer_future import Row, SendFuture, already_stored
from store.client.producer_sender import Sender
from store.client.replies import Replies
from store.client.sent_sequences import SentSequences
from store.cluster.address import SCHEME, ClusterAddress
from store.disk.opened import Opened, shown
from store.format.layout import RECORD_HEADER
from store.format.message import Message, check_mapping, illegal
from store.format.stored_message import StoredMessage
from store.model.errors import InvalidArgument, NoReply, UnsupportedStore
from store.model.integers import counted, integer, span

_NO_MESSAGES = pa.schema([("body", pa.binary())]).empty_table()
_NO_PROPERTIES: dict[str, str] = {}
_HEADER_BYTES = RECORD_HEADER.itemsize


class Producer(Opened):
    """Sends messages to a store or a cluster. Use it in a `with` statement, which sends all messages before it ends.

    `send` buffers a message and returns. A thread appends all buffered messages in one append, which readers see as a
    whole. Messages with the same topic and sharding key, or to the same queue, keep their order.

    Thread-safe. Methods raise `StoreClosed` after `close`, `StoreForked` in a forked process, and `StoreLocked` in a
    signal handler that interrupted `send`. Without `close`, a producer emits a `ResourceWarning`, and its buffered
    messages may be lost.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | MessageStore | ClusterAddress,
        name: str | None = None,
        *,
        linger: float = 0.0,
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 8 << 20,
        timeout: float = 60.0,
    ) -> None:
        """Open a producer.

        store: the path of an existing store; an open store, which the caller has to close; "rocketmq://host:port" of a
        cluster's name servers; or a `ClusterAddress`.
        name: makes `send` idempotent. Each message then needs a sequence number, ascending in its topic. If a message
        is sent again after a restart, the store does not append it again.
        linger: seconds to wait for further messages before an append, unless `batch_bytes` bytes of records wait.
        buffer_bytes: limit of the messages that wait for an append. The running append may have up to `buffer_bytes`
        more.
        timeout: seconds that `send` waits for room in the buffer.

        Raises as `MessageStore.open`, and `InvalidArgument`. With a name, raises `InvalidGroup`, `CorruptStore`,
        `StoreLocked` if another open producer has it, and `OffsetLost` if retention deleted its last sequences.
        """
        limits = BufferLimits(
            span("linger", linger),
            integer("batch_bytes", batch_bytes, 1),
            integer("buffer_bytes", buffer_bytes, 1),
            span("timeout", timeout),
        )
        owns = not isinstance(store, MessageStore)
        self._cluster = _cluster(store)
        if name is not None and self._cluster is not None:
            raise UnsupportedStore(f"{self._cluster.path}: a producer of a cluster cannot have a name. Remove the name")
        self._store = self._cluster or _opened(store)
        what = f"{self._store.path}: producer" + ("" if name is None else f" {name!r}")
        more = "" if name is None else f", {name!r}"
        super().__init__(what, f"Producer({str(self._store.path)!r}{more})")
        self._topics: set[str] = set()
        self._buffer = Buffer(what, limits)
        self._sequences: SentSequences | None = None
        self._replies: Replies | None = None
        self._first_request = threading.RLock()
        try:
            if name is not None and isinstance(self._store, MessageStore):
                self._sequences = SentSequences(self._store, name)
            self._sender = Sender(what, self._store, self._buffer, self._sequences, owns=owns)
            self._sender.start()
        except BaseException:
            self._is_over = True
            self._buffer.close()  # ends a started sender
            if self._sequences is not None:
                self._sequences.close()
            if owns:
                self._store.close()
            raise

    @overload
    def send(self, topic: Message, *, sequence: int | None = ...) -> SendFuture: ...

    @overload
    def send(
        self,
        topic: str,
        body: bytes | bytearray | memoryview | str,
        *,
        tags: str | None = ...,
        keys: str | Sequence[str] = ...,
        properties: Mapping[str, str] | None = ...,
        queue_id: int | None = ...,
        sharding_key: str | None = ...,
        flag: int = ...,
        born_timestamp: int | None = ...,
        delay_level: int = ...,
        deliver_at: int | None = ...,
        sequence: int | None = ...,
    ) -> SendFuture: ...

    def send(
        self,
        topic: Any,
        body: Any = b"",
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        flag: int = 0,
        born_timestamp: int | None = None,
        delay_level: int = 0,
        deliver_at: int | None = None,
        sequence: int | None = None,
    ) -> SendFuture:
        """Buffer a message to be appended. Give a `Message`, or its parts, which takes half the time.

        The message is copied. The returned future is done when readers see the message, and can be awaited. It raises
        the errors of `put`: for example, `MessageRefused` for this message alone, or `StoreFull` for all messages of an
        append. If no future of a failed append has raised its error, `flush` or `close` raises it.

        sequence: for a producer with a name, and required there. If the log already has this sequence or a higher one
        of the topic, nothing is appended, and the result's status is ALREADY_STORED. A failed append closes a producer
        with a name. A new one can resume after `last_sequence`.

        Raises `BufferFull` if there is no room within `timeout`, `UnknownTopic`, `InvalidTopic`, and `MessageRefused`.
        """
        if self._is_over:
            raise self._not_open()
        if type(topic) is not str:
            return self._send_message(topic, sequence)
        if topic not in self._topics:
            self._check(topic)
        if type(body) is not bytes and type(body) is not str:
            body = _copied(body)
        if type(keys) is not str and type(keys) is not tuple:
            keys = _listed(keys)
        if properties is None:
            properties = _NO_PROPERTIES
        else:
            check_mapping(properties)
            properties = dict(properties)
        row = body, tags, keys, properties, queue_id, sharding_key, flag, born_timestamp, delay_level, deliver_at
        if self._cluster is not None:
            row = self._cluster.with_id(row)
        if sequence is not None or self._sequences is not None:
            return self._send_once(topic, row, sequence)
        return self._buffer.add(topic, row, _HEADER_BYTES + len(body))

    def _send_once(self, topic: str, row: Row, sequence: int | None) -> SendFuture:
        if self._sequences is None:
            raise InvalidArgument(
                "sequence is only for a producer with a name. Name the producer, as in Producer(path, 'importer'), "
                "or remove sequence"
            )
        if sequence is None:
            raise InvalidArgument(
                "A producer with a name needs a sequence for each message. Give sequence=, ascending in each topic"
            )
        sequence = integer("sequence", sequence)
        if self._sequences.has(topic, sequence):
            return already_stored(topic)
        return self._buffer.add(topic, row, _HEADER_BYTES + len(row[0]), sequence)

    def request(self, message: Message, timeout: float = 3.0) -> StoredMessage:
        """Send a message, and wait up to `timeout` seconds for its consumer's reply.

        Raises `NoReply`, the errors of a future of `send`, and `InvalidArgument` if the producer has a name.
        """
        self.must_be_open()
        if isinstance(self._store, ClusterAppends):
            raise UnsupportedStore(
                f"{self._what}: request works with a directory only, because a cluster does not pass replies on"
            )
        if self._sequences is not None:
            raise InvalidArgument(
                f"{self._what}: request works only with a producer without a name. Open another Producer for requests"
            )
        deadline = time.monotonic() + span("timeout", timeout)
        with self._first_request:
            if self._replies is not None and self._replies.is_gone:
                self._replies.stop()
                self._replies = None
            if self._replies is None:
                self._replies = Replies(self._store, self._what)
            replies = self._replies
        properties, waits = replies.expect(timeout)
        try:
            self.send(replace(message, properties={**message.properties, **properties})).result(timeout)
            return waits.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise NoReply(
                f"{self._what}: no reply from topic {message.topic} within {timeout:g} s. Check that a consumer of "
                "the topic runs, or give a longer timeout"
            ) from error
        finally:
            replies.forget(properties)

    def last_sequence(self, topic: str) -> int | None:
        """Return the highest sequence of a topic in the log when this producer was opened, None if there was none."""
        self.must_be_open()
        return None if self._sequences is None else self._sequences.found.get(topic)

    def _send_message(self, message: object, sequence: int | None) -> SendFuture:
        if not isinstance(message, Message):
            raise illegal(
                f"{message!r:.40} is a {type(message).__name__}. send takes a store.Message, or a topic and a body"
            )
        if type(message.topic) is not str:
            raise illegal(f"topic={message.topic!r:.40}: must be a text")
        check_mapping(message.properties)
        return self.send(
            message.topic,
            message.body,
            tags=message.tags,
            keys=message.keys,
            properties=message.properties or None,
            queue_id=message.queue_id,
            sharding_key=message.sharding_key,
            flag=message.flag,
            born_timestamp=message.born_timestamp,
            delay_level=message.delay_level,
            deliver_at=message.deliver_at,
            sequence=sequence,
        )

    def _check(self, topic: str) -> None:
        """Raise an error if the topic does not exist.

        If it is deleted after this check, the futures of its messages raise the error.
        """
        self._store.begin().add(topic, _NO_MESSAGES)
        self._topics.add(topic)

    def flush(self) -> None:
        """Wait until all messages sent before are appended or have failed.

        Whether they are fsynced depends on `flushDiskType`. Raises the first error that no future has raised.
        """
        self.must_be_open()
        self._buffer.flush()
        self._sender.raise_unseen()

    def close(self) -> None:
        """Append the buffered messages, and close. Does nothing the second time and in a forked process.

        Raises as `flush`, after closing. Raises `StoreLocked`, without closing, in a callback of a future and in a
        signal handler that interrupted `send`.
        """
        if self.is_forked:
            return
        self._sender.must_be_another_thread()
        self._buffer.must_be_outside()
        self._is_over = True
        if self._replies is not None:
            self._replies.close()
        self._sender.finish()
        self._sender.raise_unseen()

    def __del__(self) -> None:
        if not self._is_over and "_sender" in vars(self):
            what = f"{self._what}: was dropped without a call of close. Close it, or use a with statement"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return shown(self, lambda: f"{counted(self._buffer.waiting_bytes, 'byte')} to append")

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cluster(place: object) -> ClusterAppends | None:
    if isinstance(place, str) and place.startswith(SCHEME):
        place = ClusterAddress.parse(place.removeprefix(SCHEME))
    return ClusterAppends(place) if isinstance(place, ClusterAddress) else None


def _opened(store: Any) -> MessageStore:
    return store if isinstance(store, MessageStore) else MessageStore.open(store, create=False)


def _copied(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview | bytes):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    raise illegal(f"a body of type {type(body).__name__}: must be bytes, or a text, which is stored as UTF-8")


def _listed(keys: object) -> tuple[Any, ...] | str:
    if isinstance(keys, str):
        return keys
    if not isinstance(keys, Sequence):
        raise illegal(f"keys={keys!r:.40}: must be a text, or a sequence of texts")
    return tuple(keys)
