"""Schemas of typed streams: which columns there may be, in one canonical form.

The types are common to Spark and Arrow. Beside its type a field may have a logical
type: a text for the type that its writers mean, if several have the same values in Arrow.
Two schemas are the same if their columns are, whatever other metadata came with them and whatever
Arrow's writers call the children of lists and maps; so a schema has one fingerprint, which does not
depend on the version of Arrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import SchemaError
from sbp_core.records.schema_message import LOGICAL_TYPE_KEY, check_schema_message

_FINGERPRINT_BYTES: Final = 16
_FAULTS_SHOWN_MAX: Final = 20
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LOGICAL_TYPE: Final = re.compile(rf"[ !#-\[\]-~]{{1,{limits.LOGICAL_TYPE_LENGTH_MAX}}}", re.ASCII)
_KEY: Final = LOGICAL_TYPE_KEY.encode()

PLAIN_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.duration("us"): "duration",
    pa.time64("ns"): "time",
}
"""The types without parts, as messages and fingerprints name them."""


@dataclass(frozen=True, eq=False)
class StreamSchema:
    """The columns of a typed stream, as `of` or `decode_stream_schema` made them.

    `arrow` has no metadata but logical types, and its lists and maps have children of Spark's
    names.
    """

    arrow: pa.Schema

    def __eq__(self, other: object) -> bool:
        """Whether the columns and their logical types are the same."""
        if not isinstance(other, StreamSchema):
            return NotImplemented
        return bool(self.arrow.equals(other.arrow, check_metadata=True))

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @staticmethod
    def of(schema: pa.Schema) -> StreamSchema:
        """Return the schema in its canonical form.

        Raises SchemaError naming every column that a stream cannot have.
        """
        faults: list[str] = []
        fields = _canonical_fields(schema, "", 1, faults)
        count = sum(map(_field_count, fields))
        if not fields and not faults:
            faults.append("there is no column")
        if count > limits.SCHEMA_FIELDS_MAX:
            faults.append(
                f"{count} columns with all that are in them; at most"
                f" {limits.SCHEMA_FIELDS_MAX} are allowed"
            )
        if not faults:
            made = StreamSchema(pa.schema(fields))
            if len(made.encode()) <= limits.SCHEMA_BYTES_MAX:
                return made
            faults.append(
                f"{len(made.encode())} bytes to describe it; at most"
                f" {limits.SCHEMA_BYTES_MAX} are allowed: shorten the names"
            )
        raise faults_error("a stream cannot have this schema", faults)

    @cached_property
    def fingerprint(self) -> str:
        """The name of the schema in record batches: 32 hexadecimal digits."""
        text = "\n".join(map(field_text, self.arrow))
        return blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).hexdigest()

    @cached_property
    def _encoded(self) -> bytes:
        return bytes(self.arrow.serialize())

    def encode(self) -> bytes:
        """Return it as an encapsulated schema message of Arrow's IPC format."""
        return self._encoded


def decode_stream_schema(data: bytes) -> StreamSchema:
    """Return the schema that `encode` made bytes of. Raises SchemaError for any others."""
    if len(data) > limits.SCHEMA_BYTES_MAX:
        raise SchemaError(
            f"a schema of {len(data)} bytes; at most {limits.SCHEMA_BYTES_MAX} are allowed"
        )
    check_schema_message(memoryview(data))
    try:
        found = pa.ipc.read_schema(pa.py_buffer(data))
        schema = StreamSchema.of(found)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise SchemaError(f"bytes that are no schema message of Arrow: {error}") from error
    if not schema.arrow.equals(found, check_metadata=True):
        raise SchemaError(
            f"a schema ({schema_text(found)}) that is not in the form of a stream's; expected no"
            f" metadata but {LOGICAL_TYPE_KEY}, and element, key and value in lists and maps"
        )
    return schema


def check_required(batch: pa.RecordBatch) -> None:
    """Raise SchemaError for a null in a required column, or in what is required inside of one.

    The parts of something that is null itself do not count.
    """
    for index, field in enumerate(batch.schema):
        if not field.nullable or _has_required_parts(field.type):
            _check_values(batch.column(index), field, name_text(field.name))


def schema_text(schema: pa.Schema) -> str:
    """Return the columns as a message shows them."""
    return ", ".join(map(field_text, schema))


def field_text(field: pa.Field) -> str:
    """Return a column as a message shows it: its name, its type, and whether it is required."""
    return f"{name_text(field.name)} {_full_type_text(field)}"


def type_text(kind: pa.DataType) -> str:
    """Return a type as a message shows it; Arrow's name for a type that no stream has."""
    if kind in PLAIN_TYPES:
        return PLAIN_TYPES[kind]
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"list<{_full_type_text(kind.value_field)}>"
    if pa.types.is_map(kind):
        key = logical_type_text(kind.key_field)
        return f"map<{key}, {_full_type_text(kind.item_field)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(map(field_text, kind))}>"
    return str(kind)


def maybe_logical_type(field: pa.Field) -> str | None:
    """Return the logical type of a field, None if it has none."""
    found = (field.metadata or {}).get(_KEY)
    return None if found is None else found.decode(errors="replace")


def with_logical_type(field: pa.Field, text: str | None) -> pa.Field:
    """Return the field with this logical type, or without any, and with no other metadata."""
    return field.with_metadata(None if text is None else {LOGICAL_TYPE_KEY: text})


