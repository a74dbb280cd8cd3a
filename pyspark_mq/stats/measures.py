"""How much a store has: offsets, messages and bytes of each queue, and what the log takes on the device."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from store import MessageStore, OffsetLost, UnknownTopic
from store.files.figures import DELIVERS, figures_in
from store.files.segments import BLOCK_BYTES, list_files
from store.format.layout import COMMIT_LOG_DIR
from store.publish.locks import Holder, process

SIZES_AT_ONCE = 1_000_000


class Extent(NamedTuple):
    """Messages [first, end) of a queue, queue offsets; size: the bytes that their records take in the log."""

    topic: str
    queue: int
    first: int
    end: int
    size: int

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.end - self.first


class LogFiles(NamedTuple):
    """The log. published: bytes, ever. segments: files, of `length` bytes together, which are sparse and take `taken`.

    dispatch_lag: bytes that are in the log, and not in the queues yet, as a RocketMQ broker has it.
    """

    published: int
    segments: int
    length: int
    taken: int
    dispatch_lag: int


def extents(store: MessageStore, before: dict[tuple[str, int], Extent]) -> dict[tuple[str, int], Extent]:
    """Of each queue of each topic. before: what was found the last time, of which only the change is looked at."""
    found: dict[tuple[str, int], Extent] = {}
    for topic, queues in sorted(store.topics().items()):
        with suppress(UnknownTopic):  # deleted meanwhile
            of_topic = [extent(store, topic, queue, before.get((topic, queue))) for queue in range(queues)]
            found |= {(each.topic, each.queue): each for each in of_topic}
    return found


def extent(store: MessageStore, topic: str, queue: int, before: Extent | None = None) -> Extent:
    """Of one queue. Raises `UnknownTopic`."""
    while True:
        first, end = store.offsets(topic, queue)
        is_known = before is not None and before.first == first and before.end <= end
        known = before if is_known else None
        start, size = (first, 0) if known is None else (known.end, known.size)
        try:
            size += sum(record_bytes(store, topic, queue, start, end))
            return Extent(topic, queue, first, end, size)
        except OffsetLost:
            if store.min_offset(topic, queue) <= first:  # not by retention
                raise


def record_bytes(store: MessageStore, topic: str, queue: int, first: int, end: int) -> Iterator[int]:
    """Sums of the record sizes of [first, end), a million messages at a time."""
    for start in range(first, end, SIZES_AT_ONCE):
        yield int(store.sizes(topic, queue, start, min(start + SIZES_AT_ONCE, end)).sum())


def log_files(store: MessageStore) -> LogFiles:
    """How far the log goes, and what its files take."""
    confirm = store.confirm_offset
    files = [status for _, status in list_files(Path(store.path, COMMIT_LOG_DIR))]
    return LogFiles(
        confirm,
        len(files),
        sum(file.st_size for file in files),
        sum(file.st_blocks * BLOCK_BYTES for file in files),
        max(0, confirm - store.dispatched_offset),
    )


def deliverer(store: MessageStore) -> Holder | None:
    """Return the process that delivers the store's delayed messages, as it says itself."""
    for owner, figure in figures_in(Path(store.path)):
        if figure.name == DELIVERS and figure.counts[0]:
            return process(int(owner.partition("-")[0]))
    return None
