"""Messages from clients: sent by producers, and sent back by consumers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from store.append.placing import AppendResult
from store.broker.half_messages import Half
from store.broker.retries import DEAD_LETTER_QUEUES, send_back
from store.disk.consumer_offsets import GroupConfigs
from store.format.inflating import inflated_size
from store.format.layout import (
    DLQ_TOPIC_PREFIX,
    IPV4_BYTES,
    MAX_PROPERTIES_BYTES,
    MIN_RECORD_BYTES,
    PROPERTY_DELAY,
    PROPERTY_DELIVER_AT,
    PROPERTY_TRANSACTION,
    PROPERTY_UNIQ_KEY,
    RETRY_TOPIC_PREFIX,
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
)
from store.format.message import Message, check_body_size, check_fits
from store.format.properties import decode_properties, properties_too_large
from store.format.stored_message import StoredMessage, decode_record, offset_msg_ids
from store.format.topic_names import TOPICS_OF_NOTES
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import InvalidMessageId, RequestRefused, UnreadableBody
from store.read.query import offset_of_id
from store.remoting.appending import Appending
from store.remoting.bodies import MIN_BATCHED_BYTES, Batched, decode_batch
from store.remoting.command import MAX_HEADER_BYTES
from store.remoting.headers import SendAnswer, SendBack, SendMessage, SendMessageV2
from store.remoting.queue_locks import Locks
from store.remoting.request import Answer, Handler, Request, Response
from store.remoting.rights import Perm, of_topic
from store.remoting.served_broker import ServedBroker
from store.remoting.served_routes import NEW_TOPIC_QUEUES
from store.remoting.served_topics import must_be_of
from store.remoting.served_transactions import ServedTransactions, is_half
from store.remoting.threads import settle

_KEPT_FLAGS = SYS_COMPRESSED | SYS_COMPRESSION_MASK  # the flags that a producer may set
_DELAYS_MS = {"TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": 1000}  # the last one counts
_SENDS: Mapping[int, type[SendMessage]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
}
_BATCH_SLACK = 64 << 10  # bytes by which a batch's records may exceed maxMessageSize
_ID_BYTES = 40  # for a message's id and its share of other fields, in the answer to a batch
_NOWHERE = bytes(IPV4_BYTES)
_REGION = "DefaultRegion"
_logger = logging.getLogger("store.remoting")


class ServedSends:
    def __init__(
        self, broker: ServedBroker, appending: Appending, transactions: ServedTransactions, locks: Locks
    ) -> None:
        self._broker = broker
        self._store = broker.store
        self._create_topics = broker.config.autoCreateTopicEnable
        self._own_topics = broker.config.own_topics
        self._appending = appending
        self._transactions = transactions
        self._locks = locks

    def quick_handlers(self) -> Mapping[int, Handler]:
        return dict.fromkeys(_SENDS, self._send_one)

    def handlers(self) -> Mapping[int, Handler]:
        return dict.fromkeys(_SENDS, self._send_any)

    def _send_one(self, request: Request) -> Future[Response] | None:
        """Append a message. Return None for a batch and a compressed body, so that a worker decodes them."""
        header = _SENDS[request.command.code].of(request.command.fields)
        if _is_batch(request, header) or header.sys_flag & SYS_COMPRESSED:
            return None
        return self._send(request, header, [Batched(header.flag, bytes(request.command.body), _common(header))])

    def _send_any(self, request: Request) -> Answer:
        header, body = _SENDS[request.command.code].of(request.command.fields), bytes(request.command.body)
        is_batch = _is_batch(request, header)
        if is_batch:
            # Wait before decoding: decoded messages take up to 12 times the memory of their frame.
            self._appending.wait_for_space()
            parts = _parts(body, header, self._store.config.maxMessageSize + _BATCH_SLACK)
        else:
            parts = [Batched(header.flag, body, _common(header))]
        if header.sys_flag & SYS_COMPRESSED:
            _must_inflate(parts, header.sys_flag, self._store.config.maxDecompressedMessageSize)
        return self._send(request, header, parts, is_batch=is_batch)

    def _send(
        self, request: Request, header: SendMessage, parts: Sequence[Batched], *, is_batch: bool = False
    ) -> Future[Response]:
        if header.topic in TOPICS_OF_NOTES:
            why = f"topic {header.topic} is written by the store and its sink only; send to a topic of yours"
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, why)
        messages = [_message(header, part) for part in parts]
        new_queues = max(1, min(header.default_topic_queue_nums, NEW_TOPIC_QUEUES)) if self._create_topics else 0
        new_queues = self._own_topics.get(header.topic, new_queues)
        if self._is_dead(header):
            self._broker.must_know(header.topic.removeprefix(RETRY_TOPIC_PREFIX))
            topic, new_queues = header.topic.replace(RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX, 1), DEAD_LETTER_QUEUES
            messages = [replace(each, topic=topic, queue_id=0, delay_level=0, deliver_at=None) for each in messages]
            ids = ", ".join(each.properties.get(PROPERTY_UNIQ_KEY, "without an id") for each in messages)
            _logger.warning("given up by a client, and put into %s: %s", topic, ids)
        fields, answered = _fields(request, header), Future[Response]()
        if not is_batch and is_half(messages[0]):
            prepared = self._transactions.prepare(header.producer_group, messages[0], fields, new_queues)
            prepared.add_done_callback(lambda done: settle(answered, lambda: self._prepared(done.result(), header)))
        else:
            appended = self._appending.append(messages, fields, new_queues)
            appended.add_done_callback(lambda done: settle(answered, lambda: self._sent(done.result())))
        return answered

    def _is_dead(self, header: SendMessage) -> bool:
        if not header.topic.startswith(RETRY_TOPIC_PREFIX):
            return False
        group, most = header.topic.removeprefix(RETRY_TOPIC_PREFIX), header.max_reconsume_times
        if most is None:
            most, _ = GroupConfigs(self._store.path).retries(group)
        # After too many tries, an orderly consumer sends to the retry topic, instead of sending back. Other consumers
        # do so if sending back failed.
        return (header.reconsume_times or 0) > most or self._locks.are_held(group)

    def _sent(self, placed: AppendResult) -> Response:
        ids = offset_msg_ids(*self._store.config.store_host, placed.physical_offsets.tolist())
        queue_id, queue_offset = int(placed.queue_ids[0]), int(placed.queue_offsets[0])
        return Response(header=SendAnswer(",".join(ids), queue_id, queue_offset, region=_REGION, trace_on=False))

    def _prepared(self, half: Half, header: SendMessage) -> Response:
        id = offset_msg_ids(*self._store.config.store_host, [half.physical_offset])[0]
        queue_id, offset = max(0, header.queue_id), half.queue_offset
        return Response(header=SendAnswer(id, queue_id, offset, half.transaction_id, region=_REGION, trace_on=False))


def _is_batch(request: Request, header: SendMessage) -> bool:
    return bool(header.batch) or request.command.code == RequestCode.SEND_BATCH_MESSAGE


def _must_inflate(parts: Sequence[Batched], sys_flag: int, max_bytes: int) -> None:
    left = max_bytes
    try:
        for part in parts:
            left -= inflated_size(part.body, sys_flag, left)
    except UnreadableBody as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _message(header: SendMessage, part: Batched) -> Message:
    properties = decode_properties(part.properties)
    level = _number(properties, PROPERTY_DELAY) or 0
    if level > 0:  # overrides any time
        for name in (PROPERTY_DELIVER_AT, *_DELAYS_MS):
            properties.pop(name, None)
    if header.reconsume_times and level:  # clients before 4.6.1 send back with all properties of a committed message
        properties.pop(PROPERTY_TRANSACTION, None)
    return Message(
        header.topic,
        part.body,
        delay_level=level,
        deliver_at=_deliver_at(properties),
        properties=properties,
        queue_id=None if header.queue_id < 0 else header.queue_id,
        flag=part.flag,
    )


def _deliver_at(properties: dict[str, str]) -> int | None:
    """Remove the delivery time from properties. Return it in ms since 1970, None if there is none."""
    at = _number(properties, PROPERTY_DELIVER_AT)
    for name, unit in _DELAYS_MS.items():
        if (delay := _number(properties, name)) is not None:
            at = int(time.time() * 1000) + delay * unit
    return at


def _number(properties: dict[str, str], name: str) -> int | None:
    text = properties.pop(name, None)
    if text is None:
        return None
    if not re.fullmatch("-?[0-9]{1,18}", text, re.ASCII):
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"property {name}={text[:40]!r} is no number")
    return int(text)


def _common(header: SendMessage) -> bytes:
    properties = (header.properties or "").encode("utf-8", "replace")
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise properties_too_large(len(properties))
    return properties


def _parts(body: bytes, header: SendMessage, max_bytes: int) -> list[Batched]:
    """Return the messages of a batch, each with the request's properties added.

    Before copying a message, check that all records have at most `max_bytes` together, as RocketMQ's broker does, and
    that their ids fit into the answer.
    """
    check_body_size(len(body), max_bytes)
    common = _common(header)
    of_each = MIN_RECORD_BYTES + len(header.topic) + len(common)
    batch = decode_batch(body, min(max_bytes // of_each, MAX_HEADER_BYTES // _ID_BYTES))
    if not batch:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch without a message")
    check_body_size(len(body) + len(batch) * (of_each - MIN_BATCHED_BYTES), max_bytes)
    if common:
        return [part._replace(properties=b"\2".join((common, part.properties))) for part in batch]
    return batch


def _fields(request: Request, header: SendMessage) -> Mapping[str, npt.ArrayLike]:
    check_fits("reconsumeTimes", header.reconsume_times or 0, 32)
    check_fits("bornTimestamp", header.born_timestamp, 64)
    return {
        "born_timestamp": header.born_timestamp,
        "sys_flag": header.sys_flag & _KEPT_FLAGS,
        "reconsume_times": header.reconsume_times or 0,
        "born_ip": np.frombuffer(request.connection.ip or _NOWHERE, np.uint8),
        "born_port": request.connection.port if request.connection.ip else 0,
    }


class SendBacks:
    """Handles CONSUMER_SEND_MSG_BACK: redelivers messages that a client could not process, see `broker/retries`."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._store = broker.store
        self._tiered = broker.tiered
        self._access = broker.access

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def _send_back(self, request: Request) -> Answer:
        header = SendBack.of(request.command.fields)
        return self._tiered.answer_of(request, header.offset, lambda record: self._sent_back(request, header, record))

    def _sent_back(self, request: Request, header: SendBack, record: bytes) -> Response:
        message = decode_record(record, f"commit log offset {header.offset}")
        self._access.must_have(request, of_topic(message.topic, Perm.SUB))
        _must_match_request(message, header)
        most = header.max_reconsume_times
        self._broker.must_know(header.group)
        send_back(self._store, header.group, [message], level=header.delay_level, max_reconsume_times=most)
        return Response()


def _must_match_request(message: StoredMessage, header: SendBack) -> None:
    """Raise `RequestRefused` if the request names another message. The client then sends its message as a new one."""
    must_be_of(message, header.origin_topic)
    own, meant = message.properties.get(PROPERTY_UNIQ_KEY), header.origin_msg_id
    if own and meant and meant != own and not _is_id_of_offset(meant, header.offset):
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            f"at commit log offset {header.offset} stands message {own}, and not {meant}, which is to be sent back",
        )


def _is_id_of_offset(msg_id: str, physical_offset: int) -> bool:
    with suppress(InvalidMessageId):
        return offset_of_id(msg_id) == physical_offset
    return False
