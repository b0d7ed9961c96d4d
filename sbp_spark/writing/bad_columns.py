"""Typed rows that cannot be written: which they are, and what is kept of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import ROWS_SCHEMA, map_columns, record_sizes
from sbp_core.records.json_values import describe_columns
from sbp_spark.reporting import listed
from sbp_spark.writing.bad_records import KEPT_BYTES_MAX, BadRows, fault_headers, too_large
from sbp_spark.writing.routing import StreamIds
from sbp_spark.writing.typed_streams import TypedStream

_GROWTH_MAX: Final = 32
"""What nested values take in a record is at most so many times what Arrow says that they take."""
_FIXED_BYTES_MAX: Final = 17 * limits.SCHEMA_FIELDS_MAX
"""What all values of fixed width take in a row, at most."""


def find_bad_columns(
    rows: pa.RecordBatch, stream_ids: StreamIds, streams: Mapping[int, TypedStream]
) -> list[BadRows]:
    """Return which rows their streams do not take."""
    ids = np.full(rows.num_rows, stream_ids)
    return [
        *_missing(rows, ids, streams),
        *_invalid(rows),
        *_too_large(rows, ids, streams),
    ]


def columns_to_dead_letters(rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
    """Return bad rows as plain records of ROWS_SCHEMA, in their order: the value is JSON.

    Of one that is too large only the headers are kept.
    """
    described = {int(index): each for each in bad for index in each.indexes}
    values, headers = [], []
    for index, each in sorted(described.items()):
        row = rows.slice(index, 1)
        is_kept = int(record_sizes(row)[0]) <= KEPT_BYTES_MAX
        text = _json(row) if is_kept else b""
        values.append(text if is_kept and len(text) <= KEPT_BYTES_MAX else None)
        headers.append(fault_headers(each))
    columns = {"value": values, "headers": headers}
    arrays = [
        pa.array(columns.get(field.name, [None] * len(values)), field.type) for field in ROWS_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)


def _json(row: pa.RecordBatch) -> bytes:
    try:
        (values,) = describe_columns(row)
    except UnicodeDecodeError:
        octets = [field.with_type(_as_octets(field.type)) for field in row.schema]
        (values,) = describe_columns(row.cast(pa.schema(octets)))
    return json.dumps(values, ensure_ascii=False).encode()


def _as_octets(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes for texts, which may be any."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_as_octets(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_as_octets(kind.key_type), _as_octets(kind.item_type))
    if pa.types.is_struct(kind):
        # What is required may be null where the struct itself is, which a cast would refuse.
        return pa.struct([pa.field(each.name, _as_octets(each.type)) for each in kind])
    return kind


def _missing(
    rows: pa.RecordBatch, ids: npt.NDArray[np.int64], streams: Mapping[int, TypedStream]
) -> list[BadRows]:
    """Return the rows without a value that their stream requires."""
    found = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not column.null_count:
            continue
        requiring = {
            stream_id: stream.name
            for stream_id, stream in streams.items()
            if name in stream.schema.arrow.names and not stream.schema.arrow.field(name).nullable
        }
        if not requiring:
            continue
        is_bad = np.asarray(column.is_null()) & np.isin(ids, list(requiring))
        if is_bad.any():
            error = RecordBatchError(
                f"column {name} is null, and {listed(list(map(repr, requiring.values())))} requires"
                " a value: fill it, filter these rows out, or let it be null with mergeSchema=true"
            )
            found.append(BadRows(np.flatnonzero(is_bad), error))
    return found


def _invalid(rows: pa.RecordBatch) -> list[BadRows]:
    """Return the rows with values that no reader takes, such as a text that is no UTF-8."""
    found = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        fault = _maybe_fault(column)
        if fault is not None:
            singles = (pa.concat_arrays([column.slice(index, 1)]) for index in range(len(column)))
            wrong = [index for index, single in enumerate(singles) if _maybe_fault(single)]
            error = RecordBatchError(
                f"column {name} has a value that no reader takes ({fault}); correct it, or, if it"
                " is no text, make the column binary"
            )
            found.append(BadRows(np.array(wrong, dtype=np.int64), error))
    return found


def _maybe_fault(column: pa.Array) -> str | None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def _too_large(
    rows: pa.RecordBatch, ids: npt.NDArray[np.int64], streams: Mapping[int, TypedStream]
) -> list[BadRows]:
    ids_by_schema: dict[pa.Schema, list[int]] = {}
    for stream_id in np.unique(ids).tolist():
        ids_by_schema.setdefault(streams[stream_id].schema.arrow, []).append(stream_id)
    is_bounded = all(_is_nested_alike(rows.schema, schema) for schema in ids_by_schema)
    largest = _FIXED_BYTES_MAX + sum(map(_largest, rows.columns))
    if is_bounded and largest <= limits.RECORD_BYTES_MAX:
        return []
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for schema, stream_ids in ids_by_schema.items():
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        mapped = map_columns(rows, nullable)
        sizes = np.where(np.isin(ids, stream_ids), record_sizes(mapped), sizes)
    return too_large(sizes)


def _is_nested_alike(given: pa.Schema, there: pa.Schema) -> bool:
    """Whether nested values stay as they are; in other types they may grow by any factor."""
    return all(
        there.field(field.name).type == field.type
        for field in given
        if pa.types.is_nested(field.type)
    )


def _largest(column: pa.Array) -> int:
    """Return what a value of the column takes at most, in bytes, beside those of fixed width."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return int(column.nbytes)
    return int(column.nbytes) * _GROWTH_MAX if pa.types.is_nested(kind) else 0
