"""How a client reaches a server: its address, trusted certificates, and the errors of connecting."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from store.model.errors import InvalidArgument, RemotingError, Unreachable, Untrusted


@dataclass(frozen=True)
class Tls:
    """TLS settings of a client.

    authorities: trusted certificates and authorities (PEM). The name in a certificate is not checked then, because
    routes have addresses instead of names. None: trust the system's certificates, and check the name.
    """

    authorities: str | None = field(default=None, repr=False)

    @classmethod
    def trusting(cls, path: str) -> Tls:
        """Read the certificates of a file, which may be deleted afterwards. Raises `InvalidArgument`."""
        try:
            found = cls(Path(path).read_text("ascii"))
            found.context()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidArgument(f"{path}: no certificates can be read ({why}). Name a file in PEM format") from error
        return found

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authorities)
        if self.authorities is not None:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # self-made certificates of brokers are not strictly valid
        return context


def not_connected(address: str, error: OSError, hint: str, *, tls: bool) -> RemotingError:
    """Return the error for a failed connection. hint: a possible cause if TLS is not used."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Untrusted(
            f"{address}: its certificate is not trusted: {error.verify_message}. If this is the right server, set "
            "tlsCaFile to a file with its certificate, or with its authority's"
        )
    if tls and isinstance(error, ssl.SSLError | ConnectionResetError):
        said = f" ({error.reason})" if isinstance(error, ssl.SSLError) and error.reason else ""
        return Unreachable(
            f"{address}: this server does not answer by TLS{said}. If the server has no TLS, remove useTls"
        )
    why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or error
    return Unreachable(f"{address}: {why}; {hint}")  # asyncio's own text is different


_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]\s]*)):(?P<port>\d{1,5})", re.ASCII)
_MAX_PORT = 65_535


def host_and_port(address: str) -> tuple[str, int]:
    """Parse "127.0.0.1:9876" or "[::1]:9876". Raises `InvalidArgument`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise InvalidArgument(f"address {address!r}: must be host:port, such as 127.0.0.1:9876 or [::1]:9876")
    return found["v6"] or found["host"], int(found["port"])
