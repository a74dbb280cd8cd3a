"""A stream of bytes cut into frames, whatever pieces it comes in."""

from __future__ import annotations

from store.errors import BadFrame
from store.remoting.command import LENGTH, MAX_FRAME_BYTES, Bytes


class Frames:
    """The frames of one connection. It keeps what has come of one that is not whole yet, and no more."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no frame is under way."""
        return not self._buffer

    def feed(self, data: Bytes) -> list[bytes]:
        """The frames that are whole with `data`, each without its length.

        Raises `BadFrame` for a length that no frame has, as soon as that is seen; nothing behind it can be understood.
        """
        buffer = self._buffer
        buffer += data
        frames, at = [], 0
        while len(buffer) - at >= LENGTH.size:
            begin = at + LENGTH.size
            (length,) = LENGTH.unpack_from(buffer, at)
            if not 0 < length <= MAX_FRAME_BYTES - LENGTH.size:
                raise BadFrame(
                    f"a frame of {length:,} bytes: RocketMQ's have at most {MAX_FRAME_BYTES:,}; is this another "
                    f"protocol? It begins with {bytes(buffer[at : at + 16])!r}"
                )
            if len(buffer) - begin < length:
                break
            frames.append(bytes(buffer[begin : begin + length]))
            at = begin + length
        del buffer[:at]
        return frames
