"""Tables, data frames and mappings in, encoded record batches of a stream out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.app import defaults
from sbp_core.app.encoding import Encoded
from sbp_core.app.frames import as_storable, is_pandas
from sbp_core.errors import SchemaError
from sbp_core.records import (
    ROWS_SCHEMA,
    BatchBuilder,
    ColumnsBuilder,
    Compression,
    RowsBuilder,
    StreamSchema,
    map_columns,
    peek_batch,
    record_sizes,
    schema_text,
)
from sbp_core.wording import listed

_MAPPINGS_PER_BATCH: Final = 4_096


class ArrowStream(Protocol):
    """A table or data frame: it gives an Arrow stream by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""


Rows = ArrowStream | Iterable[Mapping[str, Any]]
"""Rows to send: a table, a data frame, or mappings with the columns as their keys."""


@dataclass(frozen=True, slots=True)
class Target:
    """The stream that rows are encoded for; `schema` is None if it is not typed.

    Its server is known to accept records of `record_bytes_max`: by default the size that every
    server accepts. `timestamp_column` of the schema has the times of the records, if it is named.
    """

    stream: str
    stream_id: int
    schema: StreamSchema | None
    record_bytes_max: int = limits.RECORD_BYTES_MAX
    compression: Compression = "none"
    timestamp_column: str | None = None
    plain_bytes_max: int = field(init=False)
    """A record without columns is accepted up to this size: none is if the stream is typed."""

    def __post_init__(self) -> None:
        plain_bytes_max = self.record_bytes_max if self.schema is None else 0
        object.__setattr__(self, "plain_bytes_max", plain_bytes_max)

    @property
    def columns(self) -> pa.Schema:
        """The columns of its batches."""
        return ROWS_SCHEMA if self.schema is None else self.schema.arrow

    def check_plain(self) -> None:
        """Raise SchemaError if the stream takes no plain records."""
        if self.schema is not None:
            raise SchemaError(
                f"stream {self.stream} has a schema, and a record of bytes has no columns: pass"
                " rows to send_many"
            )

    def builder(self) -> BatchBuilder:
        """Return a builder of its record batches."""
        if self.schema is None:
            return RowsBuilder(
                self.stream_id,
                record_bytes_max=self.record_bytes_max,
                compression=self.compression,
            )
        return ColumnsBuilder(
            self.stream_id,
            self.schema,
            timestamp_column=self.timestamp_column,
            record_bytes_max=self.record_bytes_max,
            compression=self.compression,
        )

    def mapped(self, batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
        """Return rows with the columns of the stream. Raises SchemaError for what does not fit."""
        canonical = as_storable(batch)
        if self.schema is None:
            return _plain(canonical, now_us)
        return map_columns(canonical, self.schema.arrow, is_loss_allowed=False)


def encode_given(rows: Rows, target: Target, now_us: int) -> Iterator[Encoded | int]:
    """Yield rows as record batches of about BATCH_TARGET_BYTES, in their order.

    Before each step of some ms, yields the bytes of its largest record, or 0 if every server
    accepts its records: the caller finds out whether the stream's server does.

    `now_us`, in microseconds since the epoch, is the time of plain records that have none. Raises
    SchemaError for rows that do not fit, RecordBatchError for a row that no server accepts.
    """

    def counted(batch: bytes) -> Encoded:
        return Encoded(target.stream_id, batch, peek_batch(batch).record_count)

    builder = replace(target, record_bytes_max=limits.RECORD_BYTES_LARGEST).builder()
    for batch in _cut(_batches(rows, target.columns)):
        mapped = target.mapped(batch, now_us)
        is_small = mapped.nbytes <= limits.RECORD_BYTES_MAX // 2
        yield 0 if is_small else int(record_sizes(mapped).max())
        yield from map(counted, builder.add(mapped, timestamp_ms=now_us // 1000))
    yield from map(counted, builder.flush())


def _batches(rows: Any, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif is_pandas(rows):
        yield from pa.Table.from_pandas(rows, preserve_index=False).to_batches()
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(rows)
    else:
        yield from _batches_of_mappings(rows, columns)


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of about CUT_BYTES, so that one is worked on for some ms at a time."""
    for batch in batches:
        pieces = batch.nbytes // defaults.CUT_BYTES + 1
        count = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, count):
            yield batch.slice(start, count)


def _batches_of_mappings(
    rows: Iterable[Mapping[str, Any]], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    names = frozenset(columns.names)
    remaining = iter(rows)
    while chunk := [_checked(each, names) for each in islice(remaining, _MAPPINGS_PER_BATCH)]:
        try:
            yield pa.RecordBatch.from_pylist(chunk, columns)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaError(
                f"rows that do not fit into ({schema_text(columns)}): {error}"
            ) from error


def _checked(row: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return a row as Arrow accepts it. Raises SchemaError unless it is a mapping with `names`."""
    if not isinstance(row, Mapping):
        raise SchemaError(
            f"a row is a {type(row).__name__}; pass an Arrow table, a data frame of pandas or"
            " polars, or mappings"
        )
    if not row.keys() <= names:
        raise _unknown(sorted(map(str, row.keys() - names)), names)
    return {
        name: list(each.items()) if isinstance(each, Mapping) and name == "headers" else each
        for name, each in row.items()
    }


def _plain(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the rows of a stream without a schema: with text as UTF-8, and times."""
    names = frozenset(ROWS_SCHEMA.names)
    if not set(batch.schema.names) <= names or "value" not in batch.schema.names:
        raise _unknown(batch.schema.names, names)
    columns = []
    for wanted in ROWS_SCHEMA:
        if wanted.name not in batch.schema.names:
            column = pa.nulls(batch.num_rows, wanted.type)
        else:
            column = batch.column(wanted.name)
        try:
            column = column.cast(wanted.type)
        except pa.ArrowException as error:
            raise SchemaError(f"column {wanted.name}: {error}; cast it first") from error
        if wanted.name == "timestamp" and column.null_count:
            column = pc.fill_null(column, pa.scalar(now_us, wanted.type))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def _unknown(found: Iterable[str], names: Iterable[str]) -> SchemaError:
    text = f"rows with {listed([*found]) or 'no column'}; the stream has {listed(sorted(names))}"
    if frozenset(names) == frozenset(ROWS_SCHEMA.names):
        text += (
            ", as it has no schema, and needs a value. For other columns create a stream with a"
            " schema: by create_stream in Python, or `sbp apply`"
        )
    return SchemaError(text)
