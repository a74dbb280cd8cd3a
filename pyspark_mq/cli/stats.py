"""`pyspark-mq stats`: what a store has, once or again and again."""

import json
import time
from itertools import count

import click

from pyspark_mq.cli.arguments import STORE
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.measures import Extent, LogFiles, extents, log_files
from pyspark_mq.cli.tables import Cells, aligned, number
from store import MessageStore

Extents = dict[tuple[str, int], Extent]


@click.command()
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead, in one line.")
@click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Look again every so many seconds.")
@click.option("--count", "looks", type=click.IntRange(1), help="With --watch: end after so many looks.")
def stats(store: str, as_json: bool, watch: float | None, looks: int | None) -> None:
    """Show the topics of STORE: offsets and messages of each queue; and what the log takes on disk.

    The dispatch lag is that of a RocketMQ broker: what its log has and its queues do not have yet.
    """
    if looks is not None and watch is None:
        raise click.UsageError("--count goes with --watch")
    seen: Extents = {}
    done = 0
    with interruptible(lambda: f"{done:,} looks at {store}"), MessageStore.open(store, read_only=True) as opened:
        for done in count(1):
            seen = extents(opened, seen)
            click.echo((as_object if as_json else as_table)(seen, log_files(opened)))
            if watch is None or done == looks:
                return
            click.echo("", nl=not as_json)
            time.sleep(watch)


def as_table(found: Extents, log: LogFiles) -> str:
    """A line for each queue, and one for the log."""
    rows: list[Cells] = [("topic", "queue", "min offset", "max offset", "messages", "bytes")]
    for each in found.values():
        numbers = each.first, each.end, each.messages, each.size
        rows.append((each.topic, str(each.queue), *map(number, numbers)))
    return (
        f"{aligned(rows)}\n\nlog: {log.published:,} bytes published, {log.segments} segments of {log.length:,} bytes "
        f"taking {log.taken:,} on disk, dispatch lag {log.dispatch_lag:,} bytes"
    )


def as_object(found: Extents, log: LogFiles) -> str:
    """One line of JSON."""
    queues = [
        {
            "topic": each.topic,
            "queueId": each.queue,
            "minOffset": each.first,
            "maxOffset": each.end,
            "messages": each.messages,
            "bytes": each.size,
        }
        for each in found.values()
    ]
    taken = {
        "publishedBytes": log.published,
        "segments": log.segments,
        "fileBytes": log.length,
        "bytesOnDisk": log.taken,
        "dispatchLagBytes": log.dispatch_lag,
    }
    return json.dumps({"timestamp": round(time.time() * 1000), "queues": queues, "log": taken})
