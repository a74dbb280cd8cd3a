"""`restore`: creates a store from an archive, with the same topics, queues, offsets and times.

It writes a commit log, one queue after the other, from which opening the store recovers the queues.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np

from store.api.message_store import MessageStore
from store.archive.archive_log import ArchiveAddress, ArchiveLog
from store.disk.atomic import make_folder, make_root, sync_directory
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.opened import Descriptor
from store.format.entering import NOT_FOR_PUTTING
from store.format.layout import COMMIT_LOG_DIR, LIGHT_PREFIX
from store.model.errors import NotAStore, StoreLocked, UnknownTopic, UnsupportedStore, system_errors
from store.model.integers import counted
from store.model.log_protocol import Boundary, Queue, QueueRange
from store.read.scan import CheckedBlock
from store.upkeep.store_directory import StoreDirectory

_BYTES_AT_ONCE = 8 << 20
_SHOWN = 3
UNFINISHED = ".restoring"

Progress = Callable[[int, int], None]  # number of restored messages, and their total


def restore(
    archive: ArchiveAddress,
    path: str | os.PathLike[str],
    topics: Sequence[str] = (),
    config: StoreConfig | None = None,
    progress: Progress = lambda done, total: None,
    *,
    stored: tuple[int | None, int | None] = (None, None),
) -> int:
    """Create a store from an archive in a new directory. Return its number of messages.

    stored: restore only messages stored in [begin, end), ms since 1970; None for no limit. Messages keep their queue
    offsets. A queue without messages begins at 0.

    A killed process leaves a directory with the suffix ".restoring", which the next call replaces.

    Raises `NotAStore` if the directory exists, and `StoreLocked` while another process restores to it. Raises
    `UnsupportedStore` for a topic of delayed or half messages, and, without `topics`, for light queues that would
    change. Raises `UnknownTopic`, `StoreFull`, `StoreUnavailable`, and the errors of reading an archive.
    """
    path = StoreDirectory.at(path).root
    unfinished = path.parent / (path.name + UNFINISHED)
    with system_errors(unfinished), archive.open_snapshot() as log:
        _must_be_free(path)
        chosen = _chosen(archive, log, topics)
        config = config or StoreConfig()
        with _alone(unfinished):
            _must_be_free(path)
            ranges = _ranges(log, [queue for queues in chosen.values() for queue in queues], *stored)
            count = _write(log, unfinished, ranges, config, progress)
            with MessageStore.open(unfinished, config=config) as store:
                for topic, queues in chosen.items():
                    store.create_topic(topic, len(queues))
                if not topics and stored == (None, None):
                    _must_have_light_queues(store, log, archive)
            unfinished.rename(path)
        sync_directory(path.parent)
    return count


def _chosen(archive: ArchiveAddress, log: ArchiveLog, topics: Sequence[str]) -> dict[str, tuple[Queue, ...]]:
    """Return the topics to restore, without light queues, whose messages are in other queues."""
    archived = log.topics()
    if missing := [topic for topic in topics if topic not in archived]:
        raise UnknownTopic(
            f"{archive}: there is no topic {', '.join(missing)} in this archive. It has "
            f"{', '.join(archived) or 'no topics'}"
        )
    names = [topic for topic in topics or archived if not topic.startswith(LIGHT_PREFIX)]
    if topics and not names:
        raise UnknownTopic(
            f"{archive}: a light queue (%LMQ%...) is restored with the topics that its messages were sent to. Name "
            f"those topics instead of {', '.join(topics)}"
        )
    if acted := sorted(NOT_FOR_PUTTING.intersection(names)):
        rest = ", ".join(topic for topic in names if topic not in acted)
        raise UnsupportedStore(
            f"{archive}: {', '.join(acted)} cannot be restored: delayed messages and open transactions would be "
            f"delivered or checked again. {f'Name only the topics {rest}' if rest else 'Name other topics'}"
        )
    return {topic: archived[topic] for topic in names}


def _must_have_light_queues(store: MessageStore, log: ArchiveLog, archive: ArchiveAddress) -> None:
    # Opening the store rebuilds light queues from a log that has one queue after the other. So the order changes in a
    # light queue with messages of several queues.
    there = log.topics()
    was = log.bounds([queue for topic, queues in there.items() if topic.startswith(LIGHT_PREFIX) for queue in queues])
    known = store.topics()
    now = store.bounds([queue for queue in was if queue.topic in known])
    if lost := [queue.topic for queue, bounds in was.items() if now.get(queue) != bounds]:
        rest = ", ".join(topic for topic in there if not topic.startswith(LIGHT_PREFIX))
        advice = f"To restore all other topics, name them: {rest}" if rest else "No other topics are archived"
        light_queues = counted(len(lost), "light queue")
        shown = ", ".join(lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
        raise UnsupportedStore(
            f"{archive}: {light_queues} ({shown}) cannot be restored: the messages were sent to "
            f"several queues, or some are not archived. {advice}"
        )


def _must_be_free(path: Path) -> None:
    if path.exists():
        raise NotAStore(f"{path}: this path exists. Name a new directory, or move this one away")


@contextmanager
def _alone(unfinished: Path) -> Iterator[None]:
    """Lock the directory against other restores, and empty it."""
    make_root(unfinished)
    with closing(Descriptor(unfinished, lambda path: os.open(path, os.O_RDONLY | os.O_DIRECTORY))) as folder:
        try:
            fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(f"{unfinished}: another process is restoring here. Wait for it, or stop it") from error
        if not _leads_to(unfinished, folder.fd):  # another process completed its restore before this had the lock
            raise StoreLocked(f"{unfinished}: another process has just restored here. Check its result")
        for left in list(unfinished.iterdir()):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        yield


def _leads_to(path: Path, fd: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False


def _ranges(log: ArchiveLog, queues: Sequence[Queue], begin: int | None, end: int | None) -> list[QueueRange]:
    there = log.bounds(queues)
    starts = {queue: bounds.min_offset for queue, bounds in there.items()}
    stops = {queue: bounds.max_offset for queue, bounds in there.items()}
    if begin is not None:
        starts |= log.offsets_by_time(there, begin, Boundary.LOWER)
    if end is not None:
        stops |= log.offsets_by_time(there, end, Boundary.LOWER)
    return [QueueRange(queue, starts[queue], stops[queue]) for queue in there if starts[queue] < stops[queue]]


def _write(log: ArchiveLog, root: Path, ranges: Sequence[QueueRange], config: StoreConfig, progress: Progress) -> int:
    total, done = sum(wanted.length for wanted in ranges), 0
    # A queue may begin after offset 0 only if the first segment is missing, so start at the second one.
    is_shortened = any(wanted.start for wanted in ranges)
    first = at = config.mappedFileSizeCommitLog if is_shortened else 0
    make_folder(root / COMMIT_LOG_DIR)
    written = CommitLog(root, config.mappedFileSizeCommitLog, writable=True)
    for wanted in ranges:
        for checked in log.checked(wanted, _BYTES_AT_ONCE):
            at = _append(written, at, checked)
            done += len(checked.block)
            progress(done, total)
    written.segments.flush(first, at)
    written.segments.flush_names()
    return done


def _append(written: CommitLog, at: int, checked: CheckedBlock) -> int:
    placement, ends = written.place(at, checked.entries.sizes), np.cumsum(checked.entries.sizes)

    def encoded(first: int, last: int) -> memoryview:
        begin = int(ends[first] - checked.entries.sizes[first])  # if all records are adjacent
        # Proofs of delivery contain offsets of the old log.
        offsets = ends - checked.entries.sizes + placement.physical_offsets[first] - begin
        moved = checked.block.moved(offsets, with_delivery_marks=False)
        return moved[begin : int(ends[last - 1])].data

    written.write(written.stretches(placement, encoded))
    return placement.end
