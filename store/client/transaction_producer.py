"""`TransactionProducer`: publishes a message only if other work of the caller succeeded (TransactionMQProducer)."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from store.api.message_store import MessageStore
from store.append.locks import ByteLock
from store.append.putting import PutResult
from store.broker.transactions import IMMUNITY_SECONDS, MAX_CHECKS, Outcome, Transactions
from store.disk.atomic import make_folder
from store.disk.client_progress import PRODUCERS_FOLDER
from store.disk.opened import Opened
from store.format.message import Message
from store.format.stored_message import StoredMessage
from store.model.errors import (
    CorruptStore,
    FlushFailed,
    InvalidArgument,
    PutStatus,
    StoreError,
    StoreLocked,
    StoreNotOpen,
)
from store.model.integers import integer, seconds

CHECK_SECONDS = 30.0  # transactionCheckInterval
_TAKE_OVER_SECONDS = 1.0  # between two tries to acquire the lock
_FILE = "checks"
_logger = logging.getLogger("store")

Execute = Callable[[str], Outcome]
Check = Callable[[StoredMessage], Outcome]


class TransactionResult(NamedTuple):
    """The outcome of a transaction. put: where the message was appended, None unless it was committed."""

    outcome: Outcome
    transaction_id: str
    put: PutResult | None


class TransactionProducer(Opened):
    """A member of a producer group. Use it in a `with` statement.

    One open member at a time, in any process, calls its `check` for the group's open transactions.

    Thread-safe. Methods raise `StoreClosed` after `close`, and `StoreForked` in a forked process. Without `close`, a
    producer emits a `ResourceWarning`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | MessageStore,
        group: str,
        check: Check,
        *,
        check_interval: float = CHECK_SECONDS,
        immunity: float = IMMUNITY_SECONDS,
        max_checks: int = MAX_CHECKS,
    ) -> None:
        """Join a producer group.

        store: the path of an existing store, or a store that is open for writing, which the caller has to close.
        check: returns the outcome of an open transaction. A separate thread calls it with the message as it would be
        committed. The message's `msg_id` is the transaction id that `execute` got. An error of `check` is logged, and
        means UNKNOWN.
        check_interval: seconds between two checks.
        immunity: the age in seconds at which a transaction is first checked.
        max_checks: after this number of checks, a message goes to TRANS_CHECK_MAX_TIME_TOPIC.

        Raises as `MessageStore.open`, `InvalidGroup`, `InvalidArgument`.
        """
        if not callable(check):
            raise InvalidArgument(
                f"check={check!r:.80} is not callable. Give a function that takes a message and returns an Outcome"
            )
        if seconds("check_interval", check_interval) <= 0:
            raise InvalidArgument(f"check_interval={check_interval} must be a number of seconds above 0")
        limits = seconds("immunity", immunity), integer("max_checks", max_checks, 1)
        self._owns = not isinstance(store, MessageStore)
        self._store = MessageStore.open(store, create=False) if not isinstance(store, MessageStore) else store
        what = f"{self._store.path}: transactions of group {group!r}"
        super().__init__(what, f"TransactionProducer({str(self._store.path)!r}, {group!r}, check)")
        try:
            self._transactions = Transactions(self._store, group)
            folder = Path(self._store.path, PRODUCERS_FOLDER, group)
            make_folder(folder)
            turn = ByteLock(folder / _FILE)
        except BaseException:
            if self._owns:
                self._store.close()
            raise
        self._checker = _Checker(what, self._transactions, turn, check, check_interval, limits)
        self._checker.start()

    def send(self, message: Message, execute: Execute) -> TransactionResult:
        """Store a message that readers do not see, call `execute`, and commit or roll back as `execute` returns.

        `execute` gets the transaction's id. It should store the id atomically with its own work, so that `check` can
        find it. If `execute` returns UNKNOWN or raises, the transaction stays open until a `check` decides. An error of
        `execute` is raised here.

        Raises as `MessageStore.put` before `execute` is called. After it, raises `TransactionEnded` if a `check` has
        decided concurrently, and `UnknownTopic` as `Transactions.commit`.
        """
        self.must_be_open()
        (half,) = halves = self._transactions.prepare([message])
        outcome = _must_be_outcome(execute(half.transaction_id))
        if outcome is Outcome.COMMIT:
            placed = self._transactions.commit(halves)
            where = placed.queue_ids.item(0), placed.queue_offsets.item(0), placed.physical_offsets.item(0)
            put = PutResult(PutStatus.PUT_OK, *where, half.transaction_id)
            return TransactionResult(outcome, half.transaction_id, put)
        if outcome is Outcome.ROLL_BACK:
            self._transactions.roll_back(halves)
        return TransactionResult(outcome, half.transaction_id, None)

    def close(self) -> None:
        """Leave the group, after the running check.

        Does nothing the second time and in a forked process. If `check` calls this, the checks stop, but the code that
        opened the producer still has to call it. Raises as `MessageStore.close`, and `StoreLocked`, without closing, in
        a signal handler that interrupted `send`.
        """
        if self.is_forked:
            return
        if self._transactions.is_inside:
            raise StoreLocked(
                f"{self._what}: a signal handler called close during send in the same thread. Let the handler raise "
                "an exception instead"
            )
        self._is_over = True
        self._checker.stopping.set()
        if self._checker is threading.current_thread():
            return
        self._checker.join()
        if self._owns:
            self._store.close()

    def __del__(self) -> None:
        if not self._is_over and "_checker" in vars(self):
            what = f"{self._what}: was dropped without a call of close. Close it, or use a with statement"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> TransactionProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Checker(threading.Thread):
    def __init__(
        self,
        what: str,
        transactions: Transactions,
        turn: ByteLock,
        check: Check,
        interval: float,
        limits: tuple[float, int],
    ) -> None:
        """limits: see `Transactions.check`."""
        super().__init__(name="mq-check", daemon=True)
        self.stopping = threading.Event()
        self._what = what
        self._transactions = transactions
        self._turn = turn
        self._check = check
        self._interval = interval
        self._limits = limits

    def run(self) -> None:
        # Hold the group's lock also between checks, because two checking members would shorten the interval.
        try:
            self._check_periodically()
        finally:
            self._turn.close()

    def _check_periodically(self) -> None:
        next_check, told = time.monotonic(), ""
        while not self.stopping.is_set():
            try:
                if self._turn.take():
                    self._transactions.check(self._decide, *self._limits)
                    rest, told = self._interval, ""
                else:
                    rest = min(self._interval, _TAKE_OVER_SECONDS)
                    if time.monotonic() >= next_check:
                        self._transactions.forget()
                        next_check = time.monotonic() + self._interval
            except (FlushFailed, StoreNotOpen, CorruptStore):
                if not self.stopping.is_set():
                    _logger.exception(
                        "%s: this process checks open transactions no longer. Open a new producer", self._what
                    )
                break
            except (StoreError, OSError) as error:
                if told != (told := repr(error)):  # log an error once
                    _logger.exception(
                        "%s: open transactions cannot be checked; trying again in %g s", self._what, self._interval
                    )
                rest = self._interval
            self.stopping.wait(min(rest, threading.TIMEOUT_MAX))

    def _decide(self, message: StoredMessage) -> Outcome:
        try:
            return _must_be_outcome(self._check(message))
        except BaseException:  # also SystemExit, which would end this thread silently
            _logger.exception(
                "%s: check failed for message %s, so its transaction stays open", self._what, message.msg_id
            )
            return Outcome.UNKNOWN


def _must_be_outcome(answer: object) -> Outcome:
    if not isinstance(answer, Outcome):
        raise InvalidArgument(
            f"{answer!r:.80} is no Outcome. Return Outcome.COMMIT, Outcome.ROLL_BACK or Outcome.UNKNOWN"
        )
    return answer
