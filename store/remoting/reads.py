"""Work for requests that may take long, for it waits for an archive: some at a time, so that nobody else waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from store import ArchiveError, RequestRefused, StoreError
from store.broker.response_codes import ResponseCode
from store.remoting.connection import Connection

_THREADS = 8
_SECONDS = 10.0  # after which a client is told to ask again: it gives up itself after 15 or 30
_QUIET_SECONDS = 60.0  # until the same is logged again
_logger = logging.getLogger("store.remoting")

Result = TypeVar("Result")


class _Asked(NamedTuple):
    work: Callable[[], Any]
    answered: Future[Any]
    until: float  # time.monotonic()


class Reads:
    """Connections take turns, so that none with many requests stops the others. Any thread may call."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        """seconds: after which a request is refused that was not answered."""
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: dict[Connection, deque[_Asked]] = {}  # whose turn is next first
        self._under_way: set[_Asked] = set()
        self._threads = 0
        self._idle = 0
        self._is_over = False
        self._said: dict[str, float] = {}

    def begin(self, connection: Connection, work: Callable[[], Result]) -> Future[Result]:
        """What `work` answers, or a `StoreError`; work: called in another thread, unless the connection ends."""
        answered: Future[Result] = Future()
        asked = _Asked(work, answered, time.monotonic() + self._seconds)
        with self._changed:
            if self._is_over:
                raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is leaving")
            self._waiting.setdefault(connection, deque()).append(asked)
            if self._threads < _THREADS and self._idle < sum(map(len, self._waiting.values())):
                self._threads += 1
                # Nobody waits for them at the end: a request to an archive may take minutes to fail.
                threading.Thread(target=self._run, name=f"mq-archive-{self._threads}", daemon=True).start()
            self._changed.notify()
        return answered

    def lost(self, connection: Connection) -> None:
        """Nobody is there any more to be answered."""
        with self._changed:
            self._waiting.pop(connection, None)

    def look(self) -> None:
        """Refuse what takes too long: to be called now and then."""
        now = time.monotonic()
        with self._changed:
            late = [each for each in self._under_way if each.until < now]
            for connection, waiting in list(self._waiting.items()):
                while waiting and waiting[0].until < now:
                    late.append(waiting.popleft())
                if not waiting:
                    del self._waiting[connection]
            self._changed.notify_all()  # who did not read may do so again
        for each in late:
            why = f"the archive did not answer for {self._seconds:g} s; ask again"
            _settle(each.answered, RequestRefused(ResponseCode.SYSTEM_BUSY, why))
        if late:
            self._log("the archive answers too slowly: clients are told to ask again")

    def stop(self) -> None:
        """Refuse all that is not answered, and take no more."""
        with self._changed:
            self._is_over = True
            left = [*self._under_way, *(each for waiting in self._waiting.values() for each in waiting)]
            self._waiting.clear()
            self._changed.notify_all()
        for each in left:
            _settle(each.answered, RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is leaving"))

    def _run(self) -> None:
        while (asked := self._next()) is not None:
            try:
                _settle(asked.answered, asked.work())
            except StoreError as error:
                if isinstance(error, ArchiveError):
                    self._log(str(error))
                _settle(asked.answered, error)
            except BaseException as error:
                _settle(asked.answered, error)
                if not isinstance(error, Exception):
                    raise
            finally:
                with self._changed:
                    self._under_way.discard(asked)

    def _next(self) -> _Asked | None:
        """Of the connection whose turn it is; one whose other end does not read is asked for nothing meanwhile."""
        with self._changed:
            while not self._is_over:
                for connection in [each for each in self._waiting if not each.is_stuck_writing]:
                    waiting = self._waiting.pop(connection)
                    asked = waiting.popleft()
                    if waiting:
                        self._waiting[connection] = waiting
                    self._under_way.add(asked)
                    return asked
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return None

    def _log(self, what: str) -> None:
        """Not again and again."""
        now = time.monotonic()
        with self._changed:
            self._said = {text: until for text, until in self._said.items() if until > now}
            if what in self._said:
                return
            self._said[what] = now + _QUIET_SECONDS
        _logger.warning("%s", what)


def _settle(answered: Future[Any], result: object) -> None:
    """Unless it was refused meanwhile."""
    with suppress(InvalidStateError):
        if isinstance(result, BaseException):
            answered.set_exception(result)
        else:
            answered.set_result(result)
