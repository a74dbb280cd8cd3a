"""`Appending`: messages of many clients that arrive during an append share the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from store.api.message_store import MessageStore
from store.api.writer import Append
from store.append.placing import AppendResult
from store.format.message import Message
from store.model.errors import StoreError, UnknownTopic
from store.remoting.threads import settle, without_frames

Fields = Mapping[str, npt.ArrayLike]
_MOST_WAITING = 10_000  # messages; an empty one takes 270 bytes of memory


class _Waiting(NamedTuple):
    messages: Sequence[Message]
    fields: Fields
    new_queues: int
    appended: Future[AppendResult]


class Appending:
    """Runs appends in a thread, one after the other. If a message is refused, the others of its append are appended."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "mq-append")
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()

    def append(self, messages: Sequence[Message], fields: Fields, new_queues: int) -> Future[AppendResult]:
        """Append messages of one topic next to each other. The future returns their places after readers see them.

        fields: the fields of their record headers, with the same names in every call, see `Append.add_messages`.
        new_queues: with how many queues to create a missing topic; 0: do not create it.

        The future raises as `MessageStore.put`.
        """
        appended: Future[AppendResult] = Future()
        with self._changed:
            if not self._waiting:
                self._thread.submit(self._append_waiting)  # first, so that no message waits if no thread can start
            self._waiting.append(_Waiting(messages, fields, new_queues, appended))
        return appended

    def wait_for_space(self) -> None:
        """Block until fewer than 10,000 messages wait for an append."""
        with self._changed:
            self._changed.wait_for(lambda: sum(len(each.messages) for each in self._waiting) < _MOST_WAITING)

    def stop(self) -> None:
        """Append the waiting messages, and end the thread."""
        self._thread.shutdown()

    def _append_waiting(self) -> None:
        later: list[_Waiting] = []
        while True:
            with self._changed:
                waiting = [*later, *self._waiting]
                self._waiting.clear()
                self._changed.notify_all()
            if not waiting:  # an earlier job, for which no thread could start, appended them
                return
            later = self._append_all(waiting)
            if not later:
                return

    def _append_all(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Return the messages that must wait for the next append."""
        together: Future[AppendResult] = Future()
        later: list[_Waiting] = []
        settle(together, lambda: self._append(waiting, later))
        postponed, first = {each.appended for each in later}, 0
        for each in waiting:
            if each.appended.done() or each.appended in postponed:  # done: refused alone
                continue
            rows = slice(first, first := first + len(each.messages))
            settle(each.appended, partial(_some, together, rows))
        return later

    def _append(self, waiting: list[_Waiting], later: list[_Waiting]) -> AppendResult:
        append = self._store.begin()
        try:
            append.add_messages(*_all_of(waiting))  # one call, which is faster
        except StoreError:
            append = self._each(waiting, later)
        try:
            return append.publish()
        except UnknownTopic:  # deleted concurrently
            later.clear()
            return self._each(waiting, later).publish()

    def _each(self, waiting: list[_Waiting], later: list[_Waiting]) -> Append:
        """Create the first missing topic, and add messages to other missing topics to `later`.

        Each new topic rewrites the file of all topics, so creating many in one append would delay the other senders.
        """
        append, topics, may_create = self._store.begin(), set(self._store.topics()), True
        for each in waiting:
            if each.appended.done():
                continue
            topic = each.messages[0].topic
            try:
                if each.new_queues and topic not in topics:
                    if not may_create:
                        later.append(each)
                        continue
                    may_create = False
                    self._store.create_topic(topic, each.new_queues)
                    topics.add(topic)
                append.add_messages(each.messages, each.fields)
            except StoreError as error:
                each.appended.set_exception(without_frames(error))
        return append


def _all_of(waiting: list[_Waiting]) -> tuple[list[Message], Fields]:
    counts = [len(each.messages) for each in waiting]
    fields = {
        name: np.repeat(np.array([each.fields[name] for each in waiting]), counts, axis=0) for name in waiting[0].fields
    }
    return [message for each in waiting for message in each.messages], fields


def _some(together: Future[AppendResult], rows: slice) -> AppendResult:
    placed = together.result()
    return AppendResult(placed.queue_ids[rows], placed.queue_offsets[rows], placed.physical_offsets[rows])
