"""A connection of a client or a server: commands in, commands out."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from store.model.errors import BadFrame
from store.remoting.command import MAX_FRAME_BYTES, Bytes, Command, Frames, decode, encode_head

Secure = Callable[[asyncio.Transport, asyncio.Protocol], Awaitable[asyncio.Transport | None]]
_WRITTEN_BYTES = 64 << 10  # in one write
_logger = logging.getLogger("store.remoting")


class Connection(asyncio.Protocol):
    """A connection, used in the thread of its event loop.

    frames: received bytes that are not a complete frame or not handled yet.
    peer, here: "host:port" of both ends.
    ip, port: of the peer if it has an IPv4 address.
    heard: `time.monotonic()` when data last arrived.
    stuck_since: `time.monotonic()` since when the connection waits for the rest of a frame, or for the peer to read;
    None if it does not.
    account: the access key of the last signed request.
    is_over: set before `lost` is called.
    """

    def __init__(
        self,
        received: Callable[[Connection, Command], None],
        lost: Callable[[Connection, Exception | None], None],
        made: Callable[[Connection], None] = lambda connection: None,
        fed: Callable[[Connection], None] = lambda connection: None,
        secure: Secure | None = None,
    ) -> None:
        """received: called with each command.
        lost: called once, with the reason.
        made: called before TLS begins.
        fed: called when received data was handled.
        secure: begins TLS, as a loop's `start_tls` does.
        """
        self._received = received
        self._lost = lost
        self._made = made
        self._fed = fed
        self._secure = secure
        self.frames = Frames()
        self._reasons_to_pause = 0
        self._unsent: deque[Bytes] = deque()
        self._unsent_bytes = 0
        self._error: Exception | None = None
        self.max_frame_bytes = MAX_FRAME_BYTES
        self.max_read_bytes = 256 << 10
        self.peer = self.here = self.host = ""
        self.account: str | None = None
        self.ip = b""
        self.port = 0
        self.heard = time.monotonic()
        self.stuck_since: float | None = None
        self.is_stuck_writing = False
        self.is_over = False

    def send(self, command: Command, body: Sequence[Bytes] = ()) -> None:
        """Send a command. The pieces of `body`, if any, replace its own body. Raises `BadFrame` if it is too large.

        Commands of one iteration of the loop are written together. While the peer does not read, pieces wait here,
        because a transport would copy them all.
        """
        pieces = body or (command.body,)
        body_bytes = sum(map(len, pieces))
        head = encode_head(command, body_bytes)
        if self._transport.is_closing():
            return
        if not self._unsent:
            self._loop.call_soon(self._write)
        # Drop empty pieces: from Python 3.12 on, the loop spins forever on a last empty piece.
        self._unsent += head, *filter(len, pieces)
        self._unsent_bytes += len(head) + body_bytes
        if self._unsent_bytes >= _WRITTEN_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the waiting pieces, in portions of about the size at which a transport asks to pause."""
        while self._unsent and not self.is_stuck_writing and not self._transport.is_closing():
            pieces, size = [], 0
            while self._unsent and size < _WRITTEN_BYTES:
                pieces.append(self._unsent.popleft())
                size += len(pieces[-1])
            self._unsent_bytes -= size
            self._transport.writelines(pieces)

    def send_soon(self, command: Command) -> None:
        """Call `send` in the loop's thread. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.send, command)

    def pause(self) -> None:
        """Handle no commands until `resume` was called as often as `pause`."""
        self._reasons_to_pause += 1
        if self._reasons_to_pause == 1 and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        self._reasons_to_pause -= 1
        if self._reasons_to_pause == 0 and not self._transport.is_closing():
            self._transport.resume_reading()
            self._loop.call_soon(self._handle_frames)

    def close(self) -> None:
        """Write all sent commands, then close."""
        if self._unsent and not self._transport.is_closing():
            self._transport.writelines(self._unsent)
        self._transport.close()

    def abort(self, why: Exception) -> None:
        self._error = self._error or why
        self.frames = Frames()
        self._transport.abort()

    # --- asyncio's ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.peer, self.here = (_text(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        self.host = self.peer.rpartition(":")[0]
        with suppress(ValueError):  # IPv6 is not recorded
            host, self.port = transport.get_extra_info("peername")[:2]
            self.ip = ipaddress.IPv4Address(host.removeprefix("::ffff:")).packed
        self._made(self)
        self._transport.max_size = self.max_read_bytes  # type: ignore[attr-defined]
        if self._secure is not None and not self._transport.is_closing():
            self.pause()
            self._securing = self._loop.create_task(self._begin_tls(self._secure))

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        self.frames.add(data)
        self._handle_frames()
        self._fed(self)

    def pause_writing(self) -> None:
        self.is_stuck_writing = True
        self.stuck_since = self.stuck_since or time.monotonic()
        self.pause()

    def resume_writing(self) -> None:
        self.is_stuck_writing = False
        self.stuck_since = None
        self.resume()
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_over:  # `_begin_tls` called this, because asyncio does not always do
            return
        self.is_over = True
        self._unsent.clear()
        self._lost(self, self._error or exc)

    async def _begin_tls(self, secure: Secure) -> None:
        """Establish TLS. Until then, no command is handled or sent."""
        if self._transport.is_closing():
            return
        try:
            secured = await secure(self._transport, self)
        except OSError as error:
            self.connection_lost(error)
            return
        if secured is None:  # closed concurrently
            self.connection_lost(None)
            return
        self._transport = secured
        self.resume()

    def _handle_frames(self) -> None:
        is_new = False
        try:
            while (
                not self._reasons_to_pause
                and not self.is_over
                and (frame := self.frames.next(self.max_frame_bytes)) is not None
            ):
                is_new = True
                self._received(self, decode(frame))
        except BadFrame as error:
            _logger.warning("%s: connection closed: %s", self.peer, error)
            self.abort(error)
        if self.is_stuck_writing:
            return
        if not self.frames or self._reasons_to_pause:
            self.stuck_since = None
        elif is_new or self.stuck_since is None:  # the wait for the rest of a frame begins
            self.stuck_since = time.monotonic()


def _text(name: Any) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
