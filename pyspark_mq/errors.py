"""The errors of the Spark source and sink. `losses` decides which losses of data are errors.

    store.model.errors.StoreError
    └── MqSourceError            also a ValueError
        ├── OptionError          an option of `format("mq")` is unknown, missing, or has a wrong value
        ├── SchemaError          a `.schema(...)` or written rows have unsupported columns or types
        ├── RowError             written rows lack a body or a topic
        ├── CheckpointError      a checkpoint has an offset that this version cannot read
        ├── LedgerError          the record of what real-time tasks read is missing, unreadable or not writable
        ├── StagingError         staged rows of a write are missing or not writable
        ├── CommitError          the progress of a writing query cannot be read or recorded
        ├── QueuesTaken          another member of the group owns the queues of an orderly query
        ├── SubscriptionError    a named topic or queue does not exist
        ├── DataLossError        messages that the query counts on are lost
        ├── SessionExists        `session` was called while a Spark session runs
        └── DemoFailed           the demo failed
            ├── FlightsMissing   its data set is not installed
            └── JavaMissing      there is no Java that Spark can run on

An old PySpark, or another package named `store` before ours on the path, raises `ImportError`: these classes cannot be
imported then. Errors of the store itself (`store.model.errors`) are not wrapped. `StoreError` catches all.
"""

from __future__ import annotations

from store.model.errors import StoreError


class MqSourceError(StoreError, ValueError):
    """Base of the errors of the Spark source and sink."""


class OptionError(MqSourceError):
    """An option of `format("mq")` that cannot be used as given."""


class SchemaError(MqSourceError):
    """A `.schema(...)` that is no projection of the source's columns, or written columns that are no message's."""


class RowError(MqSourceError):
    """A written row lacks a body or a topic."""


class CheckpointError(MqSourceError):
    """An offset in a checkpoint is malformed, or was written by a later version."""


class LedgerError(MqSourceError):
    """The ledger of a real-time query cannot be read or written, or lacks what a committed batch needs."""


class StagingError(MqSourceError):
    """The staging path of an exactly-once write is not writable, or staged rows are missing when they are appended."""


class CommitError(MqSourceError):
    """The number of the last batch that a query wrote cannot be read or recorded."""


class QueuesTaken(MqSourceError):
    """Another member of the group owns the queues of an orderly query, or takes them over."""


class SubscriptionError(MqSourceError):
    """An option names a topic or a queue that does not exist."""


class DataLossError(MqSourceError):
    """Messages that the query counts on are lost."""


class SessionExists(MqSourceError):
    """A Spark session runs already, and would ignore the settings of a new one."""


class DemoFailed(MqSourceError):
    """The demo failed."""


class FlightsMissing(DemoFailed):
    """The data set of the demo is not installed."""


class JavaMissing(DemoFailed):
    """There is no Java that Spark can run on. The message says which was found and what to install."""
