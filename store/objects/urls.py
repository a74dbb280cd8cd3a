"""URLs of directories and object stores, and their storage options."""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from store.model.errors import ConfigError

# Protocols with an atomic create-if-missing, and their packages.
CREATES_ONCE = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}

_LOCAL = ("file", "local")
_URL = re.compile(r"(?P<scheme>([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")


def local_path(url: str) -> str | None:
    """Return the path of a local URL, None for any other URL. Raises `ConfigError`."""
    found = _URL.fullmatch(url)
    if found is None:
        path = url.removeprefix("file:")
        if slashed := _ONE_SLASH.match(path):  # otherwise a folder in the working directory
            raise ConfigError(
                f"{slashed[0]}...: a URL has two slashes after its scheme. To name a folder, write ./{slashed[0]}..."
            )
        return os.path.abspath(os.path.expanduser(path))
    if found["scheme"].lower() not in _LOCAL:
        return None
    host, slash, path = found["rest"].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ConfigError(f"{without_secrets(url)}: a URL of a local directory begins with file:///")
    return os.path.abspath(slash + path)


def storage_options(text: str) -> dict[str, Any]:
    """Parse storage options, a JSON object. Raises `ConfigError`."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(
            f'the storage options are no JSON ({error.args[0]}). Give an object, such as {{"anon": true}}'
        ) from None
    if not isinstance(found, dict):
        raise ConfigError('the storage options are not a JSON object. Give an object, such as {"anon": true}')
    return found


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def without_secrets(url: str) -> str:
    """Return a URL without users, keys, passwords and queries.

    A URL may be a chain, such as `dir::s3://key:password@bucket`. If a password is not percent-encoded, its end may be
    ambiguous. Then only the scheme is returned.
    """
    return "::".join(link.shown for link in _links(url))


def secrets_of(url: str) -> list[str]:
    """Return the secrets in a URL: users, keys, passwords and queries.

    The list also has parts of secrets and their decoded forms, because an error may quote only these.
    """
    return [secret for link in _links(url) for secret in link.secrets]


def must_be_plain(url: str) -> None:
    """Raise `ConfigError` for a URL with a query, or with a password whose end is ambiguous."""
    for link in _links(url):
        if link.is_hidden:
            raise ConfigError(
                f"{without_secrets(url)}: the user and password cannot be separated from the host. Write '/', '?', "
                "'#', ':' and '@' in them as %2F, %3F, %23, %3A and %40, or give them as storage options"
            )
        if link.has_query:
            raise ConfigError(
                f"{without_secrets(url)}: remove the query ('?name=value') from the URL. Give a token as a storage "
                "option"
            )


def why_not_shared(url: str) -> str | None:
    """Return why processes on several machines cannot coordinate through a URL, None if they can."""
    if (scheme := scheme_of(url)) not in CREATES_ONCE:
        schemes = ", ".join(f"{each}://" for each in CREATES_ONCE)
        return (
            f"{scheme}:// cannot create a file atomically, or other machines do not see its files. Use a URL that "
            f"begins with one of {schemes}"
        )
    if secrets_of(url):
        return (
            "the URL has a password, which would be logged. Give the password in fsspec's environment or configuration"
        )
    if not url.partition("://")[2].partition("/")[0]:
        return "the URL names no bucket. Write the bucket after the two slashes, as in s3://bucket/folder"
    return None


class _Link(NamedTuple):
    """One part of a URL chain. is_hidden: `shown` is only the scheme, because the end of the password is ambiguous."""

    shown: str
    secrets: tuple[str, ...] = ()
    is_hidden: bool = False
    has_query: bool = False


def _links(url: str) -> list[_Link]:
    before, separator, rest = url.partition("://")
    *names, scheme = before.split("::")
    links = [_Link(name) for name in names]
    if not separator:
        return [_Link(url)]
    link, chained, others = rest.partition("::")
    try:
        parts = urlsplit(f"//{link}")
        parts.port  # noqa: B018  raises an error if the part behind the colon is a password
    except ValueError:
        return [*links, _Link(f"{scheme}://...", (rest,), is_hidden=True)]
    user, _, host = parts.netloc.rpartition("@")
    has_query = "=" in parts.query and scheme.lower() not in _LOCAL
    path = parts.path if has_query else link[len(parts.netloc) :]
    password = user.partition(":")[2]
    values = [parts.query, *(value for _, value in parse_qsl(parts.query))] if has_query else []
    secrets = user, password, unquote(password), *values
    links.append(_Link(f"{scheme}://{host}{path}", tuple(filter(None, secrets)), has_query=has_query))
    return [*links, *(_links(others) if chained else ())]
