"""Values of JSON as rows: the inverse of json_values.

What `describe_columns` returns is accepted again, with the same types and forms: ISO 8601 for
times (or microseconds, for column values that no calendar has), text for decimals, text or
base64 for bytes, an object or a list of pairs for a map. Numbers have to fit: nothing is rounded or
cut. Beside them a float column accepts integers, and a decimal one too; an integer column accepts
2.0 for 2.

The timestamp of a plain record is never a number: many programs have seconds or milliseconds, which
would be years of another century as microseconds. So a time that no calendar has is not accepted.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from sbp_core.records.encodings.rows_encoding import ROWS_SCHEMA
from sbp_core.records.stream_schema import StreamSchema, name_text, type_text
from sbp_core.wording import listed

Parse = Callable[[Any], Any]
"""Returns a value that Arrow accepts for the type. Raises ValueError with what was expected."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DATE: Final = date(1970, 1, 1)
_US: Final = timedelta(microseconds=1)
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?", re.ASCII)
_UTC_TIME: Final = "a time such as 2025-01-31T09:30:00Z"
_FLOATS: Final = {text: float(text) for text in ("nan", "inf", "-inf")}
_LOST_DIGITS: Final = re.compile(r"[.,]\d{6}\d*[1-9]", re.ASCII)
"""A fraction of a second with more than microseconds."""
_EXACT_FLOATS_END: Final = 2**53
"""From here on a float may be another number than the one in the text."""
_SHOWN_MAX: Final = 40
_JSON_WORDS: Final = {None: "null", True: "true", False: "false"}
_INT64: Final = range(-(2**63), 2**63)
_PLAIN_KEYS: Final = frozenset({"key", "value", "headers", "timestamp"})
_PLACE_KEYS: Final = frozenset({"stream", "offset"})
"""Where a record was read: it gets another place when it is appended."""


