"""Bounds of conditions: which batches are skipped for their statistics."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.records import encode_statistics, may_match
from sbp_spark.filtering.bounds import bounds_of
from sbp_spark.filtering.checking import row_filter
from sbp_spark.filtering.grammar import parse_condition

PLACE = pa.struct({"city": pa.string(), "zip": pa.int32()})
VERSION = pa.schema({"id": pa.int64(), "price": pa.float64(), "name": pa.string(), "place": PLACE})
COLUMNS = pa.schema([*VERSION, pa.field("money", pa.decimal128(20, 2))])
ROWS = [
    {"id": 5, "price": 1.5, "name": "berlin", "place": {"city": "b", "zip": None}},
    {"id": 9, "price": float("nan"), "name": None, "place": {"city": "d", "zip": None}},
]


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("id > 9", False),
        ("id > 8", True),
        ("9 <= id", True),
        ("id < 5.5", True),
        ("id < 4.5", False),
        ("id = 1000000000000000000000", False),
        ("id >= 9223372036854775807", False),
        ("not id <= 9", False),
        ("id between 6 and 7", True),
        ("id not between 4 and 10", True),  # the hull of two sides is everything
        ("id in (1, 2)", False),
        ("id in (1, 20)", True),
        ("id in (1, null, 6)", True),
        ("id in (5.5, null)", False),
        ("id not in (1, null)", False),
        ("id not in (5, 9)", True),
        ("price in (1, 1.25)", False),
        ("id is null", False),
        ("id <=> null", False),
        ("not id is not null", False),
        ("name is null", True),
        ("price > 1e300", True),  # NaN is above all
        ("price < 1", False),
        ("price < 1.5", True),  # bounds are closed
        ("name < 'b'", False),
        ("id > 9 or place.city > 'd'", True),
        ("name > null", False),
        ("name like 'bern%'", False),
        ("name like 'ber%'", True),
        ("name not like 'ber%'", True),
        ("name >= 'c'", False),
        ("place.city = 'e'", False),
        ("place.zip is not null", False),
        ("id = 1 or id = 2", False),
        ("id = 1 or name = 'x'", True),  # no column is bounded on both sides
        ("(id = 1 and name = 'x') or (id = 2 and price > 0)", False),
        ("id = 7 and name > 'x'", False),
        ("not (id > 1 or name > 'x')", False),
        ("id = 1 or id = null", False),
        ("money = 1", True),  # the batch is of a version without it
    ],
)
def test_batches_are_skipped_whose_statistics_rule_rows_out(text, is_read):
    rows = pa.RecordBatch.from_pylist(ROWS, VERSION)
    names = ["id", "price", "name", "place.city", "place.zip"]
    statistics = encode_statistics(rows, names)
    wanted = row_filter(parse_condition(text), COLUMNS, COLUMNS)
    bounds = bounds_of(wanted.condition, wanted.columns, VERSION)
    assert may_match(statistics, bounds) == is_read
