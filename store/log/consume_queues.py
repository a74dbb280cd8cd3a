"""`ConsumeQueues`: the queues of one directory, and the one place that opens them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

from store.files.segment_file import OpenFiles
from store.files.topics import Topics
from store.log.consume_queue import ConsumeQueue, IsMessage
from store.log.queue_files import queue_segments

QueueName = tuple[str, int]  # topic, queue id
Ends = Mapping[QueueName, int]  # queue offset after the last entry

_MAX_QUEUES = 1 << 16  # of which the ends are remembered
_OPEN_FILES = 16, 4096  # of all queues together, at least and at most: they are opened as needed
_SHARE = 4  # of the files that the process may have open: it may have other stores, and files of its own


class ConsumeQueues:
    """Every queue by its name. Nothing refers back to this object, so dropping it closes their files.

    topics: those of the directory.
    """

    def __init__(
        self,
        root: Path,
        file_size: int | None,
        *,
        writable: bool,
        is_message: IsMessage | None = None,
        noted_ends: Callable[[], Ends] = dict,
        is_brokers: Callable[[], bool] = lambda: False,
    ) -> None:
        """file_size: as `Segments` takes it. is_message: as `ConsumeQueue` takes it.

        noted_ends: returns how many entries queues had; called at the first opening, and again after `forget`.
        is_brokers: whether a RocketMQ broker owns the directory: it restarts the queues of recreated topics at 0.
        """
        self.topics = topics = Topics(root)
        self._expected: dict[QueueName, int] = {}
        self._deleted: Mapping[str, int] = {}  # deletions at the time of `expect`
        self._noted_ends = lru_cache(1)(noted_ends)
        self._files = OpenFiles(_open_files())
        segments = partial(queue_segments, root, file_size=file_size, writable=writable, files=self._files)
        expected, noted = self._expected, self._noted_ends  # the function below must not refer to this object

        def open_queue(topic: str, queue_id: int) -> ConsumeQueue:
            name = topic, queue_id
            return ConsumeQueue(
                topic,
                queue_id,
                segments(topic, queue_id),
                begin=0 if is_brokers() else topics.begin(topic, queue_id),
                least_end=max(ends.get(name, 0) for ends in (expected, noted())),
                is_message=is_message,
            )

        self._opened = lru_cache(_MAX_QUEUES)(open_queue)
        self._deletions: Callable[[], int] = _never
        self._seen = 0  # of the deletions

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, whether it has files or not."""
        count = self._deletions()
        if count != self._seen or count % 2:  # odd: a deletion is under way, keep nothing that is opened now
            self.forget()
            self._seen = count  # last: other threads that see it rely on `forget`
        return self._opened(topic, queue_id)

    def follow(self, deletions: Callable[[], int]) -> None:
        """Forget all queues when a topic is deleted. deletions: as `PublishedEnd.deletions`, asked at every look."""
        self._deletions = deletions

    def existing(self) -> list[QueueName]:
        """The queues that have a folder, as it stands now."""
        return self.topics.table().queues_on_disk

    def forget(self) -> None:
        """Look at all files anew: a topic may have been deleted and created again."""
        deleted = self.topics.deletions()
        for name in [name for name in list(self._expected) if deleted.get(name[0]) != self._deleted.get(name[0])]:
            self._expected.pop(name, None)
        self._noted_ends.cache_clear()
        self._opened.cache_clear()
        self._files.forget_all()

    def close_deleted(self) -> None:
        """Close files that were deleted: an open one keeps its space on the device."""
        self._files.close_deleted()

    def make_room(self) -> None:
        """Close all files, and keep fewer open from now on: the process had no descriptor left."""
        self._files.make_room()

    def close(self) -> None:
        """Close all files; the next look at one opens it again."""
        self._opened.cache_clear()
        self._files.forget_all()

    def expect(self, ends: Ends) -> None:
        """Learn how many entries queues had: a queue with fewer is damaged, unless its topic is deleted after this."""
        self._deleted = self.topics.deletions()
        self._expected.update(ends)

    @property
    def expected(self) -> Ends:
        """The ends given to `expect`; there may be more queues, and more entries."""
        return self._expected

    def at_most(self, topic: str, queue_id: int, confirm_offset: int, offset: int) -> int:
        """Return `offset`, or the queue's end if that is less. Reads files only for offsets beyond the expected end."""
        if offset <= self._expected.get((topic, queue_id), 0):
            return offset
        return min(offset, self.of(topic, queue_id).max_offset(confirm_offset))


def _never() -> int:
    """Stand for the number of deletions until `follow` sets one."""
    return 0


def _open_files() -> int:
    """Return how many files may be open. A reader of more queues in turn opens one at every look."""
    least, most = _OPEN_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(least, soft // _SHARE))
