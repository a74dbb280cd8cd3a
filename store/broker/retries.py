"""Messages that a consumer group could not process: delivered again later, and finally dead letters.

As in RocketMQ's broker (SendMessageProcessor.consumerSendMsgBack), a copy goes to topic %RETRY%group, with a delay
level that grows with the number of tries, or to %DLQ%group after the last one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence

import numpy as np

from store.api.message_store import MessageStore
from store.append.placing import AppendResult
from store.disk.consumer_offsets import GroupConfigs, check_group_name
from store.format.arrays import texts
from store.format.delayed import LEVELS, MessageDelays, waiting_places
from store.format.layout import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_BODY_ERROR,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    RETRY_TOPIC_PREFIX,
)
from store.format.record_copies import CopyDestinations, RecordCopies
from store.format.stored_message import StoredMessage, decode_record, host_of, offset_msg_id
from store.model.errors import CorruptRecord, OffsetLost, OffsetNotYet, UnknownTopic
from store.model.integers import integer

_LEVEL_OF_FIRST = 3  # after the first failure
_TIMES = "reconsume_times"
DEAD_LETTER_QUEUES = 1
_SHOWN = 5  # message ids in a log line
_logger = logging.getLogger("store")


def send_back(
    store: MessageStore,
    group: str,
    messages: Sequence[StoredMessage],
    *,
    level: int = 0,
    max_reconsume_times: int | None = None,
) -> AppendResult:
    """Put failed messages back for their group, in one append. Return the places of the copies, in order.

    level: the delay level. 0: level 3 after the first failure, one more after each further one, up to 18. Below 0: dead
    letters at once.
    max_reconsume_times: retries before a message becomes a dead letter; default: the group's setting (`retryMaxTimes`),
    16 if unset.

    The messages may be from the store's archive, or deleted from the log. Raises `CorruptStore` for an invalid setting,
    `InvalidGroup`, and the errors of `MessageStore.put`.
    """
    check_group_name(group)
    level, (most, retry_queues) = integer("level", level), GroupConfigs(store.path).retries(group)
    most = most if max_reconsume_times is None else max_reconsume_times
    dead = np.array([level < 0 or message.reconsume_times >= most for message in messages], np.bool_)
    order = np.argsort(dead, kind="stable")  # dead letters last
    append = store.begin()
    for is_dead in (False, True):
        some = [messages[row] for row in order.tolist() if dead[row] == is_dead]
        if some:
            queues = DEAD_LETTER_QUEUES if is_dead else retry_queues
            topic = _created(store, (DLQ_TOPIC_PREFIX if is_dead else RETRY_TOPIC_PREFIX) + group, queues)
            copies = _copies(store, some)
            places = _places(some, topic, random.randrange(queues))
            append.add_copies(copies, _dead(places) if is_dead else _later(places, level))
    placed, back = append.publish(), np.argsort(order)
    if dead.any():
        lost = [messages[row] for row in np.flatnonzero(dead).tolist()]
        ids = ", ".join(first_id(message.msg_id, message.properties) for message in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        _logger.warning("group %s: made dead letters in %s: %s%s", group, DLQ_TOPIC_PREFIX + group, ids, more)
    return AppendResult(placed.queue_ids[back], placed.queue_offsets[back], placed.physical_offsets[back])


def first_id(msg_id: str, properties: Mapping[str, str]) -> str:
    """Return the id that a message had before it was first sent back.

    An id that a producer gave does not change. Any other id is an offset, and each copy has a new one.
    """
    return msg_id if PROPERTY_UNIQ_KEY in properties else properties.get(PROPERTY_ORIGIN_ID, msg_id)


def _created(store: MessageStore, topic: str, queues: int) -> str:
    try:
        store.max_offset(topic, queues - 1)
    except UnknownTopic:
        store.create_topic(topic, queues)
    return topic


def _copies(store: MessageStore, messages: Sequence[StoredMessage]) -> RecordCopies:
    has = np.array([_has(store, message) for message in messages], np.bool_)
    at = np.array([message.physical_offset for message in messages], np.int64)
    try:
        own = [store.copies(at[has])] if has.any() else []
    except OffsetLost:  # deleted concurrently
        return RecordCopies.of_messages(messages)
    # Records of other logs are rebuilt from their messages.
    read = [RecordCopies.of_messages([messages[row] for row in np.flatnonzero(~has).tolist()])] if not has.all() else []
    return RecordCopies.concatenate(own + read).take(np.argsort(np.argsort(~has, kind="stable")))


def _has(store: MessageStore, message: StoredMessage) -> bool:
    try:
        record = store.record_at(message.physical_offset)
        found = decode_record(record, f"commit log offset {message.physical_offset}", check_crc=False)
    except (OffsetLost, OffsetNotYet, CorruptRecord):
        return False
    # Another message may be at the offset of an archived one here.
    topics = found.topic, found.properties.get(PROPERTY_RETRY_TOPIC)  # consumers see its original topic
    own, its = ((each.queue_id, each.queue_offset, each.body_crc) for each in (found, message))
    return message.topic in topics and own == its


def _places(messages: Sequence[StoredMessage], topic: str, queue_id: int) -> CopyDestinations:
    properties = {
        PROPERTY_WAIT: texts(["false"] * len(messages)),
        PROPERTY_RETRY_TOPIC: texts([each.properties.get(PROPERTY_RETRY_TOPIC) or each.topic for each in messages]),
        PROPERTY_ORIGIN_ID: texts([each.properties.get(PROPERTY_ORIGIN_ID) or _offset_id(each) for each in messages]),
    }
    errors = [each.properties.get(PROPERTY_BODY_ERROR, "") for each in messages]
    if any(errors):
        properties[PROPERTY_BODY_ERROR] = texts(errors)
    again = np.array([each.reconsume_times + 1 for each in messages], np.int64)
    return CopyDestinations(topic, np.full(len(messages), queue_id), properties, {_TIMES: again})


def _dead(places: CopyDestinations) -> CopyDestinations:
    return places._replace(properties={**places.properties, PROPERTY_DELAY: texts(["0"] * len(places.queue_ids))})


def _later(places: CopyDestinations, level: int) -> CopyDestinations:
    times = places.fields[_TIMES]
    levels = np.full(len(times), level) if level else _LEVEL_OF_FIRST + times - 1
    return waiting_places(places, MessageDelays(np.minimum(levels, LEVELS), np.zeros(len(times), np.int64)))


def _offset_id(message: StoredMessage) -> str:
    return offset_msg_id(*host_of(message.store_host), message.physical_offset)
