"""Whether columns that .schema(...) asks for are there: all that is wrong with them, at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import StreamSchema, compare_schemas
from sbp_spark.logical_types import logical_arrow_schema

FieldCheck: TypeAlias = Callable[[StructField, StructField, str], Iterator[str]]
"""Yields what is wrong with a column, from what is asked for, what is there, and the path to it."""


def exactly(given: StructField, there: StructField, path: str) -> Iterator[str]:
    """Yield a fault unless a column is asked for as it is."""
    if given.dataType != there.dataType or (there.nullable and not given.nullable):
        yield _mistaken(given, there, path)


def as_wide(given: StructField, there: StructField, path: str) -> Iterator[str]:
    """Yield a fault where values of a column may not fit into what is asked for.

    Of structs fewer fields may be asked for.
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

    `more_faults` the caller has found by itself; `remark` is told after everything.
    """
    faults = [*_faults(given, there, check, ""), *more_faults]
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigurationError(
            f"the sbp source cannot give what .schema(...) asks for:\n{lines}\nIt has"
            f" ({ddl(there)}), to be named in any order and number{remark}"
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
            yield f"column {path}{field.name} stands there twice"
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

    Case does not matter to Spark either, unless spark.sql.caseSensitive is set, which no source in
    Python is told of.
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
