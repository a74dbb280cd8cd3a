"""What a visitor may change, if the console allows it: a group's offsets, and dead letters that are sent again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_mq.browsing import bounds_of, offsets_at, place_of
from store import InvalidArgument, MessageStore, OffsetLost, UnsupportedStore
from store.api.group_protocol import HasGroups, MemberInfo
from store.broker.retries import send_back
from store.format.layout import DLQ_TOPIC_PREFIX
from store.model.log_protocol import Log, LogAddress, Positions, Queue

_SOON = 1  # the delay level of a second


@dataclass(frozen=True)
class QueueMove:
    """before: None if the group has no offset. lag: messages that the group will not have read."""

    queue: Queue
    before: int | None
    after: int
    lag: int


@dataclass(frozen=True)
class GroupReset:
    """A reset that was planned; nothing is changed yet."""

    group: str
    topic: str
    place: str
    moves: Sequence[QueueMove]
    members: Sequence[MemberInfo]

    @property
    def positions(self) -> Positions:
        """Where the group goes on."""
        return {move.queue: move.after for move in self.moves}


def plan_reset(address: LogAddress, log: Log, group: str, topic: str, place: str) -> GroupReset:
    """Return what a reset would change; an offset outside of a queue becomes its first or its end.

    Raises `InvalidArgument` for a place, `UnknownTopic`, `InvalidGroup`.
    """
    bounds = bounds_of(log, topic)
    before, moves = log.committed(group, bounds), list[QueueMove]()
    for queue, offset in offsets_at(log, bounds, place_of(place)).items():
        first, end = bounds[queue]
        after = min(max(offset, first), end)
        moves.append(QueueMove(queue, before.get(queue), after, end - after))
    return GroupReset(group, topic, place, moves, members_of(address, group))


def apply_reset(address: LogAddress, reset: GroupReset) -> None:
    """Move the group. Raises `UnsupportedStore`, `UnknownGroup`, `GroupConflict`, `StoreLocked`."""
    if not isinstance(address, HasGroups):
        raise UnsupportedStore(f"{address} keeps no consumer groups")
    address.group(reset.group).reset(reset.positions)


def members_of(address: LogAddress, group: str) -> list[MemberInfo]:
    """Return the members of a group; none if the log keeps no groups."""
    return address.group(group).members() if isinstance(address, HasGroups) else []


def group_of_dead_letters(topic: str) -> str | None:
    """Return the group whose dead letters the topic has; None for any other topic."""
    return topic.removeprefix(DLQ_TOPIC_PREFIX) if topic.startswith(DLQ_TOPIC_PREFIX) else None


def send_again(address: LogAddress, queue: Queue, offset: int) -> str:
    """Give a dead letter back to its group, which gets it in a second, with all its tries before it. Returns the group.

    The dead letter stays in its topic. Raises `UnsupportedStore` for a cluster, `OffsetLost`, `StoreLocked` while a
    RocketMQ broker runs on the directory.
    """
    group = group_of_dead_letters(queue.topic)
    if group is None:
        raise InvalidArgument(f"{queue.topic} has no dead letters of a group")
    if address.directory is None:
        raise UnsupportedStore(
            f"{address}: the console sends dead letters again in a directory only. Use mqadmin or the RocketMQ "
            "Dashboard for a cluster"
        )
    with MessageStore.open(address.directory, create=False) as store:
        found = store.get_message("", queue.topic, queue.queue_id, offset, 1).messages
        if not found or found[0].queue_offset != offset:
            raise OffsetLost(f"{queue}: there is no message at offset {offset}")
        send_back(store, group, [found[0]._replace(reconsume_times=0)], level=_SOON)
    return group
