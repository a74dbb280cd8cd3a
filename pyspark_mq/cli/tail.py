import select
import sys
from collections.abc import Iterable
from itertools import islice
from typing import BinaryIO

import click

from pyspark_mq.browsing import FORMS, Place, Row, between, bounds_of, follow, newest, offsets_at, rows_of
from pyspark_mq.cli.arguments import LOG, QUEUE, SQL, TAGS, TOPIC, UNREADABLE, filter_of, log_at, place, words
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.json_lines import JSON, PrintFormat, printed_as
from pyspark_mq.cli.terminal import echo
from store.model.log_protocol import Unreadable


class Printer:
    def __init__(self, out: BinaryIO, kind: PrintFormat, count: int | None) -> None:
        self.printed = 0
        self._out = out
        self._kind = kind
        self._count = None if count is None else min(count, sys.maxsize)

    def write(self, rows: Iterable[Row]) -> None:
        for row in islice(rows, self._left()):
            if row["body"] is None and self._kind is not JSON:
                echo(f"queue {row['queueId']}, offset {row['queueOffset']}: {row['bodyError']}", err=True)
            else:
                self._out.write(self._kind.line(row) + b"\n")
            self.printed += 1
        self._out.flush()

    @property
    def is_done(self) -> bool:
        return self._left() == 0 or _is_broken(self._out)

    def _left(self) -> int | None:
        return None if self._count is None else self._count - self.printed


def _is_broken(out: BinaryIO) -> bool:
    """Return whether the pipe's reader has closed it. The next write would show it, too, but maybe much later."""
    poll = select.poll()
    poll.register(out.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


@click.command()
@LOG
@TOPIC
@click.option(
    "--from",
    "begin",
    metavar="PLACE",
    callback=place,
    shell_complete=words,
    help=f"Where to begin: {FORMS} (default: latest; with --until-end, --to or -n, earliest).",
)
@click.option(
    "--to",
    "end",
    metavar="PLACE",
    callback=place,
    shell_complete=words,
    help="End before this place, or at the end of the topic.",
)
@click.option(
    "-n", "newest_only", type=click.IntRange(1), metavar="N", help="Print only the newest N of these messages."
)
@click.option(
    "-f/",
    "--follow/--until-end",
    "waits",
    default=None,
    help="Wait for new messages, or end (default: wait, except with --to or -n).",
)
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@QUEUE
@TAGS
@SQL
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each message instead of its body.")
@click.option(
    "--unreadable",
    type=UNREADABLE,
    default="null",
    show_default=True,
    help="If a body does not decompress within the size limit: end, or print the reason to standard error and go on.",
)
def tail(
    store: str,
    topic: str,
    begin: Place | None,
    end: Place | None,
    newest_only: int | None,
    waits: bool | None,
    count: int | None,
    queue: int | None,
    tags: str | None,
    sql: str | None,
    as_json: bool,
    unreadable: Unreadable,
) -> None:
    """Print the messages of TOPIC, and wait for new ones.

    Messages are printed in the order of their appends. Ctrl-C, --until-end, --to or -n end the command. An offset
    applies to every queue. 'send --json' can send the lines that --json prints. STORE is the directory of a store, the
    directory or URL of an archive, or the name servers of a cluster: rocketmq://10.0.0.1:9876.
    """
    if waits and end is not None:
        raise click.UsageError("--to and --follow exclude each other. Give one of them")
    if waits is None:
        waits = end is None and newest_only is None
    if begin is None:
        begin = "latest" if waits and newest_only is None else "earliest"
    printed = printed_as(as_json)
    spec = rows_of(printed.columns, filter_of(tags, sql), unreadable)
    printer = Printer(sys.stdout.buffer, printed, count)
    with (
        interruptible(lambda: f"{printer.printed:,} messages of {topic} printed"),
        log_at(store).open() as log,
    ):
        bounds = bounds_of(log, topic, queue)
        starts = offsets_at(log, bounds, begin)
        ends = offsets_at(log, bounds, "latest")
        stops = ends if end is None else offsets_at(log, bounds, end)
        stops = {each: max(min(stops[each], last), min(starts[each], last)) for each, last in ends.items()}
        there: Iterable[Row] = ()
        if newest_only is not None:
            there, starts = newest(log, starts, stops, newest_only, spec), stops
        elif not waits:
            there = between(log, starts, stops, spec)
        last = log.fingerprints(starts)
        printer.write(there)
        for arrived in follow(log, topic, starts, queue, spec, last) if waits else ():
            printer.write(arrived)
            if printer.is_done:
                break
