"""Valid and reserved names of topics."""

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

# Batches that sinks appended, each published with its rows. Subscriptions by pattern skip this prefix of RocketMQ, and
# brokers keep the topic.
COMMITS_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}SPARK_COMMITS"
PRODUCERS_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}PRODUCERS"  # the progress of named producers
TOPICS_OF_NOTES: Final = frozenset({COMMITS_TOPIC, PRODUCERS_TOPIC})  # foreign messages there would hide messages


def check_topic_name(topic: str) -> None:
    """Raise `InvalidTopic` for a name that RocketMQ rejects (TopicValidator and the broker's put hook)."""
    if not isinstance(topic, str):
        raise not_a_name(topic)
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)) else MAX_TOPIC_BYTES
    if not re.fullmatch(TOPIC_CHARACTERS, topic):
        raise InvalidTopic(f"topic {topic!r}: only letters, digits, '%', '|', '_' and '-' are allowed")
    if len(topic) > limit:
        raise InvalidTopic(
            f"topic {topic[:20]!r}...: the name has {len(topic)} characters, and at most {limit} are allowed"
        )


def is_folder_name(topic: str) -> bool:
    """Return whether a topic can be a folder's name. A damaged name must not lead out of the store."""
    try:
        size = len(topic.encode(errors="surrogateescape"))  # the system's file names need not be UTF-8
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return size <= MAX_RETRY_TOPIC_BYTES and topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


def not_a_name(topic: object) -> InvalidTopic:
    return InvalidTopic(f"topic {topic!r:.40}: the name must be a text")


def is_internal_topic(topic: str) -> bool:
    """Return whether a topic is a system topic, or has copies: retries, dead letters, light queues."""
    return topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)) or needs_no_entry(topic)


def needs_no_entry(topic: str) -> bool:
    """Return whether a broker's table may lack a topic: light queues, and system topics in some versions."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_TOPIC_PREFIX, LIGHT_PREFIX))
