"""Columns of the source and of the sink."""

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sbp_core.errors import ConfigurationError
from sbp_core.records import ROWS_SCHEMA
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.row_schema import check_sink_schema, check_source_schema, source_schema

HEADERS = MapType(StringType(), BinaryType())
COLUMNS = ["stream", "stream_id", "range_index", "offset", "timestamp", "key", "value"]


def columns(**types):
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_the_source_has_headers_on_demand():
    assert source_schema(include_headers=False).names == COLUMNS
    assert source_schema(include_headers=True).names == [*COLUMNS, "headers"]


def test_arrow_columns_are_those_of_a_record_batch():
    schema = logical_arrow_schema(source_schema(include_headers=True))
    assert schema.names == [*COLUMNS, "headers"]
    for field in ROWS_SCHEMA:
        assert schema.field(field.name).equals(field)


def check(given, *, include_headers=False):
    check_source_schema(given, include_headers=include_headers)


def test_any_of_the_columns_may_be_asked_for_in_any_order():
    for include_headers in (False, True):
        check(source_schema(include_headers=include_headers), include_headers=include_headers)
    check(columns(value=BinaryType(), offset=LongType()))
    check(columns(headers=HEADERS))


def test_where_a_record_was_is_never_null():
    fields = source_schema(include_headers=True)
    required = [field.name for field in fields if not field.nullable]
    assert required == ["stream", "stream_id", "range_index", "offset"]
    check(StructType([StructField("offset", LongType(), nullable=False)]))
    check(StructType([StructField("offset", LongType(), nullable=True)]))


NOT_NULL = StructType([StructField("key", BinaryType(), nullable=False)])
TEXT_NOT_NULL = StructType([StructField("value", StringType(), nullable=False)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (columns(offset=LongType(), price=LongType()), "column price does not exist"),
        (columns(Valu=BinaryType()), "column Valu does not exist; did you mean value"),
        (columns(value=BinaryType(), VALUE=BinaryType()), "column VALUE occurs twice"),
        (columns(Value=LongType()), "column Value bigint; expected value binary: cast"),
        (columns(value=StringType("UNICODE")), "column value string .*; expected value binary"),
        (TEXT_NOT_NULL, "column value string not null; expected value binary"),
        (columns(stream=BinaryType()), "column stream binary; expected stream string"),
        (NOT_NULL, "column key binary not null; expected key binary"),
        (StructType([]), "there is no column"),
        (StructType(columns(key=BinaryType()).fields * 2), "column key occurs twice"),
        (
            columns(headers=MapType(StringType(), BinaryType(), False)),
            "column headers map<string,binary>; expected headers map<string,binary>",
        ),
    ],
)
def test_columns_that_are_not_there(given, told):
    with pytest.raises(ConfigurationError, match=told) as raised:
        check(given)
    for name in (*COLUMNS, "headers map<string,binary>"):
        assert name in str(raised.value)


def test_headers_that_are_asked_for_are_in_the_schema():
    with pytest.raises(ConfigurationError, match="includeHeaders asks for it"):
        check(columns(value=BinaryType()), include_headers=True)
    check(columns(headers=HEADERS), include_headers=True)


def test_all_faults_of_a_schema_are_named():
    with pytest.raises(ConfigurationError) as raised:
        check(columns(a=LongType(), b=LongType(), value=LongType()), include_headers=True)
    assert str(raised.value).count("\n  - ") == 4


@pytest.mark.parametrize(
    "schema",
    [
        columns(value=BinaryType()),
        columns(value=StringType()),
        columns(value=BinaryType(), key=StringType(), headers=HEADERS, timestamp=TimestampType()),
        columns(value=BinaryType(), headers=MapType(StringType(), BinaryType(), False)),
        columns(value=BinaryType(), stream=LongType(), stream_id=StringType()),
        source_schema(include_headers=True),
    ],
)
def test_schemas_that_the_sink_accepts(schema):
    check_sink_schema(schema, is_stream_given=True)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (columns(value=IntegerType()), "column value has type int; expected string or binary"),
        (columns(value=BinaryType(), key=LongType()), "column key has type bigint"),
        (columns(value=BinaryType(), timestamp=TimestampNTZType()), "has type timestamp_ntz"),
        (columns(value=BinaryType(), stream=BinaryType()), "column stream has type binary"),
        (columns(value=BinaryType(), price=IntegerType()), "column price .int. would be lost"),
        (columns(value=BinaryType(), Value=BinaryType()), "column Value .binary. would be lost"),
        (
            columns(value=BinaryType(), headers=MapType(StringType(), StringType())),
            "column headers has type map<string,string>; expected map<string,binary>",
        ),
        (columns(key=BinaryType()), "column value is missing"),
    ],
)
def test_schemas_that_the_sink_refuses(schema, told):
    with pytest.raises(ConfigurationError, match=told):
        check_sink_schema(schema, is_stream_given=True)


def test_a_column_that_stands_there_twice():
    twice = StructType([StructField("value", BinaryType()), StructField("value", BinaryType())])
    with pytest.raises(ConfigurationError, match="column value occurs twice"):
        check_sink_schema(twice, is_stream_given=True)


def test_the_stream_comes_from_the_option_or_the_column():
    check_sink_schema(columns(value=BinaryType(), stream=StringType()), is_stream_given=False)
    with pytest.raises(ConfigurationError, match="and so is the option stream"):
        check_sink_schema(columns(value=BinaryType()), is_stream_given=False)


def test_all_faults_are_named():
    schema = columns(key=IntegerType(), price=IntegerType())
    with pytest.raises(ConfigurationError) as raised:
        check_sink_schema(schema, is_stream_given=False)
    assert str(raised.value).count("\n  - ") == 4
