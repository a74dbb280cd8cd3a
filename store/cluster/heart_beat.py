"""What a member of a cluster says of itself to brokers, as RocketMQ's own clients do."""

from __future__ import annotations

import time

from store.api.group_protocol import Subscription
from store.broker.entries import MemberEntry
from store.format.hashes import java_hash_code
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.strict_json import encode
from store.remoting.bodies import ConsumerData, Heartbeat, SubscriptionData


def heart_beat(group: str, entry: MemberEntry) -> bytes:
    version = int(time.time() * 1000)
    reads = {**entry.subscriptions, RETRY_TOPIC_PREFIX + group: Subscription()}
    consumer = ConsumerData(
        group,
        "CONSUME_PASSIVELY",
        entry.model.name,
        "CONSUME_FROM_LAST_OFFSET",
        [_subscription(topic, read, version) for topic, read in reads.items()],
    )
    return encode(Heartbeat(entry.id, [], [consumer]))


def _subscription(topic: str, read: Subscription, version: int) -> SubscriptionData:
    """By what the last one said, brokers choose for those that say nothing as they pull: also the hashes of tags have
    to be right."""
    expression = read.expression.strip() or "*"
    tags = [] if read.expression_type != "TAG" or expression == "*" else map(str.strip, expression.split("||"))
    said = [tag for tag in tags if tag]
    hashes = [java_hash_code(tag) for tag in said]
    return SubscriptionData(topic, expression, read.expression_type, said, hashes, version)
