"""The option `where`: what is refused, and which columns are read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.errors import ConfigurationError
from sbp_core.records import with_logical_type
from sbp_spark.filtering.checking import row_filter
from sbp_spark.filtering.grammar import TEXT_LENGTH_MAX, RefusedError, parse_condition

PLACE = pa.struct({"city": pa.string(), "zip": pa.int32()})
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "price": pa.float64(),
        "ratio": pa.float32(),
        "money": pa.decimal128(20, 2),
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
        ("", "is no condition"),
        ("id =", "it ends at character 4, and something is missing there"),
        ("id = 1 and\nid in (1, 2", "something is missing, or too much, at character 22"),
        ("data = X'GG'", "or X'...' has no hex digits"),
        ("name = 'a", "a quote or a comment is not closed"),
        ("id between 1 2", "has 2 at character 14: it cannot follow a value"),
        ("day between date '2026-01-01' date '2026-01-02'", "has date at character 31"),
        ("id between asymmetric 1 and 2", "which is no condition that is possible here"),
        ("id in (1,)", "has \\) at character 10: a condition, a column or a value is missing"),
        ("id not in (, null)", "has , at character 12"),
        ("id = 1 or or flag", "has or at character 11"),
        ("and (flag) and id = 1", "has and at character 1:"),
        ("id = 1 {# or id = 2 #}", "has {# or id = 2 #} at character 8: comments"),
        ("id = 1 -- or id = 2", "has -- or id = 2 at character 8: comments"),
        ("id\u00a0= 1", "at character 3: comments"),
        ("data = 0x1F", "has 0x1F at character 8: write X'1F'"),
        ("+ flag", "has \\+ at character 1"),
        ("id = + 5", "has \\+ at character 6"),
        ("flag ISNULL", "has ISNULL at character 6: it is not in Spark's grammar"),
        ("flag NOTNULL", "has NOTNULL at character 6"),
        ("name not null", "has null at character 10: write is not null"),
        ("name is ! null", "has ! at character 9: write not"),
        ("id ! in (1, 2)", "has ! at character 4: write not"),
        ("name not is not null", "has is at character 10: a condition, a column or a value"),
        ("null.flag", "has . at character 5: it cannot follow a value"),
        ("id = . 5", "has 5 at character 8: write it next to the point"),
        ("(flag as)", "has \\) at character 9: a condition, a column or a value is missing"),
        ("flag;", "has ; at character 5"),
        ("id = 1 name", "has id = 1 AS name"),
        ("id = 1; drop table x", "has ; at character 7"),
        ("id + 1 = 2", "has id \\+ 1 where a column is expected"),
        ("id = price", "has price where a value is expected"),
        ("upper(name) = 'A'", "has UPPER\\(name\\) where a column is expected"),
        ("id in (select 1)", "which is no condition that is possible here"),
        ("name like '%a'", "no prefix and a %"),
        ("name like 'a_%'", "no prefix and a %"),
        ("id between symmetric 2 and 1", "has \\(id BETWEEN 2 AND 1 OR .*, which is no condition"),
        ("name collate UTF8_LCASE = 'a'", "where a column is expected"),
        ("name rlike 'a'", "which is no condition that is possible here"),
        ("flag is true", "which is no condition that is possible here"),
        ("id = 1L", "has 1L at character 6: write the number without a suffix"),
        ("day = cast('2026-01-31' as date)", "where a value is expected"),
        ("day = date '2026-1-31'", "expected one such as date '2026-01-31'"),
        ("day = date '2026-02-30'", "day (is out of range|.*must be)"),
        (
            "seen = timestamp '2026-01-31 12:00:00+18:01'",
            "has timestamp .*18:01', .* of 18:00 at most",
        ),
        ("seen = timestamp '2026-01-31 12:00:00'", "the session's is not known to a source"),
        ("name = 'it''s'", "has 's' at character 12: a quote in text is written as in \"it's\""),
        ("name = 'a\\nb'", "has a backslash"),
        ("price > 1e999", "above the largest double"),
        (f"id = 1{'0' * 38}", "a decimal has 38 digits at most"),
        ("not " * 5000 + "flag", "is nested too deeply"),
        ("x" * (TEXT_LENGTH_MAX + 1), f"more than {TEXT_LENGTH_MAX}"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(text, message):
    with pytest.raises(RefusedError, match=message):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'a'", "column nmae does not exist; did you mean name\\?"),
        ("place.cty = 'a'", "column place.cty does not exist; did you mean place.city\\?"),
        ("id.x = 1", "column id.x does not exist: id is no struct"),
        ("tags = 'a'", "column tags of type list.* can be tested for null only"),
        ("place = 'a'", "column place of type struct.* can be tested for null only"),
        ("folded = 'a'", "type string collate UTF8_LCASE can be tested for null only"),
        ("name = 1", "compared with a string in quotes, not with 1"),
        ("data = 'a'", "compared with bytes such as X'1F', not with 'a'"),
        ("flag = 1", "compared with true or false, not with 1"),
        ("id", "column id of type int64 is neither a condition nor true or false: compare it with"),
        ("id = true", "neither a condition nor true or false: compare it with a number"),
        ("day = '2026-01-31'", "compared with date '2026-01-31', not with '2026-01-31'"),
        ("day = timestamp '2026-01-31 00:00:00Z'", "compared with date"),
        ("seen = date '2026-01-31'", "compared with timestamp"),
        ("seen = timestamp_ntz '2026-01-31 00:00:00'", "not with one without a zone"),
        ("id = 1e17", "which has an exponent, so Spark rounds the column"),
        ("money = 1e1", "which has an exponent, so Spark rounds the column"),
        ("id in (1, 1e1)", "with and without an exponent in one list"),
        ("ratio = 16777217", "write it as 16777217.0"),
        ("not id < 9223372036854775808", "beyond 64 bits, .* with 9223372036854775807"),
        ("9223372036854775807.5 <= id", "beyond 64 bits, .* with 9223372036854775807"),
        ("`a.b` between -9223372036854775809 and 1", "compare it with -9223372036854775808"),
        ("money = 0.00000000000000000000001", "numbers that Spark rounds for their digits"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        row_filter(parse_condition(text), COLUMNS, COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        "id between -9223372036854775808 and 9223372036854775807",
        "id != 9223372036854775808",
        "id in (9223372036854775808)",
        "id > 1e19",
        "money < 9223372036854775808",
        "id > null",
        "id > .5 and place.city = 'a' and place . zip = 5. and id > -.5",
        "! flag and not (! flag or name is not null)",
    ],
)
def test_conditions_are_accepted_that_are_near_those_refused(text):
    row_filter(parse_condition(text), COLUMNS, COLUMNS)


def test_all_faults_are_named_at_once():
    with pytest.raises(ConfigurationError, match=r"(?s)nmae.*flag"):
        row_filter(parse_condition("nmae = 'a' or flag > 1"), COLUMNS, COLUMNS)


@pytest.mark.parametrize(
    ("wanted", "text", "read"),
    [
        (["id"], "ID > 1", {"id": pa.int64()}),
        (["id"], "price > 1 and id > 1", {"id": pa.int64(), "price": pa.float64()}),
        (
            ["id"],
            "place.City is null",
            {"id": pa.int64(), "place": pa.struct({"city": pa.string()})},
        ),
        (["place"], "place.zip = 1", {"place": PLACE}),
        (["id"], "`a.b` = 1", {"id": pa.int64(), "a.b": pa.int32()}),
    ],
)
def test_columns_that_only_the_condition_names_are_read_behind_the_others(wanted, text, read):
    schema = pa.schema([COLUMNS.field(name) for name in wanted])
    assert row_filter(parse_condition(text), schema, COLUMNS).columns == pa.schema(read)


def test_a_struct_of_the_query_grows_by_what_the_condition_needs():
    part = pa.schema({"place": pa.struct({"city": pa.string()})})
    assert row_filter(parse_condition("place.zip = 1"), part, COLUMNS).columns == pa.schema(
        {"place": PLACE}
    )
