"""Columns of data frames and tables, in types that a stream can have.

pandas counts nanoseconds and has categories, polars has large text, views and unsigned numbers:
each becomes the type of the same values. The cast is checked, so no digit of a value is lost.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records import StreamSchema


def schema_of(given: Any) -> StreamSchema:
    """Return the schema of a stream for the columns of a table, a data frame, or an Arrow schema.

    Raises SchemaError naming every column that a stream cannot have, and TypeError for what has no
    columns.
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
    """Whether these are rows of pandas, whose Arrow stream has the index as a column."""
    return type(rows).__module__.partition(".")[0] == "pandas"


def as_storable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in types that a stream can have. Raises SchemaError for a value that is lost."""
    schema = StreamSchema.of(pa.schema(map(storable, batch.schema))).arrow
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            if isinstance(column, pa.DictionaryArray):
                columns.append(column.dictionary.cast(field.type).take(column.indices))
            else:
                columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(f"column {field.name}: {error}; cast it first") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def storable(field: pa.Field) -> pa.Field:
    """Return a field in the type that a stream has for its values."""
    return field.with_type(_storable_type(field.type))


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
