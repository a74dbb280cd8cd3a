"""`TransactionProducer`: messages that are seen if, and only if, something else was done (TransactionMQProducer)."""

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
from store.broker.transactions import IMMUNITY_SECONDS, MAX_CHECKS, Outcome, Transactions
from store.files.atomic import make_folder
from store.files.client_progress import PRODUCERS_FOLDER
from store.files.opened import Opened
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
from store.publish.locks import Turn
from store.publish.putting import PutResult

CHECK_SECONDS = 30.0  # transactionCheckInterval
_TAKE_OVER_SECONDS = 1.0  # between two tries to get the turn to check from who died
_FILE = "checks"
_logger = logging.getLogger("store")

Execute = Callable[[str], Outcome]
Check = Callable[[StoredMessage], Outcome]


class TransactionResult(NamedTuple):
    """What became of a transaction. put: where its message went, if it was committed."""

    outcome: Outcome
    transaction_id: str
    put: PutResult | None


class TransactionProducer(Opened):
    """A member of a producer group, whose members answer for each other's transactions: use it in a `with` statement.

    From its construction until `close` a thread of one of the members, of whichever processes are alive, asks `check`
    about those that nobody has ended. Threads may share it. Verbs raise `StoreClosed` after `close`, and `StoreForked`
    in a forked process. One that is dropped without `close` is a `ResourceWarning`.
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
        """Join, for the store at a path, which has to be there, or for one that is open for writing, and stays so.

        check: called in a thread of its own with a message as it would be committed, whose `msg_id` is the id that
        `execute` got: what became of the other thing? What it raises is logged, and means UNKNOWN. check_interval:
        seconds between two checks. immunity: seconds from its beginning in which a transaction is not asked about.
        max_checks: times, then the message goes to TRANS_CHECK_MAX_TIME_TOPIC.

        Raises as `MessageStore.open`, `InvalidGroup`, `InvalidArgument`.
        """
        if not callable(check):
            raise InvalidArgument(f"check={check!r:.80}: give a function of a message that answers an Outcome")
        if seconds("check_interval", check_interval) <= 0:
            raise InvalidArgument(f"check_interval={check_interval}: give seconds, above 0")
        limits = seconds("immunity", immunity), integer("max_checks", max_checks, 1)
        self._owns = not isinstance(store, MessageStore)
        self._store = MessageStore.open(store, create=False) if not isinstance(store, MessageStore) else store
        what = f"{self._store.path}: transactions of group {group!r}"
        super().__init__(what, f"TransactionProducer({str(self._store.path)!r}, {group!r}, check)")
        try:
            self._transactions = Transactions(self._store, group)
            folder = Path(self._store.path, PRODUCERS_FOLDER, group)
            make_folder(folder)
            turn = Turn(folder / _FILE)
        except BaseException:
            if self._owns:
                self._store.close()
            raise
        self._checker = _Checker(what, self._transactions, turn, check, check_interval, limits)
        self._checker.start()

    def send(self, message: Message, execute: Execute) -> TransactionResult:
        """Do something else, and let the message be seen if that was done.

        The message is stored, where nobody sees it; then `execute` is called with the transaction's id, which it best
        writes down together with what it does, for `check` to find; what it answers counts. UNKNOWN leaves the
        transaction open, and so does what it raises, which this raises: then `check` is asked, in some process.

        Raises as `MessageStore.put`, before `execute` is called; after it `TransactionEnded` where another member was
        asked meanwhile and has decided, and `UnknownTopic`, as `Transactions.commit`.
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
        """Leave the group, after the check that is under way; others go on.

        The second time, and in a forked process, this does nothing. `check` may call it to end the checks: the code
        that opened the producer closes it. Raises as `MessageStore.close` of a store that it opened; `StoreLocked` in
        a signal handler amid `send`, and then nothing is closed.
        """
        if self.is_forked:
            return
        if self._transactions.is_inside:
            raise StoreLocked(
                f"{self._what}: a signal handler called `close` during `send` in the same thread. Let the handler "
                "raise an exception instead"
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
            what = f"{self._what}: was dropped; close it, or use a with statement"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> TransactionProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Checker(threading.Thread):
    """Asks what became of the transactions left open, while it is this member's turn."""

    def __init__(
        self,
        what: str,
        transactions: Transactions,
        turn: Turn,
        check: Check,
        interval: float,
        limits: tuple[float, int],
    ) -> None:
        """limits: immunity in seconds, and how often one is asked about."""
        super().__init__(name="mq-check", daemon=True)
        self.stopping = threading.Event()
        self._what = what
        self._transactions = transactions
        self._turn = turn
        self._check = check
        self._interval = interval
        self._limits = limits

    def run(self) -> None:
        """One member has the turn until it leaves or dies, so that each transaction is asked about in its time."""
        try:
            self._check_now_and_then()
        finally:  # another member takes over
            self._turn.close()

    def _check_now_and_then(self) -> None:
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
                    _logger.exception("%s: nobody is asked here any more", self._what)
                break
            except (StoreError, OSError) as error:
                if told != (told := repr(error)):  # once, not at every try
                    _logger.exception("%s: asked again in %g s", self._what, self._interval)
                rest = self._interval
            self.stopping.wait(min(rest, threading.TIMEOUT_MAX))

    def _decide(self, message: StoredMessage) -> Outcome:
        """What the user says, or that he does not know."""
        try:
            return _must_be_outcome(self._check(message))
        except BaseException:  # SystemExit, too, which would end this thread without a word
            _logger.exception("%s: what became of %s is not known", self._what, message.msg_id)
            return Outcome.UNKNOWN


def _must_be_outcome(answer: object) -> Outcome:
    """Raises `InvalidArgument`; the transaction is open then."""
    if not isinstance(answer, Outcome):
        raise InvalidArgument(f"{answer!r:.80} is no Outcome; answer COMMIT, ROLL_BACK or UNKNOWN")
    return answer
