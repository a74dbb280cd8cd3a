from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from store import Message, MessageStore
from store.api.group_protocol import Subscription
from store.cluster.address import ClusterAddress
from store.model.errors import StoreBusy
from store.model.log_protocol import Queue
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import _every, serve
from tests.children import in_a_child


def test_periodic_work_continues_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    raised: list[Exception] = [OSError(28, "No space left on device"), StoreBusy("busy"), ZeroDivisionError("a fault")]
    left = list(raised)

    async def until_none_is_left() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def step() -> None:
            if left:
                raise left.pop()
            loop.call_soon_threadsafe(done.set)

        every = asyncio.create_task(_every(0.001, step))
        await asyncio.wait([every, waiting := asyncio.create_task(done.wait())], return_when=asyncio.FIRST_COMPLETED)
        assert waiting.done()
        every.cancel()
        with suppress(asyncio.CancelledError):
            await every

    asyncio.run(until_none_is_left())
    assert all(str(error) in caplog.text for error in raised)


def test_forked_child_closes_nothing_of_its_parent(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    store.put(Message("orders", b"x", queue_id=1))
    queue = Queue("orders", 1, broker=BrokerConfig.brokerName)
    with serve(store, "127.0.0.1:0") as serving:
        with ClusterAddress((serving.address,)).group("g").join({"orders": Subscription()}) as member:
            assert member.lock([queue]) == {queue}
            member.commit({queue: 1})
        assert in_a_child(lambda: (serving.close(), caplog.text)) == "(None, '')"
