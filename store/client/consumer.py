"""`Consumer`: a member of a consumer group."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType

from store.api.group_protocol import Group, HasGroups, MessageModel, Subscription
from store.client.consumer_threads import ConsumerThreads
from store.client.consuming import (
    DEFAULTS,
    ConsumerConfig,
    Listener,
    check_listener,
    consume,
    consume_service,
    dead_letter_if_unreadable,
)
from store.client.log_kinds import address_at
from store.client.process_queues import ProcessQueues, TakenMessages
from store.client.puller import Puller, PullFigures
from store.client.rebalancer import Rebalancer
from store.client.received_messages import ReceivedMessage
from store.directory.directory_group import DirectoryGroup
from store.disk.figures import Figures
from store.disk.opened import Opened, shown
from store.format.layout import RETRY_TOPIC_PREFIX
from store.model.errors import (
    InvalidArgument,
    StoreClosed,
    StoreLocked,
    UnknownTopic,
)
from store.model.integers import counted
from store.model.log_protocol import Log, LogAddress, Queue
from store.read.filters import EVERYTHING, message_filter

_MIB = 1 << 20
_MAX_RECONSUME_TIMES = 16
_logger = logging.getLogger("store")


class Consumer(Opened):
    """Reads its share of a group's queues until `close`. Use it in a `with` statement.

    With a listener, the consumer calls it in its own threads. Without one, iterate with `for` or `async for`. A message
    is acknowledged when the listener returns, or when the loop asks for the next message.

    The group commits the lowest unacknowledged offset of each queue. If a consumer closes or dies, another member
    continues at this offset.

    Methods raise `StoreClosed` after `close`, and `StoreForked` in a forked process.
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
        """Join a group and start to consume.

        log: the path of a store; "rocketmq://host:port" of a cluster's name servers; a `ClusterAddress`; or an open
        log, which the caller has to close.
        topics: a topic, a list of topics, or a mapping of topics to tags ("paid || shipped") or a `Subscription`. All
        members of a group need the same subscriptions.
        listener: called with messages of one queue. If it raises, they are delivered again, see `ReconsumeLater`.
        orderly: deliver the messages of a queue in order, in one call at a time in the whole group.
        instance: see `Group.join`.

        Raises `UnknownTopic`, `GroupConflict`, `InvalidGroup`, `FilterError`, `InvalidArgument`, `NotAStore`, ...
        Raises `ObjectsUnavailable`, `Unreachable` or `StoreBusy` if a new group cannot read its initial offsets.
        """
        if listener is not None:
            check_listener(listener)
        if not isinstance(config, ConsumerConfig):
            raise InvalidArgument(f"config={config!r:.40} is a {type(config).__name__}. Give a ConsumerConfig")
        subscriptions = _subscriptions(topics)
        filters = {topic: message_filter(*subscription) for topic, subscription in subscriptions.items()}
        address = address_at(os.fspath(log)) if isinstance(log, str | os.PathLike) else log
        group = _group(address, group)
        self._config = config
        self._group = group.name
        with ExitStack() as undo:
            it = undo.enter_context(address.open()) if isinstance(address, LogAddress) else address
            _check_topics(it, filters, str(address) if isinstance(address, LogAddress) else "the log")
            figures = Figures(group.path if isinstance(group, DirectoryGroup) else None)
            undo.callback(figures.close)
            self._member = undo.enter_context(
                group.join(subscriptions, model=config.message_model, orderly=orderly, instance=instance)
            )
            where = repr(os.fspath(log)) if isinstance(log, str | os.PathLike) else "..."
            super().__init__(
                f"consumer {self._member.id} of group {group.name}", f"Consumer({where}, {group.name!r}, ...)"
            )
            if config.message_model is MessageModel.CLUSTERING:
                filters[RETRY_TOPIC_PREFIX + group.name] = EVERYTHING
            self._service = service = consume_service(self._member, config, orderly=orderly)
            self._queues = queues = ProcessQueues(self._member.commit)
            self._pullers = {
                topic: Puller(
                    it,
                    each,
                    queues,
                    config.pull_bytes,
                    PullFigures.of(figures, topic, group.name),
                    "error" if config.unreadable == "error" else "raw",
                )
                for topic, each in filters.items()
            }
            self._rebalancer = Rebalancer(it, self._member, queues, self._pullers, service.queue, config)
            most = config.consume_message_batch_max_size
            work = None if listener is None else partial(consume, queues, service, listener, group.name, most, figures)
            self._threads = ConsumerThreads(self._what, queues, self._rebalancer, [*self._pullers.values()], figures)
            self._opened = undo.pop_all()
        try:
            self._threads.start(work, config.consume_thread_max)
        except BaseException:
            self.close()
            raise

    @property
    def id(self) -> str:
        """RocketMQ's client id: host@instance."""
        return self._member.id

    @property
    def assigned(self) -> list[Queue]:
        """The queues that this consumer reads, sorted."""
        self._must_work()
        return self._rebalancer.assigned

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer is closed. Return False after `timeout` seconds.

        Raises the error that ended the consumer.
        """
        self._must_not_be_forked()
        ended = self._queues.wait_closed(timeout)
        self._threads.must_not_have_failed()
        return ended

    def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Send a message back to the group while iterating, so that it is delivered again later.

        delay_level: see `ReconsumeLater`. In a broadcasting consumer, a level that is not negative raises
        `InvalidArgument`.
        """
        self._must_work()
        self._member.send_back([message.stored()], delay_level, self._config.reconsume_times)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        most = self._config.consume_message_batch_max_size
        self._must_not_be_forked()
        while (taken := self._queues.take(most)) is not None:
            yield from self._one_by_one(taken)
            self._must_not_be_forked()
        self._threads.must_not_have_failed()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        most, loop = self._config.consume_message_batch_max_size, asyncio.get_running_loop()
        while not self._queues.is_closed:
            self._must_not_be_forked()
            woken = asyncio.Event()
            taken = self._queues.take_or_call(most, partial(_wake, loop, woken))
            if taken is None:
                await woken.wait()
                continue
            for message in self._one_by_one(taken):
                yield message
        self._threads.must_not_have_failed()

    def close(self) -> None:
        """Wait for running calls of the listener, commit finished messages, and leave the group.

        Does nothing the second time and in a forked process. If the listener calls this, the consumer only stops: the
        thread that opened it has to call `close`, too.

        Raises the error that ended the consumer. Raises `StoreLocked`, and closes nothing, in a signal handler that
        interrupted `wait` or an iteration.
        """
        if self.is_forked:
            return
        if self._queues.is_inside:
            raise StoreLocked(
                f"{self._what}: a signal handler called close during another call in the same thread. Let the "
                "handler raise an exception instead"
            )
        self._threads.stop()
        if not self._is_over and not self._threads.is_worker:
            self._is_over = True
            try:
                self._threads.wait_for_calls(self._config.await_termination_when_shutdown)
            finally:
                self._leave()
            self._threads.must_not_have_failed()

    def __repr__(self) -> str:
        return shown(self, self._state)

    def _state(self) -> str:
        if self._threads.error is not None:
            return f"stopped by {type(self._threads.error).__name__}"
        return counted(len(self._rebalancer.assigned), "queue")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as ended:
            if error is None or ended is not self._threads.error:  # the `with` block raises an error anyway
                raise

    def _leave(self) -> None:
        try:
            self._member.leave()
        finally:
            self._threads.join()
            self._opened.close()

    def _one_by_one(self, taken: TakenMessages) -> Iterator[ReceivedMessage]:
        if dead_letter_if_unreadable(self._service, self._queues, taken, self._group):
            return
        left = len(taken.handful.messages)
        try:
            for message in taken.handful.messages:
                yield message
                self._must_not_be_forked()  # raise before waiting for a lock that may never be released
                self._queues.done(taken, 1)
                left -= 1
        except StoreClosed:  # the consumer was closed, so another member receives the message
            if not self._is_over:
                raise
        finally:
            if left and not self.is_forked:
                self._queues.give_back(taken, 0.0)

    def _must_work(self) -> None:
        self.must_be_open()
        self._threads.must_not_have_failed()

    def _must_not_be_forked(self) -> None:
        # A closed consumer raises nothing, so that `close` ends an iteration without an error.
        if self.is_forked:
            raise self._not_open()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(woken.set)


