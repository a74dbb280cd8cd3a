"""Threads of clients and servers: an event loop, and workers that connections share."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn, TypeVar

from store.model.codes import ResponseCode
from store.model.errors import RequestRefused, StoreError
from store.remoting.connection import Connection

Result = TypeVar("Result")
_QUICK_SECONDS = 0.001  # most that the event loop takes for a request
_MOST_REST, _MOST_REST_SECONDS = 3, 0.5  # limits of a worker's sleep: a multiple of its computing time, and seconds


def settle(waiting: Future[Result], work: Callable[[], Result]) -> None:
    """Set `waiting` to the result or any error of `work`, so that its reader never waits forever."""
    try:
        result = work()
    except StoreError as error:
        waiting.set_exception(without_frames(error))
    except BaseException as error:
        waiting.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        waiting.set_result(result)


def without_frames(error: StoreError) -> StoreError:
    """Remove the traceback and cause, whose frames would keep the request in memory until a garbage collection."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class LoopThread:
    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Callable[..., object], *arguments: object) -> None:
        """Call `work` in the loop's thread. Does nothing after the loop was closed."""
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(work, *arguments)
            except RuntimeError:  # closed concurrently
                if not self.loop.is_closed():
                    raise

    def stop(self) -> None:
        self.call(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()


LEAVING = "the broker is leaving"
LEAVE_SECONDS = 5.0  # in which waiting requests may still begin


class _Work(NamedTuple):
    answered: Future[Any]
    work: Callable[[], Any]
    after_others: bool


class WorkerPool:
    """Workers that serve connections in turn. At most half of them serve one connection. Thread-safe.

    No work begins for a connection whose peer does not read, because its answers would stay in memory. Workers share
    the GIL with the event loop. So after each piece of work, a worker sleeps for as long as the loop needed for its
    `quick_requests` in that time.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._share = max(1, threads // 2)
        self._name = name
        self._changed = threading.Condition()
        self._waiting: dict[Connection, deque[_Work]] = {}  # in the order in which they are served
        self._begun: Counter[Connection] = Counter()  # running works
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_over = False
        self.quick_requests = 0
        self._until = math.inf  # `time.monotonic()`, after which no work begins

    def begin(
        self, connection: Connection, work: Callable[[], Result], *, after_others: bool = False
    ) -> Future[Result]:
        """Run `work` in a worker, even if the connection is closed by then.

        after_others: begin after the connection's earlier requests.
        """
        answered: Future[Result] = Future()
        with self._changed:
            if self._is_over:
                _leaving()
            if len(self._threads) < self._most and self._idle <= sum(map(len, self._waiting.values())):
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()  # if no thread can start, the next request tries again
                self._threads.append(thread)
            self._waiting.setdefault(connection, deque()).append(_Work(answered, work, after_others))
            self._changed.notify()
        return answered

    def drop(self, connection: Connection) -> None:
        with self._changed:
            self._waiting.pop(connection, None)

    def look(self) -> None:
        """Continue with connections whose peer reads again, and with closed ones. Call it regularly."""
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            self._is_over = True
            self._waiting.clear()
            self._changed.notify_all()

    def close(self, seconds: float = LEAVE_SECONDS) -> None:
        """Refuse work that does not begin within `seconds`, and wait for the rest."""
        with self._changed:
            self._is_over = True
            self._until = time.monotonic() + seconds
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection = None
        while (turn := self._next(connection)) is not None:
            connection, asked = turn
            before, began = self.quick_requests, time.thread_time()
            settle(asked.answered, asked.work if time.monotonic() < self._until else _leaving)
            del turn, asked  # free the request before sleeping
            if not self._is_over:
                needed = _QUICK_SECONDS * (self.quick_requests - before)
                time.sleep(min(needed, _MOST_REST * (time.thread_time() - began), _MOST_REST_SECONDS))

    def _next(self, done: Connection | None) -> tuple[Connection, _Work] | None:
        """Wait for the next work, and return it. done: the connection whose work this thread finished."""
        with self._changed:
            if done is not None:
                self._begun -= Counter((done,))  # drops zero counts, too
            while True:
                connection = next(filter(self._may_begin, self._waiting), None)
                if connection is not None:
                    waiting = self._waiting.pop(connection)
                    work = waiting.popleft()
                    if waiting:
                        self._waiting[connection] = waiting
                    self._begun[connection] += 1
                    return connection, work
                if self._is_over:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _may_begin(self, connection: Connection) -> bool:
        if self._waiting[connection][0].after_others and self._begun[connection]:
            return False
        is_served = connection.is_over or not connection.is_stuck_writing
        return self._is_over or (is_served and self._begun[connection] < self._share)


def _leaving() -> NoReturn:
    raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, LEAVING)
