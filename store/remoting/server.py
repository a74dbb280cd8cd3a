"""`Server`: listens for connections, and passes each request to its handler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from ssl import SSLContext
from typing import Any

from store.disk.figures import BAD_FRAME, Figures
from store.disk.opened import Opened
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.model.errors import BadFrame, StoreError, StoreUnavailable, Unreachable
from store.remoting.command import Command
from store.remoting.connection import Connection, Secure
from store.remoting.endpoints import host_and_port
from store.remoting.intake import Intake, ServerLimits
from store.remoting.request import Handler, Request, Response, refusal
from store.remoting.threads import LEAVE_SECONDS, LoopThread, WorkerPool

_logger = logging.getLogger("store.remoting")
_SWEEP_SECONDS = 1.0
_SURVEY_THREADS = 2  # one of them for one connection at most
# Handled in order for each connection: a client resets its group and at once asks for its offset, releases and locks a
# queue again, and unregisters last.
_IN_ORDER = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.UNREGISTER_CLIENT,
)
# Their work grows with the store, so they have separate threads.
_SURVEYS = frozenset(
    {
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_MESSAGE,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)


_HELD = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


@dataclass(frozen=True)
class Processors:
    """The handlers of requests, by code.

    quick: run in the loop's thread, so they must not block. They return None if a worker must handle the request.
    waiting: run in `workers`, and may block.
    lost: called in the loop's thread with each closed connection.
    check: raises `RequestRefused` if the sender may not make a request; None allows all.
    """

    workers: WorkerPool
    quick: Mapping[int, Handler]
    waiting: Mapping[int, Handler]
    lost: Callable[[Connection], None]
    check: Callable[[Request], None] | None = None


class Server(Opened):
    """A server that listens in its own thread until `close`. address: "host:port", with the actual port."""

    def __init__(
        self,
        thread: LoopThread,
        processors: Processors,
        listen: str,
        limits: ServerLimits,
        tls: SSLContext | None,
        figures: Figures,
    ) -> None:
        super().__init__(f"a server at {listen}", "store.remoting.serving.serve")
        self._thread = thread
        self._processors = processors
        self._stuck_seconds = limits.stuck_seconds
        self._tls = tls
        self._figures = figures
        self._workers = processors.workers
        self._surveys = WorkerPool(_SURVEY_THREADS, "mq-survey")
        self._intake = Intake(limits, figures, wants_proof=processors.check is not None)
        try:
            self._listening, self.address = thread.submit(self._listen(*host_and_port(listen))).result()
        except OSError as error:
            raise StoreUnavailable(
                f"{listen}: cannot listen on this address: {error.strerror}. Choose another address or port"
            ) from error

    @property
    def connections(self) -> int:
        return len(self._intake)

    def close(self, stop: Callable[[], None] = lambda: None) -> None:
        """Stop listening, and answer running requests, see `WorkerPool.close`. stop: called to answer held ones."""
        if self._is_over:
            return
        self._is_over = True
        self._thread.submit(self._stop_listening()).result()
        self._workers.close()
        self._surveys.close()
        stop()
        self._thread.submit(self._leave()).result()

    # --- in the loop's thread ----------------------------------------------------------------------------

    async def _listen(self, host: str, port: int) -> tuple[asyncio.Server, str]:
        loop = asyncio.get_running_loop()
        secure: Secure | None = None
        if self._tls is not None:  # not by the listener, which does not report unfinished handshakes
            seconds = self._stuck_seconds
            secure = partial(loop.start_tls, sslcontext=self._tls, server_side=True, ssl_handshake_timeout=seconds)
        server = await loop.create_server(
            lambda: Connection(self._received, self._lost, self._intake.add, self._intake.fed, secure), host, port
        )
        self._sweeping = loop.create_task(self._sweep())
        named = server.sockets[0].getsockname()
        return server, f"[{named[0]}]:{named[1]}" if ":" in named[0] else f"{named[0]}:{named[1]}"

    async def _stop_listening(self) -> None:
        self._listening.close()
        self._sweeping.cancel()

    async def _leave(self) -> None:
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._intake.has_requests and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in self._intake:
            connection.close()
        while len(self._intake) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in self._intake:
            connection.abort(Unreachable("the server is leaving"))
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._workers.look()
            self._surveys.look()
            self._intake.sweep()

    def _lost(self, connection: Connection, error: Exception | None) -> None:
        if isinstance(error, BadFrame):
            self._figures.of(BAD_FRAME).change(1)
        self._intake.remove(connection)
        self._processors.lost(connection)

    def _received(self, connection: Connection, command: Command) -> None:
        if command.is_response:  # to a request of this server, which expects none
            return
        request = Request(command, connection)
        try:
            if self._processors.check is not None:
                self._processors.check(request)
                self._intake.prove(connection)
            if self._is_over:
                answer: Any = Response(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is leaving")
            else:
                answer, is_in_worker = self._begun(request)
        except StoreError as error:
            answer = refusal(error)
        if isinstance(answer, Response):
            self._answer(request, answer)
            return
        self._intake.begin(request)
        if command.code in _HELD and not is_in_worker:
            self._intake.hold(request)
        answer.add_done_callback(lambda done: self._thread.call(self._end, request, done))

    def _begun(self, request: Request) -> tuple[Any, bool]:
        """Return the response, or its future, and whether a worker runs it."""
        code = request.command.code
        if (quick := self._processors.quick.get(code)) is not None and (answer := quick(request)) is not None:
            for workers in (self._workers, self._surveys):
                workers.quick_requests += 1
            return answer, False
        if (waiting := self._processors.waiting.get(code)) is not None:
            work, workers = partial(waiting, request), self._surveys if code in _SURVEYS else self._workers
            return workers.begin(request.connection, work, after_others=code in _IN_ORDER), True
        remark = f"[BROKER_NOT_SUPPORT] request type {code} not supported"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark), False

    def _end(self, request: Request, done: Future[Response]) -> None:
        if done.exception() is None and isinstance(later := done.result(), Future):
            if request.command.code in _HELD:
                self._intake.hold(request)
            later.add_done_callback(lambda done: self._thread.call(self._end, request, done))
            return
        if not self._intake.end(request):
            return
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
