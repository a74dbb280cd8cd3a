import json
import time
from contextlib import ExitStack
from itertools import count

import click

from pyspark_mq.cli.arguments import ALL, STORE_OR_CLUSTER, log_at
from pyspark_mq.cli.commands import interruptible, sleep_until_interrupted
from pyspark_mq.cli.looks import looks_at
from pyspark_mq.cli.terminal import Cells, aligned, echo, number
from pyspark_mq.stats.measures import LogFiles, Look, held, latencies, rate_in, rate_out, refused
from store import MessageStore
from store.cluster.address import ClusterAddress
from store.disk.figures import HELD
from store.model.log_protocol import Queue


@click.command()
@STORE_OR_CLUSTER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in one line.")
@click.option(
    "--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Print again every SECONDS seconds, with rates."
)
@click.option("--count", "looks", type=click.IntRange(1), help="With --watch: end after this many prints.")
@click.option(
    "--prometheus",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics to Prometheus on this port, and print nothing.",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="With --prometheus: the address to listen on.")
@ALL
def stats(
    store: str,
    as_json: bool,
    watch: float | None,
    looks: int | None,
    port: int | None,
    address: str,
    *,
    show_all: bool,
) -> None:
    """Show the queues of STORE, and the size of its log on disk.

    --watch adds messages per second, the waiting requests, and the times of sends, deliveries and processing as clients
    measured them. The dispatch lag is RocketMQ's: bytes in the log without queue entries yet. If the store has delayed
    messages, the process that delivers them is shown. --json shows all topics.

    STORE is a directory; or a cluster, by its name servers: rocketmq://10.0.0.1:9876. A cluster shows no bytes, log
    files or clients. For a missing broker, it shows the numbers of the last look.
    """
    if looks is not None and watch is None:
        raise click.UsageError("--count needs --watch")
    if port is not None:
        if as_json or watch is not None:
            raise click.UsageError(
                "--prometheus does not work with --watch or --json: each scrape reads the present numbers"
            )
        serve(store, address, port)
        return
    done, before = 0, None
    with interruptible(lambda: f"{done:,} looks at {store}"), looks_at(store) as look:
        for done in count(1):
            now = look(before)
            shown = now if show_all else now.without_internal_topics()
            echo(as_object(before, now) if as_json else as_table(before, shown))
            if watch is None or done == looks:
                return
            echo("", nl=not as_json)
            time.sleep(watch)
            before = now


def serve(store: str, address: str, port: int) -> None:
    """Serve metrics for Prometheus until Ctrl-C. port: 0 for a free one."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from pyspark_mq.stats.metrics import ClusterCollector, StoreCollector
    except ImportError as error:
        raise click.ClickException(f"{error}. Install the metrics: pip install 'pyspark-mq[prometheus]'") from error
    place = log_at(store)
    with interruptible(lambda: f"no more metrics of {store}"), ExitStack() as opened:
        registry = CollectorRegistry()
        if isinstance(place, ClusterAddress):
            registry.register(ClusterCollector(opened.enter_context(place.open())))
        else:
            registry.register(StoreCollector(opened.enter_context(MessageStore.open(store, read_only=True))))
        server, thread = start_http_server(port, address, registry)
        try:
            echo(f"http://{address}:{server.server_port}/metrics")
            sleep_until_interrupted()
        finally:
            server.shutdown()
            thread.join()


def as_table(before: Look | None, now: Look) -> str:
    """Return the tables of a look.

    With `before`, they have rates instead of offsets, so that lines fit into 80 columns.
    """
    rows: list[Cells] = [("topic", "queue", "min offset", "max offset", "messages", "bytes")]
    for each in now.queues.values():
        numbers = each.first, each.end, each.messages, each.size
        rows.append((each.topic, each.queue.name, *map(number, numbers)))
    if before is not None:
        rates = ["messages/s", *(number(rate_in(before, now, each)) for each in now.queues.values())]
        rows = [(*row[:2], *row[4:], rate) for row, rate in zip(rows, rates, strict=True)]
    tables = [aligned(rows)]
    if before is not None and now.groups:
        rows = [("group", "topic", "queue", "lag", "read/s")]
        for lag in now.groups.values():
            cells = number(lag.messages), number(rate_out(before, now, lag))
            rows.append((lag.group, lag.queue.topic, lag.queue.name, *cells))
        tables.append(aligned(rows, left=2))
    if before is not None and (found := latencies(before.clients, now.clients)):
        rows = [("took ms", "topic", "group", "times", "p50", "p99")]
        for name, topic, group, count, *quantiles in found:
            rows.append((name, topic, group or "-", number(count), *(f"{each:,.1f}" for each in quantiles)))
        tables.append(aligned(rows, left=3))
    if before is not None and (waiting := held(now.clients)):
        rows = [("waits", "topic", "group", "requests")]
        rows += [(HELD, *labels, number(count)) for labels, count in sorted(waiting.items())]
        tables.append(aligned(rows, left=3))
    if any((closed := refused(now.clients)).values()):
        tables.append("connections refused: " + ", ".join(f"{count:,} {why}" for why, count in closed.items() if count))
    if (log := now.log) is not None:
        tables.append(
            f"log: {log.published:,} bytes published, dispatch lag {log.dispatch_lag:,} bytes\n"
            f"     {log.segments} segments of {log.length:,} bytes taking {log.taken:,} on disk"
        )
    tables += map(str, now.missing)
    if now.deliverer is not None:
        tables.append(f"delayed messages: delivered by {now.deliverer}")
    return "\n\n".join(tables)


def as_object(before: Look | None, now: Look) -> str:
    queues = [
        {
            **_names(each.queue),
            "minOffset": each.first,
            "maxOffset": each.end,
            "messages": each.messages,
            "bytes": each.size,
            **_rate("messagesInPerSecond", rate_in(before, now, each)),
        }
        for each in now.queues.values()
    ]
    groups = [
        {
            "group": lag.group,
            **_names(lag.queue),
            "offset": lag.offset,
            "lag": lag.messages,
            **_rate("messagesOutPerSecond", rate_out(before, now, lag)),
        }
        for lag in now.groups.values()
    ]
    by = now.deliverer
    delivers = None if by is None else {"pid": by.pid, "command": by.command, "stopped": by.is_stopped}
    found = {
        "timestamp": round(time.time() * 1000),
        "queues": queues,
        "groups": groups,
        "log": None if now.log is None else _of_log(now.log),
        "deliverer": delivers,
        "refused": refused(now.clients),
        "missing": [each._asdict() for each in now.missing],
    }
    if before is not None:
        found["latencies"] = [each._asdict() for each in latencies(before.clients, now.clients)]
        waiting = sorted(held(now.clients).items())
        found["held"] = [{"topic": topic, "group": group, "requests": count} for (topic, group), count in waiting]
    return json.dumps(found)


def _of_log(log: LogFiles) -> dict[str, int]:
    return {
        "publishedBytes": log.published,
        "segments": log.segments,
        "fileBytes": log.length,
        "bytesOnDisk": log.taken,
        "dispatchLagBytes": log.dispatch_lag,
    }


def _names(queue: Queue) -> dict[str, str | int]:
    broker = {"broker": queue.broker} if queue.broker else {}
    return {"topic": queue.topic, **broker, "queueId": queue.queue_id}


def _rate(name: str, rate: float | None) -> dict[str, float]:
    return {} if rate is None else {name: round(rate, 1)}
