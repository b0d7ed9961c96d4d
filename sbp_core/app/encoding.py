"""Records, tables, data frames and mappings in; encoded record batches of a stream out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.app import defaults
from sbp_core.app.delivery import Receipt
from sbp_core.client import AsyncClient
from sbp_core.errors import RecordBatchError, SchemaError, UnsupportedError
from sbp_core.records import (
    ROWS_SCHEMA,
    BatchBuilder,
    ColumnsBuilder,
    Compression,
    RowsBuilder,
    StreamSchema,
    encode_rows,
    map_columns,
    peek_batch,
    record_sizes,
    record_too_large,
    schema_text,
)
from sbp_core.wording import listed

_MAPPINGS_PER_BATCH: Final = 4_096

_KEY, _VALUE, _HEADERS, _TIME = (each.type for each in ROWS_SCHEMA)

Headers = Mapping[str, bytes | None]


@dataclass(slots=True, eq=False)
class Collected:
    """Plain records of one batch, column by column. `headers` are by the index of their record."""

    stream_id: int
    opened_at: float
    receipt: Receipt = field(default_factory=Receipt)
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    headers: dict[int, Headers] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A record batch that was encoded by the caller."""

    stream_id: int
    batch: bytes
    record_count: int
    receipt: Receipt = field(default_factory=Receipt)

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch."""
        return len(self.batch)


Outgoing = Collected | Encoded


def record_bytes(
    value: bytes | None, key: bytes | None, headers: Mapping[str, bytes | None] | None
) -> int:
    """Return how many bytes a record has. Raises TypeError for parts that are not bytes."""
    size_bytes = defaults.RECORD_OVERHEAD_BYTES
    if value is not None:
        if type(value) is not bytes:
            raise _no_bytes("value", value)
        size_bytes += len(value)
    if key is not None:
        if type(key) is not bytes:
            raise _no_bytes("key", key)
        size_bytes += len(key)
    if headers:
        for name, content in headers.items():
            if type(name) is not str:
                raise TypeError(f"the name of a header is {name!r:.80}; pass a str")
            if content is not None and type(content) is not bytes:
                raise _no_bytes(f"header {name!r}", content)
            size_bytes += len(name.encode()) + len(content or b"")
    return size_bytes


def encoded(batch: Outgoing, compression: Compression = "none") -> bytes:
    """Return a batch as the bytes of a record batch. Raises RecordBatchError."""
    if isinstance(batch, Encoded):
        return batch.batch
    count = batch.record_count
    keys, headers = pa.nulls(count, _KEY), pa.nulls(count, _HEADERS)
    if batch.keys.count(None) < count:
        keys = pa.array(batch.keys, _KEY)
    if batch.headers:
        pairs: list[list[tuple[str, bytes | None]] | None] = [None] * count
        for index, each in batch.headers.items():
            pairs[index] = list(each.items())
        headers = pa.array(pairs, _HEADERS)
    times_us = pa.py_buffer(np.fromiter(batch.times_us, np.int64, count))
    times = pa.Array.from_buffers(_TIME, count, [None, times_us])  # `pa.array` imports pandas
    rows = pa.RecordBatch.from_arrays(
        [keys, pa.array(batch.values, _VALUE), headers, times], schema=ROWS_SCHEMA
    )
    return encode_rows(
        rows,
        stream_id=batch.stream_id,
        timestamp_ms=batch.times_us[0] // 1000,
        compression=compression,
    )


def _no_bytes(name: str, found: object) -> TypeError:
    return TypeError(
        f"the {name} is a {type(found).__name__}; pass bytes, as text.encode() and"
        " json.dumps(...).encode() return them"
    )


def schema_of(given: Any) -> StreamSchema:
    """Return the schema of a stream for the columns of a table, a data frame, or an Arrow schema.

    Raises SchemaError naming every column that a stream cannot have, and TypeError for an object
    without columns.
    """
    if isinstance(given, pa.Schema):
        schema = given
    elif is_pandas(given):
        schema = pa.Schema.from_pandas(given, preserve_index=False)
    elif hasattr(given, "__arrow_c_stream__"):
        schema = pa.RecordBatchReader.from_stream(given).schema
    elif hasattr(given, "__arrow_c_schema__"):
        schema = pa.schema(given)
    else:
        raise TypeError(
            f"the schema is a {type(given).__name__}; pass a schema or table of Arrow, or a data"
            " frame of pandas or polars"
        )
    return StreamSchema.of(pa.schema(map(storable, schema)))


def is_pandas(rows: object) -> bool:
    """Whether the rows are of pandas, whose Arrow stream would have the index as a column."""
    return type(rows).__module__.partition(".")[0] == "pandas"


def as_storable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in types that a stream can have. Raises SchemaError if a value would be lost."""
    schema = StreamSchema.of(pa.schema(map(storable, batch.schema))).arrow
    columns = []
    for wanted, column in zip(schema, batch.columns, strict=True):
        try:
            if isinstance(column, pa.DictionaryArray):
                columns.append(column.dictionary.cast(wanted.type).take(column.indices))
            else:
                columns.append(column.cast(wanted.type))
        except pa.ArrowException as error:
            raise SchemaError(f"column {wanted.name}: {error}; cast it first") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def storable(column: pa.Field) -> pa.Field:
    """Return a column in the type that a stream has for its values."""
    return column.with_type(_storable_type(column.type))


