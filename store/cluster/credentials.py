"""RocketMQ's access control 1.0: each request is signed with a secret that the broker knows, too."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from store.remoting.command import Bytes

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"


@dataclass(frozen=True)
class Credentials:
    """An account of a cluster. The secret is not shown."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: Bytes = b"") -> dict[str, str]:
        """A request's fields with who asks, and the proof: HMAC-SHA1 over all values in the order of their names, and
        the body."""
        all_fields = {**fields, ACCESS_KEY: self.access_key}
        values = "".join(all_fields[name] for name in sorted(all_fields)).encode("utf-8", "replace")
        proof = hmac.new(self.secret_key.encode(), values + bytes(body), hashlib.sha1).digest()
        return {**all_fields, SIGNATURE: base64.b64encode(proof).decode()}
