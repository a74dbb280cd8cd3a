from __future__ import annotations

import json

from store import Message, MessageStore
from store.archive.archive_log import ArchiveAddress
from store.format.layout import TOPICS_FILE
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING

ORDERS = Queue("orders", 0)
SPEC = ReadSpec(("body",), EVERYTHING)


def put(store: MessageStore, topic: str, body: str, count: int, queue_id: int = 0) -> None:
    store.put_many(
        Message(topic, f"{body} {n}".encode(), queue_id=queue_id, keys=(f"{body}{n}",)) for n in range(count)
    )


def bodies(log: object, queue: Queue, begin: int, end: int) -> list[str]:
    batches = log.scan(QueueRange(queue, begin, end), SPEC)  # type: ignore[attr-defined]
    return [body.decode() for batch in batches for body in batch["body"].to_pylist()]


def archived(url: str, queue: Queue = ORDERS) -> list[str]:
    with ArchiveAddress(url).open() as log:
        return bodies(log, queue, *log.bounds([queue])[queue])


def named(body: str, count: int) -> list[str]:
    return [f"{body} {n}" for n in range(count)]


def restarted(store: MessageStore, queues: int = 1, topic: str = "orders") -> None:
    """Recreate a topic as a RocketMQ broker does: queues begin at 0, without a tombstone."""
    store.delete_topic(topic)
    path = store.path / TOPICS_FILE
    content = json.loads(path.read_text())
    del content["deletedTopics"], content["deletedTopicsCrc"]
    path.write_text(json.dumps(content))
    store.create_topic(topic, queues)


def forgets_archive(store: MessageStore) -> None:
    """Delete the archive setting, so that retention also deletes messages that are not archived."""
    (store.path / "config" / "store.conf").unlink()


def begin_at(store: MessageStore, count: int) -> None:
    """Put new orders, then let retention delete the first `count`."""
    put(store, "orders", "new", count)
    first = store.confirm_offset
    while store.confirm_offset // 4096 == first // 4096:
        put(store, "other", "x" * 500, 1)
    put(store, "orders", "newer", 5)
    while store.clean(forced=True).log:
        pass
    assert store.offsets("orders", 0) == (count, count + 5)


def anew(store: MessageStore, count: int) -> None:
    restarted(store)
    put(store, "orders", "new", count)
    store.archive(forget=["orders"])
