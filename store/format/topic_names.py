"""What a topic may be called, and which names RocketMQ keeps for itself."""

from __future__ import annotations

import re
from typing import Final

from store.format.layout import (
    DLQ_TOPIC_PREFIX,
    LIGHT_PREFIX,
    MAX_RETRY_TOPIC_BYTES,
    MAX_TOPIC_BYTES,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOPIC_CHARACTERS,
)
from store.model.errors import InvalidTopic

# Where a sink keeps which batches it appended, each in a message that is published together with the batch's rows.
# RocketMQ takes any name with this prefix for one of its own: nobody subscribes to it by a pattern, and a broker that
# takes the directory over keeps it. `MessageStore.create_topic` makes it.
COMMITS_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}SPARK_COMMITS"
PRODUCERS_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}PRODUCERS"  # and how far named producers have come
TOPICS_OF_NOTES: Final = frozenset({COMMITS_TOPIC, PRODUCERS_TOPIC})  # what others wrote there would hide messages


def check_topic_name(topic: str) -> None:
    """Raises `InvalidTopic` for a name RocketMQ refuses (TopicValidator and the broker's put hook)."""
    if not isinstance(topic, str):
        raise not_a_name(topic)
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)) else MAX_TOPIC_BYTES
    if not re.fullmatch(TOPIC_CHARACTERS, topic):
        raise InvalidTopic(f"topic {topic!r}: only letters, digits, '%', '|', '_' and '-' are allowed")
    if len(topic) > limit:
        raise InvalidTopic(f"topic {topic[:20]!r}...: {len(topic)} characters, at most {limit}")


def is_folder_name(topic: str) -> bool:
    """Whether a topic can be a folder of the store: what says its name may be damaged, and must not lead elsewhere."""
    try:
        size = len(topic.encode(errors="surrogateescape"))  # as the system gives names that are no UTF-8
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return size <= MAX_RETRY_TOPIC_BYTES and topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


def not_a_name(topic: object) -> InvalidTopic:
    """The refusal of what cannot be a topic's name."""
    return InvalidTopic(f"topic {topic!r:.40}: a name is a text")


def is_internal_topic(topic: str) -> bool:
    """Whether RocketMQ made a topic for itself: a system topic (TopicValidator), or one with copies of messages.

    Those are retries and dead letters of consumer groups, and light queues, whose messages stand in other topics, too.
    """
    return topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)) or needs_no_entry(topic)


def needs_no_entry(topic: str) -> bool:
    """Whether a broker has a topic without listing it: light queues, and system topics in some versions."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_TOPIC_PREFIX, LIGHT_PREFIX))
