"""Addresses as RocketMQ writes them: host:port."""

from __future__ import annotations

import re

from store.model.errors import InvalidArgument

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]\s]*)):(?P<port>\d{1,5})", re.ASCII)
_MAX_PORT = 65_535


def host_and_port(address: str) -> tuple[str, int]:
    """("127.0.0.1", 9876) of "127.0.0.1:9876", ("::1", 9876) of "[::1]:9876". Raises `InvalidArgument`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise InvalidArgument(f"address {address!r}: must be host:port, such as 127.0.0.1:9876 or [::1]:9876")
    return found["v6"] or found["host"], int(found["port"])
