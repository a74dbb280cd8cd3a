"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ: which client of a group may read a queue in order."""

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

_MAX_CLIENTS = 4096  # that lock on one connection, in one group or several


class _ClientClaims(NamedTuple):
    """What a client has, and the connection on which it asked last."""

    connection: Connection
    claims: Claims


class Locks:
    """What clients have, by `queue_locks`' rules. A connection that is over takes nothing from its client: that may be
    alive, with messages of the queue in hand, and come back on another one. RocketMQ's close theirs where an answer is
    late. What is kept is bounded: only queues that are there can be locked, by so many clients on one connection."""

    def __init__(self, topics: Callable[[], Mapping[str, int]]) -> None:
        """topics: to number of queues, as it stands now."""
        self._topics = topics
        self._lock = threading.Lock()
        self._locked: dict[str, dict[str, _ClientClaims]] = {}  # group, client id
        self._clients: Counter[Connection] = Counter()  # that came on it; counted again by `forget`

    def handlers(self) -> Mapping[int, Handler]:
        """Return handlers that may wait."""
        return {RequestCode.LOCK_BATCH_MQ: self._claim, RequestCode.UNLOCK_BATCH_MQ: self._give_back}

    def are_held(self, group: str) -> bool:
        """Whether any queue is a client's of this group: it reads in order."""
        now = time.monotonic()
        with self._lock:
            return any(held(locked.claims, now) for locked in self._locked.get(group, {}).values())

    def forget(self) -> None:
        """Those who are gone, and have nothing any more: to be called now and then."""
        now = time.monotonic()
        with self._lock:
            for group, of_group in list(self._locked.items()):
                for client_id, locked in list(of_group.items()):
                    if not locked.claims or (locked.connection.is_over and not held(locked.claims, now)):
                        del of_group[client_id]
                if not of_group:
                    del self._locked[group]
            self._clients = Counter(has.connection for of_group in self._locked.values() for has in of_group.values())

    def _claim(self, request: Request) -> Response:
        asked, there, now = LockRequest.of(request.command.body), self._topics(), time.monotonic()
        queues = asked.queues
        wanted = [queue for queue in queues if 0 <= queue.queue_id < there.get(queue.topic, 0)]
        with self._lock:
            if request.connection.is_over:  # it would not hear of it, and keep others waiting
                return of_json({"lockOKMQSet": []})
            of_group = self._locked.get(asked.group, {})
            taken = set().union(*(held(has.claims, now) for id, has in of_group.items() if id != asked.client_id))
            own = of_group.get(asked.client_id)
            claims = claim(wanted, {} if own is None else own.claims, taken, now)
            if own is None and claims:
                self._admit(request.connection)
            if own is not None or claims:
                self._locked.setdefault(asked.group, {})[asked.client_id] = _ClientClaims(request.connection, claims)
        return of_json({"lockOKMQSet": [each for queue, each in queues.items() if queue in claims]})

    def _admit(self, connection: Connection) -> None:
        """Another client. Raises `RequestRefused` where there are too many."""
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
        return Response()
