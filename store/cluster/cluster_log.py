"""`ClusterLog`: reads the queues of a cluster's brokers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Self

import pyarrow as pa

from store.cluster.address import ClusterAddress
from store.cluster.brokers import Ask, Brokers
from store.cluster.cluster_bounds import ClusterBounds
from store.cluster.committed_offsets import commit, committed, resets
from store.cluster.held_pulls import ClusterHeld, EndPulls
from store.cluster.pulls import PulledRecords, decoded, pull
from store.cluster.route_table import parse_offsets
from store.disk.consumer_offsets import check_group_name
from store.format.columns import check_columns
from store.model.codes import RequestCode
from store.model.errors import OffsetLost, OffsetNotYet, UnknownTopic
from store.model.log_protocol import (
    Boundary,
    Bounds,
    Fingerprints,
    LogLook,
    MessageFilter,
    NameFilter,
    Positions,
    Queue,
    QueueRange,
    ReadSpec,
)
from store.remoting.headers import Offset, SearchOffset


class ClusterTopics(Mapping[str, tuple[Queue, ...]]):
    """The topics of a cluster. RocketMQ's own topics can be looked up, but are not listed.

    wanted, oldest: see `Log.topics`.
    """

    def __init__(self, brokers: Brokers, wanted: NameFilter | None, oldest: float) -> None:
        self._brokers = brokers
        self._wanted = wanted
        self._oldest = oldest
        self._known: dict[str, tuple[Queue, ...]] = {}

    def __getitem__(self, topic: str) -> tuple[Queue, ...]:
        if topic not in self._known:
            self._ask([topic])
        if not self._known[topic]:
            raise KeyError(topic)
        return self._known[topic]

    def __iter__(self) -> Iterator[str]:
        self._ask([topic for topic in self._names if topic not in self._known])
        return (topic for topic in self._names if topic in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _ask(self, topics: Collection[str]) -> None:
        routes = self._brokers.routes.routes(topics, self._oldest)
        self._known |= {topic: tuple(routes[topic].read) if topic in routes else () for topic in topics}

    @cached_property
    def _names(self) -> list[str]:
        return list(filter(self._wanted, self._brokers.routes.topics(self._oldest)))


_logger = logging.getLogger("store")


class ClusterLog:
    """A cluster as a `Log`. It has no `sizes` and `fingerprints`, because brokers do not offer them."""

    is_ordered = False  # each broker has its own log

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address
        self._brokers = Brokers(address)
        self._end_pulls = EndPulls(self._brokers)
        self._bounds = ClusterBounds(self._brokers, self._end_pulls)
        self._brought: dict[Queue, PulledRecords] = {}  # records from held pulls, not read yet

    def topics(self, wanted: NameFilter | None = None, oldest: float = 0.0) -> Mapping[str, tuple[Queue, ...]]:
        return ClusterTopics(self._brokers, wanted, oldest)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        return self._bounds.complete(list(queues))

    def look(self, queues: Iterable[Queue]) -> LogLook:
        return self._bounds.look(queues)

    def offsets_by_time(self, queues: Iterable[Queue], timestamp: int, boundary: Boundary) -> Positions:
        def ask(queue: Queue) -> Ask:
            header = SearchOffset(queue.topic, queue.queue_id, timestamp, boundary.value.upper())
            return Ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

        there = self.bounds(queues)
        answers = self._brokers.ask({queue: ask(queue) for queue in there})
        found = {queue: Offset.of(answer.fields).offset for queue, answer in answers.items()}
        return {
            queue: min(max(offset, there[queue].min_offset), there[queue].max_offset) for queue, offset in found.items()
        }

    def with_keys(self, ranges: Iterable[QueueRange], keys: Sequence[str]) -> list[QueueRange]:
        return list(ranges)

    def committed(self, group: str, queues: Iterable[Queue]) -> Positions:
        return committed(self._brokers, group, queues)

    def groups(self) -> Mapping[str, Positions]:
        """Return the offsets of all groups, without those at brokers that the last look found to be missing.

        Raises `Unreachable` if another broker does not answer.
        """
        found: dict[str, Positions] = {}
        answers = self._brokers.ask_all(RequestCode.GET_ALL_CONSUMER_OFFSET, leave_out=self._bounds.missing)
        for broker, answer in answers.items():
            for topic, group, number, offset in parse_offsets(bytes(answer.body)):
                found.setdefault(group, {})[Queue(topic, number, broker=broker)] = offset
        return found

    def commit(self, group: str, positions: Positions) -> None:
        check_group_name(group)
        answers = commit(self._brokers, group, positions)
        if refused := {queue: positions[queue] for queue, answer in answers.items() if answer.remark}:
            resets(self._brokers, group, refused)  # the broker then accepts the next commits
            _logger.warning(
                "%s: group %s was reset by an admin tool, in %s. The query continues from its checkpoint. To apply "
                "the reset, start a new query with startingOffsets=group",
                self._address, group, ", ".join(map(str, refused)),
            )  # fmt: skip
        if missing := positions.keys() - answers.keys():
            raise UnknownTopic(
                f"{self._address}: no broker has {', '.join(map(str, sorted(missing)))}. Check that the topic exists, "
                "and that its brokers run"
            )

    def sizes(self, wanted: QueueRange) -> None:
        return None

    def fingerprints(self, positions: Positions) -> Fingerprints:
        return {}

    def replaced(self, positions: Positions, last: Fingerprints) -> list[Queue]:
        return []

    def scan(self, wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        check_columns(spec.columns)
        brought = self._brought.pop(wanted.queue, None)
        if brought is not None and (brought.start, brought.end) == (wanted.start, wanted.end):
            yield from decoded([brought], wanted, spec)
            return
        there = self.bounds([wanted.queue]).get(wanted.queue)
        if there is None:
            raise UnknownTopic(
                f"{self._address}: no broker has {wanted.queue}. Check that the topic exists, and that its brokers run"
            )
        is_whole = self._bounds.is_from_master(wanted.queue)  # otherwise pulls wait for messages that the slave lacks
        if is_whole and wanted.start < there.min_offset and wanted.length:
            raise OffsetLost(
                f"{self._address}: {wanted.queue}: offset {wanted.start} was deleted. Begin at offset "
                f"{there.min_offset}, the oldest one"
            )
        if is_whole and wanted.end > there.max_offset:
            raise OffsetNotYet(
                f"{self._address}: {wanted.queue}: asked for messages up to offset {wanted.end}, but the queue ends at "
                f"{there.max_offset}. The topic may have been recreated, or the queue truncated"
            )
        yield from decoded(pull(self._brokers, wanted), wanted, spec)

    def wait(self, seen: Positions, timeout: float) -> None:
        self._end_pulls.wait(seen, timeout)

    def hold(self, begin: Positions, deadline: float, message_filter: MessageFilter, idle: float) -> ClusterHeld:
        """Hold a pull at each position. Brokers do not get the filter, so any new message gives a range."""
        return ClusterHeld(self._brokers, begin, deadline, idle, self._brought)

    def close(self) -> None:
        self._brokers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
