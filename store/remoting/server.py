"""Listening: connections, their limits, and each request on its way to the processor that answers it."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from ssl import SSLContext
from typing import Any

from store.files.figures import BAD_FRAME, CROWDED, STUCK, Figures
from store.files.opened import Opened
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.model.errors import BadFrame, RemotingError, StoreError, StoreUnavailable, Unreachable
from store.remoting.command import Command
from store.remoting.connection import Connection, Secure
from store.remoting.endpoints import host_and_port
from store.remoting.request import Handler, Request, Response, refusal
from store.remoting.threads import LEAVE_SECONDS, LoopThread, Turns

_logger = logging.getLogger("store.remoting")
_SWEEP_SECONDS = 1.0
_THREADS = 8
# Of one connection these are done in the order in which they came, for that is what they mean: a client sets its group
# back and asks at once where it is, gives a queue's lock back and takes it again, and leaves when all else is said.
_IN_ORDER = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.UNREGISTER_CLIENT,
)


@dataclass(frozen=True)
class ServerLimits:
    """What a server takes from its clients.

    connections: as many at a time, and no more than half of the descriptors that the process may have: the rest is the
    store's; more are closed at once. requests, body_bytes: of one connection, under way at a
    time; it is not read on until some are answered. idle_seconds: without a word a connection is closed.
    stuck_seconds: likewise one that does not end a frame it began, or does not read what it asked for.
    """

    connections: int = 4096
    requests: int = 16_384
    body_bytes: int = 32 << 20
    idle_seconds: float = 120.0
    stuck_seconds: float = 30.0


@dataclass(frozen=True)
class Processors:
    """The handlers by request code.

    quick: run in the loop's thread, so they must not wait for anything; they return None for a request that needs a
    worker. waiting: run in workers, where connections take turns. lost: called with each connection that is over, in
    the loop's thread. check: raises `RequestRefused` for a request that its sender may not make.
    """

    quick: Mapping[int, Handler]
    waiting: Mapping[int, Handler]
    lost: Callable[[Connection], None]
    check: Callable[[Request], None] = lambda request: None


class Server(Opened):
    """Listens, in a thread of its own, until `close`. address: "host:port", the port that it got."""

    def __init__(
        self,
        thread: LoopThread,
        processors: Processors,
        listen: str,
        limits: ServerLimits,
        tls: SSLContext | None,
        figures: Figures,
    ) -> None:
        """figures: count the connections that were refused.

        Raises `InvalidArgument` for no address, `StoreUnavailable` for one that cannot be listened at."""
        super().__init__(f"a server at {listen}", "store.remoting.serving.serve")
        self._thread = thread
        self._processors = processors
        self._limits = limits
        self._tls = tls
        self._figures = figures
        self._turns = Turns(_THREADS, "mq-serve")
        self._under_way: dict[Connection, _UnderWay] = {}
        try:
            self._listening, self.address = thread.submit(self._listen(*host_and_port(listen))).result()
        except OSError as error:
            raise StoreUnavailable(f"{listen}: cannot listen there: {error.strerror}; choose another port") from error

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._under_way)

    def close(self, stop: Callable[[], None] = lambda: None) -> None:
        """Take no more connections, answer what is under way (see `Turns.close`), and close; the second time this does
        nothing.

        stop: makes those answer that wait for something; called once no more connections come.
        """
        if self._is_over:
            return
        self._is_over = True
        self._thread.submit(self._stop_listening()).result()
        self._turns.close()
        stop()
        self._thread.submit(self._leave()).result()

    # --- in the loop's thread ----------------------------------------------------------------------------

    async def _listen(self, host: str, port: int) -> tuple[asyncio.Server, str]:
        loop = asyncio.get_running_loop()
        secure: Secure | None = None
        if self._tls is not None:  # not by the listener, which would not tell of those who never end the handshake
            seconds = self._limits.stuck_seconds
            secure = partial(loop.start_tls, sslcontext=self._tls, server_side=True, ssl_handshake_timeout=seconds)
        server = await loop.create_server(
            lambda: Connection(self._received, self._lost, self._made, secure), host, port
        )
        self._sweeping = loop.create_task(self._sweep())
        named = server.sockets[0].getsockname()
        return server, f"[{named[0]}]:{named[1]}" if ":" in named[0] else f"{named[0]}:{named[1]}"

    async def _stop_listening(self) -> None:
        self._listening.close()
        self._sweeping.cancel()

    async def _leave(self) -> None:
        deadline = time.monotonic() + LEAVE_SECONDS
        while any(each.requests for each in self._under_way.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._under_way):
            connection.close()
        while self._under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._under_way):
            connection.abort(Unreachable("the server is leaving"))
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Close connections that are idle, or stuck."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._turns.look()
            now, limits = time.monotonic(), self._limits
            for connection, under_way in list(self._under_way.items()):
                stuck = now - (connection.stuck_since or now)
                idle = 0 if under_way.requests else now - connection.heard
                if stuck > limits.stuck_seconds or idle > limits.idle_seconds:
                    if stuck > limits.stuck_seconds:
                        self._figures.of(STUCK).change(1)
                    _logger.info("%s: closed: idle for %.0f s, stuck for %.0f s", connection.peer, idle, stuck)
                    connection.abort(RemotingError(f"{connection.peer}: idle or stuck"))

    def _made(self, connection: Connection) -> None:
        self._under_way[connection] = _UnderWay()
        if len(self._under_way) > (most := min(self._limits.connections, _descriptors() // 2)):
            self._figures.of(CROWDED).change(1)
            _logger.warning("%s: closed: %d connections are enough", connection.peer, most)
            connection.abort(RemotingError(f"{connection.peer}: too many connections"))

    def _lost(self, connection: Connection, error: Exception | None) -> None:
        if isinstance(error, BadFrame):
            self._figures.of(BAD_FRAME).change(1)
        self._under_way.pop(connection, None)
        self._processors.lost(connection)

    def _received(self, connection: Connection, command: Command) -> None:
        if command.is_response:  # to something that this asked; nothing waits for any
            return
        request = Request(command, connection)
        try:
            self._processors.check(request)
            if self._is_over:
                answer: Any = Response(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is leaving")
            else:
                answer = self._begun(request)
        except StoreError as error:
            answer = refusal(error)
        if isinstance(answer, Response):
            self._answer(request, answer)
            return
        self._begin(request)
        answer.add_done_callback(lambda done: self._thread.call(self._end, request, done))

    def _begun(self, request: Request) -> Any:
        """Return the response, or a future of it."""
        code, answer = request.command.code, None
        if (quick := self._processors.quick.get(code)) is not None:
            answer = quick(request)
        if answer is None and (waiting := self._processors.waiting.get(code)) is not None:
            work = partial(waiting, request)
            answer = self._turns.begin(request.connection, work, after_others=code in _IN_ORDER)
        if answer is None:
            remark = f"[BROKER_NOT_SUPPORT] request type {code} not supported"
            answer = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return answer

    def _begin(self, request: Request) -> None:
        under_way = self._under_way.get(request.connection)
        if under_way is not None:
            under_way.add(1, len(request.command.body))
            if not under_way.is_paused and under_way.is_beyond(self._limits):
                under_way.is_paused = True
                request.connection.pause()

    def _end(self, request: Request, done: Future[Response]) -> None:
        if done.exception() is None and isinstance(later := done.result(), Future):
            later.add_done_callback(lambda done: self._thread.call(self._end, request, done))
            return
        under_way = self._under_way.get(request.connection)
        if under_way is None:  # the client is gone
            return
        under_way.add(-1, -len(request.command.body))
        if under_way.is_paused and not under_way.is_beyond(self._limits):
            under_way.is_paused = False
            request.connection.resume()
        error = done.exception()
        if error is None:
            self._answer(request, done.result())
        elif isinstance(error, StoreError):
            self._answer(request, refusal(error))
        else:
            _logger.error("request %d of %s", request.command.code, request.connection.peer, exc_info=error)
            self._answer(request, Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))

    def _answer(self, request: Request, response: Response) -> None:
        asked = request.command
        if asked.is_oneway:
            return
        command = Command(
            response.code,
            {} if response.header is None else response.header.texts(),
            remark=response.remark,
            opaque=asked.opaque,
            flag=CommandFlag.RESPONSE,
            serialization=asked.serialization,
        )
        try:
            request.connection.send(command, response.body)
        except BadFrame as error:
            refused = refusal(error)
            command.code, command.remark, command.fields = refused.code, refused.remark, {}
            request.connection.send(command)


def _descriptors() -> int:
    """How many the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


@dataclass(slots=True)
class _UnderWay:
    """What of one connection is not answered yet."""

    requests: int = 0
    body_bytes: int = 0
    is_paused: bool = False

    def add(self, requests: int, body_bytes: int) -> None:
        self.requests += requests
        self.body_bytes += body_bytes

    def is_beyond(self, limits: ServerLimits) -> bool:
        return self.requests >= limits.requests or self.body_bytes >= limits.body_bytes
