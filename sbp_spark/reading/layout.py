"""Decoding record batches into Arrow: the interface `Layout`, for plain and typed records.

`RowsLayout` makes rows of plain records: key, value, headers, timestamp, and where each record was.
`ColumnsLayout` makes the columns of the query, from whichever version of its schema a batch is in.

Spark compares only the first batch that a task yields with the schema: types, order and `not null`
have to be equal. Spark does not look at later batches, so all of them are made of one schema here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.client import SchemaVersion
from sbp_core.errors import DamagedBatchError, SchemaError
from sbp_core.records import (
    ROWS_SCHEMA,
    BatchFilter,
    Change,
    Difference,
    Envelope,
    KeptColumns,
    Projection,
    Run,
    StreamSchema,
    compare_schemas,
    decode_batches,
    decode_columns,
    encoding_of,
    map_columns,
    maybe_columns_together,
    maybe_kept_columns,
    maybe_kept_rows,
    offsets_array,
    small_runs,
)
from sbp_core.wording import listed
from sbp_spark.column_schema import METADATA_COLUMN
from sbp_spark.filtering.resolving import RowFilter
from sbp_spark.logical_types import retyped
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.schema_versions import SchemaVersions


class Form(Enum):
    """How a query sees records; decided once, when it starts."""

    ROWS = "rows"
    COLUMNS = "columns"
    COLUMNS_WITH_METADATA = "columns with metadata"

    @property
    def is_typed(self) -> bool:
        """Whether records have the columns of the streams' schemas."""
        return self is not Form.ROWS


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """How tasks make the columns of a query.

    `renamed` are the columns as the streams name them, if the query names any of them otherwise.
    With a `row_filter` some rows are wanted.
    """

    form: Form = Form.ROWS
    renamed: pa.Schema | None = None
    row_filter: RowFilter | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of a span whose offsets begin at `start_offset`; they take about `size_bytes`."""

    span: StreamSpan
    start_offset: int
    rows: pa.RecordBatch
    size_bytes: int

    @property
    def count(self) -> int:
        """How many records these are."""
        return int(self.rows.num_rows)


ROWS_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = limits.BATCH_TARGET_BYTES * 3 // 4
"""Less than a full record batch decodes to, so that full batches are passed on without a copy."""
JOINED_BYTES: Final = BYTES_PER_BATCH * 9 // 8
"""Small batches take a little less together than each by itself, and are to be enough together."""


def is_enough(row_count: int, size_bytes: int) -> bool:
    """Whether rows of this size are passed on to Spark, not joined with the next rows."""
    return row_count >= ROWS_PER_BATCH or size_bytes >= BYTES_PER_BATCH


class Layout(Protocol):
    """Decodes record batches into the columns that Spark demands of all batches."""

    def projections(self, stream_id: int) -> tuple[Projection, ...]:
        """Return the columns to ask for, so that servers do not read or send other columns.

        Raises SbpError.
        """
        ...

    def filters(self, stream_id: int) -> tuple[BatchFilter, ...]:
        """Return the filters by which servers skip batches without wanted rows. Raises SbpError."""
        ...

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield the records from one offset up to another, in pieces for `join`.

        The batches follow on one another, and each has at least one record to yield. Each batch is
        validated as a whole. A piece is made when it is drawn, and is not much larger than a
        decoded batch. Raises DamagedBatchError for a batch that cannot be decoded, perhaps before
        pieces of earlier batches, and SbpError for batches that this layout cannot read.
        """
        ...

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces, in their order, as Spark demands them."""
        ...


class RenamedLayout:
    """Renames the columns of another layout to the names in `schema`."""

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self.decode = layout.decode
        self.projections = layout.projections
        self.filters = layout.filters
        self._layout = layout
        self._schema = schema

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces."""
        made = zip(self._layout.join(pieces).columns, self._schema, strict=True)
        columns = [retyped(array, field.type) for array, field in made]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def joined(index: int, pieces: Sequence[Piece]) -> pa.Array:
    """Return the column at `index` of all pieces. A single piece is not copied."""
    parts = [piece.rows.column(index) for piece in pieces]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


_SPAN_COLUMNS: Final[Mapping[str, tuple[pa.DataType, Callable[[StreamSpan], str | int]]]] = {
    "stream": (pa.string(), attrgetter("stream_name")),
    "stream_id": (pa.int64(), attrgetter("stream_id")),
    "range_index": (pa.int32(), attrgetter("range_index")),
}


def place_column(name: str, pieces: Sequence[Piece]) -> pa.Array:
    """Return the column stream, stream_id, range_index or offset of the records of all pieces."""
    counts = np.array([piece.count for piece in pieces])
    if name == "offset":
        if len(pieces) == 1:
            return offsets_array(pieces[0].start_offset, pieces[0].count)
        starts = np.array([piece.start_offset for piece in pieces], dtype=np.int64)
        rows_before = np.cumsum(counts) - counts
        return pa.array(
            np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - rows_before, counts)
        )
    kind, read = _SPAN_COLUMNS[name]
    values = [read(piece.span) for piece in pieces]
    if len(set(values)) == 1:
        row_count = int(counts.sum())
        rounded_count = 1 << (row_count - 1).bit_length()
        return _repeated(values[0], kind, rounded_count).slice(0, row_count)
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(pieces)), counts)))


