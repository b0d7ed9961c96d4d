"""Record batches that cannot be decoded: the report about them, and the records left out."""

import pickle
import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sbp_core.errors import DamagedBatchError
from sbp_core.records import (
    Envelope,
    decode_envelope,
    encode_columns,
    encode_envelope,
    encode_rows,
    write_base_offset,
)
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.endpoints import Servers
from sbp_spark.reading.input_partitions import StoredRun, decode_chunks
from sbp_spark.reading.layout import ColumnsLayout, RowsLayout
from sbp_spark.reading.losses import DamagedRecordsError, DataLossError, Loss
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.schema_versions import SchemaVersions
from sbp_spark.row_schema import source_schema
from tests.support.data.batches import lying_batch, sequence_batch
from tests.support.data.typed import rows_in, schema_of, versions_of
from tests.support.spark import chunk_of, numbered, rows_of

ROWS = RowsLayout(logical_arrow_schema(source_schema(include_headers=True)))
TYPED = schema_of(id=pa.int64(), name=pa.string())


def rows_batch(start, count, compression="none"):
    batch = rows_of(numbered(start, start + count))
    return encode_rows(batch, stream_id=7, timestamp_ms=0, compression=compression)


def columns_batch(start, count, compression="none"):
    rows = rows_in(TYPED, [{"id": start + at, "name": "x"} for at in range(count)])
    return encode_columns(rows, TYPED, stream_id=7, timestamp_ms=0, compression=compression)


def rewrapped(batch, body, count):
    envelope = decode_envelope(batch)
    return encode_envelope(
        [body],
        stream_id=7,
        record_count=count,
        base_timestamp_ms=0,
        encoding=envelope.encoding,
        schema_fingerprint=envelope.schema_fingerprint,
    )


def with_backward_offsets(batch, count):
    """Offsets of values that go backward, which only a check of all of them finds."""
    body = bytes(decode_envelope(batch).body)
    good = struct.pack("<ii", 0, 1)
    at = body.rindex(good) if good in body else len(body) - 8
    return rewrapped(batch, body[:at] + struct.pack("<ii", 9, -9) + body[at + 8 :], count)


def cut_off(batch, count):
    return rewrapped(batch, decode_envelope(batch).body[:-8], count)


def undecompressable(start, count, make):
    """Buffers that say how long they are, and do not decompress to that, or at all."""
    batch = make(start, max(count, 1), "zstd")
    body = bytearray(decode_envelope(batch).body)
    at = body.find(b"\x28\xb5\x2f\xfd")
    if at < 0:
        return lying_batch("rows", count)
    body[at : at + 4] = b"????"
    return rewrapped(batch, body, count)


def damages(make):
    """Ways in which a batch of `count` records at `start` is none."""
    return [
        lambda start, count: lying_batch(decode_envelope(make(0, 1)).encoding, count),
        lambda start, count: with_backward_offsets(make(start, count), count),
        lambda start, count: cut_off(make(start, count), count),
        lambda start, count: undecompressable(start, count, make),
    ]


ROWS_DAMAGES = [
    *damages(rows_batch),
    lambda start, count: lying_batch("from the future", count),
    lambda start, count: rewrapped_meta(count),
]


def rewrapped_meta(count):
    """A sequence whose records have metadata that are none."""
    good = sequence_batch([b"v"] * count)
    records = struct.pack(">ii", 5, 1) + b"\xff" * 5 + b"v"
    return good[: len(good) - len(decode_envelope(good).body)] + records * count


def stream_of(lengths, makers):
    """Batches back to back, and the offsets at which each begins and ends."""
    payload, offset, places = b"", 0, []
    for length, make in zip(lengths, makers, strict=True):
        batch = bytearray(make(offset, length))
        write_base_offset(batch, offset)
        payload += batch
        places.append((offset, offset + length))
        offset += length
    return payload, places


def span(start, end):
    return StreamSpan(7, "orders", 0, start, end, ("host:1",))


def read(payload, wanted, layout=ROWS, *, is_loss_fatal=False):
    chunks = [chunk_of(0, memoryview(payload))]
    return [
        row
        for batch in decode_chunks(chunks, [wanted], layout, is_loss_fatal=is_loss_fatal)
        for row in batch.to_pylist()
    ]


LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=12)


@st.composite
def streams(draw, good, bad):
    lengths = draw(LENGTHS)
    makers = [draw(st.sampled_from([good, good, *bad])) for _ in lengths]
    payload, places = stream_of(lengths, makers)
    lost = [place for place, make in zip(places, makers, strict=True) if make is not good]
    end = places[-1][1]
    start = draw(st.integers(0, places[0][1] - 1))
    stop = draw(st.integers(max(start + 1, places[-1][0] + 1), end))
    return payload, lost, start, stop


