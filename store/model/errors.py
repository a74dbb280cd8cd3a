"""All errors of a store, as one tree.

    StoreError
    ├── ConfigError              a key or value of store.conf
    ├── NotAStore                the path is no store, or holds something else
    ├── UnsupportedStore         a kind of RocketMQ directory, or topic, that is not read or not written
    ├── StoreLocked              a RocketMQ broker (or another owner) has the directory
    ├── StoreBusy                somebody else's append did not end in time
    ├── BufferFull               a producer's buffer that stays full
    ├── StoreNotOpen             a store, watch or hold service that is not open here, or would not be
    │   ├── StoreClosed          it was closed
    │   ├── StoreForked          it was opened in the process that this one was forked from
    │   └── StoreReplaced        its directory was deleted, replaced, or changed owner
    ├── ReadOnlyStore            a writing verb on a store opened with read_only=True
    ├── StoreFull                no space left on the device
    ├── FlushFailed              the device did not take what was to be flushed: appends are refused from then on
    ├── StoreUnavailable         the system refuses: no permission, no descriptor left, a read error, ...
    │   └── FileMissing          a file of the store is missing
    ├── ArchiveError
    │   ├── NoArchive            nothing is archived there, or only a part of what was begun
    │   ├── ArchiveOfAnother     it holds the messages of another store
    │   └── QueuesPassedOver     some queues cannot be archived, all others are; `.reasons` says why
    ├── ObjectsUnavailable       no such bucket, no permission, no answer, a package that is missing
    ├── UnknownTopic
    │   └── UnknownQueue         the topic exists, the queue id does not
    ├── InvalidTopic             a name RocketMQ would refuse
    ├── InvalidGroup             a consumer group's name that RocketMQ would refuse
    ├── UnknownGroup             a consumer group that nobody has made yet
    ├── GroupConflict            a consumer that does not fit its group's other members
    ├── InvalidMessageId         a text that is no offsetMsgId
    ├── InvalidColumns           a table or a column list that does not fit
    ├── InvalidArgument          a queue id, an offset, a time or a count that is no number, or out of bounds
    ├── FilterError              an expression of tags, or of SQL92, that cannot be parsed
    ├── MessageRefused           a message RocketMQ would refuse; `.status` is its PutStatus
    ├── TransactionEnded         a half message that was committed or rolled back before
    ├── NoReply                  a request that nobody answered in time
    ├── UnreadableBody           a body that its producer says to have compressed, and that does not decompress
    │   └── MessageTooLarge      one that becomes larger than maxDecompressedMessageSize
    ├── RemotingError            of RocketMQ's protocol, between a client and a broker or name server
    │   ├── BadFrame             bytes that are no frame of it, or a frame that is too large
    │   ├── Unreachable          nobody answers at an address, or not in time
    │   │   └── BrokerMissing    a broker of a cluster did not answer for longer than it is waited for
    │   ├── Untrusted            a server's certificate that nobody who is trusted has signed
    │   └── RequestRefused       the answer is not success; `.code` is RocketMQ's response code
    ├── OffsetOutOfRange
    │   ├── OffsetLost           older than what the store still has
    │   └── OffsetNotYet         newer than what the store has published
    └── CorruptStore
        ├── CorruptSegment       a file with a wrong name or length, or a missing one
        └── CorruptRecord        bytes that are not the record the ConsumeQueue promised

Every message says what is wrong, where, and what to do about it. `system_errors` translates errors of the operating
system that have to do with the machine, naming the path and a remedy. Any other `OSError` passes, for it means a fault
in the program. `pyspark_mq.errors` has the errors of Spark's side.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.model.log_protocol import Queue


class PutStatus(Enum):
    """RocketMQ's PutMessageStatus, as far as a local store can answer with it."""

    PUT_OK = "stored"
    MESSAGE_ILLEGAL = "the message breaks a rule of the format"
    PROPERTIES_SIZE_EXCEEDED = "more than 32,767 bytes of properties"
    ALREADY_STORED = "its producer sent it before, under the same sequence, and the log has it"


class StoreError(Exception):
    """Root of everything that `store` and `pyspark_mq` raise on purpose."""


class ConfigError(StoreError):
    """A key or a value of `store.conf` that is not understood."""


class NotAStore(StoreError):
    """The path holds no store (reader), or holds other files (writer)."""


class UnsupportedStore(StoreError):
    """A kind of RocketMQ directory, or of topic, that this package does not read or does not write."""


