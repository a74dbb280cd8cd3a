"""Work for requests that may take long, for it waits for an archive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from store.broker.response_codes import ResponseCode
from store.model.errors import ArchiveError, ObjectsUnavailable, RequestRefused, StoreError
from store.remoting.connection import Connection
from store.remoting.turns import LEAVING, Turns

_THREADS = 8
_SECONDS = 10.0  # after which a client is told to ask again: it gives up itself after 15 or 30
_QUIET_SECONDS = 60.0  # until the same is logged again
_logger = logging.getLogger("store.remoting")

Result = TypeVar("Result")


class Reads:
    """Connections take turns. Any thread may call."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        """seconds: after which a request is refused that was not answered."""
        self._seconds = seconds
        self._turns = Turns(_THREADS, "mq-archive")
        self._lock = threading.Lock()
        self._until: dict[Future[Any], tuple[float, Connection]] = {}  # time.monotonic(), and who asked
        self._said: dict[str, float] = {}

    def begin(self, connection: Connection, work: Callable[[], Result]) -> Future[Result]:
        """What `work` answers, or raises; work: called in another thread, unless the connection is over by then."""
        answered: Future[Result] = Future()
        with self._lock:
            self._until[answered] = time.monotonic() + self._seconds, connection
        answered.add_done_callback(self._forget)
        try:
            self._turns.begin(connection, lambda: self._answer(answered, work))
        except RequestRefused as error:
            _settle(answered, error)
        return answered

    def lost(self, connection: Connection) -> None:
        """Nobody is there any more to be answered."""
        self._turns.drop(connection)
        with self._lock:
            self._until = {answered: asked for answered, asked in self._until.items() if asked[1] is not connection}

    def look(self) -> None:
        """Refuse what takes too long: to be called now and then."""
        self._turns.look()
        now = time.monotonic()
        with self._lock:
            late = [answered for answered, (until, _) in self._until.items() if until < now]
        for each in late:
            why = f"the archive did not answer for {self._seconds:g} s; ask again"
            _settle(each, RequestRefused(ResponseCode.SYSTEM_BUSY, why))
        if late:
            self._log("the archive answers too slowly: clients are told to ask again")

    def stop(self) -> None:
        """Refuse all that is not answered, and take no more. A request to an archive that fails may take minutes to do
        so: it is not waited for."""
        self._turns.leave()
        with self._lock:
            left = list(self._until)
        for each in left:
            _settle(each, RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, LEAVING))

    def _answer(self, answered: Future[Any], work: Callable[[], object]) -> None:
        if answered.done():  # it waited for too long
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
        """Not again and again."""
        now = time.monotonic()
        with self._lock:
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
