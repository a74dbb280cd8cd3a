"""How far groups are, and who is in them, as admin tools ask."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from store.api.message_store import MessageStore
from store.broker.response_codes import ResponseCode
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import GROUP_SEPARATOR
from store.format.strict_json import encode
from store.model.errors import ArchiveError, ObjectsUnavailable, RequestRefused
from store.model.log_protocol import Queue
from store.remoting.clients import Clients, Consumer, Producer
from store.remoting.codes import Language, RequestCode
from store.remoting.group_offsets import ServedOffsets
from store.remoting.headers import ConsumeStats, Group, ProducerGroup, Topic
from store.remoting.older import Older
from store.remoting.request import Answer, Handler, Request, Response, of_json
from store.remoting.topics import message_queue, queue_table, table_of_queues


class Progress:
    """Puts together what the store, the groups' offsets and the connected clients say."""

    def __init__(
        self, store: MessageStore, broker: str, clients: Clients, offsets: ServedOffsets, older: Older
    ) -> None:
        self._store = store
        self._older = older
        self._broker = broker
        self._clients = clients
        self._offsets = offsets
        self._groups = ConsumerOffsets(store.path)

    def others(self) -> Mapping[int, Handler]:
        """Handlers that may wait."""
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

        return self._older.answer(request, queues, stats)

    def _all_stats(self, request: Request) -> Answer:
        """Of every group and topic."""
        self._offsets.persist()
        queues = [Queue(topic, id) for topic, count in self._store.topics().items() for id in range(count)]
        return self._older.answer(request, queues, lambda: self._of_all(request))

    def _of_all(self, request: Request) -> Response:
        of_groups, behind = [], 0
        for group in self._groups.names():
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
        """The groups that read a topic, or have."""
        topic = Topic.of(request.command.fields).topic
        had = (key.partition(GROUP_SEPARATOR) for key in self._groups.all_offsets())
        return of_json({"groupList": sorted({*self._clients.groups_of(topic), *(g for t, _, g in had if t == topic)})})

    def _topics(self, group: str) -> dict[str, int]:
        """Those that a group has offsets in, with their number of queues."""
        read = {
            key.partition(GROUP_SEPARATOR)[0]
            for key in self._groups.all_offsets()
            if key.partition(GROUP_SEPARATOR)[2] == group
        }
        return {topic: queues for topic, queues in self._store.topics().items() if topic in read}

    def _progress(self, group: str, queue: Queue) -> dict[str, int]:
        """RocketMQ's OffsetWrapper; offsets below 0 are none."""
        offset = self._offsets.committed(group, queue)
        end = self._store.max_offset(queue.topic, queue.queue_id)
        time = 0
        with suppress(ArchiveError, ObjectsUnavailable):  # logged elsewhere; the offsets are known without it
            time = (self._older.stored_at(queue, offset - 1) if offset and offset <= end else None) or 0
        offset = -1 if offset is None else offset
        return {"brokerOffset": end, "consumerOffset": offset, "pullOffset": offset, "lastTimestamp": time}

    def _connections(self, request: Request) -> Response:
        group = Group.of(request.command.fields).consumer_group
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


def _connection_set(clients: Mapping[str, Consumer] | Mapping[str, Producer]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": client.connection.peer,
            "clientId": client_id,
            "language": Language(client.language).name,
            "version": client.version,
        }
        for client_id, client in clients.items()
    ]
