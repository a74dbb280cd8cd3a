import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import Any, cast

import click
import numpy as np
import pyarrow as pa
from tqdm import tqdm

from pyspark_mq.browsing import Row
from pyspark_mq.cli.arguments import STORE, TOPIC
from pyspark_mq.cli.commands import interruptible, uninterrupted
from pyspark_mq.cli.json_lines import json_object, message, message_table, must_be_text
from pyspark_mq.cli.terminal import echo
from store import MessageRefused, MessageStore, StoreError, UnknownQueue
from store.format.arrays import arrow, blobs
from store.format.layout import KEY_SEPARATOR
from store.model.integers import INT_MAX

CHUNK_BYTES = 1 << 20


class SentLines:
    """Appends the lines of a command up to the first invalid one. lines: how many so far."""

    def __init__(self, topic: str) -> None:
        self.lines = 0
        self._topic = topic

    def __str__(self) -> str:
        return f"{self.lines:,} sent to {self._topic}"

    def append(self, store: MessageStore, table: pa.Table) -> None:
        """Append a table with a row for each line. Raises `ClickException`, which names the invalid line."""
        try:
            with uninterrupted():
                store.append_table(self._topic, table)
                self.lines += table.num_rows
        except (MessageRefused, UnknownQueue) as error:
            if table.num_rows == 1:
                raise self.wrong_line(error) from error
            middle = table.num_rows // 2
            self.append(store, table.slice(0, middle))
            self.append(store, table.slice(middle))
        except StoreError as error:
            raise click.ClickException(f"{error} ({self})") from error

    def wrong_line(self, error: Exception) -> click.ClickException:
        return click.ClickException(f"line {self.lines + 1:,}: {error} ({self})")


def rows_of(lines: list[bytes], row: Callable[[bytes], Row]) -> tuple[list[Row], ValueError | None]:
    """Return the rows before the first invalid line, and that line's error."""
    found = []
    for line in lines:
        try:
            found.append(row(line))
        except ValueError as error:
            return found, error
    return found, None


