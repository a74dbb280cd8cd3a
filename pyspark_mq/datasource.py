"""`DefaultSource`, the data source that Spark finds for `format("mq")`.

Other modules are imported on first use, to keep Spark's look-up of data sources fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_mq.requirements import require_own_store, require_pyspark
from pyspark_mq.source.worker import freeze_loaded_objects

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_mq.options.sink import WriteOptions
    from pyspark_mq.options.source import SourceOptions
    from pyspark_mq.sink.writers import MqBatchWriter, MqStreamWriter
    from pyspark_mq.source.batch_reader import MqBatchReader
    from pyspark_mq.source.stream_reader import MqStreamReader, RefusedStream


class DefaultSource(DataSource):
    """The Spark source and sink `mq`. Options: `pyspark_mq.options.tables`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        freeze_loaded_objects()

    @classmethod
    def name(cls) -> str:
        return "mq"

    def source_options(self) -> SourceOptions:
        """Return the parsed options of a query. A subclass for another kind of log overrides this to set its address.

        Raises `OptionError`, and `ImportError` for an incompatible PySpark or a wrong package `store`.
        """
        require_pyspark()
        require_own_store()
        from pyspark_mq.options.source import SourceOptions

        return SourceOptions.parse(self.options)

    def write_options(self) -> WriteOptions:
        require_pyspark()
        require_own_store()
        from pyspark_mq.options.sink import WriteOptions

        return WriteOptions.parse(self.options)

    def schema(self) -> StructType:
        """Return the columns of a query, or the columns to write for a view with only options of writes.

        This is the first call of `load()`, so the path and the topics are checked here. Raises as `source_options` and
        `check_before_planning`.
        """
        require_pyspark()
        require_own_store()
        from pyspark_mq.options.sink import is_for_writing
        from pyspark_mq.sink.written_columns import sink_schema
        from pyspark_mq.source.reading import default_schema

        if is_for_writing(self.options):
            return sink_schema(with_topic=self.write_options().topic is None)
        from pyspark_mq.planning.queues import check_before_planning

        options = self.source_options()
        check_before_planning(options)
        return default_schema(options.include_properties, null_bodies=options.unreadable == "null")

    def reader(self, schema: StructType) -> MqBatchReader:
        options = self.source_options()
        from pyspark_mq.source.batch_reader import MqBatchReader

        freeze_loaded_objects()  # here, because Spark unpickles this object without __init__
        return MqBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> MqStreamReader | RefusedStream:
        from pyspark_mq.errors import MqSourceError

        try:
            options = self.source_options()
            from pyspark_mq.source.stream_reader import stream_reader

            return stream_reader(options, schema)
        except MqSourceError as error:
            from pyspark_mq.source.stream_reader import RefusedStream

            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> MqBatchWriter:
        options = self.write_options()
        from pyspark_mq.sink.writers import MqBatchWriter

        return MqBatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqStreamWriter:
        options = self.write_options()
        from pyspark_mq.sink.writers import MqStreamWriter

        return MqStreamWriter(options, schema, overwrite)
