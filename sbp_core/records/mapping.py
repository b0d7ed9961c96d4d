"""Columns of one schema as those of another: by name, whole columns at once, nested ones too."""

from __future__ import annotations

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records.evolution import is_widening
from sbp_core.records.stream_schema import name_text, type_text


def map_columns(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `target`, in its order, with the values of `batch`.

    Columns that the batch lacks are null, what it has beside them is left out, and narrower types
    are widened. Raises SchemaError for a column that cannot be had so, or that is required and has
    a null.
    """
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        place = name_text(field.name)
        column = (
            pa.nulls(batch.num_rows, field.type)
            if index < 0
            else _map_array(batch.column(index), field.type, place)
        )
        if column.null_count and not field.nullable:
            raise SchemaError(
                f"column {place} is required, and {column.null_count} of {len(column)} rows have"
                " none"
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _map_array(array: pa.Array, target: pa.DataType, place: str) -> pa.Array:
    kind = array.type
    if kind == target:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        return _map_struct(array, target, place)
    if pa.types.is_list(kind) and pa.types.is_list(target):
        values = _map_array(array.values, target.value_type, f"{place}.element")
        return _with_children(array, target, values)
    if pa.types.is_map(kind) and pa.types.is_map(target) and kind.key_type == target.key_type:
        values = _map_array(array.items, target.item_type, f"{place}.value")
        fields = [target.key_field, target.item_field]
        entries = pa.StructArray.from_arrays([array.keys, values], fields=fields)
        return _with_children(array, target, entries)
    if not is_widening(kind, target):
        raise SchemaError(
            f"column {place} is {type_text(kind)}, which does not fit into {type_text(target)}"
        )
    return array.cast(target)


def _map_struct(array: pa.StructArray, target: pa.StructType, place: str) -> pa.StructArray:
    kind = array.type
    children = []
    for field in target:
        index = kind.get_field_index(field.name)
        children.append(
            pa.nulls(len(array), field.type)
            if index < 0
            else _map_array(array.field(index), field.type, f"{place}.{name_text(field.name)}")
        )
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _with_children(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map with the same shape and other values."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], array.null_count, array.offset, [child]
    )
