"""Groups that may not consume, as their settings say: `consumeEnable`, `consumeBroadcastEnable`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from store.api.message_store import MessageStore
from store.broker.response_codes import ResponseCode
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import GROUPS_FILE
from store.model.errors import RequestRefused
from store.remoting.clients import Clients

_ENABLED, _BROADCAST_ENABLED = "consumeEnable", "consumeBroadcastEnable"


class Permissions:
    """Asked at each pull, so the file is read only when it changed, whoever changed it."""

    def __init__(self, store: MessageStore, clients: Clients) -> None:
        self._path = store.path / GROUPS_FILE
        self._files = ConsumerOffsets(store.path)
        self._clients = clients
        self._seen: tuple[int, int] | None = None
        self._restricted: Mapping[str, Mapping[str, Any]] = {}

    def check(self, group: str) -> None:
        """Raises `RequestRefused` where a group may not consume, or not so."""
        self._look()
        settings = self._restricted.get(group)
        if settings is None:
            return
        if settings.get(_ENABLED) is False:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        if any(consumer.is_broadcasting for consumer in self._clients.consumers(group).values()):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way"
            )

    def _look(self) -> None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:  # no group has settings
            self._seen, self._restricted = None, {}
            return
        seen = status.st_ino, status.st_mtime_ns
        if seen != self._seen:
            found = self._files.all_settings().items()
            self._restricted = {
                group: its for group, its in found if False in (its.get(_ENABLED), its.get(_BROADCAST_ENABLED))
            }
            self._seen = seen
