"""The columns of a lake table: those of the stream, and the offset and time of each record.

Iceberg has fewer types than streams. int8 and int16 become int32, and a time of day is kept in
microseconds. A duration cannot be expressed, so a stream with one is refused by the column's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from sbp_core.app.record import Batch
from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.quantities import quoted
from sbp_core.records.evolution import map_columns
from sbp_core.settings.lake_tables import is_table_name

OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
KEY: Final = "_key"
HEADERS: Final = "_headers"

_ADDED: Final = [
    pa.field(OFFSET, pa.int64(), nullable=False),
    pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
]
PLAIN: Final = pa.schema(
    [
        *_ADDED,
        pa.field(KEY, pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(HEADERS, pa.map_(pa.string(), pa.binary())),
    ]
)
"""The table of a stream without a schema."""

_PLAIN_NAMES: Final = {"key": KEY, "headers": HEADERS}
_EXPRESSED: Final = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.time64("ns"): pa.time64("us"),
}


def check_table_name(name: str) -> None:
    """Raise ConfigurationError for what is no name of a table in a namespace."""
    if not is_table_name(name):
        raise ConfigurationError(
            f"{quoted(name)} names no table: write NAMESPACE.TABLE, of letters, digits, _ and -"
        )


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of the table of a typed stream.

    All but the offset and the time may be null: a later version of the schema may lack a column.
    Raises SchemaError that names each column which a table cannot have.
    """
    faults = list(_faults(schema))
    if faults:
        raise SchemaError(
            f"an Iceberg table cannot have {', '.join(faults)}: land another stream, without"
            " these columns"
        )
    fields = [pa.field(each.name, _expressed(each.type)) for each in schema]
    return pa.schema([*_ADDED, *fields])


def rows_of(batch: Batch, columns: pa.Schema | None) -> pa.RecordBatch:
    """Return records as rows of a table: `columns` are those of the stream's latest schema.

    Records without a schema have the columns of PLAIN, also in a stream that got a schema later.
    Raises SchemaError for a value that the table cannot hold.
    """
    if batch.is_typed and columns is not None:
        rows, table = map_columns(batch.rows, columns), table_schema(columns)
        named = dict(zip(rows.schema.names, rows.columns, strict=True))
    else:
        rows, table = batch.rows, PLAIN
        names = (_PLAIN_NAMES.get(each, each) for each in rows.schema.names)
        named = dict(zip(names, rows.columns, strict=True))
    offsets = pa.array(np.arange(batch.base_offset, batch.end_offset))
    named |= {OFFSET: offsets, TIMESTAMP: batch.times}
    try:
        made = [named[each.name].cast(each.type) for each in table]
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"records {batch.base_offset} to {batch.end_offset - 1} of stream {batch.stream}"
            f" cannot be expressed in the table: {error}"
        ) from error
    return pa.RecordBatch.from_arrays(made, schema=table)


def _faults(schema: pa.Schema) -> Iterator[str]:
    for each in schema:
        if each.name in {OFFSET, TIMESTAMP}:
            yield f"a second column {each.name}"
        elif _has_duration(each.type):
            yield f"column {each.name} of type {each.type}"


def _has_duration(kind: pa.DataType) -> bool:
    if pa.types.is_duration(kind):
        return True
    return any(_has_duration(kind.field(at).type) for at in range(kind.num_fields))


def _expressed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _expressed(each.type)) for each in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(_expressed(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_expressed(kind.key_type), _expressed(kind.item_type))
    return _EXPRESSED.get(kind, kind)