class RowFault(ValueError):  # noqa: N818 - the fault of an input, by its row
    """A value that cannot become a row: its index, and the reason."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason


def parse_plain_rows(
    values: Sequence[object], *, default_timestamp_us: int | None
) -> pa.RecordBatch:
    """Return objects with `value`, `key`, `headers` and `timestamp` as rows of ROWS_SCHEMA.

    All are optional; a record without a timestamp gets the default one, and one whose timestamp is
    null has none. `stream` and `offset` are ignored. Raises RowFault.
    """
    rows: list[tuple[object, ...]] = []
    for index, value in enumerate(values):
        try:
            rows.append(_plain_row(value, default_timestamp_us))
        except ValueError as error:
            raise RowFault(index, str(error)) from error
    columns = zip(*rows, strict=True) if rows else ((),) * len(ROWS_SCHEMA)
    arrays = [
        pa.array(list(column), field.type)
        for column, field in zip(columns, ROWS_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)


def parse_typed_rows(values: Sequence[object], schema: StreamSchema) -> pa.RecordBatch:
    """Return objects of columns as rows of a schema; a column that is left out is null.

    An object may also be as records are read, with the columns in `columns`. Raises RowFault.
    """
    parse = _struct(pa.struct(list(schema.arrow)))
    rows = []
    for index, value in enumerate(values):
        try:
            rows.append(parse(_columns_of(value)))
        except ValueError as error:
            raise RowFault(index, str(error)) from error
    return pa.RecordBatch.from_pylist(rows, schema=schema.arrow)


def _plain_row(value: object, default_timestamp_us: int | None) -> tuple[object, ...]:
    if not isinstance(value, dict):
        raise _wrong("an object", value)
    unknown = value.keys() - _PLAIN_KEYS - _PLACE_KEYS
    if unknown:
        raise ValueError(
            f"unknown member {_shown(min(unknown))}; a record has {', '.join(sorted(_PLAIN_KEYS))}"
        )
    key, content, headers = (value.get(name) for name in ("key", "value", "headers"))
    timestamp_us = default_timestamp_us
    if "timestamp" in value:
        timestamp_us = _at("timestamp", _maybe(parse_time), value["timestamp"])
    return (
        _at("key", _maybe(parse_bytes), key),
        _at("value", _maybe(parse_bytes), content),
        _at("headers", _maybe(_headers), headers),
        timestamp_us,
    )


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    if not isinstance(value, list):
        raise _wrong('a list of pairs, such as [["name", "value"]]', value)
    pairs = []
    for each in value:
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], str):
            raise _wrong("a pair [name, value]", each)
        pairs.append((_text(each[0]), _maybe(parse_bytes)(each[1])))
    return pairs


def _columns_of(value: object) -> object:
    """Return the columns of an object that may have the place of its record beside them.

    For a stream with a column `columns`, they have to be written so.
    """
    if isinstance(value, dict) and "columns" in value and value.keys() <= {"columns", *_PLACE_KEYS}:
        return value["columns"]
    return value


def parse_bytes(value: Any) -> bytes:
    """Return the bytes of a text, or of {"base64": ...}. Raises ValueError."""
    if isinstance(value, str):
        return _text(value).encode()
    if not isinstance(value, dict) or value.keys() != {"base64"}:
        raise _wrong('text or {"base64": text}', value)
    encoded = value["base64"]
    if not isinstance(encoded, str):
        raise _wrong("base64 in a text", encoded)
    try:
        return base64.b64decode(encoded.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise _wrong("base64", encoded) from error


def _parser(kind: pa.DataType) -> Parse:
    """Return the function that parses values of a type, which are not null."""
    types = pa.types
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_map(kind):
        return _map(kind)
    if types.is_list(kind):
        element = _part(kind.value_field)
        return lambda value: [
            _at(str(index), element, each) for index, each in enumerate(_list(value))
        ]
    if types.is_boolean(kind):
        return _bool
    if types.is_integer(kind):
        return _integer(kind)
    if types.is_floating(kind):
        return _float32 if types.is_float32(kind) else _float
    if types.is_decimal(kind):
        return _decimal(kind)
    if types.is_timestamp(kind):
        return _local_time if kind.tz is None else _utc_time
    simple: Mapping[pa.DataType, Parse] = {
        pa.string(): _text,
        pa.binary(): parse_bytes,
        pa.date32(): _date,
        pa.time64("ns"): _time_of_day,
        pa.duration("us"): _number(_INT64, "microseconds"),
    }
    return simple[kind]


def _struct(kind: pa.StructType) -> Parse:
    fields = {each.name: _part(each) for each in kind}
    required = {each.name for each in kind if not each.nullable}

    def parse(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong("an object of columns", value)
        unknown = value.keys() - fields.keys()
        if unknown:
            known = listed([*map(name_text, fields)])
            raise ValueError(f"unknown column {_shown(min(unknown))}; there are {known}")
        missing = required - value.keys()
        if missing:
            raise ValueError(f"column {name_text(min(missing))} is required, and is missing")
        return {name: _at(name_text(name), fields[name], each) for name, each in value.items()}

    return parse


def _map(kind: pa.MapType) -> Parse:
    key, item = _parser(kind.key_type), _part(kind.item_field)

    def parse(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, dict) and pa.types.is_string(kind.key_type):
            pairs: Sequence[Any] = list(value.items())
        else:
            pairs = _list(value)
        for each in pairs:
            if not isinstance(each, list | tuple) or len(each) != 2:
                raise _wrong("a pair [key, value]", each)
        return [(_at("key", key, each[0]), _at("value", item, each[1])) for each in pairs]

    return parse


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong("a list", value)
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong("true or false", value)
    return value


def maybe_whole(number: float) -> int | float:
    """Return the integer that a number is, or the number itself: JSON has one type of numbers."""
    is_whole = number.is_integer() and abs(number) < _EXACT_FLOATS_END
    return int(number) if is_whole else number


def _integer(kind: pa.DataType) -> Parse:
    bound = 2 ** (kind.bit_width - 1)
    return _number(range(-bound, bound), type_text(kind))


def _number(allowed: range, what: str) -> Parse:
    def parse(value: Any) -> int:
        number = maybe_whole(value) if isinstance(value, float) else value
        if not isinstance(number, int) or isinstance(value, bool) or number not in allowed:
            raise _wrong(f"an integer ({what}) from {allowed[0]} to {allowed[-1]}", value)
        return number

    return parse


def _float(value: Any) -> float:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong('a number, "nan", "inf" or "-inf"', value)
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong("a number that a double has", value) from error


def _float32(value: Any) -> float:
    found = _float(value)
    if math.isfinite(found) and not math.isfinite(pa.scalar(found, pa.float32()).as_py()):
        raise _wrong("a number that a float32 has", value)
    return found


def _decimal(kind: pa.DataType) -> Parse:
    def parse(value: Any) -> Decimal:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number and not isinstance(value, str):
            raise _wrong("a decimal number in a text", value)
        try:
            found = Decimal(value)
            if found.is_finite():
                return pa.scalar(found, kind).as_py()  # type: ignore[no-any-return]
        except (InvalidOperation, pa.ArrowException) as error:
            raise _wrong(f"a {type_text(kind)}", value) from error
        raise _wrong("a finite number", value)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong("text without lone surrogates", value) from error
    return value


def _utc_time(value: Any) -> int:
    """Return microseconds since the epoch; a time without a zone is UTC."""
    return _time(value, _UTC_TIME, has_zone=True)


def parse_time(value: Any) -> int:
    """Return microseconds since the epoch of a time in a text: a number has no certain unit.

    Raises ValueError.
    """
    if not isinstance(value, str):
        raise _wrong(_UTC_TIME, value)
    return _utc_time(value)


def _local_time(value: Any) -> int:
    return _time(value, "a time without a zone such as 2025-01-31T09:30:00", has_zone=False)


def _time(value: Any, expected: str, *, has_zone: bool) -> int:
    if isinstance(value, int | float):
        return int(_number(_INT64, "microseconds")(value))
    if isinstance(value, str) and _LOST_DIGITS.search(value):
        raise _wrong(f"{expected}, of microseconds at most", value)
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise _wrong(expected, value) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    elif not has_zone:
        raise _wrong(expected, value)
    return (moment - _EPOCH) // _US


def _date(value: Any) -> int:
    """Return days since the epoch."""
    if isinstance(value, int | float):
        return int(_number(range(-(2**31), 2**31), "days")(value))
    try:
        return (date.fromisoformat(value) - _EPOCH_DATE).days
    except (TypeError, ValueError) as error:
        raise _wrong("a date such as 2025-01-31", value) from error


def _time_of_day(value: Any) -> int:
    """Return nanoseconds since midnight."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _wrong("a time of day such as 09:30:00.000000001", value)
    hours, minutes, seconds = map(int, found.groups()[:3])
    nanoseconds = int((found[4] or "").ljust(9, "0"))
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + nanoseconds


def _part(field: pa.Field) -> Parse:
    """Return the function that parses values of a column or a part of one, null if it may be."""
    parse = _parser(field.type)
    return _maybe(parse) if field.nullable else parse


def _maybe(parse: Parse) -> Parse:
    return lambda value: None if value is None else parse(value)


def _at(place: str, parse: Parse, value: Any) -> Any:
    """Parse a part of a value; the error names where it is."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _wrong(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, got {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = _JSON_WORDS[value] if value is None or isinstance(value, bool) else ascii(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
