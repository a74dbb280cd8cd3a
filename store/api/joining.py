"""Join a new writer to a directory's writers, after a recovery if necessary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from store.append.locks import StoreLock
from store.append.log_end import has_bytes_after
from store.append.published_end import PublishedEnd
from store.delays.delivery_progress import delays_step_back
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queues import ConsumeQueues
from store.disk.index import Index
from store.disk.queue_ends import QueueEnds
from store.disk.queues_in_log import Ranges
from store.disk.topics import Topics
from store.model.errors import StoreLocked
from store.upkeep.deletion import finish_deletion, remove_restored_queues
from store.upkeep.plans import plan_for
from store.upkeep.recovery import Recovery, must_reach
from store.upkeep.step_back import step_back
from store.upkeep.store_directory import StoreDirectory


class Joining:
    def __init__(
        self, directory: StoreDirectory, config: StoreConfig, log: CommitLog, index: Index, queues: ConsumeQueues
    ) -> None:
        self._directory = directory
        self._config = config
        self._log = log
        self._index = index
        self._queues = queues

    def join(self, lock: StoreLock) -> tuple[PublishedEnd, RecordedEnds]:
        """Join the writers, and recover the directory if necessary. The caller must hold `lock`.

        Sets the expected lengths of the queues. Raises as `MessageStore.open`.
        """
        root = self._directory.root
        self._directory.check_sizes(self._config)
        alone = lock.join()
        finish_deletion(root)
        if alone:  # otherwise no broker can have run here
            remove_restored_queues(root)
        found = QueueEnds.read(root)
        recover = self._decide(found, alone=alone)
        self._directory.warn_of_missing_segments(self._log)
        self._directory.mark_open()
        self._directory.save_configuration(self._config)
        if recover is not None:
            recover()
        published = PublishedEnd(root, writable=True)
        # A dead broker left an unfinished record. Announce it, so that it is undone like a dead writer's append.
        if alone and has_bytes_after(self._log, published.written_end):
            published.announce(self._log.next_segment(published.written_end), published.store_timestamp)
        ends = self._expect(published, found if recover is None else None, alone=alone)
        published.initialize_new_fields()
        if alone:
            step_back(root, self._queues, published.confirm_offset)
            delays_step_back(root, self._log, self._queues, published.confirm_offset)
        self._queues.follow(lambda: published.deletions)
        return published, RecordedEnds(ends, root, self._log, self._index)

    def _expect(self, published: PublishedEnd, found: QueueEnds | None, *, alone: bool) -> QueueEnds | None:
        """Set the expected lengths of the queues, and return the recorded ones.

        found: those before joining, if no recovery was necessary. They may include later appends.
        """
        root = self._directory.root
        # While there are other writers, a length may have been recorded after a queue lost a file.
        ends = None if published.has_lost else QueueEnds.read(root)
        existing = self._queues.existing() if alone else []
        if alone and ends is not None and ends.forget_all_but(existing):
            ends.write(root, self._index)  # for writers that join later, when the topic may have been recreated
        if alone and found is not None:
            found.forget_all_but(existing)
            self._queues.expect(found.of)
        elif ends is not None:
            self._queues.expect(ends.of)
        return ends

    def _decide(self, ends: QueueEnds | None, *, alone: bool) -> Callable[[], None] | None:
        """Return a function that carries out the recovery, if necessary. Changes no file.

        ends: the recorded ends of queues. Appends after them are added to it.
        """
        size = self._config.mappedFileSizeConsumeQueue
        evidence = self._directory.evidence(self._log, self._index, size, ends, alone=alone)
        plan, root = plan_for(evidence), self._directory.root
        if plan is None:
            self._index.check()
            with closing(PublishedEnd(root, writable=False)) as published:
                must_reach(self._log, published.confirm_offset)
            return None
        if evidence.published and not alone:
            with closing(PublishedEnd(root, writable=False)) as published:
                published.check_device()
        if not alone:
            raise StoreLocked(
                f"{root}: its file 'watermark' or its queues were deleted while other processes write here. Close "
                "the store in all other processes, then open it again"
            )
        recovery = Recovery(root, self._log, self._index, size)
        return partial(recovery.carry_out, recovery.decide(plan, ends.of if ends is not None else {}))


class RecordedEnds:
    """The recorded lengths of the queues, updated after each flush and written periodically.

    ends: None if the file was missing while other writers were open: `note` then does nothing.
    """

    def __init__(self, ends: QueueEnds | None, root: Path, log: CommitLog, index: Index) -> None:
        self._ends = ends
        self._root = root
        self._topics = Topics(root)
        self._log = log
        self._index = index
        self._threads = threading.RLock()

    def note(self, begin: int, end: int, ranges: Ranges, *, at_once: bool = False) -> None:
        """Add the entries of the flushed log [begin, end). at_once: write the file even if it is not due."""
        ends = self._ends
        if ends is None:
            return
        with self._threads:
            deleted = self._topics.deletions()
            ends.follow(begin, end, ranges, deleted)
            written = QueueEnds.read(self._root) if at_once or ends.is_due(self._index) else None
            # A file with a later offset has these appends, and longer queues than at this offset.
            if written is not None and written.at <= ends.at and ends.complete(self._log, written, deleted):
                ends.write(self._root, self._index)