def _group(address: LogAddress | Log, group: str | Group) -> Group:
    if not isinstance(group, str):
        return group
    if not isinstance(address, HasGroups):
        raise InvalidArgument(
            f"group={group!r}: a {type(address).__name__} cannot find a group by its name. Give the store's path or "
            "the cluster's address in its place, or give a Group object"
        )
    return address.group(group)


def _subscriptions(topics: str | Sequence[str] | Mapping[str, str | Subscription]) -> dict[str, Subscription]:
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Sequence) and all(isinstance(topic, str) for topic in topics):
        topics = dict.fromkeys(topics, "*")
    if not topics or not isinstance(topics, Mapping):
        raise InvalidArgument(
            f"topics={topics!r:.80} is not valid. Give a topic, a list of topics, or a mapping of topics to "
            "Subscription objects or expressions"
        )
    return {
        topic: said if isinstance(said, Subscription) else Subscription(said or "*") for topic, said in topics.items()
    }


def _check_topics(log: Log, wanted: Mapping[str, object], where: str) -> None:
    known = log.topics()
    for topic in wanted:
        if topic not in known:
            names = ", ".join(sorted(known)) or "none"
            raise UnknownTopic(
                f"{where}: topic {topic!r} does not exist. Existing topics: {names}. Correct the name, or create it: "
                "pyspark-mq topic create"
            )
