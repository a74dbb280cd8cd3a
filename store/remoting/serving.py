"""`serve`: a store as RocketMQ's name server and broker, on one port."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from ssl import SSLContext

from store.api.message_store import MessageStore
from store.broker.allocation import LOCK_SECONDS
from store.broker.hold import PullRequestHoldService
from store.files.config import entries, parsed
from store.model.errors import ConfigError, StoreError
from store.remoting.access import Access
from store.remoting.appending import Appending
from store.remoting.clients import Clients, Neighbours
from store.remoting.connection import Connection
from store.remoting.pulling import Permissions, Pulling
from store.remoting.queue_locks import Locks
from store.remoting.sending import Retries, Sending
from store.remoting.served_groups import GroupStats, ServedGroups
from store.remoting.served_offsets import PERSIST_SECONDS, Offsets, ServedOffsets
from store.remoting.served_routes import Routes, Status
from store.remoting.served_topics import ServedTopics
from store.remoting.served_transactions import Checks, ServedTransactions
from store.remoting.server import Processors, Server, ServerLimits
from store.remoting.threads import LoopThread
from store.remoting.tiered_store import ArchiveReads, TieredStore


@dataclass(frozen=True)
class BrokerConfig:
    """Settings of a served store, with RocketMQ's names and defaults (BrokerConfig). Times are ms."""

    brokerName: str = "broker-a"  # as RocketMQ's conf/broker.conf has them
    brokerClusterName: str = "DefaultCluster"
    autoCreateTopicEnable: bool = True
    transactionTimeOut: int = 6_000
    transactionCheckInterval: int = 30_000
    transactionCheckMax: int = 15

    @staticmethod
    def load(path: str | os.PathLike[str]) -> BrokerConfig:
        """The settings in a properties file, the defaults for the rest; what is not named here is passed over.

        Raises `ConfigError`, naming file, line and what is wrong.
        """
        found = [entry for entry in entries(Path(path)) if entry[1] in BROKER_SETTINGS]
        values = {key: parsed(where, key, text, BROKER_SETTINGS[key]) for where, key, text in found}
        for name, value in values.items():
            if type(value) is int and value < 1:
                raise ConfigError(f"{path}: {name}={value}: must be 1 at least")
        return BrokerConfig(**values)

    @property
    def checks(self) -> Checks:
        """How transactions that are open are asked for."""
        interval, immunity = self.transactionCheckInterval / 1000, self.transactionTimeOut / 1000
        return Checks(interval, immunity, self.transactionCheckMax)


BROKER_SETTINGS = {field.name: type(field.default) for field in fields(BrokerConfig)}


LISTEN = "127.0.0.1:9876"
MAX_HELD = 100_000
LIMITS = ServerLimits()
CHECKS = Checks()
_LOOK_SECONDS = 1.0  # for topics that were deleted
_logger = logging.getLogger("store.remoting")


class Serving:
    """A store that is served, until `close`; a context manager. The store stays the caller's.

    address: "host:port" of the name server, and of the broker that it names.
    """

    def __init__(
        self,
        store: MessageStore,
        listen: str,
        broker: str,
        cluster: str,
        limits: ServerLimits,
        checks: Checks,
        *,
        create_topics: bool,
        access: Access | None,
        tls: SSLContext | None,
    ) -> None:
        self._is_leaving = False
        self._neighbours = neighbours = Neighbours(store)
        self._hold = PullRequestHoldService(store)
        self._appending = Appending(store)
        self._thread = LoopThread("mq-server")
        self._offsets = offsets = ServedOffsets(store)
        self._reads = reads = ArchiveReads()
        older = TieredStore(store, reads)
        retries = Retries(store, older)
        # Where a group has no clients any more others may join beside the server, who go by the files.
        clients = Clients(retries.prepare, neighbours.admit, offsets.persist, neighbours.changed)
        locks = Locks(store.topics)
        self._transactions = ServedTransactions(store, clients, checks)
        sending = Sending(store, self._appending, self._transactions, locks.are_held, create_topics=create_topics)
        reading = clients, offsets, self._thread, Permissions(store, clients), older
        pulling = Pulling(store, self._hold, *reading, max_held=MAX_HELD)
        routes = Routes(store, broker, cluster, create_topics=create_topics)
        others = (
            routes,
            clients,
            locks,
            retries,
            Offsets(store, clients, offsets, older),
            ServedTopics(store, broker, older),
            GroupStats(store, broker, clients, offsets, older),
            ServedGroups(store, broker, clients, neighbours, offsets, older),
            Status(store, broker, cluster),
        )

        def lost(connection: Connection) -> None:
            pulling.lost(connection)
            reads.lost(connection)
            if not self._is_leaving:
                gone = partial(clients.lost, connection)
                self._thread.submit(_done(gone, "who is gone may count as a member still"))

        processors = Processors(
            quick={**sending.quick(), **pulling.quick(), **self._transactions.quick()},
            others={code: handler for each in others for code, handler in each.others().items()},
            lost=lost,
            check=(lambda request: None) if access is None else access.check,
        )
        try:
            self._server = Server(self._thread, processors, listen, limits, tls, store.figures)
        except BaseException:
            self._stop_waiting()
            self._thread.stop()
            neighbours.close()
            raise
        self.address = self._server.address
        self._every = [
            self._thread.submit(_every(PERSIST_SECONDS, offsets.persist)),
            self._thread.submit(_every(_LOOK_SECONDS, reads.look)),
            self._thread.submit(_every(LOCK_SECONDS, locks.forget)),
            self._thread.submit(_every(checks.interval_seconds, self._transactions.check)),
        ]

    @property
    def connections(self) -> int:
        """How many there are."""
        return self._server.connections

    @property
    def held(self) -> int:
        """How many pulls are held."""
        return self._hold.held

    def close(self) -> None:
        """Answer what is under way, held pulls too, and leave. The second time, and in a forked process, this does
        nothing."""
        if self._server.is_forked:  # its parent noted more since
            return
        self._is_leaving = True
        for each in self._every:
            each.cancel()
        self._server.close(self._stop_waiting)
        self._thread.stop()
        self._offsets.persist()
        self._neighbours.close()

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
    except Exception as error:  # or it would be done no more, and nobody knew
        _logger.warning("%s; %s", error, otherwise, exc_info=not isinstance(error, StoreError))


def serve(
    store: MessageStore,
    listen: str = LISTEN,
    *,
    broker: str = BrokerConfig.brokerName,
    cluster: str = BrokerConfig.brokerClusterName,
    create_topics: bool = True,
    limits: ServerLimits = LIMITS,
    checks: Checks = CHECKS,
    access: Access | None = None,
    tls: SSLContext | None = None,
) -> Serving:
    """Serve a store that is open for writing to RocketMQ's clients, in threads of this process, until `close`.

    listen: "host:port"; port 0 is any free one, see `Serving.address`. Clients are told the address at which they
    came. create_topics: a topic is made by the first message that is sent to it. access: who may do what; without it
    everybody everything. tls: with which clients have to come (`useTLS`). Others may go on using the store, in
    this process and in others.

    Raises `InvalidArgument` for no address, `StoreUnavailable` for one that cannot be listened at.
    """
    return Serving(store, listen, broker, cluster, limits, checks, create_topics=create_topics, access=access, tls=tls)
