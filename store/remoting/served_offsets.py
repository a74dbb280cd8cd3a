"""How far the groups of clients have read: in memory, and written to the store's files every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from store.api.group_protocol import MessageModel
from store.api.message_store import MessageStore
from store.broker.members import Roster
from store.files.consumer_offsets import ConsumerOffsets, check_may_commit
from store.files.topics import Topics
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import OffsetOutOfRange, RequestRefused, StoreError
from store.model.log_protocol import Boundary, Queue
from store.publish.locks import among_groups
from store.remoting.clients import Clients
from store.remoting.headers import CommitOffset, GroupQueue, Offset, SearchOffset, Timestamp, TopicQueue
from store.remoting.request import Answer, Handler, Request, Response, of_json
from store.remoting.tiered_store import TieredStore

PERSIST_SECONDS = 5.0  # flushConsumerOffsetInterval
_logger = logging.getLogger("store.remoting")


class ServedOffsets:
    """RocketMQ's ConsumerOffsetManager: the last commit counts, also a smaller offset. Threads may share it.

    Only commits that are not in the files yet are kept. They replace what another process commits meanwhile.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._files = ConsumerOffsets(store.path)
        self._topics = Topics(Path(store.path))
        self._lock = threading.Lock()
        self._persisting = threading.Lock()  # one thread at a time writes, so that the last commit is written last
        self._new: dict[tuple[str, Queue], int] = {}

    def committed(self, group: str, queue: Queue) -> int | None:
        """Return the offset to read next, None if the group has none."""
        with self._lock:
            new = self._new.get((group, queue))
        written = self._store.consumer_offset(group, queue.topic, queue.queue_id)
        return written if new is None else new

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Set what a group has to read next. Raises `InvalidGroup`, `OffsetOutOfRange`."""
        check_may_commit(group)
        if offset < 0:
            raise OffsetOutOfRange(f"group {group}, {queue}: {offset} is no offset; they begin at 0")
        with self._lock:
            self._new[group, queue] = offset

    @contextmanager
    def replacing(self, group: str, queues: Iterable[Queue]) -> Iterator[None]:
        """Set the offsets of these queues in the files inside: commits from before do not count afterwards."""
        with self._persisting:
            yield
            with self._lock:
                for queue in queues:
                    self._new.pop((group, queue), None)

    def persist(self) -> None:
        """Write all new commits; those that cannot be written are tried again the next time."""
        with self._persisting:
            with self._lock:
                new = dict(self._new)
            if not new:
                return
            try:
                self._store.flush()  # first, what clients sent back and take for done
                with among_groups(self._store.path, self._store.config.lockTimeoutMillis / 1000):
                    self._write(new)
            except (StoreError, OSError) as error:
                _logger.warning("how far groups have read is noted later, in %d queues: %s", len(new), error)
                return
            with self._lock:
                for key, offset in new.items():
                    if self._new.get(key) == offset:
                        del self._new[key]

    def _write(self, new: Mapping[tuple[str, Queue], int]) -> None:
        """Skip queues that do not exist, and clients that would set members beside the server back."""
        written = self._files.of_groups(new)
        news = {
            (group, queue): offset
            for (group, queue), offset in new.items()
            if offset != (now := written.get((group, queue)))
            and queue.queue_id < self._topics.queue_count(queue.topic)
            and not (offset < (now or 0) and self._has_members(group))
        }
        if news:
            self._files.set_of_groups(news)

    def _has_members(self, group: str) -> bool:
        """Whether consumers beside the server share its queues."""
        return any(each.model is MessageModel.CLUSTERING for each in Roster(self._store.path, group).present())


class Offsets:
    """Translates what is asked of queues to the store, of groups to their offsets."""

    def __init__(self, store: MessageStore, clients: Clients, groups: ServedOffsets, older: TieredStore) -> None:
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
