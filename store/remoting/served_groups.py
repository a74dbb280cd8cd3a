"""Groups: their settings, offsets and resets, progress, and members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from store.directory.directory_group import DirectoryGroup
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.layout import GROUP_SEPARATOR, MAX_QUEUES
from store.format.strict_json import encode
from store.model.codes import CommandFlag, Language, RequestCode, ResponseCode
from store.model.errors import ArchiveError, ObjectsUnavailable, OffsetOutOfRange, RequestRefused
from store.model.integers import INT_MAX, integer
from store.model.log_protocol import Positions, Queue
from store.remoting.clients import ConsumerClient, ProducerClient
from store.remoting.command import Command, parse_json
from store.remoting.headers import (
    CommitOffset,
    ConsumerGroup,
    ConsumeStats,
    DeleteGroup,
    GroupQueue,
    GroupSettings,
    Offset,
    ProducerGroup,
    ResetOffset,
    Topic,
)
from store.remoting.heart_beats import GroupLocks
from store.remoting.request import Answer, Handler, Request, Response, of_json
from store.remoting.rights import of_group
from store.remoting.served_broker import ServedBroker
from store.remoting.served_topics import message_queue, queue_table, table_of_queues
from store.remoting.threads import settle

_TO_THE_END = -1
_NUMBERS = {"retryMaxTimes": INT_MAX, "retryQueueNums": MAX_QUEUES}
_SWITCHES = ("consumeEnable", "consumeBroadcastEnable")
# of a group: processes with a smaller stack for nested values read the file, too
_MAX_SETTINGS_BYTES, _MAX_NESTED = 64 << 10, 500


class ServedGroups:
    def __init__(self, broker: ServedBroker, group_locks: GroupLocks) -> None:
        self._store = broker.store
        self._broker = broker.name
        self._clients = broker.clients
        self._offsets = broker.offsets
        self._tiered = broker.tiered
        self._group_locks = group_locks
        self._access = broker.access
        self._files = ConsumerOffsets(broker.store.path)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._configure,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._settings,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_settings,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.QUERY_CONSUMER_OFFSET: self._offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
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

    def _group(self, name: str) -> DirectoryGroup:
        return DirectoryGroup(self._store.path, name)

    def _settings(self, request: Request) -> Response:
        group = GroupSettings.of(request.command.fields).group
        settings = self._files.settings.of(group)
        if settings is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
        return of_json(settings)

    def _all_settings(self, request: Request) -> Response:
        version: dict[str, Any] = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        return of_json({"dataVersion": version, "subscriptionGroupTable": self._files.settings.all()})

    def _delete(self, request: Request) -> Response:
        header = DeleteGroup.of(request.command.fields)
        self._offsets.persist()
        self._group(header.group_name).delete(with_offsets=header.clean_offset)
        return Response()

    def _offset(self, request: Request) -> Response:
        header = GroupQueue.of(request.command.fields)
        offset = self._offsets.committed(header.consumer_group, Queue(header.topic, header.queue_id))
        if offset is None:
            if not header.set_zero_if_not_found or self._store.min_offset(header.topic, header.queue_id) > 0:
                raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = 0  # as in RocketMQ
        return Response(header=Offset(offset))

    def _all_offsets(self, request: Request) -> Response:
        self._offsets.persist()
        found = self._files.all_offsets().items()
        seen = {
            key: each for key, each in found if self._access.has(request, of_group(key.partition(GROUP_SEPARATOR)[2]))
        }
        return of_json({"offsetTable": seen})

    def _commit(self, request: Request) -> Answer:
        header = CommitOffset.of(request.command.fields)
        group, queue, offset = header.consumer_group, Queue(header.topic, header.queue_id), header.commit_offset
        end = self._store.max_offset(queue.topic, queue.queue_id)
        if offset > end:  # the group would skip all messages up to it
            raise OffsetOutOfRange(f"group {group}, {queue}: offset {offset} is after the queue's end, {end}")
        self._offsets.commit(group, queue, offset)
        if self._clients.consumers(group):
            return Response()
        written: Future[Response] = Future()  # consumers of this host may join, and read the files
        self._offsets.persist_soon().add_done_callback(lambda done: settle(written, Response))
        return written

    def _reset(self, request: Request) -> Answer:
        header = ResetOffset.of(request.command.fields)
        queues = self._store.topics().get(header.topic, 0)
        if not queues:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        asked = range(queues) if header.queue_id < 0 else [header.queue_id]
        of_topic = [Queue(header.topic, id) for id in asked]
        return self._tiered.answer(request, of_topic, lambda: self._set(header, of_topic))

    def _set(self, header: ResetOffset, queues: Sequence[Queue]) -> Response:
        positions = {queue: self._begin(header, queue) for queue in queues}
        self._offsets.persist()
        with self._offsets.replacing(header.group, positions):
            self._group(header.group).reset(positions, by_its_server=self._group_locks.has(header.group))
        body = self._table(positions)
        told = Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header.texts(), body, flag=CommandFlag.ONEWAY)
        # Without a notification, consumers would continue from their own offsets.
        for consumer in self._clients.consumers(header.group).values():
            consumer.connection.send_soon(told)
        return Response(body=(body,))

    def _begin(self, header: ResetOffset, queue: Queue) -> int:
        """Return the offset at which a group continues. A reset to a time moves it forward only with `is_force`."""
        if header.offset is not None and header.offset >= 0:
            return min(header.offset, self._store.max_offset(queue.topic, queue.queue_id))
        if header.timestamp == _TO_THE_END:
            found = self._store.max_offset(queue.topic, queue.queue_id)
        else:
            found = self._tiered.offset_by_time(queue, header.timestamp)
        current = self._offsets.committed(header.group, queue)
        return found if header.is_force or current is None else min(found, current)

    def _table(self, positions: Positions) -> bytes:
        rows = ((message_queue(self._broker, queue), offset) for queue, offset in positions.items())
        return b'{"offsetTable":%b}' % table_of_queues(rows)


class GroupStats:
    def __init__(self, broker: ServedBroker) -> None:
        self._store = broker.store
        self._broker = broker.name
        self._clients = broker.clients
        self._offsets = broker.offsets
        self._tiered = broker.tiered
        self._files = ConsumerOffsets(broker.store.path)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self._stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self._all_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._readers,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
        }

    def _stats(self, request: Request) -> Answer:
        header = ConsumeStats.of(request.command.fields)
        self._offsets.persist()
        group = header.consumer_group
        queues = [
            Queue(topic, id)
            for topic, count in self._topics(group).items()
            for id in range(count)
            if header.topic in (None, "", topic)
        ]

        def stats() -> Response:
            return queue_table((message_queue(self._broker, queue), self._progress(group, queue)) for queue in queues)

        return self._tiered.answer(request, queues, stats)

    def _all_stats(self, request: Request) -> Answer:
        self._offsets.persist()
        queues = [Queue(topic, id) for topic, count in self._store.topics().items() for id in range(count)]
        return self._tiered.answer(request, queues, lambda: self._of_all(request))

    def _of_all(self, request: Request) -> Response:
        of_groups, behind = [], 0
        for group in self._files.names():
            tables = []
            for topic, queues in self._topics(group).items():
                found = {Queue(topic, id): self._progress(group, Queue(topic, id)) for id in range(queues)}
                behind += sum(each["brokerOffset"] - max(0, each["consumerOffset"]) for each in found.values())
                rows = table_of_queues((message_queue(self._broker, queue), each) for queue, each in found.items())
                tables.append(b'{"consumeTps":0.0,"offsetTable":%b}' % rows)
            of_groups.append(b"{%b:[%b]}" % (encode(group), b",".join(tables)))
        address = encode(request.connection.here)
        body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d}' % (address, b",".join(of_groups), behind)
        return Response(body=(body,))

    def _readers(self, request: Request) -> Response:
        topic = Topic.of(request.command.fields).topic
        had = (key.partition(GROUP_SEPARATOR) for key in self._files.all_offsets())
        return of_json({"groupList": sorted({*self._clients.groups_of(topic), *(g for t, _, g in had if t == topic)})})

    def _topics(self, group: str) -> dict[str, int]:
        read = {
            key.partition(GROUP_SEPARATOR)[0]
            for key in self._files.all_offsets()
            if key.partition(GROUP_SEPARATOR)[2] == group
        }
        return {topic: queues for topic, queues in self._store.topics().items() if topic in read}

    def _progress(self, group: str, queue: Queue) -> dict[str, int]:
        offset = self._offsets.committed(group, queue)
        end = self._store.max_offset(queue.topic, queue.queue_id)
        time = 0
        with suppress(ArchiveError, ObjectsUnavailable):  # logged elsewhere; the offsets are known without it
            time = (self._tiered.stored_at(queue, offset - 1) if offset and offset <= end else None) or 0
        offset = -1 if offset is None else offset  # as in RocketMQ's OffsetWrapper
        return {"brokerOffset": end, "consumerOffset": offset, "pullOffset": offset, "lastTimestamp": time}

    def _connections(self, request: Request) -> Response:
        group = ConsumerGroup.of(request.command.fields).consumer_group
        consumers = self._clients.consumers(group)
        if not consumers:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        first = next(iter(consumers.values()))
        return of_json(
            {
                "connectionSet": _connection_set(consumers),
                "consumeFromWhere": first.data.consume_from_where,
                "consumeType": first.data.consume_type,
                "messageModel": first.data.message_model,
                "subscriptionTable": first.topics,
            }
        )

    def _producers(self, request: Request) -> Response:
        group = ProducerGroup.of(request.command.fields).producer_group
        producers = self._clients.producers(group)
        if not producers:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return of_json({"connectionSet": _connection_set(producers)})


def _connection_set(clients: Mapping[str, ConsumerClient] | Mapping[str, ProducerClient]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": client.connection.peer,
            "clientId": client_id,
            "language": Language(client.language).name,
            "version": client.version,
        }
        for client_id, client in clients.items()
    ]
