"""What Spark planned for a batch, as its checkpoint says: the same where a batch is run again, another where it is
planned anew, for there the time is another at least.
"""

from __future__ import annotations

import errno
from hashlib import sha256
from pathlib import Path

from store.files.atomic import read_file
from store.model.errors import StoreUnavailable

_NOT_SEEN_HERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_MAX_BYTES = 1 << 30  # a source may have any number of queues


def plan_of(checkpoint: str | None, batch: int) -> str:
    """A digest of the file in which Spark noted up to where a batch reads; "" where that is in no directory seen here.

    checkpoint: the option checkpointLocation; a relative path begins where the driver was started, as Spark has it.
    Raises `StoreUnavailable`, `CorruptStore`.
    """
    if not checkpoint:
        return ""
    path = Path(checkpoint.removeprefix("file:"), "offsets", str(batch))
    try:
        return sha256(read_file(path, _MAX_BYTES)).hexdigest()
    except StoreUnavailable as error:
        if error.errno in _NOT_SEEN_HERE:
            return ""
        raise
