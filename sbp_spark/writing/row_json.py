"""A typed row as a JSON object, for those who look at it, or repair it."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa


def row_json(row: pa.RecordBatch) -> bytes:
    """Return a batch of one row as JSON.

    Octets are in base64, as is a text that is no UTF-8; maps are lists of pairs; times are in ISO
    8601, durations in seconds, decimals texts.
    """
    values = {name: _value(row.column(name)) for name in row.schema.names}
    return json.dumps(values, default=_plain, ensure_ascii=False).encode()


def _value(column: pa.Array) -> Any:
    try:
        return column[0].as_py()
    except ValueError:  # no UTF-8, or a time of nanoseconds
        return column.cast(_readable(column.type))[0].as_py()


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return a type that holds the same, and that Python has a value for."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_readable(kind.key_type), _readable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable(field.type)) for field in kind])
    return kind


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    assert isinstance(value, Decimal)
    return str(value)
