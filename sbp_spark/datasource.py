"""The data source behind `format("sbp")`: its schema, its readers and its writers.

Read `reading.input_partitions` next for a batch read, `streaming.stream_reader` for a micro-batch,
and `writing.sinks` for a write.

Spark makes a source for each plan, in any of its Python workers, and passes `schema` and
`overwrite` by keyword. Options keep no case; SQL tables lose them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from sbp_core.errors import ConfigurationError
from sbp_core.records import StreamSchema
from sbp_spark.catalog_reader import SCHEMAS, CatalogReader
from sbp_spark.client_pool import Patience, client_for, describe_refs
from sbp_spark.column_schema import without_metadata, written_columns
from sbp_spark.options.endpoints import TABLE_REMEDY, is_table_given
from sbp_spark.options.sink import SinkOptions, parse_sink_options
from sbp_spark.options.source import parse_catalog_options, parse_source_options
from sbp_spark.reading.input_partitions import SbpBatchReader
from sbp_spark.reading.source_streams import find_columns, select_streams
from sbp_spark.reporting import plain_errors
from sbp_spark.row_schema import check_selection, check_sink_schema
from sbp_spark.spark_internals import PROVIDER_OPTION
from sbp_spark.spark_internals.worker_process import Found, FoundOnce, ends_micro_batches
from sbp_spark.streaming.stream_reader import SbpStreamReader
from sbp_spark.writing.directory import PlannedTargets, find_targets, plan_targets, purpose_of
from sbp_spark.writing.sinks import SbpBatchWriter, SbpStreamWriter


@dataclass(frozen=True, slots=True)
class Planning:
    """How the streams of a sink are found when a plan is made, in one process."""

    find_targets: Callable[[SinkOptions], Found] = find_targets
    plan_targets: Callable[[SinkOptions, StreamSchema | None], PlannedTargets] = plan_targets
    ends_micro_batches: Callable[[], bool] = ends_micro_batches
    found_once: FoundOnce = field(default_factory=FoundOnce)


class SbpDataSource(DataSource):
    """Streams of records as a source and a sink, in batch and in streaming."""

    planning: ClassVar[Planning] = Planning()
    """Spark makes the sources of all plans, so what they share belongs to the class."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "sbp"

    def schema(self) -> StructType:
        """Return the columns of the source.

        Spark asks at load(), so faults of options and streams are reported here. Spark does not say
        yet whether a batch or a stream is loaded. Raises SbpError.
        """
        with plain_errors():
            if PROVIDER_OPTION in self.options:
                raise ConfigurationError(
                    "CREATE TABLE ... USING sbp without columns: name them, as in CREATE TABLE t"
                    f" (offset BIGINT, value BINARY) USING sbp. {TABLE_REMEDY}. A temporary view"
                    " keeps its options, and has all columns: CREATE TEMPORARY VIEW v USING sbp"
                    " OPTIONS (...)"
                )
            if is_table_given(self.options):
                catalog = parse_catalog_options(self.options)
                describe_refs(catalog.servers, [], "table")
                return SCHEMAS[catalog.table]
            options = parse_source_options(self.options, streaming=None)
            streams = select_streams(options)
            client = client_for(options.servers, Patience.RUNNING)
            found = find_columns(client, options, streams)
            found.for_query(found.schema)
            return found.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Raises ConfigurationError."""
        with plain_errors():
            if is_table_given(self.options):
                catalog = parse_catalog_options(self.options)
                check_selection(schema, SCHEMAS[catalog.table])
                return CatalogReader(catalog, schema)
            options = parse_source_options(self.options, streaming=False)
        return SbpBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> SbpStreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader. The reader validates options and schema."""
        return SbpStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> SbpBatchWriter:  # noqa: FBT001
        """Return the batch writer, once the placement driver has answered.

        Raises SbpError.
        """
        with plain_errors():
            options, columns = self._sink(schema, streaming=False)
            is_truncating = options.delivery.is_truncating
            if overwrite and not is_truncating:
                raise ConfigurationError(
                    "mode overwrite: streams are append-only; use .mode('append'), or set"
                    " truncate=true to trim the records from before the write after its commit"
                )
            if is_truncating and not overwrite:
                raise ConfigurationError(
                    "option truncate: nothing is trimmed in mode append; use .mode('overwrite'), or"
                    " remove the option"
                )
            options = replace(options, found=self.planning.find_targets(options))
            planned = self.planning.plan_targets(options, columns)
        return SbpBatchWriter(options, columns, planned)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SbpStreamWriter:  # noqa: N802, FBT001
        """Return the stream writer. Spark asks when a micro-batch is planned, and when it ends.

        At the end of a micro-batch no server is asked: an error of the streams would hide why the
        micro-batch failed. Names are resolved at the first plan of the query, which its checkpoint
        identifies. Later plans look up the same streams as they are then. Raises SbpError.
        """
        with plain_errors():
            options, columns = self._sink(schema, streaming=True)
            if overwrite:
                raise ConfigurationError(
                    "output mode complete: streams are append-only, their records are never"
                    " replaced; use .outputMode('append'), or write each micro-batch in"
                    " foreachBatch, where .outputMode('update') is possible: Spark refuses it for"
                    " sinks in Python"
                )
            planning, planned = self.planning, None
            if not planning.ends_micro_batches():
                checkpoint = self.options.get("checkpointlocation", "")
                found = planning.found_once.find(
                    options.servers,
                    f"{purpose_of(options)} {checkpoint}",
                    partial(planning.find_targets, options),
                )
                options = replace(options, found=found if checkpoint else {})
                planned = planning.plan_targets(options, columns)
        return SbpStreamWriter(options, columns, planned)

    def _sink(
        self, schema: StructType, *, streaming: bool
    ) -> tuple[SinkOptions, StreamSchema | None]:
        """Return the options and, if columns are to be written, which. Raises SbpError."""
        options = parse_sink_options(self.options, streaming=streaming)
        if options.columns is not None:
            return options, written_columns(without_metadata(schema), options.columns)
        check_sink_schema(schema, is_stream_given=bool(options.targets.refs))
        return options, None
