"""The queues of one directory."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

from store.disk.consume_queue import ConsumeQueue, IsMessage
from store.disk.queue_files import queue_segments
from store.disk.segment_file import OpenFiles
from store.disk.topics import Topics

QueueName = tuple[str, int]  # topic, queue id
Ends = Mapping[QueueName, int]  # queue offset after the last entry

_MAX_QUEUES = 1 << 16  # cached
_OPEN_FILES = 16, 4096  # minimum and maximum for all queues together
_SHARE = 4  # a store opens at most a quarter of the process's files


class ConsumeQueues:
    """Opens and caches the queues of one directory.

    Queues hold no reference to this object, so their files are closed when its last user drops it.
    """

    def __init__(
        self,
        root: Path,
        file_size: int | None,
        *,
        writable: bool,
        is_message: IsMessage | None = None,
        recorded_ends: Callable[[], Ends] = dict,
        is_brokers: Callable[[], bool] = lambda: False,
    ) -> None:
        """recorded_ends: returns the ends that queues must reach; called at the first opening and after each `forget`.
        is_brokers: whether a broker owns the directory: it restarts the queues of recreated topics at 0.
        """
        self.topics = topics = Topics(root)
        self._expected: dict[QueueName, int] = {}
        self._deleted: Mapping[str, int] = {}  # at the time of `expect`
        self._recorded_ends = lru_cache(1)(recorded_ends)
        self._files = OpenFiles(_open_files())
        segments = partial(queue_segments, root, file_size=file_size, writable=writable, files=self._files)
        expected, noted = self._expected, self._recorded_ends  # `open_queue` must not refer to this object

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
        self._seen = 0  # deletions

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        count = self._deletions()
        if count != self._seen or count % 2:  # odd: do not cache queues during a deletion
            self.forget()
            self._seen = count  # after `forget`, because other threads rely on the count
        return self._opened(topic, queue_id)

    def follow(self, deletions: Callable[[], int]) -> None:
        """Forget all queues when a topic is deleted. deletions: see `PublishedEnd.deletions`."""
        self._deletions = deletions

    def existing(self) -> list[QueueName]:
        return self.topics.table().queues_on_disk

    def forget(self) -> None:
        deleted = self.topics.deletions()
        for name in [name for name in list(self._expected) if deleted.get(name[0]) != self._deleted.get(name[0])]:
            self._expected.pop(name, None)
        self._recorded_ends.cache_clear()
        self._opened.cache_clear()
        self._files.forget_all()

    def close_deleted(self) -> None:
        self._files.close_deleted()

    def make_room(self) -> None:
        self._files.make_room()

    def close(self) -> None:
        self._opened.cache_clear()
        self._files.forget_all()

    def expect(self, ends: Ends) -> None:
        """Set the known ends of queues. A queue that is shorter is damaged, unless its topic is deleted later."""
        self._deleted = self.topics.deletions()
        self._expected.update(ends)

    @property
    def expected(self) -> Ends:
        """The ends passed to `expect`. Queues may have grown since."""
        return self._expected

    def at_most(self, topic: str, queue_id: int, confirm_offset: int, offset: int) -> int:
        """Return `offset`, or the queue's end if that is lower. Reads files only for offsets after the expected end."""
        if offset <= self._expected.get((topic, queue_id), 0):
            return offset
        return min(offset, self.of(topic, queue_id).max_offset(confirm_offset))


def _never() -> int:
    return 0


def _open_files() -> int:
    """Return how many files to keep open. If a reader polls more queues in turn, each access opens a file."""
    least, most = _OPEN_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(least, soft // _SHARE))
