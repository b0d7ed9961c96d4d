"""Random conditions of the option `where`, as text, and rows that are near their values."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa

ROW_TYPES: Final = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "count": pa.int32(),
    "total": pa.int64(),
    "ratio": pa.float32(),
    "price": pa.float64(),
    "money": pa.decimal128(9, 2),
    "name": pa.string(),
    "data": pa.binary(),
    "day": pa.date32(),
    "seen": pa.timestamp("us", tz="UTC"),
    "local": pa.timestamp("us"),
    "place": pa.struct({"city": pa.string(), "level": pa.int32()}),
}
_NAMES: Final = ("", "a", "ab", "b", "ä", "\U0001f600", "\uffff", "A" * 40, "ab\x00", "it's")
_LONGS: Final = (0, 1, -1, 2, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
_DOUBLES: Final = (0.0, -0.0, 1.5, -1.5, 0.1, 1e300, float("inf"), float("-inf"), float("nan"))
_START: Final = datetime(2026, 1, 31, tzinfo=UTC)


def random_rows(random: Random, count: int) -> pa.RecordBatch:
    """Rows with nulls, with the extremes of types, and with values that conditions name."""
    rows = [
        {name: None if random.random() < 0.2 else _value(random, name) for name in ROW_TYPES}
        for _ in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, pa.schema(ROW_TYPES))


def _value(random: Random, name: str) -> Any:
    match name:
        case "flag":
            return random.random() < 0.5
        case "tiny":
            return random.choice((-128, -1, 0, 1, 2, 127))
        case "count" | "level":
            return random.choice((-(2**31), -1, 0, 1, 2, 3, 2**31 - 1))
        case "total":
            return random.choice(_LONGS)
        case "ratio" | "price":
            return random.choice(_DOUBLES)
        case "money":
            return random.choice(list(map(Decimal, ("0.00", "1.50", "-1.50", "9999999.99"))))
        case "name" | "city":
            return random.choice(_NAMES)
        case "data":
            return random.choice((b"", b"\x00", b"\x1f", b"\x80", b"\xff\xff"))
        case "day":
            return date(2026, 1, 31) + timedelta(days=random.randint(-1, 1))
        case "seen":
            return _START + timedelta(microseconds=random.randint(-1, 1))
        case "local":
            return (_START + timedelta(microseconds=random.randint(-1, 1))).replace(tzinfo=None)
    return {
        each: None if random.random() < 0.2 else _value(random, each) for each in ("city", "level")
    }


def random_condition(random: Random, depth: int = 3) -> str:
    """A condition in the text of the option."""
    if depth and random.random() < 0.6:
        first, second = (random_condition(random, depth - 1) for _ in range(2))
        return random.choice(
            (f"({first} and {second})", f"({first} or {second})", f"not ({first})")
        )
    name = random.choice(
        [*(each for each in ROW_TYPES if each != "place"), "place.city", "PLACE.level"]
    )
    match random.randrange(10):
        case 0:
            return f"{name} is {random.choice(('', 'not '))}null"
        case 1 | 2:
            values = ", ".join(_literal(random, name) for _ in range(random.randint(1, 4)))
            return f"{name} {random.choice(('', 'not '))}in ({values})"
        case 3:
            low, high = (_literal(random, name) for _ in range(2))
            return f"{name} {random.choice(('', 'not '))}between {low} and {high}"
        case 4 if name in ("name", "place.city"):
            prefix = random.choice(("", "a", "ab", "A" * 35, "ä"))
            return f"{name} {random.choice(('', 'not '))}like '{prefix}%'"
        case 5 if name == "flag":
            return name
    op = random.choice(("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"))
    sides = [name, _literal(random, name)]
    return f" {op} ".join(sides if random.random() < 0.8 else reversed(sides))


def _literal(random: Random, name: str) -> str:
    if random.random() < 0.05:
        return "null"
    match name:
        case "flag":
            return random.choice(("true", "FALSE"))
        case "tiny":
            return random.choice(("0", "1", "-1", "- 2", "127", "-128"))
        case "count" | "PLACE.level":
            return random.choice(("0", "1", "-1", "2", "2147483647", "-2147483648"))
        case "total":
            return random.choice(("0", "1", "-1", "9007199254740993", *map(str, _LONGS[-2:])))
        case "ratio" | "price":
            return random.choice(("0", "-0.0", "1.5", "0.1", "1e300", "1E-1", "-1", ".5", "1."))
        case "money":
            return random.choice(("0", "-0.0", "1.5", "1.50", "-1.5", "9999999.99", "-9999999"))
        case "name" | "place.city":
            text = random.choice(_NAMES[:-2])
            return random.choice((f"'{text}'", f'"{text}"'))
        case "data":
            return random.choice(("X''", "x'00'", "X'1f'", "X'1FF'", "X'FFFF'", "X'80'"))
        case "day":
            return f"date '2026-{random.choice(('01-30', '01-31', '02-01'))}'"
        case "seen":
            times = ("00:00:00Z", "01:00:00.000001+01:00", "00:00:00.000002+00:00")
            return f"timestamp '2026-01-31 {random.choice(times)}'"
        case _:
            return f"timestamp_ntz '2026-01-31 {random.choice(('00:00:00', '00:00:00.000001'))}'"
