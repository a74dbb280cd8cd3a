"""What can go wrong between Spark and the store, as one tree; `losses` decides which losses of data are errors.

    store.model.errors.StoreError
    └── MqSourceError            also a ValueError
        ├── OptionError          an option of `format("mq")`: unknown, missing, or with a wrong value
        ├── SchemaError          a `.schema(...)`, or what is written, with other columns or other types
        ├── RowError             rows to be written that are no messages
        ├── CheckpointError      an offset in a checkpoint that this version cannot read
        ├── LedgerError          the record of what real-time tasks read: missing, unreadable or not writable
        ├── StagingError         rows of a write that is under way: not writable, or gone
        ├── CommitError          what a query wrote so far cannot be known, or not be kept
        ├── QueuesTaken          another member of the group has the queues of an orderly query
        ├── SubscriptionError    a topic or queue that is named and does not exist
        ├── DataLossError        messages that the query counts on are gone
        ├── SessionExists        `session` was called while a Spark session runs
        └── DemoFailed           the demo could not be run to its end
            ├── FlightsMissing   its data set is not installed
            └── JavaMissing      there is no Java that Spark can run on

A PySpark that is too old, or another package named `store` in the way of ours, is an `ImportError`: the tree cannot be
imported then. Errors of the store itself (`store.model.errors`) pass through as they are: `StoreError` catches all.
"""

from __future__ import annotations

from store.model.errors import StoreError


class MqSourceError(StoreError, ValueError):
    """Root of what the Spark source and sink raise on purpose."""


class OptionError(MqSourceError):
    """An option of `format("mq")` that cannot be used as given."""


class SchemaError(MqSourceError):
    """A `.schema(...)` that is no projection of the source's columns; or columns that make no messages."""


class RowError(MqSourceError):
    """Rows to be written that are no messages: without a body, or without a topic."""


class CheckpointError(MqSourceError):
    """An offset in a checkpoint that is not one of ours, or is newer than this version."""


class LedgerError(MqSourceError):
    """The ledger of a real-time query cannot be read or written, or lacks what a committed batch needs."""


class StagingError(MqSourceError):
    """Where tasks keep the rows of an exactly-once write cannot be written, or is gone before they were appended."""


class CommitError(MqSourceError):
    """Which batch a query wrote last cannot be known, or cannot be kept."""


class QueuesTaken(MqSourceError):
    """Another member of the group has the queues of an orderly query, or takes them over."""


class SubscriptionError(MqSourceError):
    """A topic or a queue is named by an option, and the store has none of that name."""


class DataLossError(MqSourceError):
    """Messages that the query counts on are not in the store (any more)."""


class SessionExists(MqSourceError):
    """A Spark session runs already, which would ignore the settings of a new one."""


class DemoFailed(MqSourceError):
    """The demo could not be run to its end."""


class FlightsMissing(DemoFailed):
    """The data set of the demo is not installed."""


class JavaMissing(DemoFailed):
    """No Java that Spark can run on; the message says what was found and what to install."""
