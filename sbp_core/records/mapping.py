"""Columns of one schema as those of another: by name, whole columns at once, nested ones too."""

from __future__ import annotations

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records.evolution import is_widening
from sbp_core.records.required import check_required
from sbp_core.records.stream_schema import name_text, type_text


def map_columns(
    batch: pa.RecordBatch, target: pa.Schema, *, is_loss_allowed: bool = True
) -> pa.RecordBatch:
    """Return the columns of `target`, in its order, with the values of `batch`.

    Columns that the batch lacks are null, and narrower types are widened. What it has beside them
    is left out, unless no loss is allowed. Raises SchemaError for a column that cannot be had so,
    or that is required and has a null.
    """
    if batch.schema.equals(target):
        check_required(batch)
        return batch
    if not is_loss_allowed:
        _check_all_there(batch.schema, target, "")
    columns = []
    for field in target:
        place = name_text(field.name)
        index = _maybe_index(batch.schema, field.name, place)
        columns.append(
            pa.nulls(batch.num_rows, field.type)
            if index is None
            else _map_array(batch.column(index), field.type, place)
        )
    mapped = pa.RecordBatch.from_arrays(columns, schema=target)
    check_required(mapped)
    return mapped


def _check_all_there(
    given: pa.Schema | pa.StructType, target: pa.Schema | pa.StructType, path: str
) -> None:
    """Raise SchemaError for a column that the target lacks, or part of one."""
    for field in given:
        place = f"{path}{name_text(field.name)}"
        index = _maybe_index(target, field.name, place)
        if index is None:
            raise SchemaError(f"column {place} has no place in the schema that it is mapped onto")
        _check_parts_there(field.type, target.field(index).type, place)


def _check_parts_there(given: pa.DataType, target: pa.DataType, place: str) -> None:
    if pa.types.is_struct(given) and pa.types.is_struct(target):
        _check_all_there(given, target, f"{place}.")
    elif pa.types.is_list(given) and pa.types.is_list(target):
        _check_parts_there(given.value_type, target.value_type, f"{place}.element")
    elif pa.types.is_map(given) and pa.types.is_map(target):
        _check_parts_there(given.item_type, target.item_type, f"{place}.value")


def _maybe_index(fields: pa.Schema | pa.StructType, name: str, place: str) -> int | None:
    found = fields.get_all_field_indices(name)
    if len(found) > 1:
        raise SchemaError(f"column {place} stands there twice; rename one of them")
    return found[0] if found else None


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
        entries = array.values
        values = _map_array(entries.field(1), target.item_type, f"{place}.value")
        fields = [target.key_field, target.item_field]
        entries = pa.StructArray.from_arrays([entries.field(0), values], fields=fields)
        return _with_children(array, target, entries)
    if not is_widening(kind, target):
        raise SchemaError(
            f"column {place} is {type_text(kind)}, which does not fit into {type_text(target)}"
        )
    # Nothing valid is lost by widening, and what lies under nulls may be anything.
    return array.cast(target, safe=False)


def _map_struct(array: pa.StructArray, target: pa.StructType, place: str) -> pa.StructArray:
    children = []
    for field in target:
        inside = f"{place}.{name_text(field.name)}"
        index = _maybe_index(array.type, field.name, inside)
        children.append(
            pa.nulls(len(array), field.type)
            if index is None
            else _map_array(array.field(index), field.type, inside)
        )
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _with_children(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map with the same shape and other values."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], array.null_count, array.offset, [child]
    )
