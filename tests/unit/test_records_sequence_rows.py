"""Rows written as record sequences: byte for byte, as the Java client reads them, and back."""

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    RowsBuilder,
    accept_batch,
    decode_batch,
    decode_envelope,
    encode_rows,
    encode_sequences,
    find_unfit,
    maybe_encoding,
    split_envelopes,
)
from sbp_core.records.encodings import sequence
from sbp_core.wire._generated import KeyValue
from tests.support.data.batches import sequence_batch
from tests.support.dialect import HEADER_NAMES, JavaRecord, read_batches

NOW_MS = 1_682_000_000_000
DELTA_MS_MAX = 2**31 - 1


def rows(*given):
    """Rows of these dicts; the timestamp in microseconds."""
    columns = [pa.array([row.get(each.name) for row in given], each.type) for each in ROWS_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def encode(*given):
    return encode_sequences(rows(*given), stream_id=7, timestamp_ms=NOW_MS)


def read_back(batches):
    """Rows of the batches, as dicts, the timestamp in microseconds."""
    read = [decode_batch(each) for each in split_envelopes(b"".join(batches))]
    table = pa.Table.from_batches(read, ROWS_SCHEMA)
    times = table.column("timestamp").cast(pa.int64())
    return table.set_column(3, "timestamp", times).to_pylist()


def java(batches):
    """Records as the Java client reads them from batches back to back."""
    found, rest = read_batches(b"".join(batches), len(batches))
    assert rest == b""
    assert {stream_id for stream_id, _ in found} == {7}
    return [records for _, records in found]


# The bytes


def test_two_records_byte_for_byte():
    """The lengths around are big-endian, the tables FlatBuffers: root, vtable, fields, the rest."""
    (batch,) = encode(
        {"key": b"k", "value": b"v1", "headers": [("n", b"x")], "timestamp": NOW_MS * 1000},
        {"value": b"", "timestamp": (NOW_MS - 1) * 1000},
    )
    expected = (
        # Magic, base offset, length of the metadata.
        "22 0000000000000000 0000002c"
        # Root at 20, behind its vtable; id 7, base timestamp, last offset delta 1, one less than n.
        "14000000 0e001800 04000000 00001400 0c000000"
        "10000000 0700000000000000 0034039f87010000 01000000"
        # Lengths of metadata and body.
        "00000070 00000002"
        # Root at 16: no deltas, headers at 28, properties at 76.
        "10000000 0c000c00 00000000 04000800 0c000000 08000000 34000000"
        # One header at 44, behind the vtable of pairs: Keys = k.
        "01000000 0c000000 08000c00 04000800 08000000 08000000 10000000"
        "04000000 4b657973 00000000 01000000 6b000000"
        # One property at 84: n = x.
        "01000000 04000000 30000000 08000000 0c000000 01000000 6e000000 01000000 78000000"
        # The body.
        "7631"
        # The second record: offset delta 1, timestamp delta -1, and nothing else.
        "00000018 00000000 0c000000 08000c00 04000800 08000000 01000000 ffffffff"
    )
    assert batch.hex() == expected.replace(" ", "")


def test_a_single_record_has_no_deltas():
    (batch,) = encode({"value": b"hi", "timestamp": -1500})
    expected = (
        "22 0000000000000000 00000028"
        "14000000 0e001400 04000000 00000000 0c000000"
        "10000000 0700000000000000 feffffffffffffff"
        "0000000c 00000002 08000000 04000400 04000000 6869"
    )
    assert batch.hex() == expected.replace(" ", "")


# Back into rows, and as the Java client reads them

TEXTS = st.text(max_size=9).map(str.encode)
NAMES = st.one_of(st.sampled_from(["Tag", "RecordId", "CreatedAt", "Keys", "tag", ""]), st.text())
ROWS = st.fixed_dictionaries(
    {
        "key": st.none() | TEXTS,
        "value": st.binary(max_size=20) | st.sampled_from([b'"', b'""']),
        "headers": st.none() | st.lists(st.tuples(NAMES, TEXTS), max_size=5),
        "timestamp": st.none()
        | st.integers(-(2**63), 2**63 - 1)
        | st.integers(NOW_MS * 1000 - 10**13, NOW_MS * 1000 + 10**13),
    }
)
HEADERS = HEADER_NAMES - {"Keys"}
EARLIEST_US = -(2**63 // 1000) * 1000


def as_read(row):
    """A row as it is read back: headers before properties, the time in whole milliseconds."""
    pairs = row["headers"] or []
    ordered = sorted(pairs, key=lambda pair: pair[0] not in HEADERS)
    time_us = row["timestamp"]
    time_us = NOW_MS * 1000 if time_us is None else max(time_us // 1000 * 1000, EARLIEST_US)
    return row | {"headers": ordered, "timestamp": time_us}


def as_java_reads(row, offset):
    """The same for the Java client, which keeps the last of headers with one name."""
    pairs = [
        (name, None if value is None else value.decode()) for name, value in row["headers"] or []
    ]
    headers = {"Keys": row["key"].decode()} if row["key"] is not None else {}
    return JavaRecord(
        offset,
        as_read(row)["timestamp"] // 1000,
        headers | {name: value for name, value in pairs if name in HEADERS},
        {name: value for name, value in pairs if name not in HEADERS},
        row["value"],
    )


@given(st.lists(ROWS, min_size=1, max_size=12))
@example([{"key": b"", "value": b"", "headers": [("", b""), ("", b"x")], "timestamp": -(2**63)}])
def test_written_rows_are_read(given_rows):
    batches = encode(*given_rows)
    assert read_back(batches) == [as_read(row) for row in given_rows]
    found = [record for records in java(batches) for record in records]
    offsets = [at for records in java(batches) for at in range(len(records))]
    assert found == [as_java_reads(*each) for each in zip(given_rows, offsets, strict=True)]
    for batch in batches:
        envelope = accept_batch(batch)
        assert maybe_encoding(batch) is envelope.encoding is None
        assert envelope.declared_count == envelope.record_count - 1


def test_records_of_another_client_are_returned_unchanged():
    """Also the order of headers and properties, and names that are there twice."""
    headers = [KeyValue("Tag", "t"), KeyValue("Keys", "k"), KeyValue("Keys", "l")]
    properties = [KeyValue("n", "1"), KeyValue("m", ""), KeyValue("n", "2")]
    foreign = sequence_batch([b"v"], headers=tuple(headers), properties=tuple(properties))
    (row,) = decode_batch(decode_envelope(foreign)).to_pylist()
    assert row["key"] == b"k"
    pairs = [("Tag", b"t"), ("Keys", b"l"), ("n", b"1"), ("m", b""), ("n", b"2")]
    assert row["headers"] == pairs
    again = encode(row | {"timestamp": None})
    assert read_back(again)[0]["headers"] == pairs
    ((record,),) = java(again)
    assert record.headers == {"Tag": "t", "Keys": "k"}
    assert record.properties == {"Keys": "l", "n": "2", "m": ""}


def test_a_slice_is_written_without_the_rest():
    whole = rows(*({"key": b"%d" % at, "value": b"v", "headers": [("n", b"x")]} for at in range(9)))
    part = encode_sequences(whole.slice(3, 4), stream_id=7, timestamp_ms=NOW_MS)
    assert [row["key"] for row in read_back(part)] == [b"3", b"4", b"5", b"6"]


# More than one batch


@pytest.mark.parametrize(
    ("delta_ms", "batch_count"),
    [
        (DELTA_MS_MAX, 1),
        (DELTA_MS_MAX + 1, 2),
        (-DELTA_MS_MAX - 1, 1),
        (-DELTA_MS_MAX - 2, 2),
    ],
)
def test_records_too_far_apart_in_time_are_in_two_batches(delta_ms, batch_count):
    times_us = [NOW_MS * 1000, (NOW_MS + delta_ms) * 1000]
    batches = encode(*({"value": b"v", "timestamp": each} for each in times_us))
    assert len(batches) == batch_count
    assert [row["timestamp"] for row in read_back(batches)] == times_us
    assert [record.timestamp_ms * 1000 for each in java(batches) for record in each] == times_us


def test_records_too_many_for_one_batch_are_in_two(monkeypatch):
    monkeypatch.setattr(limits, "SEQUENCE_RECORDS_MAX", 3)
    batches = encode(*({"value": b"%d" % at} for at in range(7)))
    assert [len(records) for records in java(batches)] == [3, 3, 1]
    assert [row["value"] for row in read_back(batches)] == [b"%d" % at for at in range(7)]


def test_records_too_large_together_are_in_several_batches():
    values = [bytes([at]) * (limits.BATCH_BYTES_MAX * 2 // 5) for at in range(5)]
    batches = encode(*({"value": value} for value in values))
    assert [len(records) for records in java(batches)] == [2, 2, 1]
    assert max(map(len, batches)) <= limits.BATCH_BYTES_MAX
    assert [row["value"] for row in read_back(batches)] == values


def test_many_headers_are_counted_when_a_batch_is_filled():
    """Headers take more bytes than in rows, so the same records may not fit."""
    row = {"value": b"", "headers": [("", b"")] * 800}
    batches = encode(*[row] * 300)
    assert len(batches) > 1
    assert max(map(len, batches)) <= limits.BATCH_BYTES_MAX
    assert len(read_back(batches)) == 300


def test_the_largest_record_fits():
    key = b"k" * 1_000
    value = bytes(limits.RECORD_BYTES_MAX - 2_000)
    (batch,) = encode({"key": key, "value": value})
    assert len(batch) <= limits.BATCH_BYTES_MAX
    assert read_back([batch])[0]["value"] == value


def test_no_rows_make_no_batch():
    assert encode() == []


# Values that a record sequence cannot hold.

NO_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"value": None}, r"without a value \(null\).*coalesce"),
        ({"key": NO_TEXT, "value": b""}, "a key that is not UTF-8.*base64"),
        ({"value": b"", "headers": [("a", b"x"), ("b", NO_TEXT)]}, "header with a value that is"),
        ({"value": b"", "headers": [("a", b"x"), ("b", None)]}, r"header with no value \(null\)"),
        ({"key": bytes(70_000), "value": b""}, "key and headers take more than the 65536 bytes"),
        ({"value": b"", "headers": [("a", b"")] * 3_000}, "key and headers take more"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row, reason):
    given_rows = [{"value": b"", "headers": [("b", b"x")]}, row, {"value": b"", "key": b"k"}]
    with pytest.raises(RecordBatchError, match=rf"row 1 of 3: .*{reason}"):
        encode(*given_rows)
    for first, expected in ((0, [1]), (1, [0]), (2, [])):
        found = find_unfit(rows(*given_rows).slice(first))
        assert [index for indexes, _ in found for index in indexes.tolist()] == expected
    builder = RowsBuilder(7, is_sequence=True)
    with pytest.raises(RecordBatchError, match=reason):
        builder.add(rows(row), timestamp_ms=NOW_MS)
    assert builder.waiting_count == 0


@settings(max_examples=30)
@given(st.integers(0, 300), st.integers(0, 60), st.integers(0, 5_000))
@example(910, 0, 0)
@example(0, 0, 8_000)
def test_a_safe_size_always_fits(header_count, name_bytes, key_bytes):
    """The quick look may only pass what can be written and read."""
    headers = [("n" * name_bytes, b"")] * header_count
    given_rows = rows({"key": bytes(key_bytes), "value": b"", "headers": headers})
    size = int(sequence.texts_bytes(given_rows)[0])
    (batch,) = encode_sequences(given_rows, stream_id=7, timestamp_ms=0)
    assert len(batch) <= sequence._around_values(given_rows)[0] + 128
    if size <= sequence.TEXTS_BYTES_SAFE:
        assert len(batch) < limits.BATCH_METADATA_BYTES_MAX
    assert len(read_back([batch])[0]["headers"]) == header_count


# The builder


def test_a_builder_makes_sequences_of_about_its_target():
    builder = RowsBuilder(7, target_bytes=10_000, is_sequence=True)
    given_rows = [{"value": b"%04d" % at * 10, "timestamp": at * 1000} for at in range(2_000)]
    batches = builder.add(rows(*given_rows), timestamp_ms=NOW_MS) + builder.flush()
    assert len(batches) > 5
    assert [row["value"] for row in read_back(batches)] == [row["value"] for row in given_rows]
    assert builder.waiting_count == 0


def test_a_builder_gives_rows_without_a_time_that_of_its_first():
    builder = RowsBuilder(7, is_sequence=True)
    assert builder.add(rows({"value": b"a"}), timestamp_ms=5) == []
    assert builder.add(rows({"value": b"b"}), timestamp_ms=6) == []
    assert [row["timestamp"] for row in read_back(builder.flush())] == [5_000, 5_000]


def test_the_encoding_of_a_batch_is_read_from_its_metadata():
    row = rows({"value": b"v"})
    assert maybe_encoding(encode_rows(row, stream_id=7, timestamp_ms=0)) == "rows"
    with pytest.raises(RecordBatchError, match="magic"):
        maybe_encoding(bytes(20))
