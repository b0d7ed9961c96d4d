"""Values of JSON become rows, and rows that were described become the same rows again."""

import json
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.json_lines import parse_json_lines
from sbp_core.records.json_parsing import RowFault, parse_plain_rows, parse_typed_rows
from sbp_core.records.json_values import describe_columns
from sbp_core.records.stream_decoder import describe_rows

UTC = pa.timestamp("us", tz="UTC")
POINT = pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("z", pa.float32())])
VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    UTC: st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("us"): st.integers(-(2**63), 2**63 - 1),
    pa.duration("us"): st.integers(-(2**63), 2**63 - 1),
    pa.time64("ns"): st.integers(0, 86_400 * 10**9 - 1),
    pa.list_(pa.field("element", pa.date32())): st.lists(st.none() | st.integers(0, 99)),
    POINT: st.fixed_dictionaries({"x": st.integers(0, 9), "z": st.none() | st.floats(width=32)}),
    pa.map_(pa.string(), pa.binary()): st.dictionaries(st.text(), st.binary()).map(
        lambda each: list(each.items())
    ),
    pa.map_(pa.int32(), pa.bool_()): st.lists(st.tuples(st.integers(0, 9), st.booleans())),
}


@st.composite
def typed_rows(draw):
    """Return rows of some columns, each of one type that streams have."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    schema = StreamSchema.of(
        pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])
    )
    count = draw(st.integers(0, 5))
    columns = [
        pa.array(
            draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), field.type
        )
        for kind, field in zip(kinds, schema.arrow, strict=True)
    ]
    return schema, pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def sent(values):
    """Return objects as they are after a way through JSON, written and read by other programs."""
    lines = [json.dumps(each, allow_nan=False).encode() for each in values]
    return [msgspec.json.decode(each) for each in lines]


@given(typed_rows())
def test_typed_rows_come_back_equal(given_rows):
    schema, rows = given_rows
    found = parse_typed_rows(sent(describe_columns(rows)), schema)
    # Described again, since a NaN is not equal to itself.
    assert list(describe_columns(found)) == list(describe_columns(rows))
    assert found.schema.equals(rows.schema)


PLAIN = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(),
        "value": st.none() | st.binary(),
        "headers": st.none() | st.lists(st.tuples(st.text(), st.none() | st.binary())),
        "timestamp": st.none() | st.datetimes(),
    }
)


@given(st.lists(PLAIN, max_size=5), st.none() | st.integers(0, 2**60))
def test_plain_rows_come_back_equal(records, default_timestamp_us):
    rows = pa.RecordBatch.from_pylist(records, schema=ROWS_SCHEMA)
    described = sent(describe_rows("orders", 7, rows))
    assert parse_plain_rows(described, default_timestamp_us=default_timestamp_us).equals(rows)


def test_members_that_are_left_out_are_null_and_the_time_is_the_default():
    rows = parse_plain_rows([{}, {"timestamp": None}], default_timestamp_us=5)
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [5, None]
    assert rows.column("key").null_count == rows.column("value").null_count == 2


NO_TIME = {"default_timestamp_us": None}
EXPECTED_TIME = "timestamp: expected a time such as 2025-01-31T09:30:00Z"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (5, "expected an object, got 5"),
        ({"val": "a"}, "unknown member 'val'; a record has headers, key, timestamp, value"),
        ({"value": 5}, "value: expected text or"),
        ({"value": {"a": 1}}, "value: expected text or"),
        ({"value": {"base64": "?"}}, "value: expected base64, got '?'"),
        ({"value": {"base64": 1}}, "value: expected base64 in a text"),
        ({"key": "\ud800"}, "key: expected text without lone surrogates"),
        (
            {"headers": {"a": "b"}},
            'headers: expected a list of pairs, such as [["name", "value"]], got an object',
        ),
        ({"headers": [["a"]]}, "headers: expected a pair"),
        ({"headers": [["a", 1]]}, "headers: expected text or"),
        ({"timestamp": "noon"}, "timestamp: expected a time such as"),
        ({"timestamp": True}, f"{EXPECTED_TIME}, got true"),
        ({"timestamp": 1_700_000_000_000}, f"{EXPECTED_TIME}, got 1700000000000"),
        ({"timestamp": 0}, f"{EXPECTED_TIME}, got 0"),
        (
            {"timestamp": "2025-01-31T09:30:00.000000001Z"},
            f"{EXPECTED_TIME}, of microseconds at most, got '2025-01-31T09:30:00.000000001Z'",
        ),
    ],
)
def test_the_first_record_that_is_wrong_is_named(record, reason):
    with pytest.raises(RowFault) as raised:
        parse_plain_rows([{}, record, 7], default_timestamp_us=None)
    assert raised.value.index == 1
    assert raised.value.reason.startswith(reason)


def one(kind, *, nullable=True):
    return StreamSchema.of(pa.schema([pa.field("c", kind, nullable=nullable)]))


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pa.int8(), 128, "c: expected an integer (int8) from -128 to 127, got 128"),
        (pa.int64(), 1.5, "c: expected an integer"),
        (pa.int64(), 2.0**53, "c: expected an integer"),  # or 2**53 + 1 in the text
        (pa.int8(), 128.0, "c: expected an integer (int8) from -128 to 127, got 128.0"),
        (pa.int64(), True, "c: expected an integer"),
        (pa.int64(), 2**200, "c: expected an integer (int64) from -9223372036854775808"),
        (pa.float64(), 10**400, "c: expected a number that a double has, got an integer of"),
        (pa.float64(), "1", "c: expected a number,"),
        (pa.float32(), 1e300, "c: expected a number that a float32 has"),
        (pa.bool_(), 1, "c: expected true or false"),
        (pa.string(), 1, "c: expected text, got 1"),
        (pa.decimal128(4, 2), "1.234", "c: expected a decimal(4, 2)"),
        (pa.decimal128(4, 2), "100", "c: expected a decimal(4, 2)"),
        (pa.decimal128(4, 2), "NaN", "c: expected a finite number"),
        (pa.decimal128(4, 2), 1.5, "c: expected a decimal number in a text"),
        (pa.timestamp("us"), "2025-01-31T09:30:00Z", "c: expected a time without a zone"),
        (pa.timestamp("us"), "2025-01-31T09:30:00.1234567", "c: expected a time without a zone"),
        (UTC, "2025-01-31T09:30:00,123456001Z", "c: expected a time such as"),
        (pa.date32(), "2025-02-30", "c: expected a date"),
        (pa.time64("ns"), "24:00:00", "c: expected a time of day"),
        (pa.list_(pa.int8()), [1, "a"], "c: 1: expected an integer"),
        (pa.list_(pa.int8()), {}, "c: expected a list"),
        (POINT, {"x": 1, "y": 1}, "c: unknown column 'y'; there are x, z"),
        (POINT, {"z": 1.0}, "c: column x is required, and is missing"),
        (POINT, {"x": None}, "c: x: expected an integer (int8) from -128 to 127, got null"),
        (pa.map_(pa.int8(), pa.int8()), {"1": 1}, "c: expected a list"),
        (pa.map_(pa.int8(), pa.int8()), [[1]], "c: expected a pair [key, value]"),
        (pa.map_(pa.string(), pa.int8()), {"a": "b"}, "c: value: expected an integer"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(kind, value, reason):
    with pytest.raises(RowFault) as raised:
        parse_typed_rows([{"c": value}], one(kind))
    assert raised.value.reason.startswith(reason)


def test_a_number_without_a_fraction_is_an_integer():
    for kind in (pa.int8(), pa.date32(), UTC, pa.duration("us")):
        rows = parse_typed_rows(sent([{"c": 2.0}]), one(kind))
        assert rows.equals(parse_typed_rows([{"c": 2}], one(kind)))


def test_a_time_may_have_zeros_behind_its_microseconds():
    texts = ("2025-01-31T09:30:00.123456000Z", "2025-01-31T09:30:00.123456Z")
    first, second = parse_plain_rows([{"timestamp": text} for text in texts], **NO_TIME).to_pylist()
    assert first == second


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": "a", "value": "b"}',
        b'{"value": "a", "v\\u0061lue": "b"}',
        b'{"headers": [], "value": {"base64": "", "base64" :"YQ=="}}',
        b'{"columns": {"a": 1, "a": 1}}',
        b'[{"x": "\\":", "x": 1}]',
    ],
)
def test_a_name_that_an_object_has_twice_is_refused(line):
    with pytest.raises(RowFault, match="twice"):
        parse_json_lines([b"{}", line], None, **NO_TIME)


def test_a_text_with_json_in_it_is_no_object():
    text = json.dumps('{"a": 1, "a": 2}')
    (row,) = parse_json_lines([b'{"value": %b}' % text.encode()], None, **NO_TIME).to_pylist()
    assert row["value"] == b'{"a": 1, "a": 2}'


def test_required_columns_have_values():
    for row in ({}, {"c": None}):
        with pytest.raises(RowFault):
            parse_typed_rows([row], one(pa.string(), nullable=False))


def test_columns_may_have_the_place_where_they_were_read_around_them():
    schema = one(pa.decimal128(4, 2))
    rows = parse_typed_rows(
        [{"stream": "s", "offset": 3, "columns": {"c": "1.50"}}, {"c": 2}, {}], schema
    )
    assert rows.column("c").to_pylist() == [Decimal("1.50"), Decimal("2.00"), None]
    with pytest.raises(RowFault, match="unknown column"):
        parse_typed_rows([{"columns": {"c": 1}, "other": 1}], schema)
