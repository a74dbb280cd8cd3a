"""What a member of a cluster says of itself to brokers, as RocketMQ's own clients do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from store.any_group import Subscription
from store.broker.entries import Entry
from store.format.java_hash import java_hash_code
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.strict_json import encode


def heart_beat(group: str, entry: Entry) -> bytes:
    """RocketMQ's HeartbeatData."""
    version = int(time.time() * 1000)
    reads = {**entry.subscriptions, RETRY_TOPIC_PREFIX + group: Subscription()}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": entry.model.name,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [_subscription(topic, read, version) for topic, read in reads.items()],
        "unitMode": False,
    }
    return encode({"clientID": entry.id, "producerDataSet": [], "consumerDataSet": [consumer]})


def _subscription(topic: str, read: Subscription, version: int) -> Mapping[str, Any]:
    """RocketMQ's SubscriptionData. By what the last one said, brokers choose for those that say nothing as they pull:
    also the hashes of tags have to be right."""
    expression = read.expression.strip() or "*"
    tags = [] if read.expression_type != "TAG" or expression == "*" else map(str.strip, expression.split("||"))
    said = [tag for tag in tags if tag]
    return {
        "topic": topic,
        "subString": expression,
        "expressionType": read.expression_type,
        "tagsSet": said,
        "codeSet": [java_hash_code(tag) for tag in said],
        "subVersion": version,
        "classFilterMode": False,
    }
