"""Lines become records and records become lines."""

import os
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.cli.produce.inputs import Opened, read_lines, rows_of_lines
from sbp_core.errors import RecordBatchError
from sbp_core.records import ROWS_SCHEMA
from sbp_core.records.stream_decoder import describe_rows


def opened(descriptor: int) -> Opened:
    return Opened(descriptor, "a pipe")


def lines_of(data: bytes, read_bytes: int = 65_536) -> list[bytes]:
    """The lines that read_lines returns from a pipe that carries `data`."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return [line for each in read_lines(opened(reader), read_bytes) for line in each]
    finally:
        os.close(reader)
        thread.join()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\n\xff\x00\n", [b"a\r", b"\xff\x00"]),
    ],
)
def test_lines_are_bytes_up_to_each_newline(data, expected):
    assert lines_of(data) == expected


@given(st.binary(max_size=60), st.integers(1, 8))
def test_lines_do_not_depend_on_how_they_arrive(data, read_bytes):
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines_of(data, read_bytes) == expected


@pytest.mark.timeout(20)
def test_lines_that_keep_coming_do_not_hold_up_the_first_one():
    """The second line comes before the first has waited long enough, and starts no new wait."""
    now = 0.0
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as file, os.fdopen(reader, "rb"):
        arriving = read_lines(opened(reader), linger_seconds=3600, clock=lambda: now)
        file.write(b"a\n")
        assert next(arriving) == [b"a"]
        now += 3599
        file.write(b"b\n")
        assert next(arriving) == [b"b"]
        now += 1
        assert next(arriving) == []
        file.write(b"c\n")
        assert next(arriving) == [b"c"]


def test_input_that_pauses_is_reported():
    reader, writer = os.pipe()
    try:
        os.write(writer, b"a\nb")
        arriving = read_lines(opened(reader))
        assert next(arriving) == [b"a"]
        assert next(arriving) == []
        os.write(writer, b"c\n")
        assert next(arriving) == [b"bc"]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_line_that_grows_too_long_is_refused_by_its_number_after_those_before_it():
    found = []
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file, os.fdopen(reader, "rb"):
        file.write(b"first\n" + b"x" * 11)
        file.flush()
        with pytest.raises(RecordBatchError, match="line 2 has at least 11 bytes; at most 10 "):
            found.extend(read_lines(opened(reader), line_bytes_max=10))
    assert found == [[b"first"]]


def test_rows_without_a_separator_have_no_keys():
    rows = rows_of_lines([b"a:b", b""], None, timestamp_us=5)
    assert rows.schema == ROWS_SCHEMA
    assert rows.column("key").to_pylist() == [None, None]
    assert rows.column("value").to_pylist() == [b"a:b", b""]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [5, 5]


def test_the_key_stands_before_the_first_separator():
    rows = rows_of_lines([b"k::v::w", b"::v", b"none", b""], b"::", timestamp_us=0)
    assert rows.column("key").to_pylist() == [b"k", b"", None, None]
    assert rows.column("value").to_pylist() == [b"v::w", b"v", b"none", b""]


def rows_of(*records: tuple) -> pa.RecordBatch:
    """Rows of (key, value, headers, microseconds)."""
    columns = [
        pa.array(column, pa.int64() if field.name == "timestamp" else field.type).cast(field.type)
        for field, column in zip(ROWS_SCHEMA, zip(*records, strict=True), strict=True)
    ]
    return pa.record_batch(columns, schema=ROWS_SCHEMA)


def test_json_objects():
    rows = rows_of(
        ("\u00e4".encode(), b"\xff", [("h", b"1"), ("h", None)], 1_500_000),
        (None, None, None, None),
        (b"", b"", [], 2**62),
    )
    first, second, third = describe_rows("orders", 7, rows)
    assert first == {
        "stream": "orders",
        "offset": 7,
        "timestamp": "1970-01-01T00:00:01.500000+00:00",
        "key": "\u00e4",
        "value": {"base64": "/w=="},
        "headers": [["h", "1"], ["h", None]],
    }
    assert second == {
        "stream": "orders",
        "offset": 8,
        **dict.fromkeys(["timestamp", "key", "value", "headers"]),
    }
    assert (third["offset"], third["timestamp"], third["headers"]) == (9, 2**62, [])
