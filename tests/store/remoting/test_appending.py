from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from store import Message, MessageStore
from store.remoting.appending import _MOST_WAITING, Appending
from tests.waiting import PATIENCE


def test_sends_continue_after_a_thread_failed_to_start(store: MessageStore, no_thread_once: None) -> None:
    appending = Appending(store)
    with pytest.raises(RuntimeError, match="new thread"):
        appending.append([Message("orders", b"refused", queue_id=0)], {}, 0)
    for body in (b"one", b"two"):
        placed = appending.append([Message("orders", body, queue_id=0)], {}, 0).result(PATIENCE)
        assert len(placed) == 1
    appending.stop()
    assert [message.body for message in store.get_message("g", "orders", 0, 0).messages] == [b"one", b"two"]


class Slow(list[Message]):
    """Messages that cannot be appended until `may_end` is set."""

    def __init__(self, messages: Iterable[Message]) -> None:
        super().__init__(messages)
        self.began, self.may_end = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Message]:
        self.began.set()
        assert self.may_end.wait(PATIENCE)
        return super().__iter__()


def test_batch_waits_while_many_messages_wait_for_an_append(store: MessageStore) -> None:
    appending, message = Appending(store), Message("orders", b"", queue_id=0)
    first = Slow([message])
    with ThreadPoolExecutor(1) as thread:
        appending.append(first, {}, 0)
        assert first.began.wait(PATIENCE)
        others = appending.append([message] * _MOST_WAITING, {}, 0)
        space = thread.submit(appending.wait_for_space)
        assert not wait([space], timeout=0.1).done
        first.may_end.set()
        space.result(PATIENCE)
        assert len(others.result(PATIENCE)) == _MOST_WAITING
    appending.stop()
