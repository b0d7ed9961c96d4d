"""Batches without an encoding: the record sequence of other clients, counted and read into rows."""

import struct
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import decode_batch, decode_envelope, peek_batch, split_envelopes
from sbp_core.wire._generated import KeyValue
from tests.support.data.batches import TIME_MS, sequence_batch


@given(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=5), max_size=4))
def test_batches_back_to_back_are_split_and_read(batches):
    payload = b"".join(
        sequence_batch(values, base_offset=10 * number) for number, values in enumerate(batches)
    )
    read = [decode_batch(envelope) for envelope in split_envelopes(payload)]
    assert [batch.column("value").to_pylist() for batch in read] == batches


@pytest.mark.parametrize("delta", [0, 2, 3, -1, 99])
def test_records_are_counted_whatever_the_batch_says(delta):
    data = sequence_batch([b"a", b"b", b"c"], delta=delta)
    assert peek_batch(data).record_count == 3
    assert decode_batch(decode_envelope(data)).num_rows == 3


def test_keys_values_headers_and_times():
    data = sequence_batch([b"a", b""], headers=(KeyValue("k", "v"), KeyValue("k", None)))
    rows = decode_batch(decode_envelope(data)).to_pylist()
    start = datetime.fromtimestamp(TIME_MS / 1000, tz=UTC)
    assert rows == [
        {
            "key": None,
            "value": value,
            "headers": [("k", b"v"), ("k", None)],
            "timestamp": start + timedelta(milliseconds=index),
        }
        for index, value in enumerate([b"a", b""])
    ]


def test_the_first_header_keys_is_the_key_and_properties_follow_the_headers():
    headers = KeyValue("Tag", "t"), KeyValue("Keys", "k"), KeyValue("Keys", "l")
    data = sequence_batch([b"v"], headers=headers, properties=(KeyValue("n", "1"),))
    (row,) = decode_batch(decode_envelope(data)).to_pylist()
    assert row["key"] == b"k"
    assert row["headers"] == [("Tag", b"t"), ("Keys", b"l"), ("n", b"1")]


def test_a_record_without_metadata_is_read():
    data = sequence_batch([]) + struct.pack(">ii", 0, 2) + b"hi"
    assert decode_batch(decode_envelope(data)).column("value").to_pylist() == [b"hi"]


@pytest.mark.parametrize("lengths", [(-1, 1), (1, -1), (2**31 - 1, 2**31 - 1), (0, 3), (100, 0)])
def test_lengths_that_lead_outside_are_refused(lengths):
    data = sequence_batch([]) + struct.pack(">ii", *lengths) + b"hi"
    with pytest.raises(RecordBatchError, match=r"record at byte|magic"):
        list(split_envelopes(data))


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 7])
def test_lengths_that_are_cut_off_are_refused(tail):
    with pytest.raises(RecordBatchError, match="cut off"):
        peek_batch(sequence_batch([b"a"]) + tail)


def test_a_batch_of_no_records_is_refused():
    with pytest.raises(RecordBatchError, match="0 records"):
        peek_batch(sequence_batch([], delta=5))


def test_damaged_metadata_of_a_record_is_refused():
    data = sequence_batch([]) + struct.pack(">ii", 8, 0) + b"\xff" * 8
    with pytest.raises(RecordBatchError, match="metadata of a record"):
        decode_batch(decode_envelope(data))


@given(st.binary(max_size=200))
def test_random_bodies_raise_nothing_else(body):
    try:
        for envelope in split_envelopes(sequence_batch([]) + body):
            decode_batch(envelope)
    except RecordBatchError:
        pass


def test_records_that_have_to_be_counted_are_bounded():
    most = limits.SEQUENCE_RECORDS_MAX
    assert peek_batch(sequence_batch([b"a"] * most)).record_count == most
    with pytest.raises(RecordBatchError, match=f"more than {most} records"):
        peek_batch(sequence_batch([b"a"] * (most + 1)))
