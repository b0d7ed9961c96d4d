"""Lines become records and records become lines."""

import os
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.cli import produce
from sbp_core.cli.consume import read_records
from sbp_core.cli.produce import read_lines, rows_of_lines
from sbp_core.client import FetchOutcome, ReceivedBatches
from sbp_core.errors import DeadlineExceededError, RecordBatchError, SbpError
from sbp_core.records import ROWS_SCHEMA, encode_rows
from sbp_core.records.stream_decoder import describe_rows


def lines_of(data: bytes, read_bytes: int = 65_536) -> list[bytes]:
    """The lines that read_lines returns from a pipe that carries `data`."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return [line for lines in read_lines(reader, read_bytes) for line in lines]
    finally:
        os.close(reader)
        thread.join()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\n\xff\x00\n", [b"a\r", b"\xff\x00"]),
    ],
)
def test_lines_are_bytes_up_to_each_newline(data, lines):
    assert lines_of(data) == lines


@given(st.binary(max_size=60), st.integers(1, 8))
def test_lines_do_not_depend_on_how_they_arrive(data, read_bytes):
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines_of(data, read_bytes) == expected


@pytest.mark.timeout(20)
def test_lines_that_keep_coming_do_not_hold_up_the_first_one(monkeypatch):
    """The second line comes before the first has waited long enough, and starts no new wait."""
    now = 0.0
    monkeypatch.setattr(produce, "_LINGER_SECONDS", 3600)
    monkeypatch.setattr(produce.time, "monotonic", lambda: now)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as file, os.fdopen(reader, "rb"):
        arriving = read_lines(reader)
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
        arriving = read_lines(reader)
        assert next(arriving) == [b"a"]
        assert next(arriving) == []
        os.write(writer, b"c\n")
        assert next(arriving) == [b"bc"]
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_too_long_for_a_record_is_refused_with_its_place(end):
    with pytest.raises(
        RecordBatchError, match="lines from 2 on has at least 8388609 bytes; at most"
    ):
        lines_of(b"first\n" + b"x" * (limits.RECORD_BYTES_MAX + 1) + end, read_bytes=limits.MIB)


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


class ScriptedClient:
    """Answers fetches with prepared payloads, and remembers what was asked."""

    def __init__(self, *answers: bytes | SbpError):
        self.answers = list(answers)
        self.asked = []

    def fetch(self, items, *, max_wait_ms):
        (item,) = items
        self.asked.append((item.fetch_offset, item.end_offset))
        answer = self.answers.pop(0)
        error = answer if isinstance(answer, SbpError) else None
        batches = ReceivedBatches(memoryview(b"" if error else answer), 0)
        yield FetchOutcome(0, item.stream_id, batches, error)


def batch(base_offset: int, count: int) -> bytes:
    records = [(None, b"%d" % (base_offset + index), None, 0) for index in range(count)]
    return encode_rows(rows_of(*records), stream_id=1, timestamp_ms=0, base_offset=base_offset)


def values(rows) -> list[tuple[int, list[int]]]:
    return [
        (each.base_offset, [int(v) for v in each.rows.column("value").to_pylist()]) for each in rows
    ]


def test_rows_are_cut_to_what_was_asked_for():
    client = ScriptedClient(batch(0, 4) + batch(4, 2), batch(6, 4))
    assert values(read_records(client, 1, 3, 8)) == [(3, [3]), (4, [4, 5]), (6, [6, 7])]
    assert client.asked == [(3, 8), (6, 8)]


def test_nothing_is_asked_when_nothing_is_wanted():
    assert values(read_records(ScriptedClient(), 1, 5, 5)) == []


def test_following_goes_on_after_silence():
    client = ScriptedClient(b"", batch(0, 1), b"", batch(1, 1), SbpError("enough"))
    rows = read_records(client, 1, 0, None)
    assert values([next(rows), next(rows)]) == [(0, [0]), (1, [1])]
    with pytest.raises(SbpError, match="enough"):
        next(rows)


@pytest.mark.parametrize("answer", [batch(1, 1), batch(0, 1)[:-1], b"x"])
def test_gaps_and_damage_are_errors(answer):
    with pytest.raises(RecordBatchError):
        list(read_records(ScriptedClient(answer), 1, 0, 2))


def test_records_before_the_offset_are_no_answer():
    with pytest.raises(RecordBatchError, match="expected offset 3, found records 0 to 1"):
        list(read_records(ScriptedClient(batch(0, 2)), 1, 3, 5))


def test_silence_before_the_tail_is_an_error():
    with pytest.raises(DeadlineExceededError, match="offset 2"):
        list(read_records(ScriptedClient(batch(0, 2), b""), 1, 0, 4))
