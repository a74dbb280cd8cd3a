"""Topics, the offsets of their queues, and single messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from store.api.message_store import delete_topic
from store.format.layout import PROPERTY_REAL_TOPIC, PROPERTY_RETRY_TOPIC
from store.format.stored_message import StoredMessage, decode_record
from store.format.strict_json import encode
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RequestRefused
from store.model.log_protocol import Boundary, Queue
from store.remoting.bodies import MessageQueue
from store.remoting.headers import (
    CreateTopic,
    Found,
    Offset,
    QueryMessage,
    SearchOffset,
    Timestamp,
    Topic,
    TopicQueue,
    ViewMessage,
)
from store.remoting.request import Answer, Handler, Request, Response, of_json
from store.remoting.rights import Perm, of_topic
from store.remoting.served_broker import ServedBroker
from store.remoting.served_routes import READ_WRITE

_MOST_FOUND = 64  # maxMsgsNumBatch


class ServedTopics:
    def __init__(self, broker: ServedBroker) -> None:
        self._store = broker.store
        self._broker = broker.name
        self._tiered = broker.tiered
        self._access = broker.access

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create,
            RequestCode.GET_TOPIC_CONFIG: self._config,
            RequestCode.GET_TOPIC_STATS_INFO: self._stats,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda request: Response(),  # it has the broker's topics
            RequestCode.QUERY_MESSAGE: self._query,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    def _create(self, request: Request) -> Response:
        header = CreateTopic.of(request.command.fields)
        if header.read_queue_nums != header.write_queue_nums or header.perm != READ_WRITE:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topic {header.topic}: {header.write_queue_nums} queues to write, {header.read_queue_nums} to read, "
                f"perm {header.perm}: here topics are read and written (perm {READ_WRITE}), with one number of queues",
            )
        self._store.create_topic(header.topic, header.write_queue_nums)
        return Response()

    def _delete(self, request: Request) -> Response:
        topic, _ = self._known(request)
        delete_topic(self._store.path, topic)
        return Response()

    def _config(self, request: Request) -> Response:
        topic, queues = self._known(request)
        settings = {
            "attributes": {},
            "order": False,
            "perm": READ_WRITE,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        return of_json(settings)

    def _known(self, request: Request) -> tuple[str, int]:
        topic = Topic.of(request.command.fields).topic
        queues = self._store.topics().get(topic, 0)
        if not queues:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return topic, queues

    def _stats(self, request: Request) -> Answer:
        topic, count = self._known(request)
        queues = [Queue(topic, queue_id) for queue_id in range(count)]

        def stats() -> Response:
            return queue_table((message_queue(self._broker, queue), self._offsets(queue)) for queue in queues)

        return self._tiered.answer(request, queues, stats)

    def _offsets(self, queue: Queue) -> dict[str, int]:
        minimum, maximum = self._tiered.bounds(queue)
        last = self._tiered.stored_at(queue, maximum - 1) if minimum < maximum else None
        return {"lastUpdateTimestamp": last or 0, "maxOffset": maximum, "minOffset": minimum}

    def _view(self, request: Request) -> Answer:
        header = ViewMessage.of(request.command.fields)

        def view(record: bytes) -> Response:
            message = decode_record(record, f"commit log offset {header.offset}", check_crc=False)
            self._access.must_have(request, of_topic(message.topic, Perm.SUB))
            must_be_of(message, header.topic)
            return Response(body=(record,))

        return self._tiered.answer_of(request, header.offset, view)

    def _max(self, request: Request) -> Response:
        header = TopicQueue.of(request.command.fields)
        return Response(header=Offset(self._store.max_offset(header.topic, header.queue_id)))

    def _min(self, request: Request) -> Answer:
        header = TopicQueue.of(request.command.fields)
        queue = Queue(header.topic, header.queue_id)
        return self._tiered.answer(request, [queue], lambda: Response(header=Offset(self._tiered.bounds(queue)[0])))

    def _search(self, request: Request) -> Answer:
        header = SearchOffset.of(request.command.fields)
        boundary = Boundary.UPPER if (header.boundary_type or "").lower() == "upper" else Boundary.LOWER
        queue = Queue(header.topic, header.queue_id)

        def search() -> Response:
            return Response(header=Offset(self._tiered.offset_by_time(queue, header.timestamp, boundary)))

        return self._tiered.answer(request, [queue], search)

    def _earliest(self, request: Request) -> Answer:
        header = TopicQueue.of(request.command.fields)
        queue = Queue(header.topic, header.queue_id)

        def earliest() -> Response:
            minimum, maximum = self._tiered.bounds(queue)
            found = self._tiered.stored_at(queue, minimum) if minimum < maximum else None
            return Response(header=Timestamp(-1 if found is None else found))  # as in RocketMQ

        return self._tiered.answer(request, [queue], earliest)

    def _query(self, request: Request) -> Answer:
        header = QueryMessage.of(request.command.fields)
        most = max(1, min(header.max_num, _MOST_FOUND))

        def query() -> Response:
            found = self._store.query(header.topic, header.key, most, header.begin_timestamp, header.end_timestamp)
            if not found:
                raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
            last = Found(found[-1].store_timestamp, found[-1].physical_offset)
            return Response(header=last, body=self._tiered.records(found))

        queues = [Queue(header.topic, queue_id) for queue_id in range(self._store.topics().get(header.topic, 0))]
        return self._tiered.answer(request, queues, query)


def must_be_of(message: StoredMessage, topic: str | None) -> None:
    """Raise `RequestRefused` if a message has another topic than a client expects.

    An id from an archive, or from before the store was restored, may name another message here.
    """
    own = {message.topic, *(message.properties.get(name) for name in (PROPERTY_RETRY_TOPIC, PROPERTY_REAL_TOPIC))}
    if topic and not any(each and each.endswith(topic) for each in own):  # it may lack its namespace
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            f"at commit log offset {message.physical_offset} stands a message of topic {message.topic}, and not of "
            f"{topic}: an id names another message there than here; look for it by topic, queue and offset",
        )


def message_queue(broker: str, queue: Queue) -> MessageQueue:
    return MessageQueue(broker, queue.queue_id, queue.topic)


def queue_table(rows: Iterable[tuple[MessageQueue, dict[str, int]]]) -> Response:
    """Return a table of queues in fastjson's format. This is not JSON, because its keys are objects."""
    return Response(body=(b'{"offsetTable":%b}' % table_of_queues(rows),))


def table_of_queues(rows: Iterable[tuple[MessageQueue, object]]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (encode(queue), encode(values)) for queue, values in rows)