class StoreLocked(StoreError):
    """Somebody else owns the directory: a running RocketMQ broker, or a writer in the way of a repair."""


class StoreBusy(StoreError):
    """No turn to append within `lockTimeoutMillis`; nothing of the call is visible, and it may be repeated."""


class BufferFull(StoreError):
    """A producer's buffer stayed full for too long; the message was not taken, and may be sent again."""


class StoreNotOpen(StoreError):
    """A store, a watch or a hold service that is not open here (any more), or would not be where it is to be copied."""


class StoreClosed(StoreNotOpen):
    """A verb of a store, a watch or a hold service that was closed."""


class StoreForked(StoreNotOpen):
    """A verb of something that the parent of this process opened, before it forked."""


class StoreReplaced(StoreNotOpen):
    """The directory of an open store was deleted, or replaced, or changed owner: a RocketMQ broker appended to it, or a
    writer of ours opened a broker's directory. Close the store and open it again.
    """


class ReadOnlyStore(StoreError):
    """A writing verb was called on a store that was opened with `read_only=True`."""


class StoreFull(StoreError, OSError):
    """The device has no space left; nothing of the append is visible, and it may be repeated."""


class FlushFailed(StoreError):
    """The device did not take what was written: what lies behind the flushed offset may be lost with the machine.

    A flush cannot be tried again, for the system forgets which bytes failed. So every store that is open on the
    directory refuses to append, to flush and to close in good order, until all are closed and one is opened anew: that
    writes everything behind the flushed offset again, and recovers.
    """


class StoreUnavailable(StoreError, OSError):
    """The system refuses what the store asks of it; `__cause__` is its own `OSError`, whose `errno` this has, too."""

    def advising(self, advice: str) -> StoreUnavailable:
        """Return the same error with one more advice."""
        error = type(self)(f"{self}, {advice}")
        error.errno = self.errno
        return error


class FileMissing(StoreUnavailable, FileNotFoundError):
    """A file of the store is missing."""


class ArchiveError(StoreError):
    """An archive that cannot be read or written."""


class NoArchive(ArchiveError):
    """Nothing is archived there, or archiving was begun and never came as far as to count."""


class ArchiveOfAnother(ArchiveError):
    """The place holds the messages of another store under the same names."""


class QueuesPassedOver(ArchiveError):
    """Some queues cannot be archived, and all others are.

    `reasons` is why, for each queue.
    """

    def __init__(self, message: str, reasons: Mapping[Queue, StoreError]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type[QueuesPassedOver], tuple[str, dict[Queue, StoreError]]]:
        return type(self), (str(self), self.reasons)


class ObjectsUnavailable(StoreError):
    """The directory or object store of an archive, a ledger or staged rows refuses, or does not answer."""


class UnknownTopic(StoreError):
    """The topic does not exist."""


class UnknownQueue(UnknownTopic):
    """The topic has no queue of that number."""


class InvalidTopic(StoreError):
    """A topic name outside RocketMQ's rules."""


class InvalidGroup(StoreError):
    """A consumer group's name outside RocketMQ's rules."""


class UnknownGroup(StoreError):
    """A consumer group that has no settings, no offsets and no members."""


class GroupConflict(StoreError):
    """A consumer that cannot join: the group's members have another subscription, or one has its name."""


class InvalidMessageId(StoreError):
    """A text that is no offsetMsgId."""


class InvalidColumns(StoreError):
    """A table without the needed columns or with wrong types, or an unknown column name."""


class InvalidArgument(StoreError, ValueError):
    """A queue id, an offset, a time or a count that is no integer, or one that no store can have."""


class FilterError(StoreError):
    """A subscription expression that cannot be parsed."""


class MessageRefused(StoreError):
    """A message that RocketMQ's broker would refuse as well.

    `status` is the PutStatus it answers with.
    """

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status = status
        self._reason = reason

    def __reduce__(self) -> tuple[type[MessageRefused], tuple[PutStatus, str]]:
        return type(self), (self.status, self._reason)


class TransactionEnded(StoreError):
    """A half message was committed or rolled back before; nothing of the call is done."""


class NoReply(StoreError):
    """A request that nobody answered in time."""


class UnreadableBody(StoreError):
    """A body that its producer says to have compressed, and that does not decompress. Its checksum is right."""


