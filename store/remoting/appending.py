"""Messages of many clients on their way into the store: what comes while one append is under way goes into the next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy.typing as npt

from store import Append, AppendResult, Message, MessageStore, StoreError, UnknownQueue, UnknownTopic

Fields = Mapping[str, npt.ArrayLike]


class _Waiting(NamedTuple):
    messages: Sequence[Message]
    fields: Fields
    new_queues: int
    appended: Future[AppendResult]


class Appending:
    """One append after the other, in a thread of its own; a message that is refused is refused alone."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "mq-append")
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def append(self, messages: Sequence[Message], fields: Fields, new_queues: int) -> Future[AppendResult]:
        """Append messages of one topic side by side; fields: of their records' headers, see `Append.add_messages`.

        new_queues: with how many queues the topic is made if it is not there; 0: it is not made. Where they went, once
        readers see them; or what `MessageStore.put` raises.
        """
        appended: Future[AppendResult] = Future()
        with self._lock:
            self._waiting.append(_Waiting(messages, fields, new_queues, appended))
            if len(self._waiting) == 1:
                self._thread.submit(self._append_waiting)
        return appended

    def stop(self) -> None:
        """After what is waiting was appended."""
        self._thread.shutdown()

    def _append_waiting(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        ready: list[_Waiting] = []
        try:
            append = self._store.begin()
            for each in waiting:
                try:
                    self._add(append, each)
                    ready.append(each)
                except StoreError as error:
                    each.appended.set_exception(error)
            placed = append.publish() if ready else None
        except StoreError as error:
            for each in waiting:
                if not each.appended.done():
                    each.appended.set_exception(error)
            return
        first = 0
        for each in ready:
            assert placed is not None
            rows = slice(first, first := first + len(each.messages))
            each.appended.set_result(
                AppendResult(placed.queue_ids[rows], placed.queue_offsets[rows], placed.physical_offsets[rows])
            )

    def _add(self, append: Append, each: _Waiting) -> None:
        try:
            append.add_messages(each.messages, each.fields)
        except UnknownQueue:
            raise
        except UnknownTopic:
            if not each.new_queues:
                raise
            self._store.create_topic(each.messages[0].topic, each.new_queues)
            append.add_messages(each.messages, each.fields)
