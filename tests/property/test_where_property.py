"""Bounds of conditions: no batch is skipped that has a row for which its condition is true."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.records import encode_statistics, map_columns, may_match
from sbp_spark.filtering.matching import matching
from sbp_spark.filtering.parser import parse_condition
from sbp_spark.filtering.resolving import row_filter
from sbp_spark.filtering.value_bounds import bounds_of
from tests.support.data.conditions import ROW_TYPES, random_condition, random_rows

STATS_COLUMNS = [*(name for name in ROW_TYPES if name != "place"), "place.city", "place.level"]
WIDENED = {
    **ROW_TYPES,
    "tiny": pa.int32(),
    "count": pa.int64(),
    "ratio": pa.float64(),
    "money": pa.decimal128(12, 4),
}


@given(random=st.randoms(use_true_random=False), is_widened=st.booleans())
def test_a_batch_with_a_row_that_matches_is_not_skipped(random, is_widened):
    stored = random_rows(random, 3)
    rows = map_columns(stored, pa.schema(WIDENED)) if is_widened else stored
    statistics = [encode_statistics(stored.slice(row, 1), STATS_COLUMNS) for row in range(3)]
    whole = encode_statistics(stored, STATS_COLUMNS)
    for text in (random_condition(random) for _ in range(2)):
        wanted = row_filter(parse_condition(text), rows.schema, rows.schema)
        bounds = bounds_of(wanted, stored.schema)
        for row in range(rows.num_rows):
            if matching(wanted.condition, rows.slice(row, 1)).num_rows:
                assert may_match(statistics[row], bounds), text
                assert may_match(whole, bounds), text
