"""`ClusterAddress`: a cluster's name servers, the account, and the group that pulls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from store.model.errors import InvalidArgument
from store.remoting.access import signature
from store.remoting.command import Bytes, Command
from store.remoting.endpoints import Tls, host_and_port

if TYPE_CHECKING:
    from store.cluster.cluster_log import ClusterLog
    from store.cluster.cluster_writer import ClusterWriter
    from store.cluster.group import ClusterGroup

SCHEME = "rocketmq://"
ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker has it, and leaves it out of statistics
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 3.0  # mqClientApiTimeout; for requests that delay the queues of other brokers
FIRST_PAUSE_SECONDS, PAUSE_SECONDS = 0.05, 1.0
_PATIENCE_SECONDS = 30.0
_BROKER_SECONDS = 600.0


@dataclass(frozen=True)
class Credentials:
    """An account of RocketMQ's ACL 1.0, which signs each request with a shared secret."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: Bytes = b"") -> dict[str, str]:
        all_fields = {**fields, ACCESS_KEY: self.access_key}
        return {**all_fields, SIGNATURE: signature(Command(0, all_fields, body), self.secret_key.encode())}


def broker_names(text: str) -> frozenset[str]:
    """Parse "broker-a,broker-b"."""
    return frozenset(filter(None, (name.strip() for name in text.split(","))))


@dataclass(frozen=True)
class ClusterAddress:
    """A `LogAddress` of a cluster: the brokers that some name servers know.

    name_servers: "host:port" of each.
    consumer_group: the group in whose name messages are pulled.
    patience: seconds for which a failed request is repeated.
    broker_timeout: seconds that reads and sends wait for a broker that does not answer.
    brokers: the names of all brokers; empty if only the name servers know them.
    fails_over: whether messages go to another broker if theirs does not answer.
    """

    name_servers: tuple[str, ...]
    credentials: Credentials | None = None
    consumer_group: str = TOOLS_GROUP
    tls: Tls | None = None
    patience: float = _PATIENCE_SECONDS
    broker_timeout: float = _BROKER_SECONDS
    brokers: frozenset[str] = frozenset()
    fails_over: bool = False
    directory = None

    @classmethod
    def parse(
        cls,
        text: str,
        credentials: Credentials | None = None,
        consumer_group: str = TOOLS_GROUP,
        tls: Tls | None = None,
    ) -> Self:
        """Parse RocketMQ's "host:port;host:port", with an optional "?brokers=broker-a,broker-b".

        Raises `InvalidArgument`.
        """
        names, _, query = text.partition("?")
        servers = tuple(dict.fromkeys(part.strip() for part in names.replace(",", ";").split(";") if part.strip()))
        if not servers:
            raise InvalidArgument(f"name servers {text!r}: must be host:port, several separated by ';'")
        for server in servers:
            host_and_port(server)
        option, _, brokers = query.partition("=")
        if query and option != "brokers":
            raise InvalidArgument(
                f"name servers {text!r}: after '?' give brokers= and names separated by ',', such as "
                "?brokers=broker-a,broker-b"
            )
        return cls(servers, credentials, consumer_group, tls, brokers=broker_names(brokers))

    def signed(self, fields: Mapping[str, str], body: bytes = b"") -> Mapping[str, str]:
        return fields if self.credentials is None else self.credentials.signed(fields, body)

    def __str__(self) -> str:
        return f"cluster at {';'.join(self.name_servers)}"

    # Slow imports, not needed to parse options.

    def open(self) -> ClusterLog:
        from store.cluster.cluster_log import ClusterLog

        return ClusterLog(self)

    def group(self, name: str) -> ClusterGroup:
        from store.cluster.group import ClusterGroup

        return ClusterGroup(self, name)

    def open_writer(self) -> ClusterWriter:
        from store.cluster.cluster_writer import ClusterWriter

        return ClusterWriter(self)
