"""Settings of groups, and resets, as admin tools ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.api.message_store import MessageStore
from store.broker.response_codes import ResponseCode
from store.directory.directory_group import LocalGroup
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import MAX_QUEUES
from store.model.errors import RequestRefused
from store.model.integers import INT_MAX, integer
from store.model.log_protocol import Positions, Queue
from store.remoting.clients import Clients
from store.remoting.codes import CommandFlag, RequestCode
from store.remoting.command import Command, parse_json
from store.remoting.group_offsets import ServedOffsets
from store.remoting.headers import DeleteGroup, GroupSettings, ResetOffset
from store.remoting.neighbours import Neighbours
from store.remoting.older import Older
from store.remoting.request import Answer, Handler, Request, Response, of_json
from store.remoting.topics import message_queue, table_of_queues

_TO_THE_END = -1
# Those that count here: numbers up to, and those that are true or false.
_NUMBERS = {"retryMaxTimes": INT_MAX, "retryQueueNums": MAX_QUEUES}
_SWITCHES = ("consumeEnable", "consumeBroadcastEnable")
# Of one group: everybody reads the file of all, also whose stack has less room for what is nested.
_MAX_SETTINGS_BYTES, _MAX_NESTED = 64 << 10, 500


class ServedGroups:
    """What groups are, not who is in them."""

    def __init__(
        self,
        store: MessageStore,
        broker: str,
        clients: Clients,
        neighbours: Neighbours,
        offsets: ServedOffsets,
        older: Older,
    ) -> None:
        self._store = store
        self._neighbours = neighbours
        self._older = older
        self._broker = broker
        self._clients = clients
        self._offsets = offsets
        self._files = ConsumerOffsets(store.path)

    def others(self) -> Mapping[int, Handler]:
        """Handlers that may wait."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._configure,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._settings,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_settings,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
        }

    def _configure(self, request: Request) -> Response:
        body = bytes(request.command.body)
        if len(body) > _MAX_SETTINGS_BYTES or body.count(b"{") + body.count(b"[") > _MAX_NESTED:
            why = f"settings of a group have at most {_MAX_SETTINGS_BYTES:,} bytes and {_MAX_NESTED} objects and lists"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, why)
        settings = parse_json(body, dict[str, Any])
        for name in settings.keys() & _NUMBERS.keys():
            integer(name, settings[name], maximum=_NUMBERS[name])
        if any(type(settings.get(name, True)) is not bool for name in _SWITCHES):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{', '.join(_SWITCHES)} are true or false")
        self._group(str(settings.get("groupName") or "")).configure(settings)
        return Response()

    def _group(self, name: str) -> LocalGroup:
        return LocalGroup(self._store.path, name)

    def _settings(self, request: Request) -> Response:
        group = GroupSettings.of(request.command.fields).group
        settings = self._files.settings(group)
        if settings is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
        return of_json(settings)

    def _all_settings(self, request: Request) -> Response:
        version: dict[str, Any] = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        return of_json({"dataVersion": version, "subscriptionGroupTable": self._files.all_settings()})

    def _delete(self, request: Request) -> Response:
        header = DeleteGroup.of(request.command.fields)
        self._offsets.persist()
        self._group(header.group_name).delete(with_offsets=header.clean_offset)
        return Response()

    def _reset(self, request: Request) -> Answer:
        """Set offsets, and tell the group's consumers, who would go on where they are."""
        header = ResetOffset.of(request.command.fields)
        queues = self._store.topics().get(header.topic, 0)
        if not queues:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        asked = range(queues) if header.queue_id < 0 else [header.queue_id]
        of_topic = [Queue(header.topic, id) for id in asked]
        return self._older.answer(request, of_topic, lambda: self._set(header, of_topic))

    def _set(self, header: ResetOffset, queues: Sequence[Queue]) -> Response:
        positions = {queue: self._begin(header, queue) for queue in queues}
        self._offsets.persist()
        with self._offsets.replacing(header.group, positions):
            self._group(header.group).reset(positions, by_its_server=self._neighbours.has(header.group))
        body = self._table(positions)
        told = Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header.texts(), body, flag=CommandFlag.ONEWAY)
        for consumer in self._clients.consumers(header.group).values():
            consumer.connection.send_soon(told)
        return Response(body=(body,))

    def _begin(self, header: ResetOffset, queue: Queue) -> int:
        """Where the group is to read on; without `force` not behind where it is."""
        if header.offset is not None and header.offset >= 0:
            return header.offset
        if header.timestamp == _TO_THE_END:
            found = self._store.max_offset(queue.topic, queue.queue_id)
        else:
            found = self._older.offset_by_time(queue, header.timestamp)
        current = self._offsets.committed(header.group, queue)
        return found if header.is_force or current is None else min(found, current)

    def _table(self, positions: Positions) -> bytes:
        rows = ((message_queue(self._broker, queue), offset) for queue, offset in positions.items())
        return b'{"offsetTable":%b}' % table_of_queues(rows)