def properties_of(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in values:
        name, is_given, value = each.partition("=")
        if not is_given:
            raise click.BadParameter(f"{each!r} is no property. Give NAME=VALUE, such as region=eu")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice. Give each property once")
        text_of(_ctx, _option, each)
        found[name] = value
    return found


def text_of(_ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Option callback: refuse text that is not UTF-8, because arguments can contain any bytes."""
    try:
        must_be_text(str(option.name), value or "")
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.command()
@STORE
@TOPIC
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@click.option("--file", type=click.File("rb"), help="Send each line of this file.")
@click.option("--tags", callback=text_of, help="The tag of every message.")
@click.option("--keys", callback=text_of, help="The keys of every message, separated by spaces.")
@click.option(
    "--queue", type=click.IntRange(0, INT_MAX), help="The queue of every message (default: all queues in turn)."
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    callback=properties_of,
    metavar="NAME=VALUE",
    help="A property of every message; may be repeated.",
)
@click.option("--tag-field", metavar="FIELD", help="If lines are JSON objects: the field that has the tag.")
@click.option(
    "--key-field",
    "key_fields",
    multiple=True,
    metavar="FIELD",
    help="If lines are JSON objects: a field that has a key; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Read lines as messages, as 'tail --json' prints them.")
@click.option(
    "--spread", is_flag=True, help="With --json: spread messages over all queues, and ignore the queues in the lines."
)
def send(
    store: str,
    topic: str,
    bodies: tuple[str, ...],
    file: BufferedReader | None,
    tags: str | None,
    keys: str | None,
    queue: int | None,
    properties: dict[str, str],
    tag_field: str | None,
    key_fields: tuple[str, ...],
    as_json: bool,
    spread: bool,
) -> None:
    """Append messages to TOPIC.

    Each BODY is a message; without one, each line of a file or of standard input. Lines are appended as they arrive, so
    you can pipe in the output of a running program. A line of --json has the whole message: body, tag, keys,
    properties, sharding key, queue, flag and born time.
    """
    if bodies and file:
        raise click.UsageError("BODY and --file exclude each other. Give one of them")
    if as_json and (tag_field or key_fields):
        raise click.UsageError(
            "--tag-field and --key-field do not work with --json, whose lines have the fields tags and keys"
        )
    if spread and (not as_json or queue is not None):
        raise click.UsageError("--spread needs --json, and does not work with --queue")
    constants = {"tags": tags, "keys": keys, "queueId": queue, "properties": properties or None}
    constants = {name: value for name, value in constants.items() if value is not None}
    lines = file or cast(BufferedReader, sys.stdin.buffer)
    batches = iter([[os.fsencode(body) for body in bodies]]) if bodies else line_batches(lines)
    sent = SentLines(topic)

    def row(line: bytes) -> Row:
        if as_json:
            return with_constants(message(line), constants, {"queueId"} if spread else set())
        return with_fields(line, constants, tag_field, key_fields)

    with interruptible(lambda: str(sent)), MessageStore.open(store, create=False) as opened:
        for batch in batches:
            if as_json or tag_field or key_fields:
                rows, error = rows_of(batch, row)
                sent.append(opened, message_table(rows))
                if error is not None:
                    raise sent.wrong_line(error) from error
            else:
                sent.append(opened, plain_table(batch, constants))
    echo(str(sent))


def with_constants(row: Row, constants: Row, without: set[str]) -> Row:
    """Return a row with the constants of the command line, and the properties of both.

    without: the row's fields to drop.
    """
    own = {name: value for name, value in row.items() if name not in without}
    both = {"properties": own.get("properties", {}) | constants.get("properties", {})}
    return {**own, **constants, **both}


def with_fields(line: bytes, constants: Row, tag_field: str | None, key_fields: tuple[str, ...]) -> Row:
    """Return the row of a line, with tag and keys from fields of the line's JSON. Raises `ValueError`."""
    given, row = json_object(line), {"body": line, **constants}
    keys = [row["keys"]] if "keys" in row else []
    for field in key_fields:
        keys += [_text(field, each) for each in _listed(given.get(field))]
    if keys:
        row["keys"] = KEY_SEPARATOR.join(keys)
    if tag_field is not None and given.get(tag_field) is not None:
        row["tags"] = _text(tag_field, given[tag_field], blank=True)
    return row


def plain_table(bodies: list[bytes], constants: Row) -> pa.Table:
    table = pa.table({"body": blobs(bodies)})
    if constants:
        one = message_table([{"body": b"", **constants}]).drop_columns("body")
        for name, column in zip(one.column_names, one.take(arrow(np.zeros(len(bodies), np.int64))), strict=True):
            table = table.append_column(name, column)
    return table


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(field: str, value: object, *, blank: bool = False) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"field {field!r} is {json.dumps(value)[:40]}, and a tag or a key must be a text or a number")
    if not blank and KEY_SEPARATOR in str(value):
        raise ValueError(f"field {field!r} is {value!r}, and a key must not contain spaces")
    must_be_text(f"field {field!r}", str(value))
    return str(value)


def line_batches(source: BufferedReader) -> Iterator[list[bytes]]:
    """Yield lists of lines without line ends, each time all lines that `source` has available."""
    begun = b""
    os.set_blocking(source.fileno(), True)  # a non-blocking read without data looks like the end of the file
    status = os.fstat(source.fileno())
    size = status.st_size - source.tell() if stat.S_ISREG(status.st_mode) else None
    no_bar = True if os.isatty(source.fileno()) else None  # None: a bar if stderr is a terminal
    with tqdm(total=size, unit="B", unit_scale=True, desc="sent", delay=0.5, disable=no_bar) as bar:
        while chunk := source.read1(CHUNK_BYTES):
            *lines, begun = (begun + chunk).split(b"\n")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
            bar.update(len(chunk))
    if begun:
        yield [begun]
