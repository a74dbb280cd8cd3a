from __future__ import annotations

import pytest

from store import Message, MessageStore
from store.remoting.appending import Appending
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
