"""`Buffer`: messages of a producer before their append."""

from __future__ import annotations

import threading
from typing import NamedTuple

from store.client.producer_future import WIDTH, Row, SendFuture, TopicBatch
from store.disk.opened import is_owned
from store.model.errors import BufferFull, InvalidArgument, StoreClosed, StoreLocked


class BufferLimits(NamedTuple):
    """The limits of a buffer; see `Producer`. linger, timeout: seconds."""

    linger: float
    batch_bytes: int
    buffer_bytes: int
    timeout: float


class Buffer:
    """Messages that wait for an append. Any thread adds messages; one thread takes them.

    The last message may exceed the size limit.
    """

    def __init__(self, what: str, limits: BufferLimits) -> None:
        self._what = what
        self._linger, batch_bytes, self._max_bytes, self._timeout = limits
        self._batch_bytes = min(batch_bytes, self._max_bytes)
        # Re-entrant, so that a signal handler that interrupted `add` sees `_is_adding` and raises.
        self._lock = threading.RLock()
        self._is_adding = False
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._batches: dict[str, TopicBatch] = {}
        self._bytes = 0
        self._check_at = 0  # when `_bytes` reaches it, `add` checks for room and wakes the taker
        self._is_closed = self._is_urgent = self._is_over = False
        self._why_closed: StoreClosed | None = None
        self._last_sequences: dict[str, int] = {}  # by topic, of the taken messages
        self._taken = self._settled = 0  # calls of `take`, and how many of them are settled
        self._taker: threading.Thread | None = None

    def add(self, topic: str, row: Row, size: int, sequence: int | None = None) -> SendFuture:
        """Add a message.

        Raises `BufferFull` if there is no room within the timeout, `StoreClosed`, `StoreLocked` in a signal handler
        that interrupted `add`, and `InvalidArgument` for a sequence that does not ascend.
        """
        with self._lock:  # ordered so that an interrupt leaves no message without its sequence
            if self._is_adding:
                raise self._locked()
            try:
                self._is_adding = True
                if is_check_due := self._bytes >= self._check_at:
                    self._check_room()
                batch = self._batches.get(topic)
                if batch is None:
                    batch = TopicBatch(topic)
                number = len(batch.fields) // WIDTH
                if sequence is not None:
                    last = batch.sequences[number - 1] if number else self._last_sequences.get(topic)
                    self._check_ascending(topic, last, sequence)
                    batch.sequences[number:] = [sequence]
                batch.fields.extend(row)
                if not number:
                    self._batches[topic] = batch
                self._bytes += size
                if is_check_due or self._bytes >= self._check_at:
                    self._work.notify()
                    self._check_at = self._batch_bytes if self._bytes < self._batch_bytes else self._max_bytes
                return SendFuture(batch, number)
            finally:
                self._is_adding = False

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def must_be_outside(self) -> None:
        """Raise `StoreLocked` in a signal handler that interrupted `add`, because it would wait for its own thread."""
        if is_owned(self._work):
            raise self._locked()

    def _locked(self) -> StoreLocked:
        return StoreLocked(
            f"{self._what}: a signal handler called this producer during send in the same thread. Let the handler set "
            "a flag or raise an exception instead"
        )

    def _closed(self) -> StoreClosed:
        return self._why_closed or StoreClosed(f"{self._what}: was closed. Open a new one")

    def _check_ascending(self, topic: str, last: int | None, sequence: int) -> None:
        if last is not None and sequence <= last:
            raise InvalidArgument(
                f"{self._what}: sequence {sequence} of topic {topic} was sent after {last}. Sequences must ascend in "
                "each topic, also for messages that are sent again after an error"
            )

    def _check_room(self) -> None:
        if self._bytes >= self._max_bytes:
            self._wait_for_room()
        if self._is_closed:
            raise self._closed()

    def _wait_for_room(self) -> None:
        # The taker calls the futures' callbacks, and only the taker makes room.
        is_taker = threading.current_thread() is self._taker
        self._is_adding = False
        has_room = self._room.wait_for(
            lambda: self._is_closed or self._bytes < self._max_bytes, 0.0 if is_taker else self._timeout
        )
        self._is_adding = True
        if not has_room:
            raise BufferFull(
                f"{self._what}: the buffer is full. It has {self._bytes:,} bytes of messages, and none were appended "
                f"within {self._timeout:g} s. This message was not taken: send it again later. If another process "
                "holds the store's lock (find it with lslocks), stop it. A larger buffer_bytes absorbs longer bursts"
            )

    def take(self) -> list[TopicBatch] | None:
        """Wait for messages, and return all of them. Return None if the buffer is closed and empty.

        The call also declares that the messages of all earlier calls are settled: appended or failed.
        """
        with self._lock:
            self._taker = threading.current_thread()
            self._settled = self._taken
            self._room.notify_all()
            self._work.wait_for(lambda: self._batches or self._is_closed)
            if self._linger and not self._is_urgent:
                self._work.wait_for(lambda: self._is_urgent or self._bytes >= self._batch_bytes, self._linger)
            if not self._batches:
                return None
            batches, self._batches = list(self._batches.values()), {}
            self._last_sequences |= {
                batch.topic: batch.sequences[len(batch) - 1] for batch in batches if batch.sequences
            }
            self._bytes = self._check_at = 0
            self._is_urgent = self._is_closed
            self._taken += 1
            self._room.notify_all()
            return batches

    def flush(self) -> None:
        """Wait until all messages added before are settled.

        Raises `BufferFull` in the taker's thread, which cannot wait for itself.
        """
        self.must_be_outside()
        with self._lock:
            if threading.current_thread() is self._taker:
                raise BufferFull(
                    f"{self._what}: a future's callback called flush in the thread that appends, which cannot wait "
                    "for itself. Call flush from another thread"
                )
            last = self._taken + bool(self._batches)
            self._is_urgent |= bool(self._batches)
            self._work.notify()
            self._room.wait_for(lambda: self._settled >= last or self._is_over)

    def close(self, why: StoreClosed | None = None) -> None:
        """Refuse further messages, and let `take` return the buffered ones at once.

        why: the error that `add` then raises.
        """
        with self._lock:
            self._why_closed = self._why_closed or why
            self._is_closed = self._is_urgent = True
            self._check_at = 0
            self._work.notify()
            self._room.notify_all()

    def abandon(self) -> list[TopicBatch]:
        """Close, and return the messages that were not taken."""
        with self._lock:
            self.close()
            batches, self._batches = list(self._batches.values()), {}
            return batches

    def end(self) -> None:
        """Declare that the taker has ended, so that `flush` does not wait for it."""
        with self._lock:
            self._is_over = True
            self.close()
