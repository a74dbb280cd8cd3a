"""Held requests, RocketMQ's long polling: each waits for messages of one queue from an offset on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

import numpy as np
import numpy.typing as npt

from store.api.message_store import MessageStore
from store.append.watch import POLL_SECONDS, Watch
from store.disk.opened import Opened, is_owned
from store.model.errors import (
    CorruptStore,
    OffsetOutOfRange,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreUnavailable,
    UnknownTopic,
)
from store.model.log_protocol import MessageFilter
from store.read.arrivals import Arrival

CHECK_SECONDS = 5.0
_NEVER = float("inf")
# First and longest pause after a wake-up without a match, doubled each time. So a stream of other messages does not
# keep a core busy, and a message right after another one hardly waits.
_REST_SECONDS = (0.00005, 0.001)
_BYTES_A_QUEUE = 1 << 10  # reading this much log costs about as much as checking a queue

# Errors that wake a request, so that its reader gets them. Any other error ends the service.
_READER_ERRORS = (UnknownTopic, OffsetOutOfRange, CorruptStore, StoreUnavailable)

QueueName = tuple[str, int]  # topic, queue id
_logger = logging.getLogger("store")


class Wake(Enum):
    """Why a held request is answered."""

    ARRIVED = "a message whose tag matches, or that cannot be told from one"
    CHECKED = "the periodic check found messages, matching or not"
    TIMEOUT = "nothing came in time"
    STOPPED = "the service was stopped"


@dataclass(eq=False, slots=True)
class HeldRequest:
    """A request that waits for messages.

    wake: called once, with this request and the reason, in the waiting thread or inside `hold`. It must be quick and
    raise nothing.
    codes: accepted tags codes, None for all.
    deadline: `time.monotonic()`.
    noticed: no message before this queue offset matches.
    """

    topic: str
    queue_id: int
    offset: int
    wake: Callable[[HeldRequest, Wake], None]
    codes: frozenset[int] | None = None
    deadline: float = field(init=False, default=_NEVER)
    noticed: int = field(init=False)

    def __post_init__(self) -> None:
        self.noticed = self.offset

    @property
    def queue(self) -> QueueName:
        return self.topic, self.queue_id


class HeldRequests:
    """The held requests, by queue. Thread-safe.

    changed: the lock, for callers that need a consistent view of several calls.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._by_queue: dict[QueueName, set[HeldRequest]] = {}

    def __len__(self) -> int:
        with self.changed:
            return sum(map(len, self._by_queue.values()))

    @property
    def queues(self) -> int:
        """The number of queues with held requests."""
        return len(self._by_queue)

    def all(self) -> list[HeldRequest]:
        return [request for requests in self.by_queue() for request in requests]

    def by_queue(self) -> list[list[HeldRequest]]:
        with self.changed:
            return list(map(list, self._by_queue.values()))

    def add(self, request: HeldRequest) -> None:
        with self.changed:
            self._by_queue.setdefault(request.queue, set()).add(request)

    def remove(self, request: HeldRequest) -> bool:
        """Remove a request. Return whether it was held."""
        with self.changed:
            requests = self._by_queue.get(request.queue, set())
            if request not in requests:
                return False
            requests.remove(request)
            if not requests:
                del self._by_queue[request.queue]
            return True

    def behind(self) -> list[HeldRequest]:
        """Return the requests with messages at or after their offset, as RocketMQ's `checkHoldRequest` does."""
        return [request for request in self.all() if request.noticed > request.offset]

    def expired(self, now: float) -> list[HeldRequest]:
        return [request for request in self.all() if request.deadline <= now]

    def next_expiry(self) -> float:
        return min((request.deadline for request in self.all()), default=_NEVER)

    def accepting(self, arrivals: list[Arrival]) -> list[HeldRequest]:
        """Return the requests that accept one of `arrivals`.

        Other requests of the same queues skip these messages from now on.
        """
        due = []
        with self.changed:
            for arrival in arrivals:
                for request in self._by_queue.get((arrival.topic, arrival.queue_id), ()):
                    if request.offset <= arrival.queue_offset:
                        if request.codes is None or arrival.tags_code in request.codes:
                            due.append(request)
                        elif request.noticed == arrival.queue_offset:  # else `hold` has not checked earlier ones yet
                            request.noticed += 1
        return due


