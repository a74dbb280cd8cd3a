"""`Consumer`: a member of a consumer group, which reads its share of the group's queues."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType

from store.api.group_protocol import Group, HasGroups, MessageModel, Subscription
from store.client.consumer_config import DEFAULTS, ConsumerConfig
from store.client.consuming import Broadcast, Concurrently, ConsumeService, Listener, Orderly, check_listener, consume
from store.client.messages import ReceivedMessage
from store.client.process_queue import ProcessQueue
from store.client.process_queues import ProcessQueues, Taken
from store.client.puller import Puller
from store.client.rebalancer import Rebalancer
from store.cluster.address import SCHEME, ClusterAddress
from store.directory.directory_group import DirectoryGroup
from store.directory.directory_log import address_at
from store.files.figures import DELIVERED, HELD, Figures
from store.files.opened import Opened
from store.format.layout import RETRY_TOPIC_PREFIX
from store.model.errors import (
    InvalidArgument,
    ObjectsUnavailable,
    StoreBusy,
    StoreClosed,
    StoreLocked,
    UnknownTopic,
    Unreachable,
)
from store.model.log_protocol import BATCH_BYTES, Log, LogAddress, MessageFilter, Queue
from store.read.filters import EVERYTHING, message_filter

_MIB = 1 << 20
_MAX_RECONSUME_TIMES = 16
_logger = logging.getLogger("store")


class Consumer(Opened):
    """Reads its share of a group's queues, from its construction until `close`; use it in a `with` statement.

    With a listener, threads of its own call that; without one, iterate: `for message in consumer`, or `async for`.
    A message is acknowledged when the listener returned, or when the next one is asked for. All messages of a queue
    before the lowest that is not acknowledged are done for the group: what is not comes again, in this consumer or,
    when that is closed or dies, in another member.

    Verbs raise `StoreClosed` after `close`, and `StoreForked` in a forked process.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | LogAddress | Log,
        group: str | Group,
        topics: str | Sequence[str] | Mapping[str, str | Subscription],
        listener: Listener | None = None,
        *,
        orderly: bool = False,
        instance: str | None = None,
        config: ConsumerConfig = DEFAULTS,
    ) -> None:
        """Join a group and begin.

        log: the path of a store; a cluster, as "rocketmq://host:port" of its name servers, or as a `ClusterAddress`
        where more is to be said; or any log, which stays the caller's. group: a name, or any `Group`.
        topics: one, or several with what to read of each: tags as in "paid || shipped", or a `Subscription`. All
        members of a group have to say the same. listener: called with a sequence of messages of one queue; what it
        raises lets them come again, see `ReconsumeLater`. orderly: a queue's messages in their order, one call at a
        time in all of the group. instance: see `Group.join`.

        Raises `UnknownTopic`, `GroupConflict`, `InvalidGroup`, `FilterError`, `InvalidArgument`, `NotAStore`, ...; and
        `ObjectsUnavailable`, `Unreachable`, `StoreBusy` where a new group is to begin at the end, and cannot.
        """
        if listener is not None:
            check_listener(listener)
        if not isinstance(config, ConsumerConfig):
            raise InvalidArgument(f"config={config!r:.40}: a {type(config).__name__}; give a ConsumerConfig")
        subscriptions = _subscriptions(topics)
        filters = {topic: message_filter(*subscription) for topic, subscription in subscriptions.items()}
        address = _address(os.fspath(log)) if isinstance(log, str | os.PathLike) else log
        group = _group(address, group)
        self._config = config
        self._error: BaseException | None = None
        self._is_own = isinstance(address, LogAddress)
        self._log: Log = address.open() if isinstance(address, LogAddress) else address
        with ExitStack() as undo:  # when this raises, the group has no member that no caller can close
            undo.callback(self._close_log)
            _check_topics(self._log, filters)
            self._figures = Figures(group.path if isinstance(group, DirectoryGroup) else None)
            self._member = undo.enter_context(
                group.join(subscriptions, model=config.message_model, orderly=orderly, instance=instance)
            )
            super().__init__(f"consumer {self._member.id} of group {group.name}", "Consumer(...)")
            self._assemble(filters, group.name, listener, orderly=orderly)
            undo.pop_all()
        self._begin()

    def _assemble(
        self, filters: dict[str, MessageFilter], group: str, listener: Listener | None, *, orderly: bool
    ) -> None:
        if self._config.message_model is MessageModel.CLUSTERING:
            filters[RETRY_TOPIC_PREFIX + group] = EVERYTHING
        self._queues = ProcessQueues(self._member.commit)
        self._service = self._consume_service(orderly)
        self._pullers = {topic: self._puller(topic, each, group) for topic, each in filters.items()}
        self._rebalancer = self._new_rebalancer()
        self._threads = [self._thread(self._rebalance), *(self._thread(each.run) for each in self._pullers.values())]
        self._workers = [] if listener is None else self._new_workers(listener, group)

    def _puller(self, topic: str, messages: MessageFilter, group: str) -> Puller:
        max_bytes = min(BATCH_BYTES, self._config.pull_threshold_size_for_queue * _MIB)
        delivered, held = (self._figures.of(name, topic, group) for name in (DELIVERED, HELD))
        return Puller(self._log, messages, self._queues, max_bytes, delivered, held)

    def _new_rebalancer(self) -> Rebalancer:
        return Rebalancer(
            self._log,
            self._member,
            self._queues,
            self._pullers,
            self._process_queue,
            self._config.consume_from_where,
            self._config.consume_timestamp,
            self._config.consume_timeout,
        )

    def _new_workers(self, listener: Listener, group: str) -> list[threading.Thread]:
        most = self._config.consume_message_batch_max_size
        work = partial(consume, self._queues, self._service, listener, group, most, self._figures)
        return [self._thread(work) for _ in range(self._config.consume_thread_max)]

    def _begin(self) -> None:
        try:
            self._rebalancer.begin()  # here: a new group gets what is put once this is made
            self._rebalance_by(self._rebalancer.step)
            for thread in (*self._threads, *self._workers):
                thread.start()
        except BaseException:
            self.close()
            raise

    @property
    def id(self) -> str:
        """RocketMQ's client id: host@instance."""
        return self._member.id

    @property
    def assigned(self) -> list[Queue]:
        """The queues that it reads now, sorted."""
        self._must_be_well()
        return self._rebalancer.assigned

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the consumer is closed, at most `timeout` seconds; whether it is. Raises what ended it."""
        self._must_not_be_forked()
        ended = self._queues.wait_closed(timeout)
        self._must_not_have_failed()
        return ended

    def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """While iterating: let the group have this message again, later, and go on. See `ReconsumeLater`.

        Raises `InvalidArgument` where it is broadcasting, unless `delay_level` is below 0: it would come to nobody.
        """
        self._must_be_well()
        self._member.send_back([message.stored()], delay_level, self._max_reconsume_times)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages as they come; each is acknowledged when the next one is asked for. It ends with `close`."""
        most = self._config.consume_message_batch_max_size
        self._must_not_be_forked()
        while (taken := self._queues.take(most)) is not None:
            yield from self._one_by_one(taken)
            self._must_not_be_forked()
        self._must_not_have_failed()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """As iterating; others run while there is no message."""
        most, loop = self._config.consume_message_batch_max_size, asyncio.get_running_loop()
        while not self._queues.is_closed:
            self._must_not_be_forked()
            woken = asyncio.Event()
            taken = self._queues.take_or_tell(most, partial(_tell, loop, woken))
            if taken is None:
                await woken.wait()
                continue
            for message in self._one_by_one(taken):
                yield message
        self._must_not_have_failed()

    def close(self) -> None:
        """Let calls of the listener that are under way end, commit what is done, leave the group.

        The second time, and in a forked process, this does nothing. The listener may call it to stop the consumer:
        `wait` returns then, and the thread that opened the consumer closes it. Raises what ended the consumer before;
        `StoreLocked` in a signal handler amid `wait` or iterating, and then nothing is closed.
        """
        if self.is_forked:
            return
        if self._queues.is_inside:
            raise StoreLocked(
                f"{self._what}: a signal handler called `close` amid another call in the same thread. Let the handler "
                "raise an exception instead"
            )
        if self._is_over or threading.current_thread() in self._workers:
            self._stop()
            return
        self._is_over = True
        try:
            self._stop()
            self._wait_for_calls()
        finally:
            self._leave()
        self._must_not_have_failed()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as ended:
            if error is None or ended is not self._error:  # or else it is told already, or comes second
                raise

    def _wait_for_calls(self) -> None:
        deadline = time.monotonic() + self._config.await_termination_when_shutdown
        for worker in filter(_is_started, self._workers):
            worker.join(max(0.0, deadline - time.monotonic()))
        if any(worker.is_alive() for worker in self._workers):
            _logger.error("%s: closed while the listener hangs; what it has in hand comes again", self._what)

    def _leave(self) -> None:
        try:
            self._member.leave()
        finally:
            for thread in filter(_is_started, self._threads):
                thread.join()
            self._figures.close()
            self._close_log()

    # --- what it is made of ----------------------------------------------------------------------------

    @property
    def _max_reconsume_times(self) -> int:
        times = self._config.max_reconsume_times
        return _MAX_RECONSUME_TIMES if times < 0 else times

    def _consume_service(self, orderly: bool) -> ConsumeService:
        if orderly:
            times = self._config.max_reconsume_times
            return Orderly(self._member, math.inf if times < 0 else times, self._config.suspend_current_queue_time)
        if self._config.message_model is MessageModel.BROADCASTING:
            return Broadcast()
        return Concurrently(self._member, self._max_reconsume_times)

    def _process_queue(self, queue: Queue, begin: int) -> ProcessQueue:
        max_bytes = self._config.pull_threshold_size_for_queue * _MIB
        return self._service.queue(queue, begin, self._config.pull_threshold_for_queue, max_bytes)

    def _one_by_one(self, taken: Taken) -> Iterator[ReceivedMessage]:
        left = len(taken.handful.messages)
        try:
            for message in taken.handful.messages:
                yield message
                self._must_not_be_forked()  # before the lock of the queues: in a child its holder may be missing
                self._queues.done(taken, 1)
                left -= 1
        except StoreClosed:  # meanwhile: this message comes again, in another member
            if not self._is_over:
                raise
        finally:
            if left and not self.is_forked:
                self._queues.give_back(taken, 0.0)

    # --- threads ---------------------------------------------------------------------------------------

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(work,), name=f"{self._what}", daemon=True)

    def _guarded(self, work: Callable[[], None]) -> None:
        """What ends one thread ends the consumer, and is told to whoever uses it."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by `wait`, `close`, and by iterating
            if not self._queues.is_closed:
                self._error = error
                _logger.error("%s: ended by %s: %s", self._what, type(error).__name__, error)
                self._stop()

    def _rebalance(self) -> None:
        while not self._queues.is_closed:
            self._rebalance_by(self._rebalancer.step)
            self._rebalancer.wait()
        while any(worker.is_alive() for worker in self._workers):  # nobody else may have what is in hand, however long
            self._rebalance_by(self._rebalancer.renew)
            self._rebalancer.wait()

    def _rebalance_by(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (StoreBusy, ObjectsUnavailable, Unreachable) as error:
            # What is consumed here is its own for a while yet.
            _logger.warning("%s: tried again: %s", self._what, error)
        self._figures.write()

    def _stop(self) -> None:
        """Hand out nothing more, and let all threads end."""
        self._queues.close()
        for puller in self._pullers.values():
            puller.stop()

    def _close_log(self) -> None:
        if self._is_own:
            self._log.close()

    def _must_be_well(self) -> None:
        self.must_be_open()
        self._must_not_have_failed()

    def _must_not_be_forked(self) -> None:
        """As `must_be_open`, where what was closed meanwhile ends in its own way."""
        if self.is_forked:
            raise self._not_open()

    def _must_not_have_failed(self) -> None:
        if self._error is not None:
            raise self._error


def _is_started(thread: threading.Thread) -> bool:
    return thread.ident is not None


def _tell(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # that loop is over, and nobody waits
        loop.call_soon_threadsafe(woken.set)


def _address(place: str) -> LogAddress:
    is_cluster = place.startswith(SCHEME)
    return ClusterAddress.parse(place.removeprefix(SCHEME)) if is_cluster else address_at(place)


def _group(address: LogAddress | Log, group: str | Group) -> Group:
    if not isinstance(group, str):
        return group
    if not isinstance(address, HasGroups):
        raise InvalidArgument(f"group={group!r}: of a log without groups, give the group itself")
    return address.group(group)


def _subscriptions(topics: str | Sequence[str] | Mapping[str, str | Subscription]) -> dict[str, Subscription]:
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Sequence) and all(isinstance(topic, str) for topic in topics):
        topics = dict.fromkeys(topics, "*")
    if not topics or not isinstance(topics, Mapping):
        raise InvalidArgument(
            f"topics={topics!r:.80}: give a topic, a list of topics, or a mapping of topics to what to read of each"
        )
    return {
        topic: said if isinstance(said, Subscription) else Subscription(said or "*") for topic, said in topics.items()
    }


def _check_topics(log: Log, wanted: Mapping[str, object]) -> None:
    known = log.topics()
    for topic in wanted:
        if topic not in known:
            raise UnknownTopic(f"{topic}: no such topic; there are {', '.join(sorted(known)) or 'none'}")
