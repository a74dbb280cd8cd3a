from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import NamedTuple

import click
import numpy as np

from pyspark_mq.cli.arguments import STORE
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.terminal import Cells, aligned, echo, number
from store import InvalidTopic, Message, MessageStore

_QUEUES = 4
_HEAD: Cells = ("call", "messages", "messages/s", "MB/s", "ms p50", "ms p99", "ms max")


class Call(NamedTuple):
    messages: int
    seconds: float


@click.command()
@STORE
@click.option(
    "--topic", default="bench", show_default=True, help="The name of a new topic, which is deleted at the end."
)
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True, help="How long to send."
)
@click.option("--size", type=click.IntRange(1), default=1000, show_default=True, help="Bytes in a message body.")
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True, help="Messages in one append.")
@click.option(
    "--producers", type=click.IntRange(1), default=1, show_default=True, help="The number of threads that send."
)
@click.option("--keep", is_flag=True, help="Keep the topic at the end.")
def bench(store: str, topic: str, seconds: float, size: int, batch: int, producers: int, keep: bool) -> None:
    """Measure how fast STORE appends and reads messages.

    A missing STORE is created. The messages take disk space until 'clean' deletes their segments.
    """
    with (
        interruptible(lambda: f"not measured to the end; topic {topic} is {'kept' if keep else 'deleted'}"),
        MessageStore.open(store) as opened,
        trial_topic(opened, topic, keep=keep),
    ):
        body = np.random.default_rng(0).bytes(size)  # random, so that no layer can compress it
        messages = [Message(topic, body) for _ in range(batch)]
        begun = time.perf_counter()
        sent = send_calls(opened, messages, seconds, producers)
        done = time.perf_counter()
        received = list(read_calls(opened, topic))
        rows = [figures("send", sent, size, done - begun), figures("read", received, size, time.perf_counter() - done)]
    echo(aligned([_HEAD, *rows]))


@contextmanager
def trial_topic(store: MessageStore, topic: str, *, keep: bool) -> Iterator[None]:
    if topic in store.topics():
        raise InvalidTopic(f"Topic {topic!r} exists in {store.path}. Name a new one: --topic NAME")
    store.create_topic(topic, _QUEUES)
    try:
        yield
    finally:
        if not keep:
            store.delete_topic(topic)


def send_calls(store: MessageStore, messages: list[Message], seconds: float, producers: int) -> list[Call]:
    """Send `messages` again and again for `seconds`, in `producers` threads.

    The first error or Ctrl-C stops all threads.
    """
    stop = Event()

    def send() -> list[Call]:
        calls, end = [], time.perf_counter() + seconds
        while not stop.is_set() and (begun := time.perf_counter()) < end:
            store.put_many(messages)
            calls.append(Call(len(messages), time.perf_counter() - begun))
        return calls

    with ThreadPoolExecutor(producers) as pool:
        try:
            running = [pool.submit(send) for _ in range(producers)]
            return [call for each in running for call in each.result()]
        finally:
            stop.set()


def read_calls(store: MessageStore, topic: str) -> Iterator[Call]:
    for queue in range(_QUEUES):
        begun = time.perf_counter()
        for batch in store.scan(topic, queue, *store.offsets(topic, queue)):
            yield Call(len(batch), time.perf_counter() - begun)
            begun = time.perf_counter()


def figures(name: str, calls: list[Call], size: int, seconds: float) -> Cells:
    """Return a row of the table: counts, rates, and quantiles of the times of calls in ms.

    size: bytes of a body. seconds: the total time.
    """
    messages = sum(call.messages for call in calls)
    times = np.percentile([1000 * call.seconds for call in calls], (50, 99, 100))
    rates = number(messages / seconds), f"{messages * size / seconds / 1e6:,.1f}"
    return (name, number(messages), *rates, *(f"{each:,.1f}" for each in times))
