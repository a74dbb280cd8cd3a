"""Start a Spark session that is configured for `format("mq")`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",  # shows errors of the source without a traceback
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",  # the progress bar overwrites a program's output
}
_REAL_TIME = {
    "spark.python.udf.pipelined.enabled": "true",  # Python workers pass on each batch immediately
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",  # shorter pauses between batches; for local disks and HDFS
}


def session(
    app_name: str = "pyspark-mq", *, real_time: bool = False, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session in which `format("mq")` works, with this Python in all workers.

    real_time: add the settings that `option("realTime", "true")` needs. config: more Spark settings, which take
    precedence.

    Raises `JavaMissing`, and `SessionExists` if a session runs already, because it would ignore these settings.
    """
    from pyspark.sql import SparkSession

    from pyspark_mq.errors import SessionExists
    from pyspark_mq.requirements import require_java

    if SparkSession.getActiveSession() is not None:
        raise SessionExists(
            "A Spark session is already running, so these settings would have no effect. Stop it first: "
            "spark.stop(). Or use it: spark.dataSource.register(pyspark_mq.DefaultSource)"
        )
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # Spark searches this Python for format("mq")
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**_SETTINGS, **(_REAL_TIME if real_time else {}), **(config or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
