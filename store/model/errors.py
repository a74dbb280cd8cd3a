"""All errors of a store, as one tree.

    StoreError
    ├── ConfigError              a key or value of store.conf
    ├── NotAStore                the path is missing, or contains other files
    ├── UnsupportedStore         a kind of RocketMQ directory, or topic, that cannot be read or written
    ├── StoreLocked              a RocketMQ broker or another process owns the directory
    ├── StoreBusy                the append lock was not released in time
    ├── BufferFull               a producer's buffer stayed full
    ├── StoreNotOpen             a store, watch or hold service is not open in this process
    │   ├── StoreClosed          it was closed
    │   ├── StoreForked          it was opened before this process was forked
    │   └── StoreReplaced        its directory was deleted, replaced, or changed owner
    ├── ReadOnlyStore            a write to a store opened with read_only=True
    ├── StoreFull                no space left on the device
    ├── FlushFailed              a sync failed: all later appends are refused
    ├── StoreUnavailable         the system refuses: no permission, no descriptor left, a read error, ...
    │   └── FileMissing          a file of the store is missing
    ├── ArchiveError
    │   ├── NoArchive            the place has no archive, or only an unfinished one
    │   ├── ArchiveOfAnother     the place has an archive of another store
    │   └── QueuesPassedOver     some queues could not be archived, the others were; `.reasons` says why
    ├── ObjectsUnavailable       no such bucket, no permission, no answer, a missing package
    ├── UnknownTopic
    │   └── UnknownQueue         the topic exists, the queue id does not
    ├── InvalidTopic             a topic name that RocketMQ rejects
    ├── InvalidGroup             a consumer group's name that RocketMQ rejects
    ├── UnknownGroup             a consumer group that does not exist
    ├── GroupConflict            a consumer that contradicts other members of its group
    ├── InvalidMessageId         a text that is no offsetMsgId
    ├── InvalidColumns           a wrong table or list of columns
    ├── InvalidArgument          a queue id, an offset, a time or a count that is no number, or out of bounds
    ├── FilterError              a tag or SQL92 expression that cannot be parsed
    ├── MessageRefused           a message that RocketMQ rejects; `.status` is its PutStatus
    ├── TransactionEnded         a half message that was already committed or rolled back
    ├── NoReply                  a request without a reply in time
    ├── UnreadableBody           a compressed body that does not decompress
    │   └── MessageTooLarge      a body larger than maxDecompressedMessageSize after decompression
    ├── RemotingError            RocketMQ's protocol, between a client and a broker or name server
    │   ├── BadFrame             bytes that are no frame, or a frame that is too large
    │   ├── Unreachable          no answer from an address, or not in time
    │   │   └── BrokerMissing    a broker of a cluster did not answer within the timeout
    │   ├── Untrusted            a server's certificate is not signed by a trusted authority
    │   └── RequestRefused       a response other than success; `.code` is RocketMQ's response code
    ├── OffsetOutOfRange
    │   ├── OffsetLost           messages that retention deleted
    │   └── OffsetNotYet         messages that are not published yet
    └── CorruptStore
        ├── CorruptSegment       a file with a wrong name or length, or a missing one
        └── CorruptRecord        bytes that are not the record that the ConsumeQueue entry refers to

Every message names the fault, the object and the remedy. `system_errors` translates OS errors that the machine
causes, such as a full device; the message names the path and a remedy. Any other `OSError` is a bug and passes
unchanged. `pyspark_mq.errors` has the errors of the Spark source and sink.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.model.log_protocol import Queue


class PutStatus(Enum):
    """The values of RocketMQ's PutMessageStatus that a local store can return."""

    PUT_OK = "stored"
    MESSAGE_ILLEGAL = "the message breaks a rule of the format"
    PROPERTIES_SIZE_EXCEEDED = "more than 32,767 bytes of properties"
    ALREADY_STORED = "its producer sent it before, under the same sequence, and the log has it"


class StoreError(Exception):
    """Base class of all errors that `store` and `pyspark_mq` raise on purpose."""


class ConfigError(StoreError):
    """An unknown key or an invalid value in `store.conf`."""


class NotAStore(StoreError):
    """The path has no store (reader), or has other files (writer)."""


class UnsupportedStore(StoreError):
    """A kind of RocketMQ directory, or of topic, that this package cannot read or cannot write."""


class StoreLocked(StoreError):
    """Another process owns the directory: a running RocketMQ broker, or a writer that prevents a repair."""


class StoreBusy(StoreError):
    """The append lock was not acquired within `lockTimeoutMillis`. No message was appended; the call can be retried."""


class BufferFull(StoreError):
    """A producer's buffer stayed full for too long. The message was not taken; the call can be retried."""


class StoreNotOpen(StoreError):
    """A store, a watch or a hold service is not open in this process, or cannot be copied to another one."""


class StoreClosed(StoreNotOpen):
    """A call of a store, a watch or a hold service that was closed."""


class StoreForked(StoreNotOpen):
    """A call of a handle that the parent process opened before it forked this process."""


class StoreReplaced(StoreNotOpen):
    """The directory of an open store was deleted, was replaced or changed owner. Close the store and open it again.

    The owner changes if a RocketMQ broker appends to our directory, or if a writer of ours opens a broker's.
    """


class ReadOnlyStore(StoreError):
    """A write to a store that was opened with `read_only=True`."""


