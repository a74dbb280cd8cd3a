"""Offsets of queues, and how far groups have read."""

from __future__ import annotations

from collections.abc import Mapping

from store.api.message_store import MessageStore
from store.broker.response_codes import ResponseCode
from store.files.consumer_offsets import ConsumerOffsets
from store.model.errors import RequestRefused
from store.model.log_protocol import Boundary, Queue
from store.remoting.clients import Clients
from store.remoting.codes import RequestCode
from store.remoting.group_offsets import ServedOffsets
from store.remoting.headers import CommitOffset, GroupQueue, Offset, SearchOffset, Timestamp, TopicQueue
from store.remoting.older import Older
from store.remoting.request import Answer, Handler, Request, Response, of_json


class Offsets:
    """Translates what is asked of queues to the store, of groups to their offsets."""

    def __init__(self, store: MessageStore, clients: Clients, groups: ServedOffsets, older: Older) -> None:
        self._store = store
        self._clients = clients
        self._groups = groups
        self._older = older

    def others(self) -> Mapping[int, Handler]:
        """Handlers that may wait."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    def _query(self, request: Request) -> Response:
        """A group without an offset begins at 0 where all messages are there still, as RocketMQ's do."""
        header = GroupQueue.of(request.command.fields)
        offset = self._groups.committed(header.consumer_group, Queue(header.topic, header.queue_id))
        if offset is None:
            if not header.set_zero_if_not_found or self._store.min_offset(header.topic, header.queue_id) > 0:
                raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = 0
        return Response(header=Offset(offset))

    def _all(self, request: Request) -> Response:
        self._groups.persist()
        return of_json({"offsetTable": ConsumerOffsets(self._store.path).all_offsets()})

    def _update(self, request: Request) -> Response:
        header = CommitOffset.of(request.command.fields)
        group, queue, offset = header.consumer_group, Queue(header.topic, header.queue_id), header.commit_offset
        self._store.max_offset(queue.topic, queue.queue_id)  # or there is no such queue
        self._groups.commit(group, queue, offset)
        if not self._clients.consumers(group):  # others may join beside the server, who go by the files
            self._groups.persist()
        return Response()

    def _max(self, request: Request) -> Response:
        header = TopicQueue.of(request.command.fields)
        return Response(header=Offset(self._store.max_offset(header.topic, header.queue_id)))

    def _min(self, request: Request) -> Answer:
        header = TopicQueue.of(request.command.fields)
        queue = Queue(header.topic, header.queue_id)
        return self._older.answer(request, [queue], lambda: Response(header=Offset(self._older.bounds(queue)[0])))

    def _search(self, request: Request) -> Answer:
        header = SearchOffset.of(request.command.fields)
        boundary = Boundary.UPPER if (header.boundary_type or "").lower() == "upper" else Boundary.LOWER
        queue = Queue(header.topic, header.queue_id)

        def search() -> Response:
            return Response(header=Offset(self._older.offset_by_time(queue, header.timestamp, boundary)))

        return self._older.answer(request, [queue], search)

    def _earliest(self, request: Request) -> Answer:
        """The store time of a queue's oldest message; -1 without one, as RocketMQ answers."""
        header = TopicQueue.of(request.command.fields)
        queue = Queue(header.topic, header.queue_id)

        def earliest() -> Response:
            minimum, maximum = self._older.bounds(queue)
            found = self._older.stored_at(queue, minimum) if minimum < maximum else None
            return Response(header=Timestamp(-1 if found is None else found))

        return self._older.answer(request, [queue], earliest)
