"""What the system refuses, said in the store's words: which path, why, and what helps.

Only what has to do with the machine is translated. Any other `OSError` passes, for it means a fault in the program.
"""

from __future__ import annotations

import errno

from store.model.errors import FileMissing, StoreError, StoreFull, StoreUnavailable

_FULL = "nothing of this call is visible. Free some space and repeat it"
_OWNER = "ask its owner for the right, or open the store with read_only=True if it is the right to write"
_FILES = "close what is not needed, or raise the limit (ulimit -n; fs.file-max)"
_DEVICE = "see the system's log; restore what is lost from a copy"
_LINKS = "correct the path"
_NO_FILE = "a pipe or a socket stands where a file belongs: move it out of the store"
_REMEDIES = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "open the store with read_only=True, or copy it to where it can be written",
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
