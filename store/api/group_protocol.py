"""What a consumer needs of its group, whoever keeps it: files beside a directory, or a cluster's broker.

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
    """Where a group begins in a queue that it has no offset of, see `store.broker.group_files.first_offsets`."""

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
        """Those of `queues` that are this member's now: that were free, expired or its own (LOCK_BATCH_MQ).

        Never one that another member has, and not at once one that was its own until it expired: its reader has to
        start anew. They are its own for 60 s; call it every 20 s, also with none, for it tells that this member is
        well. What was committed in one that is new here is forgotten.

        ask: let who has the others know that this member asks for them, until it calls this without.
        """

    def asked(self) -> set[Queue]:
        """Those of this member's queues that another asks for. Whether it gives them up is for it to decide."""

    def unlock(self, queues: Iterable[Queue]) -> None:
        """Give queues back; what was committed in them is persisted before others may have them."""

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """The offset to read next, of those of `queues` that have one: as committed here, or else as persisted."""

    def begin(self, positions: Positions) -> None:
        """Set the offsets of those queues that the group has none of: persisted at once, so that all members agree. Not
        of those that somebody reset, or deleted, meanwhile: see `resets`.

        See `store.broker.group_files.first_offsets`. Read what counts by `committed`.
        """

    def commit(self, positions: Positions) -> None:
        """All messages before `positions` are done; smaller ones than before, or of others' queues, do not count.

        Without waiting for a device; but it survives this process: who gets its queues begins there.
        """

    def persist(self) -> None:
        """Bring to the group's offsets what was committed in queues that are this member's still. Call it every 5 s.

        Those that somebody reset meanwhile stay as they were reset; none goes backwards.
        """

    def resets(self) -> Positions:
        """Where to go on in the queues that somebody reset since the last call, or since this member joined.

        What was committed in them is forgotten: until they are fetched here commits in these queues do not count, and
        from then on those of messages that were read before must not come.
        """

    def reset(self, positions: Positions) -> None:
        """Let the group go on from there, in queues of this member's, also where that is less than it has done: they
        are others now, or shorter; of a broadcasting one this member alone. It learns it from `resets`. Raises
        `UnknownTopic`."""

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
    """A consumer group, whether anybody is in it or not."""

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
        """Who is in it now, sorted by id."""

    def committed(self, queues: Iterable[Queue]) -> Positions:
        """The persisted offset of those of `queues` that have one."""

    def reset(self, positions: Positions) -> None:
        """Let the group go on from there: members that consume at once, others when they join.

        Raises `UnknownGroup`, which names those with a like name, `UnknownTopic`, `OffsetOutOfRange`.
        """


@runtime_checkable
class HasGroups(Protocol):
    """An address of a log (`LogAddress`) that keeps consumer groups."""

    def group(self, name: str) -> Group:
        """Raises `InvalidGroup`."""
