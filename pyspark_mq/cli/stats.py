"""`pyspark-mq stats`: what a store has."""

from collections.abc import Iterator
from pathlib import Path

import click

from pyspark_mq.cli.arguments import STORE
from store import MessageStore, OffsetLost
from store.files.segments import BLOCK_BYTES, list_files
from store.format.layout import COMMIT_LOG_DIR

SIZES_AT_ONCE = 1_000_000


@click.command()
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
