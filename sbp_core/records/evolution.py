"""How the schema of a stream may change, changes in words, and old rows in a new schema.

Columns are identified by name. A schema only grows: columns are added, which are null in older
rows, types widen, and required columns become nullable. So all rows can be read in the newest
schema, and writers of older schemas can continue. A field without a logical type is the widest of
all fields with the same Arrow type: it accepts the values of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records.stream_schema import (
    StreamSchema,
    check_required,
    faults_error,
    field_text,
    logical_type_text,
    maybe_logical_type,
    name_text,
    type_text,
    with_logical_type,
)

_DECIMAL_PRECISION_MAX: Final = 38
_WIDENING: Final = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
)
"""Types whose values all those after them have, too."""


class Change(Enum):
    """The kind of a difference between the schema of a stream and another one.

    ADDED: a new column. WIDENED: a wider type, which has all values of the old one; also if a part
    of a column, such as a field of a struct, is no longer required. RELAXED: the column itself is
    no longer required, it may be null. FAULTY: what no change of the stream's schema can resolve.
    The value is the sign in a diff.
    """

    ADDED = "+"
    WIDENED = "~"
    RELAXED = "?"
    FAULTY = "!"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two schemas: its kind, and a sentence that names the column."""

    change: Change
    text: str

    def __str__(self) -> str:
        return f"{self.change.value} {self.text}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare_schemas`: the schema that has both, and how they differ.

    `merged` is the stream's schema changed so that data of the other one fit, except for `faults`.
    """

    merged: StreamSchema
    differences: tuple[Difference, ...]

    @property
    def faults(self) -> tuple[Difference, ...]:
        """The differences that no change of the stream's schema can resolve."""
        return tuple(each for each in self.differences if each.change is Change.FAULTY)


def compare_schemas(newest: StreamSchema, given: StreamSchema) -> Comparison:
    """Return `newest` extended by what `given` has more, and the differences.

    A column that `given` lacks, or has narrower, is no difference if its data fits. Raises
    SchemaError if together they have more columns than a stream can.
    """
    merger = _Merger(is_absence_allowed=False)
    merged = StreamSchema.of(merger.merge(newest, given).arrow)
    return Comparison(merged, tuple(merger.differences))


def merge_schemas(newest: StreamSchema, given: StreamSchema) -> StreamSchema:
    """Return `newest` extended by what `given` has more.

    Raises SchemaError if they contradict, or have more columns than a stream can.
    """
    compared = compare_schemas(newest, given)
    if compared.faults:
        raise faults_error(
            "this does not fit the stream's schema", (each.text for each in compared.faults)
        )
    return compared.merged


def check_evolution(old: StreamSchema, new: StreamSchema) -> None:
    """Raise SchemaError unless `new` is `old` with columns added, widened or made nullable."""
    merged = merge_schemas(old, new)
    if merged != new:
        lines = [
            f"expected {field_text(wanted)}, found {field_text(found)}"
            for wanted, found in zip(merged.arrow, new.arrow, strict=False)
            if not wanted.equals(found, check_metadata=True)
        ]
        lacking = [f"column {field_text(each)} is missing" for each in merged.arrow]
        raise faults_error("this schema does not go on from the one before", lines or lacking)


def union_schemas(schemas: Sequence[StreamSchema]) -> StreamSchema:
    """Return the columns of all, of which there is one at least: nullable where one has them not.

    Raises SchemaError if they contradict.
    """
    first, *others = schemas
    for other in others:
        merger = _Merger(is_absence_allowed=True)
        merged = merger.merge(first, other)
        faults = [each.text for each in merger.differences if each.change is Change.FAULTY]
        if faults:
            raise faults_error("these schemas do not go together", faults)
        first = merged
    return first


