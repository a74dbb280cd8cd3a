"""What a served store has no longer, from its archive; so that clients see the log that readers of the directory see.

Where RocketMQ's tiered storage (TieredMessageStore) asks what is archived, this does: for messages, for where a queue
begins, by time, by key, and for when a message was stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cached_property

from store import Boundary, GetStatus, MessageStore, OffsetLost, StoredMessage
from store.any_log import Bounds, MessageFilter, Queue, QueueRange
from store.archive.log import ArchiveLog
from store.archive.names import is_name
from store.archive.of_store import StoreArchive
from store.archive.recent import RecentPlace
from store.archive.records import Records
from store.broker.pull import PullRequest, PullResponse, answer, response_code
from store.broker.response_codes import ResponseCode
from store.errors import CorruptRecord, OffsetNotYet
from store.format.layout import CQ_ENTRY
from store.format.stored_message import decode_record
from store.read.filters import EVERYTHING
from store.remoting.connection import Connection
from store.remoting.loop import settle
from store.remoting.reads import Reads
from store.remoting.request import Answer, Request, Response
from store.through import ThroughLog

_MOST_RECORDS = 4096


class _ServedLog(ThroughLog):
    """Asked for a little at a time, and often, by any threads."""

    @cached_property
    def _place(self) -> RecentPlace:
        return RecentPlace(self._of_store.place())

    @cached_property
    def _archive(self) -> ArchiveLog:
        return ArchiveLog(self._place)

    def _of_archive(self, queue: Queue, begin: int) -> Bounds | None:
        """Of this queue alone: the metadata is known."""
        return self._archive.bounds([queue]).get(queue)

    def begin(self, queue: Queue) -> int:
        """Where a queue begins; the archive counts as it is now where it seems to have nothing.

        Raises `UnknownTopic`."""
        own = Bounds(*self._store.offsets(queue.topic, queue.queue_id))
        first = self._first(queue, own)
        if first and first == own.min_offset:
            self._place.look_again()
            first = self._first(queue, Bounds(*self._store.offsets(queue.topic, queue.queue_id)))
        return first

    def records(self, wanted: QueueRange, message_filter: MessageFilter, most: int, max_bytes: int) -> Records:
        try:
            return self._archive.records(wanted, message_filter, most, max_bytes)
        except OffsetLost:  # something was deleted since the last look
            self._place.look_again()
            return self._archive.records(wanted, message_filter, most, max_bytes)

    def named(self, physical_offset: int) -> QueueRange:
        return self._archive.named(physical_offset)

    def record(self, wanted: QueueRange) -> bytes:
        """Of one message."""
        (record,) = self.records(wanted, EVERYTHING, 1, 0).records
        return bytes(record)

    def archived_time(self, queue: Queue, offset: int) -> int | None:
        found = self._archive.fingerprints({queue: offset + 1}).get(queue)
        return None if found is None else found.store_timestamp


class Older:
    """A store together with its archive, as its settings name it now; and when it is asked.

    The verbs of the first part answer at once; all others may take long, and raise `ArchiveError` and
    `ObjectsUnavailable`.
    """

    def __init__(self, store: MessageStore, reads: Reads) -> None:
        self._store = store
        self._reads = reads
        self._lock = threading.Lock()
        self._known: tuple[str, _ServedLog | None] = ("", None)

    def answer(self, request: Request, queues: Iterable[Queue], work: Callable[[], Response]) -> Answer:
        """What `work` answers: now where the store has all of these queues, or else when it is its turn."""
        if not any(each.min_offset for each in self._store.bounds(queues).values()):
            return work()
        return self._reads.begin(request.connection, work)

    def answer_of(self, request: Request, physical_offset: int, work: Callable[[bytes], Response]) -> Answer:
        """What `work` answers about the record of the message that a client names so: now, or when the archive has
        given it. Where it did so too late, and the client was refused, nothing is done: it does something else."""
        if not is_name(physical_offset):
            return work(self._store.record_at(physical_offset))
        answered: Future[Response] = Future()
        asked = self._reads.begin(request.connection, lambda: self._named(physical_offset))
        asked.add_done_callback(lambda done: settle(answered, lambda: work(done.result())))
        return answered

    def pulled(self, connection: Connection, pull: PullRequest) -> Future[PullResponse]:
        """The answer to a pull from before what the store has."""
        return self._reads.begin(connection, lambda: self._pull(pull))

    # --- what may take long ------------------------------------------------------------------------------

    def bounds(self, queue: Queue) -> Bounds:
        """Raises `UnknownTopic`, `UnknownQueue`."""
        own = Bounds(*self._store.offsets(queue.topic, queue.queue_id))
        log = self._log() if own.min_offset else None
        return own if log is None else Bounds(min(own.min_offset, log.begin(queue)), own.max_offset)

    def offset_by_time(self, queue: Queue, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """As `MessageStore.offset_by_time`."""
        log = self._log() if self._store.min_offset(queue.topic, queue.queue_id) else None
        if log is None:
            return self._store.offset_by_time(queue.topic, queue.queue_id, timestamp, boundary)
        log.begin(queue)
        found = log.offsets_by_time([queue], timestamp, boundary)
        if found:
            return found[queue]
        return self._store.offset_by_time(queue.topic, queue.queue_id, timestamp, boundary)  # or it is gone

    def stored_at(self, queue: Queue, offset: int) -> int | None:
        """Store time of a message (ms); None where it is nowhere."""
        topic, queue_id = queue.topic, queue.queue_id
        is_here = offset >= self._store.min_offset(topic, queue_id)
        found = self._store.fingerprint(topic, queue_id, offset) if is_here else None
        if found is not None:
            return found.store_timestamp
        log = self._log()
        return None if log is None or log.begin(queue) > offset else log.archived_time(queue, offset)

    def records(self, messages: Iterable[StoredMessage]) -> list[bytes]:
        """The records of messages that were found by their key, wherever they are."""
        return [self._own_record(message) or self._archived_record(message) for message in messages]

    def _named(self, physical_offset: int) -> bytes:
        log = self._log()
        if log is None:
            raise OffsetLost(f"{self._store.path}: commit log offset {physical_offset} is of an archived message")
        return log.record(log.named(physical_offset))

    def _own_record(self, message: StoredMessage) -> bytes | None:
        """None where the log has another one there, for the place is one in the archive."""
        try:
            record = self._store.record_at(message.physical_offset)
        except (OffsetLost, OffsetNotYet, CorruptRecord):
            return None
        found = decode_record(record, f"commit log offset {message.physical_offset}")
        same = ((*each[:3], each.store_timestamp, each.msg_id) for each in (found, message))
        return record if next(same) == next(same) else None

    def _archived_record(self, message: StoredMessage) -> bytes:
        log = self._log()
        if log is None:
            raise OffsetLost(f"{self._store.path}: {message.msg_id} was deleted just now")
        at = message.queue_offset
        return log.record(QueueRange(Queue(message.topic, message.queue_id), at, at + 1))

    def _pull(self, pull: PullRequest) -> PullResponse:
        config, queue = self._store.config, Queue(pull.topic, pull.queue_id)
        log = self._log()
        own = self._store.bounds([queue]).get(queue)
        if log is None or own is None or pull.offset >= own.min_offset:
            return answer(self._store, pull, as_records=True)
        first = log.begin(queue)
        if pull.offset < first:
            status = GetStatus.OFFSET_TOO_SMALL
            return PullResponse(ResponseCode.PULL_OFFSET_MOVED, status.name, first, first, own.max_offset)
        most = max(1, min(pull.max_messages, _MOST_RECORDS))
        end = min(own.min_offset, pull.offset + max(most, config.maxFilterMessageSize // CQ_ENTRY.itemsize))
        wanted = QueueRange(queue, pull.offset, end)
        accept = pull.message_filter or EVERYTHING
        found = log.records(wanted, accept, most, config.maxTransferBytesOnMessageInMemory)
        status = GetStatus.FOUND if found.records else GetStatus.NO_MATCHED_MESSAGE
        bounds = found.next_begin, first, own.max_offset
        return PullResponse(response_code(status, pull.offset), status.name, *bounds, records=found.records)

    def _log(self) -> _ServedLog | None:
        """None for a store that archives nowhere."""
        archive = StoreArchive.remembered(self._store.path, self._store.config)
        with self._lock:
            if self._known[0] != archive.name:
                self._known = archive.name, _ServedLog(self._store, archive) if archive.url else None
            return self._known[1]
