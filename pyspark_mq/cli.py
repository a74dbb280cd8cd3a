"""The command `pyspark-mq`: make topics, send, follow and look, in plain Python. Only `demo` starts Spark.

Results go to standard output, progress bars to standard error; an error is one line and exit code 1.
"""

import errno
import json
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, cast

import click
import pyarrow as pa
from tqdm import tqdm

from pyspark_mq.find import at_time, by_id, by_key
from pyspark_mq.tail import body_line, follow, json_line
from store import MessageStore, OffsetLost, StoreError
from store.files.segments import BLOCK_BYTES, list_files
from store.format.layout import COMMIT_LOG_DIR
from store.integers import INT_MAX
from store.upkeep.repair import repair
from store.upkeep.retention import Reason
from store.upkeep.verify import Report
from store.upkeep.verify import verify as verify_store

CHUNK_BYTES = 1 << 20
SIZES_AT_ONCE = 1_000_000
STORE = click.argument("store", type=click.Path(file_okay=False))


class Commands(click.Group):
    """A group whose commands answer the store's errors and warnings, and the system's errors, with one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_warning
                return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read our output has gone; click ends quietly
                raise
            raise click.ClickException(str(error)) from error
        except StoreError as error:
            raise click.ClickException(str(error)) from error


def show_warning(message: Warning | str, *_where: object, **_to: object) -> None:
    """One line, as errors are."""
    click.echo(f"Warning: {message}", err=True)


def starting_point(_ctx: click.Context, _option: click.Parameter, value: str) -> str | int:
    if value in ("earliest", "latest"):
        return value
    if value.isdecimal():
        return int(value)
    raise click.BadParameter(f"{value!r} is none of: earliest, latest, an offset")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyspark-mq")
def main() -> None:
    """An embedded log store in RocketMQ's file format that Spark streams from with format("mq").

    STORE is the store's directory.
    """


@main.command()
@click.option("--store", type=click.Path(file_okay=False), help="Keep the store here (default: a temporary one).")
@click.option("--rate", type=click.IntRange(1), default=25_000, show_default=True, help="Messages a second to append.")
def demo(store: str | None, rate: int) -> None:
    """Stream the 336,776 flights that left New York in 2013: one process appends, Spark reads and sums up."""
    from pyspark_mq.demo import run_demo
    from pyspark_mq.neighbours import require_pyspark

    try:
        require_pyspark()
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if run_demo(store, rate) else 1)


@main.group()
def topic() -> None:
    """Make and list topics."""


@topic.command()
@STORE
@click.argument("name")
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True)
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="A store.conf, for a new store.")
def create(store: str, name: str, queues: int, config: str | None) -> None:
    """Make the topic NAME, and STORE if there is none yet. More QUEUES than it has are added to it."""
    with MessageStore.open(store, config=config) as opened:
        click.echo(f"{name}: {opened.create_topic(name, queues=queues)} queues")


@topic.command("list")
@STORE
def list_topics(store: str) -> None:
    """List the topics of STORE and how many queues each has."""
    with MessageStore.open(store, read_only=True) as opened:
        for name, queues in sorted(opened.topics().items()):
            click.echo(f"{name}: {queues} queues")


@main.command()
@STORE
@click.argument("topic")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@click.option("--file", type=click.File("rb"), help="Send each line of this file.")
@click.option("--tags", help="The tag of every message.")
@click.option("--keys", help="The keys of every message, separated by spaces.")
@click.option("--queue", type=click.IntRange(0, INT_MAX), help="The queue of every message (default: all in turn).")
def send(
    store: str,
    topic: str,
    bodies: tuple[str, ...],
    file: BufferedReader | None,
    tags: str | None,
    keys: str | None,
    queue: int | None,
) -> None:
    """Append messages to TOPIC: each BODY, or each line of a file, or each line of standard input.

    Lines are appended as they come, so a program's output can be piped in while it runs.
    """
    if bodies and file:
        raise click.UsageError("give either BODY arguments or --file, not both")
    constants = {
        name: value for name, value in (("tags", tags), ("keys", keys), ("queueId", queue)) if value is not None
    }
    lines = file or cast(BufferedReader, sys.stdin.buffer)
    batches = iter([[os.fsencode(body) for body in bodies]]) if bodies else line_batches(lines)
    sent = 0
    with MessageStore.open(store, create=False) as opened:
        for batch in batches:
            opened.append_table(topic, message_table(batch, constants))
            sent += len(batch)
    click.echo(f"{sent:,} sent to {topic}")


def message_table(bodies: list[bytes], constants: dict[str, str | int]) -> pa.Table:
    """`bodies` as the table that `append_table` takes; each of `constants` is a column with one value."""
    columns = {"body": pa.array(bodies, pa.binary())}
    return pa.table(columns | {name: pa.repeat(value, len(bodies)) for name, value in constants.items()})


def line_batches(source: BufferedReader) -> Iterator[list[bytes]]:
    """The lines of `source` without their ends, as many at a time as there are to read; with a bar."""
    begun = b""
    status = os.fstat(source.fileno())
    size = status.st_size - source.tell() if stat.S_ISREG(status.st_mode) else None
    with tqdm(total=size, unit="B", unit_scale=True, desc="sent", delay=0.5, disable=None) as bar:
        while chunk := source.read1(CHUNK_BYTES):
            *lines, begun = (begun + chunk).split(b"\n")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
            bar.update(len(chunk))
    if begun:
        yield [begun]


@main.command()
@STORE
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=starting_point,
    default="latest",
    show_default=True,
    help="earliest, latest, or an offset in each queue.",
)
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("--tags", help='Only messages with these tags: "paid || shipped".')
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each message instead of its body.")
def tail(
    store: str,
    topic: str,
    start: str | int,
    queue: int | None,
    tags: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Follow TOPIC: print each message when it arrives, until Ctrl-C."""
    line = json_line if as_json else body_line
    out = sys.stdout.buffer
    with suppress(KeyboardInterrupt), MessageStore.open(store, read_only=True) as opened:
        remaining = count
        for arrived in follow(opened, topic, start, queue, tags):
            for row in islice(arrived, remaining):
                out.write(line(row) + b"\n")
                remaining = None if remaining is None else remaining - 1
            out.flush()
            if remaining == 0:
                break


