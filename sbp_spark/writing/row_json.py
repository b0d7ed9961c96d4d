"""A typed row as a JSON object, for those who look at it, or repair it."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa


def row_json(row: pa.RecordBatch) -> bytes:
    """Return a batch of one row as JSON.

    Octets are in base64, as are the texts of a column that has one that is no UTF-8; maps are lists
    of pairs, durations seconds; dates, times and decimals are texts.
    """
    values = {name: _value(row.column(name)) for name in row.schema.names}
    return json.dumps(values, default=_plain, ensure_ascii=False).encode()


def _value(column: pa.Array) -> Any:
    try:
        return column.cast(_readable(column.type, pa.string()))[0].as_py()
    except UnicodeDecodeError:
        return column.cast(_readable(column.type, pa.binary()))[0].as_py()


def _readable(kind: pa.DataType, text: pa.DataType) -> pa.DataType:
    """Return the type with texts for texts, and for dates and times: Python's have fewer values."""
    if pa.types.is_string(kind):
        return text
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type, text))
    if pa.types.is_map(kind):
        return pa.map_(_readable(kind.key_type, text), _readable(kind.item_type, text))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable(field.type, text)) for field in kind])
    return kind


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    assert isinstance(value, Decimal)
    return str(value)
