"""What was delivered, as the log itself proves it: a message that was delivered names the one that had waited.

It does so in the field that a committed message has for its half message, as a negative number, which no broker writes:
-1 minus the log offset of the other's record. So whoever goes on after one that died knows to the message how far that
one was, whatever its files say, and after a crash of the machine, too.
"""

from __future__ import annotations

import numpy as np

from store.log.commit_log import CommitLog
from store.log.dispatch import walk
from store.model.log_protocol import Int64s

FIELD = "prepared_transaction_offset"


def proof(physical_offsets: Int64s) -> Int64s:
    """What messages say, shape (n,), that are delivered from these log offsets."""
    return ~physical_offsets


def delivered_behind(log: CommitLog, begin: int, end: int) -> Int64s:
    """The log offsets of those that were delivered by messages in [begin, end), both record boundaries."""
    found = [np.empty(0, np.int64)]
    for chunk in walk(log, max(begin, log.min_offset()), until=end, check_crc=False):
        said = chunk.records.field(FIELD)
        found.append(~said[said < 0])
    return np.concatenate(found)
