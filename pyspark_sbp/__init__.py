"""Where Spark finds `format("sbp")`: it asks every installed package named pyspark_* for this.

A package that fails to import here would hide all others, so the connector itself is not
imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from sbp_spark.datasource import SbpDataSource
    from sbp_spark.streaming.stream_reader import SbpStreamReader
    from sbp_spark.writing.sinks import SbpBatchWriter, SbpStreamWriter


class DefaultSource(DataSource):
    """Hands everything on to the connector."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "sbp"

    def schema(self) -> StructType:
        """Return the columns of the source."""
        return self._connector().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        return self._connector().reader(schema)

    def streamReader(self, schema: StructType) -> SbpStreamReader:  # noqa: N802 - Spark's name
        """Return what reads a stream."""
        return self._connector().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> SbpBatchWriter:  # noqa: FBT001
        """Return what writes a batch."""
        return self._connector().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SbpStreamWriter:  # noqa: N802, FBT001
        """Return what writes a stream."""
        return self._connector().streamWriter(schema, overwrite)

    def _connector(self) -> SbpDataSource:
        from sbp_spark.datasource import SbpDataSource

        return SbpDataSource(self.options)
