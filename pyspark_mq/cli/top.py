from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import click

from pyspark_mq.cli.arguments import ALL, STORE_OR_CLUSTER
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.looks import looks_at
from pyspark_mq.cli.terminal import cell, number
from pyspark_mq.stats.measures import Extent, Look

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Column


class TopicLine(NamedTuple):
    """The numbers of a topic.

    size: bytes of records. rate: messages per second. byte_rate: record bytes per second. Rates are None in the first
    look.
    """

    topic: str
    queues: int
    messages: int
    size: int | None
    rate: float | None
    byte_rate: float | None


@click.command()
@STORE_OR_CLUSTER
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--count", "looks", type=click.IntRange(1), help="End after this many looks.")
@ALL
def top(store: str, interval: float, looks: int | None, *, show_all: bool) -> None:
    """Show the rates, sizes and group lags of STORE, until Ctrl-C.

    A terminal shows one screen, which is redrawn. Otherwise each look is printed below the last.
    STORE is a directory; or a cluster, by its name servers: rocketmq://10.0.0.1:9876. A cluster shows no bytes. For a
    missing broker, it shows the numbers of the last look.
    """
    from rich.console import Console
    from rich.live import Live

    console, done = Console(markup=False, emoji=False), 0
    with interruptible(lambda: f"{done:,} looks at {store}"), looks_at(store) as look:
        before, now = None, look(None)
        with Live(console=console, auto_refresh=False, screen=True) if console.is_terminal else nullcontext() as live:
            for done in count(1):
                shown = screen(store, before, now if show_all else now.without_internal_topics())
                if live is None:
                    console.print(shown)
                else:
                    live.update(shown, refresh=True)
                if done == looks:
                    return
                time.sleep(interval)
                before, now = now, look(now)


def lags_by_topic(now: Look) -> Counter[tuple[str, str]]:
    behind: Counter[tuple[str, str]] = Counter()
    for each in now.groups.values():
        behind[each.group, each.queue.topic] += each.messages
    return behind


def topic_lines(before: Look | None, now: Look) -> list[TopicLine]:
    """Return the numbers of each topic, the busiest topic first."""
    lines = []
    for topic in dict.fromkeys(queue.topic for queue in now.queues):
        queues = [each for each in now.queues.values() if each.topic == topic]
        messages, size = sum(each.messages for each in queues), _size(queues)
        rate = byte_rate = None
        if before is not None:
            earlier = [before.queues.get(each.queue, each._replace(end=each.first, size=0)) for each in queues]
            both, seconds = list(zip(earlier, queues, strict=True)), now.at - before.at
            rate = sum(max(0, new.end - old.end) for old, new in both) / seconds
            grown = sum(max(0, (new.size or 0) - (old.size or 0)) for old, new in both) / seconds
            byte_rate = None if size is None else grown
        lines.append(TopicLine(topic, len(queues), messages, size, rate, byte_rate))
    return sorted(lines, key=lambda line: -(line.rate or 0))


def _size(queues: list[Extent]) -> int | None:
    sizes = [each.size for each in queues if each.size is not None]
    return sum(sizes) if len(sizes) == len(queues) else None


def _head(store: str, before: Look | None, now: Look) -> str:
    if now.log is None:
        return "\n".join([cell(store), *map(str, now.missing)])
    log = now.log
    head = f"{cell(store)}  log {log.published:,} bytes, {log.taken:,} on disk in {log.segments} segments"
    if before is None or before.log is None:
        return head
    return f"{head}, {(log.published - before.log.published) / (now.at - before.at):,.0f} bytes/s"


def screen(store: str, before: Look | None, now: Look) -> Group:
    from rich.console import Group
    from rich.table import Table

    head = _head(store, before, now)
    topics = Table("topic", *(_right(name) for name in ("queues", "messages", "bytes", "messages/s", "bytes/s")))
    for line in topic_lines(before, now):
        topics.add_row(cell(line.topic), *map(number, line[1:]))
    lags = lags_by_topic(now)
    if not lags:
        return Group(head, topics)
    groups = Table("group", "topic", *(_right(name) for name in ("lag", "read/s")))
    for (group, topic), behind in lags.most_common():
        groups.add_row(cell(group), cell(topic), number(behind), number(_read_rate(before, now, group, topic)))
    return Group(head, topics, groups)


def _right(name: str) -> Column:
    from rich.table import Column

    return Column(name, justify="right")


def _read_rate(before: Look | None, now: Look, group: str, topic: str) -> float | None:
    """Return the messages that a group reads per second: the rate of appends plus the decrease of the lag."""
    earlier = Counter[tuple[str, str]]() if before is None else lags_by_topic(before)
    if before is None or (group, topic) not in earlier:
        return None
    rates = {line.topic: line.rate or 0.0 for line in topic_lines(before, now)}
    fell = earlier[group, topic] - lags_by_topic(now)[group, topic]
    return max(0.0, rates.get(topic, 0.0) + fell / (now.at - before.at))