def offsets_without(lost, start, stop):
    return [at for at in range(start, stop) if not any(a <= at < b for a, b in lost)]


@given(streams(rows_batch, ROWS_DAMAGES))
def test_exactly_the_damaged_offsets_are_left_out(stream):
    payload, lost, start, stop = stream
    found = [row["offset"] for row in read(payload, span(start, stop))]
    assert found == offsets_without(lost, start, stop)


@given(streams(rows_batch, ROWS_DAMAGES))
def test_damage_is_fatal_unless_it_may_be_passed_over(stream):
    payload, lost, start, stop = stream
    if not lost:
        read(payload, span(start, stop), is_loss_fatal=True)
        return
    with pytest.raises(DamagedRecordsError) as raised:
        read(payload, span(start, stop), is_loss_fatal=True)
    (loss,) = raised.value.losses
    wanted = {(max(a, start), min(b, stop)) for a, b in lost}
    assert (loss.start_offset, loss.end_offset) in wanted
    assert "stream 7 (orders)" in str(raised.value)
    assert "set failOnDataLoss to false" in str(raised.value)
    assert isinstance(raised.value.__cause__, DamagedBatchError)


@pytest.mark.parametrize("make", ROWS_DAMAGES)
def test_each_is_logged_once_with_its_offsets_and_its_cause(make, caplog):
    payload, _ = stream_of([3, 4, 2], [rows_batch, make, rows_batch])
    assert [row["offset"] for row in read(payload, span(1, 9))] == [1, 2, 7, 8]
    (record,) = caplog.records
    assert "stream 7 (orders): [3, 7): " in record.message
    assert record.message.startswith("data loss: records cannot be read")


class Driver:
    """Knows one schema of stream 7."""

    def describe_schemas(self, stream_ids, *, newest_only=False):
        return {each: versions_of(each, TYPED) for each in stream_ids}


def typed_layout():
    return ColumnsLayout(TYPED.arrow, SchemaVersions(Driver(), Servers(("nowhere:1",)), {}))


@given(streams(columns_batch, damages(columns_batch)))
def test_so_it_is_with_columns(stream):
    payload, lost, start, stop = stream
    found = [row["id"] for row in read(payload, span(start, stop), typed_layout())]
    assert found == offsets_without(lost, start, stop)


def test_an_unknown_schema_is_damage(caplog):
    unknown = schema_of(other=pa.int64())
    foreign = encode_columns(rows_in(unknown, [{"other": 1}]), unknown, stream_id=7, timestamp_ms=0)
    makers = [columns_batch, lambda *_: foreign, columns_batch]
    payload, _ = stream_of([2, 1, 2], makers)
    found = [row["id"] for row in read(payload, span(0, 5), typed_layout())]
    assert found == [0, 1, 3, 4]
    assert "the placement driver does not know" in caplog.text


@pytest.mark.exhaustive
def test_many_damaged_batches_in_a_row():
    count = 1_500
    payload, _ = stream_of([1] * count + [1], [ROWS_DAMAGES[1]] * count + [rows_batch])
    assert [row["offset"] for row in read(payload, span(0, count + 1))] == [count]


def test_the_error_goes_from_process_to_process():
    error = DamagedRecordsError(Loss(7, 3, 9), {7: "orders"}, "why")
    copied = pickle.loads(pickle.dumps(error))
    assert isinstance(copied, DataLossError)
    assert (str(copied), copied.losses) == (str(error), error.losses)
    damage = DamagedBatchError("why", 7, 3, 9)
    assert str(pickle.loads(pickle.dumps(damage))) == str(damage)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_a_part_of_a_run_has_the_batches_with_records_there(lengths, data):
    ends = [sum(lengths[: at + 1]) for at in range(len(lengths))]
    whole = decode_envelope(rows_batch(0, 1))
    envelopes: list[Envelope] = [
        replace(whole, base_offset=start, record_count=end - start)
        for start, end in pairwise([0, *ends])
    ]
    bounds = st.integers(-1, ends[-1] + 1)
    run = StoredRun(envelopes, span(0, ends[-1]), 0, ends[-1])
    part = run.between(data.draw(bounds), data.draw(bounds))
    wanted = range(part.start_offset, part.end_offset)
    assert list(part.envelopes) == [
        each for each in envelopes if set(range(each.base_offset, each.end_offset)) & set(wanted)
    ]
