"""`ClusterAddress`: a cluster as a log, and its groups."""

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

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"


@dataclass(frozen=True)
class Credentials:
    """An account of a cluster. The secret is not shown."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: Bytes = b"") -> dict[str, str]:
        """A request's fields with who asks, and the proof, see `signature`."""
        all_fields = {**fields, ACCESS_KEY: self.access_key}
        return {**all_fields, SIGNATURE: signature(Command(0, all_fields, body), self.secret_key.encode())}


TOOLS_GROUP = "TOOLS_CONSUMER"  # that every broker has from its start; it leaves no trace in statistics
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 3.0  # mqClientApiTimeout: of what is asked while others' queues wait
FIRST_PAUSE_SECONDS, PAUSE_SECONDS = 0.05, 1.0  # before another try
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class NameServers:
    """Of a cluster: the brokers that they know.

    name_servers: "host:port" of each. credentials: None where a cluster asks for none. consumer_group: in whose name is
    read. tls: None for plain connections. patience: for how many seconds a request that fails is repeated.
    """

    name_servers: tuple[str, ...]
    credentials: Credentials | None = None
    consumer_group: str = TOOLS_GROUP
    tls: Tls | None = None
    patience: float = _PATIENCE_SECONDS

    @classmethod
    def parse(
        cls,
        text: str,
        credentials: Credentials | None = None,
        consumer_group: str = TOOLS_GROUP,
        tls: Tls | None = None,
    ) -> Self:
        """Of "host:port;host:port", as RocketMQ writes it. Raises `InvalidArgument`."""
        servers = tuple(dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip()))
        if not servers:
            raise InvalidArgument(f"name servers {text!r}: must be host:port, several separated by ';'")
        for server in servers:
            host_and_port(server)
        return cls(servers, credentials, consumer_group, tls)

    def signed(self, fields: Mapping[str, str], body: bytes = b"") -> Mapping[str, str]:
        """The fields of a request, with those that prove who asks."""
        return fields if self.credentials is None else self.credentials.signed(fields, body)

    def __str__(self) -> str:
        return f"cluster at {';'.join(self.name_servers)}"


SCHEME = "rocketmq://"  # of an address that stands where a path may


@dataclass(frozen=True)
class ClusterAddress(NameServers):
    """A `LogAddress`. What it opens is imported then, for whoever only looks at options does without."""

    directory = None  # nothing lies beside it

    def open(self) -> ClusterLog:
        """Connects to nobody yet."""
        from store.cluster.cluster_log import ClusterLog

        return ClusterLog(self)

    def group(self, name: str) -> ClusterGroup:
        """Connects to nobody yet. Raises `InvalidGroup`."""
        from store.cluster.group import ClusterGroup

        return ClusterGroup(self, name)

    def open_writer(self) -> ClusterWriter:
        """Connects to nobody yet."""
        from store.cluster.cluster_writer import ClusterWriter

        return ClusterWriter(self)
