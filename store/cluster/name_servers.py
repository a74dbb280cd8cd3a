"""`NameServers`: where a cluster is, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from store.cluster.credentials import Credentials
from store.model.errors import InvalidArgument
from store.remoting.tls import Tls, host_and_port

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
