"""Rows of typed streams as values that JSON has.

Times are ISO 8601, in UTC unless they have no zone; durations are microseconds, decimals text
without an exponent, bytes text or base64. A float32 has the digits that distinguish it from its
neighbours. A map with text for keys is an object, any other one a list of pairs.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is that of the column
_EPOCH_DATE: Final = date(1970, 1, 1)
_NS_PER_SECOND: Final = 10**9

Describe = Callable[[Any], Any]


def describe_columns(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as the object that JSON shows."""
    columns = [describe_values(column) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows.schema.names, values, strict=True))


def describe_values(array: pa.Array) -> list[Any]:
    """Return the values of a column as JSON shows them."""
    kind = array.type
    if not len(array):  # Arrow trusts the offsets of a list without rows, which it never checks
        return []
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind):
        return list(_parts(array, describe_values(array.flatten())))
    if pa.types.is_timestamp(kind):
        epoch = _EPOCH if kind.tz is None else _EPOCH.replace(tzinfo=UTC)
        return _each(array.cast(pa.int64()), lambda value: _time(epoch, value))
    if pa.types.is_date(kind):
        return _each(array.cast(pa.int32()), _date)
    if pa.types.is_time(kind):
        return _each(array.cast(pa.int64()), _time_of_day)
    if pa.types.is_duration(kind):
        return _each(array.cast(pa.int64()), int)
    if pa.types.is_float32(kind):
        return _each(array, _float32)
    if pa.types.is_floating(kind):
        return _each(array, lambda value: value if math.isfinite(value) else str(value))
    if pa.types.is_decimal(kind):
        return _each(array, lambda value: format(value, "f"))
    if pa.types.is_binary(kind):
        return _each(array, describe_bytes)
    values: list[Any] = array.to_pylist()
    return values


def describe_bytes(data: bytes) -> Any:
    """Return bytes as text if they are UTF-8, else in base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _float32(value: float) -> float | str:
    return float(str(np.float32(value))) if math.isfinite(value) else str(value)


def _each(array: pa.Array, describe: Describe) -> list[Any]:
    return [None if value is None else describe(value) for value in array.to_pylist()]


def _structs(array: pa.StructArray) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [describe_values(column) for column in array.flatten()]
    valid = array.is_valid().to_pylist()
    return [
        dict(zip(names, values, strict=True)) if is_valid else None
        for is_valid, *values in zip(valid, *columns, strict=True)
    ]


def _maps(array: pa.MapArray) -> list[Any]:
    kind = array.type
    entries = pa.struct([kind.key_field, kind.item_field])
    pairs = array.cast(pa.list_(pa.field("element", entries, nullable=False)))
    keys, items = map(describe_values, pairs.flatten().flatten())
    has_names = pa.types.is_string(kind.key_type)
    return [
        None if each is None else dict(each) if has_names else [list(pair) for pair in each]
        for each in _parts(pairs, list(zip(keys, items, strict=True)))
    ]


def _parts(array: pa.ListArray, values: list[Any]) -> Iterator[list[Any] | None]:
    """Yield the values of each list of an array that is not null."""
    rest = iter(values)
    for length in pc.list_value_length(array).to_pylist():
        yield None if length is None else list(islice(rest, length))


def _time(epoch: datetime, value_us: int) -> str | int:
    """Return ISO 8601, or microseconds since the epoch for a time that no calendar has."""
    try:
        return (epoch + timedelta(microseconds=value_us)).isoformat(timespec="microseconds")
    except OverflowError:
        return value_us


def _date(value_days: int) -> str | int:
    try:
        return (_EPOCH_DATE + timedelta(days=value_days)).isoformat()
    except OverflowError:
        return value_days


def _time_of_day(value_ns: int) -> str:
    seconds, rest_ns = divmod(value_ns, _NS_PER_SECOND)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest_ns:09}"
