"""Finding messages in plain Python: by key or id, and by time, as the rows that `tail` prints."""

from datetime import UTC, datetime, timedelta

from pyspark_mq.tail import Row
from store import MessageStore, StoredMessage, UnknownTopic


def by_key(store: MessageStore, topic: str, key: str, count: int) -> list[Row]:
    """The newest `count` messages with this key, oldest first."""
    return [row(message) for message in store.query(topic, key, max_messages=count)]


def by_id(store: MessageStore, topic: str, msg_id: str) -> list[Row]:
    """The message with this id: a producer's own, which is a key, or else one that names the place in the log.

    Raises `UnknownTopic` when another topic has it, and as `MessageStore.message_by_id`.
    """
    if found := by_key(store, topic, msg_id, 1):
        return found
    message = store.message_by_id(msg_id)
    if message.topic != topic:
        raise UnknownTopic(f"{msg_id}: a message of topic {message.topic!r}, not of {topic!r}")
    return [row(message)]


def at_time(store: MessageStore, topic: str, queue: int | None, timestamp: int) -> dict[int, int]:
    """Queue id to the offset of the first message stored at `timestamp` (ms) or after; its end when all are older."""
    queues = range(store.topics().get(topic, 1)) if queue is None else [queue]
    return {queue_id: store.offset_by_time(topic, queue_id, timestamp) for queue_id in queues}


def row(message: StoredMessage) -> Row:
    return {
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "body": message.body,
        "bornTimestamp": instant(message.born_timestamp),
        "storeTimestamp": instant(message.store_timestamp),
        "properties": message.properties,
        "physicalOffset": message.physical_offset,
    }


def instant(milliseconds: int) -> datetime | None:
    """A time since 1970; None where it is none of the years 1 to 9999, as in the columns of a scan."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
