"""What can go wrong between Spark and the store, as one tree, and the one place that decides about data loss.

    MqSourceError(ValueError)
    ├── OptionError          an option of `format("mq")`: unknown, missing, or with a wrong value
    ├── SchemaError          a `.schema(...)` that names other columns or other types
    ├── CheckpointError      an offset in a checkpoint that this version cannot read
    ├── LedgerError          the record of what real-time tasks read: missing, unreadable or not writable
    ├── SubscriptionError    a topic or queue that is named and does not exist
    └── DataLossError        messages that the query counts on are gone

Errors of the store itself (`store.errors.StoreError`) pass through as they are.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("pyspark_mq")


class MqSourceError(ValueError):
    """Root of what the Spark source raises on purpose."""


class OptionError(MqSourceError):
    """An option of `format("mq")` that cannot be used as given."""


class SchemaError(MqSourceError):
    """A `.schema(...)` that is no projection of the source's columns."""


class CheckpointError(MqSourceError):
    """An offset in a checkpoint that is not one of ours, or is newer than this version."""


class LedgerError(MqSourceError):
    """The ledger of a real-time query cannot be read or written, or lacks what a committed batch needs."""


class SubscriptionError(MqSourceError):
    """A topic or a queue is named by an option, and the store has none of that name."""


class DataLossError(MqSourceError):
    """Messages that the query counts on are not in the store (any more)."""


def data_loss(fail: bool, what: str) -> None:
    """Decide what lost messages mean: the only place that does.

    fail: the option `failOnDataLoss`. what: the lost range, and why it is lost.
    Raises `DataLossError` when `fail`; otherwise warns, and the caller goes on with what is there.
    """
    if fail:
        raise DataLossError(
            f"{what}. To go on with what is there set the option failOnDataLoss to false; "
            "to start afresh use a new checkpoint"
        )
    _log.warning("Data loss, going on because failOnDataLoss is false: %s", what)
