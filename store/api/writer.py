"""The writing side of an open store, and `Append`, which collects messages for one append."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy.typing as npt

from store.api.joining import Joining
from store.append.appender import Appender, Condition, LogTail, Piece
from store.append.flusher import Flusher
from store.append.locks import StoreLock
from store.append.placing import AppendResult, Where
from store.append.putting import RecordMaker, encoding_of, sendable
from store.append.watch import Watch
from store.delays.deliverer import Deliverer
from store.delays.delivery import Delivery
from store.disk.commit_log import CommitLog
from store.disk.config import StoreConfig
from store.disk.consume_queues import ConsumeQueues
from store.disk.figures import DELIVERS, PUT, PUT_FAILED, Figures
from store.disk.index import Index
from store.disk.queues_in_log import UnflushedEntries
from store.disk.topic_table import has_queues
from store.disk.topics import Topics
from store.format.delayed import WAITING_TOPICS
from store.format.message import Message
from store.format.record_copies import CopyDestinations, RecordCopies
from store.format.records import EncodedRecord, EncodedRecords, set_field
from store.model.errors import StoreClosed, StoreError, StoreUnavailable
from store.upkeep.deletion import Deletion
from store.upkeep.retention import refuse_when_full
from store.upkeep.store_directory import StoreDirectory

_logger = logging.getLogger("store")
_DELETED_SECONDS = 10.0  # between checks for open files that were deleted
_SPACE_SECONDS = 1.0  # between two checks of the space on the device


class Writer:
    """One of the writers of a directory. Methods raise `StoreClosed` after `close`."""

    def __init__(
        self,
        directory: StoreDirectory,
        config: StoreConfig,
        log: CommitLog,
        index: Index,
        queues: ConsumeQueues,
    ) -> None:
        """Join the writers, and recover the store if necessary. Call `start` after this.

        Sets the expected lengths of `queues`. Raises as `MessageStore.open`.
        """
        self._directory = directory
        self._config = config
        self._log = log
        self._index = index
        self._queues = queues
        self._space_is_known_until = 0.0  # time.perf_counter()
        self._next_look = 0.0  # likewise
        self._lock = lock = StoreLock(directory.root, config.lockTimeoutMillis / 1000)
        self.place = lock.place
        try:
            with lock.held():
                self.published, self._ends = Joining(directory, config, log, index, queues).join(lock)
            self._create_parts()
        except BaseException:
            lock.close()
            raise

    def _create_parts(self) -> None:
        directory, config, lock = self._directory, self._config, self._lock
        log, index, queues = self._log, self._index, self._queues
        unflushed = UnflushedEntries(log, queues)
        self._deletion = Deletion(directory.root, self.published)
        tail = LogTail(self.published, log, index, queues, unflushed, self._deletion.finish)
        self._appender = Appender(lock, tail, sync_flush=config.sync_flush)
        apart = log.opened_again()
        self._flusher = Flusher(self.published, apart, queues, unflushed, self._ends.note, lock.place)
        rooms = directory.root, log, queues, self.published, encoding_of(config), self._append
        self._deliverer = Deliverer(directory.root, partial(Delivery, *rooms), partial(Watch.of, self.published))
        self._topics = Topics(directory.root)
        self.figures = Figures(directory.root)

    def start(self) -> None:
        """Start the threads. The caller must be able to close this writer if an interrupt follows."""
        self._flusher.start(self._config.flushIntervalCommitLog / 1000, self._after_flush)

    def _after_flush(self) -> None:
        if not self._deliverer.is_started and any(has_queues(self._directory.root, topic) for topic in WAITING_TOPICS):
            self._deliverer.start()
        if self._deliverer.is_started:
            self.figures.of(DELIVERS).set(int(self._deliverer.delivers))
        self.figures.write()
        if (now := time.perf_counter()) >= self._next_look:
            self._next_look = now + _DELETED_SECONDS
            for files in (self._log.segments, self._queues, self._index):
                files.close_deleted()

    @overload
    def append(self, pieces: Iterable[Piece], *, flush: bool = ...) -> AppendResult: ...

    @overload
    def append(
        self, pieces: Iterable[Piece], *, flush: bool = ..., unless: Condition | None
    ) -> AppendResult | None: ...

    def append(
        self, pieces: Iterable[Piece], *, flush: bool = False, unless: Condition | None = None
    ) -> AppendResult | None:
        """Append pieces as `Appender.append`. Also raises `StoreFull` if the device has little space."""
        topics: set[str] = set()
        since = time.perf_counter()
        try:
            result = self._append(_noting(topics, pieces), flush=flush, unless=unless)
        except StoreError as error:
            self._record_latency(PUT_FAILED, since, topics)
            self._make_room(error)
            raise
        if result is not None:
            self._record_latency(PUT, since, topics)
        return result

    def _append(
        self, pieces: Iterable[Piece], *, flush: bool = False, unless: Condition | None = None
    ) -> AppendResult | None:
        self._flusher.appending()
        pieces = _while_there_is_space(self._directory.root, self._config, pieces)
        return self._appender.append(pieces, flush=flush, unless=unless)

    def append_few(self, records: Sequence[EncodedRecord]) -> list[Where]:
        since = time.perf_counter()
        try:
            self._flusher.appending()
            if since >= self._space_is_known_until:
                refuse_when_full(self._directory.root, self._config)
                self._space_is_known_until = since + _SPACE_SECONDS
            went = self._appender.append_few(records)
        except StoreError as error:
            self._record_latency(PUT_FAILED, since, [record.queue[0] for record in records])
            self._make_room(error)
            raise
        self._record_latency(PUT, since, [record.queue[0] for record in records])
        return went

    def _record_latency(self, name: str, since: float, topics: Iterable[str]) -> None:
        milliseconds = (time.perf_counter() - since) * 1000
        for topic in set(topics):
            self.figures.of(name, topic).add(milliseconds)

    def _make_room(self, error: StoreError) -> None:
        """Close all files if the process ran out of file descriptors, so that the next append has some."""
        if isinstance(error, StoreUnavailable) and error.errno in (errno.EMFILE, errno.ENFILE):
            self._log.segments.forget()
            self._queues.make_room()
            self._index.close()

    def delay(self) -> None:
        for topic, queues in WAITING_TOPICS.items():
            if self._topics.queue_count(topic) < queues:
                with self.held():
                    self._topics.create(topic, queues)
        self._deliverer.start()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Acquire the store lock, then undo a dead writer's append, so that the files end at the published end."""
        with self._lock.held():
            self._appender.repair()
            yield

    def delete_topic(self, topic: str) -> None:
        with self.held():
            count, end = self._topics.known(topic), self.published.confirm_offset
            self._flusher.flush()  # a crash of the machine must not undo appends before the deletion
            self._deletion.delete(topic, [self._queues.of(topic, number).max_offset(end) for number in range(count)])

    def must_be_open(self) -> None:
        self._lock.must_be_open()

    @property
    def is_inside(self) -> bool:
        return self._lock.is_inside

    def must_not_reenter(self) -> None:
        self._lock.must_not_reenter()

    def flush(self) -> None:
        """Sync everything published so far. Raises `FlushFailed`."""
        self._flusher.flush()

    def settle(self) -> None:
        """Flush, and record the lengths of the queues.

        Retention calls this before it deletes parts of the log from which queues could be rebuilt.
        """
        with self.held():
            self._flusher.flush()
            self._ends.note(self.published.confirm_offset, self.published.confirm_offset, {}, at_once=True)

    def close(self) -> None:
        """Flush, and leave the directory's writers, after the running append. The last writer marks the directory as
        closed.

        If this raises `FlushFailed`, `StoreBusy` or `StoreReplaced`, the directory is not marked: the file `abort`
        stays.
        """
        try:
            self._deliverer.stop()
            self._flusher.stop()
            self._deliverer.save()
            with self._lock.held():
                self._leave()
        finally:
            self._lock.close()
            self._deliverer.stop()  # again, if the first call was interrupted: a writer that left must not append
            self._deliverer.leave()
            self._flusher.end()
            self.figures.close()
            self.published.close()

    def _leave(self) -> None:
        try:
            self._appender.repair()
            self._flusher.flush()  # another thread may have appended after the flusher stopped
            if self._lock.is_last():
                with self.published.recording_failure():
                    self._index.flush()
                    self._log.delete_segments_after(self.published.confirm_offset)
                self._ends.note(self.published.confirm_offset, self.published.confirm_offset, {}, at_once=True)
                self._directory.mark_closed()
        finally:
            self._lock.leave()


