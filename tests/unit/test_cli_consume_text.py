"""Records as text: what Arrow writes for all rows together is what is written for each alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.app.record import Batch
from sbp_core.cli.consume.rendering import json_lines, json_texts, value_lines
from sbp_core.cli.consume.selected_rows import Rows, with_key
from sbp_core.cli.output import to_json
from sbp_core.errors import ConfigurationError
from sbp_core.records import ROWS_SCHEMA
from sbp_core.records.json_values import describe_columns, describe_values
from sbp_core.records.stream_decoder import describe_rows

US = pa.timestamp("us", tz="UTC")
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.sampled_from('ab"\\\n\t\r\u00fc\u20ac') | st.characters(codec="utf-8"))
BYTES = TEXTS.map(str.encode) | st.binary(max_size=9)
NO_TIMES = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
RECORDS = st.lists(
    st.tuples(st.none() | BYTES, st.none() | BYTES, st.none() | HEADERS, st.none() | INT64),
    min_size=1,
    max_size=5,
)


def rows_of(records: list[tuple], first: int = 7) -> Rows:
    """Records of (key, value, headers, microseconds) of stream "s", cut out of more."""
    columns = [
        pa.array([column[0], *column], pa.int64() if name == "timestamp" else field.type)
        .cast(field.type)
        .slice(1)
        for (name, field), column in zip(
            zip(ROWS_SCHEMA.names, ROWS_SCHEMA, strict=True),
            zip(*records, strict=True),
            strict=True,
        )
    ]
    times = pa.array([5_000_000] * len(records), pa.int64()).cast(US)
    return Rows.of(
        Batch("s", first, pa.record_batch(columns, schema=ROWS_SCHEMA), times, is_typed=False)
    )


def typed(**columns: pa.Array) -> Rows:
    rows = pa.record_batch(columns)
    times = pa.array([0] * len(rows), pa.int64()).cast(US)
    return Rows.of(Batch("s", 0, rows, times, is_typed=True))


@given(
    st.one_of(
        st.lists(st.none() | TEXTS).map(lambda values: pa.array(values, pa.string())),
        st.lists(st.none() | BYTES).map(lambda values: pa.array(values, pa.binary())),
        st.lists(st.none() | INT64).map(lambda values: pa.array(values, pa.int64())),
        st.lists(st.none() | st.booleans()).map(lambda values: pa.array(values, pa.bool_())),
        st.lists(st.none() | st.floats()).map(lambda values: pa.array(values, pa.float64())),
        st.lists(st.none() | INT64).map(lambda values: pa.array(values, pa.int64()).cast(US)),
        st.lists(st.none() | st.integers(-(2**57), 2**57)).map(
            lambda values: pa.array(values, pa.int64()).cast(pa.timestamp("us"))
        ),
        st.lists(st.none() | st.lists(TEXTS)).map(
            lambda values: pa.array(values, pa.list_(pa.string()))
        ),
    )
)
def test_columns_are_the_json_of_each_value(column):
    expected = [to_json(value) for value in describe_values(column)]
    assert json_texts(column).to_pylist() == expected


@pytest.mark.parametrize("moment", NO_TIMES)
def test_the_first_and_the_last_time_of_iso_8601(moment):
    column = pa.array([moment], US)
    assert json_texts(column).to_pylist() == [f'"{moment.isoformat(timespec="microseconds")}"']


@given(RECORDS)
def test_lines_of_json_are_the_objects_of_the_records(records):
    rows = rows_of(records)
    expected = [to_json(each) for each in describe_rows("s", 7, rows.columns)]
    assert bytes(json_lines(None)(rows)).decode().split("\n") == [*expected, ""]


@given(st.lists(st.tuples(st.none() | TEXTS, st.none() | INT64), min_size=1))
def test_lines_of_json_are_the_columns_of_a_typed_stream(pairs):
    texts, numbers = zip(*pairs, strict=True)
    rows = typed(**{'a"': pa.array(texts, pa.string()), "b": pa.array(numbers, pa.int64())})
    lines = bytes(json_lines(None)(rows)).decode().splitlines()
    assert [json.loads(line)["columns"] for line in lines] == list(describe_columns(rows.columns))
    values = bytes(value_lines(is_terminal=False)(rows)).decode().splitlines()
    assert [json.loads(line) for line in values] == list(describe_columns(rows.columns))


def test_values_are_safe_on_a_terminal():
    rows = rows_of([(None, b"\x1b[2J", None, 0), (None, b"\xff\n", None, 0)])
    assert bytes(value_lines(is_terminal=True)(rows)) == b"\\x1b[2J\n\\xff\\n\n"
    assert bytes(value_lines(is_terminal=False)(rows)) == b"\x1b[2J\n\xff\n\n"


def test_records_are_found_by_key():
    rows = rows_of(
        [(b"k", b"one", None, 0), (b"K", b"two\xff", None, 0), (None, None, None, 0)], first=0
    )
    assert with_key(rows, b"k").offsets.to_pylist() == [0]
    assert with_key(rows, b"two").offsets.to_pylist() == []
    with pytest.raises(ConfigurationError, match="has columns and no keys"):
        with_key(typed(a=pa.array(["x"])), b"k")
