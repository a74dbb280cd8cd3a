"""What a server does again and again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from store.errors import StoreBusy
from store.remoting.serving import _every


def test_what_is_done_every_now_and_then_is_done_again_whatever_it_raises(caplog: pytest.LogCaptureFixture) -> None:
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
