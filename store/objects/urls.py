"""URLs of directories and object stores, and the storage options that go with them."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from store.model.errors import ConfigError

# Object stores that can make an object only if it is missing, in one request, and the package that speaks to each.
CREATES_ONCE = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}

_URL = re.compile(r"(?P<scheme>([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")


def local_path(url: str) -> str | None:
    """Return the absolute path of a directory or a `file:` URL, None for other URLs. Raises `ConfigError`."""
    found = _URL.fullmatch(url)
    if found is None:
        path = url.removeprefix("file:")
        if slashed := _ONE_SLASH.match(path):  # as a path it would be one below the working directory
            raise ConfigError(
                f"{slashed[0]}...: a URL has two slashes there; a folder of that name is ./{slashed[0]}..."
            )
        return os.path.abspath(os.path.expanduser(path))
    if found["scheme"].lower() not in ("file", "local"):
        return None
    host, slash, path = found["rest"].partition("/")
    if host not in ("", "localhost") or not slash:  # likewise
        raise ConfigError(f"{url}: a URL of a local directory begins with file:///")
    return os.path.abspath(slash + path)


def storage_options(text: str) -> dict[str, Any]:
    """Parse fsspec's storage options, which are given as JSON. Raises `ConfigError`."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"storage options are no JSON ({error.args[0]}); give an object") from None
    if not isinstance(found, dict):
        raise ConfigError("storage options are a JSON object, name to value")
    return found


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def without_secrets(url: str) -> str:
    """Return the URL without users, keys and passwords. A URL may be a chain: `dir::s3://key:password@bucket`."""
    return "::".join("://".join(filter(None, (scheme, rest))) for scheme, _, rest in _links(url))


def secrets_of(url: str) -> list[str]:
    """Return the users, keys and passwords of a URL, as they stand there."""
    return [secret for _, secret, _ in _links(url) if secret]


def why_not_shared(url: str) -> str | None:
    """Return why processes on several machines cannot meet at a URL, None if they can."""
    if (scheme := scheme_of(url)) not in CREATES_ONCE:
        known = ", ".join(f"{each}://" for each in CREATES_ONCE)
        return f"{scheme}:// cannot make a file only if it is not there, or is not seen by all; use one of {known}"
    if secrets_of(url):
        return "it has a password, which logs would show; give it to fsspec's environment or configuration instead"
    if not url.partition("://")[2].partition("/")[0]:
        return "it names no bucket"
    return None


def _links(url: str) -> list[tuple[str, str, str]]:
    """Split a chain of URLs: of each its scheme, its user and password, and the rest."""
    links = []
    for link in url.split("::"):
        scheme, separator, rest = link.partition("://")
        host, slash, path = rest.partition("/")
        secret, _, host = host.rpartition("@")
        links.append((scheme, secret, host + slash + path if separator else ""))
    return links