def _noting(topics: set[str], pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        queues = piece.destinations if isinstance(piece, EncodedRecords) else [record.queue for record in piece]
        topics.update(topic for topic, _ in queues)
        yield piece


def _while_there_is_space(root: Path, config: StoreConfig, pieces: Iterable[Piece]) -> Iterator[Piece]:
    for records in pieces:
        refuse_when_full(root, config)
        yield records


class Append:
    """Collects messages of any topics for one append. Readers see all of them or none.

    Created by `MessageStore.begin`. Not thread-safe. Methods raise `StoreClosed` after `publish`, even if that raises,
    and after `abandon`.
    """

    def __init__(self, path: Path, records: RecordMaker, writer: Writer) -> None:
        self.path = path
        self._records = records
        self._writer = writer
        self._parts: list[Iterable[Piece]] | None = []

    def add(self, topic: str, table: Any) -> None:
        """Add a table, see `MessageStore.append_table`.

        `publish` reads about 16 MiB at a time, so a memory-mapped table or a `pyarrow.RecordBatchReader` takes no
        memory. Raises `UnknownTopic`, `InvalidTopic`, `InvalidColumns`.
        """
        self._open_parts().append(self._records.of_table(topic, table))

    def add_messages(self, messages: Iterable[Message], fields: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Add messages of any topics. Raises as `put`.

        fields: values for fields of RECORD_HEADER, from a remote producer: one for each message, or one for all.
        """
        parts, listed = self._open_parts(), sendable(messages)
        if listed:
            parts.append([_with_fields(fields, self._records.of_messages(listed))])

    def choose(self, messages: Sequence[Message]) -> list[int]:
        """Return the queue ids that `add_messages` would choose."""
        self._open_parts()
        return self._records.choose(sendable(messages))

    def add_broker_messages(
        self, messages: Sequence[Message], fields: Mapping[str, npt.ArrayLike] | None = None
    ) -> None:
        """Add messages to any topics, even a broker's own, with any properties. Each must have a queue id.

        fields: see `add_messages`. Raises `MessageRefused`.
        """
        self._open_parts().append([_with_fields(fields, self._records.of_own(messages))])

    def add_copies(self, copies: RecordCopies, places: CopyDestinations) -> None:
        """Add copies of stored messages to any topics, with any properties.

        Raises `MessageRefused` if the properties become too large.
        """
        self._open_parts().append(list(self._records.of_copies(copies, places)))

    @overload
    def publish(self, *, flush: bool = ...) -> AppendResult: ...

    @overload
    def publish(self, *, flush: bool = ..., unless: Condition | None = ...) -> AppendResult | None: ...

    def publish(self, *, flush: bool = False, unless: Condition | None = None) -> AppendResult | None:
        """Append all added messages in order. When this returns, every reader sees them. Return their places.

        flush: wait until the messages are on the device. After a crash of the machine, all of them exist or none.
        unless: called before the first write, under the append lock, so that no append happens after it. It may read
        the store. If it returns true, nothing is appended, and this returns None.

        Other appends wait for this one, some seconds for gigabytes. Takes about 40 bytes of memory for each message.

        Raises as `put`, `InvalidColumns`, and any error of a stream or of `unless`. Readers then see none of the
        messages.
        """
        parts, self._parts = self._open_parts(), None
        return self._writer.append(chain.from_iterable(parts), flush=flush, unless=unless)

    def abandon(self) -> None:
        """Discard the added messages. Does nothing after `publish`, or the second time."""
        self._parts = None

    def _open_parts(self) -> list[Iterable[Piece]]:
        self._writer.must_be_open()
        if self._parts is None:
            raise StoreClosed(
                f"{self.path}: this append was already published or abandoned. Begin a new one with "
                "MessageStore.begin()"
            )
        return self._parts


def _with_fields(fields: Mapping[str, npt.ArrayLike] | None, records: Piece) -> Piece:
    for name, values in (fields or {}).items():
        set_field(records, name, values)
    return records
