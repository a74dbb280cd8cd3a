"""RocketMQ's access control 1.0: each request is signed with a secret that the broker knows, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from store.remoting.access import signature
from store.remoting.command import Bytes, Command

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
