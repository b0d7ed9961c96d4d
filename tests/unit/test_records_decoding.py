"""Record batches that follow on one another: small ones are decoded together, no others."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.app.decoding import decode_fetched
from sbp_core.errors import DamagedBatchError, RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    accept_batch,
    decode_batch,
    decode_batches,
    decode_envelope,
    encode_envelope,
    encode_rows,
    encodings,
    split_envelopes,
)
from sbp_core.records.arrow_message import BodyCompression, Outline, encode_metadata
from sbp_core.records.encodings.rows_encoding import RowsEncoding
from sbp_core.records.splitting import ALIKE_MIN
from tests.support.data.batches import sequence_batch

LARGE_BYTES = 40_000
BUFFERS = struct.pack("<6q", 0, 1, 8, 12, 24, 0)
"""The first buffers of a message of two rows without keys, as its metadata has them."""
ENOUGH = {"rows_enough": 100, "bytes_enough": 100_000}


def rows(count, value_bytes=3, first=0):
    values = [b"%0*d" % (value_bytes, first + index) for index in range(count)]
    return pa.RecordBatch.from_pylist(
        [{"key": None, "value": value, "headers": [("name", value)]} for value in values],
        schema=ROWS_SCHEMA,
    )


def batch(batch_rows, base_offset=0, compression="none"):
    return encode_rows(
        batch_rows, stream_id=9, timestamp_ms=1, base_offset=base_offset, compression=compression
    )


def decode(*batches, **enough):
    return list(decode_batches(split_envelopes(b"".join(batches)), **(ENOUGH | enough)))


BATCHES = st.one_of(
    st.builds(
        lambda count, size, compression: batch(rows(count, size), compression=compression),
        st.integers(1, 60),
        st.sampled_from([0, 3, 500, LARGE_BYTES]),
        st.sampled_from(["none", "lz4", "zstd"]),
    ),
    st.integers(1, 5).map(lambda count: sequence_batch([b"%d" % each for each in range(count)])),
)


@settings(deadline=None)
@given(st.lists(st.tuples(BATCHES, st.sampled_from([1, 2, 2 * ALIKE_MIN])), max_size=12))
def test_the_rows_are_those_of_each_batch(runs):
    batches = [batch for batch, count in runs for _ in range(count)]
    expected = [decode_batch(each) for each in split_envelopes(b"".join(batches))]
    found = decode(*batches)
    assert all(each.schema.equals(ROWS_SCHEMA) for each in found)
    joined = pa.Table.from_batches(found, ROWS_SCHEMA).combine_chunks()
    assert joined.equals(pa.Table.from_batches(expected, ROWS_SCHEMA).combine_chunks())


def test_small_batches_are_joined_until_there_are_enough_rows():
    found = decode(*[batch(rows(30))] * 9)
    assert [each.num_rows for each in found] == [120, 120, 30]


def test_small_batches_are_joined_until_there_are_enough_bytes():
    found = decode(*[batch(rows(2, 4_000))] * 6, bytes_enough=60_000)
    assert [each.num_rows for each in found] == [8, 4]


def test_a_large_batch_is_decoded_without_a_copy():
    payload = batch(rows(1)) + batch(rows(1)) + batch(rows(2, LARGE_BYTES)) + batch(rows(1))
    found = list(decode_batches(split_envelopes(payload), **ENOUGH))
    assert [each.num_rows for each in found] == [2, 2, 1]
    start = pa.py_buffer(payload).address
    address = found[1].column("value").buffers()[2].address
    assert start <= address < start + len(payload)


def test_a_batch_that_decodes_to_many_bytes_is_not_joined():
    zeros = pa.RecordBatch.from_pylist([{"value": bytes(10**6)}], schema=ROWS_SCHEMA)
    packed = batch(zeros, compression="zstd")
    assert len(packed) < 1_000
    assert [each.num_rows for each in decode(packed, packed, packed)] == [1, 1, 1]


def test_a_batch_that_decodes_to_more_than_it_declares_is_not_joined():
    sound = batch(rows(2))
    overlapping = sound.replace(BUFFERS, struct.pack("<6q", 0, 1, 8, 12, 0, 120))
    assert overlapping != sound
    expected = decode(sound)[0].to_pylist()
    assert [each.to_pylist() for each in decode(overlapping, overlapping)] == [expected] * 2


def with_offset_outside(encoded):
    """The batch with the end of its last value far behind all values."""
    ends = struct.pack("<iii", 0, 3, 6)
    return encoded.replace(ends, struct.pack("<iii", 0, 3, 2**31 - 1), 1)


def with_name_not_utf8(encoded):
    """The batch with a header whose name is no text."""
    return encoded.replace(b"name", b"\xff\xff\xff\xff", 1)


def with_buffer_outside(encoded):
    """The batch with a buffer of its message behind the end."""
    start = encoded.index(BUFFERS)
    return encoded[:start] + struct.pack("<q", 2**40) + encoded[start + 8 :]


def with_more_nulls_than_rows(encoded):
    """The batch whose keys, which are null, are more than its rows."""
    return encoded.replace(struct.pack("<qq", 2, 2), struct.pack("<qq", 2, 3), 1)


def with_other_rows_than_records(encoded):
    """The batch whose message says that it has other rows."""
    body_start = encoded.index(b"\xff\xff\xff\xff")
    start = encoded.index(struct.pack("<q", 2), body_start)
    return encoded[:start] + struct.pack("<q", 9) + encoded[start + 8 :]


IS_NAMED = "offset 10 of stream 9 is damaged"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (with_offset_outside, IS_NAMED),
        (with_name_not_utf8, IS_NAMED),
        (with_buffer_outside, f"{IS_NAMED}: Arrow buffer of 1 bytes at 1099511627776 lies"),
        (with_more_nulls_than_rows, f"{IS_NAMED}: Arrow message with a column of length 2"),
        (with_other_rows_than_records, f"{IS_NAMED}: Arrow message of 9 rows in a record batch"),
    ],
)
@pytest.mark.parametrize("neighbours", [1, ALIKE_MIN])
def test_the_damaged_one_of_several_small_batches_is_named(damage, named, neighbours):
    sound = batch(rows(2), base_offset=10)
    damaged = damage(sound)
    assert damaged != sound
    with pytest.raises(RecordBatchError, match=named) as alone:
        decode(damaged)
    with pytest.raises(RecordBatchError) as among:
        decode(
            *[batch(rows(2), base_offset=8)] * neighbours,
            damaged,
            *[batch(rows(2), base_offset=12)] * neighbours,
        )
    assert str(among.value) == str(alone.value)


@pytest.mark.parametrize("neighbours", [1, ALIKE_MIN])
def test_a_message_of_other_columns_among_small_batches_is_named(neighbours):
    body = memoryview(rows(2).select(["key", "value"]).serialize())
    about = {"stream_id": 9, "record_count": 2, "base_timestamp_ms": 1, "base_offset": 10}
    other = encode_envelope([body], encoding="rows", **about)
    with pytest.raises(DamagedBatchError, match=IS_NAMED) as alone:
        decode(other)
    with pytest.raises(DamagedBatchError) as among:
        decode(*[batch(rows(2))] * neighbours, other, *[batch(rows(2))] * neighbours)
    assert str(among.value) == str(alone.value)


@pytest.mark.parametrize("compression", [None, BodyCompression(0, 0)])
def test_messages_without_columns_are_named_whatever_is_around_them(compression):
    outline = Outline(1, b"", b"", compression, 0, 0)
    about = {"stream_id": 9, "record_count": 1, "base_timestamp_ms": 1, "base_offset": 10}
    empty = encode_envelope([encode_metadata(outline)], encoding="rows", **about)
    plain = Outline(1, b"", b"", None, 0, 0)
    other = encode_envelope([encode_metadata(plain)], encoding="rows", **about)
    for batches in ([empty, other], [other, empty], [batch(rows(2)), empty]):
        with pytest.raises(DamagedBatchError):
            decode(*batches)


def test_batches_before_a_damaged_one_are_decoded():
    sound = [batch(rows(2), base_offset=2 * at) for at in range(2 * ALIKE_MIN)]
    damaged = with_other_rows_than_records(batch(rows(2), base_offset=99))
    found = decode_batches(split_envelopes(b"".join([*sound, damaged, *sound])), **ENOUGH)
    assert next(found).num_rows == 4 * ALIKE_MIN
    with pytest.raises(DamagedBatchError, match="offset 99"):
        next(found)


def test_a_batch_with_a_time_that_no_record_can_have_is_named():
    late = encode_rows(rows(1), stream_id=9, timestamp_ms=2**62)
    found = decode_fetched("s", list(split_envelopes(late)), 0, None, {})
    with pytest.raises(DamagedBatchError, match="its time is 4611686018427387904 ms"):
        next(found)


class LaterRows(RowsEncoding):
    """Rows of a later version."""

    name = "later"


def later(record_count):
    body = decode_envelope(batch(rows(2))).body
    return encode_envelope(
        [body], stream_id=9, record_count=record_count, base_timestamp_ms=1, encoding="later"
    )


def test_an_encoding_that_is_not_in_the_table_is_stored_and_not_read():
    stored = later(5)
    assert accept_batch(stored).record_count == 5
    with pytest.raises(DamagedBatchError, match="it names encoding 'later'"):
        decode(stored, stored)


def test_an_entry_of_the_table_is_all_that_a_new_encoding_needs(monkeypatch):
    monkeypatch.setitem(encodings.ENCODINGS, "later", LaterRows())
    with pytest.raises(RecordBatchError, match="2 rows in a record batch that declares 5 records"):
        accept_batch(later(5))
    (found,) = decode(later(accept_batch(later(2)).record_count), later(2), later(2))
    assert found.num_rows == 6, "small ones are decoded together"