class MessageTooLarge(UnreadableBody):
    """A compressed body that becomes larger than `maxDecompressedMessageSize`."""


class RemotingError(StoreError):
    """What goes wrong between a client and a broker or a name server."""


class BadFrame(RemotingError):
    """Bytes that are no frame of RocketMQ's protocol, or one that is larger than its frames may be."""


class Unreachable(RemotingError):
    """Nobody answers at an address, or not in time."""


class BrokerMissing(Unreachable):
    """A broker of a cluster did not answer for longer than it is waited for. Its messages come when it is back."""

    @classmethod
    def of(cls, address: object, missing: Iterable[object]) -> BrokerMissing:
        """Return the error for brokers that were waited for in vain."""
        return cls(
            f"{address}: {'; '.join(map(str, missing))}. No message is lost by that. Start the broker, then the query "
            "again: it goes on where it was. To wait longer set the option brokerTimeout, and to read the other "
            "brokers meanwhile whenBrokerMissing=skip. If the broker never comes back, name the remaining ones with "
            "the option brokers"
        )


class Untrusted(RemotingError):
    """A server shows a certificate that nobody who is trusted has signed, or that is of another name."""


class RequestRefused(RemotingError):
    """A request that is answered with something else than success.

    `code` is RocketMQ's response code, `remark` what it says in words.
    """

    def __init__(self, code: int, remark: str, where: str = "") -> None:
        super().__init__(f"{where}{remark} (response code {int(code)})")
        self.code = code
        self.remark = remark


class OffsetOutOfRange(StoreError):
    """A ConsumeQueue offset the store cannot serve."""


class OffsetLost(OffsetOutOfRange):
    """Messages from this offset on were deleted (retention)."""


class OffsetNotYet(OffsetOutOfRange):
    """The store has not published messages up to this offset."""


class CorruptStore(StoreError):
    """Files that contradict the format."""


class CorruptSegment(CorruptStore):
    """A segment file with a wrong name or length, or one that is missing between two others."""


class CorruptRecord(CorruptStore):
    """Bytes in the commit log that are not the record the ConsumeQueue promised."""


_FULL = "nothing of this call is visible. Free some space and repeat it"
_OWNER = "ask its owner for the right"
_FILES = "close what is not needed, or raise the limit (ulimit -n; fs.file-max)"
_DEVICE = "see the system's log; restore what is lost from a copy"
_LINKS = "correct the path"
_NO_FILE = "a pipe or a socket stands where a file belongs: move it out of the store"
_REMEDIES = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "copy it to where it can be written",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EFBIG: "raise the limit of a file's length (ulimit -f), or use another file system",
    errno.ENOMEM: "free memory, or allow more mappings (vm.max_map_count)",
    errno.EIO: _DEVICE,
    errno.ESTALE: _DEVICE,
    errno.ENODEV: _DEVICE,
    errno.ENOLCK: "a store needs a file system with locks: copy it to a local one",
    errno.EBUSY: "close what uses it, and repeat the call",
    errno.ETXTBSY: "close what uses it, and repeat the call",
    errno.ELOOP: _LINKS,
    errno.EEXIST: _LINKS,
    errno.ENAMETOOLONG: _LINKS,
    errno.ENOTDIR: "a file stands where a folder belongs: move it out of the store",
    errno.ENXIO: _NO_FILE,
    errno.ESPIPE: _NO_FILE,
    errno.ENOENT: "put it back, or correct the path",
    errno.EISDIR: "a folder stands where a file belongs: move it out of the store",
}


class system_errors:  # noqa: N801
    """Raise `StoreFull` or `StoreUnavailable` for an `OSError` in the block, naming its path, or else `where`."""

    __slots__ = ("_where",)

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise_translated(self._where, error)


def raise_translated(where: object, error: OSError) -> None:
    """Raise the error of the store for one of the system's; none for what is no matter of the machine."""
    if isinstance(error, StoreError):
        return
    path = error.filename if isinstance(error.filename, (str, bytes)) else where
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise _numbered(StoreFull(f"{path}: no space left on the device; {_FULL}"), error) from error
    if error.errno in _REMEDIES:
        kind = FileMissing if error.errno == errno.ENOENT else StoreUnavailable
        raise _numbered(kind(f"{path}: {error.strerror}; {_REMEDIES[error.errno]}"), error) from error


def _numbered(translated: OSError, error: OSError) -> OSError:
    translated.errno = error.errno
    return translated