@lru_cache(maxsize=256)
def _repeated(value: str | int, kind: pa.DataType, row_count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), row_count)


_ROWS_INDEX: Final = {name: index for index, name in enumerate(ROWS_SCHEMA.names)}


class RowsLayout:
    """Makes rows with the columns of `schema`; no other column is made.

    Keys and values may be strings there. Like Spark's cast of binary to string, that looks at no
    byte: bytes that are not UTF-8 stay as they are.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        kept = maybe_kept_rows(schema.names)
        self._projections = () if kept is None else (kept.projection,)

    def projections(self, stream_id: int) -> tuple[Projection, ...]:
        """Return the same for all streams."""
        return self._projections

    def filters(self, stream_id: int) -> tuple[BatchFilter, ...]:
        """Return none: all rows are wanted."""
        return ()

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield rows of some batches, the small ones in one piece. Raises RecordBatchError."""
        offset = envelopes[0].base_offset
        for rows in decode_batches(
            envelopes, rows_enough=ROWS_PER_BATCH, bytes_enough=JOINED_BYTES
        ):
            begin, end = max(offset, start_offset), min(offset + rows.num_rows, end_offset)
            size_bytes = rows.get_total_buffer_size() * (end - begin) // rows.num_rows
            yield Piece(span, begin, rows.slice(begin - offset, end - begin), size_bytes)
            offset += rows.num_rows

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the rows of some pieces."""
        columns = [
            joined(_ROWS_INDEX[field.name], pieces).view(field.type)
            if field.name in _ROWS_INDEX
            else place_column(field.name, pieces)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_PIECE_BYTES: Final = 4 * limits.BATCH_TARGET_BYTES
"""About how many bytes are mapped at a time: more than a full record batch decodes to."""
_SAMPLE_ROWS: Final = 1_024


class _Decoded(NamedTuple):
    """Columns of some batches that follow on one another, all of one version."""

    columns: pa.RecordBatch
    version: SchemaVersion
    batches: Sequence[Envelope]


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
        self._fitting: set[str] = set()
        self._kept: dict[str, KeptColumns | None] = {}
        self._data_schema = pa.schema(data)
        self._data_index = {field.name: index for index, field in enumerate(data)}
        self._data_names = frozenset(self._data_index)
        self._metadata = metadata
        self._has_times = any(field.name == "timestamp" for field in metadata)
        self._rows_schema = (
            pa.schema([*data, pa.field("", _TIMESTAMP)]) if self._has_times else self._data_schema
        )
        self._row_bytes = _fixed_row_bytes(self._rows_schema)

    def projections(self, stream_id: int) -> tuple[Projection, ...]:
        """Return one for each of the newest versions that has more columns than are wanted.

        Batches of versions that are not known yet come with all of their columns.
        """
        newest = list(self._versions.find(stream_id))[-limits.PROJECTIONS_PER_ITEM_MAX :]
        kept = map(self._maybe_kept, newest)
        return tuple(each.projection for each in kept if each is not None)

    def filters(self, stream_id: int) -> tuple[BatchFilter, ...]:
        """Return none: all rows are wanted."""
        return ()

    def _maybe_kept(self, version: SchemaVersion) -> KeptColumns | None:
        """Return the columns of a version that are wanted, None if these are all.

        If times are, too, a batch has them in any of its timestamps.
        """
        key = version.schema.fingerprint
        if key not in self._kept:
            wanted = list(self._data_schema)
            if self._has_times:
                wanted += [
                    each for each in version.schema.arrow if pa.types.is_timestamp(each.type)
                ]
            self._kept[key] = maybe_kept_columns(version.schema, pa.schema(wanted))
        return self._kept[key]

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield the columns of some records. Raises SchemaError, DamagedBatchError.

        An old batch may be far smaller than its columns are in the schema that has grown since, so
        they are made piece by piece.
        """
        for run in small_runs(envelopes, rows_enough=ROWS_PER_BATCH, bytes_enough=JOINED_BYTES):
            for decoded in self._decode_run(run, span):
                yield from self._pieces(decoded, span, start_offset, end_offset)

    def _decode_run(self, run: Run, span: StreamSpan) -> Iterator[_Decoded]:
        """Yield columns, of small batches together unless one is damaged: then it is named."""
        first = run.envelopes[0]
        version = self._version(first, span)
        names = self._data_names
        if self._has_times and first.timestamp_column is not None:
            names |= {first.timestamp_column}
        schema = self._schema_of(first, version)
        together = maybe_columns_together(run, schema, names)
        if together is not None:
            yield _Decoded(together, version, run.envelopes)
            return
        for envelope in run.envelopes:
            yield _Decoded(decode_columns(envelope, schema, names), version, [envelope])

    def _schema_of(self, envelope: Envelope, version: SchemaVersion) -> StreamSchema:
        """Return the columns that a batch of a version has. Raises DamagedBatchError."""
        if envelope.projection is None:
            return version.schema
        kept = self._maybe_kept(version)
        if kept is None or kept.projection.kept != envelope.projection:
            raise envelope.damage(
                f"it has other columns ({envelope.projection}) than were asked for"
            )
        return kept.schema

    def _pieces(
        self, decoded: _Decoded, span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        columns, base_offset = decoded.columns, decoded.batches[0].base_offset
        begin = max(base_offset, start_offset)
        end = min(base_offset + columns.num_rows, end_offset)
        row_bytes = self._row_bytes + columns.get_total_buffer_size() // columns.num_rows
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        for offset in range(begin, end, step):
            found = columns.slice(offset - base_offset, min(step, end - offset))
            try:
                rows = map_columns(found, self._data_schema)
                self._check_logical_types(decoded.version)
            except SchemaError as error:
                raise self._misfit(decoded, span, error) from None
            if self._has_times:
                times = _times(decoded.batches, found, offset)
                rows = pa.RecordBatch.from_arrays([*rows.columns, times], schema=self._rows_schema)
            yield Piece(span, offset, rows, rows.nbytes)

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
        if not encoding_of(envelope).is_typed or fingerprint is None:
            raise SchemaError(
                f"{_describe([envelope], span)} is not typed, but the query reads columns: read it"
                " with encoding=rows up to the offset where columns begin, and these from there"
                " (startingOffsets), or trim the stream to there"
            )
        version = self._versions.maybe_find(span.stream_id, fingerprint)
        if version is None:
            raise envelope.damage(
                f"it is of a schema that the placement driver does not know ({fingerprint}); it was"
                " copied from another cluster, or the placement driver's metadata were restored"
                " from an older copy"
            )
        return version

    def _misfit(self, found: _Decoded, span: StreamSpan, error: SchemaError) -> SchemaError:
        """Return the error of batches that the query cannot take, and since which version."""
        known = self._versions.known(span.stream_id)
        since = next((each for each in known if self._misfits(each)), found.version)
        return SchemaError(
            f"{_describe(found.batches, span)}: {error}. That came with version {since.version} of"
            " the stream's schema: load the stream and start the query again, to read with the"
            " newest version"
        )

    def _check_logical_types(self, version: SchemaVersion) -> None:
        """Raise SchemaError if columns were made wider than Spark has them, the same in Arrow."""
        if version.schema.fingerprint in self._fitting:
            return
        misfits = self._misfits(version)
        if misfits:
            raise SchemaError(listed([each.text for each in misfits], "; "))
        self._fitting.add(version.schema.fingerprint)

    def _misfits(self, version: SchemaVersion) -> list[Difference]:
        differences = compare_schemas(StreamSchema(self._data_schema), version.schema).differences
        return [each for each in differences if each.change is not Change.ADDED]


def _fixed_row_bytes(schema: pa.Schema) -> int:
    """Return the least bytes of a row, which are the bytes of a row of nulls."""
    sample = [pa.nulls(_SAMPLE_ROWS, each.type) for each in schema]
    return sum(int(each.nbytes) for each in sample) // _SAMPLE_ROWS


def _describe(batches: Sequence[Envelope], span: StreamSpan) -> str:
    first, last = batches[0], batches[-1]
    which = f"record batch at offset {first.base_offset}"
    if first is not last:
        which = f"one of the record batches at offsets {first.base_offset} to {last.base_offset}"
    return f"{which} of stream {span.stream_name} (id {span.stream_id})"


def _times(batches: Sequence[Envelope], rows: pa.RecordBatch, start_offset: int) -> pa.Array:
    """Return the times of the records, from their own column, or else their batches."""
    envelope = batches[0]
    name = envelope.timestamp_column
    if name is None:
        return _batch_times(batches, start_offset, rows.num_rows)
    index = rows.schema.get_field_index(name)
    if index < 0 or not pa.types.is_timestamp(rows.schema.field(index).type):
        cause = f"it has its times in column {name}, which is no timestamp of its schema"
        last = batches[-1]
        raise DamagedBatchError(cause, envelope.stream_id, envelope.base_offset, last.end_offset)
    times = rows.column(index).cast(_TIMESTAMP)
    if not times.null_count:
        return times
    return pc.coalesce(times, _batch_times(batches, start_offset, rows.num_rows))


def _batch_times(batches: Sequence[Envelope], start_offset: int, count: int) -> pa.Array:
    """Return the time of each record's batch; null if the time is beyond the type's range."""
    times_us = [
        each.base_timestamp_ms * 1000
        if abs(each.base_timestamp_ms) <= limits.RECORD_TIME_MS_MAX
        else None
        for each in batches
    ]
    if len(batches) == 1:
        return pa.repeat(pa.scalar(times_us[0], _TIMESTAMP), count)
    places = np.repeat(np.arange(len(batches)), [each.record_count for each in batches])
    begin = start_offset - batches[0].base_offset
    return pa.array(times_us, _TIMESTAMP).take(pa.array(places[begin : begin + count]))
