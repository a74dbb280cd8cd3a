"""A connection that one thread has for itself: requests go out together, answers are read as they come."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable

from store.model.errors import Unreachable
from store.remoting.addresses import host_and_port
from store.remoting.command import Command, decode, encode
from store.remoting.frames import Frames
from store.remoting.tls import not_connected

_RECEIVE_BYTES = 1 << 20


class Pipe:
    """To be closed. Without a thread of its own and without a queue between two, it takes half the time of `Client`."""

    def __init__(self, address: str, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        """timeout: seconds, for the connection and for each answer. Raises `Unreachable`, `Untrusted`."""
        self._address = address
        self._frames = Frames()
        try:
            self._socket = _connected(host_and_port(address), timeout, tls)
        except OSError as error:
            raise not_connected(address, error, "is a broker running there?", tls=tls is not None) from error

    def send(self, commands: Iterable[Command]) -> None:
        """Raises `Unreachable`."""
        try:
            self._socket.sendall(b"".join(map(encode, commands)))
        except OSError as error:
            raise self._unreachable(error, "the connection was lost") from error

    def receive(self) -> list[Command]:
        """The next answers, one at least. Raises `Unreachable`, `BadFrame`."""
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise self._unreachable(error, "no answer came; is it busy?") from error
            if not data:
                raise Unreachable(f"{self._address}: the connection was lost before the answer came")
            if frames := self._frames.feed(data):
                return [command for frame in frames if (command := decode(frame)).is_response]

    def close(self) -> None:
        self._socket.close()

    def _unreachable(self, error: OSError, hint: str) -> Unreachable:
        return Unreachable(f"{self._address}: {error.strerror or error}; {hint}")


def _connected(where: tuple[str, int], timeout: float, tls: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection(where, timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if tls is None else tls.wrap_socket(plain, server_hostname=where[0])
    except BaseException:
        plain.close()
        raise
