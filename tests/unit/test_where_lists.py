"""Lists of values in conditions: the rows that equal one of them, or none, as in Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from sbp_spark.filtering.checking import row_filter
from sbp_spark.filtering.grammar import parse_condition
from sbp_spark.filtering.masks import matching

NAN = float("nan")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "values", "inside", "outside"),
    [
        (pa.array([1, 2, None], pa.int8()), "1, 1.5, 99999999999999999999", [0], [1]),
        (pa.array([1, 2, None], pa.int64()), "1, null", [0], []),
        (pa.array([1, 2, None], pa.int64()), "null", [], []),
        (pa.array([1, 2, None], pa.int64()), "1.5", [], [0, 1]),
        (pa.array([1, 2, None], pa.int64()), "1e0", [0], [1]),
        (pa.array([-0.0, 0.0, NAN, 1.5, None]), "0, 1.5", [0, 1, 3], [2]),
        (pa.array([-0.0, 0.0, NAN, 1.5, None]), "-0.0", [0, 1], [2, 3]),
        (pa.array([0.1, 0.5, -0.0], pa.float32()), "0.1, 0.5, 0", [1, 2], [0]),
        (pa.array([Decimal("1.50"), Decimal("2.00")]), "1.5, 1.505", [0], [1]),
        (pa.array([True, False, None]), "true", [0], [1]),
        (pa.array(["a", "ab", None]), "'a', 'b'", [0], [1]),
        (pa.array([b"\x1f", b""]), "X'1F'", [0], [1]),
        (pa.array([date(2026, 1, 31), date(2026, 2, 1)]), "date '2026-01-31'", [0], [1]),
        (
            pa.array([NOON, None], pa.timestamp("us", "UTC")),
            "timestamp '2026-01-31 13:00:00+01:00'",
            [0],
            [],
        ),
    ],
)
def test_rows_equal_a_value_of_a_list(column, values, inside, outside):
    rows = pa.record_batch({"x": column, "row": pa.array(range(len(column)), pa.int32())})
    for text, expected in ((f"x in ({values})", inside), (f"x not in ({values})", outside)):
        wanted = row_filter(parse_condition(text), rows.schema, rows.schema)
        assert matching(wanted.condition, rows).column("row").to_pylist() == expected
