"""Spark on top of an embedded message log: `spark.readStream.format("mq")`.

At the first use of any Python data source, Spark imports every installed package named `pyspark_*`. So importing this
package is cheap and never fails: dependencies are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_mq.datasource import DefaultSource as DefaultSource
    from pyspark_mq.spark_session import session as session
    from pyspark_mq.stats.query_progress import progress as progress

    __version__: str

__all__ = ["DefaultSource", "__version__", "progress", "session"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pyspark-mq")
    if name == "session":
        from pyspark_mq.spark_session import session

        return session
    if name == "progress":
        from pyspark_mq.stats.query_progress import progress

        return progress
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_mq.datasource import DefaultSource
    except ImportError as error:
        # Spark looks up data sources with hasattr(), which ignores only this error. Another would break the look-up.
        raise AttributeError(f"pyspark-mq needs PySpark 4.2 or later: {error}") from error
    return DefaultSource
