"""`ClusterWriter`: a cluster to be written, whose brokers take messages, and each for itself."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from store.cluster.brokers import Ask, Brokers
from store.cluster.log import ClusterLog
from store.cluster.name_servers import NameServers
from store.cluster.sends import send
from store.format.arrays import constant, lengths
from store.format.entering import check_topic
from store.format.hashes import java_hash
from store.format.message_columns import ANY_QUEUE, MessageColumns, as_table, split
from store.format.topic_names import check_topic_name
from store.model.codes import ResponseCode
from store.model.errors import (
    InvalidColumns,
    RequestRefused,
    StoreClosed,
    StoreUnavailable,
    UnknownQueue,
    UnknownTopic,
    UnsupportedStore,
)
from store.model.log_protocol import Int64s, Queue
from store.publish.results import AppendResult
from store.remoting.headers import Offset
from store.remoting.routes import DEFAULT_TOPIC, READ_WRITE

_FIRST_LOOK_SECONDS, _LOOK_AGAIN_SECONDS = 0.001, 0.05


class ClusterWriter(ClusterLog):
    """A `LogWriter`, as far as brokers can be one: what is published is seen message by message, and a broker's
    flushDiskType says whether it is on the device when that returns."""

    def __init__(self, address: NameServers) -> None:
        super().__init__(address)
        self._turns = count(random.randrange(1 << 16))

    def create_topic(self, topic: str, queues: int) -> int:
        """Of so many queues on every master. Raises `UnsupportedStore` where none of them shows up in time."""
        check_topic_name(topic)
        self._brokers.create_topic(topic, queues, DEFAULT_TOPIC, READ_WRITE)
        deadline = time.monotonic() + self._address.patience
        while (found := self._brokers.routes.route(topic, oldest=0.0)) is None or len(found.read) < queues:
            if time.monotonic() >= deadline:
                raise UnsupportedStore(f"{self._address}: topic {topic!r} was made, and no name server knows it yet")
            time.sleep(_LOOK_AGAIN_SECONDS)
        return len(found.read)

    def begin(self) -> ClusterAppend:
        return ClusterAppend(self._brokers, self._turns)

    def flush(self) -> None:
        pass


class ClusterAppend:
    """An `Append` that is no transaction: where it fails, some of it may be seen, and stays."""

    def __init__(self, brokers: Brokers, turns: count[int]) -> None:
        self._brokers = brokers
        self._turns = turns
        self._parts: list[tuple[str, pa.Table | pa.RecordBatchReader]] | None = []

    def add(self, topic: str, table: Any) -> None:
        parts = self._open_parts()
        check_topic(topic)
        self._queues(topic)
        parts.append((topic, as_table(table)))

    def publish(self, *, flush: bool = False, unless: Callable[[], bool] | None = None) -> AppendResult:
        """Raises `UnsupportedStore` for a condition: nobody can keep others from sending meanwhile."""
        parts, self._parts = self._open_parts(), None
        if unless is not None:
            raise UnsupportedStore(f"{self._brokers.address}: a cluster appends without a condition")
        results, ends = [], Counter[Queue]()
        for topic, table in parts:
            for piece in split(table):
                messages = MessageColumns.of(piece)
                queues = self._queues(topic)
                which = self._choose(topic, messages, queues)
                results.append(placed := send(self._brokers, topic, messages, queues, which))
                if messages.delay_levels is None and messages.deliver_at is None:
                    for number in np.unique(which).tolist():
                        ends[queues[number]] = max(placed.queue_offsets[which == number].tolist()) + 1
        self._until_seen(ends)
        return AppendResult.concatenate(results)

    def _until_seen(self, ends: Mapping[Queue, int]) -> None:
        """A broker puts what it took into its queues a moment later. Who may only write does not look, and nobody at a
        queue that can only be written; one that is gone with its broker shows nothing."""
        deadline, pause = time.monotonic() + self._brokers.address.patience, _FIRST_LOOK_SECONDS
        left = dict(ends)
        while left:
            asks = {queue: Ask.of_end(queue) for queue in left}
            try:
                answers = self._brokers.ask(asks)
            except RequestRefused as error:
                if error.code != ResponseCode.NO_PERMISSION:
                    raise
                return
            seen = {queue: Offset.of(answer.fields).offset for queue, answer in answers.items()}
            seen |= {queue: left[queue] for queue in left.keys() - seen.keys() if queue in self._queues(queue.topic)}
            left = {queue: end for queue, end in left.items() if seen.get(queue, 0) < end}
            if left and time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{self._brokers.address}: took messages of {', '.join(map(str, left))}, and does not show them to "
                    "readers; see the brokers' logs"
                )
            if left:
                time.sleep(pause)
                pause = min(2 * pause, _LOOK_AGAIN_SECONDS)

    def abandon(self) -> None:
        self._parts = None

    def _queues(self, topic: str) -> list[Queue]:
        """Those to write to, in order."""
        route = self._brokers.routes.route(topic) or self._brokers.routes.route(topic, oldest=0.0)
        if route is None or not route.write:
            raise UnknownTopic(
                f"{self._brokers.address}: there is no topic {topic!r} that can be written; create it; or, if it is "
                "there, see its perm, and whether its masters run"
            )
        return list(route.write)

    def _choose(self, topic: str, messages: MessageColumns, queues: list[Queue]) -> Int64s:
        """Of each message the queue that it names, or that its sharding key means; in turn otherwise. As an index."""
        turn = next(self._turns)
        chosen: Int64s = (turn + np.arange(len(messages)) * len(queues) // max(1, len(messages))) % len(queues)
        if messages.sharding_keys is not None:
            without = lengths(messages.sharding_keys.fill_null(constant(""))) == 0
            sharded = np.abs(java_hash(messages.sharding_keys).astype(np.int64)) % len(queues)
            chosen = np.where(without, chosen, sharded)
        if messages.queue_ids is not None:
            for number in np.unique(messages.queue_ids[messages.queue_ids != ANY_QUEUE]).tolist():
                chosen = np.where(messages.queue_ids == number, self._named(topic, number, queues), chosen)
        return chosen

    def _named(self, topic: str, number: int, queues: list[Queue]) -> int:
        found = [index for index, queue in enumerate(queues) if queue.queue_id == number]
        if len(found) > 1:
            names = ", ".join(str(queues[index]) for index in found)
            raise InvalidColumns(f"queueId {number} is {names}; leave the column out, or use shardingKey")
        if not found:
            raise UnknownQueue(f"{self._brokers.address}: topic {topic!r} has no queue {number} that can be written")
        return found[0]

    def _open_parts(self) -> list[tuple[str, pa.Table | pa.RecordBatchReader]]:
        if self._parts is None:
            raise StoreClosed(f"{self._brokers.address}: this append was published or abandoned; begin a new one")
        return self._parts
