"""Batches that are merged: the same records at the same offsets, and with the same times."""

import datetime as dt

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    StreamSchema,
    decode_batch,
    decode_envelope,
    encode_columns,
    encode_envelope,
    encode_rows,
    merge_batches,
)
from sbp_core.records import batch_merging as merging
from tests.support.clock import examples
from tests.support.data.batches import sequence_batch

TEXT = st.text(st.characters(codec="utf-8"), max_size=4)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIMES_MS = st.integers(-(10**12), 10**12)
RECORDS = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=5),
        "value": st.none() | st.binary(max_size=9),
        "headers": st.none() | st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=3))),
        "timestamp": st.none() | TIMES_MS.map(lambda ms: EPOCH + dt.timedelta(milliseconds=ms)),
    }
)
LISTS = st.lists(RECORDS, min_size=1, max_size=6)
COMPRESSIONS = st.sampled_from(["none", "none", "none", "lz4", "zstd"])
TYPED = StreamSchema(pa.schema([pa.field("n", pa.int64())]))


def rows_of(values):
    return pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA)


@st.composite
def adjacent(draw):
    """Batches of a stream one after the other: most of rows, some that have to stay."""
    batches, offset = [], draw(st.integers(0, 2**40))
    for values in draw(st.lists(LISTS, min_size=1, max_size=8)):
        batch = draw(a_batch(values, offset))
        batches.append(batch)
        offset += decode_envelope(batch).record_count
    return batches


@st.composite
def a_batch(draw, values, offset):
    time_ms, count = draw(TIMES_MS), len(values)
    match draw(st.sampled_from(["rows"] * 8 + ["damaged", "columns", "sequence", "unknown"])):
        case "rows":
            compression = draw(COMPRESSIONS)
            return encode_rows(
                rows_of(values),
                stream_id=1,
                timestamp_ms=time_ms,
                compression=compression,
                base_offset=offset,
            )
        case "damaged":
            batch = bytearray(
                encode_rows(rows_of(values), stream_id=1, timestamp_ms=time_ms, base_offset=offset)
            )
            batch[draw(st.integers(len(batch) - 100, len(batch) - 1))] ^= draw(st.integers(1, 255))
            return bytes(batch)
        case "columns":
            typed = pa.RecordBatch.from_pydict({"n": list(range(count))}, schema=TYPED.arrow)
            return encode_columns(
                typed, TYPED, stream_id=1, timestamp_ms=time_ms, base_offset=offset
            )
        case "sequence":
            return sequence_batch([b"v"] * count, base_offset=offset, time_ms=time_ms)
    return encode_envelope(
        [bytes(count)],
        stream_id=1,
        record_count=count,
        base_timestamp_ms=time_ms,
        encoding="new",
        base_offset=offset,
    )


def merged(batches, **limits):
    """All batches, merged as a server does."""
    found, at = [], 0
    while at < len(batches):
        count, batch = merge_batches((memoryview(each) for each in batches[at:]), **limits)
        found += batches[at : at + count] if batch is None else [batch]
        at += count
    assert at == len(batches)
    return found


def records(batch):
    """Offset, time, and the rest of each record, as a reader has them.

    Times are microseconds: those of a damaged batch may be none that Python has.
    """
    envelope = decode_envelope(batch)
    decoded = decode_batch(envelope)
    at = decoded.schema.get_field_index("timestamp")
    times_us = decoded.column(at).cast(pa.int64()).to_pylist()
    rows = decoded.remove_column(at).to_pylist()
    for offset, (row, time_us) in enumerate(zip(rows, times_us, strict=True), envelope.base_offset):
        own_us = envelope.base_timestamp_ms * 1000 if time_us is None else time_us
        yield offset, row | {"timestamp": own_us}


def is_readable(batch):
    try:
        return bool(list(records(batch)))
    except RecordBatchError:
        return False


@settings(deadline=None, max_examples=examples(300))
@given(adjacent())
def test_the_records_are_the_same_and_what_cannot_be_merged_stays(batches):
    found = merged(batches)
    before = [item for each in batches if is_readable(each) for item in records(each)]
    assert [item for each in found if is_readable(each) for item in records(each)] == before
    unreadable = [each for each in batches if not is_readable(each)]
    assert [each for each in found if not is_readable(each)] == unreadable
    assert merged(found) == merged(merged(found)), "nothing is merged without end"


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(LISTS, min_size=2, max_size=8), COMPRESSIONS, st.lists(TIMES_MS, min_size=8))
def test_batches_of_rows_become_one(lists, compression, times_ms):
    batches, offset = [], 7
    for values, time_ms in zip(lists, times_ms, strict=False):
        batches.append(
            encode_rows(
                rows_of(values),
                stream_id=3,
                timestamp_ms=time_ms,
                compression=compression,
                base_offset=offset,
            )
        )
        offset += len(values)
    (batch,) = merged(batches)
    envelope = decode_envelope(batch)
    assert (envelope.stream_id, envelope.base_offset, envelope.end_offset) == (3, 7, offset)
    assert envelope.base_timestamp_ms == times_ms[0]
    assert list(records(batch)) == [item for each in batches for item in records(each)]


def one(offset, value=b"v", stream_id=1, time_ms=0, **options):
    row = {"key": None, "value": value, "headers": None, "timestamp": None}
    return encode_rows(
        rows_of([row]), stream_id=stream_id, timestamp_ms=time_ms, base_offset=offset, **options
    )


def test_a_merged_batch_ends_where_it_is_large_enough():
    batches = [one(offset, bytes(20_000)) for offset in range(100)]
    sizes = [len(each) for each in merged(batches)]
    assert len(sizes) == 2
    assert merging.MERGED_BYTES <= sizes[0] < merging.MERGED_BYTES + 32_768
    large = [one(0, bytes(40_000)), one(1, bytes(40_000))]
    assert merged(large) == large


def test_it_has_a_bounded_number_of_records():
    found = merged([one(offset) for offset in range(25)], records_max=10)
    assert [decode_envelope(each).record_count for each in found] == [10, 10, 5]


def test_only_adjacent_batches_of_a_stream_that_are_compressed_alike_belong_together():
    for batches in (
        [one(0), one(2)],
        [one(0), one(1, stream_id=2)],
        [one(0), one(1, compression="lz4")],
        [one(0, compression="zstd"), one(1, compression="lz4")],
        [one(0, time_ms=2**62), one(1)],  # a time that no record can have
    ):
        assert merged(batches) == batches


def test_an_envelope_with_anything_that_is_not_known_stays():
    """Another version wrote it: what that meant must not be lost."""
    foreign = one(0).replace(b"body_bytes", b"body_bytez")
    assert merged([foreign, one(1)]) == [foreign, one(1)]


def test_no_batch_is_read_behind_the_first_that_does_not_belong():
    read = []

    def batches():
        for each in (one(0), one(1), one(5), one(6)):
            read.append(each)
            yield each

    assert merge_batches(batches())[0] == 2
    assert len(read) == 3
