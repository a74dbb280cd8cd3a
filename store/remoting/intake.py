"""Limits of the connections and memory that clients can take."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from store.disk.figures import CROWDED, STUCK, Figures
from store.model.errors import RemotingError
from store.remoting.command import MAX_FRAME_BYTES
from store.remoting.connection import Connection
from store.remoting.request import Request

_READ_BYTES = 64 << 10  # in one read; as much of each connection may wait unhandled
_REQUEST_BYTES = 2048  # of memory for an unanswered request beside its frame
_logger = logging.getLogger("store.remoting")


@dataclass(frozen=True)
class ServerLimits:
    """What a server accepts from its clients.

    connections: the maximum number of connections. The limit is never more than half of the process's file descriptors,
    because the store needs the rest. Over the limit, the newest connection of the address with most connections is
    closed.
    requests, body_bytes: for one connection, the maximum number of unanswered requests, and of bytes in their bodies.
    At either limit, the connection is not read.
    memory_bytes: for all connections. Half is for unanswered requests, except held pulls; when it is used up, no
    connection is read. The other half is for unfinished frames; when it is used up, the connection with the largest
    frame is closed.
    unproven_frame_bytes: with accounts, the largest frame before a correctly signed request. A message of 4 MiB fits.
    idle_seconds: a connection without requests for so long is closed.
    stuck_seconds: a connection that does not finish a frame or read its answers for so long is closed.
    """

    connections: int = 4096
    requests: int = 16_384
    body_bytes: int = 32 << 20
    memory_bytes: int = 64 << 20
    unproven_frame_bytes: int = 5 << 20
    idle_seconds: float = 120.0
    stuck_seconds: float = 30.0


class Intake:
    """The connections of a server, and the memory of their requests. Only for the loop's thread."""

    def __init__(self, limits: ServerLimits, figures: Figures, *, wants_proof: bool) -> None:
        """wants_proof: whether clients must sign their requests."""
        self._limits = limits
        self._figures = figures
        self._wants_proof = wants_proof
        self._loads: dict[Connection, _Load] = {}
        self._queued = self._buffered = 0  # bytes
        self._is_full = False

    def __len__(self) -> int:
        return len(self._loads)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._loads))

    @property
    def has_requests(self) -> bool:
        return any(load.requests for load in self._loads.values())

    def add(self, connection: Connection) -> None:
        self._loads[connection] = _Load()
        connection.max_read_bytes = _READ_BYTES
        if self._wants_proof:
            connection.max_frame_bytes = self._limits.unproven_frame_bytes
        if self._is_full:
            connection.pause()
        if len(self._loads) > (most := min(self._limits.connections, _descriptors() // 2)):
            self._close(_of_largest_crowd(self._loads, connection), CROWDED, f"there are more than {most} connections")

    def remove(self, connection: Connection) -> None:
        load = self._loads.pop(connection, None)
        if load is not None:
            self._queued -= load.queued
            self._buffered -= load.buffered
            self._resume_all()

    def prove(self, connection: Connection) -> None:
        """Record that a connection sent a correctly signed request."""
        if self._wants_proof and (load := self._loads.get(connection)) is not None and not load.is_proven:
            load.is_proven = True
            connection.max_frame_bytes = MAX_FRAME_BYTES

    def fed(self, connection: Connection) -> None:
        """Count the bytes of a connection's unfinished frame."""
        load = self._loads.get(connection)
        if load is None:
            return
        self._buffered += len(connection.frames) - load.buffered
        load.buffered = len(connection.frames)
        while self._buffered > self._limits.memory_bytes // 2:
            largest = max(self._loads, key=lambda each: (not self._loads[each].is_proven, self._loads[each].buffered))
            self._close(largest, CROWDED, "unfinished frames take too much memory, and its own is the largest")

    def begin(self, request: Request) -> None:
        load = self._loads.get(request.connection)
        if load is None:
            return
        load.requests += 1
        load.body_bytes += len(request.command.body)
        request.command.frame_bytes += _REQUEST_BYTES
        load.queued += request.command.frame_bytes
        self._queued += request.command.frame_bytes
        if not load.is_paused and load.is_beyond(self._limits):
            load.is_paused = True
            request.connection.pause()
        if not self._is_full and self._queued >= self._limits.memory_bytes // 2:
            self._is_full = True
            for connection in self._loads:
                connection.pause()

    def hold(self, request: Request) -> None:
        """Stop counting the memory of a request that waits for a message."""
        if (load := self._loads.get(request.connection)) is not None:
            self._release(request, load)

    def end(self, request: Request) -> bool:
        """Stop counting a request. Return whether its client is still connected."""
        load = self._loads.get(request.connection)
        if load is None:
            return False
        load.requests -= 1
        self._release(request, load)
        if load.is_paused and not load.is_beyond(self._limits):
            load.is_paused = False
            request.connection.resume()
        return True

    def sweep(self) -> None:
        """Close idle and stuck connections."""
        now = time.monotonic()
        for connection, load in list(self._loads.items()):
            stuck = now - (connection.stuck_since or now)
            idle = 0 if load.requests else now - connection.heard
            if stuck > self._limits.stuck_seconds:
                self._close(connection, STUCK, f"stuck for {stuck:.0f} s")
            elif idle > self._limits.idle_seconds:
                _logger.info("%s: closed: idle for %.0f s", connection.peer, idle)
                connection.abort(RemotingError(f"{connection.peer}: closed: idle for {idle:.0f} s"))

    def _release(self, request: Request, load: _Load) -> None:
        command = request.command
        load.queued -= command.frame_bytes
        load.body_bytes -= len(command.body)
        self._queued -= command.frame_bytes
        command.frame_bytes, command.body, command.fields = 0, b"", {}
        self._resume_all()

    def _resume_all(self) -> None:
        if self._is_full and self._queued < self._limits.memory_bytes // 4:
            self._is_full = False
            for connection in self._loads:
                connection.resume()

    def _close(self, connection: Connection, figure: str, why: str) -> None:
        self._figures.of(figure).change(1)
        _logger.warning("%s: closed: %s", connection.peer, why)
        connection.abort(RemotingError(f"{connection.peer}: {why}"))
        self.remove(connection)  # the loop reports its end later


@dataclass(slots=True)
class _Load:
    """The requests and the memory of one connection.

    requests: unanswered ones. body_bytes: of these requests, except held ones.
    queued: bytes of memory for these requests, except held ones. buffered: bytes of memory for unfinished frames.
    is_paused: its own load is over a limit, so the connection is not read.
    is_proven: the client has sent a correctly signed request.
    """

    requests: int = 0
    body_bytes: int = 0
    queued: int = 0
    buffered: int = 0
    is_paused: bool = False
    is_proven: bool = False

    def is_beyond(self, limits: ServerLimits) -> bool:
        return self.requests >= limits.requests or self.body_bytes >= limits.body_bytes


def _of_largest_crowd(connections: Iterable[Connection], newest: Connection) -> Connection:
    """Return the newest connection of the address with most connections."""
    crowds: dict[str, list[Connection]] = {}
    for connection in connections:
        crowds.setdefault(connection.host, []).append(connection)
    return max(crowds.values(), key=lambda crowd: (len(crowd), crowd[-1] is newest))[-1]


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