class PullRequestHoldService(Opened):
    """Holds requests until a message arrives that may match, or until their timeout.

    One thread waits for all of them, on the kernel's notification of the published end, which any process may advance.
    As in RocketMQ, every `CHECK_SECONDS` each request with messages after its offset is woken even if none matches, so
    that its reader skips them.

    An error (`failure`) or closing the store stops the service.
    """

    failure: StoreError | None = None

    def __init__(self, store: MessageStore) -> None:
        super().__init__(f"a hold service of {store.path}", "PullRequestHoldService(store)")
        self._store = store
        self._stopping = False
        self._requests = HeldRequests()
        self._lock = self._requests.changed
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None
        self._next_expiry = _NEVER
        self._seen = 0  # confirm offset at the last look
        self._polled = False
        self._rest_seconds = 0.0

    def hold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        timeout: float,
        wake: Callable[[HeldRequest, Wake], None],
        message_filter: MessageFilter | None = None,
    ) -> HeldRequest:
        """Hold a request for messages from `offset` on, up to `timeout` seconds.

        If such a message exists already, or the queue cannot be read, `wake` is called before this returns.
        """
        self.must_be_open()
        self._store.must_be_open()
        codes = None if message_filter is None else message_filter.tags_codes
        deadline = time.monotonic() + timeout
        request = HeldRequest(topic, queue_id, offset, wake, codes)
        with self._lock:
            self._start()
            self._requests.add(request)
        # The thread notices arrivals from now on; this call checks for earlier ones.
        if self._stopping:
            self._wake_all([request], Wake.STOPPED)
        elif self._due([request]):
            self._wake_all([request], Wake.ARRIVED)
        else:
            with self._lock:
                request.deadline = deadline
                if deadline < self._next_expiry:
                    self._next_expiry = deadline
                    self._interrupt()
        return request

    def cancel(self, request: HeldRequest) -> bool:
        """Remove a request. Return False if it was woken before."""
        self.must_be_open()
        return self._requests.remove(request)

    @property
    def held(self) -> int:
        """The number of held requests."""
        self.must_be_open()
        return len(self._requests)

    def stop(self) -> None:
        """Wake all requests with STOPPED, and end the thread. Later requests are not held.

        Raises `StoreLocked` in a signal handler that interrupted another method.
        """
        if is_owned(self._lock):
            raise StoreLocked(
                f"{self._what}: a signal handler called stop during another call in the same thread. Let the handler "
                "set a flag or raise an exception instead"
            )
        self._stopping = True
        thread = self._thread
        if thread is None:
            return
        with self._lock:
            self._interrupt()
        if thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> PullRequestHoldService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- the waiting thread ------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._watch = watch = self._store.watch()
            self._seen = self._store.confirm_offset
            thread = threading.Thread(target=self._run, args=(watch,), name=type(self).__name__, daemon=True)
            thread.start()
            self._thread = thread  # after `start`, which may fail; the next request then tries again

    def _interrupt(self) -> None:
        if self._watch is not None:  # the caller holds the lock
            self._watch.interrupt()

    def _run(self, watch: Watch) -> None:
        next_check = time.monotonic() + CHECK_SECONDS
        try:
            while not self._stopping:
                rest = _NEVER
                try:
                    self._notice_arrivals(watch)
                except StoreUnavailable:  # each reader gets the error after its deadline
                    rest = POLL_SECONDS
                now = time.monotonic()
                if now >= next_check:
                    self._wake_all(self._requests.behind(), Wake.CHECKED)
                    next_check = now + CHECK_SECONDS
                if now >= self._next_expiry:
                    self._wake_all(self._requests.expired(now), Wake.TIMEOUT)
                    with self._lock:
                        self._next_expiry = self._requests.next_expiry()
                watch.wait(min(next_check - now, self._next_expiry - now, rest))
        except StoreError as error:
            self.failure = error
            if not isinstance(error, StoreClosed):
                _logger.error("%s: requests are no longer held: %s", self._store.path, error)
        finally:
            self._stopping = True
            self._wake_all(self._requests.all(), Wake.STOPPED)
            with self._lock:
                self._watch = None
            watch.close()

    def _notice_arrivals(self, watch: Watch) -> None:
        confirm_offset = self._store.confirm_offset
        # A broker's queues lag its log, so check the queues themselves; once more when polling has ended.
        by_queues = watch.polls or self._polled
        self._polled = watch.polls
        if confirm_offset == self._seen and not by_queues:
            return
        due = self._behind() if by_queues else self._arrived(confirm_offset)
        self._seen = confirm_offset
        self._wake_all(due, Wake.ARRIVED)
        if due:
            self._rest_seconds = 0.0
        else:
            least, most = _REST_SECONDS
            self._rest_seconds = min(max(least, 2 * self._rest_seconds), most)
            time.sleep(self._rest_seconds)

    def _arrived(self, confirm_offset: int) -> list[HeldRequest]:
        if self._seen <= confirm_offset <= self._seen + _BYTES_A_QUEUE * self._requests.queues:
            try:
                return self._requests.accepting(self._store.arrivals(self._seen, confirm_offset))
            except _READER_ERRORS:  # deleted concurrently, or no record
                pass
        return self._behind()

    def _behind(self) -> list[HeldRequest]:
        return [request for requests in self._requests.by_queue() for request in self._due(requests)]

    def _due(self, requests: list[HeldRequest]) -> list[HeldRequest]:
        topic, queue_id = requests[0].queue  # the same of all requests
        try:
            end = self._store.max_offset(topic, queue_id)
            due: list[HeldRequest] = []
            arrived: dict[int, list[int] | None] = {}
            for request in requests:
                begin = request.noticed
                if begin >= end:
                    continue
                if request.codes is not None:
                    if begin not in arrived:
                        arrived[begin] = _hashes(self._store.tags_codes(topic, queue_id, begin, end))
                    codes = arrived[begin]
                    if codes is not None and request.codes.isdisjoint(codes):
                        request.noticed = end
                        continue
                due.append(request)
        except _READER_ERRORS:
            return requests
        return due

    def _wake_all(self, requests: list[HeldRequest], why: Wake) -> None:
        for request in requests:
            if self.cancel(request):
                request.wake(request, why)


def _hashes(tags_codes: npt.NDArray[np.int64]) -> list[int] | None:
    """Return the distinct codes. Return None if some are delivery times or addresses: then only the tag can decide."""
    codes = np.unique(tags_codes)
    return codes.tolist() if (codes == codes.astype(np.int32)).all() else None
