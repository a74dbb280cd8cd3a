"""The errors of the Spark source and sink. `losses` decides which losses of data are errors.

An old PySpark, or another package named `store`, raises `ImportError`, because these classes cannot be imported then.
Errors of the store itself (`store.model.errors`) are not wrapped. `StoreError` is the base of both.
"""

from __future__ import annotations

from store.model.errors import StoreError


class MqSourceError(StoreError, ValueError):
    """Base of the errors of the Spark source and sink."""


class OptionError(MqSourceError):
    """An option of `format("mq")` is unknown, missing, or has a wrong value."""


class SchemaError(MqSourceError):
    """A `.schema(...)` or written rows have unsupported columns or types."""


class RowError(MqSourceError):
    """A written row lacks a body or a topic."""


class CheckpointError(MqSourceError):
    """An offset in a checkpoint is malformed, or was written by a later version."""


class LedgerError(MqSourceError):
    """The record of what real-time tasks read is missing, unreadable or not writable."""


class StagingError(MqSourceError):
    """Staged rows of an exactly-once write are missing or not writable."""


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
    """There is no Java that Spark can run on."""
