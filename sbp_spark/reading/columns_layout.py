"""Records as columns: those of the streams' own schemas, whichever version they were written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sbp_core import limits
from sbp_core.client import SchemaVersion
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import (
    COLUMNS_ENCODING,
    Change,
    Envelope,
    StreamSchema,
    compare_schemas,
    decode_columns,
    map_columns,
)
from sbp_spark.column_schema import METADATA_COLUMN
from sbp_spark.reading.layout import Piece, joined
from sbp_spark.reading.place_columns import place_column
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.reading.schema_versions import SchemaVersions

METADATA_FIELD: Final = StructField(
    METADATA_COLUMN,
    StructType(
        [
            StructField("stream", StringType()),
            StructField("stream_id", LongType()),
            StructField("range_index", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
        ]
    ),
)
"""The column that says where a record was, and its time."""
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MS_MAX: Final = (2**63 - 1) // 1000
_PIECE_BYTES: Final = 4 * limits.BATCH_TARGET_BYTES
"""What is mapped at a time, about: more than what a full record batch decodes to."""
_SAMPLE_ROWS: Final = 1_024


class ColumnsLayout:
    """Makes the columns of `schema` of record batches of any versions.

    With `has_metadata` the column `_metadata` in it is not one of the streams'. Behind the columns
    of the streams decoded rows have the times of the records, if these are asked for.
    """

    def __init__(
        self, schema: pa.Schema, versions: SchemaVersions, *, has_metadata: bool = False
    ) -> None:
        data = [each for each in schema if not (has_metadata and each.name == METADATA_COLUMN)]
        metadata = list(schema.field(METADATA_COLUMN).type) if has_metadata else []
        self._schema = schema
        self._versions = versions
        self._data_schema = pa.schema(data)
        self._data_index = {field.name: index for index, field in enumerate(data)}
        self._data_names = frozenset(self._data_index)
        self._metadata = metadata
        self._has_times = any(field.name == "timestamp" for field in metadata)
        self._rows_schema = (
            pa.schema([*data, pa.field("", _TIMESTAMP)]) if self._has_times else self._data_schema
        )
        self._row_bytes = _fixed_row_bytes(self._rows_schema)

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield the columns of some records. Raises SchemaError, RecordBatchError.

        An old batch may be far smaller than its columns are in the schema that has grown since, so
        they are made piece by piece.
        """
        for envelope in envelopes:
            batch_end = envelope.base_offset + envelope.record_count
            begin, end = max(envelope.base_offset, start_offset), min(batch_end, end_offset)
            yield from self._decode_batch(envelope, span, begin, end)

    def _decode_batch(
        self, envelope: Envelope, span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        version = self._version(envelope, span)
        names = self._data_names
        if self._has_times and envelope.timestamp_column is not None:
            names |= {envelope.timestamp_column}
        decoded = decode_columns(envelope, version.schema, names)
        row_bytes = self._row_bytes + decoded.get_total_buffer_size() // envelope.record_count
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        for offset in range(start_offset, end_offset, step):
            found = decoded.slice(offset - envelope.base_offset, min(step, end_offset - offset))
            try:
                rows = map_columns(found, self._data_schema)
            except SchemaError as error:
                raise self._misfit(envelope, span, version, error) from None
            if self._has_times:
                rows = self._with_times(rows, envelope, found)
            yield Piece(span, offset, rows, rows.nbytes)

    def _with_times(
        self, rows: pa.RecordBatch, envelope: Envelope, found: pa.RecordBatch
    ) -> pa.RecordBatch:
        columns = [*rows.columns, _times(envelope, found)]
        return pa.RecordBatch.from_arrays(columns, schema=self._rows_schema)

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces."""
        columns = [
            joined(self._data_index[name], pieces)
            if name in self._data_index
            else self._metadata_column(pieces)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _metadata_column(self, pieces: Sequence[Piece]) -> pa.Array:
        parts = [
            joined(len(self._data_index), pieces)
            if field.name == "timestamp"
            else place_column(field.name, pieces).cast(field.type)
            for field in self._metadata
        ]
        return pa.StructArray.from_arrays(parts, fields=self._metadata)

    def _version(self, envelope: Envelope, span: StreamSpan) -> SchemaVersion:
        """Return the version of the stream's schema in which a batch was written."""
        fingerprint = envelope.schema_fingerprint
        if envelope.encoding != COLUMNS_ENCODING or fingerprint is None:
            raise SchemaError(
                f"{_describe(envelope, span)} is not typed, but the query reads columns: read it"
                " with encoding=rows up to the offset where columns begin, and these from there"
                " (startingOffsets), or trim the stream to there"
            )
        version = self._versions.maybe_find(span.stream_id, fingerprint)
        if version is None:
            raise SchemaError(
                f"{_describe(envelope, span)} is of a schema that the placement driver does"
                f" not know ({fingerprint}); was it copied from another cluster, or the placement"
                " driver's file restored from an old copy?"
            )
        return version

    def _misfit(
        self, envelope: Envelope, span: StreamSpan, found: SchemaVersion, error: SchemaError
    ) -> SchemaError:
        """Return the error of a batch that the query cannot take, and since which version."""
        known = self._versions.known(span.stream_id)
        since = next((each for each in known if not self._is_fitting(each)), found)
        return SchemaError(
            f"{_describe(envelope, span)}: {error}. It is so since version {since.version} of the"
            " stream's schema: load the stream and start the query again, to read in the newest one"
        )

    def _is_fitting(self, version: SchemaVersion) -> bool:
        """Whether whatever may be in a version fits into the columns that are read."""
        differences = compare_schemas(StreamSchema(self._data_schema), version.schema).differences
        return all(each.change is Change.ADDED for each in differences)


def _fixed_row_bytes(schema: pa.Schema) -> int:
    """Return what a row takes at least, which is what a row of nulls does."""
    sample = [pa.nulls(_SAMPLE_ROWS, each.type) for each in schema]
    return sum(int(each.nbytes) for each in sample) // _SAMPLE_ROWS


def _describe(envelope: Envelope, span: StreamSpan) -> str:
    return (
        f"record batch at offset {envelope.base_offset} of stream {span.stream_name} (id"
        f" {span.stream_id})"
    )


def _times(envelope: Envelope, rows: pa.RecordBatch) -> pa.Array:
    """Return the times of the records: of their own column, else of the batch."""
    # One that no timestamp can be is not known.
    base_ms = envelope.base_timestamp_ms
    base = pa.scalar(base_ms * 1000 if abs(base_ms) <= _MS_MAX else None, _TIMESTAMP)
    name = envelope.timestamp_column
    if name is None:
        return pa.repeat(base, rows.num_rows)
    index = rows.schema.get_field_index(name)
    if index < 0 or not pa.types.is_timestamp(rows.schema.field(index).type):
        raise RecordBatchError(
            f"record batch at offset {envelope.base_offset} of stream {envelope.stream_id} has its"
            f" times in column {name}, which is no timestamp: read it without _metadata.timestamp"
        )
    times = rows.column(index).cast(_TIMESTAMP)
    return times.fill_null(base) if times.null_count and base.is_valid else times
