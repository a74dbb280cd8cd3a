"""`Deliverer`: the thread that delivers delayed messages, in one of the processes that write to a store."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from store.append.locks import DELIVERY_BYTE, ByteLock
from store.append.watch import Watch
from store.delays.delivery import Delivery
from store.format.layout import LOCK_FILE
from store.model.errors import CorruptStore, FlushFailed, StoreError, StoreNotOpen

_logger = logging.getLogger("store")

_TAKE_OVER_SECONDS = 0.2  # between two tries to acquire the turn
# Saved in a pause of this length, or after a minute without one. The next process reads the log from there.
_SAVE_SECONDS, _SAVE_AT_LAST_SECONDS = 5.0, 60.0
_PAUSE_MS = 500
_REST_SECONDS = 0.01  # so that one append has many messages
_AGAIN_SECONDS = 1.0  # after an error
_LOOK_SECONDS = 1.0  # limit of a wait: it does not notice that the clock was set or that the machine slept


class Deliverer:
    """Delivers due messages in a thread, while this process holds the delivery lock.

    One process of a host can hold the lock. The thread starts once the store has had a delayed message.
    """

    def __init__(self, root: Path, delivery: Callable[[], Delivery], watch: Callable[[], Watch]) -> None:
        self._root = root
        self._delivery = delivery
        self._new_watch = watch
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._running = threading.Lock()
        self._turn: ByteLock | None = None
        self._delivering: Delivery | None = None
        self._save_at = math.inf  # time.monotonic()
        self._last_error = ""

    def start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopping.is_set():
                self._watch = self._watch or self._new_watch()
                thread = threading.Thread(target=self._run, name="mq-deliver", daemon=True)
                thread.start()
                self._thread = thread  # only now: `stop` joins it

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    @property
    def delivers(self) -> bool:
        return self._delivering is not None

    def stop(self) -> None:
        """End the thread, but hold the delivery lock until `leave`."""
        with self._starting:
            self._stopping.set()
            watch, thread = self._watch, self._thread
        if watch is not None:
            watch.interrupt()
        if thread is not None:
            thread.join()

    def save(self) -> None:
        """Write the progress. Call it after `stop` and a flush."""
        if self._delivering is not None:
            for _ in range(2):  # the progress that waits for a flush, then the current one
                self._delivering.save(_now())
            self._delivering.write_broker_files(_now())

    def leave(self) -> None:
        if self._turn is not None:
            self._turn.close()
        if self._watch is not None:
            self._watch.close()

    def _is_time_to_save(self, due: int | None) -> bool:
        # Writing delays due messages, so wait for a pause in them.
        pause = math.inf if due is None else due - _now()
        return time.monotonic() >= self._save_at + (0 if pause > _PAUSE_MS else _SAVE_AT_LAST_SECONDS - _SAVE_SECONDS)

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._running:  # an interrupt in `start` may lead to a second thread
            self._thread = threading.current_thread()
            try:
                self._deliver()
            finally:  # after an unexpected error, another process can take the turn
                if not self._stopping.is_set() and self._turn is not None:
                    self._delivering = None
                    self._turn.close()
                    self._turn = None

    def _deliver(self) -> None:
        assert self._watch is not None
        while not self._stopping.is_set():
            try:
                rest = self._go_on(self._watch)
                self._last_error = ""
            except (FlushFailed, StoreNotOpen, CorruptStore):
                if not self._stopping.is_set():
                    _logger.exception("%s: this process delivers delayed messages no longer", self._root)
                return
            except (StoreError, OSError) as error:
                if self._last_error != (told := repr(error)):
                    _logger.exception(
                        "%s: delayed messages cannot be delivered; trying again every %g s", self._root, _AGAIN_SECONDS
                    )
                self._last_error, rest = told, _AGAIN_SECONDS
            self._stopping.wait(rest)

    def _go_on(self, watch: Watch) -> float:
        """Deliver due messages if this process has the delivery lock, then wait. Return how many seconds to rest."""
        if self._delivering is None:
            self._turn = self._turn or ByteLock(self._root / LOCK_FILE, DELIVERY_BYTE)
            if not self._turn.take():
                return _TAKE_OVER_SECONDS
            delivery = self._delivery()
            delivery.begin()
            self._delivering = delivery
            self._save_at = time.monotonic() + _SAVE_SECONDS
        delivery = self._delivering
        look_at = delivery.look()
        while delivery.step(_now()):
            if self._stopping.is_set():
                return 0.0
        stepped = time.monotonic()
        due = delivery.next_time()
        if self._is_time_to_save(due):
            delivery.save(_now())
            self._save_at = time.monotonic() + _SAVE_SECONDS
        at = math.inf if due is None else max(time.monotonic() + (due - _now()) / 1000, stepped + _REST_SECONDS)
        save_at = math.inf if delivery.is_saved or time.monotonic() >= self._save_at else self._save_at
        rest = min(at, look_at, save_at) - time.monotonic()
        watch.wait(rest if due is None else min(rest, _LOOK_SECONDS))
        return max(0.0, min(at - time.monotonic(), _REST_SECONDS))


def _now() -> int:
    return int(time.time() * 1000)
