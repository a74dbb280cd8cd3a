"""PULL_MESSAGE: answered from the mapped log, or held until a message arrives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from store.api.group_protocol import EVERYTHING
from store.broker.hold import HeldRequest, PullRequestHoldService
from store.broker.pull import PullRequest, PullResponse, answer
from store.disk.consumer_offsets import ConsumerOffsets, check_group_name
from store.disk.figures import HELD, Figure
from store.format.layout import GROUPS_FILE
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RequestRefused
from store.model.log_protocol import MessageFilter, Queue
from store.read.filters import TagFilter
from store.read.getting import GetStatus
from store.remoting.connection import Connection
from store.remoting.headers import Pulled, PullMessage
from store.remoting.request import Answer, Handler, Request, Response
from store.remoting.served_broker import ServedBroker
from store.remoting.served_filters import ServedFilters
from store.remoting.threads import LoopThread, WorkerPool, settle

_ENABLED, _BROADCAST_ENABLED = "consumeEnable", "consumeBroadcastEnable"


class Permissions:
    """Refuses groups by their settings `consumeEnable` and `consumeBroadcastEnable`.

    Each pull calls `check`, so the file is read only after a change.
    """

    def __init__(self, broker: ServedBroker) -> None:
        self._path = broker.store.path / GROUPS_FILE
        self._files = ConsumerOffsets(broker.store.path)
        self._clients = broker.clients
        self._seen: tuple[int, int] | None = None
        self._restricted: Mapping[str, Mapping[str, Any]] = {}

    def check(self, group: str) -> None:
        """Raise `RequestRefused` if a group may not consume, or not by broadcasting."""
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
            found = self._files.settings.all().items()
            self._restricted = {
                group: its for group, its in found if False in (its.get(_ENABLED), its.get(_BROADCAST_ENABLED))
            }
            self._seen = seen


_COMMIT, _SUSPEND, _SUBSCRIPTION = 1, 2, 4  # PullSysFlag
_BEFORE = GetStatus.OFFSET_TOO_SMALL.name
_OF_A_QUEUE = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
_MASTER = 0
_MAX_HELD = 32_768  # each takes about 4 KB
_MAX_HOLD_SECONDS = 120.0


class Pulling:
    """Answers pulls, and holds pulls without messages. Only for the loop's thread, except `_pull_in_worker`."""

    def __init__(
        self, broker: ServedBroker, hold: PullRequestHoldService, thread: LoopThread, workers: WorkerPool
    ) -> None:
        self._store = broker.store
        self._clients = broker.clients
        self._offsets = broker.offsets
        self._tiered = broker.tiered
        self._permissions = Permissions(broker)
        self._filters = ServedFilters()
        self._figures = broker.store.figures
        self._hold = hold
        self._thread = thread
        self._workers = workers
        self._held: dict[Connection, dict[HeldRequest, Figure]] = {}
        self._count = 0

    def quick_handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self._pull, RequestCode.LITE_PULL_MESSAGE: self._pull}

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self._pull_in_worker, RequestCode.LITE_PULL_MESSAGE: self._pull_in_worker}

    def lost(self, connection: Connection) -> None:
        held_by = self._held.pop(connection, {})
        while held_by:
            held, figure = held_by.popitem()
            self._forget(figure)
            self._hold.cancel(held)

    def _pull(self, request: Request) -> Answer | None:
        """Answer a pull, or return None if its filter is slow to parse or apply. Then a worker answers the pull."""
        header = PullMessage.of(request.command.fields)
        accept = self._filters.quick(*self._subscription(header))
        if accept is None or not isinstance(accept, TagFilter):
            return None
        pull = self._asked(header, accept)
        return self._go_on(request.connection, header, pull, self._now(pull))

    def _pull_in_worker(self, request: Request) -> Future[Answer]:
        header = PullMessage.of(request.command.fields)
        subscription = self._subscription(header)
        pull = self._asked(header, self._filters.quick(*subscription) or self._filters.parse(*subscription))
        response, answered = self._now(pull), Future[Answer]()
        self._thread.call(settle, answered, lambda: self._go_on(request.connection, header, pull, response))
        return answered

    def _asked(self, header: PullMessage, accept: MessageFilter) -> PullRequest:
        check_group_name(header.consumer_group)  # its offsets stay in memory
        self._permissions.check(header.consumer_group)
        return PullRequest(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset, header.max_msg_nums, accept
        )

    def _go_on(self, connection: Connection, header: PullMessage, pull: PullRequest, response: PullResponse) -> Answer:
        commit_offset = header.commit_offset if header.sys_flag & _COMMIT else 0
        self._commit(pull, response, commit_offset)
        if _is_before(response):
            return self._answer_from_archive(connection, pull)
        if response.code is not ResponseCode.PULL_NOT_FOUND or not header.sys_flag & _SUSPEND:
            return _answer(response)
        if self._count >= _MAX_HELD:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{_MAX_HELD:,} pulls are held already; try again later")
        seconds = min(header.suspend_timeout_millis / 1000, _MAX_HOLD_SECONDS)
        return self._hold_until_arrival(connection, pull, seconds)

    def _subscription(self, header: PullMessage) -> tuple[str, str]:
        if header.sys_flag & _SUBSCRIPTION:
            return header.subscription or EVERYTHING, header.expression_type or "TAG"
        found = self._clients.subscription(header.consumer_group, header.topic, header.sub_version)
        return found.expression, found.expression_type

    def _hold_until_arrival(self, connection: Connection, pull: PullRequest, seconds: float) -> Future[Answer]:
        answered: Future[Answer] = Future()
        held_by = self._held.setdefault(connection, {})

        def answer(held: HeldRequest) -> None:
            if (figure := held_by.pop(held, None)) is not None:
                self._forget(figure)
            is_quick = isinstance(pull.message_filter, TagFilter)
            settle(answered, there if is_quick else lambda: self._workers.begin(connection, there))

        def there() -> Answer:  # may be empty, because a pull is held only once
            response = self._now(pull)
            return self._answer_from_archive(connection, pull) if _is_before(response) else _answer(response)

        held = self._hold.hold(
            pull.topic,
            pull.queue_id,
            pull.offset,
            seconds,
            lambda held, why: self._thread.call(answer, held),
            pull.message_filter,
        )
        figure = self._figures.of(HELD, pull.topic, pull.group)
        held_by[held] = figure  # `answer` runs later in this thread
        figure.change(1)
        self._count += 1
        return answered

    def _answer_from_archive(self, connection: Connection, pull: PullRequest) -> Future[Response]:
        answered: Future[Response] = Future()
        asked = self._tiered.pulled(connection, pull)
        asked.add_done_callback(lambda done: self._thread.call(settle, answered, lambda: _answer(done.result())))
        return answered

    def _commit(self, pull: PullRequest, response: PullResponse, offset: int) -> None:
        """Commit the offset that a client sends with its pull, unless it is 0 or after the queue's end.

        This is not delayed until an archive answers, because the group may have been reset by then.
        """
        if 0 < offset <= response.max_offset and (response.code in _OF_A_QUEUE or _is_before(response)):
            self._offsets.commit(pull.group, Queue(pull.topic, pull.queue_id), offset)

    def _now(self, pull: PullRequest) -> PullResponse:
        return answer(self._store, pull, as_records=True)

    def _forget(self, figure: Figure) -> None:
        if not figure.change(-1):  # clients may make up any number of groups
            self._figures.drop(figure)
        self._count -= 1


def _is_before(response: PullResponse) -> bool:
    return response.remark == _BEFORE


def _answer(response: PullResponse) -> Response:
    bounds = response.next_begin_offset, response.min_offset, response.max_offset
    return Response(response.code, response.remark, Pulled(_MASTER, *bounds), body=response.records)
