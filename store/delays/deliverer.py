"""Delivering delayed messages behind the puts, in one of the processes that have a store open for writing."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from store.delays.delivery import Delivery
from store.format.layout import LOCK_FILE
from store.model.errors import CorruptStore, FlushFailed, StoreError, StoreNotOpen
from store.publish.locks import DELIVERY_BYTE, Turn
from store.publish.watch import Watch

_logger = logging.getLogger("store")

_TAKE_OVER_SECONDS = 0.2  # between two tries to get the turn from who died
# What was delivered since it was saved is looked for in the log by who takes over. So often that is, where there is a
# pause, and at last.
_SAVE_SECONDS, _SAVE_AT_LAST_SECONDS = 5.0, 60.0
_PAUSE_MS = 500
_REST_SECONDS = 0.01  # at least between two steps: many messages together take little more time than one
_AGAIN_SECONDS = 1.0  # after an error
_LOOK_SECONDS = 1.0  # at the clock, which may have been set, or the machine have slept: no wait notices that


class Deliverer:
    """Delivers what is due while it is this process's turn: at most one on a host has it, and the system gives it back
    when that one dies.

    The thread begins with the first message that is to be delayed, here or, within a moment, anywhere; or with the
    opening of a store where there ever were any. It sleeps until the next one is due, or something is published.
    """

    def __init__(self, root: Path, delivery: Callable[[], Delivery], watch: Callable[[], Watch]) -> None:
        """delivery: makes what delivers, when it is this one's turn. watch: makes what wakes at publications."""
        self._root = root
        self._delivery = delivery
        self._new_watch = watch
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._running = threading.Lock()
        self._turn: Turn | None = None
        self._delivering: Delivery | None = None
        self._save_at = math.inf  # time.monotonic()
        self._last_error = ""

    def start(self) -> None:
        """Deliver from now on in the background; does nothing while it does."""
        with self._starting:
            if self._thread is None and not self._stopping.is_set():
                self._watch = self._watch or self._new_watch()
                thread = threading.Thread(target=self._run, name="mq-deliver", daemon=True)
                thread.start()
                self._thread = thread  # not before: who stops it can only wait for one that runs

    @property
    def is_started(self) -> bool:
        """Whether it delivers, or waits for its turn."""
        return self._thread is not None

    @property
    def delivers(self) -> bool:
        """Whether it is this one's turn."""
        return self._delivering is not None

    def stop(self) -> None:
        """End the background thread. The turn is kept until `leave`."""
        with self._starting:
            self._stopping.set()
            watch, thread = self._watch, self._thread
        if watch is not None:
            watch.interrupt()
        if thread is not None:
            thread.join()

    def save(self) -> None:
        """Write how far this is, which is on the device by now. Call after `stop`."""
        if self._delivering is not None:
            for _ in range(2):  # what was noted before; what is noted now
                self._delivering.save(_now())
            self._delivering.hand_over(_now())

    def leave(self) -> None:
        """Let another one deliver. Call after `stop`."""
        if self._turn is not None:
            self._turn.close()
        if self._watch is not None:
            self._watch.close()

    def _is_time_to_save(self, due: int | None) -> bool:
        """That takes as long as the device does, and what is due waits meanwhile: so it is put off to a pause."""
        pause = math.inf if due is None else due - _now()
        return time.monotonic() >= self._save_at + (0 if pause > _PAUSE_MS else _SAVE_AT_LAST_SECONDS - _SAVE_SECONDS)

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._running:  # an interrupt in `start` may let it start another thread
            self._thread = threading.current_thread()
            try:
                self._deliver()
            finally:  # whatever ended this, others go on
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
                    _logger.exception("%s: no delayed messages are delivered any more", self._root)
                return
            except (StoreError, OSError) as error:
                if self._last_error != (told := repr(error)):  # once, not at every try
                    _logger.exception("%s: delayed messages wait; tried again every %g s", self._root, _AGAIN_SECONDS)
                self._last_error, rest = told, _AGAIN_SECONDS
            self._stopping.wait(rest)

    def _go_on(self, watch: Watch) -> float:
        """Deliver what is due, if it is this one's turn, and wait for the next; for how long to do nothing then."""
        if self._delivering is None:
            self._turn = self._turn or Turn(self._root / LOCK_FILE, DELIVERY_BYTE)
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
