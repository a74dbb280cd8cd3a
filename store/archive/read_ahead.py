"""Bytes of an archive, on their way before they are asked for: so many requests take as long as one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from store.format.strings import Bytes

Read = Callable[[int, int], bytes]  # bytes [begin, end)


class ReadAhead:
    """Bytes [begin, end) of a file, for one who reads them in order: `ahead` pieces of `piece` bytes are under way, and
    no more are held than those and what is being read. One thread uses it."""

    def __init__(self, read: Read, begin: int, end: int, piece: int, ahead: int, pool: ThreadPoolExecutor) -> None:
        self._read = read
        self._begin = begin
        self._end = end
        self._piece = piece
        self._ahead = ahead
        self._pool = pool
        self._pieces: dict[int, Future[bytes]] = {}

    def view(self, offset: int, length: int) -> Bytes:
        """Bytes [offset, offset + length), uint8. Raises what `read` raises."""
        if not self._begin <= offset <= offset + length <= self._end:
            return np.frombuffer(self._read(offset, offset + length), np.uint8)
        first, last = self._number(offset), self._number(max(offset, offset + length - 1))
        self._pieces = {number: piece for number, piece in self._pieces.items() if number >= first}
        for number in range(first, min(last + 1 + self._ahead, self._number(self._end - 1) + 1)):
            if number not in self._pieces:
                at = self._begin + number * self._piece
                self._pieces[number] = self._pool.submit(self._read, at, min(at + self._piece, self._end))
        parts = [np.frombuffer(self._pieces[number].result(), np.uint8) for number in range(first, last + 1)]
        skipped = offset - self._begin - first * self._piece
        return (parts[0] if len(parts) == 1 else np.concatenate(parts))[skipped : skipped + length]

    def _number(self, offset: int) -> int:
        return (offset - self._begin) // self._piece
