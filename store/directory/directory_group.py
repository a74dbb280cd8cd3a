"""Consumer groups of the processes that share a store's directory, see `group_protocol`."""

from __future__ import annotations

import difflib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

from store.api.group_protocol import MemberInfo, MessageModel, Subscriptions
from store.api.message_store import MessageStore
from store.broker.allocation import claim, held
from store.broker.entries import MemberEntry, client_id
from store.broker.group_files import GroupFiles, GroupOffsets
from store.broker.members import Seat, is_served, server_of
from store.broker.retries import send_back
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.stored_message import StoredMessage
from store.model.errors import GroupConflict, InvalidArgument, StoreError, StoreNotOpen, UnknownGroup
from store.model.integers import integer
from store.model.log_protocol import Positions, Queue
from store.publish.watch import Watch
from store.upkeep.store_directory import StoreDirectory

_DEFAULT_INSTANCE = "DEFAULT"
_SHOWN_GROUPS = 10
_logger = logging.getLogger("store")


class DirectoryGroup:
    """A `Group` whose members are processes of this host: files beside the store in directory `path`.

    Raises `NotAStore`, `InvalidGroup`.
    """

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        directory = StoreDirectory.at(path)
        directory.must_be_store()
        self.path = directory.root
        self.name = name
        self._files = GroupFiles(self.path, name, directory.configuration(None).lockTimeoutMillis / 1000)

    def join(
        self,
        subscriptions: Subscriptions,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        exclusive: bool = False,
        instance: str | None = None,
    ) -> DirectoryMember:
        if instance is None and model is MessageModel.BROADCASTING:
            instance = _DEFAULT_INSTANCE
        id_, files = client_id(instance), self._files

        if model is MessageModel.CLUSTERING:
            self._must_not_be_served()

        with files.in_turn():
            resets, _ = files.resets.read()
            seat = files.enter(MemberEntry(id_, dict(subscriptions), model, orderly, exclusive, resets))
            member = DirectoryMember(files, seat)
        try:
            if model is MessageModel.CLUSTERING:  # again, now that servers see this one
                self._must_not_be_served()
        except BaseException:
            member.leave()
            raise
        return member

    def _must_not_be_served(self) -> None:
        """Raises `GroupConflict` where clients of a server are members."""
        self._no_clients(
            "cannot share its queues with members beside it, for they do not say when they gave one up. End those "
            "first, or join a group of another name"
        )

    def _no_clients(self, why: str) -> None:
        if is_served(self.path, self.name):
            raise GroupConflict(
                f"{self.path}: group {self.name}: clients consume in it through a server (pyspark-mq serve: "
                f"{server_of(self.path, self.name)}), and {why}"
            )

    def members(self) -> list[MemberInfo]:
        now = time.monotonic()
        return [entry.info(now) for entry in self._files.roster.present()]

    def committed(self, queues: Iterable[Queue]) -> Positions:
        queues = list(queues)
        found = self._files.offsets.positions(self.name, {queue.topic for queue in queues})
        return {queue: found[queue] for queue in queues if queue in found}

    def create(self) -> None:
        with self._files.in_turn():
            self._files.offsets.settings.create(self.name)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set what is named of RocketMQ's SubscriptionGroupConfig; the group is made if it is new."""
        with self._files.in_turn():
            self._files.offsets.settings.configure(self.name, settings)

    def delete(self, *, with_offsets: bool) -> None:
        """Take its settings away, and how far it has read; it is new when somebody joins again.

        Raises `UnknownGroup`, `GroupConflict` while it has members.
        """
        self.must_exist()
        with self._files.in_turn():
            if members := self._files.roster.present():
                raise GroupConflict(f"{self.path}: group {self.name} has members: {members[0].id}; end those first")
            for offsets in (self._files.offsets, *ConsumerOffsets.of_instances(self.path, self.name)):
                offsets.delete(self.name, with_offsets=with_offsets)

    def must_exist(self) -> None:
        """Raises `UnknownGroup`, which names those with a like name."""
        known = self._files.offsets.names()
        if self.name not in known:
            like = difflib.get_close_matches(self.name, known) or known
            found = ", ".join(like[:_SHOWN_GROUPS]) or "none"
            raise UnknownGroup(f"{self.path}: no group {self.name!r}; there are: {found}")

    def reset(self, positions: Positions, *, by_its_server: bool = False) -> None:
        """Raises `GroupConflict` while clients of a server are members. by_its_server: that server is the caller, and
        tells its clients.
        """
        self.must_exist()
        if not by_its_server:
            self._no_clients(
                "go on where they are. Let it reset the group (mqadmin resetOffsetByTime), or end those first"
            )
        with self._files.in_turn():
            self._files.reset(positions)


class _Sight(NamedTuple):
    """What a member waits for to change. others: the queues that each has, and those that it asks for."""

    resets: int
    others: dict[str, tuple[set[Queue], set[Queue]]]


