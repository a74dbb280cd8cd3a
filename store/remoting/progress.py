"""How far groups are, and who is in them, as admin tools ask."""

from __future__ import annotations

from collections.abc import Mapping

from store import MessageStore, RequestRefused
from store.any_log import Queue
from store.broker.response_codes import ResponseCode
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import GROUP_SEPARATOR
from store.remoting.clients import Clients
from store.remoting.codes import Language, RequestCode
from store.remoting.group_offsets import ServedOffsets
from store.remoting.headers import ConsumeStats, Group
from store.remoting.request import Handler, Request, Response, of_json
from store.remoting.topics import message_queue, queue_table


class Progress:
    """Puts together what the store, the groups' offsets and the connected clients say."""

    def __init__(self, store: MessageStore, broker: str, clients: Clients, offsets: ServedOffsets) -> None:
        self._store = store
        self._broker = broker
        self._clients = clients
        self._offsets = offsets

    def others(self) -> Mapping[int, Handler]:
        """Handlers for threads of the pool."""
        return {
            RequestCode.GET_CONSUME_STATS: self._stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
        }

    def _stats(self, request: Request) -> Response:
        header = ConsumeStats.of(request.command.fields)
        self._offsets.persist()
        topics = self._topics(header.consumer_group)
        return queue_table(
            (message_queue(self._broker, topic, id), self._progress(header.consumer_group, Queue(topic, id)))
            for topic, queues in topics.items()
            for id in range(queues)
            if header.topic in (None, "", topic)
        )

    def _topics(self, group: str) -> dict[str, int]:
        """Those that a group has offsets in, with their number of queues."""
        read = {
            key.partition(GROUP_SEPARATOR)[0]
            for key in ConsumerOffsets(self._store.path).all_offsets()
            if key.partition(GROUP_SEPARATOR)[2] == group
        }
        return {topic: queues for topic, queues in self._store.topics().items() if topic in read}

    def _progress(self, group: str, queue: Queue) -> dict[str, int]:
        """RocketMQ's OffsetWrapper; offsets below 0 are none."""
        offset = self._offsets.committed(group, queue)
        end = self._store.max_offset(*queue)
        last = self._store.fingerprint(*queue, offset - 1) if offset is not None and 0 < offset <= end else None
        time = 0 if last is None else last.store_timestamp
        return {"brokerOffset": end, "consumerOffset": -1 if offset is None else offset, "lastTimestamp": time}

    def _connections(self, request: Request) -> Response:
        group = Group.of(request.command.fields).consumer_group
        consumers = self._clients.consumers(group)
        if not consumers:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        said = next(iter(consumers.values())).said
        connections = [
            {
                "clientAddr": consumer.connection.peer,
                "clientId": client_id,
                "language": Language(consumer.language).name,
                "version": consumer.version,
            }
            for client_id, consumer in consumers.items()
        ]
        return of_json(
            {
                "connectionSet": connections,
                "consumeFromWhere": said.get("consumeFromWhere"),
                "consumeType": said.get("consumeType"),
                "messageModel": said.get("messageModel"),
                "subscriptionTable": {each["topic"]: each for each in said.get("subscriptionDataSet") or ()},
            }
        )
