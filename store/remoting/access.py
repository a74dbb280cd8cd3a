"""`Access`: the accounts of a `plain_acl.yml`, RocketMQ's ACL 1.0.

A request is signed with its account's secret: HMAC-SHA1 of its fields' values, in the order of their names, and its
body (AclClientRPCHook).
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from store.model.codes import ResponseCode
from store.model.errors import ConfigError, RequestRefused
from store.remoting.command import Command
from store.remoting.request import Request
from store.remoting.rights import Need, Perm, needs_of

_ACCESS_KEY, _SIGNATURE = "AccessKey", "Signature"
_UNSIGNED = frozenset({_SIGNATURE, "_UNIQUE_KEY_QUERY"})  # some clients add it after they have signed


_PERMS = {"DENY": Perm.DENY, "PUB": Perm.PUB, "SUB": Perm.SUB}
_PERMS |= dict.fromkeys(("PUB|SUB", "SUB|PUB", "ANY"), Perm.EITHER)


@dataclass(frozen=True)
class Account:
    """An account with its permissions.

    white: patterns of addresses that need no signature. topics, groups: permissions other than the defaults.
    """

    secret_key: bytes
    is_admin: bool
    white: tuple[str, ...]
    default_topic: Perm
    default_group: Perm
    topics: Mapping[str, Perm]
    groups: Mapping[str, Perm]

    def may(self, need: Need) -> bool:
        """Return whether the account has a permission. Defaults for the broker's own topics apply only to an admin."""
        named, default = (self.groups, self.default_group) if need.is_group else (self.topics, self.default_topic)
        perm = named.get(need.name)
        if perm is None:
            return self.is_admin or (bool(default & need.perm) and not need.is_brokers_own)
        return bool(perm & need.perm)


class Access:
    def __init__(self, white: tuple[str, ...], accounts: Mapping[str, Account]) -> None:
        self._white = white
        self._accounts = accounts

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Access:
        """Read a `plain_acl.yml`. Raises `ConfigError`."""
        import yaml  # not needed without accounts

        try:
            with open(path, "rb") as file:
                content = yaml.safe_load(file)
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}). Name a file as RocketMQ's plain_acl.yml") from error
        try:
            accounts = {_text(each, "accessKey"): _account(each) for each in content["accounts"]}
            return Access(_list(content.get("globalWhiteRemoteAddresses")), accounts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}: cannot read the accounts ({error}). Write them as in RocketMQ's plain_acl.yml: a "
                "list accounts, in which each has accessKey and secretKey"
            ) from error

    def check(self, request: Request) -> None:
        """Raise `RequestRefused` if the sender may not make this request."""
        command, ip = request.command, request.connection.host
        if _matches(self._white, ip):
            return
        key = command.fields.get(_ACCESS_KEY, "")
        account = self._accounts.get(key)
        if account is None:
            raise _refused(f"no account for accessKey {key!r:.60}")
        if not _matches(account.white, ip) and not _is_signed(command, account.secret_key):
            raise _refused(f"signature of accessKey {key!r:.60} is wrong")
        request.connection.account = key
        needs = needs_of(command)
        if needs is None and not account.is_admin:
            raise _refused(f"request {command.code} needs an admin account, {key!r:.60} is none")
        for need in needs or ():
            self.must_have(request, need)

    def has(self, request: Request, need: Need) -> bool:
        """Return whether the sender of a request has a permission. The request must have been checked."""
        if _matches(self._white, request.connection.host):
            return True
        return self._accounts[request.command.fields[_ACCESS_KEY]].may(need)

    def must_have(self, request: Request, need: Need) -> None:
        """Raise `RequestRefused` if the sender of a checked request lacks a permission."""
        if not self.has(request, need):
            raise _refused(f"{request.command.fields[_ACCESS_KEY]!r:.60} has no permission {need}")


ALLOW_ALL = Access(("*",), {})  # without accounts


def signature(command: Command, secret_key: bytes, unsigned: frozenset[str] = frozenset({_SIGNATURE})) -> str:
    """Return the Signature field of a request, whose fields include the access key."""
    fields = (value for name, value in sorted(command.fields.items()) if name not in unsigned)
    digest = hmac.new(secret_key, "".join(fields).encode("utf-8", "replace"), "sha1")
    digest.update(command.body)
    return base64.b64encode(digest.digest()).decode()


def _is_signed(command: Command, secret_key: bytes) -> bool:
    said = command.fields.get(_SIGNATURE, "").encode()
    expected = (signature(command, secret_key), signature(command, secret_key, _UNSIGNED))
    return any(hmac.compare_digest(said, each.encode()) for each in expected)


def _refused(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, why)


# --- the file --------------------------------------------------------------------------------------------


def _account(content: Mapping[str, Any]) -> Account:
    secret = _text(content, "secretKey")
    return Account(
        secret.encode(),
        content.get("admin") is True,
        _list(content.get("whiteRemoteAddress")),
        _perm(content.get("defaultTopicPerm", "DENY")),
        _perm(content.get("defaultGroupPerm", "DENY")),
        _named(content.get("topicPerms")),
        _named(content.get("groupPerms")),
    )


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content[name]  # YAML reads digits as a number
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value):
        raise ValueError(f"{name}={value!r:.40} is no text")
    return str(value)


def _list(content: object) -> tuple[str, ...]:
    found = content.split(",") if isinstance(content, str) else content or ()
    if not isinstance(found, list | tuple):
        raise TypeError(f"{content!r:.40} is no list of addresses")
    return tuple(str(each).strip() for each in found if str(each).strip())


def _named(content: list[str] | None) -> dict[str, Perm]:
    split = [entry.partition("=") for entry in content or ()]
    return {name.strip(): _perm(perm) for name, _, perm in split}


def _perm(text: str) -> Perm:
    perm = _PERMS.get(str(text).strip())
    if perm is None:
        raise ValueError(f"{text!r:.40} is none of {', '.join(_PERMS)}")
    return perm


def _matches(white: tuple[str, ...], ip: str) -> bool:
    return any(fnmatchcase(ip, pattern) for pattern in white)
