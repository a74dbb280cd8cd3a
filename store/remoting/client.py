"""Connections of a client: `Client` for all threads, `Pipe` for one."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimedOut
from itertools import count

from store.disk.opened import Opened
from store.model.codes import CommandFlag, ResponseCode
from store.model.errors import RequestRefused, StoreError, Unreachable
from store.remoting.command import Bytes, Command, Frames, decode, encode, encode_head
from store.remoting.connection import Connection
from store.remoting.endpoints import Tls, host_and_port, not_connected
from store.remoting.threads import LoopThread

TIMEOUT_SECONDS = 3.0
_OPAQUES = 1 << 31


class Client(Opened):
    """Sends requests to any address. Thread-safe. A context manager.

    A client connects at the first request. If a connection is lost, its unanswered requests fail, and the next request
    reconnects. A connection is closed as broken if nothing arrives on it while an answer is due.
    """

    def __init__(
        self,
        timeout: float = TIMEOUT_SECONDS,
        tls: Tls | None = None,
        on_request: Callable[[Command], None] = lambda command: None,
    ) -> None:
        """timeout: default seconds for an answer, including the time to connect. on_request: called in the connections'
        thread with each request that a broker sends.
        """
        super().__init__("a client of RocketMQ's protocol", "store.remoting.client.Client()")
        self._timeout = timeout
        self._tls = None if tls is None else tls.context()
        self._on_request = on_request
        self._thread = LoopThread("mq-client")
        self._peers: dict[str, _Peer] = {}

    def request(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, body: Bytes = b"", **how: float
    ) -> Command:
        """Send a request, and return its answer, which has code SUCCESS.

        address: "host:port". timeout: seconds. Raises `Unreachable`, and `RequestRefused` for another code.
        """
        answer = self.ask(address, code, fields, body, **how).result()
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(answer.code, answer.remark or "no remark", f"{address}, request {int(code)}: ")
        return answer

    def ask(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: Bytes = b"",
        timeout: float | None = None,
    ) -> Future[Command]:
        """Begin a request. The future returns the answer, whatever its code, or raises `Unreachable`.

        timeout: seconds, by default that of the client. Raises `BadFrame` if the request is too large.
        """
        self.must_be_open()
        command = Command(code, fields or {}, body)
        encode_head(command, len(body))  # raises if it is too large
        return self._thread.submit(self._ask(address, command, self._timeout if timeout is None else timeout))

    def tell(self, address: str, code: int, fields: Mapping[str, str] | None = None, body: Bytes = b"") -> None:
        """Send a oneway request, which has no answer. Raises `Unreachable` if there is no connection."""
        self.must_be_open()
        command = Command(code, fields or {}, body, flag=CommandFlag.ONEWAY)
        self._thread.submit(self._tell(address, command)).result()

    def close(self) -> None:
        """Close all connections. Running requests fail."""
        if not self._is_over:
            self._is_over = True
            self._thread.submit(self._close()).result()
            self._thread.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- in the loop's thread ----------------------------------------------------------------------------

    async def _ask(self, address: str, command: Command, timeout: float) -> Command:
        peer, asked = self._peer(address), time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(_retrieve)
        try:
            return await asyncio.wait_for(peer.ask(command), timeout)
        except asyncio.CancelledError as error:
            raise Unreachable(f"{address}: this client was closed before the answer came") from error
        except (TimeoutError, TimedOut) as error:
            peer.doubt(asked)
            raise Unreachable(
                f"{address}: no answer to request {int(command.code)} within {timeout:g} s. Check that a RocketMQ "
                "server listens there, and that it is not overloaded"
            ) from error

    async def _tell(self, address: str, command: Command) -> None:
        (await self._peer(address).connected()).send(command)

    def _peer(self, address: str) -> _Peer:
        return self._peers.setdefault(address, _Peer(address, self._tls, self._on_request))

    async def _close(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        for peer in self._peers.values():
            peer.close()
        await asyncio.sleep(0)


def _retrieve(task: asyncio.Task[Command]) -> None:
    """Read a task's error, so that asyncio does not log it if the caller cancelled its future."""
    if not task.cancelled():
        task.exception()


class _Peer:
    def __init__(self, address: str, tls: ssl.SSLContext | None, on_request: Callable[[Command], None]) -> None:
        self._address = address
        self._on_request = on_request
        self._tls = tls
        self._has_answered = False
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaques = count(1)

    async def ask(self, command: Command) -> Command:
        connection = await self.connected()
        command.opaque = next(self._opaques) % _OPAQUES
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = answer
        try:
            connection.send(command)
            return await answer
        finally:
            self._waiting.pop(command.opaque, None)

    async def connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_over:
                host, port = host_and_port(self._address)
                loop = asyncio.get_running_loop()
                try:
                    _, self._connection = await loop.create_connection(
                        lambda: Connection(self._received, self._lost), host, port, ssl=self._tls
                    )
                except OSError as error:
                    hint = "is a name server or broker running there?"
                    raise not_connected(self._address, error, hint, tls=self._tls is not None) from error
            return self._connection

    def doubt(self, since: float) -> None:
        """Close the connection if nothing was received after `since` (`time.monotonic()`)."""
        if self._connection is not None and self._connection.heard < since:
            self._connection.abort(TimeoutError("nothing comes on it any more"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _received(self, connection: Connection, command: Command) -> None:
        self._has_answered = True
        if not command.is_response:
            self._on_request(command)
            return
        answer = self._waiting.get(command.opaque)
        if answer is not None and not answer.done():
            answer.set_result(command)

    def _lost(self, connection: Connection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        why = f": {error}" if error is not None else ""
        if not self._has_answered and self._tls is None:
            why += ". If the server needs TLS, set useTls"
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(
                    error
                    if isinstance(error, StoreError)
                    else Unreachable(f"{self._address}: the connection was lost before the answer came{why}")
                )


_RECEIVE_BYTES = 1 << 20


class Pipe:
    """A connection for one thread, which takes half as long for a request as `Client`."""

    def __init__(self, address: str, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        """timeout: seconds, for connecting and for each answer. Raises `Unreachable`, `Untrusted`."""
        self._address = address
        self._frames = Frames()
        try:
            self._socket = _connected(host_and_port(address), timeout, tls)
        except OSError as error:
            raise not_connected(address, error, "is a broker running there?", tls=tls is not None) from error

    def send(self, commands: Iterable[Command]) -> None:
        """Send requests. Raises `Unreachable`."""
        try:
            self._socket.sendall(b"".join(map(encode, commands)))
        except OSError as error:
            raise self._unreachable(error, "the connection was lost") from error

    def receive(self) -> list[Command]:
        """Return one or more answers. Raises `Unreachable`, `BadFrame`."""
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise self._unreachable(error, "no answer came. Check that the server is not overloaded") from error
            if not data:
                raise Unreachable(
                    f"{self._address}: the connection was lost before the answer came. See the server's log"
                )
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
