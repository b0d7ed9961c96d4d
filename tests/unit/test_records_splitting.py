"""The batches of a payload: small ones that are alike are read together, as one by one."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    decode_envelope,
    encode_envelope,
    encode_rows,
    split_envelopes,
    splitting,
)
from tests.support.clock import examples
from tests.support.data.batches import sequence_batch

ALIKE = 3 * splitting.ALIKE_MIN
"""More batches than are needed to read them together."""


def rows_batch(base_offset, count=1, size=3):
    rows = pa.RecordBatch.from_pylist([{"value": bytes(size)}] * count, ROWS_SCHEMA)
    return encode_rows(rows, stream_id=9, timestamp_ms=base_offset + 1, base_offset=base_offset)


def columns_batch(base_offset, schema="a1", **properties):
    return encode_envelope(
        [bytes(8 * (2 + base_offset % 9))],
        stream_id=9,
        record_count=1 + base_offset % 7,
        base_timestamp_ms=1_000,
        encoding="columns",
        base_offset=base_offset,
        schema_fingerprint=schema,
        **properties,
    )


def one_by_one(payload):
    """Read each batch alone; return the envelopes, and the error of the first that is wrong."""
    found, position = [], 0
    try:
        while position < len(payload):
            found.append(decode_envelope(payload, position))
            position += found[-1].length_bytes
    except RecordBatchError as error:
        return found, str(error)
    return found, None


def together(payload):
    found = []
    try:
        found.extend(split_envelopes(payload))
    except RecordBatchError as error:
        return found, str(error)
    return found, None


RUNS = st.one_of(
    st.builds(
        lambda first, count, size: [rows_batch(first + at, count, size) for at in range(ALIKE)],
        *(st.integers(0, 2**40), st.integers(1, 20), st.integers(0, 400)),
    ),
    st.integers(0, 2**40).map(lambda first: [columns_batch(first + at) for at in range(ALIKE)]),
    st.just([columns_batch(at, schema="b2"[at % 2]) for at in range(ALIKE)]),
    st.just([columns_batch(at, statistics="abc"[at % 3]) for at in range(ALIKE)]),
    st.just([columns_batch(at, origin="abc"[at % 3]) for at in range(ALIKE)]),
    st.just([rows_batch(1, size=splitting.SMALL_BYTES)]),
    st.just([sequence_batch([b"1", b"2"])]),
)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(RUNS, min_size=1, max_size=4), st.data())
def test_batches_are_read_as_one_by_one(runs, data):
    payload = bytearray(b"".join(batch for run in runs for batch in run))
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.just(len(payload)) | st.integers(0, len(payload))) :]
    assert together(bytes(payload)) == one_by_one(bytes(payload))


def changed(batch, old, new):
    assert batch.count(old) == 1
    return batch.replace(old, new)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x23" + rows_batch(5)[1:],
        rows_batch(5)[:1] + struct.pack(">q", -1) + rows_batch(5)[9:],
        rows_batch(5)[:1] + struct.pack(">q", 2**63 - 1) + rows_batch(5)[9:],
        rows_batch(5)[:9] + struct.pack(">i", 2**20) + rows_batch(5)[13:],
        changed(rows_batch(5), b"rows", b"r\xffws"),
        changed(columns_batch(5), b"columns", b"c\xfflumns"),
        changed(columns_batch(5, origin="mine"), b"mine", b"mi\xffe"),
    ],
)
def test_a_wrong_batch_among_many_is_refused_as_alone(wrong):
    before = [rows_batch(5)] * ALIKE
    if b"lumns" in wrong:
        before = [columns_batch(5, origin="mine" if b"mi" in wrong else None)] * ALIKE
    found, error = together(b"".join([*before, wrong, *before]))
    assert len(found) == ALIKE
    expected, alone = one_by_one(b"".join([*before, wrong, *before]))
    assert (found, error) == (expected, alone)
    assert error is not None


@pytest.mark.parametrize("count", [0, limits.BATCH_RECORDS_MAX + 1])
def test_a_batch_of_too_many_records_or_none_is_refused_among_many(count):
    sound = [columns_batch(6 + 7 * at) for at in range(ALIKE)]
    number = struct.pack("<i", 7)
    at = sound[0].index(number, 13)
    wrong = sound[0][:at] + struct.pack("<i", count) + sound[0][at + 4 :]
    with pytest.raises(RecordBatchError, match=f"record batch of {count} records"):
        list(split_envelopes(b"".join([*sound, wrong, *sound])))


def counting(monkeypatch):
    """The positions at which a batch was read by itself."""
    positions = []

    def decode(view, position):
        positions.append(position)
        return decode_envelope(view, position)

    monkeypatch.setattr(splitting, "decode_envelope", decode)
    return positions


def test_batches_that_are_alike_are_not_read_one_by_one(monkeypatch):
    batches = [columns_batch(at, schema="of no other test" * 20) for at in range(6_000)]
    alone = counting(monkeypatch)
    assert len(list(split_envelopes(b"".join(batches)))) == 6_000
    assert len(alone) < 20
