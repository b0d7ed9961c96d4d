"""Records as columns: those of the streams' own schemas, whichever version they were written in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.client import Client, SchemaVersion
from sbp_core.errors import DamagedBatchError, SchemaError
from sbp_core.records import (
    Change,
    Difference,
    Envelope,
    Run,
    StreamSchema,
    compare_schemas,
    decode_columns,
    encoding_of,
    map_columns,
    maybe_columns_together,
    small_runs,
)
from sbp_spark.column_schema import METADATA_COLUMN
from sbp_spark.options.servers import Servers
from sbp_spark.reading.layout import JOINED_BYTES, ROWS_PER_BATCH, Piece, joined, place_column
from sbp_spark.reading.planning import StreamSpan

_STREAMS_KEPT: Final = 1_000
_known: Final[dict[tuple[Servers, int], dict[str, SchemaVersion]]] = {}
"""The versions of streams by fingerprint, the oldest first. There may be more; none changes."""


class SchemaVersions:
    """The versions of the schemas of streams, as the placement driver of `servers` knows them."""

    def __init__(self, client: Client, servers: Servers) -> None:
        self._client = client
        self._servers = servers

    def maybe_find(self, stream_id: int, fingerprint: str) -> SchemaVersion | None:
        """Return the version that a record batch names, None if there is none. Raises SbpError."""
        key = self._servers, stream_id
        found = _known.get(key, {}).get(fingerprint)
        if found is not None:
            return found
        versions = self._client.describe_schemas([stream_id])[stream_id]
        if key not in _known and len(_known) >= _STREAMS_KEPT:
            del _known[next(iter(_known))]
        _known[key] = {version.schema.fingerprint: version for version in versions}
        return _known[key].get(fingerprint)

    def known(self, stream_id: int) -> Collection[SchemaVersion]:
        """Return the versions that were found when the stream was asked for, the oldest first."""
        return _known.get((self._servers, stream_id), {}).values()


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MS_MAX: Final = (2**63 - 1) // 1000
_PIECE_BYTES: Final = 4 * limits.BATCH_TARGET_BYTES
"""About how much is mapped at a time: more than what a full record batch decodes to."""
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
        together = maybe_columns_together(run, version.schema, names)
        if together is not None:
            yield _Decoded(together, version, run.envelopes)
            return
        for envelope in run.envelopes:
            yield _Decoded(decode_columns(envelope, version.schema, names), version, [envelope])

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
        since = next((each for each in known if not self._is_fitting(each)), found.version)
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
            raise SchemaError("; ".join(each.text for each in misfits))
        self._fitting.add(version.schema.fingerprint)

    def _is_fitting(self, version: SchemaVersion) -> bool:
        """Whether whatever may be in a version fits into the columns that are read."""
        return not self._misfits(version)

    def _misfits(self, version: SchemaVersion) -> list[Difference]:
        differences = compare_schemas(StreamSchema(self._data_schema), version.schema).differences
        return [each for each in differences if each.change is not Change.ADDED]


def _fixed_row_bytes(schema: pa.Schema) -> int:
    """Return what a row takes at least, which is what a row of nulls does."""
    sample = [pa.nulls(_SAMPLE_ROWS, each.type) for each in schema]
    return sum(int(each.nbytes) for each in sample) // _SAMPLE_ROWS


def _describe(batches: Sequence[Envelope], span: StreamSpan) -> str:
    first, last = batches[0], batches[-1]
    which = f"record batch at offset {first.base_offset}"
    if first is not last:
        which = f"one of the record batches at offsets {first.base_offset} to {last.base_offset}"
    return f"{which} of stream {span.stream_name} (id {span.stream_id})"


def _times(batches: Sequence[Envelope], rows: pa.RecordBatch, start_offset: int) -> pa.Array:
    """Return the times of the records: of their own column, else of their batches."""
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
    """Return the times of the batches of records; one that no timestamp can be is not known."""
    times_us = [
        each.base_timestamp_ms * 1000 if abs(each.base_timestamp_ms) <= _MS_MAX else None
        for each in batches
    ]
    if len(batches) == 1:
        return pa.repeat(pa.scalar(times_us[0], _TIMESTAMP), count)
    places = np.repeat(np.arange(len(batches)), [each.record_count for each in batches])
    begin = start_offset - batches[0].base_offset
    return pa.array(times_us, _TIMESTAMP).take(pa.array(places[begin : begin + count]))
