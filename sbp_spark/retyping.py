"""Arrays as others of the same layout: in another time zone, or with fields of other names."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def retyped(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array as one of a type that differs in time zones and names only, without a copy.

    A struct that is null may have a null in a field that is required where the struct is not: in
    the rows that a left join found no partner for. Arrow's own cast refuses those.
    """
    kind = array.type
    if kind == target:
        return array
    if pa.types.is_struct(target):
        children = _retyped_fields(array, list(target))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if pa.types.is_map(target):
        fields = [target.key_field, target.item_field]
        parts = _retyped_fields(array.values, fields)
        return _with_child(array, target, pa.StructArray.from_arrays(parts, fields=fields))
    if pa.types.is_list(target):
        return _with_child(array, target, retyped(array.values, target.value_type))
    return array.cast(target)


def _retyped_fields(array: pa.StructArray, fields: Sequence[pa.Field]) -> list[pa.Array]:
    return [retyped(array.field(index), field.type) for index, field in enumerate(fields)]


def _with_child(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], array.null_count, array.offset, [child]
    )
