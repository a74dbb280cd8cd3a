from __future__ import annotations

import asyncio
from collections.abc import Iterable

from store.model.codes import RequestCode
from store.remoting.command import Bytes, Command
from store.remoting.connection import Connection


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.pieces: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def writelines(self, pieces: Iterable[Bytes]) -> None:
        self.pieces += map(bytes, pieces)


def test_empty_data_is_not_written() -> None:
    """Since Python 3.12 asyncio retries an empty write forever: the loop would spin and the connection never close."""
    written = Written()

    async def send() -> None:
        connection = Connection(lambda *_: None, lambda *_: None)
        connection.connection_made(written)
        for is_stuck in (False, True):
            if is_stuck:
                connection.pause_writing()
            connection.send(Command(RequestCode.HEART_BEAT, {}))
            connection.send(Command(RequestCode.HEART_BEAT, {}), (b"", b"body", b""))
        connection.resume_writing()

    asyncio.run(send())
    assert len(written.pieces) == 6
    assert written.pieces.count(b"body") == 2
    assert all(written.pieces)
