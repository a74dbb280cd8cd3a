"""`Group` and `Member`: the interface of a consumer group.

A group reads each message of its topics once. Its members share the queues, and each queue has one owner at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Protocol, runtime_checkable

from store.format.stored_message import StoredMessage
from store.model.log_protocol import Positions, Queue

EVERYTHING = "*"


class MessageModel(Enum):
    """How members share messages. CLUSTERING: one member reads each. BROADCASTING: all do, each with its own
    offsets.
    """

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue without an offset, see `store.broker.group_files.first_offsets`."""

    CONSUME_FROM_LAST_OFFSET = "last"
    CONSUME_FROM_FIRST_OFFSET = "first"
    CONSUME_FROM_TIMESTAMP = "timestamp"


class Subscription(NamedTuple):
    """The filter for the messages of a topic. expression_type: TAG or SQL92."""

    expression: str = EVERYTHING
    expression_type: str = "TAG"

    def __str__(self) -> str:
        return f"{self.expression_type} {self.expression!r}"


Subscriptions = Mapping[str, Subscription]  # by topic


class MemberInfo(NamedTuple):
    """A member as others see it. queues: those that it owns, sorted. silent_seconds: time since its last heartbeat."""

    id: str
    subscriptions: Subscriptions
    model: MessageModel
    orderly: bool
    queues: tuple[Queue, ...]
    silent_seconds: float


class Member(Protocol):
    """One consumer in its group. Threads may share it.

    Methods except `leave` raise `StoreClosed` after `leave`, `StoreForked` in a forked process, and `StoreLocked` while
    a RocketMQ broker runs on the directory.
    """

    @property
    def id(self) -> str:
        """RocketMQ's client id: host@instance."""

    def members(self) -> list[str]:
        """Return the sorted ids of the members to allocate queues to, including this one.

        A member counts if its last heartbeat is less than 120 s ago, and it has not left or died. Other exclusive
        members do not count, nor any other member of a broadcasting group.
        """

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, or until `leave`, for a change since the last call that returned True.

        Return whether there was one: members joined or left, another member acquired or released a queue, or offsets
        were reset.
        """

    def lock(self, queues: Iterable[Queue], *, ask: bool = False) -> set[Queue]:
        """Acquire or renew the locks of `queues` for 60 s. Return the locked queues (LOCK_BATCH_MQ).

        A queue can be locked if it is free, its lock has expired, or it is this member's. If a lock of this member
        expired, its next try fails, because its reader has to restart. Commits in newly acquired queues are discarded.
        Call this every 20 s, even without queues, because it is also the heartbeat.

        ask: request the other queues from their owners, until the next call without `ask`.
        """

    def asked(self) -> set[Queue]:
        """Return this member's queues that others request. It need not release them."""

    def unlock(self, queues: Iterable[Queue]) -> None:
        """Persist the committed offsets of queues, and release their locks."""

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """Return the offsets to read next, of queues that have one: as committed by this member, otherwise as
        persisted.
        """

    def begin(self, positions: Positions) -> None:
        """Set and persist first offsets; see `store.broker.group_files.first_offsets`.

        Queues that have an offset, or that were reset or deleted concurrently, are skipped. So call `committed`
        afterwards to get the offsets to use.
        """

    def commit(self, positions: Positions) -> None:
        """Commit offsets: all messages before `positions` are done.

        Lower offsets than before, and queues of other members, are ignored. Commits are not synced to the device, but
        they survive a kill of this process: the next owner begins there.
        """

    def persist(self) -> None:
        """Write this member's commits to the group's offsets. Call it every 5 s.

        Queues that were reset concurrently keep their new offset. No offset decreases.
        """

    def resets(self) -> Positions:
        """Return the new offsets of queues that were reset since the last call, or since this member joined.

        Commits in a reset queue are ignored until this returns the queue. After that, the caller must not commit
        offsets of messages that it read before.
        """

    def reset(self, positions: Positions) -> None:
        """Reset the group's offsets in queues of this member that were recreated or are shorter than before.

        Offsets may decrease. A broadcasting member resets only its own. The next `resets` returns them. Raises
        `UnknownTopic`.
        """

    def send_back(
        self, messages: Sequence[StoredMessage], delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        """Send messages back, to be delivered again or become dead letters (CONSUMER_SEND_MSG_BACK).

        delay_level: 0 for RocketMQ's default, 3 plus the number of retries; negative for dead letters at once.
        max_reconsume_times: retries before a message becomes a dead letter; default: the group's setting, 16.
        """

    def leave(self) -> None:
        """Persist offsets, release all queues, and leave. Does nothing the second time, nor in a forked process."""

    def __enter__(self) -> Member: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Group(Protocol):
    @property
    def name(self) -> str: ...

    def join(
        self,
        subscriptions: Subscriptions,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        exclusive: bool = False,
        instance: str | None = None,
    ) -> Member:
        """Join the group, and create it if it does not exist.

        exclusive: this member takes all queues or none, so others leave it out when they allocate queues.
        instance: RocketMQ's instanceName, unique among the current members; default: a new name, DEFAULT for
        broadcasting. A broadcasting member finds its offsets by it after a restart.

        Raises `InvalidGroup`, and `GroupConflict` if members have other subscriptions, models or order, or the same
        instance.
        """

    def create(self) -> None:
        """Create the group with RocketMQ's default settings, if missing."""

    def members(self) -> list[MemberInfo]:
        """Return the current members, sorted by id."""

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """Return the persisted offsets of queues that have one."""

    def reset(self, positions: Positions) -> None:
        """Set the group's offsets. Current members continue at them at once.

        Raises `UnknownGroup`, `UnknownTopic`, `OffsetOutOfRange`.
        """


@runtime_checkable
class HasGroups(Protocol):
    """The address of a log that has consumer groups."""

    def group(self, name: str) -> Group:
        """Return a group, which need not exist. Raises `InvalidGroup`."""
