"""Who waits for which queue from which offset: RocketMQ's long polling (PullRequestHoldService)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

import numpy as np

from store import MessageStore, StoreError, TagFilter
from store.filters import java_hash_code
from store.watermark import Watch

CHECK_SECONDS = 5.0  # with longPollingEnable
SHORT_POLLING_SECONDS = 1.0  # shortPollingTimeMills
_NEVER = float("inf")
_REST_SECONDS = 0.001
_READ_BYTES = 1 << 16
_CHECKS_AT_ONCE = 16

QueueName = tuple[str, int]  # topic, queue id


class Wake(Enum):
    """Why a held request is answered now."""

    ARRIVED = "a message whose tag matches, or that cannot be told from one"
    CHECKED = "the periodic check found messages, matching or not"
    TIMEOUT = "nothing came in time"
    STOPPED = "the service was stopped"


@dataclass(eq=False, slots=True)
class HeldRequest:
    """One waiting request.

    offset: queue offset from which it reads. deadline: `time.monotonic()` seconds. wake: called once, with this
    request and the reason, in the waiting thread or inside `hold`; it must be quick and raise nothing.
    codes: tags codes that it accepts, None for all. noticed: messages before this queue offset do not match.
    """

    topic: str
    queue_id: int
    offset: int
    deadline: float
    wake: Callable[[HeldRequest, Wake], None]
    codes: frozenset[int] | None = None
    noticed: int = field(init=False)

    def __post_init__(self) -> None:
        self.noticed = self.offset

    @property
    def queue(self) -> QueueName:
        return self.topic, self.queue_id


class PullRequestHoldService:
    """Holds requests until a message arrives that they may want, or their time is over.

    One thread waits for all of them, on the kernel's notification of the store's watermark; it is started by
    the first request. Arrivals are noticed whichever process appends. An arrival with another tag wakes nobody.
    As in RocketMQ, every `CHECK_SECONDS` each request that lies behind its queue's end is woken whether its
    filter matches or not, so that its reader gets on; without long polling that check, every
    `SHORT_POLLING_SECONDS`, is all there is.

    The store stays the caller's, and has to be open for longer than this. Time is monotonic: a clock that is set
    does not matter. A process made by `fork` begins with no request held.
    """

    def __init__(self, store: MessageStore, *, long_polling: bool = True) -> None:
        self._store = store
        self._long_polling = long_polling
        self._check_seconds = CHECK_SECONDS if long_polling else SHORT_POLLING_SECONDS
        self._stopping = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[QueueName, set[HeldRequest]] = {}
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None
        self._next_expiry = _NEVER
        self._seen = -1  # confirm offset

    def hold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        timeout: float,
        wake: Callable[[HeldRequest, Wake], None],
        message_filter: TagFilter | None = None,
    ) -> HeldRequest:
        """Hold a request for messages from `offset` on, at most `timeout` seconds.

        Where such a message is there already, `wake` is called before this returns. Raises what
        `MessageStore.max_offset` does.
        """
        if os.getpid() != self._process:
            self._begin()
        tags = message_filter.tags if message_filter is not None else None
        codes = None if tags is None else frozenset(map(java_hash_code, tags))
        request = HeldRequest(topic, queue_id, offset, time.monotonic() + timeout, wake, codes)
        with self._lock:
            self._held.setdefault(request.queue, set()).add(request)
            self._start()
            sooner = request.deadline < self._next_expiry
            self._next_expiry = min(self._next_expiry, request.deadline)
        # Now the thread notices what arrives; this call, what did before.
        if self._stopping:
            self._wake(request, Wake.STOPPED)
        elif self._long_polling and self._due([request]):
            self._wake(request, Wake.ARRIVED)
        elif sooner:
            self._interrupt()
        return request

    def cancel(self, request: HeldRequest) -> bool:
        """Forget a request; False when it was woken before."""
        with self._lock:
            requests = self._held.get(request.queue, set())
            if request not in requests:
                return False
            requests.remove(request)
            if not requests:
                del self._held[request.queue]
            return True

    @property
    def held(self) -> int:
        """How many requests are held."""
        with self._lock:
            return sum(map(len, self._held.values()))

    def stop(self) -> None:
        """Wake every request with STOPPED and end the thread, at once; later requests are not held."""
        self._stopping = True
        if self._thread is None or self._process != os.getpid():
            return
        self._interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join()

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
            self._thread = threading.Thread(target=self._run, args=(watch,), name=type(self).__name__, daemon=True)
            self._thread.start()

    def _interrupt(self) -> None:
        with self._lock:
            if self._watch is not None:
                self._watch.interrupt()

    def _run(self, watch: Watch) -> None:
        next_check = time.monotonic() + self._check_seconds
        try:
            while not self._stopping:
                if self._long_polling:
                    self._notice_arrivals(watch)
                now = time.monotonic()
                if now >= next_check:
                    self._check(watch)
                    next_check = now + self._check_seconds
                if now >= self._next_expiry:
                    self._expire(now)
                watch.wait(min(next_check, self._next_expiry) - now)
        finally:
            self._stopping = True
            for request in self._all():
                self._wake(request, Wake.STOPPED)
            with self._lock:
                self._watch = None
                watch.close()

    def _notice_arrivals(self, watch: Watch) -> None:
        """Wake the requests whose message arrived since the last call."""
        confirm_offset = self._store.confirm_offset
        if confirm_offset == self._seen and not watch.polls:
            return
        queues = self._arrived(confirm_offset, watch)
        self._seen = confirm_offset
        with self._lock:
            waiting = [list(self._held[queue]) for queue in queues if queue in self._held]
        due = [request for requests in waiting for request in self._due(requests)]
        for request in due:
            self._wake(request, Wake.ARRIVED)
        if not due:
            time.sleep(_REST_SECONDS)  # a busy stream of other messages must not keep a core busy

    def _arrived(self, confirm_offset: int, watch: Watch) -> Iterable[QueueName]:
        """The queues that may have new messages: by the log where little was appended, else all that are held."""
        # A broker's queues follow its log with a delay, so there the log does not tell.
        if not watch.polls and 0 <= self._seen <= confirm_offset <= self._seen + _READ_BYTES:
            try:
                return self._store.arrivals(self._seen, confirm_offset)
            except StoreError:  # deleted meanwhile, or no records: look at the queues themselves
                pass
        with self._lock:
            return list(self._held)

    def _due(self, requests: list[HeldRequest]) -> list[HeldRequest]:
        """Those of `requests`, all of one queue, for which a message may be there."""
        topic, queue_id = requests[0].queue
        try:
            tail = self._store.max_offset(topic, queue_id)
            due, arrived = [], {}
            for request in requests:
                begin = request.noticed
                if begin >= tail:
                    continue
                if request.codes is not None:
                    if begin not in arrived:
                        arrived[begin] = np.unique(self._store.tags_codes(topic, queue_id, begin, tail)).tolist()
                    if request.codes.isdisjoint(arrived[begin]):
                        request.noticed = tail
                        continue
                due.append(request)
        except StoreError:  # the queue is gone, or its head was deleted: whoever reads it is told
            return requests
        return due

    def _check(self, watch: Watch) -> None:
        """RocketMQ's `checkHoldRequest`: wake whoever lies behind the end of the queue."""
        for number, request in enumerate(self._all()):
            if self._long_polling and number % _CHECKS_AT_ONCE == 0:
                self._notice_arrivals(watch)  # which do not wait until all are checked
            try:
                behind = self._store.max_offset(*request.queue) > request.offset
            except StoreError:
                behind = True
            if behind:
                self._wake(request, Wake.CHECKED)

    def _expire(self, now: float) -> None:
        for request in self._all():
            if request.deadline <= now:
                self._wake(request, Wake.TIMEOUT)
        with self._lock:
            self._next_expiry = min(
                (request.deadline for requests in self._held.values() for request in requests), default=_NEVER
            )

    def _all(self) -> Iterable[HeldRequest]:
        with self._lock:
            return [request for requests in self._held.values() for request in requests]

    def _wake(self, request: HeldRequest, why: Wake) -> None:
        if self.cancel(request):
            request.wake(request, why)
