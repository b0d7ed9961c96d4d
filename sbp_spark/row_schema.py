"""The columns of plain records, of the source and of the sink, and checks of .schema(...)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import StreamSchema, compare_schemas
from sbp_spark.logical_types import logical_arrow_schema

FieldCheck: TypeAlias = Callable[[StructField, StructField, str], Iterator[str]]
"""Yields the faults of a column, from the given column, the existing column, and its path."""


def exactly(given: StructField, there: StructField, path: str) -> Iterator[str]:
    """Yield a fault unless a column is asked for as it is."""
    if given.dataType != there.dataType or (there.nullable and not given.nullable):
        yield _mistaken(given, there, path)


def as_wide(given: StructField, there: StructField, path: str) -> Iterator[str]:
    """Yield a fault where values of a column may not fit into what is asked for.

    A struct may be asked for with fewer fields.
    """
    if there.nullable and not given.nullable:
        yield f"{_mistaken(given, there, path)}, or leave not null out"
    place = f"{path}{given.name}."
    match given.dataType, there.dataType:
        case StructType(), StructType():
            yield from _faults(given.dataType, there.dataType, as_wide, place)
        case ArrayType(), ArrayType():
            yield from as_wide(_element(given.dataType), _element(there.dataType), place)
        case MapType(), MapType() if given.dataType.keyType == there.dataType.keyType:
            yield from as_wide(_value(given.dataType), _value(there.dataType), place)
        case wanted, found if not _is_wide_enough(wanted, found):
            yield _mistaken(given, there, path)


def check_selection(
    given: StructType,
    there: StructType,
    *,
    check: FieldCheck = exactly,
    more_faults: Iterable[str] = (),
    remark: str = "",
) -> None:
    """Raise ConfigurationError, naming all faults, unless `given` are some columns of `there`.

    `more_faults` are faults that the caller has found; `remark` ends the message.
    """
    faults = [*_faults(given, there, check, ""), *more_faults]
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigurationError(
            f"the sbp source does not have the columns that .schema(...) asks for:\n{lines}\nIt has"
            f" ({ddl(there)}); name any of these, in any order{remark}"
        )


def as_named(given: StructType, there: StructType) -> StructType:
    """Return the columns `given`, which `check_selection` let pass, in the names of `there`."""
    columns = _by_folded_name(there)
    fields = []
    for field in given:
        known = columns[field.name.lower()]
        kind = _type_as_named(field.dataType, known.dataType)
        fields.append(StructField(known.name, kind, field.nullable))
    return StructType(fields)


def _type_as_named(given: DataType, there: DataType) -> DataType:
    match given, there:
        case StructType(), StructType():
            return as_named(given, there)
        case ArrayType(), ArrayType():
            element = _type_as_named(given.elementType, there.elementType)
            return ArrayType(element, given.containsNull)
        case MapType(), MapType():
            value = _type_as_named(given.valueType, there.valueType)
            return MapType(given.keyType, value, given.valueContainsNull)
        case _:
            return given


def ddl(schema: StructType) -> str:
    """Return columns as messages show them."""
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
        for field in schema.fields
    )


def _faults(given: StructType, there: StructType, check: FieldCheck, path: str) -> Iterator[str]:
    columns = _by_folded_name(there)
    seen: set[str] = set()
    for field in given.fields:
        folded = field.name.lower()
        known = columns.get(folded)
        if folded in seen:
            yield f"column {path}{field.name} occurs twice; name it once"
        elif known is None:
            near = difflib.get_close_matches(folded, columns, n=1)
            hint = f"; did you mean {columns[near[0]].name}?" if near else ""
            yield f"column {path}{field.name} does not exist{hint}"
        else:
            yield from check(field, known, path)
        seen.add(folded)
    if not given.fields:
        yield f"there is no column{f' in {path[:-1]}' if path else '; name one, such as offset'}"


def _by_folded_name(there: StructType) -> dict[str, StructField]:
    """Return columns by their names in lower case: no two names differ in case only.

    Case does not matter to Spark either, unless spark.sql.caseSensitive is set, which Spark does
    not report to sources in Python.
    """
    return {field.name.lower(): field for field in there}


def _mistaken(given: StructField, there: StructField, path: str) -> str:
    expected = StructField(there.name, there.dataType)
    of_given, of_there = (ddl(StructType([each])) for each in (given, expected))
    return f"column {path}{of_given}; expected {path}{of_there}: cast it afterwards"


def _element(kind: ArrayType) -> StructField:
    return StructField("element", kind.elementType, kind.containsNull)


def _value(kind: MapType) -> StructField:
    return StructField("value", kind.valueType, kind.valueContainsNull)


def _is_wide_enough(wanted: DataType, found: DataType) -> bool:
    """Whether a column of the one type, in a stream, would take the values of the other."""
    if wanted == found:
        return True
    given, there = (StructType([StructField("x", kind)]) for kind in (wanted, found))
    try:
        schemas = [StreamSchema.of(logical_arrow_schema(each)) for each in (given, there)]
    except (PySparkException, SchemaError):
        return False
    return not compare_schemas(*schemas).differences


_HEADERS: Final = StructField("headers", MapType(StringType(), BinaryType()))
_SOURCE_FIELDS: Final = (
    StructField("stream", StringType(), nullable=False),
    StructField("stream_id", LongType(), nullable=False),
    StructField("range_index", IntegerType(), nullable=False),
    StructField("offset", LongType(), nullable=False),
    StructField("timestamp", TimestampType()),
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
)

_SINK_COLUMNS: Final = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "map<string,binary>",
    "timestamp": "timestamp",
    "stream": "string or bigint",
    "stream_id": "bigint or string",
}
_STREAM_COLUMNS: Final = ("stream", "stream_id")
_POSITION_COLUMNS: Final = frozenset({"range_index", "offset"})
"""Where a record of a source was: not written, so that a source's DataFrame can be written back."""


