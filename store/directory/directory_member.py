"""`DirectoryMember`: a member of a directory's consumer group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple

from store.api.group_protocol import MessageModel
from store.api.message_store import MessageStore
from store.append.watch import Watch
from store.broker.allocation import claim, held
from store.broker.entries import MemberEntry
from store.broker.group_files import GroupFiles, GroupOffsets
from store.broker.members import MemberFiles
from store.broker.retries import send_back
from store.format.layout import RETRY_TOPIC_PREFIX
from store.format.stored_message import StoredMessage
from store.model.errors import InvalidArgument, StoreError, StoreNotOpen
from store.model.integers import integer
from store.model.log_protocol import Positions, Queue

_logger = logging.getLogger("store")


class _GroupView(NamedTuple):
    """What a member sees of its group. others: for each other member, the queues that it owns and those that it
    requests.
    """

    resets: int
    others: dict[str, tuple[set[Queue], set[Queue]]]


class DirectoryMember:
    """A `Member` of a directory's group, until `leave`."""

    def __init__(self, files: GroupFiles, member_files: MemberFiles) -> None:
        """The caller must hold the groups' lock."""
        self.path = files.root
        self.id = member_files.entry.id
        self._files = files
        self._member_files = member_files
        self._offsets = GroupOffsets(files.offsets_of(member_files.entry), files.name, member_files.note)
        self._watch = Watch()
        self._watch.add(files.roster)
        self._seen = self._look()
        self._store = _WriterOnDemand(files, member_files)

    def members(self) -> list[str]:
        self._member_files.must_be_open()
        return sorted([self.id, *(entry.id for entry in self._other_members() if not entry.exclusive)])

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
        with self._locked():
            now, own = time.monotonic(), self._member_files.entry.claims
            claims = claim(wanted, own, self._claimed_by_others(now), now)
            if own.keys() - claims.keys():
                self._persist()
            self._offsets.forget(own.keys() ^ claims.keys())
            self._member_files.claim(claims, asks=sorted(wanted - claims.keys()) if ask else ())
            got = wanted & claims.keys()
        if any(queue.topic.startswith(RETRY_TOPIC_PREFIX) for queue in got):
            self._store.open_soon()
        return got

    def asked(self) -> set[Queue]:
        self._member_files.must_be_open()
        asks: set[Queue] = set().union(*(entry.asks for entry in self._other_members()))
        return asks & self._member_files.entry.claims.keys()

    def unlock(self, queues: Iterable[Queue]) -> None:
        given = set(queues)
        with self._locked():
            self._persist()
            self._offsets.forget(given)
            self._member_files.claim(
                {queue: asked for queue, asked in self._member_files.entry.claims.items() if queue not in given}
            )

    def committed(self, queues: Iterable[Queue]) -> Positions:
        self._member_files.must_be_open()
        return self._offsets.committed(queues)

    def begin(self, positions: Positions) -> None:
        with self._locked():
            self._offsets.begin(self._known(positions))

    def commit(self, positions: Positions) -> None:
        self._member_files.must_be_open()
        own = self._member_files.entry.claims
        self._offsets.commit({queue: offset for queue, offset in positions.items() if queue in own})

    def persist(self) -> None:
        self._member_files.must_be_open()
        if not self._offsets.is_persisted:
            with self._locked():
                self._persist()

    def resets(self) -> Positions:
        self._member_files.must_be_open()
        if not self._unseen()[1]:
            return {}
        with self._locked():
            count, news = self._unseen()
            self._offsets.forget(news)  # first, so that a kill leaves no old offsets
            self._member_files.claim(self._member_files.entry.claims, count)
            own = self._member_files.entry.claims
            self._offsets.put({queue: offset for queue, offset in news.items() if queue in own})
            return news

    def reset(self, positions: Positions) -> None:
        with self._locked():
            if known := self._known(positions):
                self._files.reset_by(self._member_files.entry, known)

    def send_back(
        self, messages: Sequence[StoredMessage], delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        self._member_files.must_be_open()
        if self._member_files.entry.model is MessageModel.BROADCASTING and integer("delay_level", delay_level) >= 0:
            raise InvalidArgument(
                f"{self.id}: a broadcasting member cannot send messages back to be delivered again. Process the "
                "message again in this member, or make it a dead letter (delay_level below 0)"
            )
        store = self._store.open()
        send_back(store, self._files.name, messages, level=delay_level, max_reconsume_times=max_reconsume_times)

    def leave(self) -> None:
        if self._member_files.is_forked:  # a child lacks the thread that may hold the store's lock
            return
        try:
            if self._member_files.is_taken:
                with (
                    suppress(StoreNotOpen),
                    self._locked(),
                ):  # others inherit the offsets of a replaced directory
                    self._persist()
                    self._member_files.leave()
        finally:
            self._member_files.drop()
            self._watch.close()
            self._store.close()

    def __enter__(self) -> DirectoryMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._member_files.must_be_open()
        with self._files.locked():
            self._member_files.must_be_in_place()
            yield

    def _persist(self) -> None:
        entry = self._member_files.entry
        _, reset = self._unseen()
        own = entry.claims.keys() - self._claimed_by_others(time.monotonic()) - reset.keys()
        self._offsets.persist(self._files.existing(own), self._store.flush)

    def _unseen(self) -> tuple[int, Positions]:
        entry = self._member_files.entry
        return self._files.resets.since(entry.resets, entry.instance)

    def _known(self, positions: Positions) -> Positions:
        """Leave out queues with a reset that this member has not seen. The caller must hold the groups' lock."""
        _, unseen = self._unseen()
        return {queue: offset for queue, offset in positions.items() if queue not in unseen}

    def _look(self) -> _GroupView:
        self._member_files.must_be_open()
        resets, _ = self._files.resets.read()
        return _GroupView(resets, {entry.id: (set(entry.claims), set(entry.asks)) for entry in self._other_members()})

    def _other_members(self) -> list[MemberEntry]:
        if self._member_files.entry.model is MessageModel.BROADCASTING:
            return []
        now = time.monotonic()
        return [entry for entry in self._files.roster.present() if entry.id != self.id and entry.is_well(now)]

    def _claimed_by_others(self, now: float) -> set[Queue]:
        return set().union(*(held(entry.claims, now) for entry in self._other_members()))


class _WriterOnDemand:
    """A member's own store, opened for writing when it first sends back a message. Thread-safe."""

    def __init__(self, files: GroupFiles, member_files: MemberFiles) -> None:
        self._files = files
        self._member_files = member_files
        self._store: MessageStore | None = None
        self._threads = threading.RLock()

    def open(self) -> MessageStore:
        with self._threads:
            if self._store is None:
                self._member_files.must_be_in_place()
                self._store = MessageStore.open(self._files.root, create=False)
            return self._store

    def open_soon(self) -> None:
        """Open the store in the background, because a recovery may take long.

        Messages that were sent back are delayed, and only a process with an open writer delivers them.
        """
        if self._store is None:
            threading.Thread(target=self._try_to_open, name="mq-open", daemon=True).start()

    def _try_to_open(self) -> None:
        if self._threads.acquire(blocking=False):  # otherwise another thread is opening the store
            try:
                self.open()
            except (StoreError, OSError) as error:  # retried when the locks are renewed
                _logger.warning(
                    "group %s: redelivered messages wait until a writer opens the store: %s", self._files.name, error
                )
            finally:
                self._threads.release()

    def flush(self) -> None:
        """Flush the messages that were sent back, before offsets after them are persisted."""
        store = self._store
        if store is not None:
            store.flush()

    def close(self) -> None:
        with self._threads:
            if self._store is not None:
                self._store.close()