def instant(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Milliseconds since 1970, or ISO 8601; without a time zone it is local time."""
    if value is None or value.isdecimal():
        return value if value is None else int(value)
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither like 2013-01-31T06:00:00 nor milliseconds") from error


@main.command()
@STORE
@click.argument("topic")
@click.option("--key", help="Messages with this key.")
@click.option("--id", "msg_id", help="The message with this id.")
@click.option(
    "--time", "timestamp", callback=instant, help="Offsets at this time: 2013-01-31T06:00:00, or milliseconds."
)
@click.option("--queue", type=click.IntRange(0), help="With --time: only this queue.")
@click.option("--count", type=click.IntRange(1), default=64, show_default=True, help="With --key: the newest so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON objects.")
def query(
    store: str,
    topic: str,
    key: str | None,
    msg_id: str | None,
    timestamp: int | None,
    queue: int | None,
    count: int,
    as_json: bool,
) -> None:
    """Find messages of TOPIC by key or id, or what offset each queue had at a time.

    Exit code 1 when there is no such message. An offset is that of the first message stored at the time or after.
    """
    if [key, msg_id, timestamp].count(None) != 2:
        raise click.UsageError("give one of --key, --id and --time")
    with MessageStore.open(store, read_only=True) as opened:
        if timestamp is not None:
            for queue_id, offset in at_time(opened, topic, queue, timestamp).items():
                line = {"queueId": queue_id, "queueOffset": offset}
                click.echo(json.dumps(line) if as_json else f"queue {queue_id}: offset {offset}")
            return
        found = by_key(opened, topic, key, count) if key is not None else by_id(opened, topic, str(msg_id))
    for row in found:
        click.echo((json_line if as_json else body_line)(row))
    if not found:
        raise click.ClickException(f"no message of {topic} has the key {key!r}")


@main.command()
@STORE
def stats(store: str) -> None:
    """Show the topics of STORE: offsets and messages of each queue; and what the log takes on disk.

    The dispatch lag is that of a RocketMQ broker: what its log has and its queues do not have yet.
    """
    with MessageStore.open(store, read_only=True) as opened:
        rows: list[tuple[str, ...]] = [("topic", "queue", "min offset", "max offset", "messages", "bytes")]
        for name, queues in sorted(opened.topics().items()):
            for queue_id in range(queues):
                first, end, size = extent(opened, name, queue_id)
                rows.append((name, str(queue_id), *(f"{number:,}" for number in (first, end, end - first, size))))
        click.echo(aligned(rows))
        confirm = opened.confirm_offset
        lag = max(0, confirm - opened.dispatched_offset)
        click.echo(f"\nlog: {confirm:,} bytes published, {log_files(store)}, dispatch lag {lag:,} bytes")


@main.command()
@STORE
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--reserved-hours", type=click.IntRange(0), help="Keep what is younger (default: fileReservedTime).")
@click.option("--force", is_flag=True, help="Delete all but the last segment of the log, whatever its age.")
def clean(store: str, dry_run: bool, reserved_hours: int | None, force: bool) -> None:
    """Delete old messages of STORE: segments of its log, and the queue files that pointed into them.

    A segment goes when it was last written more than fileReservedTime hours ago (72 by default); the last one stays.
    When the disk is fuller than diskSpaceCleanForciblyRatio the deleteFileBatchMax oldest go, whatever their age.
    """
    with MessageStore.open(store, create=False, read_only=dry_run) as opened:
        config = opened.config if reserved_hours is None else replace(opened.config, fileReservedTime=reserved_hours)
        step = opened.clean(asked=True, forced=force, dry_run=True, config=config)
        if step.reason is not Reason.DISK_FULL:  # there a step has to end: what readers hold open frees no space yet
            config = replace(config, deleteFileBatchMax=max(1, len(os.listdir(Path(store, COMMIT_LOG_DIR)))))
        step = opened.clean(asked=True, forced=force, dry_run=dry_run, config=config)
    for path in (*step.log, *step.queues, *step.index):
        click.echo(f"{'would delete' if dry_run else 'deleted'} {path}")
    click.echo(
        f"{len(step.log)} log segments, {len(step.queues)} queue files and {len(step.index)} index files, "
        f"{step.taken:,} bytes\n"
        f"The disk is {step.used_percent}% full; {step.reason.value}"
    )


@main.command()
@STORE
@click.option("--repair", "do_repair", is_flag=True, help="Make queues and index anew, cut what lies behind the log.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False), help="A broker's settings, for the sizes of its index."
)
def verify(store: str, do_repair: bool, config: str | None) -> None:
    """Check every record, queue entry and index entry of STORE; exit code 1 if anything is wrong.

    STORE may be in use. A repair needs it alone, does what the next recovery would do, and checks again.
    """
    report = verified(store, config)
    if do_repair and report.findings:
        click.echo(findings_table(report))
        try:
            repair(store, config)
        finally:
            click.echo("\nafter the repair:")
            report = verified(store, config)
            click.echo(findings_table(report))
    else:
        click.echo(findings_table(report))
    sys.exit(1 if report.findings else 0)


def verified(store: str, config: str | None) -> Report:
    """`store.verify.verify` with a bar."""
    with tqdm(unit="B", unit_scale=True, desc="verified", delay=0.5, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return verify_store(store, progress, config)


def findings_table(report: Report) -> str:
    """What was found, a row each, and what was looked at."""
    rows: list[tuple[str, ...]] = [("where", "what", "remedy"), *report.findings] if report.findings else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    looked = f"{report.records:,} records, {report.log_bytes:,} bytes, {report.queues} queues"
    found = f"{len(report.findings)} findings" if report.findings else "no findings"
    return "\n".join([*lines, f"{looked}: {found}"])


def extent(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int, int]:
    """First offset and end of a queue, and the bytes that its records take in the log."""
    while True:
        first, end = store.offsets(topic, queue_id)
        try:
            return first, end, sum(record_bytes(store, topic, queue_id, first, end))
        except OffsetLost:
            if store.min_offset(topic, queue_id) <= first:  # not by retention
                raise


def record_bytes(store: MessageStore, topic: str, queue_id: int, first: int, end: int) -> Iterator[int]:
    """Sums of the record sizes of [first, end), a million messages at a time."""
    for start in range(first, end, SIZES_AT_ONCE):
        yield int(store.sizes(topic, queue_id, start, min(start + SIZES_AT_ONCE, end)).sum())


def log_files(store: str) -> str:
    """How many segment files the log has, and what they take on disk (they are sparse)."""
    files = [status for _, status in list_files(Path(store, COMMIT_LOG_DIR))]
    taken = sum(file.st_blocks * BLOCK_BYTES for file in files)
    return f"{len(files)} segments of {sum(file.st_size for file in files):,} bytes taking {taken:,} on disk"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Rows as columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    )
