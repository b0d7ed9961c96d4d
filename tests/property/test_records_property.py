"""Rows survive every way into record batches and out of them."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    RowsBuilder,
    accept_batch,
    decode_batch,
    decode_envelope,
    encode_envelope,
    encode_rows,
    peek_batch,
    split_envelopes,
    write_base_offset,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIMES = st.integers(-(10**15), 10**16).map(lambda us: EPOCH + dt.timedelta(microseconds=us))
RECORDS = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=20),
        "value": st.none() | st.binary(max_size=200),
        "headers": st.none() | st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=9))),
        "timestamp": st.none() | TIMES,
    }
)
LISTS = st.lists(RECORDS, min_size=1, max_size=30)
COMPRESSIONS = st.sampled_from(["none", "lz4", "zstd"])


def rows(values):
    return pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA)


@settings(deadline=None)
@given(LISTS, COMPRESSIONS, st.integers(0, 2**31 - 1), st.integers(0, 2**62))
def test_rows_round_trip(values, compression, stream_id, base_offset):
    encoded = encode_rows(
        rows(values), stream_id=stream_id, timestamp_ms=-5, compression=compression
    )
    buffer = bytearray(encoded)
    write_base_offset(buffer, base_offset)
    envelope = decode_envelope(buffer)
    assert envelope == peek_batch(buffer)
    assert (envelope.stream_id, envelope.base_offset) == (stream_id, base_offset)
    assert (envelope.record_count, envelope.base_timestamp_ms) == (len(values), -5)
    assert decode_batch(envelope).to_pylist() == values


@settings(deadline=None)
@given(LISTS, COMPRESSIONS, st.integers(1, limits.BATCH_RECORDS_MAX))
def test_servers_store_what_is_encoded_and_no_other_count_of_it(values, compression, count):
    encoded = encode_rows(rows(values), stream_id=1, timestamp_ms=0, compression=compression)
    envelope = accept_batch(encoded)
    assert envelope.record_count == len(values)
    other = encode_envelope(
        [envelope.body], stream_id=1, record_count=count, base_timestamp_ms=0, encoding="rows"
    )
    if count == len(values):
        assert other == encoded
    else:
        with pytest.raises(RecordBatchError, match=f"{len(values)} rows .* declares {count} rec"):
            accept_batch(other)


@settings(deadline=None)
@given(st.lists(LISTS, max_size=5), COMPRESSIONS)
def test_batches_back_to_back(batches, compression):
    payload = b"".join(
        encode_rows(rows(values), stream_id=1, timestamp_ms=0, compression=compression)
        for values in batches
    )
    decoded = [decode_batch(envelope).to_pylist() for envelope in split_envelopes(payload)]
    assert decoded == batches


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(RECORDS, max_size=30), st.integers(0, 5), st.integers(0, 30))),
    st.integers(1, 3000),
    COMPRESSIONS,
)
def test_the_builder_keeps_every_row_in_order(adds, target_bytes, compression):
    builder = RowsBuilder(3, target_bytes=target_bytes, compression=compression)
    expected, full = [], []
    for values, start, length in adds:
        expected += values[start : start + length]
        full += builder.add(rows(values).slice(start, length), timestamp_ms=1)
        assert builder.waiting_bytes < target_bytes
    full += builder.flush()
    decoded = [decode_batch(decode_envelope(data)) for data in full]
    assert [row for batch in decoded for row in batch.to_pylist()] == expected
    assert all(batch.num_rows == 1 or batch.nbytes <= target_bytes * 1.5 for batch in decoded)


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_refused(data, is_batch):
    body = b"\x22" + bytes(8) + data if is_batch else data
    try:
        envelopes = list(split_envelopes(body))
    except RecordBatchError:
        return
    assert sum(envelope.length_bytes for envelope in envelopes) == len(body)


@settings(deadline=None)
@given(LISTS, COMPRESSIONS, st.data())
def test_flipped_bits_are_refused_or_keep_the_count(values, compression, data):
    encoded = bytearray(
        encode_rows(rows(values), stream_id=1, timestamp_ms=0, compression=compression)
    )
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    try:
        batch = decode_batch(decode_envelope(encoded))
    except RecordBatchError:
        return
    assert batch.num_rows == len(values)
