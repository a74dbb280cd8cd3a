"""All errors of a store, below `StoreError`. Messages name the fault, the object and the remedy.

`system_errors` translates OS errors that the machine causes, such as a full device. Any other `OSError` is a bug.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.model.log_protocol import Queue


class PutStatus(Enum):
    """RocketMQ's PutMessageStatus, as far as a local store returns it."""

    PUT_OK = "stored"
    MESSAGE_ILLEGAL = "the message breaks a rule of the format"
    PROPERTIES_SIZE_EXCEEDED = "more than 32,767 bytes of properties"
    ALREADY_STORED = "its producer sent it before, under the same sequence, and the log has it"


class StoreError(Exception):
    """Base class of all errors that `store` and `pyspark_mq` raise on purpose."""


class ConfigError(StoreError):
    """An unknown key or an invalid value in `store.conf`."""


class NotAStore(StoreError):
    """The path is missing, has no store, or has other files."""


class UnsupportedStore(StoreError):
    """A kind of RocketMQ directory, or of topic, that this package cannot read or cannot write."""


class StoreLocked(StoreError):
    """A running RocketMQ broker owns the directory, or a writer prevents a repair."""


class StoreBusy(StoreError):
    """The append lock was not acquired within `lockTimeoutMillis`. Nothing was appended; retry the call."""


class BufferFull(StoreError):
    """A producer's buffer stayed full. The message was not taken; retry the call."""


class StoreNotOpen(StoreError):
    """A store, watch or hold service is not open in this process, or cannot be copied to another."""


class StoreClosed(StoreNotOpen):
    """A call after `close`."""


class StoreForked(StoreNotOpen):
    """A call of a handle that was opened before this process was forked."""


class StoreReplaced(StoreNotOpen):
    """The directory of an open store was deleted, was replaced or changed owner. Close the store and open it again.

    The owner changes if a RocketMQ broker appends to our directory, or if a writer of ours opens a broker's.
    """


class ReadOnlyStore(StoreError):
    """A write to a store that was opened with `read_only=True`."""


class StoreFull(StoreError, OSError):
    """The device is full. Nothing was appended; retry the call."""


class FlushFailed(StoreError):
    """A sync failed: a machine crash may lose the log after the flushed offset.

    A sync cannot be retried, because the system forgets which bytes failed. So append, flush and close raise this error
    in every open store on the directory until all are closed. The next opening for writing rewrites the log after the
    flushed offset.
    """


class StoreUnavailable(StoreError, OSError):
    """A system call failed; see `__cause__` and `errno`."""

    def advising(self, advice: str) -> StoreUnavailable:
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
    """The place has another store's archive under the same name."""


class QueuesPassedOver(ArchiveError):
    """Some queues could not be archived; all others were. `reasons`: error by queue."""

    def __init__(self, message: str, reasons: Mapping[Queue, StoreError]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type[QueuesPassedOver], tuple[str, dict[Queue, StoreError]]]:
        return type(self), (str(self), self.reasons)


class ObjectsUnavailable(StoreError):
    """The directory or object store of an archive, a ledger or staged rows failed or did not answer."""


class UnknownTopic(StoreError):
    """The topic does not exist."""


class UnknownQueue(UnknownTopic):
    """The topic exists, the queue id does not."""


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
    """A table with missing columns or wrong types, or an unknown column name."""


class InvalidArgument(StoreError, ValueError):
    """A queue id, an offset, a time or a count that is no integer, or out of bounds."""


class FilterError(StoreError):
    """A tag or SQL92 expression that cannot be parsed."""


class MessageRefused(StoreError):
    """A message that RocketMQ's broker would reject. `status`: the PutStatus of its response."""

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
    """A compressed body that does not decompress. Its checksum is right: the producer damaged it."""


class MessageTooLarge(UnreadableBody):
    """A body that exceeds `maxDecompressedMessageSize` after decompression."""


class RemotingError(StoreError):
    """An error between a client and a broker or a name server."""


class BadFrame(RemotingError):
    """Bytes that are no command of RocketMQ's protocol, or a command over the size limit."""


class Unreachable(RemotingError):
    """An address did not answer, or not in time."""


class BrokerMissing(Unreachable):
    """A broker did not answer in time. Its messages can be read when it is back."""

    @classmethod
    def of(cls, address: object, missing: Iterable[object]) -> BrokerMissing:
        return cls(
            f"{address}: {'; '.join(map(str, missing))}. No message is lost. Start the broker, then start the query "
            "again: the query continues where it stopped. To wait longer for brokers, set brokerTimeout. To read only "
            "the brokers that answer, set whenBrokerMissing=skip. If a broker never comes back, name only the others "
            "in the option brokers"
        )


class Untrusted(RemotingError):
    """A server's certificate is not signed by a trusted authority, or is for another name."""


class RequestRefused(RemotingError):
    """A response that is not success. `code`: RocketMQ's response code. `remark`: its explanation."""

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
    """A segment file with a wrong name or length, or a missing one."""


class CorruptRecord(CorruptStore):
    """Bytes that are not the record that the ConsumeQueue entry refers to."""


_FULL = "nothing of the failed call is visible. Free some space, then repeat the call"
_OWNER = "get permission from its owner"
_FILES = "close files that are not needed, or raise the limit (ulimit -n; fs.file-max)"
_DEVICE = "see the system's log (dmesg), and restore lost files from a copy"
_LINKS = "correct the path"
_NO_FILE = "this is a pipe or a socket, not a file: move it out of the store"
_REMEDIES = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "copy the store to a writable file system",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EFBIG: "raise the limit of a file's length (ulimit -f), or use another file system",
    errno.ENOMEM: "free memory, or allow more mappings (vm.max_map_count)",
    errno.EIO: _DEVICE,
    errno.ESTALE: _DEVICE,
    errno.ENODEV: _DEVICE,
    errno.ENOLCK: "a store needs a file system with locks: copy it to a local one",
    errno.EBUSY: "close the programs that use it, then repeat the call",
    errno.ETXTBSY: "close the programs that use it, then repeat the call",
    errno.ELOOP: _LINKS,
    errno.EEXIST: _LINKS,
    errno.ENAMETOOLONG: _LINKS,
    errno.ENOTDIR: "this is a file, not a folder: move it out of the store",
    errno.ENXIO: _NO_FILE,
    errno.ESPIPE: _NO_FILE,
    errno.ENOENT: "restore the file from a copy, or correct the path",
    errno.EISDIR: "this is a folder, not a file: move it out of the store",
}


class system_errors:  # noqa: N801
    """Translate an `OSError` to `StoreFull` or `StoreUnavailable`. The error names its path, or `where`."""

    __slots__ = ("_where",)

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise_translated(self._where, error)


def raise_translated(where: object, error: OSError) -> None:
    """Raise the `StoreError` for an OS error that the machine causes; return for any other."""
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