class DirectoryMember:
    """A `Member`, until `leave`."""

    def __init__(self, files: GroupFiles, seat: Seat) -> None:
        """Call it in turn."""
        self.path = files.root
        self.id = seat.entry.id
        self._files = files
        self._seat = seat
        self._offsets = GroupOffsets(files.offsets_of(seat.entry), files.name, seat.note)
        self._watch = Watch()
        self._watch.add(files.roster)
        self._seen = self._look()
        self._store: MessageStore | None = None  # to send messages back
        self._threads = threading.RLock()  # one thread at a time opens the store, or closes it

    def members(self) -> list[str]:
        self._seat.must_be_open()
        return sorted([self.id, *(entry.id for entry in self._others() if not entry.exclusive)])

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while (found := self._look()) == self._seen:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._watch.wait(left)
        self._seen = found
        return True

    def lock(self, queues: Iterable[Queue], *, ask: bool = False) -> set[Queue]:
        wanted = set(queues)
        with self._in_turn():
            now, own = time.monotonic(), self._seat.entry.claims
            claims = claim(wanted, own, self._taken(now), now)
            if own.keys() - claims.keys():
                self._persist()
            self._offsets.forget(own.keys() ^ claims.keys())
            self._seat.claim(claims, asks=sorted(wanted - claims.keys()) if ask else ())
            got = wanted & claims.keys()
        if self._store is None and any(queue.topic.startswith(RETRY_TOPIC_PREFIX) for queue in got):
            threading.Thread(target=self._let_come_again, name="mq-open", daemon=True).start()
        return got

    def asked(self) -> set[Queue]:
        self._seat.must_be_open()
        asks: set[Queue] = set().union(*(entry.asks for entry in self._others()))
        return asks & self._seat.entry.claims.keys()

    def unlock(self, queues: Iterable[Queue]) -> None:
        given = set(queues)
        with self._in_turn():
            self._persist()
            self._offsets.forget(given)
            self._seat.claim({queue: asked for queue, asked in self._seat.entry.claims.items() if queue not in given})

    def committed(self, queues: Iterable[Queue]) -> Positions:
        self._seat.must_be_open()
        return self._offsets.committed(queues)

    def begin(self, positions: Positions) -> None:
        with self._in_turn():
            self._offsets.begin(self._known(positions))

    def commit(self, positions: Positions) -> None:
        self._seat.must_be_open()
        own = self._seat.entry.claims
        self._offsets.commit({queue: offset for queue, offset in positions.items() if queue in own})

    def persist(self) -> None:
        self._seat.must_be_open()
        if not self._offsets.is_persisted:
            with self._in_turn():
                self._persist()

    def resets(self) -> Positions:
        self._seat.must_be_open()
        if not self._unseen()[1]:
            return {}
        with self._in_turn():
            count, news = self._unseen()
            self._offsets.forget(news)  # first: who is killed now leaves nothing of before
            self._seat.claim(self._seat.entry.claims, count)
            own = self._seat.entry.claims
            self._offsets.put({queue: offset for queue, offset in news.items() if queue in own})
            return news

    def reset(self, positions: Positions) -> None:
        with self._in_turn():
            if known := self._known(positions):
                self._files.reset_by(self._seat.entry, known)

    def send_back(
        self, messages: Sequence[StoredMessage], delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        self._seat.must_be_open()
        if self._seat.entry.model is MessageModel.BROADCASTING and integer("delay_level", delay_level) >= 0:
            raise InvalidArgument(
                f"{self.id}: what a broadcasting member sends back comes to nobody: keep it, or make it a dead letter "
                "(delay_level below 0)"
            )
        store = self._open()
        send_back(store, self._files.name, messages, level=delay_level, max_reconsume_times=max_reconsume_times)

    def leave(self) -> None:
        if self._seat.is_forked:  # the thread that holds `_threads` may be missing
            return
        try:
            if self._seat.is_taken:
                with suppress(StoreNotOpen), self._in_turn():  # another is in its place: where it was, others inherit
                    self._persist()
                    self._seat.leave()
        finally:
            self._seat.drop()
            self._watch.close()
            with self._threads:
                if self._store is not None:
                    self._store.close()

    def __enter__(self) -> DirectoryMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def _open(self) -> MessageStore:
        with self._threads:
            if self._store is None:
                self._seat.must_be_in_place()
                self._store = MessageStore.open(self.path, create=False)
            return self._store

    def _let_come_again(self) -> None:
        """What was sent back waits until somebody has the store open for writing: who has the queue that it comes to,
        if nobody else. That may take as long as a recovery; what fails is tried again when the locks are renewed."""
        if self._threads.acquire(blocking=False):  # or it is being opened
            try:
                self._open()
            except (StoreError, OSError) as error:
                _logger.warning("group %s: what was sent back waits for a writer: %s", self._files.name, error)
            finally:
                self._threads.release()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Change the group's files. Raises `StoreReplaced` if another directory is in the place of this one."""
        self._seat.must_be_open()
        with self._files.in_turn():
            self._seat.must_be_in_place()
            yield

    def _persist(self) -> None:
        entry = self._seat.entry
        _, reset = self._unseen()
        own = entry.claims.keys() - self._taken(time.monotonic()) - reset.keys()
        self._offsets.persist(self._files.existing(own), self._flush)

    def _unseen(self) -> tuple[int, Positions]:
        """The resets that this member does not know of yet."""
        entry = self._seat.entry
        return self._files.resets.since(entry.resets, entry.instance)

    def _known(self, positions: Positions) -> Positions:
        """Without queues that somebody reset since. Call it in turn."""
        _, unseen = self._unseen()
        return {queue: offset for queue, offset in positions.items() if queue not in unseen}

    def _flush(self) -> None:
        """What was sent back is on the device before the group's offsets say that it is done."""
        store = self._store
        if store is not None:
            store.flush()

    def _look(self) -> _Sight:
        self._seat.must_be_open()
        resets, _ = self._files.resets.read()
        return _Sight(resets, {entry.id: (set(entry.claims), set(entry.asks)) for entry in self._others()})

    def _others(self) -> list[MemberEntry]:
        """Whom this member shares the queues with; nobody, where all get everything."""
        if self._seat.entry.model is MessageModel.BROADCASTING:
            return []
        now = time.monotonic()
        return [entry for entry in self._files.roster.present() if entry.id != self.id and entry.is_well(now)]

    def _taken(self, now: float) -> set[Queue]:
        """What others have."""
        return set().union(*(held(entry.claims, now) for entry in self._others()))
