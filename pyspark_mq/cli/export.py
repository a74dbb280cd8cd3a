import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import click
import pyarrow as pa
from tqdm import tqdm

from pyspark_mq.browsing import FORMS, Place, bounds_of, offsets_at
from pyspark_mq.cli.arguments import LOG, QUEUE, SQL, TAGS, TOPIC, UNREADABLE, filter_of, log_at, place, words
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.json_lines import JSON
from pyspark_mq.cli.terminal import echo
from store import COLUMNS
from store.disk.atomic import sync_directory
from store.model.log_protocol import Bounds, QueueRange, ReadSpec, Unreadable

ROW_GROUP_BYTES = 64 << 20  # large, because each row group costs a reader of Parquet some time
STANDARD_OUTPUT = "-"
Batches = Iterable[pa.RecordBatch]
EXPORTED = (*tuple(COLUMNS)[:10], "flag")


def json_lines(batches: Batches, out: BinaryIO, _schema: pa.Schema) -> None:
    for batch in batches:
        out.writelines(JSON.line(row) + b"\n" for row in batch.to_pylist())


def arrow(batches: Batches, out: BinaryIO, schema: pa.Schema) -> None:
    with (pa.ipc.new_file if out.seekable() else pa.ipc.new_stream)(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def parquet(batches: Batches, out: BinaryIO, schema: pa.Schema) -> None:
    from pyarrow.parquet import ParquetWriter

    with ParquetWriter(out, schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for batch in batches:
            group.append(batch)
            if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group))


WRITERS: dict[str, Callable[[Batches, BinaryIO, pa.Schema], None]] = {
    "parquet": parquet,
    "arrow": arrow,
    "jsonl": json_lines,
}


class ExportedBatches:
    """The batches of an export, with a progress bar. Can be iterated once. rows: the number so far."""

    def __init__(self, batches: Batches, total: int | None) -> None:
        self.rows = 0
        self._batches = batches
        self._total = total

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        bar = tqdm(total=self._total, unit=" messages", unit_scale=True, desc="exported", delay=0.5, disable=None)
        with bar:
            for batch in self._batches:
                yield batch
                self.rows += batch.num_rows
                bar.update(batch.num_rows)


def columns_of(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    names = None if value is None else tuple(name.strip() for name in value.split(","))
    for name in names or ():
        if name not in COLUMNS:
            raise click.BadParameter(f"Column {name!r} does not exist; there are {', '.join(COLUMNS)}")
    return names


@click.command()
@LOG
@TOPIC
@click.option("--to", "kind", type=click.Choice(list(WRITERS)), required=True, help="The format of the file.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="The file, or - for standard output (default: TOPIC with the format as suffix).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--from",
    "begin",
    metavar="PLACE",
    default="earliest",
    show_default=True,
    callback=place,
    shell_complete=words,
    help=f"Where to begin: {FORMS}.",
)
@click.option(
    "--until",
    "end",
    metavar="PLACE",
    default="latest",
    show_default=True,
    callback=place,
    shell_complete=words,
    help="Where to end: before this place.",
)
@QUEUE
@TAGS
@SQL
@click.option("--columns", callback=columns_of, metavar="NAME,...", help="Only these columns, in this order.")
@click.option(
    "--unreadable",
    type=UNREADABLE,
    default="error",
    show_default=True,
    help="If a body does not decompress within the size limit: end, or write null, with the reason in bodyError.",
)
def export(
    store: str,
    topic: str,
    kind: str,
    output: str | None,
    force: bool,
    begin: Place,
    end: Place,
    queue: int | None,
    tags: str | None,
    sql: str | None,
    columns: tuple[str, ...] | None,
    unreadable: Unreadable,
) -> None:
    """Write the messages of TOPIC to a Parquet, Arrow or JSON file.

    They are in the order of queues. The file appears when it is complete. 'send --json' can send a JSON file. STORE is
    the directory of a store, the directory or URL of an archive, or the name servers of a cluster:
    rocketmq://10.0.0.1:9876.
    """
    if columns is not None and kind == "jsonl":
        raise click.UsageError(
            "--columns is for parquet and arrow. Lines of JSON always have all columns that 'send --json' reads"
        )
    target = Path(f"{topic}.{kind}" if output is None else output)
    if output != STANDARD_OUTPUT:
        _must_have_folder(target)
        if not force:
            _must_be_free(target)
    wanted = filter_of(tags, sql)
    exported = EXPORTED if unreadable == "error" else (*EXPORTED, "bodyError")
    names = JSON.columns if kind == "jsonl" else columns or exported
    with (
        interruptible(lambda: f"nothing was written to {target}"),
        log_at(store).open() as log,
    ):
        bounds = bounds_of(log, topic, queue)
        starts, stops = offsets_at(log, bounds, begin), offsets_at(log, bounds, end)
        parts = [QueueRange(each, *part(has, starts[each], stops[each])) for each, has in bounds.items()]
        spec = ReadSpec(names, wanted, unreadable=unreadable)
        scans = [log.scan(each, spec) for each in parts]
        total = None if wanted.columns else sum(each.length for each in parts)
        batches = ExportedBatches(chain.from_iterable(scans), total)
        with file(output, target, force=force) as out:
            WRITERS[kind](batches, out, pa.schema([(name, COLUMNS[name]) for name in names]))
    if output != STANDARD_OUTPUT:
        echo(f"{batches.rows:,} messages of {topic} in {target}")


def part(has: Bounds, start: int, stop: int) -> tuple[int, int]:
    """Return the offsets [begin, end) of a queue to export.

    A begin before the queue's first message stays, so that the scan reports the deleted messages.
    """
    begin = min(start, has.max_offset)
    return begin, max(min(stop, has.max_offset), begin)


def _must_have_folder(target: Path) -> None:
    if not target.parent.is_dir():
        raise click.ClickException(
            f"{target}: the folder {target.parent} does not exist. Create it, or name another file"
        )


def _must_be_free(target: Path) -> None:
    if target.is_file():
        raise click.ClickException(f"{target}: the file exists. Name another file, or replace it with --force")


def _name(begun: Path, target: Path) -> None:
    try:
        os.link(begun, target)  # unlike a rename, a link never replaces a file
    except FileExistsError:
        raise click.ClickException(
            f"{target}: another process created this file during the export, so nothing was written. Name another "
            "file, or replace it with --force"
        ) from None
    except OSError:  # a file system without links
        _must_be_free(target)
        begun.replace(target)


@contextmanager
def file(output: str | None, target: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open the output. A file is written under a temporary name, synced, and then renamed.

    force: replace an existing file.
    """
    if output == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            yield out
        return
    begun = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with begun.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if force:
            begun.replace(target)
        else:
            _name(begun, target)
        sync_directory(target.parent, if_readable=True)
    except OSError as error:
        if error.errno is not None:  # some errors of Arrow have no errno
            error.filename = str(target)
        raise
    finally:
        with suppress(FileNotFoundError):
            begun.unlink()
