"""A served store together with its archive, which clients see as one log, as in RocketMQ's TieredMessageStore."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from store.api.message_store import MessageStore
from store.archive.of_store import StoreArchive
from store.archive.served_records import is_name
from store.archive.tiered import TieredLog
from store.broker.pull import PullRequest, PullResponse, answer, response
from store.format.stored_message import StoredMessage, decode_record
from store.model.codes import ResponseCode
from store.model.errors import (
    ArchiveError,
    CorruptRecord,
    ObjectsUnavailable,
    OffsetLost,
    OffsetNotYet,
    RequestRefused,
    StoreError,
)
from store.model.log_protocol import Boundary, Bounds, Queue, QueueRange
from store.read.filters import EVERYTHING
from store.read.getting import GetRequest
from store.remoting.connection import Connection
from store.remoting.request import Answer, Request, Response
from store.remoting.threads import LEAVING, WorkerPool, settle, without_frames

_THREADS = 8
_SECONDS = 10.0  # before clients time out after 15 or 30
_QUIET_SECONDS = 60.0  # until the same warning is logged again
_logger = logging.getLogger("store.remoting")

Result = TypeVar("Result")


class ArchiveReads:
    """Threads that read from the archive for clients. Thread-safe."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        """seconds: how long a request may wait for its answer before it is refused."""
        self._seconds = seconds
        self._workers = WorkerPool(_THREADS, "mq-archive")
        self._lock = threading.Lock()
        self._until: dict[Future[Any], tuple[float, Connection]] = {}  # time.monotonic()
        self._said: dict[str, float] = {}

    def begin(self, connection: Connection, work: Callable[[], Result]) -> Future[Result]:
        """Run `work` in a thread, unless the connection is closed by then."""
        answered: Future[Result] = Future()
        with self._lock:
            self._until[answered] = time.monotonic() + self._seconds, connection
        answered.add_done_callback(self._forget)
        try:
            self._workers.begin(connection, lambda: self._answer(answered, work))
        except RequestRefused as error:
            _settle(answered, error)
        return answered

    def lost(self, connection: Connection) -> None:
        self._workers.drop(connection)
        with self._lock:
            self._until = {answered: asked for answered, asked in self._until.items() if asked[1] is not connection}

    def look(self) -> None:
        """Refuse requests that have waited too long. Call it regularly."""
        self._workers.look()
        now = time.monotonic()
        with self._lock:
            late = [answered for answered, (until, _) in self._until.items() if until < now]
        for each in late:
            why = f"the archive did not answer for {self._seconds:g} s; ask again"
            _settle(each, RequestRefused(ResponseCode.SYSTEM_BUSY, why))
        if late:
            self._log("the archive answers too slowly: clients are told to ask again")

    def stop(self) -> None:
        """Refuse all unanswered requests, without waiting for them, because a failing archive may take minutes."""
        self._workers.leave()
        with self._lock:
            left = list(self._until)
        for each in left:
            _settle(each, RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, LEAVING))

    def _answer(self, answered: Future[Any], work: Callable[[], object]) -> None:
        if answered.done():  # timed out
            return
        try:
            _settle(answered, work())
        except StoreError as error:
            if isinstance(error, (ArchiveError, ObjectsUnavailable)):
                self._log(str(error))
            _settle(answered, error)
        except BaseException as error:
            _settle(answered, error)
            if not isinstance(error, Exception):
                raise

    def _forget(self, answered: Future[Any]) -> None:
        with self._lock:
            self._until.pop(answered, None)

    def _log(self, what: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._said = {text: until for text, until in self._said.items() if until > now}
            if what in self._said:
                return
            self._said[what] = now + _QUIET_SECONDS
        _logger.warning("%s", what)


def _settle(answered: Future[Any], result: object) -> None:
    """Set the future, unless the request was refused concurrently."""
    with suppress(InvalidStateError):
        if isinstance(result, BaseException):
            answered.set_exception(without_frames(result) if isinstance(result, StoreError) else result)
        else:
            answered.set_result(result)


class TieredStore:
    """A store together with the archive in its current settings.

    `answer`, `answer_of` and `pulled` return at once. The other methods may block, so they run in reader threads, and
    raise `ArchiveError` and `ObjectsUnavailable`.
    """

    def __init__(self, store: MessageStore, reads: ArchiveReads) -> None:
        self._store = store
        self._reads = reads
        self._lock = threading.Lock()
        self._known: tuple[str, TieredLog | None] = ("", None)

    def answer(self, request: Request, queues: Iterable[Queue], work: Callable[[], Response]) -> Answer:
        """Call `work` at once if the store has all messages of these queues, otherwise in a reader thread."""
        if not any(each.min_offset for each in self._store.bounds(queues).values()):
            return work()
        return self._reads.begin(request.connection, work)

    def answer_of(self, request: Request, physical_offset: int, work: Callable[[bytes], Response]) -> Answer:
        """Call `work` with the record at an offset, but not if the archive does not answer in time."""
        if not is_name(physical_offset):
            return work(self._store.record_at(physical_offset))
        answered: Future[Response] = Future()
        asked = self._reads.begin(request.connection, lambda: self._named(physical_offset))
        asked.add_done_callback(lambda done: settle(answered, lambda: work(done.result())))
        return answered

    def pulled(self, connection: Connection, pull: PullRequest) -> Future[PullResponse]:
        """Answer a pull at an offset whose message the store has deleted."""
        return self._reads.begin(connection, lambda: self._pull(pull))

    # --- in reader threads ---------------------------------------------------------------------------------

    def bounds(self, queue: Queue) -> Bounds:
        """Return the bounds of a queue, including its archived messages."""
        own = Bounds(*self._store.offsets(queue.topic, queue.queue_id))
        log = self._log() if own.min_offset else None
        return own if log is None else Bounds(min(own.min_offset, log.first(queue, own)), own.max_offset)

    def offset_by_time(self, queue: Queue, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """See `MessageStore.offset_by_time`."""
        log = self._log() if self._store.min_offset(queue.topic, queue.queue_id) else None
        found = {} if log is None else log.offsets_by_time([queue], timestamp, boundary)
        if queue in found:
            return found[queue]
        return self._store.offset_by_time(queue.topic, queue.queue_id, timestamp, boundary)

    def stored_at(self, queue: Queue, offset: int) -> int | None:
        """Return the store time of a message (ms), None if it is deleted."""
        own = Bounds(*self._store.offsets(queue.topic, queue.queue_id))
        if own.min_offset and (log := self._log()) is not None:
            return log.stored_at(queue, offset)
        found = self._store.fingerprint(queue.topic, queue.queue_id, offset)
        return None if found is None else found.store_timestamp

    def records(self, messages: Iterable[StoredMessage]) -> list[bytes]:
        return [self._own_record(message) or self._archived_record(message) for message in messages]

    def _named(self, physical_offset: int) -> bytes:
        log = self._log()
        if log is None:
            raise OffsetLost(
                f"{self._store.path}: commit log offset {physical_offset} is of an archived message, and the store has "
                "no archive now. If the archive still exists, name it: pyspark-mq archive STORE --to URL"
            )
        return _record(log, log.older.named(physical_offset))

    def _own_record(self, message: StoredMessage) -> bytes | None:
        """Return the record of a message, None if the message is from the archive."""
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
            raise OffsetLost(f"{self._store.path}: message {message.msg_id} was deleted")
        at = message.queue_offset
        return _record(log, QueueRange(Queue(message.topic, message.queue_id), at, at + 1))

    def _pull(self, pull: PullRequest) -> PullResponse:
        queue, log = Queue(pull.topic, pull.queue_id), self._log()
        own = self._store.bounds([queue]).get(queue)
        if log is None or own is None or pull.offset >= own.min_offset:
            return answer(self._store, pull, as_records=True)
        request = GetRequest(pull.offset, pull.max_messages, pull.message_filter or EVERYTHING, as_records=True)
        return response(pull, log.get_message(queue, own, request))

    def _log(self) -> TieredLog | None:
        archive = StoreArchive.remembered(self._store.path, self._store.config)
        with self._lock:
            if self._known[0] != archive.name:
                self._known = archive.name, self._store.tiered(archive, keeps_blocks=True) if archive.url else None
            return self._known[1]


def _record(log: TieredLog, wanted: QueueRange) -> bytes:
    (record,) = log.older.records(wanted, EVERYTHING, 1, 0).records
    return bytes(record)