def logical_type_text(field: pa.Field) -> str:
    """Return a field's type as a message shows it, with its logical type if it has one."""
    logical = maybe_logical_type(field)
    return type_text(field.type) + ("" if logical is None else f' as "{logical}"')


def name_text(name: str) -> str:
    """Return a column's name as a message shows it, in quotes unless it is a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def faults_error(what: str, faults: Iterable[str]) -> SchemaError:
    """Return the error that names the faults, one on a line; the first ones if there are many."""
    shown = list(faults)
    if len(shown) > _FAULTS_SHOWN_MAX:
        shown[_FAULTS_SHOWN_MAX:] = [f"and {len(shown) - _FAULTS_SHOWN_MAX} more like these"]
    lines = "\n".join(f"  - {fault}" for fault in shown)
    return SchemaError(f"{what}:\n{lines}", shown)


def _full_type_text(field: pa.Field) -> str:
    return f"{logical_type_text(field)}{'' if field.nullable else ' not null'}"


def _canonical_fields(
    given: Iterable[pa.Field], path: str, depth: int, faults: list[str]
) -> list[pa.Field]:
    """Return the fields without metadata other than logical types; add to `faults`."""
    fields = []
    seen: dict[str, str] = {}
    for field in given:
        name = field.name
        place = f"{path}{name_text(name)}"
        if not name:
            faults.append(f"a column of {path.rstrip('.') or 'the schema'} has no name")
        if len(name.encode()) > limits.SCHEMA_NAME_BYTES_MAX:
            faults.append(
                f"a column has a name of {len(name.encode())} bytes; at most"
                f" {limits.SCHEMA_NAME_BYTES_MAX} are allowed"
            )
            continue
        if name.lower() in seen:
            other = seen[name.lower()]
            is_same = other == name
            how = "occurs twice" if is_same else f"differs from {name_text(other)} by case only"
            faults.append(f"column {place} {how}; rename one of them")
        seen.setdefault(name.lower(), name)
        canonical = _maybe_canonical_field(field, name, place, depth, faults)
        if canonical is not None:
            fields.append(canonical)
    return fields


def _maybe_canonical_field(
    field: pa.Field, name: str, place: str, depth: int, faults: list[str]
) -> pa.Field | None:
    """Return the field under its canonical name; None if there is a fault, which is added."""
    logical = maybe_logical_type(field)
    if logical is not None and not _LOGICAL_TYPE.fullmatch(logical):
        faults.append(
            f"column {place} has the logical type {logical[:64]!r}; expected 1 to"
            f" {limits.LOGICAL_TYPE_LENGTH_MAX} printable characters of ASCII without quotes and"
            " backslashes"
        )
        return None
    kind = _maybe_canonical(field.type, place, depth, faults)
    if kind is None:
        return None
    return with_logical_type(pa.field(name, kind, nullable=field.nullable), logical)


def _maybe_canonical(
    kind: pa.DataType, place: str, depth: int, faults: list[str]
) -> pa.DataType | None:
    """Return the type with canonical children; None if there is a fault, which is added."""
    if kind in PLAIN_TYPES:
        return kind
    if pa.types.is_decimal128(kind):
        if not 0 <= kind.scale <= kind.precision:
            faults.append(
                f"column {place} is {type_text(kind)}; a scale is from 0 to the precision"
            )
        return kind
    if not _has_parts(kind):
        faults.append(f"column {place} has type {kind}, {_remedy(kind)}")
        return None
    if depth > limits.SCHEMA_DEPTH_MAX:
        faults.append(f"column {place} is nested too deep: {limits.SCHEMA_DEPTH_MAX} are allowed")
        return None
    children = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        children = [kind.key_field, kind.item_field]
    count = len(faults)
    if pa.types.is_struct(kind):
        fields = _canonical_fields(children, f"{place}.", depth + 1, faults)
        if not children:
            faults.append(f"column {place} is a struct without fields; leave it out")
    else:
        names = ("key", "value") if pa.types.is_map(kind) else ("element",)
        fields = []
        for child, name in zip(children, names, strict=True):
            canonical = _maybe_canonical_field(child, name, f"{place}.{name}", depth + 1, faults)
            if canonical is not None:
                fields.append(canonical)
    if len(faults) > count:
        return None
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    return pa.map_(*fields) if pa.types.is_map(kind) else pa.list_(fields[0])


def _has_parts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind))


def _remedy(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "which has no values; cast it to the type that the column should have"
    if pa.types.is_timestamp(kind):
        return "but streams keep microseconds, in UTC or without a zone; cast it"
    return (
        "which a stream cannot have; cast it to one of"
        f" {', '.join(PLAIN_TYPES.values())}, decimal(p, s), list, map, struct"
    )


def _field_count(field: pa.Field) -> int:
    kind = field.type
    return 1 + sum(_field_count(kind.field(index)) for index in range(kind.num_fields))


def _check_values(array: pa.Array, field: pa.Field, place: str) -> None:
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
        _check_values(array.flatten(), kind.value_field, f"{place}.element")


def _check_parts(array: pa.StructArray, parts: list[tuple[str, pa.Field]], place: str) -> None:
    for index, (name, field) in enumerate(parts):
        if field.nullable and not _has_required_parts(field.type):
            continue
        values = array.field(index)
        if array.null_count:
            values = values.filter(array.is_valid())
        _check_values(values, field, f"{place}.{name_text(name)}")


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
