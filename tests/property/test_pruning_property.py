"""Columns that are cut out of a batch are those that the whole batch has."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    StreamSchema,
    accept_batch,
    cutting,
    decode_batch,
    decode_columns,
    decode_envelope,
    encode_columns,
    encode_rows,
    known_front,
    map_columns,
    maybe_cut,
    maybe_kept_columns,
    maybe_kept_rows,
)
from sbp_core.records.arrow_message import encode_metadata, join_pairs, read_outline, split_pairs
from sbp_core.records.envelope import encode_head, read_head
from sbp_core.wire.headers import Projection
from tests.support.clock import examples
from tests.support.data.typed import SCHEMAS, batches, grown, rows_of

EXAMPLES = settings(deadline=None, max_examples=examples(50))
COMPRESSIONS = st.sampled_from(["none", "lz4", "zstd"])
BASE_OFFSET = 70


@pytest.fixture(autouse=True, scope="module")
def always_worth_it():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CUT_BATCH_BYTES_MIN", 0)
        patch.setattr(cutting, "_SHARE_MAX", 1)
        yield


def cut_batch(stored, projection):
    """The cut of a stored batch, of which no more is looked at than is needed."""
    view = memoryview(stored)
    front = known_front(view[:0], len(view), lambda start, end: view[start:end])
    cut = maybe_cut(front, len(view), [projection], BASE_OFFSET)
    assert cut is not None
    batch = b"".join((cut.head, *(view[start:end] for start, end in cut.runs)))
    assert len(batch) == cut.size_bytes
    return batch


@st.composite
def parts(draw, given):
    """Some of the fields, and of the fields in them, in any order."""
    kept = [each for each in given if draw(st.booleans())]
    return draw(st.permutations([each.with_type(draw(part(each.type))) for each in kept]))


@st.composite
def part(draw, kind):
    if pa.types.is_struct(kind):
        return pa.struct(draw(parts(list(kind))) or list(kind))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(draw(part(kind.value_type))))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(draw(part(kind.item_type))))
    return kind


@EXAMPLES
@given(st.data(), SCHEMAS, COMPRESSIONS)
def test_pruned_is_projected(data, schema, compression):
    """The query may know a later version of the schema than the batch is of."""
    batch = data.draw(batches(schema))
    newest = data.draw(st.just(schema) | grown(schema))
    wanted = pa.schema(data.draw(parts(list(newest.arrow))))
    stored = encode_columns(batch, schema, stream_id=1, timestamp_ms=5, compression=compression)
    whole = map_columns(decode_columns(decode_envelope(stored), schema), wanted)
    kept = maybe_kept_columns(schema, wanted)
    if kept is None:
        return
    envelope = decode_envelope(cut_batch(stored, kept.projection))
    assert (envelope.base_offset, envelope.record_count) == (BASE_OFFSET, batch.num_rows)
    assert envelope.schema_fingerprint == schema.fingerprint
    pruned = map_columns(decode_columns(envelope, kept.schema), wanted)
    assert pruned.num_rows == batch.num_rows
    assert rows_of(pruned) == rows_of(whole)
    with pytest.raises(RecordBatchError, match="columns"):
        decode_columns(envelope, schema)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=4),
            "value": st.none() | st.binary(max_size=30),
            "headers": st.none()
            | st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=3), st.binary())),
            "timestamp": st.none() | st.integers(0, 10**15),
        }
    ),
    min_size=1,
    max_size=12,
)


@EXAMPLES
@given(ROWS, st.sets(st.sampled_from(ROWS_SCHEMA.names)), COMPRESSIONS)
def test_plain_records_have_nulls_for_what_was_left_out(found, names, compression):
    rows = pa.RecordBatch.from_pylist(found, schema=ROWS_SCHEMA)
    stored = encode_rows(rows, stream_id=1, timestamp_ms=5, compression=compression)
    kept = maybe_kept_rows(names)
    if kept is None:
        assert names == set(ROWS_SCHEMA.names)
        return
    pruned = decode_batch(decode_envelope(cut_batch(stored, kept.projection)))
    assert pruned.schema == ROWS_SCHEMA
    for name in ROWS_SCHEMA.names:
        if name in names:
            assert pruned.column(name).equals(rows.column(name))
        else:
            assert pruned.column(name).null_count == rows.num_rows


def test_a_cut_batch_is_not_stored():
    stored = encode_rows(
        pa.RecordBatch.from_pylist([{"value": b"x"}], schema=ROWS_SCHEMA),
        stream_id=1,
        timestamp_ms=5,
    )
    kept = maybe_kept_rows(["value"])
    with pytest.raises(RecordBatchError, match="append whole batches"):
        accept_batch(cut_batch(stored, kept.projection))


@EXAMPLES
@given(st.data(), SCHEMAS, st.binary(max_size=4), st.binary(max_size=8))
def test_a_projection_that_does_not_fit_cuts_nothing_or_less(data, schema, nodes, buffers):
    """Nothing that a reader sends makes a server fail, or send more than it has."""
    batch = data.draw(batches(schema))
    stored = encode_columns(batch, schema, stream_id=1, timestamp_ms=5)
    asked = Projection(schema.fingerprint, nodes, buffers, "0" * 32)
    cut = maybe_cut(memoryview(stored), len(stored), [asked], 0)
    assert cut is None or cut.size_bytes <= len(stored) + 100
    kept = maybe_kept_columns(schema, pa.schema([]))
    for name in ("", None, "long" * 100_000):
        other = structs.replace(kept.projection, kept=name)
        assert maybe_cut(memoryview(stored), len(stored), [other], 0) is None
    other = structs.replace(kept.projection, schema="0" * 32)
    assert maybe_cut(memoryview(stored), len(stored), [other], 0) is None


def test_a_batch_without_room_for_one_more_property_is_sent_whole():
    schema = StreamSchema.of(pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    rows = pa.record_batch([[1], [2]], schema=schema.arrow)
    stored = memoryview(encode_columns(rows, schema, stream_id=1, timestamp_ms=5))
    kept = maybe_kept_columns(schema, pa.schema([schema.arrow.field("a")]))
    meta, _, body_start = read_head(stored, 0)
    room_bytes = limits.BATCH_METADATA_BYTES_MAX - body_start
    for length, is_cut in ((room_bytes // 2, True), (room_bytes - 40, False)):
        head = encode_head(meta._replace(timestamp_column="t" * length), 0)
        batch = memoryview(head + stored[body_start:])
        assert (maybe_cut(batch, len(batch), [kept.projection], 0) is not None) == is_cut


def test_buffers_that_overlap_are_not_sent_twice():
    """A few bytes of metadata could make a server send a buffer for each of many columns."""
    schema = StreamSchema.of(pa.schema([(name, pa.int64()) for name in "abc"]))
    rows = pa.record_batch([range(100)] * 3, schema=schema.arrow)
    stored = memoryview(encode_columns(rows, schema, stream_id=1, timestamp_ms=5))
    meta, _, body_start = read_head(stored, 0)
    outline = read_outline(stored[body_start:], record_count=100, is_for_arrow=False)
    buffers = stored[body_start + outline.buffers_start :]
    kept = maybe_kept_columns(schema, pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    pairs = list(zip(*split_pairs(outline.buffers), strict=True))
    for first, is_cut in ((pairs[:2], True), (pairs[2:4], False), (pairs[4:], False)):
        changed = outline._replace(buffers=join_pairs([*first, *pairs[2:]]))
        body = encode_metadata(changed) + buffers
        batch = memoryview(encode_head(meta._replace(body_bytes=str(len(body))), 0) + body)
        assert (maybe_cut(batch, len(batch), [kept.projection], 0) is not None) == is_cut
