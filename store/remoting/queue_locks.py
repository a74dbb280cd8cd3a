"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ: the queues that clients of orderly groups have locked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from store.broker.allocation import Claims, claim, held
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RequestRefused
from store.remoting.bodies import LockRequest
from store.remoting.connection import Connection
from store.remoting.request import Handler, Request, Response, of_json

_MAX_CLIENTS = 4096  # that lock on one connection
_MAX_LOCKS = 1 << 18  # each takes 200 bytes


class _ClientClaims(NamedTuple):
    """The locks of a client. connection: that of its last request."""

    connection: Connection
    claims: Claims


class Locks:
    """The queues that clients have locked, by the rules of `broker/allocation`.

    A client keeps its locks when its connection ends: RocketMQ's clients reconnect after a late answer, and continue
    processing. Memory is bounded, because clients can only lock existing queues, and a connection's clients are
    limited.
    """

    def __init__(self, topics: Callable[[], Mapping[str, int]]) -> None:
        """topics: returns each topic's number of queues."""
        self._topics = topics
        self._lock = threading.Lock()
        self._locked: dict[str, dict[str, _ClientClaims]] = {}  # by group and client id
        self._count = 0  # of locks
        self._clients: Counter[Connection] = Counter()  # counted again by `forget`

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self._claim, RequestCode.UNLOCK_BATCH_MQ: self._give_back}

    def are_held(self, group: str) -> bool:
        """Return whether a client of a group has locked a queue, so the group reads in order."""
        now = time.monotonic()
        with self._lock:
            return any(held(locked.claims, now) for locked in self._locked.get(group, {}).values())

    def forget(self) -> None:
        """Forget clients without locks. Call it regularly."""
        now = time.monotonic()
        with self._lock:
            for group, of_group in list(self._locked.items()):
                for client_id, locked in list(of_group.items()):
                    if not locked.claims or (locked.connection.is_over and not held(locked.claims, now)):
                        del of_group[client_id]
                if not of_group:
                    del self._locked[group]
            left = [has for of_group in self._locked.values() for has in of_group.values()]
            self._clients = Counter(has.connection for has in left)
            self._count = sum(len(has.claims) for has in left)

    def _claim(self, request: Request) -> Response:
        asked, there, now = LockRequest.of(request.command.body), self._topics(), time.monotonic()
        queues = asked.queues
        wanted = [queue for queue in queues if 0 <= queue.queue_id < there.get(queue.topic, 0)]
        with self._lock:
            if request.connection.is_over:  # the client gets no answer, and others would wait for the queue
                return of_json({"lockOKMQSet": []})
            of_group = self._locked.get(asked.group, {})
            taken = set().union(*(held(has.claims, now) for id, has in of_group.items() if id != asked.client_id))
            own = of_group.get(asked.client_id)
            before = {} if own is None else own.claims
            claims = claim(wanted, before, taken, now)
            if len(claims) > len(before) and self._count + len(claims) - len(before) > _MAX_LOCKS:
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"more than {_MAX_LOCKS:,} queues are locked already")
            if own is None and claims:
                self._admit(request.connection)
            if own is not None or claims:
                self._locked.setdefault(asked.group, {})[asked.client_id] = _ClientClaims(request.connection, claims)
                self._count += len(claims) - len(before)
        return of_json({"lockOKMQSet": [each for queue, each in queues.items() if queue in claims]})

    def _admit(self, connection: Connection) -> None:
        if self._clients[connection] >= _MAX_CLIENTS:
            why = f"{_MAX_CLIENTS:,} clients have locked queues on this connection: let others come on another one"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, why)
        self._clients[connection] += 1

    def _give_back(self, request: Request) -> Response:
        asked = LockRequest.of(request.command.body)
        given = asked.queues
        with self._lock:
            of_group = self._locked.get(asked.group, {})
            if (own := of_group.get(asked.client_id)) is not None:
                kept = {queue: at for queue, at in own.claims.items() if queue not in given}
                of_group[asked.client_id] = own._replace(claims=kept)
                self._count -= len(own.claims) - len(kept)
        return Response()