class StoreFull(StoreError, OSError):
    """The device has no space left. No message was appended; the call can be retried."""


class FlushFailed(StoreError):
    """A sync failed: a machine crash may lose the log after the flushed offset.

    A sync cannot be retried, because the system forgets which bytes failed. So append, flush and close raise this error
    in every open store on the directory until all are closed. The next opening for writing recovers: it rewrites the
    log after the flushed offset.
    """


class StoreUnavailable(StoreError, OSError):
    """A system call failed. `__cause__` is the `OSError`; `errno` is the same."""

    def advising(self, advice: str) -> StoreUnavailable:
        """Return the same error with `advice` added to its message."""
        error = type(self)(f"{self}, {advice}")
        error.errno = self.errno
        return error


class FileMissing(StoreUnavailable, FileNotFoundError):
    """A file of the store is missing."""


class ArchiveError(StoreError):
    """An archive cannot be read or written."""


class NoArchive(ArchiveError):
    """The place has no archive, or only an unfinished first one."""


class ArchiveOfAnother(ArchiveError):
    """The place has an archive of another store under the same name."""


class QueuesPassedOver(ArchiveError):
    """Some queues could not be archived; all others were. `reasons`: error by queue."""

    def __init__(self, message: str, reasons: Mapping[Queue, StoreError]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type[QueuesPassedOver], tuple[str, dict[Queue, StoreError]]]:
        return type(self), (str(self), self.reasons)


class ObjectsUnavailable(StoreError):
    """The directory or object store of an archive, a ledger or staged rows refused a request or did not answer."""


class UnknownTopic(StoreError):
    """The topic does not exist."""


class UnknownQueue(UnknownTopic):
    """The topic has no queue of that number."""


class InvalidTopic(StoreError):
    """A topic name that RocketMQ rejects."""


class InvalidGroup(StoreError):
    """A consumer group's name that RocketMQ rejects."""


class UnknownGroup(StoreError):
    """A consumer group that has no settings, no offsets and no members."""


class GroupConflict(StoreError):
    """A consumer cannot join: the group's members have another subscription, or a member has the same name."""


class InvalidMessageId(StoreError):
    """A text that is no offsetMsgId."""


class InvalidColumns(StoreError):
    """A table without the needed columns or with wrong types, or an unknown column name."""


class InvalidArgument(StoreError, ValueError):
    """A queue id, an offset, a time or a count that is no integer, or one that no store can have."""


class FilterError(StoreError):
    """A subscription expression that cannot be parsed."""


class MessageRefused(StoreError):
    """A message that RocketMQ's broker would reject. `status` is the PutStatus of its response."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status = status
        self._reason = reason

    def __reduce__(self) -> tuple[type[MessageRefused], tuple[PutStatus, str]]:
        return type(self), (self.status, self._reason)


class TransactionEnded(StoreError):
    """A half message was already committed or rolled back. The call changed nothing."""


class NoReply(StoreError):
    """A request that got no reply in time."""


class UnreadableBody(StoreError):
    """A body that is marked as compressed and does not decompress. Its checksum is right: the producer damaged it."""


class MessageTooLarge(UnreadableBody):
    """A compressed body that exceeds `maxDecompressedMessageSize` after decompression."""


class RemotingError(StoreError):
    """An error between a client and a broker or a name server."""


class BadFrame(RemotingError):
    """Bytes that are no frame of RocketMQ's protocol, or a frame over the size limit."""


class Unreachable(RemotingError):
    """An address did not answer, or not in time."""


class BrokerMissing(Unreachable):
    """A broker of a cluster did not answer within the timeout. Its messages can be read when it is back."""

    @classmethod
    def of(cls, address: object, missing: Iterable[object]) -> BrokerMissing:
        """Return the error for brokers that did not answer within the timeout."""
        return cls(
            f"{address}: {'; '.join(map(str, missing))}. No message is lost by that. Start the broker, then the query "
            "again: it goes on where it was. To wait longer set the option brokerTimeout, and to read the other "
            "brokers meanwhile whenBrokerMissing=skip. If the broker never comes back, name the remaining ones with "
            "the option brokers"
        )


class Untrusted(RemotingError):
    """A server's certificate is not signed by a trusted authority, or is for another name."""


class RequestRefused(RemotingError):
    """A request whose response is not success. `code`: RocketMQ's response code. `remark`: its explanation."""

    def __init__(self, code: int, remark: str, where: str = "") -> None:
        super().__init__(f"{where}{remark} (response code {int(code)})")
        self.code = code
        self.remark = remark


class OffsetOutOfRange(StoreError):
    """A queue offset that the store cannot serve."""


class OffsetLost(OffsetOutOfRange):
    """Retention deleted the message at this offset."""


class OffsetNotYet(OffsetOutOfRange):
    """The message at this offset is not published yet."""


class CorruptStore(StoreError):
    """Files that contradict the format."""


class CorruptSegment(CorruptStore):
    """A segment file with a wrong name or length, or a missing segment between two others."""


class CorruptRecord(CorruptStore):
    """Bytes in the commit log that are not the record that the ConsumeQueue entry refers to."""


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
    """Raise `StoreFull` or `StoreUnavailable` for an `OSError` in the block; it names the error's path, or `where`."""

    __slots__ = ("_where",)

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise_translated(self._where, error)


def raise_translated(where: object, error: OSError) -> None:
    """Raise the store's error for an OS error that the machine causes; return for any other error."""
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
