"""`MessageStore`: the few verbs a user needs, composed of the rooms of this package. No byte is touched here."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from store.api.store_finder import StoreFinder
from store.api.writer import Append, Writer
from store.archive.archiving import Archived
from store.archive.of_store import ArchiveOrder, StoreArchive, ends, queues_of
from store.delays.delivery_progress import oldest_waiting
from store.files.config import StoreConfig
from store.files.consumer_offsets import ConsumerOffsets
from store.files.figures import Figures
from store.files.opened import PinnedPath, shown
from store.files.topics import Topics
from store.files.unsupported import warn_of_topics
from store.format.entering import NOT_FOR_PUTTING
from store.format.message import Message
from store.key_index.index import Index
from store.log.commit_log import CommitLog
from store.log.consume_queues import ConsumeQueues, Ends
from store.log.queue_ends import QueueEnds
from store.model.errors import InvalidTopic, ReadOnlyStore, StoreUnavailable
from store.model.integers import counted, seconds
from store.publish.log_end import LogEnd
from store.publish.placing import AppendResult
from store.publish.published_end import PublishedEnd
from store.publish.putting import PutResult, RecordMaker, sendable
from store.publish.watch import Watches
from store.read.published import PublishedQueues
from store.upkeep.retention import Cleaned, Retention
from store.upkeep.store_directory import StoreDirectory


class MessageStore(StoreFinder):
    """A store directory, open. Use `MessageStore.open`, best in a `with` statement.

    Any number of stores, in any processes of one host, may be open on one directory, to write and to read.
    One store may be used by several threads, of the process that opened it: in one that is forked from it, as after
    `close`, every verb raises, `StoreForked` or `StoreClosed`. A verb, or an iterator of batches, that is under way in
    another thread meanwhile comes to its end or raises that. A store that is dropped without `close` is a
    `ResourceWarning`, and as if killed.
    """

    def __init__(self, directory: StoreDirectory, config: StoreConfig, *, read_only: bool) -> None:
        more = ", read_only=True" if read_only else ""
        super().__init__(str(directory.root), f"MessageStore.open({str(directory.root)!r}{more})")
        self.path = directory.root
        self.config = config
        self._topics = Topics(directory.root)
        self._groups = ConsumerOffsets(directory.root)
        # What only the files can tell is learnt when there are any: a broker may be about to make the first.
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
                noted_ends=partial(_noted_ends, directory.root, self._published_end),
            )
            # A topic may have been deleted and created again: what was seen of its queues means nothing then.
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
        except BaseException:  # an interrupt: nobody else closes the writer
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

        create: make a store of a missing or empty directory (not with `read_only`).
        read_only: take no lock and write nothing; also for the directory of a RocketMQ broker.
        config: a `StoreConfig` or the path of a `store.conf`; default: the directory's own
        `config/store.conf`, else RocketMQ's defaults. File sizes of an existing store stay what they are.

        Raises `NotAStore`, `UnsupportedStore`, `StoreLocked`, `StoreFull`, `ConfigError`, `CorruptSegment`,
        `CorruptStore`; as every verb `StoreUnavailable` for what the system refuses. Warns `UnsupportedWarning` of
        topics that RocketMQ's consumer sees otherwise.
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
            raise error.advising("or open the store with read_only=True, which only reads it") from error.__cause__

    # --- topics ----------------------------------------------------------------------------------------

    def create_topic(self, topic: str, queues: int = 4) -> int:
        """Create a topic, or add queues to one; returns its number of queues.

        Raises `InvalidTopic` for a name that RocketMQ refuses or fewer queues than there are; `StoreFull`.
        """
        self.must_be_open()
        writer = self._writing()
        with writer.held():
            return self._topics.create(topic, queues)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its queues and settings; see `store.api.message_store`.

        Whoever has the store open, in any process, is told `UnknownTopic` from then on, also for what is being put.

        Raises `UnknownTopic`, `InvalidTopic` for a broker's own, `FlushFailed`, `StoreBusy`; nothing is deleted then.
        """
        self.must_be_open()
        if topic in NOT_FOR_PUTTING:
            raise InvalidTopic(f"{self.path}: topic {topic!r} is a broker's own; it cannot be deleted")
        self._writing().delete_topic(topic)

    # --- putting ---------------------------------------------------------------------------------------

    def put(self, message: Message) -> PutResult:
        """Append one message; when this returns, every reader sees it (with SYNC_FLUSH it is on the device).

        Raises `UnknownTopic`, `UnknownQueue`, `MessageRefused`, `StoreFull`, `FlushFailed`.
        """
        self.must_be_open()
        return self._put([message])[0]

    def put_many(self, messages: Iterable[Message]) -> list[PutResult]:
        """Append messages, of any topics, in one append: readers see all of them or none. Raises as `put`."""
        self.must_be_open()
        return self._put(messages)

    def _put(self, messages: Iterable[Message]) -> list[PutResult]:
        writer, messages = self._writing(), sendable(messages)
        if not messages:
            return []
        records = self._records.of_messages(messages)
        went = writer.append_few(records) if isinstance(records, list) else writer.append([records]).each()
        return self._records.results(messages, went)  # also where the store was closed meanwhile

    def append_table(self, topic: str, table: Any) -> AppendResult:
        """Append a table of messages to one topic, vectorised: a pyarrow Table or RecordBatch, a pandas frame, or
        what else offers itself as an Arrow stream. Readers see all of it or nothing.

        Columns: body (binary or string); optionally tags, keys (string, or list of strings), properties
        (map<string, string>), queueId, shardingKey, flag, bornTimestamp (timestamp, or integer ms). Rows that name no
        queue go round all queues, 16 to each while they last.

        What is longer than some 32 MiB is made into records while this has the turn to append: tables of gigabytes
        keep everybody else who appends waiting for seconds.

        Raises `InvalidColumns` and what `put` raises.
        """
        self.must_be_open()
        return self._writing().append(self._records.of_table(topic, table))

    def begin(self) -> Append:
        """An append of several tables and messages, to any topics, that are seen all at once.

        Raises `ReadOnlyStore`.
        """
        self.must_be_open()
        return Append(self.path, self._records, self._writing())

    def flush(self) -> None:
        """Bring everything published so far to the device. Raises `FlushFailed`, then and ever after."""
        self.must_be_open()
        self._writing().flush()

    # --- deleting --------------------------------------------------------------------------------------

    def clean(
        self,
        now: float | None = None,
        *,
        asked: bool = False,
        forced: bool = False,
        dry_run: bool = False,
        config: StoreConfig | None = None,
    ) -> Cleaned:
        """Delete old messages, as RocketMQ's broker does: one step, to be called every now and then.

        now: seconds since 1970. asked: at any hour, not only `deleteWhen`. forced: whatever their age. dry_run: only
        say what would go. config: whose settings count instead of the store's own. What is to be archived and is not
        yet stays, and so does what waits to be delivered, with all behind it. Raises `ReadOnlyStore`, and
        `ObjectsUnavailable` or `CorruptStore` where nobody can tell what that is.
        """
        self.must_be_open()
        settings, now = config or self.config, now if now is None else seconds("now", now)
        retention = Retention(self.path, settings, self._log, self._index, self._queues)
        archive = StoreArchive.remembered(self.path, self.config)
        confirm = self.confirm_offset  # nobody asked what is to stay of that which comes meanwhile
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
        if decision.starts:  # or else a crash of the machine would take the entries of records that are gone, too
            writer.settle()
        return retention.clean(decision, used, held, writer.held)

    # --- archiving -------------------------------------------------------------------------------------

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
        """Copy messages to an archive, from where it ends on; see docs/archive.md. Also with `read_only`.

        url: a directory, or what fsspec reaches; default: where it archived before. The first one is remembered in the
        store's settings, and from then on `clean` keeps what is not archived there, and readers read through to it; at
        another URL a copy is made, and nothing remembered. older_than: seconds since a message was stored. topics:
        default: those of the time before, or all but the system's, as for (); they are remembered, too. reserved_hours:
        what was stored longer ago is deleted from the archive, whole pieces of a queue; default: nothing is. forget:
        topics of which first to take out of the archive what cannot go on, as before a hole.
        storage_options: fsspec's; they are not remembered. progress: called with messages that are archived by now, and
        of how many. Messages that are archived count from some point on while it runs; it may be killed, and called
        again, at any moment.

        Raises `ObjectsUnavailable`, `ArchiveOfAnother` (nothing is archived), `QueuesPassedOver` (all others are),
        `StoreLocked` (another process archives), `UnknownTopic`, `NoArchive` where the remembered one is gone.
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

    # --- closing ---------------------------------------------------------------------------------------

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the middle of an append: `close` raises then."""
        return self._writer is not None and self._writer.is_inside

    def close(self) -> None:
        """Flush, leave the directory, close its files; the last writer to leave marks it as closed cleanly.

        A file whose bytes are still in use, in a batch that was handed out, closes with their last use. The second
        time, and in a forked process, this does nothing.

        Raises `FlushFailed`, `StoreBusy`, `StoreReplaced`: everything is closed then, but the directory is not marked.
        Raises `StoreLocked` when a signal handler or a callback calls it during an append in the same thread; then
        nothing is closed.
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
        if not self._is_over and "_watches" in vars(self):  # it was opened
            what = f"{self.path}: this store was dropped; close it, or use a with statement"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return shown(self, lambda: counted(len(self.topics()), "topic"))

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- looking up ------------------------------------------------------------------------------------

    def _writing(self) -> Writer:
        if self._writer is None:
            raise ReadOnlyStore(f"{self.path}: open with read_only=True; open it without to write")
        return self._writer


def _is_brokers(end: LogEnd) -> bool:
    return end.by_log


def _noted_ends(root: Path, end: LogEnd) -> Ends:
    """Where the queues of a directory ended when that was noted; nothing of one that was a broker's since, or where one
    lost a file: it is longer by now, and has a hole.
    """
    noted = None if end.by_log or end.has_lost else QueueEnds.read(root)
    return {} if noted is None or noted.at > end.confirm_offset else noted.of


def _nothing() -> None:
    """For a store that puts nothing."""


def delete_topic(path: str | os.PathLike[str], topic: str) -> None:
    """Delete a topic of the store in directory `path`, for good; others may have it open, and write and read.

    Whoever uses the topic gets `UnknownTopic`, also who puts into it at the same moment.

    Raises `UnknownTopic`, `InvalidTopic` for a broker's own, and as `MessageStore.open` (`StoreLocked` while a
    RocketMQ broker runs here).
    """
    with MessageStore.open(path, create=False) as store:
        store.delete_topic(topic)