def source_schema(*, include_headers: bool) -> StructType:
    """Return the columns of the source as Spark sees them.

    Where a record was is always known; Spark then need not look for nulls in each row.
    """
    fields = [*_SOURCE_FIELDS, _HEADERS] if include_headers else list(_SOURCE_FIELDS)
    return StructType(fields)


def check_source_schema(given: StructType, *, include_headers: bool) -> None:
    """Raise ConfigurationError, naming all faults, unless the source has these columns.

    They may be any of its columns, in any order, and key and value may be strings;
    `include_headers` demands that headers are there.
    """
    faults = []
    if include_headers and "headers" not in map(str.lower, given.names):
        faults.append("column headers is left out, but the option includeHeaders asks for it")
    there = source_schema(include_headers=True)
    check_selection(given, there, check=_exactly_or_as_string, more_faults=faults)


def _exactly_or_as_string(given: StructField, there: StructField, path: str) -> Iterator[str]:
    """Yield a fault unless a column is asked for as it is, or its bytes as the string they are.

    The sink takes both, so a table that Spark makes of what was written may have either.
    """
    is_binary = there.dataType == BinaryType()
    if not (is_binary and given.nullable and given.dataType == StringType()):
        yield from exactly(given, there, path)


def check_sink_schema(schema: StructType, *, is_stream_given: bool) -> None:
    """Raise ConfigurationError, naming all faults, unless rows of `schema` can be written.

    `is_stream_given`: the option `stream` says where all rows go, so no column has to.
    """
    faults = [*_column_faults(schema), *_missing_columns(schema, is_stream_given=is_stream_given)]
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigurationError(f"the sbp sink cannot write these columns:\n{lines}")


def _column_faults(schema: StructType) -> list[str]:
    faults = []
    seen: set[str] = set()
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in seen:
            faults.append(f"column {field.name} occurs twice; drop one of them")
        elif field.name in _POSITION_COLUMNS:
            pass
        elif field.name not in _SINK_COLUMNS:
            faults.append(
                f"column {field.name} ({found}) would be lost; expected only"
                f" {', '.join(_SINK_COLUMNS)}: put it into value, for example with"
                " to_json(struct(...)), or drop it"
            )
        elif not _is_writable(field.name, field.dataType):
            faults.append(
                f"column {field.name} has type {found}; expected {_SINK_COLUMNS[field.name]}:"
                f" {_remedy(field.name)}"
            )
        seen.add(field.name)
    return faults


def _missing_columns(schema: StructType, *, is_stream_given: bool) -> list[str]:
    names = set(schema.fieldNames())
    faults = []
    if "value" not in names:
        faults.append(
            f"column value is missing among ({ddl(schema)}); expected string or binary: name or"
            " build one, for example with to_json(struct(...))"
        )
    if names.isdisjoint(_STREAM_COLUMNS) and not is_stream_given:
        faults.append(
            f"column stream is missing among ({ddl(schema)}), and so is the option stream;"
            ' expected one of them: add .option("stream", "name"), or a column that names the'
            " stream of each row"
        )
    return faults


def _is_writable(name: str, found: DataType) -> bool:
    if name == "timestamp":
        return isinstance(found, TimestampType)
    if name == "headers":
        return (
            isinstance(found, MapType)
            and isinstance(found.keyType, StringType)
            and isinstance(found.valueType, BinaryType)
        )
    if name in _STREAM_COLUMNS:
        return isinstance(found, StringType | LongType | IntegerType | ShortType)
    return isinstance(found, StringType | BinaryType)


def _remedy(name: str) -> str:
    if name not in {"key", "value"}:
        of_cast = _SINK_COLUMNS[name].partition(" or ")[0]
        return f"cast it, for example .cast('{of_cast}'), or drop it"
    return "cast it to one of them, or encode it, for example with to_json"
