"""Columns as text become the same columns again."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import SchemaError
from sbp_core.records import StreamSchema, field_text
from sbp_core.records.column_text import parse_columns
from sbp_core.records.stream_schema import PLAIN_TYPES, with_logical_type

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
LOGICAL = st.none() | st.text("abc (,)<>_1", min_size=1, max_size=9)


def fields(kinds, names=NAMES):
    return st.builds(
        lambda name, kind, nullable, logical: with_logical_type(
            pa.field(name, kind, nullable=nullable), logical
        ),
        *(names, kinds, st.booleans(), LOGICAL),
    )


def nested(kinds):
    parts = fields(kinds)
    structs = st.lists(parts, min_size=1, max_size=3, unique_by=lambda each: each.name.lower())
    return (
        fields(kinds, st.just("element")).map(pa.list_)
        | structs.map(pa.struct)
        | st.builds(
            lambda key, value: pa.map_(key.with_nullable(False), value),
            fields(st.sampled_from([pa.string(), pa.int8()]), st.just("key")),
            fields(kinds, st.just("value")),
        )
    )


SIMPLE = st.sampled_from([*PLAIN_TYPES, pa.decimal128(38, 0), pa.decimal128(5, 5)])
COLUMNS = st.lists(
    fields(st.recursive(SIMPLE, nested, max_leaves=4)),
    min_size=1,
    max_size=4,
    unique_by=lambda each: each.name.lower(),
)


@given(COLUMNS)
def test_columns_come_back_equal(columns):
    schema = StreamSchema.of(pa.schema(columns))
    assert parse_columns([field_text(each) for each in schema.arrow]) == schema


def test_white_space_does_not_matter():
    assert parse_columns([" id   int64 not  null", "p decimal(5,2)"]) == parse_columns(
        ["id int64 not null", "p decimal(5, 2)"]
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected the name of a column, found the end"),
        ("id", "expected a type, found the end"),
        ("id int", "expected one of bool, int8"),
        ("id int64 not", "expected null, found the end"),
        ("id int64 null", "expected the end, found 'null'"),
        ("id int64 as x", "expected a logical type in quotes, found 'x'"),
        ("id decimal(39, 2)", "expected a decimal with a precision up to 38"),
        ("id decimal(a, 2)", "expected a number, found 'a, 2)'"),
        ("id list<int64", "expected >, found the end"),
        ("id map<int64>", "expected ,, found '>'"),
        ("id struct<>", "expected the name of a column, found '>'"),
        ("id " + "list<" * 5000, "types in each other"),
        ('"\\x" int8', "expected a name in the form of JSON"),
        ("ä int8", "expected the name of a column"),
    ],
)
def test_the_place_of_a_fault_is_named(text, reason):
    with pytest.raises(SchemaError) as raised:
        parse_columns([text])
    assert reason in str(raised.value)


def test_columns_that_no_stream_has_are_refused():
    with pytest.raises(SchemaError, match="occurs twice"):
        parse_columns(["a int8", "a int8"])
