"""The option `where`: refusals, the rows that match, and the record batches that are skipped."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from sbp_core.errors import ConfigurationError
from sbp_core.records import encode_statistics, may_match, with_logical_type
from sbp_spark.filtering.matching import matching
from sbp_spark.filtering.parser import DEPTH_MAX, TEXT_LENGTH_MAX, RefusedError, parse_condition
from sbp_spark.filtering.resolving import row_filter
from sbp_spark.filtering.value_bounds import bounds_of

PLACE = pa.struct({"city": pa.string(), "zip": pa.int32()})
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "price": pa.float64(),
        "ratio": pa.float32(),
        "money": pa.decimal128(20, 2),
        "fine": pa.decimal128(38, 19),
        "name": pa.string(),
        "data": pa.binary(),
        "flag": pa.bool_(),
        "day": pa.date32(),
        "seen": pa.timestamp("us", tz="UTC"),
        "tags": pa.list_(pa.string()),
        "place": PLACE,
        "a.b": pa.int32(),
    }
).append(with_logical_type(pa.field("folded", pa.string()), "string collate UTF8_LCASE"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends at character 1 where a condition, a column or a value is expected"),
        ("id =", "ends at character 5 where a value is expected"),
        ("id = 1 and\nid in (1, 2", "ends at character 23 where a comma or a closing"),
        ("id in (1,)", r"has \) at character 10 where a value"),
        ("id in ()", r"has \) at character 8 where a value"),
        ("id in (select 1)", "has select at character 8"),
        ("id between 1 2", "has 2 at character 14 where and is expected"),
        ("id between symmetric 2 and 1", "has symmetric at character 12"),
        ("id = 1 or or flag", "has or at character 11"),
        ("id = 1 -- or id = 2", "has - at character 8"),
        ("id = 1 /* or id = 2 */", "has / at character 8"),
        ("id\u00a0= 1", "at character 3"),
        ("id = 1; drop table x", "has ; at character 7"),
        ("flag is true", "has true at character 9 where null or not null is expected"),
        ("name not is null", "has is at character 10 where in, between or like is expected"),
        ("name collate UTF8_LCASE = 'a'", "has collate at character 6"),
        ("name like 'a_%'", "where a prefix and a %, such as 'A%' is expected"),
        ("name = 'a", "has 'a at character 8"),
        ("name = 'it''s'", "has 's' at character 12"),
        ("name = 'a\\nb'", "has a backslash"),
        ("id = price", "has price at character 6 where a value is expected"),
        ("id + 1 = 2", r"has \+ at character 4"),
        ("upper(name) = 'A'", r"has \( at character 6"),
        ("1 = 1", "has 1 at character 5 where a column"),
        ("5.x = 1", r"has \. at character 2"),
        ("id = 1L", "has 1L at character 6"),
        ("data = 0x1F", "has 0x1F at character 8"),
        ("data = X'1 F'", "has x '1 F'; write it as in X'1F'"),
        ("day = date '2026-1-31'", "write it as in date '2026-01-31'"),
        ("day = date '2026-02-30'", "day (is out of range|.*must be)"),
        ("seen = timestamp '2026-01-31 12:00:00+18:01'", "write it as in timestamp"),
        ("seen = timestamp '2026-01-31 12:00:00'", "with its zone"),
        ("price > 1e999", "above the largest double"),
        (f"id = 1{'0' * 38}", "a decimal has 38 digits at most"),
        ("not " * DEPTH_MAX + "flag", "is nested too deeply"),
        ("x" * (TEXT_LENGTH_MAX + 1), f"more than {TEXT_LENGTH_MAX}"),
    ],
)
def test_a_text_outside_of_the_grammar_is_refused_with_its_place(text, message):
    with pytest.raises(RefusedError, match=message):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'a'", "column nmae does not exist; did you mean name\\?"),
        ("place.cty = 'a'", "column place.cty does not exist; did you mean place.city\\?"),
        ("id.x = 1", "column id.x does not exist: id is no struct"),
        ("nmae = 'a' or flag > 1", "(?s)nmae.*flag"),
        ("tags = null", "column tags of type list.* can be tested for null only"),
        ("folded = 'a'", "type string collate UTF8_LCASE can be tested for null only"),
        ("name = 1", "compared with a string in quotes, not with 1"),
        ("data = 'a'", "compared with bytes such as X'1F', not with 'a'"),
        ("id", "column id of type int64 is compared with a whole number of 64 bits, not with true"),
        ("day = timestamp '2026-01-31 00:00:00Z'", "compared with date '2026-01-31', not with"),
        ("seen = timestamp_ntz '2026-01-31 00:00:00'", "12:00:00Z', not with 2026-01-31 00:00:00"),
        ("id < 1.5", "a whole number of 64 bits, not with 1.5"),
        ("id = 1e1", "a whole number of 64 bits, not with 10.0"),
        ("not id < 9223372036854775808", "not with 9223372036854775808"),
        ("`a.b` in (1, -2147483649)", "a whole number of 32 bits, not with -2147483649"),
        ("money = 1.505", "at most 18 digits before and 2 behind the point, not with 1.505"),
        ("money = 1000000000000000000", "at most 18 digits before and 2 behind"),
        ("money = 1e1", "at most 18 digits before and 2 behind the point, not with 10.0"),
        ("fine in (1, 2)", "more than 18 decimal places, which Spark rounds in a list"),
        ("ratio = 16777217", "written with a point above 16777216, not with 16777217"),
    ],
)
def test_a_condition_that_does_not_fit_the_columns_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        row_filter(parse_condition(text), COLUMNS, COLUMNS)


NAN = float("nan")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "text", "found"),
    [
        (pa.array([1, 2, None], pa.int8()), "x <> 1", [1]),
        (pa.array([1, 2, None], pa.int8()), "not x > 1", [0]),
        (pa.array([1, 2, None], pa.int8()), "not (x = 1 or x is null)", [1]),
        (pa.array([1, 2, None], pa.int8()), "not x <=> 1", [1, 2]),
        (pa.array([1, 2, None], pa.int8()), "x <=> null", [2]),
        (pa.array([1, 2, None], pa.int8()), "x != null or not x = null", []),
        (pa.array([1, 2, None]), "x in (1, null)", [0]),
        (pa.array([1, 2, None]), "x not in (1, null)", []),
        (pa.array([1, 2, None]), "x not in (1)", [1]),
        (pa.array([1, 2, 3, None]), "x not between 2 and 2", [0, 2]),
        (pa.array([-0.0, 0.0, NAN, 1.5, None]), "x in (0, 1.5)", [0, 1, 3]),
        (pa.array([-0.0, 0.0, NAN, 1.5, None]), "x not in (-0.0)", [2, 3]),
        (pa.array([-0.0, 0.0, NAN, 1.5, None]), "x > 1e300", [2]),
        (pa.array([0.1, 0.5, -0.0], pa.float32()), "x in (0.1, 0.5, 0)", [1, 2]),
        (pa.array([Decimal("1.50"), Decimal("2.00")]), "x = 1.5", [0]),
        (pa.array([True, False, None]), "!x", [1]),
        (pa.array(["a", "ab", None]), "x not like 'ab%'", [0]),
        (pa.array([b"\x1f", b""]), "x = X'1F'", [0]),
        (pa.array([date(2026, 1, 31), date(2026, 2, 1)]), "x > date '2026-01-31'", [1]),
        (
            pa.array([NOON, None], pa.timestamp("us", "UTC")),
            "x = timestamp '2026-01-31 13:00:00+01:00'",
            [0],
        ),
    ],
)
def test_rows_for_which_a_condition_is_true(column, text, found):
    rows = pa.record_batch({"x": column, "row": pa.array(range(len(column)), pa.int32())})
    wanted = row_filter(parse_condition(text), rows.schema, rows.schema)
    assert matching(wanted.condition, rows).column("row").to_pylist() == found


@pytest.mark.parametrize(
    ("wanted", "text", "read"),
    [
        (["id"], "price > 1 and ID > 1", {"id": pa.int64(), "price": pa.float64()}),
        (
            ["id"],
            "place . City is null",
            {"id": pa.int64(), "place": pa.struct({"city": pa.string()})},
        ),
        (["id"], "`a.b` = 1", {"id": pa.int64(), "a.b": pa.int32()}),
    ],
)
def test_columns_that_only_the_condition_names_are_read_behind_the_others(wanted, text, read):
    schema = pa.schema([COLUMNS.field(name) for name in wanted])
    assert row_filter(parse_condition(text), schema, COLUMNS).columns == pa.schema(read)


def test_a_struct_of_the_query_grows_by_the_fields_of_the_condition():
    part = pa.schema({"place": pa.struct({"city": pa.string()})})
    found = row_filter(parse_condition("place.zip = 1"), part, COLUMNS)
    assert found.columns == pa.schema({"place": PLACE})


VERSION = pa.schema({"id": pa.int64(), "price": pa.float64(), "name": pa.string(), "place": PLACE})
ROWS = [
    {"id": 5, "price": 1.5, "name": "berlin", "place": {"city": "b", "zip": None}},
    {"id": 9, "price": NAN, "name": None, "place": {"city": "d", "zip": None}},
]


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("id > 9", False),
        ("id > 8", True),
        ("id < 5", False),
        ("id < 6", True),
        ("price < 1.5", True),  # a bound of floats is closed
        ("9 <= id", True),
        ("not id <= 10", False),
        ("id between 6 and 7", True),
        ("id not between 4 and 10", True),  # the hull of two sides is everything
        ("id in (1, 2)", False),
        ("id in (1, null, 20)", True),
        ("id not in (1, null)", False),
        ("id not in (5, 9)", True),
        ("id is null", False),
        ("not id is not null", False),
        ("name <=> null", True),
        ("price > 1e300", True),  # NaN is above all
        ("price < 1", False),
        ("name > null", False),
        ("name like 'bern%'", False),
        ("name like 'ber%'", True),
        ("name not like 'ber%'", True),
        ("place.city = 'e'", False),
        ("place.zip is not null", False),
        ("id > 10 or place.city > 'd'", True),
        ("id = 1 or name = 'x'", True),  # no column is bounded on both sides
        ("(id = 1 and name = 'x') or (id = 2 and price > 0)", False),
        ("id = 7 and name > 'x'", False),
        ("not (id > 1 or name > 'x')", False),
        ("id = 1 or id = null", False),
        ("money = 1", True),  # the batch is of a version without this column
    ],
)
def test_batches_are_skipped_whose_statistics_rule_rows_out(text, is_read):
    rows = pa.RecordBatch.from_pylist(ROWS, VERSION)
    statistics = encode_statistics(rows, ["id", "price", "name", "place.city", "place.zip"])
    wanted = row_filter(parse_condition(text), COLUMNS, COLUMNS)
    assert may_match(statistics, bounds_of(wanted, VERSION)) == is_read
