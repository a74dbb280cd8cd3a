"""`Group` and `Member`: what a consumer needs of its group, kept in files beside a directory, or by brokers.

A group reads each message of its topics once: its members share the queues, each queue is one member's at a time, and
the group's offsets say how far it has read. Two kinds: `store.directory.directory_group` and `store.cluster.group`.
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
    """CLUSTERING: a message is read by one member. BROADCASTING: by each; every member keeps offsets of its own."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class ConsumeFromWhere(Enum):
    """The begin of a group in a queue without an offset, see `store.broker.group_files.first_offsets`."""

    CONSUME_FROM_LAST_OFFSET = "last"
    CONSUME_FROM_FIRST_OFFSET = "first"
    CONSUME_FROM_TIMESTAMP = "timestamp"


class Subscription(NamedTuple):
    """Which messages of a topic a group reads. expression_type: TAG or SQL92, RocketMQ's ExpressionType."""

    expression: str = EVERYTHING
    expression_type: str = "TAG"

    def __str__(self) -> str:
        return f"{self.expression_type} {self.expression!r}"


Subscriptions = Mapping[str, Subscription]  # by topic


class MemberInfo(NamedTuple):
    """A member as others see it. queues: those it has, sorted. silent_seconds: since it was last heard of."""

    id: str
    subscriptions: Subscriptions
    model: MessageModel
    orderly: bool
    queues: tuple[Queue, ...]
    silent_seconds: float


class Member(Protocol):
    """One consumer in its group, until it leaves: a context manager. Threads may share it.

    Every verb but `leave` raises `StoreClosed` after that, `StoreForked` in a forked process, and `StoreLocked` while
    a RocketMQ broker runs on the directory.
    """

    @property
    def id(self) -> str:
        """RocketMQ's client id: host@instance."""

    def members(self) -> list[str]:
        """The ids to allocate the queues to, sorted, this one among them; of a broadcasting group this one alone.

        Those that were heard of within 120 s, and have not left or died. None that is exclusive, but this one.
        """

    def wait(self, timeout: float) -> bool:
        """Sleep until the group is no longer as it was when this last was true, at most `timeout` seconds.

        True if members came or went, if another gave a queue back or took one, or if offsets were reset. `leave` in
        another thread ends it.
        """

    def lock(self, queues: Iterable[Queue], *, ask: bool = False) -> set[Queue]:
        """Return those of `queues` that are this member's now: free, expired, or its own before (LOCK_BATCH_MQ).

        Never a queue of another member, nor at once a queue whose lock expired here: its reader has to restart. They
        are its own for 60 s. Call it every 20 s, even with no queues: it is the sign of life. Commits in queues that
        are new here are forgotten.

        ask: tell the owners of the other queues that this member asks for them, until it calls this without.
        """

    def asked(self) -> set[Queue]:
        """Return this member's queues that another member asks for. This member may keep them."""

    def unlock(self, queues: Iterable[Queue]) -> None:
        """Give queues back, after their committed offsets are persisted."""

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """Return the offset to read next, for queues that have one: as committed here, or else as persisted."""

    def begin(self, positions: Positions) -> None:
        """Set offsets of queues that the group has none of, and persist them at once, so that all members agree.

        Queues that were reset or deleted concurrently are left out, see `resets`.

        See `store.broker.group_files.first_offsets`. Read what counts by `committed`.
        """

    def commit(self, positions: Positions) -> None:
        """All messages before `positions` are done; smaller ones than before, or of others' queues, do not count.

        It does not wait for a device, but it survives this process: the next owner of the queues begins there.
        """

    def persist(self) -> None:
        """Write committed offsets of this member's queues to the group's offsets. Call it every 5 s.

        Queues that were reset concurrently stay as they were reset; no offset goes backwards.
        """

    def resets(self) -> Positions:
        """Return the new offsets of queues that were reset since the last call, or since this member joined.

        Commits in these queues are forgotten, and do not count before this returned them. Afterwards the caller must
        not commit messages that it read before.
        """

    def reset(self, positions: Positions) -> None:
        """Let the group go on at these offsets, in queues of this member, even backwards: the queues were recreated, or
        are shorter. A broadcasting member resets itself alone. It learns of it from `resets`. Raises `UnknownTopic`.
        """

    def send_back(
        self, messages: Sequence[StoredMessage], delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        """Let the group have messages again: later, or never, among its dead letters (CONSUMER_SEND_MSG_BACK).

        delay_level: 0 for RocketMQ's own choice, 3 and one more each time; below 0 for the dead letters at once.
        max_reconsume_times: how often one comes again before it goes there; default: as the group is set, 16.
        """

    def leave(self) -> None:
        """Persist, give everything back, and go. The second time, and in a forked process, this does nothing."""

    def __enter__(self) -> Member: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Group(Protocol):
    """A consumer group, with or without members."""

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
        """Become a member; the group is made if it is new.

        exclusive: this member has all queues or none, so others do not leave it a share.
        instance: a name of this process's choice, RocketMQ's instanceName: of two members at a time only one can have
        it. A broadcasting member finds its offsets again by it. Default: another each time; DEFAULT for broadcasting.

        Raises `GroupConflict` where members subscribe, or consume, otherwise, or one has this instance; `InvalidGroup`.
        """

    def create(self) -> None:
        """Make the group, with RocketMQ's default settings, if it is new."""

    def members(self) -> list[MemberInfo]:
        """Return the current members, sorted by id."""

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """Return the persisted offsets of queues that have one."""

    def reset(self, positions: Positions) -> None:
        """Let the group go on from there: members that consume at once, others when they join.

        Raises `UnknownGroup`, which names those with a like name, `UnknownTopic`, `OffsetOutOfRange`.
        """


@runtime_checkable
class HasGroups(Protocol):
    """An address of a log (`LogAddress`) that keeps consumer groups."""

    def group(self, name: str) -> Group:
        """Raises `InvalidGroup`."""
