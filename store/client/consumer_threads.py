"""`ConsumerThreads`: the threads that pull, rebalance and call the listener of a consumer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from store.client.process_queues import ProcessQueues
from store.client.puller import Puller
from store.client.rebalancer import Rebalancer
from store.disk.figures import Figures
from store.model.errors import ObjectsUnavailable, StoreBusy, Unreachable

_logger = logging.getLogger("store")


class ConsumerThreads:
    """A consumer's threads. If one fails, all end, and `error` is its error."""

    def __init__(
        self, what: str, queues: ProcessQueues, rebalancer: Rebalancer, pullers: Sequence[Puller], figures: Figures
    ) -> None:
        self.error: BaseException | None = None
        self._what = what
        self._queues = queues
        self._rebalancer = rebalancer
        self._pullers = pullers
        self._figures = figures
        self._threads: list[threading.Thread] = []
        self._workers: list[threading.Thread] = []

    def start(self, work: Callable[[], None] | None, count: int) -> None:
        """Start all threads.

        This thread rebalances first, so that a new group gets every message put after this call.
        """
        self._rebalancer.begin()
        self._rebalance_by(self._rebalancer.step)
        for each in (self._rebalance, *(puller.run for puller in self._pullers)):
            self._threads.append(self._start(each))
        if work is not None:
            for _ in range(count):
                self._workers.append(self._start(work))

    @property
    def is_worker(self) -> bool:
        return threading.current_thread() in self._workers

    def stop(self) -> None:
        """Hand out no more messages, and do not wait for the threads."""
        self._queues.close()
        for puller in self._pullers:
            puller.stop()

    def wait_for_calls(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        if self._has_calls:
            _logger.error(
                "%s: closed while a call of the listener still runs; its messages are delivered again", self._what
            )

    def join(self) -> None:
        """Wait for all threads except the workers, which a listener may block."""
        for thread in self._threads:
            thread.join()

    def must_not_have_failed(self) -> None:
        if self.error is not None:
            raise self.error

    @property
    def _has_calls(self) -> bool:
        return any(worker.is_alive() for worker in self._workers)

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work,), name=self._what, daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - `wait`, `close` and iterating raise it
            if not self._queues.is_closed:
                self.error = error
                _logger.error("%s: stopped by %s: %s", self._what, type(error).__name__, error)
                self.stop()

    def _rebalance(self) -> None:
        while not self._queues.is_closed:
            self._rebalance_by(self._rebalancer.step)
            self._rebalancer.wait()
        while self._has_calls:  # else other members receive the messages in hand
            self._rebalance_by(self._rebalancer.renew)
            self._rebalancer.wait()

    def _rebalance_by(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (StoreBusy, ObjectsUnavailable, Unreachable) as error:
            _logger.warning("%s: failed, and is tried again: %s", self._what, error)
        self._figures.write()