class _Merger:
    """Merges schemas field by field, and collects the differences."""

    def __init__(self, *, is_absence_allowed: bool) -> None:
        self.differences: list[Difference] = []
        self._is_absence_allowed = is_absence_allowed

    def merge(self, old: StreamSchema, new: StreamSchema) -> StreamSchema:
        merged = StreamSchema(pa.schema(self._fields(list(old.arrow), list(new.arrow), "")))
        return old if merged == old else merged

    def _note(self, change: Change, text: str) -> None:
        self.differences.append(Difference(change, text))

    def _fields(
        self, old: Sequence[pa.Field], new: Sequence[pa.Field], path: str
    ) -> list[pa.Field]:
        given = {field.name: field for field in new}
        names = {field.name.lower(): field.name for field in old}
        merged = []
        for field in old:
            same = given.get(field.name)
            merged.append(
                self._absent(field, path) if same is None else self._both(field, same, path)
            )
        for field in new:
            known = names.get(field.name.lower())
            place = f"{path}{name_text(field.name)}"
            if known is None:
                added = field.with_nullable(True)
                self._note(Change.ADDED, f"column {path}{field_text(added)} is new")
                merged.append(added)
            elif known != field.name:
                text = f"column {place} differs from {name_text(known)} by case only: rename it"
                self._note(Change.FAULTY, text)
        return merged

    def _absent(self, field: pa.Field, path: str) -> pa.Field:
        if field.nullable:
            return field
        if not self._is_absence_allowed:
            text = f"column {path}{field_text(field)} is missing; it is required"
            self._note(Change.FAULTY, text)
        return field.with_nullable(True)

    def _both(self, old: pa.Field, new: pa.Field, path: str) -> pa.Field:
        place = f"{path}{name_text(old.name)}"
        kind = self._types(old.type, new.type, place)
        if new.nullable and not old.nullable:
            text = f"column {place} may have nulls; the stream requires a value"
            self._note(Change.WIDENED if path else Change.RELAXED, text)
        merged = pa.field(old.name, kind, nullable=old.nullable or new.nullable)
        return with_logical_type(merged, self._maybe_logical(old, new, place))

    def _maybe_logical(self, old: pa.Field, new: pa.Field, place: str) -> str | None:
        """Return the logical type that has the values of both."""
        logical = maybe_logical_type(old)
        is_fitting = old.type.id == new.type.id or _maybe_common(old.type, new.type) is not None
        if logical is None or logical == maybe_logical_type(new) or not is_fitting:
            return logical
        text = (
            f"column {place} widens from {logical_type_text(old)} to {type_text(old.type)}: it is"
            f" {logical_type_text(new)} here"
        )
        self._note(Change.WIDENED, text)
        return None

    def _types(self, old: pa.DataType, new: pa.DataType, place: str) -> pa.DataType:
        if old.equals(new, check_metadata=True):
            return old
        if pa.types.is_struct(old) and pa.types.is_struct(new):
            return pa.struct(self._fields(list(old), list(new), f"{place}."))
        if pa.types.is_list(old) and pa.types.is_list(new):
            return pa.list_(self._both(old.value_field, new.value_field, f"{place}."))
        if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
            key = with_logical_type(
                old.key_field, self._maybe_logical(old.key_field, new.key_field, f"{place}.key")
            )
            return pa.map_(key, self._both(old.item_field, new.item_field, f"{place}."))
        common = _maybe_common(old, new)
        if common is None:
            text = f"column {place} is {type_text(new)}; the stream has {type_text(old)}: cast it"
            self._note(Change.FAULTY, text)
            return old
        if common != old:
            text = f"column {place} widens from {type_text(old)} to {type_text(common)}"
            self._note(Change.WIDENED, text)
        return common


def _maybe_common(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that has all values of both; None if neither widens to it."""
    for kinds in _WIDENING:
        if first in kinds and second in kinds:
            return kinds[max(kinds.index(first), kinds.index(second))]
    if pa.types.is_decimal128(first) and pa.types.is_decimal128(second):
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale)
        if digits + scale <= _DECIMAL_PRECISION_MAX:
            return pa.decimal128(digits + scale, scale)
    return None


def map_columns(
    batch: pa.RecordBatch, target: pa.Schema, *, is_loss_allowed: bool = True
) -> pa.RecordBatch:
    """Return the columns of `target`, in its order, with the values of `batch`.

    Columns that the batch lacks are null, and narrower types are widened. Other columns
    are left out, unless no loss is allowed. Raises SchemaError for a column that cannot be had so,
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
        raise SchemaError(f"column {place} occurs twice; rename one of them")
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
    if _maybe_common(kind, target) != target:
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
