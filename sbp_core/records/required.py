"""Columns that must have values, and parts of columns that must, which Arrow does not look at."""

from __future__ import annotations

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records.stream_schema import name_text


def check_required(batch: pa.RecordBatch) -> None:
    """Raise SchemaError for a null in a required column, or in what is required inside of one.

    The parts of something that is null itself do not count.
    """
    for index, field in enumerate(batch.schema):
        if not field.nullable or _has_required_parts(field.type):
            _check(batch.column(index), field, name_text(field.name))


def _check(array: pa.Array, field: pa.Field, place: str) -> None:
    kind = field.type
    if array.null_count and not field.nullable:
        raise SchemaError(
            f"column {place} is required, and {array.null_count} of {len(array)} rows have none"
        )
    # Arrow trusts the offsets of a list without rows, which it never checks.
    if not len(array) or not _has_required_parts(kind):
        return
    if pa.types.is_struct(kind):
        _check_parts(array, [(each.name, each) for each in kind], place)
    elif pa.types.is_map(kind):
        parts = [("key", kind.key_field), ("value", kind.item_field)]
        _check_parts(_map_entries(array).flatten(), parts, place)
    else:
        _check(array.flatten(), kind.value_field, f"{place}.element")


def _check_parts(array: pa.StructArray, parts: list[tuple[str, pa.Field]], place: str) -> None:
    for index, (name, field) in enumerate(parts):
        if field.nullable and not _has_required_parts(field.type):
            continue
        values = array.field(index)
        if array.null_count:
            values = values.filter(array.is_valid())
        _check(values, field, f"{place}.{name_text(name)}")


def _has_required_parts(kind: pa.DataType) -> bool:
    """Whether there is something inside that must have a value; map keys always have one."""
    if not kind.num_fields:
        return False
    if pa.types.is_struct(kind):
        return any(not each.nullable or _has_required_parts(each.type) for each in kind)
    if pa.types.is_map(kind):
        is_item_required = not kind.item_field.nullable or _has_required_parts(kind.item_type)
        return is_item_required or _has_required_parts(kind.key_type)
    return not kind.value_field.nullable or _has_required_parts(kind.value_type)


def _map_entries(array: pa.MapArray) -> pa.ListArray:
    """Return a map as the list of its entries, structs of key and value; nothing is copied."""
    entries = array.values
    return pa.Array.from_buffers(
        pa.list_(pa.field("entries", entries.type, nullable=False)),
        len(array),
        array.buffers()[:2],
        array.null_count,
        array.offset,
        [entries],
    )
