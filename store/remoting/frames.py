"""A stream of bytes cut into frames, whatever pieces it comes in."""

from __future__ import annotations

from store.model.errors import BadFrame
from store.remoting.command import LENGTH, MAX_FRAME_BYTES, Bytes


class Frames:
    """The frames of one connection. It keeps what has come of one that is not whole yet, and no more."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no frame is under way."""
        return not self._buffer

    def add(self, data: Bytes) -> None:
        """Bytes that have come."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The next frame, without its length; None while it is not whole.

        Raises `BadFrame` for a length that no frame has, as soon as that is seen; nothing behind it can be understood.
        """
        buffer = self._buffer
        if len(buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(buffer)
        if not 0 < length <= MAX_FRAME_BYTES - LENGTH.size:
            raise BadFrame(
                f"a frame of {length:,} bytes: RocketMQ's have at most {MAX_FRAME_BYTES:,}; is this another "
                f"protocol? It begins with {bytes(buffer[:16])!r}"
            )
        end = LENGTH.size + length
        if len(buffer) < end:
            return None
        frame = bytes(buffer[LENGTH.size : end])
        del buffer[:end]
        return frame

    def feed(self, data: Bytes) -> list[bytes]:
        """The frames that are whole with `data`. Raises as `next`."""
        self.add(data)
        return list(iter(self.next, None))
