"""Order keys: bytes that compare as the values of a column do. So servers compare unknown types.

    type                                 key                                             bytes
    bool                                 0 or 1                                              1
    integer, date, time, timestamp,      the number, in the unit of the column,
    duration                             with the sign bit inverted                          8
    decimal                              the digits as a number, in the same way            16
    float, double                        as a double: the sign bit inverted if positive,
                                         all bits if not; -0.0 is 0.0, NaN is the largest    8
    string, binary                       its bytes

Numbers are big-endian. Keys of one type can be compared, and no others.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

_INTEGER_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16
_DIGITS_MAX: Final = 40
"""More than any decimal of 16 bytes has: such a number is not even computed."""
_DOUBLE: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63


def order_key(value: Any, kind: pa.DataType) -> bytes | None:
    """Return the key of a value, which is not null, among the values of a column of type `kind`.

    None if the type has no order that keys can have: it is nested. The value is what Python has for
    the type; for dates and times it may be an integer, in the unit of the column, and for any type
    a scalar of it. A float is not rounded to the 4 bytes that the column may have. A timestamp
    without a zone is UTC. Raises ValueError for a value that no key of the type can have: one of
    another type, or a number out of bounds, or with more decimal places than the column.
    """
    types = pa.types
    try:
        if isinstance(value, pa.Scalar):
            value = _content(value)
        if types.is_boolean(kind):
            return b"\1" if value else b"\0"
        if types.is_floating(kind):
            return _double_key(float(value))
        if types.is_decimal128(kind):
            return _integer_key(_unscaled(Decimal(value), kind.scale), _DECIMAL_BYTES)
        if types.is_string(kind):
            return value.encode() if isinstance(value, str) else bytes(memoryview(value))
        if types.is_binary(kind):
            return bytes(memoryview(value))
        if types.is_signed_integer(kind) or types.is_temporal(kind):
            number = value if isinstance(value, int) else pa.scalar(value, kind).value
            return _integer_key(number, _INTEGER_BYTES)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{value!r} is no value of type {kind}: {error}") from error
    return None


def has_order(kind: pa.DataType) -> bool:
    """Whether values of this type have keys."""
    types = pa.types
    is_number = types.is_floating(kind) or types.is_signed_integer(kind)
    is_other = types.is_boolean(kind) or types.is_temporal(kind) or types.is_decimal128(kind)
    return bool(is_number or is_other or types.is_string(kind) or types.is_binary(kind))


def maybe_upper_prefix(key: bytes, bytes_max: int) -> bytes | None:
    """Return a key of `bytes_max` bytes at most that is not below `key`; None if there is none.

    The first bytes of a key are a key that is not above it.
    """
    if len(key) <= bytes_max:
        return key
    prefix = key[:bytes_max].rstrip(b"\xff")
    return prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else None


def _content(scalar: pa.Scalar) -> Any:
    """Return what a scalar has: integers for dates and times, which Python cannot always have."""
    if pa.types.is_string(scalar.type) or pa.types.is_binary(scalar.type):
        return scalar.as_buffer().to_pybytes()
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def _integer_key(number: int, size_bytes: int) -> bytes:
    return (number + (1 << (8 * size_bytes - 1))).to_bytes(size_bytes, "big")


def _double_key(value: float) -> bytes:
    if math.isnan(value):
        value = math.nan  # there are many, of both signs
    bits = int.from_bytes(_DOUBLE.pack(value + 0.0), "big")
    ordered = bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN
    return ordered.to_bytes(_INTEGER_BYTES, "big")


def _unscaled(value: Decimal, scale: int) -> int:
    if value.is_finite() and value.adjusted() > _DIGITS_MAX:
        raise OverflowError("it has too many digits")
    numerator, denominator = value.as_integer_ratio()
    number, rest = divmod(numerator * int(10**scale), denominator)
    if rest:
        raise ValueError(f"it has more than {scale} decimal places")
    return number