def _storable_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _storable_type(kind.value_type)
    if types.is_string_view(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary_view(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_date64(kind):
        return pa.date32()
    if types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32()}.get(kind.bit_width, pa.int64())
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(storable(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([storable(kind.field(index)) for index in range(kind.num_fields)])
    return kind


class ArrowStream(Protocol):
    """A table or data frame that gives an Arrow stream by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""


Rows = ArrowStream | Iterable[Mapping[str, Any]]
"""Rows to send: a table, a data frame, or mappings with the columns as their keys."""


@dataclass(frozen=True, slots=True)
class Target:
    """The stream that rows are encoded for; `schema` is None if the stream is not typed.

    The server of the stream is known to accept records of `record_bytes_max`, by default the size
    that every server accepts. `timestamp_column` of the schema has the times of the records.
    """

    stream: str
    stream_id: int
    schema: StreamSchema | None
    record_bytes_max: int = limits.RECORD_BYTES_MAX
    compression: Compression = "none"
    timestamp_column: str | None = None
    plain_bytes_max: int = field(init=False)
    """The largest record without columns that is accepted; 0 if the stream is typed."""

    def __post_init__(self) -> None:
        plain_bytes_max = self.record_bytes_max if self.schema is None else 0
        object.__setattr__(self, "plain_bytes_max", plain_bytes_max)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the stream's batches."""
        return ROWS_SCHEMA if self.schema is None else self.schema.arrow

    def check_plain(self) -> None:
        """Raise SchemaError if the stream is typed, and takes no plain records."""
        if self.schema is not None:
            raise SchemaError(
                f"stream {self.stream} has a schema, and a record of bytes has no columns: pass"
                " rows to send_many"
            )

    def builder(self) -> BatchBuilder:
        """Return a builder of the stream's record batches."""
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

    Before each part of the rows, which takes some ms, yields the bytes of the part's largest
    record, or 0 if every server accepts all records of the part. The caller then has to ask whether
    the stream's server accepts such a record. `now_us`, in microseconds since the epoch, is the
    time of plain records without one. Raises SchemaError for rows that do not fit, RecordBatchError
    for a row that no server accepts.
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
    elif isinstance(rows, pa.Table):  # PyArrow before 23 breaks the stream of a string_view
        yield from rows.to_batches()
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(rows)
    else:
        yield from _batches_of_mappings(rows, columns)


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of about CUT_BYTES: to encode one of them takes some ms."""
    for batch in batches:
        try:
            size_bytes = batch.nbytes
        except pa.ArrowTypeError:  # PyArrow measures no string_view before version 23
            size_bytes = batch.get_total_buffer_size()
        pieces = size_bytes // defaults.CUT_BYTES + 1
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
    """Return a row in the form of Arrow. Raises SchemaError unless it is a mapping with `names`."""
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
    """Return rows for a stream without a schema: text becomes UTF-8, missing times `now_us`."""
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


async def find_target(
    client: AsyncClient,
    stream: str,
    *,
    compression: Compression = "none",
    timestamp_column: str | None = None,
) -> Target:
    """Ask the placement driver for a stream; return the target of its records. Raises SbpError.

    No range server is asked, so a producer collects records while the server of the stream is down.
    """
    (info,) = await client.describe_streams([stream])
    stream_id = info.stream_id
    schema = None
    with suppress(UnsupportedError):  # servers without typed streams
        versions = (await client.describe_schemas([stream_id], newest_only=True))[stream_id]
        schema = versions[-1].schema if versions else None
    return Target(
        stream, stream_id, schema, compression=compression, timestamp_column=timestamp_column
    )


async def enlarged(client: AsyncClient, target: Target, size_bytes: int) -> Target:
    """Return the target with the largest record that the stream's server accepts.

    Raises RecordBatchError if the server accepts no record of `size_bytes`, SbpError.
    """
    bytes_max = (await client.record_bytes_max([target.stream_id]))[target.stream_id]
    if size_bytes > bytes_max:
        raise RecordBatchError(f"the record has {record_too_large(size_bytes, bytes_max)}")
    return replace(target, record_bytes_max=bytes_max)
