"""A thread that runs an event loop, and what other threads ask of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


def settle(waiting: Future[Result], work: Callable[[], Result]) -> None:
    """Give `waiting` what `work` answers, or what it raises, whatever that is: nobody may wait for ever."""
    try:
        result = work()
    except BaseException as error:
        waiting.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        waiting.set_result(result)


class LoopThread:
    """An event loop in a daemon thread of this process, until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin `work` in the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Callable[..., object], *arguments: object) -> None:
        """Call `work` in the loop's thread, soon; a loop that is over does nothing any more."""
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(work, *arguments)
            except RuntimeError:  # it was closed just now
                if not self.loop.is_closed():
                    raise

    def stop(self) -> None:
        """End the loop and its thread; what is under way in it is cancelled."""
        self.call(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()
