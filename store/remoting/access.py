"""Who may do what: RocketMQ's ACL 1.0, with the accounts of a `plain_acl.yml`.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
      - accessKey: reader
        secretKey: 12345678
        whiteRemoteAddress:
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [orders=PUB|SUB]
        groupPerms: [readers=SUB]

A request is signed with its account's secret: HMAC-SHA1 of the values of its fields, in the order of their names, and
its body (AclClientRPCHook). What it is about is judged by `_NEEDS`; who is signed for may do what is not listed there.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from store.format.layout import RETRY_TOPIC_PREFIX
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import ConfigError, RequestRefused
from store.remoting.bodies import Heartbeat
from store.remoting.command import Command
from store.remoting.request import Request

_ACCESS_KEY, _SIGNATURE = "AccessKey", "Signature"
_UNSIGNED = frozenset({_SIGNATURE, "_UNIQUE_KEY_QUERY"})  # which some clients add after they have signed


class Perm(IntFlag):
    """What an account may do with a topic or a group."""

    DENY = 0
    PUB = 1
    SUB = 2


class Need(NamedTuple):
    """What a request takes: a permission of a topic, or of a group."""

    name: str
    perm: Perm
    is_group: bool = False


_PERMS = {"DENY": Perm.DENY, "PUB": Perm.PUB, "SUB": Perm.SUB, "PUB|SUB": Perm.PUB | Perm.SUB}
_PERMS |= {"SUB|PUB": Perm.PUB | Perm.SUB, "ANY": Perm.PUB | Perm.SUB}


@dataclass(frozen=True)
class Account:
    """One of `accounts`. white: patterns of addresses from where it need not sign; topics, groups: those that are
    named, the defaults for all others."""

    secret_key: bytes
    is_admin: bool
    white: tuple[str, ...]
    default_topic: Perm
    default_group: Perm
    topics: Mapping[str, Perm]
    groups: Mapping[str, Perm]

    def may(self, need: Need) -> bool:
        named, default = (self.groups, self.default_group) if need.is_group else (self.topics, self.default_topic)
        perm = named.get(need.name)
        if perm is None and self.is_admin:
            return True
        return bool((default if perm is None else perm) & need.perm)


class Access:
    """The accounts of a file, as it was when it was read."""

    def __init__(self, white: tuple[str, ...], accounts: Mapping[str, Account]) -> None:
        self._white = white
        self._accounts = accounts

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Access:
        """Raises `ConfigError`, which says what is wrong where."""
        import yaml  # who serves without accounts does without

        try:
            with open(path, "rb") as file:
                content = yaml.safe_load(file)
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        try:
            accounts = {_text(each, "accessKey"): _account(each) for each in content["accounts"]}
            return Access(_list(content.get("globalWhiteRemoteAddresses")), accounts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}: no accounts as in RocketMQ's plain_acl.yml: {error}; each has accessKey, secretKey, ..."
            ) from error

    def check(self, request: Request) -> None:
        """Raises `RequestRefused` for what its sender may not do."""
        command, ip = request.command, request.connection.peer.rpartition(":")[0]
        if _matches(self._white, ip):
            return
        key = command.fields.get(_ACCESS_KEY, "")
        account = self._accounts.get(key)
        if account is None:
            raise _refused(f"no account for accessKey {key!r:.60}")
        if not _matches(account.white, ip) and not _is_signed(command, account.secret_key):
            raise _refused(f"signature of accessKey {key!r:.60} is wrong")
        if command.code in _ADMIN and not account.is_admin:
            raise _refused(f"request {command.code} needs an admin account, {key!r:.60} is none")
        for need in _needs(command):
            if not account.may(need):
                kind = "group" if need.is_group else "topic"
                raise _refused(f"{key!r:.60} has no permission {need.perm.name} of {kind} {need.name!r:.260}")


def signature(command: Command, secret_key: bytes, unsigned: frozenset[str] = frozenset({_SIGNATURE})) -> str:
    """What a client adds to the fields of a request, its access key among them, as Signature."""
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


# --- what requests need ----------------------------------------------------------------------------------

_ADMIN = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)


def _needs(command: Command) -> Iterator[Need]:
    find = _NEEDS.get(command.code)
    return iter(()) if find is None else find(command)


def _of_topic(field: str, perm: Perm) -> Callable[[Command], Iterator[Need]]:
    def needs(command: Command) -> Iterator[Need]:
        yield _topic(command.fields.get(field, ""), perm)

    return needs


def _of_group(field: str, topic: str | None = None) -> Callable[[Command], Iterator[Need]]:
    def needs(command: Command) -> Iterator[Need]:
        group = command.fields.get(field)
        if group is not None:  # UNREGISTER_CLIENT names a producer's instead
            yield Need(group, Perm.SUB, is_group=True)
        if topic is not None:
            yield _topic(command.fields.get(topic, ""), Perm.SUB)

    return needs


def _of_consumers(command: Command) -> Iterator[Need]:
    for consumer in Heartbeat.of(command.body).consumers or ():
        yield Need(consumer.group_name, Perm.SUB, is_group=True)
        yield from (_topic(each.topic, Perm.SUB) for each in consumer.subscription_data_set or ())


def _topic(name: str, perm: Perm) -> Need:
    """A group's own topic goes with the group."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return Need(name.removeprefix(RETRY_TOPIC_PREFIX), Perm.SUB, is_group=True)
    return Need(name, perm)


_NEEDS: Mapping[int, Callable[[Command], Iterator[Need]]] = {
    RequestCode.SEND_MESSAGE: _of_topic("topic", Perm.PUB),
    RequestCode.SEND_MESSAGE_V2: _of_topic("b", Perm.PUB),
    RequestCode.SEND_BATCH_MESSAGE: _of_topic("b", Perm.PUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: _of_group("group"),
    RequestCode.PULL_MESSAGE: _of_group("consumerGroup", "topic"),
    RequestCode.LITE_PULL_MESSAGE: _of_group("consumerGroup", "topic"),
    RequestCode.QUERY_MESSAGE: _of_topic("topic", Perm.SUB),
    RequestCode.HEART_BEAT: _of_consumers,
    RequestCode.UNREGISTER_CLIENT: _of_group("consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_group("consumerGroup"),
    RequestCode.QUERY_CONSUMER_OFFSET: _of_group("consumerGroup", "topic"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _of_group("consumerGroup", "topic"),
}


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
    """YAML takes a key of digits for a number."""
    value = content[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value):
        raise ValueError(f"{name}={value!r:.40} is no text")
    return str(value)


def _list(content: object) -> tuple[str, ...]:
    """Addresses: a list, or one text with commas between them."""
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
