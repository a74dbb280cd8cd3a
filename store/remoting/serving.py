"""`serve`: a store as RocketMQ's name server and broker, on one port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from ssl import SSLContext

from store.api.message_store import MessageStore
from store.broker.allocation import LOCK_SECONDS
from store.broker.hold import PullRequestHoldService
from store.model.errors import StoreError
from store.remoting.access import ALLOW_ALL, Access
from store.remoting.appending import Appending
from store.remoting.clients import Clients
from store.remoting.connection import Connection
from store.remoting.heart_beats import GroupLocks, HeartBeats
from store.remoting.intake import ServerLimits
from store.remoting.pulling import Pulling
from store.remoting.queue_locks import Locks
from store.remoting.sending import SendBacks, ServedSends
from store.remoting.served_broker import BrokerConfig, ServedBroker
from store.remoting.served_groups import GroupStats, ServedGroups
from store.remoting.served_offsets import PERSIST_SECONDS, ServedOffsets
from store.remoting.served_routes import Routes, Status
from store.remoting.served_topics import ServedTopics
from store.remoting.served_transactions import ServedTransactions
from store.remoting.server import Processors, Server
from store.remoting.threads import LoopThread, WorkerPool
from store.remoting.tiered_store import ArchiveReads, TieredStore

LISTEN = "127.0.0.1:9876"
LIMITS = ServerLimits()
BROKER = BrokerConfig()
_THREADS = 4  # more would compete with the event loop for the GIL
_LOOK_SECONDS = 1.0  # between two checks for late archive reads
_logger = logging.getLogger("store.remoting")


class Serving:
    """A served store, until `close`. A context manager. It does not close the store.

    address: "host:port" of the name server and the broker.
    """

    def __init__(
        self,
        store: MessageStore,
        listen: str,
        config: BrokerConfig,
        limits: ServerLimits,
        access: Access | None,
        tls: SSLContext | None,
    ) -> None:
        self._is_leaving = False
        self._group_locks = group_locks = GroupLocks(store)
        self._hold = PullRequestHoldService(store)
        self._appending = Appending(store)
        self._thread = LoopThread("mq-server")
        self._offsets = offsets = ServedOffsets(store)
        self._reads = reads = ArchiveReads()
        broker = ServedBroker(store, config, Clients(), offsets, TieredStore(store, reads), access or ALLOW_ALL)
        heart_beats = HeartBeats(broker, group_locks)
        locks = Locks(store.topics)
        self._transactions = ServedTransactions(broker)
        workers = WorkerPool(_THREADS, "mq-serve")
        pulling = Pulling(broker, self._hold, self._thread, workers)
        sending = ServedSends(broker, self._appending, self._transactions, locks)
        quick = sending, pulling, self._transactions
        waiting = (
            sending,
            pulling,
            Routes(broker),
            heart_beats,
            locks,
            SendBacks(broker),
            ServedTopics(broker),
            GroupStats(broker),
            ServedGroups(broker, group_locks),
            Status(broker),
        )

        def lost(connection: Connection) -> None:
            pulling.lost(connection)
            reads.lost(connection)
            if not self._is_leaving:
                left = partial(heart_beats.lost, connection)
                self._thread.submit(_done(left, "its clients may still count as members"))

        processors = Processors(
            workers,
            quick={code: handler for each in quick for code, handler in each.quick_handlers().items()},
            waiting={code: handler for each in waiting for code, handler in each.handlers().items()},
            lost=lost,
            check=None if access is None else access.check,
        )
        try:
            self._server = Server(self._thread, processors, listen, limits, tls, store.figures)
        except BaseException:
            self._stop_waiting()
            self._thread.stop()
            group_locks.close()
            raise
        self.address = self._server.address
        self._every = [
            self._thread.submit(_every(PERSIST_SECONDS, offsets.persist)),
            self._thread.submit(_every(_LOOK_SECONDS, reads.look)),
            self._thread.submit(_every(LOCK_SECONDS, locks.forget)),
            self._thread.submit(_every(config.transactionCheckInterval / 1000, self._transactions.check)),
        ]

    @property
    def connections(self) -> int:
        return self._server.connections

    @property
    def held(self) -> int:
        """The number of held pulls."""
        return self._hold.held

    def close(self) -> None:
        """Answer running requests and held pulls, and stop. Does nothing the second time and in a forked process."""
        if self._server.is_forked:  # the parent may have committed more
            return
        self._is_leaving = True
        for each in self._every:
            each.cancel()
        self._server.close(self._stop_waiting)
        self._thread.stop()
        self._offsets.stop()
        self._group_locks.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stop_waiting(self) -> None:
        self._hold.stop()
        self._reads.stop()
        self._appending.stop()
        self._transactions.stop()


async def _every(seconds: float, step: Callable[[], object]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await _done(step, f"tried again in {seconds:g} s")


async def _done(step: Callable[[], object], otherwise: str) -> None:
    try:
        await asyncio.to_thread(step)
    except Exception as error:  # else it would never run again
        _logger.warning("%s; %s", error, otherwise, exc_info=not isinstance(error, StoreError))


def serve(
    store: MessageStore,
    listen: str = LISTEN,
    *,
    config: BrokerConfig = BROKER,
    limits: ServerLimits = LIMITS,
    access: Access | None = None,
    tls: SSLContext | None = None,
) -> Serving:
    """Serve a store that is open for writing to RocketMQ's clients, in threads, until `close`.

    listen: "host:port". Port 0 selects a free port, see `Serving.address`. Routes have the address by which a client
    connected.
    access: the rights of accounts; None allows all requests.
    tls: if given, clients have to use TLS (`useTLS`).

    Other processes may use the store concurrently. Raises `InvalidArgument` for a malformed address, `StoreUnavailable`
    if it cannot listen.
    """
    return Serving(store, listen, config, limits, access, tls)
