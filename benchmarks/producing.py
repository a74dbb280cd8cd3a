"""How fast does a `Producer` send single messages, against `put_many`, `append_table`, and Kafka's producer?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import count as counting
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks.bench import QUEUES, TOPIC, messages, show, side_by_side
from benchmarks.kafka_broker import broker, unavailable
from store import Message, MessageStore, Producer

_PUT_MANY = 1_000
_POLL_EVERY = 1_000
_topics = counting()

# Body, tag and key of each message.
Parts = list[tuple[bytes, str, str]]


def main(messages_of_each: int, runs: int, body_sizes: tuple[int, ...] = (100, 1000)) -> None:
    """Every message has a tag and a key; in Kafka only the key."""
    why_not = unavailable()
    with broker() if why_not is None else _no_broker() as servers:
        rows = []
        for body_bytes in body_sizes:
            (table,) = messages(messages_of_each, body_bytes, at_once=messages_of_each)
            parts: Parts = [(row["body"], row["tags"], row["keys"]) for row in table.to_pylist()]
            measures: dict[str, Callable[[], float]] = {
                "Producer": partial(_rate, partial(_send, parts)),
                "Producer, futures kept and asked": partial(_rate, partial(_send_and_ask, parts)),
                f"put_many of {_PUT_MANY:,}": partial(_rate, partial(_put_many, parts)),
                "append_table": partial(_rate, partial(_append_table, table)),
            }
            if servers:
                measures["confluent-kafka"] = partial(_kafka, servers, parts)
            rates = dict(zip(measures, side_by_side(runs, *measures.values()), strict=True))
            rows += [_row(body_bytes, name, rate, rates) for name, rate in rates.items()]
    head = ["body", "verb", "messages", "of confluent-kafka", "of append_table"]
    show(f"Producing, medians of {runs} runs" + (f"; without Kafka, which {why_not}" if why_not else ""), head, rows)


def _row(body_bytes: int, name: str, rate: float, rates: dict[str, float]) -> list[str]:
    kafka = rates.get("confluent-kafka")
    ratio = "" if kafka is None else f"{rate / kafka:.2f}"
    return [f"{body_bytes} B", name, f"{rate:,.0f} /s", ratio, f"{rate / rates['append_table']:.2f}"]


@contextmanager
def _no_broker() -> Iterator[None]:
    yield None


def _rate(append: Callable[[MessageStore], int]) -> float:
    """From the first message sent to the last one acknowledged."""
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic(TOPIC, QUEUES)
        store.put(Message(TOPIC, b"first", keys=("first",)))
        begin = time.perf_counter()
        count = append(store)
        return count / (time.perf_counter() - begin)


def _send(parts: Parts, store: MessageStore) -> int:
    with Producer(store) as producer:
        send = producer.send
        for body, tag, key in parts:
            send(TOPIC, body, tags=tag, keys=key)
    return len(parts)


def _send_and_ask(parts: Parts, store: MessageStore) -> int:
    with Producer(store) as producer:
        send = producer.send
        futures = [send(TOPIC, body, tags=tag, keys=key) for body, tag, key in parts]
        return sum(bool(future.result()) for future in futures)


def _put_many(parts: Parts, store: MessageStore) -> int:
    return sum(
        len(store.put_many([Message(TOPIC, body, tag, key) for body, tag, key in parts[first : first + _PUT_MANY]]))
        for first in range(0, len(parts), _PUT_MANY)
    )


def _append_table(table: pa.Table, store: MessageStore) -> int:
    return len(store.append_table(TOPIC, table))


def _kafka(servers: str, parts: Parts) -> float:
    """With default settings: acknowledged by the broker, as in our `Producer`."""
    kafka, kafka_admin = import_module("confluent_kafka"), import_module("confluent_kafka.admin")
    topic = f"{TOPIC}-{next(_topics)}"
    admin = kafka_admin.AdminClient({"bootstrap.servers": servers})
    admin.create_topics([kafka_admin.NewTopic(topic, QUEUES, 1)])[topic].result()
    producer = kafka.Producer({"bootstrap.servers": servers, "acks": "all"})
    producer.produce(topic, b"first")
    assert producer.flush(60) == 0
    produce = producer.produce
    begin = time.perf_counter()
    for number, (body, _, key) in enumerate(parts):
        if number % _POLL_EVERY == 0:
            producer.poll(0)
        while True:
            try:
                produce(topic, body, key)
                break
            except BufferError:  # the producer's queue is full
                producer.poll(0.01)
    assert producer.flush(60) == 0
    rate = len(parts) / (time.perf_counter() - begin)
    admin.delete_topics([topic])[topic].result()
    return rate
