"""The methods of a store for users. They delegate to other modules."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from store.api.message_finder import MessageFinder
from store.api.writer import Append, Writer
from store.append.log_end import LogEnd
from store.append.placing import AppendResult
from store.append.published_end import PublishedEnd
from store.append.putting import PutResult, RecordMaker, sendable
from store.append.watch import Watches
from store.archive.archiving import Archived
from store.archive.of_store import ArchiveOrder, StoreArchive, ends, queues_of
from store.delays.delivery_progress import oldest_waiting
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queues import ConsumeQueues, Ends
from store.disk.consumer_offsets import ConsumerOffsets
from store.disk.figures import Figures
from store.disk.index import Index
from store.disk.opened import PinnedPath, shown
from store.disk.queue_ends import QueueEnds
from store.disk.topics import Topics
from store.disk.unsupported import warn_of_topics
from store.format.entering import NOT_FOR_PUTTING
from store.format.message import Message
from store.model.errors import InvalidTopic, ReadOnlyStore, StoreUnavailable
from store.model.integers import counted, seconds
from store.read.published import PublishedQueues
from store.upkeep.retention import Cleaned, Retention
from store.upkeep.store_directory import StoreDirectory


class MessageStore(MessageFinder):
    """An open store directory. Use `MessageStore.open`, best in a `with` statement.

    Any number of stores, in any processes of one host, may be open on one directory, for writing and for reading.
    Threads may share a store. Methods raise `StoreClosed` after `close`, and `StoreForked` in a forked process. During
    `close`, a method or iterator in another thread completes or raises `StoreClosed`. A store that is dropped without
    `close` emits a `ResourceWarning`, and leaves its directory as a killed process does.
    """

    def __init__(self, directory: StoreDirectory, config: StoreConfig, *, read_only: bool) -> None:
        more = ", read_only=True" if read_only else ""
        super().__init__(str(directory.root), f"MessageStore.open({str(directory.root)!r}{more})")
        self.path = directory.root
        self.config = config
        self._topics = Topics(directory.root)
        self._groups = ConsumerOffsets(directory.root)
        # Without a configuration, a reader learns file sizes from the files, which a broker may create later.
        learns = read_only and not directory.has_configuration
        queue_file_size = None if learns else config.mappedFileSizeConsumeQueue
        log_file_size = None if learns else config.mappedFileSizeCommitLog
        self._log = CommitLog(directory.root, log_file_size, writable=not read_only)
        self._index = Index.of(directory.root, config, writable=not read_only)
        self._writer: Writer | None = None
        if read_only:
            self.figures = Figures()
            self._published_end: PublishedEnd | LogEnd = LogEnd(directory.root, self._log)
            queues = ConsumeQueues(
                directory.root,
                queue_file_size,
                writable=False,
                is_message=self._published_end.is_message,
                is_brokers=partial(_is_brokers, self._published_end),
                recorded_ends=partial(_recorded_ends, directory.root, self._published_end),
            )
            self._topics = Topics(directory.root, changed=queues.forget)
        else:
            queues = ConsumeQueues(directory.root, queue_file_size, writable=True)
            self._writer = Writer(directory, config, self._log, self._index, queues)
            self.figures = self._writer.figures
            self._published_end = self._writer.published
        try:
            self._place = PinnedPath(directory.root) if self._writer is None else self._writer.place
            self._queues = queues
            self._published = PublishedQueues(self._topics, self._log, queues, self._published_end)
            delaying = _nothing if self._writer is None else self._writer.delay
            self._records = RecordMaker(self._topics, config, self._published.ever_put, delaying)
            self._watches = Watches(self._published_end)
            if self._writer is not None:
                self._writer.start()
        except BaseException:  # after an interrupt, no caller has the store to close it
            if self._writer is not None:
                self._writer.close()
            raise

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        create: bool = True,
        read_only: bool = False,
        config: StoreConfig | str | os.PathLike[str] | None = None,
    ) -> MessageStore:
        """Open the store in directory `path` (or a `file:` URL), local to this host.

        create: create a store in a missing or empty directory (not with `read_only`).
        read_only: acquire no lock and write nothing; also for the directory of a RocketMQ broker.
        config: settings, or the path of a `store.conf`; default: the directory's own, else RocketMQ's defaults. The
        file sizes of an existing store do not change.

        Raises `NotAStore`, `UnsupportedStore`, `StoreLocked`, `StoreFull`, `ConfigError`, `CorruptSegment`,
        `CorruptStore`. Like every method, raises `StoreUnavailable` for an error of the operating system. Emits
        `UnsupportedWarning` for topics that RocketMQ's consumer reads differently.
        """
        directory = StoreDirectory.at(path)
        try:
            if read_only or not create:
                directory.must_be_store(writing=not read_only)
            else:
                directory.create()
            warn_of_topics(directory.root)
            return MessageStore(directory, directory.configuration(config), read_only=read_only)
        except StoreUnavailable as error:
            if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise error.advising("or open the store with read_only=True") from error.__cause__

    def create_topic(self, topic: str, queues: int = 4) -> int:
        """Create a topic, or add queues to it. Return its number of queues.

        Raises `StoreFull`, and `InvalidTopic` for fewer queues or a name that RocketMQ refuses.
        """
        self.must_be_open()
        writer = self._writing()
        with writer.held():
            return self._topics.create(topic, queues)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its queues and settings.

        From then on, every process gets `UnknownTopic` for it, even a running append. If this raises, nothing is
        deleted. Raises `UnknownTopic`, `FlushFailed`, `StoreBusy`, and `InvalidTopic` for a broker's own topic.
        """
        self.must_be_open()
        if topic in NOT_FOR_PUTTING:
            raise InvalidTopic(f"{self.path}: topic {topic!r} is one of RocketMQ's own topics and cannot be deleted")
        self._writing().delete_topic(topic)

    def put(self, message: Message) -> PutResult:
        """Append one message. When this returns, every reader sees it; with SYNC_FLUSH, it is on the device.

        Raises `UnknownTopic`, `UnknownQueue`, `MessageRefused`, `StoreFull`, `FlushFailed`.
        """
        self.must_be_open()
        return self._put([message])[0]

    def put_many(self, messages: Iterable[Message]) -> list[PutResult]:
        """Append messages of any topics. Readers see all of them or none. Raises as `put`."""
        self.must_be_open()
        return self._put(messages)

    def _put(self, messages: Iterable[Message]) -> list[PutResult]:
        writer, messages = self._writing(), sendable(messages)
        if not messages:
            return []
        records = self._records.of_messages(messages)
        went = writer.append_few(records) if isinstance(records, list) else writer.append([records]).each()
        return self._records.results(messages, went)  # works even if the store was closed concurrently

    def append_table(self, topic: str, table: Any) -> AppendResult:
        """Append a table of messages to one topic. Readers see all of it or nothing.

        table: a pyarrow Table or RecordBatch, a pandas frame, or any Arrow stream. Columns: body (binary or string);
        optionally tags, keys (string, or list of strings), properties (map<string, string>), queueId, shardingKey,
        flag, bornTimestamp (timestamp, or integer ms). Rows without a queue go to all queues in turn, 16 to each.

        Rows beyond about 32 MiB are encoded under the append lock, so gigabytes block other appends for seconds. Raises
        `InvalidColumns`, and as `put`.
        """
        self.must_be_open()
        return self._writing().append(self._records.of_table(topic, table))

    def begin(self) -> Append:
        """Begin an append of several tables and messages, to any topics. Raises `ReadOnlyStore`."""
        self.must_be_open()
        return Append(self.path, self._records, self._writing())

    def flush(self) -> None:
        """Sync everything published so far. Raises `FlushFailed`; after that, all later calls raise it, too."""
        self.must_be_open()
        self._writing().flush()

    def clean(
        self,
        now: float | None = None,
        *,
        asked: bool = False,
        forced: bool = False,
        dry_run: bool = False,
        config: StoreConfig | None = None,
    ) -> Cleaned:
        """Delete old messages, as RocketMQ's broker does: one step, to be called periodically.

        now: seconds since 1970.
        asked: delete at any hour, not only at `deleteWhen`.
        forced: delete messages of any age.
        dry_run: only return the files that would be deleted.
        config: settings to use instead of the store's.

        Messages that are not archived yet, or wait for delivery, are kept with all later ones. Raises `ReadOnlyStore`,
        and `ObjectsUnavailable` or `CorruptStore` if they cannot be determined.
        """
        self.must_be_open()
        settings, now = config or self.config, now if now is None else seconds("now", now)
        retention = Retention(self.path, settings, self._log, self._index, self._queues)
        archive = StoreArchive.remembered(self.path, self.config)
        confirm = self.confirm_offset  # `kept` ignores later appends
        is_brokers = self._writer is None
        kept = (
            archive.kept_from(confirm, self._published, self._topics, is_brokers=is_brokers),
            oldest_waiting(self.path, self._log, self._queues, confirm, is_brokers=is_brokers),
        )
        kept_from = min((offset for offset in kept if offset is not None), default=None)
        if dry_run:
            return retention.preview(*retention.decide(confirm, now, kept_from, asked=asked, forced=forced))
        writer = self._writing()
        with writer.held():
            decision, used, held = retention.decide(confirm, now, kept_from, asked=asked, forced=forced)
        if decision.starts:  # a crash of the machine must not undo queue entries whose records are deleted
            writer.settle()
        return retention.clean(decision, used, held, writer.held)

    def archive(
        self,
        url: str | None = None,
        older_than: float = 0.0,
        topics: Sequence[str] | None = None,
        *,
        reserved_hours: float | None = None,
        forget: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Archived:
        """Copy messages that are not archived yet to an archive; see docs/archive.md. Also with `read_only`.

        url: a directory or an fsspec URL; default: the one in the store's settings. The first URL is written there:
        from then on `clean` keeps messages that are not archived, and readers read older messages from the archive. An
        archive at another URL is a mere copy.
        older_than: archive messages stored at least so many seconds ago.
        topics: () for all except system topics; default: as at the last run, at first ().
        reserved_hours: delete archived messages stored longer ago, in whole pieces of a queue; default: none.
        forget: topics whose archived messages to delete first in each queue that cannot continue, as after a gap.
        storage_options: fsspec's, not written to the settings.
        progress: called with the numbers of messages archived and in total.

        The call may be killed and repeated. Raises `ObjectsUnavailable`, `UnknownTopic`, `ArchiveOfAnother` (nothing is
        archived), `QueuesPassedOver` (all other queues are archived), `StoreLocked` if another process archives, and
        `NoArchive` if the archive in the settings is missing.
        """
        self.must_be_open()
        known = StoreArchive.remembered(self.path, self.config, storage_options)
        archive = known.changed(url, topics)
        if topics is not None:
            archive.must_be_there(self._topics)
        order = ArchiveOrder(
            archive.queues(self._topics),
            ends(self._published, seconds("older_than", older_than), self.offset_by_time),
            may_begin=url is not None,
            reserved_hours=reserved_hours,
            forgetting={topic: queues_of(self._topics, [topic]) for topic in forget},
        )
        return archive.run(self._published, order, progress)

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside an append, in which `close` raises an error."""
        return self._writer is not None and self._writer.is_inside

    def close(self) -> None:
        """Flush, and close all files. The last writer of the directory marks it as closed cleanly.

        A mapped file that a batch still uses is closed when the batch is freed. Does nothing the second time, nor in a
        forked process.

        Raises `FlushFailed`, `StoreBusy` or `StoreReplaced` after closing; the directory is then not marked. Raises
        `StoreLocked`, without closing, in a signal handler or a callback during an append in the same thread.
        """
        if self._is_over:
            return
        if self._writer is not None:
            self._writer.must_not_reenter()
        self._is_over = True
        try:
            self._watches.close()
            if self._writer is not None:
                self._writer.close()
        finally:
            self._log.segments.forget()
            self._queues.close()
            self._index.close()
            self._published_end.close()

    def __del__(self) -> None:
        if not self._is_over and "_watches" in vars(self):  # false if `__init__` raised
            what = f"{self.path}: this store was dropped without a call of close. Close it, or use a with statement"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return shown(self, lambda: counted(len(self.topics()), "topic"))

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _writing(self) -> Writer:
        if self._writer is None:
            raise ReadOnlyStore(
                f"{self.path}: the store is open with read_only=True. To write, open it without read_only"
            )
        return self._writer


def _is_brokers(end: LogEnd) -> bool:
    return end.by_log


def _recorded_ends(root: Path, end: LogEnd) -> Ends:
    """Return the recorded ends of the queues.

    Return none if a broker has written since, or if a queue lost a file: the queue may have grown after that, with
    entries missing in between.
    """
    noted = None if end.by_log or end.has_lost else QueueEnds.read(root)
    return {} if noted is None or noted.at > end.confirm_offset else noted.of


def _nothing() -> None:
    """Ignore delayed messages in a store that is only read."""


def delete_topic(path: str | os.PathLike[str], topic: str) -> None:
    """Delete a topic of the store in directory `path`, also while other processes have it open.

    Raises as `MessageStore.open` and `MessageStore.delete_topic`.
    """
    with MessageStore.open(path, create=False) as store:
        store.delete_topic(topic)
